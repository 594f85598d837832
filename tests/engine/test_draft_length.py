"""Requests beyond the drafter's length go on without it, and the others do not notice (F24).

Limited in two ways: by the drafter's own number of positions, beyond which its rope table ends, and
by `max_model_len` in the speculative configuration.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import Engine, good

LIMIT = 128
WORDS = range(5, 498)
# vLLM reads an MLA-style drafter's length off its rope scaling, so the engine is told.
LIMITS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "llama": ({"max_position_embeddings": LIMIT}, {}),
    "mla": ({}, {"max_model_len": LIMIT}),
}


def request(prompt: int, output: int) -> dict[str, Any]:
    ids = random.Random(prompt).choices(WORDS, k=prompt)
    return {"prompt_token_ids": ids, "sampling": {"max_tokens": output, "ignore_eos": True}}


SHORT = [request(8, 60), request(20, 80), request(30, 90)]
LONG = [request(300, 60), request(200, 20)]  # beyond the limit from their first token on
GROWING = [request(100, 60)]
BATCHES = {"short": SHORT, "long": LONG, "mixed": [*SHORT, *LONG], "growing": [*SHORT, *GROWING]}


@pytest.fixture(scope="module")
def results(
    served: Engine, target: Path, checkpoint: Callable[..., Path]
) -> dict[str, dict[str, Any]]:
    """Results by drafter style; without a drafter, they are under "none"."""
    served.setting.require("F24")
    engine: dict[str, Any] = {"model": str(target), "enable_prefix_caching": False}
    if not served.setting.mla:  # see test_images.py
        engine["max_num_batched_tokens"] = 256
    jobs = [{"engine": engine, "runs": [{"requests": r} for r in BATCHES.values()]}]
    for style in served.setting.styles:
        shape, option = LIMITS[style]
        if served.setting.runner == 2:  # extends a rope table where it can, unless it is told
            option = {"max_model_len": LIMIT}
        drafter = checkpoint(
            "standin.drafter:make_drafter", style=style, trained=True, target=str(target), **shape
        )
        speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3}
        jobs.append({**jobs[0], "engine": engine | {"speculative_config": speculation | option}})
    found = served.run(*jobs, timeout=1800, at_once=1)  # see test_said_once
    return {
        style: good(result) | {"runs": dict(zip(BATCHES, result["runs"], strict=True))}
        for style, result in zip(["none", *served.setting.styles], found, strict=True)
    }


def counts(run: dict[str, Any]) -> list[Any]:
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens_per_pos")
    return [run["metrics"][name] for name in names]


@pytest.fixture(params=list(LIMITS))
def style(request: pytest.FixtureRequest, served: Engine) -> str:
    served.setting.want(request.param)
    return str(request.param)


@pytest.mark.parametrize("batch", list(BATCHES))
def test_same_text(style: str, batch: str, results: dict[str, dict[str, Any]]) -> None:
    want, got = (results[key]["runs"][batch]["outputs"] for key in ("none", style))
    assert [o["token_ids"] for o in got] == [o["token_ids"] for o in want]


def test_long_requests_draft_nothing(style: str, results: dict[str, dict[str, Any]]) -> None:
    assert counts(results[style]["runs"]["long"]) == [0, 0, [0, 0, 0]]


def test_short_requests_draft_as_if_alone(style: str, results: dict[str, dict[str, Any]]) -> None:
    """The same drafts, and the same accepted at each place, with long requests in the batch."""
    runs = results[style]["runs"]
    assert runs["short"]["metrics"]["num_accepted_tokens"] > 0
    assert counts(runs["mixed"]) == counts(runs["short"])


def test_a_request_drafts_until_it_is_too_long(
    style: str, results: dict[str, dict[str, Any]]
) -> None:
    runs = results[style]["runs"]
    drafts = counts(runs["growing"])[0] - counts(runs["short"])[0]
    assert 0 < drafts <= LIMIT - len(GROWING[0]["prompt_token_ids"])


def test_said_once(style: str, served: Engine, results: dict[str, dict[str, Any]]) -> None:
    said = [line for line in results[style]["log"] if "longer than the draft model" in line]
    # vLLM says a thing once a process, and all drafters ran in this one.
    assert len(said) == (1 if style == served.setting.styles[0] else 0)
    assert all(f"{LIMIT} tokens; the target model supports 512" in line for line in said)
