"""Streamed tool calls and reasoning, several tokens a delta: nothing is lost (F22, F36, F37).

The release's own parser and chat endpoint, with streams cut in every way. No model runs, so they
are tried in the environment of 0.16.0, whose packages the parsers of the other releases take.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from standin.engine import engine_environ

from engine.support import tree
from patchset.project import Project

PROJECT = Project.here()


def cured(fault: str) -> list[str]:
    """The releases whose series cures `fault`."""
    return [
        item.version
        for item in PROJECT.releases.release
        if PROJECT.has_series(item.version)
        and any(fault in patch.faults for patch in PROJECT.series(item.version).patches)
    ]


OFTEN = ("0.16.0",)  # the others with `-m slow`: they have nearly the same parser
CASES = [
    version if version in OFTEN else pytest.param(version, marks=pytest.mark.slow)
    for version in cured("F22")
]


def probe(python: Path, vllm: Path, level: str) -> dict[str, Any]:
    """`tool_parser_probe.py` with the vLLM of the tree `vllm`."""
    script = Path(__file__).with_name("tool_parser_probe.py")
    done = subprocess.run(
        [str(python), str(script), level],
        env=engine_environ(vllm, {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR"}),
        cwd=vllm,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("level", ["parser", "server"])
@pytest.mark.parametrize("version", CASES)
def test_streamed_is_unstreamed(version: str, level: str, engine_python: Path) -> None:
    found = probe(engine_python, tree(version), level)
    assert len(found) == (16 if level == "parser" else 32)
    for name, stream in found.items():
        assert stream["splits"] > 100, name
        assert not stream["wrong"], (name, stream)
        assert not stream["reasoning_wrong"], name
        assert not stream["unstreamed_wrong"], name


@pytest.mark.parametrize("version", CASES)
def test_stock_loses_them(version: str, engine_python: Path) -> None:
    """Else the splits above show nothing, or the patches can be dropped."""
    found = probe(engine_python, tree(version, upto=0), "server")
    assert all(stream["wrong"] for stream in found.values() if stream["calls"])
    assert all(stream["reasoning_wrong"] for name, stream in found.items() if "reasoning" in name)
    assert not any(stream["unstreamed_wrong"] for stream in found.values())


# What the parser of 0.20.0 and later streams otherwise than the text says, however it is cut.
ALWAYS = {
    "text that ends like a marker",
    "spaces in a call",
    "a call without an index",
    "section closed early",
}


@pytest.mark.slow
@pytest.mark.parametrize("version", sorted({*cured("F36"), *cured("F37")} - {*cured("F22")}))
def test_later_parsers(version: str, engine_python: Path) -> None:
    """Releases whose tool parser upstream has cured, and not yet what is around it."""
    stock, found = (probe(engine_python, tree(version, upto), "server") for upto in (0, None))
    assert stock["parallel calls"]["wrong"]
    wrong = {name for name, stream in found.items() if stream["wrong"]}
    assert {name.removesuffix(", after reasoning") for name in wrong} == ALWAYS
    assert sum(stream["splits"] for name, stream in found.items() if "reasoning" in name) > 1000
    assert not any(stream["reasoning_wrong"] for stream in found.values())
