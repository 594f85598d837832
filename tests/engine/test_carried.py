"""The constructed pair on the engines of other releases, each with its series.

Every draft is right, or none when an id is a layer off: on both model runners (CUDA users get the
second from 0.29.0 on), with MLA attention (which a CPU has from 0.28.0 on) and without. A drafter
is left out where it needs a cure that the series of the release does not have.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import LATER, Engine, Setting, good

SETTINGS = [*map(Setting, ("0.15.0", "0.15.1", "0.17.0", "0.17.1")), *LATER]
# These `make test` runs; all of them take as long as everything else together.
QUICK = (Setting("0.15.1"), Setting("0.17.1"), Setting("0.32.0", runner=2, mla=True))
IDS, ENDS, OFF = (2, 4, 7), (0, 4, 8), (2, 3, 7)  # of eight layers
# Arguments of `make_constructed_drafter`, and the faults that a release must not have.
DRAFTERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "top-level": ({"taps": IDS, "ids": IDS, "nested": False}, ()),
    "nested": ({"taps": IDS, "ids": IDS}, ("F15",)),
    "outputs": ({"taps": IDS, "ids": (1, 3, 6)}, ("F15",)),
    "first-and-last": ({"taps": ENDS, "ids": ENDS, "nested": False}, ("F16",)),
    "eagle31": ({"taps": IDS, "ids": IDS, "nested": False, "eagle31": True}, ("F18",)),
    "reduced-vocabulary": (
        {"taps": IDS, "ids": IDS, "nested": False, "draft_ids": list(range(40, 200))},
        (),
    ),
    "off-by-one": ({"taps": IDS, "ids": OFF, "nested": False}, ()),
    "nested-off-by-one": ({"taps": IDS, "ids": OFF}, ("F15",)),
}
PROMPT, COUNT, DRAFTS = [3, 90, 77, 60], 13, 3  # 1 + 3 rounds of 4 tokens


@pytest.fixture(
    scope="module",
    params=[pytest.param(s, marks=[] if s in QUICK else pytest.mark.slow) for s in SETTINGS],
    ids=str,
)
def engine(request: pytest.FixtureRequest, engine_of: Callable[[Setting], Engine]) -> Engine:
    return engine_of(request.param)


@pytest.fixture(scope="module")
def results(engine: Engine, checkpoint: Callable[..., Path]) -> dict[str, dict[str, Any]]:
    """Results by style and drafter, of what can run with this engine."""
    drafters = {
        f"{style}-{name}": {**arguments, "style": style}
        for style in ("llama", "mla")
        for name, (arguments, _) in DRAFTERS.items()
    }
    made = checkpoint("standin.constructed:make_constructed_set", drafters=drafters)
    cases = [
        f"{style}-{name}"
        for style in engine.setting.styles
        for name, (_, faults) in DRAFTERS.items()
        if not engine.setting.uncured(*faults)
    ]
    jobs = [
        {
            "engine": {
                "model": str(made / "target"),
                "limit_mm_per_prompt": {"vision_chunk": 0},
                "max_model_len": 64,
                "num_gpu_blocks_override": 16,
                "speculative_config": {
                    "method": "eagle3",
                    "model": str(made / case),
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
        for case in cases
    ]
    return dict(zip(cases, engine.run(*jobs, timeout=1800), strict=True))


@pytest.mark.parametrize("name", DRAFTERS)
def test_exact_acceptance(name: str, engine: Engine, results: dict[str, dict[str, Any]]) -> None:
    engine.setting.require(*DRAFTERS[name][1])
    accepted = 0 if name.endswith("off-by-one") else DRAFTS
    rounds = (COUNT - 1) // (1 + accepted)
    for style in engine.setting.styles:
        run = good(results[f"{style}-{name}"])["runs"][0]
        assert run["outputs"][0]["token_ids"] == list(range(61, 61 + COUNT)), style
        metrics = run["metrics"]
        found = (metrics["num_drafts"], metrics["num_accepted_tokens"])
        assert found == (rounds, rounds * accepted), style
