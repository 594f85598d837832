"""Pairs and configurations, right ones and altered ones, on which doctor and engine are compared.

All are of the constructed pair (`standin.constructed`): its acceptance length is exactly 1 + k when
everything is where the drafter expects it, and falls to 1 when it is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from advice.checkpoint import open_checkpoint
from advice.checks import Check, Level, worst
from advice.drafter import read_drafter
from advice.pair import pair_checks
from advice.release import release_checks
from advice.rules import Rules
from advice.setup import Setup
from advice.target import read_target
from advice.together import Pair
from engine.support import named
from patchset.faults import Fault

Style = Literal["llama", "mla"]
Outcome = Literal["right", "lower", "collapse", "unloaded", "error"]

TAPS = [2, 4, 5]  # of 8 layers, the default of trainers that count inputs
WORDS = list(range(40, 200))
K = 3
SERVED = 128  # tokens
SHORT = 24  # positions of a drafter that cannot follow the requests
# What this comparison does not exercise: images, tool calls and structured output.
UNTRIED = ("F21", "F22", "F23", "F36", "F37")
# Weights that a stock release leaves as memory happens to be: what they draft is anything.
UNLOADED = (
    "no down_proj",
    "half of a fused weight",
    "no o_proj",
    "no fc",
    "two layers, one there",
)

# Stopped, and yet it ran, with the reason why that says nothing of other drafters.
LUCKY = {
    "every id one too high": "the release does not read the list, and its default is right here",
    "last id one too high": "the release does not read the list, and its default is right here",
    "no norm": "this drafter's norm is what a missing one is made of",
    "states not used": "the MLA class of that release does not read the flag",
    "drafter that follows fewer tokens": "this drafter does not look at positions",
}


@dataclass(frozen=True)
class Case:
    """``drafter``: arguments of `make_constructed_drafter`; ``{layer}`` is its layer's prefix.

    ``engine``: arguments of vllm.LLM beyond the usual; ``setup``: the same for the doctor.
    """

    drafter: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    setup: dict[str, Any] = field(default_factory=dict)
    styles: tuple[Style, ...] = ("llama", "mla")


def ids(*listed: Any, nested: bool = True, taps: list[int] | None = None) -> Case:
    return Case({"ids": list(listed), "nested": nested, "taps": taps or TAPS})


def settings(**changes: Any) -> Case:
    return Case({"ids": TAPS, "settings": changes})


# The layer configuration that the speculators form nests: that of the stand-in's Llama drafter.
_SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 512,
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": K}],
        "verifier": {"name_or_path": "stand-in", "architectures": ["DeepseekV3ForCausalLM"]},
    },
    "norm_before_residual": False,
    "transformer_layer_config": {
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    },
}

CASES: dict[str, Case] = {
    # Right ones.
    "no ids": Case({"taps": TAPS}),
    "nested ids": ids(*TAPS),
    "nested ids of outputs": ids(1, 3, 4),
    "ids at the top level": ids(*TAPS, nested=False),
    "ids of outputs at the top level": ids(1, 3, 4, nested=False),
    "other ids, right": ids(2, 4, 7, taps=[2, 4, 7]),
    "other ids at the top level, right": ids(2, 4, 7, nested=False, taps=[2, 4, 7]),
    "two taps": Case({"ids": [2, 5], "taps": [2, 5], "nested": False}),
    "draft vocabulary": Case({"ids": TAPS, "draft_ids": WORDS}),
    "own embedding and head": Case({"ids": TAPS, "own_embedding": True, "own_head": True}),
    "EAGLE-3.1": Case({"ids": TAPS, "eagle31": True}),
    "rotary table in the checkpoint": Case(
        {"ids": TAPS, "extra": {"{layer}.self_attn.rotary_emb.inv_freq": [4]}}
    ),
    "speculators form": Case(
        {"taps": TAPS, "ids": TAPS, "nested": False, "settings": _SPECULATORS}, styles=("llama",)
    ),
    "class of the target": Case(
        {"ids": TAPS, "settings": {"architectures": ["DeepseekV3ForCausalLM"]}}, styles=("mla",)
    ),
    # Layer ids.
    "every id one too high": ids(3, 5, 6),
    "every id one too high, at the top level": ids(3, 5, 6, nested=False),
    "first id one too low": ids(1, 4, 5, nested=False),
    "last id one too high": ids(2, 4, 6),
    "id beyond the last layer": ids(2, 4, 9),
    "negative id": ids(-1, 4, 5),
    "id given twice": ids(2, 4, 4),
    "ids out of order": ids(4, 2, 5),
    "ids that are no numbers": ids("2", "4", "5"),
    "top-level id beyond the last layer": ids(2, 4, 9, nested=False),
    "fewer ids than fc takes": ids(2, 4),
    "more ids than fc takes": ids(2, 4, 5, 7),
    "states not used": Case(
        {"taps": TAPS, "settings": {"eagle_config": {"use_aux_hidden_state": False}}}
    ),
    # Vocabulary.
    "no d2t for a reduced vocabulary": Case({"ids": TAPS, "draft_ids": WORDS, "without": ["d2t"]}),
    "d2t of zeros": Case(
        {"ids": TAPS, "draft_ids": WORDS, "without": ["d2t"], "extra": {"d2t": [len(WORDS)]}}
    ),
    "head with other rows than draft_vocab_size": Case(
        {"ids": TAPS, "draft_ids": WORDS, "settings": {"draft_vocab_size": 100}}
    ),
    "draft_vocab_size not said": Case(
        {"ids": TAPS, "draft_ids": WORDS, "settings": {"draft_vocab_size": None}}
    ),
    "other vocabulary": Case({"ids": TAPS, "own_embedding": True, "settings": {"vocab_size": 500}}),
    # Flags and norms.
    "fc_norm without its tensors": Case({"ids": TAPS, "eagle31": True, "without": ["fc_norm"]}),
    "fc_norm tensors without the field": Case(
        {"ids": TAPS, "eagle31": True, "settings": {"fc_norm": False}}
    ),
    "norm_output forgotten": Case(
        {"ids": TAPS, "eagle31": True, "settings": {"norm_output": False}}
    ),
    "norm_output where it is not meant": settings(norm_output=True),
    "other number of states": Case(
        {"ids": TAPS, "eagle31": True, "settings": {"num_aux_hidden_states": 4}}
    ),
    "norm before fc": settings(norm_before_fc=True),
    # Tensors and shapes.
    "no down_proj": Case({"ids": TAPS, "without": ["{layer}.mlp.down"]}),
    "half of a fused weight": Case({"ids": TAPS, "without": ["{layer}.mlp.gate"]}),
    "no o_proj": Case({"ids": TAPS, "without": ["{layer}.self_attn.o"]}),
    "no norm": Case({"ids": TAPS, "without": ["norm."]}),
    "no fc": Case({"ids": TAPS, "without": ["fc."]}),
    "unknown tensor": Case({"ids": TAPS, "extra": {"{layer}.mlp.bogus.weight": [4, 4]}}),
    "names with a prefix": Case(
        {"ids": TAPS, "without": ["norm."], "extra": {"model.norm.weight": [256]}}
    ),
    "other hidden size": settings(hidden_size=128),
    "other number of heads": settings(num_attention_heads=8, num_key_value_heads=8),
    # The loader takes the first rows without a word.
    "smaller MLP than in the checkpoint": settings(intermediate_size=32),
    "two layers, one there": settings(num_hidden_layers=2),
    # Class and type.
    "model_type of a target": Case(
        {"ids": TAPS, "settings": {"model_type": "deepseek_v3"}}, styles=("mla",)
    ),
    "unknown class": settings(architectures=["GemmaForCausalLM"]),
    # The command line.
    "three cards": Case({"ids": TAPS}, {"tensor_parallel_size": 3}, {"tp": 3}),
    "pipeline stages": Case({"ids": TAPS}, {"pipeline_parallel_size": 2}, {"pp": 2}),
    "decode context parallel 2 on one card": Case(
        {"ids": TAPS}, {"decode_context_parallel_size": 2}, {"dcp": 2}
    ),
    "more tokens than the target has positions": Case(
        {"ids": TAPS}, {"max_model_len": 5000}, {"max_model_len": 5000}
    ),
    "drafter that follows fewer tokens": settings(max_position_embeddings=SHORT),
}


def expanded() -> dict[str, tuple[Style, Case]]:
    """Each case in each of its styles."""
    return {
        f"{style}: {name}": (style, case) for name, case in CASES.items() for style in case.styles
    }


def drafter_arguments(style: Style, case: Case) -> dict[str, Any]:
    """The arguments of `make_constructed_drafter`."""
    found: dict[str, Any] = named(case.drafter, style)
    return {"taps": TAPS, "style": style, **found}


def job(target: Path, drafter: Path, case: Case) -> dict[str, Any]:
    """What the engine is asked: one request of one word, then one beyond the short drafter."""
    return {
        "engine": {
            "model": str(target),
            "limit_mm_per_prompt": {"vision_chunk": 0},
            "max_model_len": SERVED,
            "num_gpu_blocks_override": 16,
            "speculative_config": {
                "method": "eagle3",
                "model": str(drafter),
                "num_speculative_tokens": K,
            },
            **case.engine,
        },
        "runs": [
            {
                "requests": [{"prompt_token_ids": prompt}],
                "sampling": {"max_tokens": 17, "ignore_eos": True},
            }
            for prompt in ([9, 60], [3] * SHORT + [100])
        ],
    }


def outcome(name: str, result: dict[str, Any]) -> tuple[Outcome, str]:
    """What the engine made of the case of that name, and its words or the acceptance length.

    ``right``: every draft of both requests accepted; ``collapse``: below 1.5 tokens a round;
    ``unloaded``: it ran on weights that were never loaded.
    """
    if "error" in result:
        said = " ".join(str(result["error"]["message"]).split())
        return "error", f"{result['error']['type']}: {said}"
    runs = [run["metrics"] for run in result["runs"]]
    drafts = sum(run["num_drafts"] for run in runs)
    # 17 tokens: the prompt's own, then rounds of up to 1 + K.
    rounds = drafts or 2 * 16
    length = 1 + sum(run["num_accepted_tokens"] for run in runs) / rounds
    without = any(run["num_drafts"] == 0 for run in runs)
    if name in UNLOADED:
        return "unloaded", f"acceptance length {length:.2f}"
    if length < 1.5:
        return "collapse", f"acceptance length {length:.2f}"
    if length < 1 + K or without:
        told = "a request without drafts" if without else f"acceptance length {length:.2f}"
        return "lower", told
    return "right", f"acceptance length {length:.2f}"


def verdict(
    target: Path, drafter: Path, case: Case, rules: Rules, faults: tuple[Fault, ...]
) -> tuple[Level, list[Check]]:
    """What the doctor says of the same, and the checks that are not passed."""
    pair = Pair(
        read_target(open_checkpoint(str(target))),
        read_drafter(open_checkpoint(str(drafter))),
        Setup(rules.version, **{"max_model_len": SERVED, **case.setup}),
        rules,
    )
    checks = [*pair_checks(pair), *release_checks(pair, faults)]
    checks = [check for check in checks if check.fault not in UNTRIED]
    return worst(checks), [check for check in checks if check.level != "pass"]
