"""The drafter reads the states that it was made for, under every way to name them.

With the constructed pair (`standin/constructed.py`) every draft is right when each auxiliary state
comes from the very layer that fc expects, and none is when one of them is a layer off. So the
acceptance length is exactly 1 + k or exactly 1; numbers in between cannot pass.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import Engine, good

TAPS = (2, 4, 7)  # "before layer i", of 8 layers
DEFAULT = (2, 4, 5)
WORDS = [*range(40, 200), *range(300, 400)]  # a draft vocabulary with a gap

Case = dict[str, Any]


def each_id_off_by_one() -> list[tuple[int, ...]]:
    """TAPS with one of the ids one up or down, all six."""
    return [
        tuple(tap + by * (i == place) for i, tap in enumerate(TAPS))
        for place in range(len(TAPS))
        for by in (-1, 1)
    ]


def right_cases() -> dict[str, Case]:
    """Arguments of `make_constructed_drafter` for drafters whose drafts are all right."""
    cases: dict[str, Case] = {}
    for style in ("llama", "mla"):
        own: dict[str, Case] = {
            "top-level": {"ids": TAPS, "nested": False},
            "nested": {"ids": TAPS},
            "none": {"taps": DEFAULT},
            "outputs-nested": {"ids": (1, 3, 6)},
            "outputs-default-top-level": {"taps": DEFAULT, "ids": (1, 3, 4), "nested": False},
            "first-and-last": {"taps": (0, 4, 8), "ids": (0, 4, 8)},
            "reduced-vocabulary": {"ids": TAPS, "draft_ids": WORDS},
            "own-head-and-embedding": {"ids": TAPS, "own_head": True, "own_embedding": True},
            "eagle31": {"ids": TAPS, "eagle31": True},
            "eagle31-four-taps-reduced-vocabulary": {
                "taps": (0, 3, 5, 8),
                "ids": (0, 3, 5, 8),
                "eagle31": True,
                "draft_ids": WORDS,
            },
        }
        cases |= {f"{style}-{name}": {"taps": TAPS, "style": style} | c for name, c in own.items()}
    return cases


def wrong_cases() -> dict[str, Case]:
    """The same for drafters of which no draft can be right, and no check can know it."""
    cases: dict[str, Case] = {}
    for style, nested in (("llama", False), ("mla", True)):
        base = {"taps": TAPS, "style": style, "nested": nested}
        for ids in each_id_off_by_one():
            cases[f"{style}-{'-'.join(map(str, ids))}"] = base | {"ids": ids}
        cases[f"{style}-other-order"] = base | {"taps": (4, 2, 7), "ids": TAPS}
        cases[f"{style}-not-the-default"] = base | {"ids": None}
    # A top-level list that only begins like one of layer outputs is taken as it stands.
    cases["llama-outputs-top-level"] = {"taps": TAPS, "ids": (1, 3, 6), "nested": False}
    return cases


RIGHT, WRONG = right_cases(), wrong_cases()
LENGTHS = {"llama-nested": 1, "mla-nested": 5}  # draft tokens where not 3
PROMPT, COUNT = [3, 90, 77, 60], 13  # 1 + 12 tokens: whole rounds for 1, 3 and 5 draft tokens
EDGE = [5, 60, 195]  # runs out of the reduced vocabulary after the word 199


@pytest.fixture(scope="module")
def results(patched: Engine, checkpoint: Callable[..., Path]) -> dict[str, dict[str, Any]]:
    made = checkpoint("standin.constructed:make_constructed_set", drafters=RIGHT | WRONG)
    sampling = {"max_tokens": COUNT, "ignore_eos": True}
    runs = [
        {"requests": [{"prompt_token_ids": prompt}], "sampling": sampling}
        for prompt in (PROMPT, EDGE)
    ]
    jobs = []
    for name, case in (RIGHT | WRONG).items():
        speculation = {
            "method": "eagle3",
            "model": str(made / name),
            "num_speculative_tokens": LENGTHS.get(name, 3),
        }
        engine = {
            "model": str(made / "target"),
            "limit_mm_per_prompt": {"vision_chunk": 0},
            # Dozens of engines in one process, which keeps some of their memory: small caches.
            "max_model_len": 64,
            "num_gpu_blocks_override": 8,
            "speculative_config": speculation,
        }
        jobs.append({"engine": engine, "runs": runs if "draft_ids" in case else runs[:1]})
    return dict(zip(RIGHT | WRONG, patched.run(*jobs), strict=True))


def counts(run: dict[str, Any]) -> tuple[int, int]:
    """Rounds with a draft, and draft tokens accepted in all of them."""
    metrics = run["metrics"]
    return metrics["num_drafts"], metrics["num_accepted_tokens"]


@pytest.mark.parametrize("name", RIGHT)
def test_all_drafts_are_right(name: str, results: dict[str, dict[str, Any]]) -> None:
    run = good(results[name])["runs"][0]
    rounds = (COUNT - 1) // (1 + LENGTHS.get(name, 3))
    assert counts(run) == (rounds, rounds * LENGTHS.get(name, 3))
    assert run["outputs"][0]["token_ids"] == list(range(61, 61 + COUNT))


@pytest.mark.parametrize("name", WRONG)
def test_no_draft_is_right(name: str, results: dict[str, dict[str, Any]]) -> None:
    run = good(results[name])["runs"][0]
    assert counts(run) == (COUNT - 1, 0)
    assert run["outputs"][0]["token_ids"] == list(range(61, 61 + COUNT))


@pytest.mark.parametrize("name", [name for name, case in RIGHT.items() if "draft_ids" in case])
def test_words_outside_the_draft_vocabulary(name: str, results: dict[str, dict[str, Any]]) -> None:
    """After 196 the drafts 197 to 199 are right; 201 to 208 cannot be drafted."""
    run = good(results[name])["runs"][1]
    assert counts(run) == (1 + 8, 3)
    assert run["outputs"][0]["token_ids"] == list(range(196, 196 + COUNT))
