"""A drafter that could only draft nonsense is refused at start-up, in words that name the mistake.

The drafters are good ones of the constructed pair, each spoilt in one way. A stock engine starts
with many of them and never accepts a draft (or accepts some, which is worse to find).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import LAYER, Engine, good, named

TAPS = [2, 4, 7]
WORDS = list(range(40, 200))

# Name -> arguments of `make_constructed_drafter`, and what the error has to say. `{layer}` is the
# prefix of the drafter's layer; each case is tried in both styles.
MISTAKES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "id beyond the last layer": ({"ids": [2, 4, 9]}, ("from 0 to 8", "[2, 4, 9]")),
    "negative id": ({"ids": [-1, 4, 7]}, ("from 0 to 8", "[-1, 4, 7]")),
    "id given twice": ({"ids": [2, 4, 4]}, ("distinct", "[2, 4, 4]")),
    "ids out of order": ({"ids": [4, 2, 7]}, ("ascending", "[4, 2, 7]")),
    "id that is no number": ({"ids": ["2", "4", "7"]}, ("integers", "['2', '4', '7']")),
    "top-level id beyond the last layer": (
        {"ids": [2, 4, 9], "nested": False},
        ("[2, 4, 9] at the top level",),
    ),
    "fewer ids than fc takes": ({"ids": [2, 4]}, ("768", "512", "[2, 4]")),
    "more ids than fc takes": ({"ids": [2, 4, 6, 7]}, ("768", "1024", "[2, 4, 6, 7]")),
    "no d2t for a reduced vocabulary": (
        {"ids": TAPS, "draft_ids": WORDS, "without": ["d2t"]},
        ("d2t",),
    ),
    "head with other rows than draft_vocab_size": (
        {"ids": TAPS, "draft_ids": WORDS, "settings": {"draft_vocab_size": 100}},
        ("lm_head", "160", "100"),
    ),
    "fc_norm without its tensors": (
        {"ids": TAPS, "eagle31": True, "without": ["fc_norm"]},
        ("fc_norm",),
    ),
    "fc_norm tensors without the field": (
        {"ids": TAPS, "eagle31": True, "settings": {"fc_norm": False}},
        ("fc_norm",),
    ),
    "no down_proj": ({"ids": TAPS, "without": ["{layer}.mlp.down"]}, ("mlp.down_proj",)),
    "no gate_proj, half of a fused weight": (
        {"ids": TAPS, "without": ["{layer}.mlp.gate"]},
        ("gate",),
    ),
    "no o_proj": ({"ids": TAPS, "without": ["{layer}.self_attn.o"]}, ("o_proj",)),
    "no norm": ({"ids": TAPS, "without": ["norm."]}, ("norm.weight",)),
    "no fc": ({"ids": TAPS, "without": ["fc."]}, ("fc.weight",)),
    "unknown tensor": (
        {"ids": TAPS, "extra": {"{layer}.mlp.bogus.weight": [4, 4]}},
        ("bogus",),
    ),
    "names with a prefix": (
        {"ids": TAPS, "without": ["norm."], "extra": {"model.norm.weight": [256]}},
        ("norm.weight", "model.norm.weight", "prefix"),
    ),
    "other hidden size": ({"ids": TAPS, "settings": {"hidden_size": 128}}, ("256", "128")),
}
CASES = {f"{style}: {name}": (style, name) for style in LAYER for name in MISTAKES}
# Read as a request for a model's own multi-token prediction, whatever the method says.
CASES |= {"mla: model_type of a target": ("mla", "model_type of a target")}
MISTAKES["model_type of a target"] = (
    {"ids": TAPS, "settings": {"model_type": "deepseek_v3"}},
    ("kimi_k2", "model_type"),
)


def spoilt(style: str, mistake: str) -> dict[str, Any]:
    """The arguments of one case."""
    arguments: dict[str, Any] = named(MISTAKES[mistake][0], style)
    return {"taps": TAPS, "style": style, **arguments}


SHORT = 48  # positions of the drafter that cannot follow a long request
LONG_PROMPT, SHORT_PROMPT = [3] * 50 + [200], [9, 60]


@pytest.fixture(scope="module")
def results(served: Engine, checkpoint: Callable[..., Path]) -> dict[str, dict[str, Any]]:
    served.setting.require("F15", "F18", "F35")
    cases = {name: case for name, case in CASES.items() if case[0] in served.setting.styles}
    drafters = {f"d{i}": spoilt(*case) for i, case in enumerate(cases.values())}
    drafters["short"] = {
        "taps": TAPS,
        "ids": TAPS,
        "settings": {"max_position_embeddings": SHORT},
        # vLLM reads an MLA-style drafter's length off its rope scaling.
        "style": "llama",
    }
    made = checkpoint("standin.constructed:make_constructed_set", drafters=drafters)
    jobs: list[dict[str, Any]] = [
        {
            "engine": {
                "model": str(made / "target"),
                "limit_mm_per_prompt": {"vision_chunk": 0},
                "max_model_len": 128,
                "num_gpu_blocks_override": 16,
                "speculative_config": {
                    "method": "eagle3",
                    "model": str(made / name),
                    "num_speculative_tokens": 3,
                },
            }
        }
        for name in drafters
    ]
    if served.setting.runner == 2:  # extends the rope table, unless it is told
        jobs[-1]["engine"]["speculative_config"]["max_model_len"] = SHORT
    sampling = {"max_tokens": 17, "ignore_eos": True}
    if "llama" not in served.setting.styles:
        return dict(zip(cases, served.run(*jobs[:-1], timeout=3600), strict=True))
    jobs[-1]["runs"] = [
        {"requests": [{"prompt_token_ids": prompt} for prompt in batch], "sampling": sampling}
        for batch in ([SHORT_PROMPT], [LONG_PROMPT], [SHORT_PROMPT, LONG_PROMPT])
    ]
    return dict(zip([*cases, "short"], served.run(*jobs, timeout=3600), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_refused_with_a_reason(
    case: str, served: Engine, results: dict[str, dict[str, Any]]
) -> None:
    served.setting.want(CASES[case][0])
    assert "error" in results[case], "the engine started"
    message = results[case]["error"]["message"]
    for words in MISTAKES[CASES[case][1]][1]:
        assert words in message


@pytest.mark.parametrize(("run", "lengths"), [(0, [60]), (1, [200]), (2, [60, 200])])
def test_drafter_with_a_shorter_context(
    run: int, lengths: list[int], served: Engine, results: dict[str, dict[str, Any]]
) -> None:
    """Only the request that is too long goes on without drafts, and the text is the same."""
    served.setting.want("llama")
    served.setting.require("F24")
    found = good(results["short"])["runs"][run]
    texts = [output["token_ids"] for output in found["outputs"]]
    assert texts == [list(range(last + 1, last + 18)) for last in lengths]
    rounds = 4 * (60 in lengths)  # 1 + 16 tokens, four a round
    metrics = found["metrics"]
    assert (metrics["num_drafts"], metrics["num_accepted_tokens"]) == (rounds, 3 * rounds)


def test_says_that_a_request_is_too_long(
    served: Engine, results: dict[str, dict[str, Any]]
) -> None:
    served.setting.want("llama")
    served.setting.require("F24")
    (warning,) = [m for m in results["short"]["log"] if "longer than the draft model" in m]
    assert f"({SHORT} tokens" in warning
    assert "128" in warning
