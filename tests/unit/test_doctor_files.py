"""Checkpoints from anywhere: whole ones are read, anything else ends in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advice import checkpoint
from advice.checkpoint import Folder, open_checkpoint, read_header
from advice.drafter import read_drafter
from advice.fields import Fields, context_length
from advice.synthetic import SHARDS, kimi_tensors, write_drafter, write_header, write_kimi
from advice.target import read_target
from patchset.errors import IntegrityFault, PatchsetError, Refused, UsageFault
from unit.doctor_files import make_drafter, make_target, write_json
from unit.support import TALLY

WHOLE = [("a", "BF16", (2, 3)), ("b.c", "F32", ()), ("d", "I64", (0,)), ("e", "BOOL", (5,))]


def packed(header: Any, data: int = 0) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


def entry(begin: int, end: int, shape: Any = (4,), dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_header(path, WHOLE)
    found = read_header(Folder(tmp_path), path.name, path.stat().st_size)
    assert [(name, t.dtype, t.shape) for name, t in found.items()] == WHOLE
    assert [t.size for t in found.values()] == [12, 4, 0, 5]
    assert found["e"].start == path.stat().st_size - 5


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a whole safetensors file"),
    "cut in the length": (b"\x01\x00", "not a whole safetensors file"),
    "header longer than the file": ((9).to_bytes(8, "little") + b"{}", "not a whole"),
    "a long name": (packed({"a" * 100_000: entry(0, 4, (9,))}, 4), "takes 4 bytes"),
    "huge header length": ((1 << 62).to_bytes(8, "little") + bytes(99), "not a whole"),
    "not JSON": (packed(b"pickle!"), "not valid JSON"),
    "no object": (packed(b"[1]"), "not a JSON object"),
    "deep": (packed(b'{"a":' * 100_000), "not valid JSON"),
    "deep list": (packed(b'{"a":' + b"[" * 100_000), "not valid JSON"),
    "not UTF-8": (packed(b'{"\xff": 1}'), "not valid JSON"),
    "long number": (packed(b'{"a": ' + b"9" * 100_000 + b"}"), "JSON|no sense"),
    "overlap": (packed({"a": entry(0, 4), "b": entry(2, 6)}, 6), "overlap"),
    "same place": (packed({"a": entry(0, 4), "b": entry(0, 4)}, 4), "overlap"),
    "gap": (packed({"a": entry(0, 4), "b": entry(5, 9)}, 9), "gap"),
    "backwards": (packed({"a": entry(4, 0)}, 4), "overlap|end at"),
    "beyond the end": (packed({"a": entry(0, 4)}, 2), "end at byte"),
    "more behind": (packed({"a": entry(0, 4)}, 9), "end at byte"),
    "negative": (packed({"a": entry(-4, 0)}, 0), "overlap"),
    "size that is not the shape's": (packed({"a": entry(0, 4, (9,))}, 4), "takes 4 bytes"),
    "unknown type": (packed({"a": entry(0, 0, dtype="X4")}, 0), "unknown type"),
    "type that is no word": (packed({"a": entry(0, 4, dtype=[1])}, 4), "takes|no sense"),
    "shape of words": (packed({"a": entry(0, 4, ["x"])}, 4), "takes 4 bytes"),
    "shape of fractions": (packed({"a": entry(0, 4, [4.0])}, 4), "takes 4 bytes"),
    "negative extents": (packed({"a": entry(0, 4, [-2, -2])}, 4), "takes 4 bytes"),
    "many extents": (packed({"a": entry(0, 1, [1] * 100_000)}, 1), "takes 1 bytes"),
    "offsets that are words": (packed({"a": entry("0", "4")}, 4), "sense|overlap"),  # type: ignore[arg-type]
    "no offsets": (packed({"a": {"dtype": "U8"}}), "no sense"),
    "entry that is no object": (packed({"a": 3}), "no sense"),
    "name twice": (
        packed(
            b'{"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
            b' "a": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
            4,
        ),
        "twice",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("many", [False, True])
def test_a_hostile_file_ends_in_one_sentence(case: str, many: bool, tmp_path: Path) -> None:
    """As a drafter, of which each tensor is kept, and as a target, whose tensors are counted."""
    content, words = HOSTILE[case]
    path = make_drafter(tmp_path / "x")
    (path / "model.safetensors").write_bytes(content)
    found = open_checkpoint(str(path))
    with pytest.raises(IntegrityFault, match=words) as told:
        found.groups() if many else found.tensors()
    assert "\n" not in told.value.message
    assert len(told.value.message) < 500


def test_a_header_too_long_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "HEADER_LIMIT", 100)
    path = make_drafter(tmp_path / "x")
    with pytest.raises(IntegrityFault, match="at most 100 is read"):
        open_checkpoint(str(path)).tensors()
    monkeypatch.setattr(checkpoint, "JSON_LIMIT", 100)
    with pytest.raises(IntegrityFault, match="are no configuration"):
        _ = open_checkpoint(str(path)).config


def test_links_and_other_things_that_are_no_files(tmp_path: Path) -> None:
    path = make_drafter(tmp_path / "x")
    (path / "notes").mkdir()
    os.mkfifo(path / "pipe.safetensors")  # would block whoever opens it
    assert open_checkpoint(str(path)).shards == ("model.safetensors",)
    # The hub's cache keeps a checkpoint as links.
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in ("config.json", "model.safetensors"):
        (linked / name).symlink_to(path / name)
    (linked / "README.md").symlink_to("gone")  # nothing that is read
    assert len(open_checkpoint(str(linked)).tensors()) == 12
    (linked / "loop.safetensors").symlink_to("loop.safetensors")
    with pytest.raises(IntegrityFault, match=r"loop\.safetensors: leads to no file"):
        open_checkpoint(str(linked))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageFault, match="not a folder"):
        open_checkpoint(str(tmp_path / "loop"))


def test_numbers_that_only_python_reads(tmp_path: Path) -> None:
    path = make_drafter(tmp_path / "x")
    for word in ("NaN", "-Infinity"):
        (path / "config.json").write_text(f'{{"a": "NaN", "b": [1, {word}]}}')
        with pytest.raises(Refused, match=rf"config\.json: holds {word}, which Python reads"):
            _ = open_checkpoint(str(path)).config


def test_places_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"no config\.json"):
        open_checkpoint(str(tmp_path))
    with pytest.raises(UsageFault, match="neither a folder nor"):
        open_checkpoint(str(tmp_path / "none"))
    with pytest.raises(UsageFault, match="neither a folder nor"):
        open_checkpoint("a\0b")
    write_json(tmp_path / "config.json", [1])
    with pytest.raises(IntegrityFault, match="not a JSON object"):
        _ = open_checkpoint(str(tmp_path)).config
    with pytest.raises(UsageFault, match="not a folder"):
        open_checkpoint(str(tmp_path / "config.json"))


def sharded(folder: Path) -> Path:
    path = make_drafter(folder / "x")
    (path / "model.safetensors").unlink()
    write_header(path / "a.safetensors", WHOLE[:2])
    write_header(path / "b.safetensors", WHOLE[2:])
    return path


def index(path: Path, **where: str) -> None:
    write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})


def test_several_files(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    assert len(open_checkpoint(str(path)).tensors()) == 4
    index(path, **{"a": "a.safetensors", "b.c": "a.safetensors"})
    assert list(open_checkpoint(str(path)).tensors()) == ["a", "b.c"]
    index(path, a="a.safetensors")
    with pytest.raises(IntegrityFault, match="lists 1 tensors, the files hold 2"):
        open_checkpoint(str(path)).groups()
    index(path, a="a.safetensors", z="c.safetensors")
    with pytest.raises(IntegrityFault, match=r"1 of them are not there, the first is 'c\.safet"):
        open_checkpoint(str(path)).tensors()
    index(path, a="../../a.safetensors")
    with pytest.raises(IntegrityFault, match="not there"):
        open_checkpoint(str(path)).tensors()
    index(path)
    with pytest.raises(IntegrityFault, match="names no weight files"):
        open_checkpoint(str(path)).tensors()


def test_the_same_tensor_in_two_files(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    write_header(path / "c.safetensors", WHOLE[:1])
    with pytest.raises(IntegrityFault, match="holds 'a' once more"):
        open_checkpoint(str(path)).tensors()


@given(st.data())
def test_damaged_headers(data: st.DataObject) -> None:
    """Any damage to a whole file is told, or leaves a file that reads as whole."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        write_header(path, WHOLE)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(content)))
        content = content[: cut if data.draw(st.booleans()) else None]
        path.write_bytes(content)
        TALLY["safetensors headers damaged: told of, or read as whole"] += 1
        try:
            found = read_header(Folder(path.parent), path.name, len(content))
        except IntegrityFault:
            return
        assert sum(t.size for t in found.values()) <= len(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets"]), json_values))
def test_headers_of_any_json(values: dict[str, Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(packed({"a": values}, 4))
        TALLY["safetensors headers of any JSON: told of"] += 1
        with pytest.raises(IntegrityFault):
            read_header(Folder(path.parent), path.name, path.stat().st_size)


@given(st.sampled_from(["target", "drafter"]), st.data())
def test_configurations_with_any_value_in_a_field(kind: str, data: st.DataObject) -> None:
    """Understood, or one sentence: never an error of ours."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        make = make_target if kind == "target" else make_drafter
        path = make(Path(folder) / "x")
        config = json.loads((path / "config.json").read_text())
        parts = [config, *(part for part in config.values() if isinstance(part, dict))]
        part = data.draw(st.sampled_from(parts))
        keys = [*part, "quantization_config", "rope_scaling", "text_config", "architectures"]
        part[data.draw(st.sampled_from(keys))] = data.draw(json_values)
        try:
            text = json.dumps(config, allow_nan=False)
        except ValueError:
            text = json.dumps(config)
        (path / "config.json").write_text(text)
        TALLY["configurations with a wrong field: understood or told of"] += 1
        try:
            found = open_checkpoint(str(path))
            read_target(found) if kind == "target" else read_drafter(found)
        except PatchsetError:
            pass


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({}, None),
        ({"max_position_embeddings": 100}, 100),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 2}}, 200),
        (
            {
                "max_position_embeddings": 262144,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 64.0,
                    "original_max_position_embeddings": 4096,
                },
            },
            262144,
        ),
        ({"max_position_embeddings": 9, "rope_scaling": {"type": "llama3", "factor": 8}}, 9),
    ],
)
def test_context_lengths(config: dict[str, Any], length: int | None) -> None:
    assert context_length(Fields(config, "config.json")) == length


TOOLS = Path(__file__).resolve().parents[2] / "tools"
# A child's peak as others count it begins with that of the process which started it.
PEAK = """
import pathlib, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(*(x for x in open("/proc/self/status") if x.startswith("VmHWM")), file=sys.stderr)
"""


def test_the_real_layout(tmp_path: Path) -> None:
    """208,550 tensors in 64 files, 595 GB that take no disk, in 150 MiB of memory."""
    found = open_checkpoint(str(write_kimi(tmp_path / "Kimi-K2.5")))
    target = read_target(found)
    assert len(found.shards) == SHARDS
    assert sum(group.number for group in target.groups) == 208_550
    assert sum(group.number * group.size for group in target.groups) == 595_148_745_696
    experts = [g for g in target.groups if g.name.endswith("experts.*.up_proj.weight_packed")]
    assert [g.number for g in experts] == [384] * 60
    assert target.context == 262_144
    assert target.default_ids == (2, 30, 58)
    assert target.quantization == "compressed-tensors"
    assert not target.fp8_cache
    drafter = write_drafter(tmp_path / "Kimi-K25-eagle3")
    words = ["--release", "0.33.0", "--target", found.name, "--drafter", str(drafter), "--json"]
    told = subprocess.run(
        [sys.executable, "-c", PEAK, str(TOOLS / "doctor.py"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(told.stdout)["result"] == "go", told
    assert int(told.stderr.split()[-2]) < 150 << 10
    assert next(kimi_tensors())[0] == "language_model.model.embed_tokens.weight"
