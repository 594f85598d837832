"""A target on two or four pipeline stages and a drafter on the last of them (fault F17).

The stand-in's eight layers make two stages of four, so a tap before layer 4 lies on the boundary.
Every draft of the constructed pair is right, or none if a state is missing or not that of its
layer; and the stand-in with images gives the text that it gives on one stage.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import Engine, Setting, good
from engine.test_images import BUDGET, batch

PROMPTS, COUNT, DRAFTS = ([3, 90, 77, 60], [3, 90, 77, 160] * 5), 13, 3  # 1 + 3 rounds of 4 tokens
# None of them has an embedding but "own": they take the target's, which is on the last stage too.
DRAFTERS: dict[str, dict[str, Any]] = {
    "first": {"taps": (0, 2, 3), "ids": (0, 2, 3)},
    "second": {"taps": (5, 6, 7), "ids": (5, 6, 7)},
    "boundary": {"taps": (2, 4, 7), "ids": (2, 4, 7)},
    "end": {"taps": (2, 3, 8), "ids": (2, 3, 8)},
    "own": {"taps": (2, 4, 7), "ids": (2, 4, 7), "own_embedding": True, "own_head": True},
    "off": {"taps": (2, 4, 7), "ids": (2, 3, 7)},
}
STAGES = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}
# What else is run of them: a stage in the middle passes on what the ones before it captured.
SPLITS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, STAGES) for name in DRAFTERS},
    "four-stages": ("boundary", STAGES | {"pipeline_parallel_size": 4}),
    "four-stages-first": ("first", STAGES | {"pipeline_parallel_size": 4}),
    "halves": ("boundary", STAGES | {"tensor_parallel_size": 2}),
}

pytestmark = pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=[
        Setting("0.32.0", runner=2, mla=True),
        Setting("0.32.0", runner=2),
        Setting("0.30.0", runner=2),
        Setting("0.31.0", runner=2),
    ],
    ids=str,
)
def results(
    request: pytest.FixtureRequest,
    engine_of: Callable[[Setting], Engine],
    checkpoint: Callable[..., Path],
    target: Path,
) -> dict[str, dict[str, Any]]:
    """Results by split; the stand-in's on two stages as "drafted", on one stage as "plain"."""
    engine = engine_of(request.param)
    (style,) = engine.setting.styles
    drafters = {name: {**made, "style": style} for name, made in DRAFTERS.items()}
    pairs = checkpoint("standin.constructed:make_constructed_set", drafters=drafters)
    trained = checkpoint(
        "standin.drafter:make_drafter", style=style, trained=True, target=str(target)
    )

    def drafting(drafter: Path) -> dict[str, Any]:
        speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": DRAFTS}
        return {"speculative_config": speculation}

    small = {
        "model": str(pairs / "target"),
        "limit_mm_per_prompt": {"vision_chunk": 0},
        "max_model_len": 64,
        "num_gpu_blocks_override": 16,
    }
    words = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    run = {"requests": words, "sampling": {"max_tokens": COUNT, "ignore_eos": True}}
    jobs = {
        name: {"engine": small | split | drafting(pairs / drafter), "runs": [run]}
        for name, (drafter, split) in SPLITS.items()
    }

    images: dict[str, Any] = {"model": str(target), "limit_mm_per_prompt": {"vision_chunk": 3}}
    if not engine.setting.mla:  # with it no prompt is cut into chunks on a CPU
        images["max_num_batched_tokens"] = BUDGET
    runs = [{"requests": batch(), "sampling": {"max_tokens": 24, "ignore_eos": True}}]
    jobs["drafted"] = {"engine": images | STAGES | drafting(trained), "runs": runs}
    jobs["plain"] = {"engine": images, "runs": runs}
    found = engine.run(*jobs.values(), timeout=3000, at_once=1)
    return dict(zip(jobs, found, strict=True))


@pytest.mark.parametrize("name", SPLITS)
def test_drafts_are_all_right_or_all_wrong(name: str, results: dict[str, dict[str, Any]]) -> None:
    (run,) = good(results[name])["runs"]
    want = [list(range(prompt[-1] + 1, prompt[-1] + 1 + COUNT)) for prompt in PROMPTS]
    assert [output["token_ids"] for output in run["outputs"]] == want
    right = name != "off"
    rounds = len(PROMPTS) * ((COUNT - 1) // (1 + DRAFTS if right else 1))
    metrics = run["metrics"]
    assert (metrics["num_drafts"], metrics["num_accepted_tokens"]) == (
        rounds,
        rounds * DRAFTS if right else 0,
    )


def test_two_stages_and_one_give_the_same_text(results: dict[str, dict[str, Any]]) -> None:
    """A batch of text and images, without MLA also in chunks."""
    drafted, plain = (good(results[name])["runs"][0] for name in ("drafted", "plain"))
    texts = ([output["token_ids"] for output in run["outputs"]] for run in (drafted, plain))
    assert next(texts) == next(texts)
    assert drafted["metrics"]["num_accepted_tokens"] > 0
