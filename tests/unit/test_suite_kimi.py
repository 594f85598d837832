"""The Blackwell suite's variables, and the commands and expectations made of them."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from measure.published import published_for
from patchset.errors import Refused, UsageFault
from suite import kimi
from suite.campaign import Configuration
from suite.checks import CHECKS
from suite.pictures import halves
from suite.talk import difference
from unit.doctor_files import make_drafter, make_target
from unit.test_launched import SERVER


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    drafters = [
        make_drafter(tmp_path / "one", "mla", max_position_embeddings=1024),
        make_drafter(tmp_path / "two", "mla"),
    ]
    return {
        "KIMI_EAGLE3_TARGET": str(make_target(tmp_path / "target")),
        "KIMI_EAGLE3_DRAFTERS": os.pathsep.join(map(str, drafters)),
        "KIMI_EAGLE3_GPUS": "4xB200",
        "KIMI_EAGLE3_IMAGE": "patched:0.33.0",
        "KIMI_EAGLE3_RELEASE": "0.33.0",
    }


def made(environ: dict[str, str], tmp_path: Path) -> dict[str, Configuration]:
    wanted = kimi.read(environ, tmp_path)
    return {c.name: c for c in kimi.configurations(wanted, lambda text: None)}


def words(configuration: Configuration) -> list[str]:
    assert isinstance(configuration.start, kimi.Start)
    return configuration.start.words()


def test_nothing_is_missing(environ: dict[str, str]) -> None:
    assert kimi.needs(environ) == []
    assert len(kimi.needs({})) == 4
    for name in ("TARGET", "DRAFTERS", "GPUS", "IMAGE"):
        rest = {key: value for key, value in environ.items() if key != f"KIMI_EAGLE3_{name}"}
        (missing,) = kimi.needs(rest)
        assert f"KIMI_EAGLE3_{name}" in missing


def test_every_layout_without_and_with_each_drafter(
    environ: dict[str, str], tmp_path: Path
) -> None:
    wanted = kimi.read(environ, tmp_path)
    found = made(environ, tmp_path)
    assert list(found) == wanted.names
    assert wanted.layouts == ("tp4", "tp2pp2", "tp4dcp4")
    assert [name for name in found if found[name].baseline is None] == [
        f"{layout}-alone" for layout in wanted.layouts
    ]
    assert found["tp2pp2-two"].baseline == "tp2pp2-alone"
    checks = wanted.checks
    assert [c for n, c in checks if n == "tp4-one"] == list(CHECKS)
    assert [c for n, c in checks if n == "tp2pp2-one"] == [
        c for c in CHECKS if c in kimi.OTHER_LAYOUTS
    ]


def test_the_command_is_the_doctors(environ: dict[str, str], tmp_path: Path) -> None:
    environ["KIMI_EAGLE3_OPTIONS"] = "--max-model-len 2048 --seed 7"
    found = made(environ, tmp_path)
    alone, drafting = words(found["tp4-alone"]), words(found["tp4-one"])
    at = drafting.index("--speculative-config")
    assert str(tmp_path / "one") in drafting[at + 1]
    assert "--speculative-config" not in alone
    names = [alone.index("--name") + 1, drafting.index("--name") + 1]
    assert alone[names[0]] != drafting[names[1]]
    rest = [word for word in drafting[:at] + drafting[at + 2 :] if word != drafting[names[1]]]
    assert rest == [word for word in alone if word != alone[names[0]]]
    assert alone[:2] == ["docker", "run"]
    assert alone[alone.index("patched:0.33.0") + 1] == str(tmp_path / "target")
    assert alone[alone.index("--max-model-len") + 1] == "2048"
    assert alone[-2:] == ["--seed", "7"]
    assert f"{tmp_path / 'one'}:{tmp_path / 'one'}:ro" in drafting


def test_what_is_expected_of_each(environ: dict[str, str], tmp_path: Path) -> None:
    found = made(environ, tmp_path)
    alone, drafting = found["tp4-alone"].context, found["tp4-one"].context
    assert alone.draft_lengths == drafting.draft_lengths == [1024, 4096]
    assert (alone.drafts, drafting.drafts) == (0, 3)
    assert alone.cache_tokens
    assert drafting.cache_tokens
    assert alone.cache_tokens > drafting.cache_tokens


def test_data_sets_and_what_was_published_for_them(environ: dict[str, str], tmp_path: Path) -> None:
    name = "kimi-k2.5-eagle3-mla"
    (tmp_path / "one").rename(tmp_path / name)
    environ["KIMI_EAGLE3_DRAFTERS"] = os.pathsep.join(str(tmp_path / n) for n in (name, "two"))
    file = tmp_path / "some.jsonl"
    file.write_text('{"prompt": "How many?"}\n')
    environ["KIMI_EAGLE3_DATA"] = f"gsm8k={file} mine={file}"
    found = made(environ, tmp_path)
    known = found[f"tp4-{name}"].context
    (source,) = [p for p in published_for(name) if p.draft_tokens == 3]
    assert known.published == {"gsm8k": source.lengths["GSM8K"]}
    assert known.material.data["mine"] == ["How many?"]
    assert len(known.material.data["ours/code"]) == 10
    assert found["tp4-two"].context.published == {}
    environ["KIMI_EAGLE3_DRAFT_TOKENS"] = "7"
    assert made(environ, tmp_path)[f"tp4-{name}"].context.published == {}


def test_what_the_doctor_stops_has_its_reason(environ: dict[str, str], tmp_path: Path) -> None:
    environ["KIMI_EAGLE3_LAYOUTS"] = "tp8"
    with pytest.raises(Refused, match="takes 8 of 4x B200"):
        words(made(environ, tmp_path)["tp8-one"])


def test_no_container_is_left(environ: dict[str, str], tmp_path: Path) -> None:
    """Not even one that does not stop in time, whose client is killed."""
    engine = tmp_path / "engine"
    quoted = f"{shlex.quote(sys.executable)} -c {shlex.quote(SERVER)}"
    engine.write_text(
        f'#!/bin/sh\nif [ "$1" = run ]; then exec {quoted} "$@"; fi\necho "$@" > {tmp_path}/told\n'
    )
    engine.chmod(0o755)
    environ["KIMI_EAGLE3_ENGINE"] = str(engine)
    start = made(environ, tmp_path)["tp4-alone"].start
    assert isinstance(start, kimi.Start)
    with start(tmp_path / "log") as server:
        assert server.process.poll() is None
        assert not (tmp_path / "told").exists()
    assert (tmp_path / "told").read_text().startswith("rm --force kimi-")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LAYOUTS", "tp4 pp2"),
        ("RELEASE", ""),
        ("DRAFT_TOKENS", "three"),
        ("GPUS", "4xC64"),
        ("DATA", "gsm8k"),
        ("DRAFTERS", f"a/one{os.pathsep}b/one"),
    ],
)
def test_values_that_are_none(
    name: str, value: str, environ: dict[str, str], tmp_path: Path
) -> None:
    environ[f"KIMI_EAGLE3_{name}"] = value
    with pytest.raises(UsageFault):
        kimi.read(environ, tmp_path)


NEAR = [[[7, -0.1], [8, -0.4]], [[9, -0.2], [4, -3.0]]]


@pytest.mark.parametrize(
    ("tokens", "at", "gap"),
    [
        ([7, 9], None, None),
        ([8, 9], 0, 0.3),
        ([7, 4], 1, 2.8),
        ([7, 5], 1, float("inf")),
        ([7], 1, float("inf")),
        ([7, 9, 1], 2, float("inf")),
    ],
)
def test_where_answers_part(tokens: list[int], at: Any, gap: Any) -> None:
    found = difference({"tokens": [7, 9], "near": NEAR}, {"tokens": tokens})
    if at is None:
        assert found is None
    else:
        assert found
        assert (found.at, round(found.gap, 6)) == (at, gap)


def test_pictures_are_png() -> None:
    assert halves(4, 3, (1, 2, 3), (4, 5, 6)).startswith("data:image/png;base64,iVBORw0KGgo")
