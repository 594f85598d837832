"""Requests with images, and batches of images and text, read the same with a drafter as without.

The drafter is one position ahead of the target. When a chunk of a prompt ends just before an image,
the drafter's last position is the image's first, which the target has not encoded yet (F21).
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import Engine, good

BUDGET = 64  # tokens of one step
WORDS = range(5, 498)
MEDIA = (
    507,
    3,
    508,
    509,
    510,
)  # <|media_begin|> image <|media_content|> <|media_pad|> <|media_end|>
SIZES = ([112, 112], [56, 84], [28, 28])  # 16, 6 and 1 tokens


def request(before: int, *images: tuple[list[int], int], after: int = 5) -> dict[str, Any]:
    """A prompt of `before` words, the images (size, seed) each in its media tokens, more words."""
    rng = random.Random(before)
    ids = rng.choices(WORDS, k=before)
    for _ in images:
        ids += MEDIA
    ids += rng.choices(WORDS, k=after)
    return {"prompt_token_ids": ids, "images": [{"size": s, "seed": seed} for s, seed in images]}


def single() -> dict[str, Any]:
    """The placeholder is preceded by as many tokens as a step computes."""
    return request(BUDGET - MEDIA.index(509), (SIZES[0], 1))


def batch() -> list[dict[str, Any]]:
    """Images of several sizes at several places, and text, in one batch."""
    return [
        request(BUDGET - MEDIA.index(509), (SIZES[1], 2)),
        request(40),
        request(10, (SIZES[0], 3), (SIZES[2], 4)),
        request(100),
        request(3, (SIZES[0], 5), after=90),
        request(2 * BUDGET - MEDIA.index(509), (SIZES[0], 1)),
        request(20, (SIZES[1], 6), (SIZES[1], 7), (SIZES[0], 1)),
    ]


@pytest.fixture(scope="module")
def results(
    served: Engine, target: Path, checkpoint: Callable[..., Path]
) -> dict[str, dict[str, Any]]:
    """Results by drafter style; without a drafter, they are under "none"."""
    served.setting.require("F21")
    sampling = {"max_tokens": 24, "ignore_eos": True}
    other = single() | {"images": [{"size": SIZES[0], "seed": 99}]}
    runs = [{"requests": r, "sampling": sampling} for r in ([single()], batch(), [other])]
    limit: dict[str, Any] = {"limit_mm_per_prompt": {"vision_chunk": 3}}
    # With MLA attention on a CPU, vLLM cuts no prompt into chunks and waits for a larger budget.
    if not served.setting.mla:
        limit["max_num_batched_tokens"] = BUDGET
    engine = {"model": str(target), "enable_prefix_caching": False, **limit}
    jobs = [{"engine": engine, "runs": runs}]
    for style in served.setting.styles:
        drafter = checkpoint(
            "standin.drafter:make_drafter", style=style, trained=True, target=str(target)
        )
        speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3}
        jobs.append({"engine": engine | {"speculative_config": speculation}, "runs": runs[:2]})
    return dict(zip(["none", *served.setting.styles], served.run(*jobs), strict=True))


@pytest.mark.parametrize("number", [0, 1], ids=["chunk-ends-before-image", "mixed-batch"])
def test_same_text(number: int, served: Engine, results: dict[str, dict[str, Any]]) -> None:
    for style in served.setting.styles:
        want, got = (good(results[key])["runs"][number] for key in ("none", style))
        assert got["metrics"]["num_draft_tokens"] > 0
        texts = ([output["token_ids"] for output in run["outputs"]] for run in (got, want))
        assert next(texts) == next(texts), style


def test_the_image_counts(results: dict[str, dict[str, Any]]) -> None:
    """Another image under the same words gives other text: the comparison sees the image."""
    one, _, other = good(results["none"])["runs"]
    assert one["outputs"][0]["token_ids"] != other["outputs"][0]["token_ids"]
