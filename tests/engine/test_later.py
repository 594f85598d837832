"""The engines of later releases, with both model runners: layer ids, weights, drafter's length.

CUDA servers take the V2 runner by themselves from 0.29.0 on, the V1 runner before. Stock 0.32.0
accepts nothing where the ids are nested (V2), name outputs (both) or a tensor is missing (both),
and dies at layer 0 and with four ids at the top level.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import Engine, Setting, good

pytestmark = pytest.mark.slow

SETTINGS = (
    Setting("0.28.0"),
    Setting("0.32.0"),
    Setting("0.32.0", 2),
    Setting("0.32.0", 2, mla=True),
)
TAPS = (2, 4, 7)
PROMPT, COUNT, DRAFTS = [3, 90, 77, 60], 13, 3  # 1 + 3 rounds of 4 tokens

# Arguments of `make_constructed_drafter`, and whether all drafts are accepted (else none is).
ACCEPTED: dict[str, tuple[dict[str, Any], bool]] = {
    "nested": ({"taps": TAPS, "ids": TAPS}, True),
    "nested, one off": ({"taps": TAPS, "ids": (2, 3, 7)}, False),
    "nested, outputs": ({"taps": TAPS, "ids": (1, 3, 6)}, True),
    "top level": ({"taps": TAPS, "ids": TAPS, "nested": False}, True),
    "top level, outputs": ({"taps": (2, 4, 5), "ids": (1, 3, 4), "nested": False}, True),
    "no ids": ({"taps": (2, 4, 5)}, True),
    "four, top level": ({"taps": (2, 4, 5, 7), "ids": (2, 4, 5, 7), "nested": False}, True),
    "before layer 0": ({"taps": (0, 4, 7), "ids": (0, 4, 7)}, True),
    "after the last layer": ({"taps": (2, 4, 8), "ids": (2, 4, 8)}, True),
    "eagle31": ({"taps": TAPS, "ids": TAPS, "eagle31": True}, True),
}
# ... and words of the error.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "out of order": ({"taps": TAPS, "ids": (4, 2, 7)}, "ascending"),
    "no down_proj": (
        {"taps": TAPS, "ids": TAPS},
        ".mlp.down_proj.weight",
    ),
    "no d2t": (
        {"taps": TAPS, "ids": TAPS, "draft_ids": list(range(40, 200)), "without": ["d2t"]},
        "missing tensors: d2t",
    ),
    "no fc_norm": (
        {"taps": TAPS, "ids": TAPS, "eagle31": True, "without": ["fc_norm"]},
        "missing tensors: fc_norm.0.weight",
    ),
    "a target's type": (
        {"taps": TAPS, "ids": TAPS, "style": "mla", "settings": {"model_type": "deepseek_v3"}},
        "kimi_k2",
    ),
}
SHORT = 48
YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": SHORT // 3}
# A drafter that ends before the target does, by what it says or by what the user says.
LENGTHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "asked for": ({"taps": TAPS, "ids": TAPS}, {"max_model_len": SHORT}),
    "yarn": (
        {
            "taps": TAPS,
            "ids": TAPS,
            "settings": {
                "max_position_embeddings": SHORT,
                "rope_scaling": {**YARN, "rope_theta": 10000.0},
            },
        },
        {},
    ),
}
LONG_PROMPT, SHORT_PROMPT = [3] * 50 + [200], [9, 60]


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def results(
    request: pytest.FixtureRequest,
    engine_of: Callable[[Setting], Engine],
    checkpoint: Callable[..., Path],
) -> dict[str, dict[str, Any]]:
    """What came of all drafters, by name, with one setting."""
    setting: Setting = request.param
    setting.require("F15", "F16", "F24", "F34", "F35")
    style, layer = ("mla", "layers.0") if setting.mla else ("llama", "midlayer")
    every: dict[str, dict[str, Any]] = {
        name: {"style": style, **made}
        for cases in (ACCEPTED, REFUSED, LENGTHS)
        for name, (made, _) in cases.items()
        if not (setting.mla and name == "yarn")  # the same code, and another kind of YaRN
    }
    every["no down_proj"]["without"] = [f"{layer}.mlp.down"]
    folder = {name: f"d{i}" for i, name in enumerate(every)}
    made = checkpoint(
        "standin.constructed:make_constructed_set",
        drafters={folder[name]: arguments for name, arguments in every.items()},
    )

    def job(name: str, length: int, runs: list[Any], **speculative: Any) -> dict[str, Any]:
        return {
            "engine": {
                "model": str(made / "target"),
                "limit_mm_per_prompt": {"vision_chunk": 0},
                "max_model_len": length,
                "block_size": 16 if setting.mla else 32,
                "num_gpu_blocks_override": length // 4,
                "speculative_config": {
                    "method": "eagle3",
                    "model": str(made / folder[name]),
                    "num_speculative_tokens": DRAFTS,
                    **speculative,
                },
            },
            "runs": runs,
        }

    one = {"max_tokens": COUNT, "ignore_eos": True}
    plain = [{"requests": [{"prompt_token_ids": PROMPT}], "sampling": one}]
    three = [
        {
            "requests": [{"prompt_token_ids": prompt} for prompt in batch],
            "sampling": {"max_tokens": 17, "ignore_eos": True},
        }
        for batch in ([SHORT_PROMPT], [LONG_PROMPT], [SHORT_PROMPT, LONG_PROMPT])
    ]
    jobs = [job(name, 64, plain) for name in (*ACCEPTED, *REFUSED)]
    jobs += [job(name, 128, three, **LENGTHS[name][1]) for name in LENGTHS if name in every]
    found = engine_of(setting).run(*jobs, timeout=3000, at_once=1)  # what is said once, see below
    return dict(zip(every, found, strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_acceptance_is_all_or_nothing(name: str, results: dict[str, dict[str, Any]]) -> None:
    run = good(results[name])["runs"][0]
    assert run["outputs"][0]["token_ids"] == list(range(61, 61 + COUNT))
    accepted = DRAFTS if ACCEPTED[name][1] else 0
    rounds = (COUNT - 1) // (1 + accepted)
    metrics = run["metrics"]
    found = (metrics["num_drafts"], metrics["num_accepted_tokens"])
    assert found == (rounds, rounds * accepted)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name: str, results: dict[str, dict[str, Any]]) -> None:
    assert "error" in results[name], "the engine started"
    assert REFUSED[name][1] in results[name]["error"]["message"]


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize(("run", "lengths"), [(0, [60]), (1, [200]), (2, [60, 200])])
def test_only_a_request_that_is_too_long_stops_drafting(
    run: int, lengths: list[int], name: str, results: dict[str, dict[str, Any]]
) -> None:
    if name not in results:
        pytest.skip("only tried with a Llama-style drafter")
    found = good(results[name])["runs"][run]
    texts = [output["token_ids"] for output in found["outputs"]]
    assert texts == [list(range(last + 1, last + 18)) for last in lengths]
    rounds = 4 * (60 in lengths)  # 1 + 16 tokens, four a round
    metrics = found["metrics"]
    assert (metrics["num_drafts"], metrics["num_accepted_tokens"]) == (rounds, 3 * rounds)


def test_says_that_a_request_is_too_long(results: dict[str, dict[str, Any]]) -> None:
    """Once: the engines of one process share what was already said."""
    logs = [message for name in LENGTHS if name in results for message in results[name]["log"]]
    (said,) = [message for message in logs if "longer than the draft model" in message]
    assert f"({SHORT} tokens" in said


@pytest.mark.parametrize(
    ("setting", "options", "says"),
    [
        (Setting("0.28.0"), {}, "or vLLM 0.30.0 or later"),
        (Setting("0.32.0"), {}, "are False and False here"),
        (Setting("0.32.0", runner=2), {"async_scheduling": False}, "are True and False here"),
    ],
    ids=str,
)
def test_pipeline_parallelism_is_refused_before_any_weight_is_read(
    setting: Setting,
    options: dict[str, Any],
    says: str,
    engine_of: Callable[[Setting], Engine],
    checkpoint: Callable[..., Path],
) -> None:
    """Where it cannot work; tests/engine/test_pipeline.py has where it does."""
    setting.require("F17")
    drafter = {"taps": TAPS, "ids": TAPS}
    made = checkpoint("standin.constructed:make_constructed_set", drafters={"drafter": drafter})
    job = {
        "engine": {
            "model": str(made / "target"),
            "limit_mm_per_prompt": {"vision_chunk": 0},
            "max_model_len": 64,
            "pipeline_parallel_size": 2,
            **options,
            "speculative_config": {
                "method": "eagle3",
                "model": str(made / "drafter"),
                "num_speculative_tokens": DRAFTS,
            },
        }
    }
    (result,) = engine_of(setting).run(job)
    message = result["error"]["message"]
    assert "EAGLE-3 with pipeline_parallel_size=2" in message
    assert says in message
    assert not any("Loading" in message for message in result["log"])
