"""The drafter's attention backend on Blackwell cards, decided by vLLM without one (F05, F06, F10).

See `draft_backend_probe.py` for what is real in this.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from standin.engine import engine_environ

from engine.support import Engine, tree

SM100, SM120 = (10, 0), (12, 0)
Case = dict[str, Any]


def case(
    capability: tuple[int, int],
    *,
    mla: bool = False,
    target: str | None = None,
    cache: str = "auto",
    **drafter: str,
) -> Case:
    return {
        "capability": capability,
        "mla": mla,
        "target": target,
        "cache": cache,
        "drafter": drafter,
    }


# The platform's own choice for an MLA target (F05), and the user's (F06).
FAULTS = {
    "F05": case(SM100),
    "F06-sm100": case(SM100, target="TRITON_MLA"),
    "F06-sm120": case(SM120, target="TRITON_MLA"),
}
# An MLA-style drafter, and the backend that it and its target get.
KEPT = [
    (case(SM100, mla=True), "FLASHINFER_MLA"),
    (case(SM100, mla=True, target="TRITON_MLA"), "TRITON_MLA"),
    (case(SM100, mla=True, target="CUTLASS_MLA"), "CUTLASS_MLA"),
    (case(SM120, mla=True), "TRITON_MLA"),
    (case(SM120, mla=True, target="TRITON_MLA"), "TRITON_MLA"),
]
EXPLICIT = [
    case(SM100, attention_backend="TRITON_ATTN"),
    case(SM100, target="FLASHINFER_MLA", attention_backend="triton_attn"),
]
AUTO = case(SM100, attention_backend="auto")
UNUSABLE = case(SM120, attention_backend="TRITON_MLA")
FP8 = case(SM120, mla=True, cache="fp8")
UNKNOWN = case(SM120, attention_backend="nonsense")


def ask(engine: Engine, cases: list[Case]) -> list[dict[str, Any]]:
    """The probe's answers. MLA is on, unlike in the engines that run on a CPU."""
    probe = Path(__file__).with_name("draft_backend_probe.py")
    result = subprocess.run(
        [engine.python, probe, json.dumps(cases)],
        env=engine_environ(engine.tree, {"VLLM_MLA_DISABLE": "0"}),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()[-len(cases) :]]


@pytest.fixture(scope="module", params=["0.16.0", "0.19.1"])
def version(request: pytest.FixtureRequest) -> str:
    """The release. 0.18.0 has changed who chooses the backend and the block size."""
    return str(request.param)


@pytest.fixture(scope="module")
def answers(version: str, engine_python: Path) -> dict[str, dict[str, Any]]:
    """What the patched release answers, by the case as JSON."""
    cases = [*FAULTS.values(), *(c for c, _ in KEPT), *EXPLICIT, AUTO, UNUSABLE, UNKNOWN, FP8]
    found = ask(Engine(engine_python, tree(version)), cases)
    return dict(zip(map(json.dumps, cases), found, strict=True))


def test_the_release_fails(version: str, engine_python: Path) -> None:
    healed = {"F05"} if Version(version) >= Version("0.18.0") else set()
    cases = [asked for name, asked in FAULTS.items() if name not in healed]
    for got in ask(Engine(engine_python, tree(version, 0)), cases):
        assert "is not valid for this configuration" in got["error"]
        assert "non-MLA not supported" in got["error"]


@pytest.mark.parametrize("asked", FAULTS.values(), ids=list(FAULTS))
def test_llama_drafter_gets_a_backend_it_can_use(
    asked: Case, answers: dict[str, dict[str, Any]]
) -> None:
    got = answers[json.dumps(asked)]
    own = asked["target"] or "FLASHINFER_MLA"
    assert (got["target"], got["target_afterwards"]) == (own, own)
    assert not got["drafter_is_mla"]
    assert got["share_a_block_size"]


@pytest.mark.parametrize(("asked", "backend"), KEPT)
def test_mla_drafter_keeps_what_it_can_use(
    asked: Case, backend: str, answers: dict[str, dict[str, Any]]
) -> None:
    # On SM100 an automatic choice next to an explicit one may share no block size with it.
    got = answers[json.dumps(asked)]
    assert (got["target"], got["drafter"]) == (backend, backend)
    assert got["share_a_block_size"]


@pytest.mark.parametrize("asked", EXPLICIT)
def test_explicit_choice_wins(asked: Case, answers: dict[str, dict[str, Any]]) -> None:
    got = answers[json.dumps(asked)]
    assert (got["drafter"], got["target_afterwards"]) == ("TRITON_ATTN", "FLASHINFER_MLA")


def test_auto_is_no_choice(answers: dict[str, dict[str, Any]]) -> None:
    assert answers[json.dumps(AUTO)] == answers[json.dumps(FAULTS["F05"])]


def test_explicit_choice_that_cannot_work_is_an_error(answers: dict[str, dict[str, Any]]) -> None:
    assert "TRITON_MLA is not valid" in answers[json.dumps(UNUSABLE)]["error"]
    assert "Unknown attention backend: 'NONSENSE'" in answers[json.dumps(UNKNOWN)]["error"]


def test_fp8_cache_on_sm120(version: str, answers: dict[str, dict[str, Any]]) -> None:
    """F10: nothing to choose from before 0.18.0, and the series leaves that as it is."""
    got = answers[json.dumps(FP8)]
    if Version(version) >= Version("0.18.0"):
        assert (got["target"], got["drafter"]) == ("TRITON_MLA", "TRITON_MLA")
    else:
        assert "No valid attention backend found" in got["error"]
        assert "TRITON_MLA: [kv_cache_dtype not supported]" in got["error"]


def test_choice_is_part_of_the_compile_cache_key(answers: dict[str, dict[str, Any]]) -> None:
    auto, explicit = (answers[json.dumps(c)]["compile_key"] for c in (AUTO, EXPLICIT[0]))
    assert auto != explicit
