"""At a temperature above 0, text with a drafter has the target's own distribution.

N requests with one prompt sample three tokens each; the first comes without a draft, the second and
third through the rejection sampler. The counts of the likely continuations (expected at least ten
times) and of all others together are compared with their exact probabilities, the products of the
target's next-token distributions, by Pearson's statistic X2 = sum (count - expected)^2 / expected.

The bound: were sampling exact, X2 would follow the chi-square distribution with one degree of
freedom less than there are cells (ten expected in each, where the approximation is good). The test
fails when X2 exceeds that distribution's quantile for a false-alarm rate of one in a million, in
the Wilson-Hilferty approximation: df * (1 - 2/(9 df) + z sqrt(2/(9 df)))^3 with z = 4.753.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import Engine, good

N = 1500
LENGTH = 3
TEMPERATURE = 0.5
LEAST = 10 / N
Z = 4.753  # standard normal quantile of 1 - 1e-6
PROMPT = random.Random(3).choices(range(5, 498), k=12)


@pytest.fixture(scope="module")
def result(served: Engine, target: Path, checkpoint: Callable[..., Path]) -> dict[str, Any]:
    style = served.setting.styles[0]
    drafter = checkpoint(
        "standin.drafter:make_drafter", style=style, trained=True, target=str(target)
    )
    speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3}
    exact = {
        "engine": {"model": str(target), "max_logprobs": -1},
        "probe": "tests.engine.probes:likely_continuations",
        "probe_arguments": {
            "prompt": PROMPT,
            "temperature": TEMPERATURE,
            "length": LENGTH,
            "least": LEAST,
        },
    }
    sampling = {"temperature": TEMPERATURE, "max_tokens": LENGTH, "ignore_eos": True}
    run = {"requests": [{"prompt_token_ids": PROMPT}] * N, "sampling": sampling}
    engine = {"model": str(target), "speculative_config": speculation, "max_num_seqs": 128}
    exact_result, drafted = served.run(exact, {"engine": engine, "runs": [run]}, timeout=1800)
    return {
        "exact": {tuple(tokens): p for tokens, p in good(exact_result)["probe"]},
        "run": good(drafted)["runs"][0],
    }


def statistic(counts: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> float:
    """Pearson's X2 over the cells of `exact` and the rest."""
    rest = N - sum(counts[cell] for cell in exact), N * (1 - sum(exact.values()))
    cells = [(counts[cell], N * p) for cell, p in exact.items()] + [rest]
    return sum((count - expected) ** 2 / expected for count, expected in cells)


def bound(degrees: int) -> float:
    """What X2 exceeds once in a million if sampling is exact."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + Z * math.sqrt(spread)) ** 3)


def test_distribution(result: dict[str, Any]) -> None:
    exact = result["exact"]
    counts = Counter(tuple(output["token_ids"]) for output in result["run"]["outputs"])
    assert len(exact) >= 10, "too few cells to tell anything"
    assert N * (1 - sum(exact.values())) >= 10
    assert statistic(counts, exact) < bound(len(exact))


def test_the_statistic_tells(result: dict[str, Any]) -> None:
    """The same counts do not pass for those of a temperature by two thirds higher."""
    counts = Counter(tuple(output["token_ids"]) for output in result["run"]["outputs"])
    warmer = {cell: p**0.6 for cell, p in result["exact"].items()}
    rest = (1 - sum(result["exact"].values())) ** 0.6
    total = sum(warmer.values()) + rest
    assert statistic(counts, {c: p / total for c, p in warmer.items()}) > bound(len(warmer))


def test_both_outcomes_happened(result: dict[str, Any]) -> None:
    metrics = result["run"]["metrics"]
    assert metrics["num_drafts"] >= N
    assert 0 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]
