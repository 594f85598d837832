"""Drafters for the stand-in: configurations, tensor names and weights like the published ones.

Two styles: ``llama`` (multi-head attention, ``midlayer.*``) and ``mla`` (``Eagle3DeepseekV2ForCausalLM``,
``layers.0.*``). :func:`make_drafter` writes one with random weights, or one trained on the spot to
continue the stand-in's own greedy text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from standin.target import SPECIAL_IDS, text_config, write_weights

Style = Literal["llama", "mla"]
Convention = Literal["before", "output"]

_LAYER = {"llama": "midlayer", "mla": "layers.0"}
_SHARED_WITH_TARGET = (
    "vocab_size",
    "hidden_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "attention_bias",
    "attention_dropout",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
_MLA_FIELDS = (
    "num_key_value_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_theta",
    "rope_scaling",
)


def default_ids(layers: int, convention: Convention = "before") -> tuple[int, int, int]:
    """The auxiliary layer ids of a drafter that names none, for a target of ``layers`` layers.

    ``before``: id i is the residual stream before layer i (vLLM); ``output``: the output of layer i
    (SpecForge, ModelOpt). Both name the same three places.
    """
    shift = 0 if convention == "before" else 1
    return (2 - shift, layers // 2 - shift, layers - 3 - shift)


def drafter_config(
    style: Style = "llama",
    *,
    ids: Sequence[int] | None = None,
    nested: bool = True,
    draft_vocab_size: int | None = None,
    eagle31: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """The ``config.json`` of a drafter for the stand-in.

    ``ids`` are written as given, into ``eagle_config`` when ``nested`` and else at the top level;
    None writes none. ``eagle31`` sets the three fields of EAGLE-3.1. ``overrides`` replace or add
    top-level fields.
    """
    target = text_config()
    config: dict[str, Any] = {name: target[name] for name in _SHARED_WITH_TARGET}
    config |= {
        "intermediate_size": target["intermediate_size"],
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": "float32",
    }
    if style == "llama":
        config |= {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_key_value_heads": 4,
            "head_dim": 128,
            "rope_theta": 1000000.0,
        }
    else:
        config |= {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": "kimi_k2",
            **{name: target[name] for name in _MLA_FIELDS},
        }
    if draft_vocab_size is not None:
        config["draft_vocab_size"] = draft_vocab_size
    if ids is not None:
        place = config.setdefault("eagle_config", {}) if nested else config
        place["eagle_aux_hidden_state_layer_ids"] = list(ids)
        if nested:
            place["use_aux_hidden_state"] = True
    if eagle31:
        count = 3 if ids is None else len(ids)
        config |= {"fc_norm": True, "norm_output": True, "num_aux_hidden_states": count}
    return config | overrides


def drafter_shapes(
    config: Mapping[str, Any],
    *,
    own_embedding: bool = False,
    own_head: bool = False,
    taps: int = 3,
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields name and shape of every floating-point tensor of a drafter, as published."""
    style: Style = "llama" if config["model_type"] == "llama" else "mla"
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    layer = _LAYER[style]
    attention = f"{layer}.self_attn"

    yield "fc.weight", (hidden, taps * hidden)
    if config.get("fc_norm"):
        for tap in range(taps):
            yield f"fc_norm.{tap}.weight", (hidden,)
    for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        yield f"{layer}.{norm}.weight", (hidden,)
    if style == "llama":
        size = config["head_dim"]
        for name, count in (("q", heads), ("k", config["num_key_value_heads"])):
            yield f"{attention}.{name}_proj.weight", (count * size, 2 * hidden)
        yield f"{attention}.v_proj.weight", (config["num_key_value_heads"] * size, 2 * hidden)
        yield f"{attention}.o_proj.weight", (hidden, heads * size)
    else:
        nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        q_rank, kv_rank, value = (config[k] for k in ("q_lora_rank", "kv_lora_rank", "v_head_dim"))
        yield f"{attention}.q_a_proj.weight", (q_rank, 2 * hidden)
        yield f"{attention}.q_a_layernorm.weight", (q_rank,)
        yield f"{attention}.q_b_proj.weight", (heads * (nope + rope), q_rank)
        yield f"{attention}.kv_a_proj_with_mqa.weight", (kv_rank + rope, 2 * hidden)
        yield f"{attention}.kv_a_layernorm.weight", (kv_rank,)
        yield f"{attention}.kv_b_proj.weight", (heads * (nope + value), kv_rank)
        yield f"{attention}.o_proj.weight", (hidden, heads * value)
    inner = config["intermediate_size"]
    yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
    yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
    yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
    yield "norm.weight", (hidden,)
    if own_embedding:
        yield "embed_tokens.weight", (config["vocab_size"], hidden)
    if own_head:
        rows = config.get("draft_vocab_size") or config["vocab_size"]
        yield "lm_head.weight", (rows, hidden)


def vocabulary_maps(draft_ids: Sequence[int], vocab_size: int) -> dict[str, Tensor]:
    """The tensors ``d2t`` and ``t2d`` of a draft vocabulary that holds the target's ``draft_ids``.

    ``d2t`` [draft vocabulary] is what to add to a draft id to get the target's id; ``t2d``
    [vocabulary] says which of the target's ids the draft vocabulary holds.
    """
    ids = torch.tensor(sorted(set(draft_ids)))
    held = torch.zeros(vocab_size, dtype=torch.bool)
    held[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": held}


def random_drafter_tensors(
    shapes: Mapping[str, tuple[int, ...]], seed: int = 0
) -> dict[str, Tensor]:
    """Random weights for ``shapes``: unit-variance input gives unit-variance output."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:  # the scale of a norm
            tensors[name] = 1.0 + 0.1 * noise
        else:
            tensors[name] = noise / shape[1] ** 0.5
    return tensors
