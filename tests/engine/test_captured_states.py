"""The states that the drafter gets are those of `transformers`' implementation, at every layer.

A drafter that reads all nine of them (ids 0 to 8 of the eight layers) is served on the stand-in
with random weights, and what arrives at it is compared token by token: id i is the residual
stream before layer i, id 8 the stream after the last layer, before the final norm.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import Engine, good

LAYERS = 8
LENGTHS = (1, 5, 33, 70, 12)  # tokens of the prompts; the fourth is prefilled in chunks
TOLERANCE = 1e-5  # of the largest value; float32 sums in two orders differ by 3e-7


@pytest.fixture(scope="module")
def found(served: Engine, target: Path, checkpoint: Callable[..., Path]) -> dict[str, Any]:
    served.setting.require("F15", "F16")
    ids = list(range(LAYERS + 1))
    drafter = checkpoint(
        "standin.constructed:make_constructed_drafter",
        taps=ids,
        ids=ids,
        style=served.setting.styles[0],
    )
    rng = random.Random(9)
    prompts = [rng.choices(range(498), k=length) for length in LENGTHS]
    job = {
        "engine": {
            "model": str(target),
            # With MLA attention no prompt is cut into chunks on a CPU.
            **({} if served.setting.mla else {"max_num_batched_tokens": 64}),
            "speculative_config": {
                "method": "eagle3",
                "model": str(drafter),
                "num_speculative_tokens": 3,
            },
        },
        "probe": "tests.engine.captured:differences",
        "probe_arguments": {"prompts": prompts, "length": 6},
    }
    result: dict[str, Any] = good(served.run(job)[0])["probe"]
    return result


@pytest.mark.parametrize("layer", range(LAYERS + 1))
def test_state_before_layer(layer: int, found: dict[str, Any]) -> None:
    assert found["same"][layer] < TOLERANCE
    assert found["next"][layer] > 1000 * TOLERANCE, "the comparison would not notice another layer"


def test_prompts_and_generated_text_in_batches(found: dict[str, Any]) -> None:
    # All prompt tokens, and all generated tokens but the last, which no forward pass has read.
    assert sum(found["rows"].values()) >= sum(LENGTHS) + 5 * len(LENGTHS)
    assert max(map(int, found["rows"])) == len(LENGTHS)
    assert found["rejected"] > 0
