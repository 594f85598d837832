"""Series that were carried from 0.16.0 to other releases: the constructed pair on their engines.

They run in the environment of 0.16.0, whose packages they take as well (it lacks their telemetry).
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.support import Engine, good, tree

IDS = (2, 4, 7)
DRAFTERS = {
    "llama": {"taps": IDS, "ids": IDS},
    "mla": {"taps": IDS, "ids": IDS, "style": "mla"},
    "mla-eagle31": {"taps": IDS, "ids": IDS, "style": "mla", "eagle31": True},
    "off-by-one": {"taps": IDS, "ids": (2, 3, 7)},
}
PROMPT, COUNT, DRAFTS = [3, 90, 77, 60], 13, 3  # 1 + 3 rounds of 4 tokens


OFTEN = ("0.15.1", "0.17.1")


@pytest.mark.parametrize(
    "version", [*OFTEN, *(pytest.param(v, marks=pytest.mark.slow) for v in ("0.15.0", "0.17.0"))]
)
def test_exact_acceptance(
    version: str, engine_python: Path, checkpoint: Callable[..., Path]
) -> None:
    engine = Engine(engine_python, tree(version))
    made = checkpoint("standin.constructed:make_constructed_set", drafters=DRAFTERS)
    jobs = [
        {
            "engine": {
                "model": str(made / "target"),
                "limit_mm_per_prompt": {"vision_chunk": 0},
                "max_model_len": 64,
                "num_gpu_blocks_override": 8,
                "speculative_config": {
                    "method": "eagle3",
                    "model": str(made / name),
                    "num_speculative_tokens": DRAFTS,
                },
            },
            "runs": [
                {
                    "requests": [{"prompt_token_ids": PROMPT}],
                    "sampling": {"max_tokens": COUNT, "ignore_eos": True},
                }
            ],
        }
        for name in DRAFTERS
    ]
    for name, result in zip(DRAFTERS, engine.run(*jobs), strict=True):
        run = good(result)["runs"][0]
        assert run["outputs"][0]["token_ids"] == list(range(61, 61 + COUNT)), name
        accepted = 0 if name == "off-by-one" else DRAFTS
        rounds = (COUNT - 1) // (1 + accepted)
        metrics = run["metrics"]
        found = (metrics["num_drafts"], metrics["num_accepted_tokens"])
        assert found == (rounds, rounds * accepted), name
