"""Greedy text is the same with a drafter as without, token for token, under every hardship at once.

The requests share prefixes (prefix caching), are longer than a step's token budget (chunked
prefill) and do not fit into the KV cache together (preemption). The drafters are trained on the
stand-in, so that some drafts are accepted and some are not: with random weights, every draft is
rejected, and half of the bookkeeping never runs.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import Engine, good

WORDS = range(5, 498)  # ids of the stand-in's ordinary words
CASES = [(style, k) for style in ("llama", "mla") for k in (1, 3, 5)]
TIGHT = {
    "max_num_batched_tokens": 64,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "num_gpu_blocks_override": 24,  # of 32 tokens; the requests need about 70 in the end
    "max_num_seqs": 16,
}


def prompts() -> list[list[int]]:
    """Sixteen prompts of 3 to 150 words; every other one begins with the same 70."""
    rng = random.Random(16)
    shared = rng.choices(WORDS, k=70)
    lengths = (3, 30, 90, 7, 64, 40, 150, 12, 33, 80, 5, 65, 120, 20, 31, 50)
    return [shared * (i % 2) + rng.choices(WORDS, k=n) for i, n in enumerate(lengths)]


@pytest.fixture(scope="module")
def results(
    patched: Engine, target: Path, checkpoint: Callable[..., Path]
) -> dict[Any, dict[str, Any]]:
    """Results by case; the run without a drafter, with room for everything, is under None."""
    requests = [{"prompt_token_ids": prompt} for prompt in prompts()]
    run = {"requests": requests, "sampling": {"max_tokens": 40, "ignore_eos": True}}
    jobs = [{"engine": {"model": str(target)}, "runs": [run]}]
    for style, k in CASES:
        drafter = checkpoint(
            "standin.drafter:make_drafter", style=style, trained=True, target=str(target)
        )
        speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": k}
        engine = {"model": str(target), "speculative_config": speculation, **TIGHT}
        jobs.append({"engine": engine, "runs": [run]})
    return dict(zip([None, *CASES], patched.run(*jobs), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-k{case[1]}")
def test_same_tokens(case: tuple[str, int], results: dict[Any, dict[str, Any]]) -> None:
    (alone,), (drafted,) = (good(results[key])["runs"] for key in (None, case))
    for number, (want, got) in enumerate(zip(alone["outputs"], drafted["outputs"], strict=True)):
        assert got["token_ids"] == want["token_ids"], f"request {number}"
        assert got["text"] == want["text"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-k{case[1]}")
def test_all_of_it_happened(case: tuple[str, int], results: dict[Any, dict[str, Any]]) -> None:
    metrics = good(results[case])["runs"][0]["metrics"]
    assert 0 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]
    assert len(metrics["num_accepted_tokens_per_pos"]) == case[1]
    assert metrics["num_preemptions"] > 0
    assert metrics["prefix_cache_hits"] > 0


def test_text_is_worth_comparing(results: dict[Any, dict[str, Any]]) -> None:
    """Different texts, most of them of many different words: equality by chance is out."""
    texts = [output["token_ids"] for output in good(results[None])["runs"][0]["outputs"]]
    assert len({tuple(text) for text in texts}) == 16
    assert sum(len(set(text)) > 20 for text in texts) >= 12
