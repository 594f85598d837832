"""The same pair under torch.compile, and split over two tensor-parallel workers.

Text and acceptance must be what they are in one eager process: with the constructed pair, every
draft right, or none when an id is a layer off.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import Engine, good

IDS = (2, 4, 7)
PROMPT, COUNT, DRAFTS = [3, 90, 77, 60], 13, 3  # 1 + 3 rounds of 4 tokens
DRAFTERS: dict[str, dict[str, Any]] = {
    "llama": {"taps": IDS, "ids": IDS},
    "mla": {"taps": IDS, "ids": IDS, "style": "mla"},
    "off-by-one": {"taps": IDS, "ids": (2, 3, 7)},
}
COMPILED = {"TORCHDYNAMO_DISABLE": "0"}
TWO_WORKERS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


@pytest.fixture(scope="module")
def made(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint("standin.constructed:make_constructed_set", drafters=DRAFTERS)


def job(made: Path, drafter: str, **engine: Any) -> dict[str, Any]:
    speculation = {
        "method": "eagle3",
        "model": str(made / drafter),
        "num_speculative_tokens": DRAFTS,
    }
    return {
        "engine": {
            "model": str(made / "target"),
            "limit_mm_per_prompt": {"vision_chunk": 0},
            "max_model_len": 64,
            "num_gpu_blocks_override": 8,
            "speculative_config": speculation,
            **engine,
        },
        "runs": [
            {
                "requests": [{"prompt_token_ids": PROMPT}],
                "sampling": {"max_tokens": COUNT, "ignore_eos": True},
            }
        ],
    }


def check(result: dict[str, Any], right: bool) -> None:
    run = good(result)["runs"][0]
    assert run["outputs"][0]["token_ids"] == list(range(61, 61 + COUNT))
    rounds = (COUNT - 1) // (1 + DRAFTS if right else 1)
    metrics = run["metrics"]
    assert (metrics["num_drafts"], metrics["num_accepted_tokens"]) == (
        rounds,
        rounds * DRAFTS if right else 0,
    )


@pytest.mark.slow
def test_compiled(patched: Engine, made: Path) -> None:
    """Both graphs are compiled by Inductor; the second engine must not get the first one's."""
    jobs = [
        job(made, name, enforce_eager=False)
        | {"probe": "tests.engine.probes:compiled_graphs", "probe_arguments": {}}
        for name in ("llama", "off-by-one", "mla")
    ]
    results = patched.run(*jobs, environ=COMPILED, timeout=1800)
    for result in results:
        assert good(result)["probe"] >= 2, "the target's graph and the drafter's"
    for result, right in zip(results, (True, False, True), strict=True):
        check(result, right)


def test_two_tensor_parallel_workers(patched: Engine, made: Path) -> None:
    split = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    check(patched.run(job(made, "mla", **split), environ=TWO_WORKERS)[0], right=True)
