"""The stand-in on one CUDA GPU: compiled, with CUDA graphs, on every backend that the card offers.

The constructed pair says what must come out whatever the precision: each token is the one after the
last, and every draft is accepted. The trained pair has text that is worth comparing, and drafts of
both kinds; in float32 its text must be the same token for token, else up to a near tie.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from standin.engine import engine_environ, make_checkpoint, run_engines

import bootstrap
from advice.environment import look_at
from engine.support import good
from patchset.project import Project
from suite.kimi import MARGIN
from suite.talk import difference

VARIABLE = "KIMI_EAGLE3_PYTHON"
DRAFTS = 3
ROUNDS = 8
NUM_WORDS = 498  # of the stand-in
LAST = (0, 97, 300, 490)  # words that the prompts of the constructed pair end with
GPU = {
    "enforce_eager": False,  # compiled, with CUDA graphs
    "block_size": None,  # the backend's own
    "gpu_memory_utilization": 0.3,
    "limit_mm_per_prompt": {"vision_chunk": 0},
}


def NEEDS(environ: Mapping[str, str]) -> list[str]:
    what = "the python of an environment with the patched wheel: make wheel"
    return [] if environ.get(VARIABLE) else [f"{VARIABLE} ({what})"]


@pytest.fixture(scope="session")
def python() -> Path:
    return Path(os.environ[VARIABLE])


@pytest.fixture(scope="session")
def release(python: Path) -> str:
    """The release that is installed, which must have its series."""
    seen = look_at(python, Project.here(), None)
    assert seen.rules.patches, seen.checks[-1].reason
    return seen.rules.version


@pytest.fixture(scope="session")
def offered(python: Path) -> dict[str, dict[str, Any]]:
    """The attention backends of the release on this card."""
    script = Path(__file__).with_name("backends_probe.py")
    environ = engine_environ(bootstrap.site_packages(python), device="cuda")
    done = subprocess.run(
        [str(python), str(script)], env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert any(backend["mla"] for backend in found.values()), found
    return found


def run(python: Path, runner: int, jobs: list[dict[str, Any]], **more: str) -> list[dict[str, Any]]:
    """The jobs' results, on the GPU."""
    environ = {"VLLM_USE_V2_MODEL_RUNNER": str(runner - 1), **more}
    tree = bootstrap.site_packages(python)
    return run_engines(python, tree, jobs, environ=environ, timeout=3600, device="cuda")


def job(target: Path, runs: list[dict[str, Any]], drafter: Path | None, **more: Any) -> Any:
    engine = {**GPU, "model": str(target), **more}
    if drafter is not None:
        engine["speculative_config"] = {
            "method": "eagle3",
            "model": str(drafter),
            "num_speculative_tokens": DRAFTS,
        }
    return {"engine": engine, "runs": runs}


@pytest.mark.parametrize("style", ["mla", "llama"])
@pytest.mark.parametrize("cache", ["auto", "fp8"])
@pytest.mark.parametrize("runner", [1, 2], ids=["V1", "V2"])
def test_every_backend(
    runner: int,
    cache: str,
    style: str,
    python: Path,
    release: str,
    offered: dict[str, dict[str, Any]],
) -> None:
    _want_runner(runner, release)
    names = [name for name, item in offered.items() if item["mla"] and item[cache]]
    if not names:
        pytest.skip(f"no MLA backend of {release} has a {cache} KV cache on this card")
    drafter = {"taps": [2, 4, 7], "ids": [2, 4, 7], "style": style}
    call = "standin.constructed:make_constructed_set"
    made = make_checkpoint(python, call, drafters={"it": drafter})
    requests = [{"prompt_token_ids": [5, 90, 77, last]} for last in LAST]
    tokens = 1 + ROUNDS * (1 + DRAFTS)
    runs = [{"requests": requests, "sampling": {"max_tokens": tokens, "ignore_eos": True}}]
    shared = {"dtype": "bfloat16", "kv_cache_dtype": cache}
    make = partial(job, made / "target", runs, made / "it", **shared)
    results = run(python, runner, [make(attention_backend=name) for name in names])
    for name, result in zip(names, results, strict=True):
        (found,) = good(result)["runs"]
        assert any("Graph captur" in line for line in result["log"]), f"{name}: no CUDA graphs"
        for last, output in zip(LAST, found["outputs"], strict=True):
            want = [(last + 1 + i) % NUM_WORDS for i in range(tokens)]
            assert output["token_ids"] == want, name
        counted = found["metrics"]
        assert counted["num_drafts"] >= len(LAST) * ROUNDS, name
        assert counted["num_accepted_tokens_per_pos"] == [counted["num_drafts"]] * DRAFTS, name


@pytest.mark.parametrize("runner", [1, 2], ids=["V1", "V2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lossless(
    dtype: str,
    runner: int,
    python: Path,
    release: str,
    offered: dict[str, dict[str, Any]],
) -> None:
    """No MLA backend for GPUs computes in float32: there, as plain multi-head attention."""
    _want_runner(runner, release)
    exact = dtype == "float32"
    if exact:
        names = [name for name, item in offered.items() if not item["mla"] and item["float32"]]
    else:
        names = [name for name, item in offered.items() if item["mla"] and item["auto"]]
    if not names:
        pytest.skip(f"no backend of {release} computes in {dtype} on this card")
    target = make_checkpoint(python, "standin.target:make_target")
    style = "llama" if exact else "mla"
    drafter = make_checkpoint(
        python, "standin.drafter:make_drafter", style=style, trained=True, target=str(target)
    )
    requests = [
        {"prompt_token_ids": [(7 * i + n * n) % NUM_WORDS for i in range(n)]}
        for n in range(3, 90, 9)
    ]
    sampling = {"max_tokens": 40, "ignore_eos": True, "logprobs": 5}
    runs = [{"requests": requests, "sampling": sampling}]
    cases = [(name, pair) for name in names for pair in (None, drafter)]
    jobs = [job(target, runs, p, dtype=dtype, attention_backend=n) for n, p in cases]
    results = run(python, runner, jobs, VLLM_MLA_DISABLE=str(int(exact)))
    for number, name in enumerate(names):
        alone, drafted = (good(r)["runs"][0] for r in results[2 * number : 2 * number + 2])
        assert drafted["metrics"]["num_accepted_tokens"] > 0, name
        for want, got in zip(alone["outputs"], drafted["outputs"], strict=True):
            ours = {"tokens": want["token_ids"], "near": want["logprobs"]}
            found = difference(ours, {"tokens": got["token_ids"]})
            assert found is None or found.gap <= (0.0 if exact else MARGIN), (name, found)


def _want_runner(runner: int, release: str) -> None:
    if runner == 2 and Version(release) < Version("0.29.0"):
        pytest.skip(f"{release} has no V2 model runner that drafts with EAGLE-3")
