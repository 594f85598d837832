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
LENGTHS = (1, 3, 5)
TIGHT = {
    "max_num_batched_tokens": 64,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "num_gpu_blocks_override": 24,  # of 32 tokens; the requests need about 70 in the end
    "max_num_seqs": 16,
}
# MLA attention on a CPU has blocks of 16, and vLLM turns off chunked prefill and prefix caching.
TIGHT_MLA = {"num_gpu_blocks_override": 48, "max_num_seqs": 16}


def prompts() -> list[list[int]]:
    """Sixteen prompts of 3 to 150 words; every other one begins with the same 70."""
    rng = random.Random(16)
    shared = rng.choices(WORDS, k=70)
    lengths = (3, 30, 90, 7, 64, 40, 150, 12, 33, 80, 5, 65, 120, 20, 31, 50)
    return [shared * (i % 2) + rng.choices(WORDS, k=n) for i, n in enumerate(lengths)]


@pytest.fixture(scope="module")
def results(
    served: Engine, target: Path, checkpoint: Callable[..., Path]
) -> dict[Any, dict[str, Any]]:
    """Results by case; the run without a drafter, with room for everything, is under None."""
    requests = [{"prompt_token_ids": prompt} for prompt in prompts()]
    run = {"requests": requests, "sampling": {"max_tokens": 40, "ignore_eos": True}}
    jobs = [{"engine": {"model": str(target)}, "runs": [run]}]
    tight = TIGHT_MLA if served.setting.mla else TIGHT
    cases = [(style, k) for style in served.setting.styles for k in LENGTHS]
    for style, k in cases:
        drafter = checkpoint(
            "standin.drafter:make_drafter", style=style, trained=True, target=str(target)
        )
        speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": k}
        engine = {"model": str(target), "speculative_config": speculation, **tight}
        jobs.append({"engine": engine, "runs": [run]})
    return dict(zip([None, *cases], served.run(*jobs, timeout=1800), strict=True))


@pytest.mark.parametrize("k", LENGTHS)
def test_same_tokens(k: int, served: Engine, results: dict[Any, dict[str, Any]]) -> None:
    for style in served.setting.styles:
        (alone,), (drafted,) = (good(results[key])["runs"] for key in (None, (style, k)))
        pairs = zip(alone["outputs"], drafted["outputs"], strict=True)
        for number, (want, got) in enumerate(pairs):
            assert got["token_ids"] == want["token_ids"], f"{style}, request {number}"
            assert got["text"] == want["text"]


@pytest.mark.parametrize("k", LENGTHS)
def test_all_of_it_happened(k: int, served: Engine, results: dict[Any, dict[str, Any]]) -> None:
    for style in served.setting.styles:
        metrics = good(results[style, k])["runs"][0]["metrics"]
        assert 0 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"], style
        assert len(metrics["num_accepted_tokens_per_pos"]) == k
        assert metrics["num_preemptions"] > 0
        assert served.setting.mla or metrics["prefix_cache_hits"] > 0


def test_text_is_worth_comparing(results: dict[Any, dict[str, Any]]) -> None:
    """Different texts, most of them of many different words: equality by chance is out."""
    texts = [output["token_ids"] for output in good(results[None])["runs"][0]["outputs"]]
    assert len({tuple(text) for text in texts}) == 16
    assert sum(len(set(text)) > 20 for text in texts) >= 12
