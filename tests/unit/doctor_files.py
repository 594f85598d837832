"""Small checkpoints for the doctor's tests: true headers, no weights to speak of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advice.synthetic import write_header

Entry = tuple[str, str, tuple[int, ...]]

HIDDEN, LAYERS, VOCABULARY, HEADS, INNER = 32, 8, 128, 4, 48
DRAFTED = 40
LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


def make_target(path: Path, *, generation: Any = None, **changes: Any) -> Path:
    """A target of the Kimi-K2.5 family in ``path``; ``changes`` go to its config.json."""
    text = {
        "model_type": "kimi_k2",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCABULARY,
        "intermediate_size": INNER,
        "moe_intermediate_size": 16,
        "n_routed_experts": 2,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 4096,
        "eos_token_id": 1,
        **LATENT,
    }
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text,
        "vision_config": {},
        "media_placeholder_token_id": 5,
        **changes,
    }
    path.mkdir(parents=True)
    entries: list[Entry] = []
    for layer in range(LAYERS):
        place = f"language_model.model.layers.{layer}"
        entries.append((f"{place}.input_layernorm.weight", "BF16", (HIDDEN,)))
        for expert in range(2 if layer else 0):
            name = f"{place}.mlp.experts.{expert}.up_proj.weight"
            entries.append((name, "BF16", (16, HIDDEN)))
    write_header(path / "model.safetensors", entries)
    write_json(path / "config.json", config)
    generation = {"eos_token_id": 2} if generation is None else generation
    write_json(path / "generation_config.json", generation)
    return path


def drafter_config(style: str = "llama", **changes: Any) -> dict[str, Any]:
    """The config.json of a right drafter for that target; a change to None leaves a field out."""
    config: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "intermediate_size": INNER,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
    }
    if style == "llama":
        config |= {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    else:
        config |= {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}
        config |= LATENT
    config |= changes
    return {key: value for key, value in config.items() if value is not None}


def drafter_entries(style: str = "llama", *, states: int = 3, norms: int = 0) -> list[Entry]:
    """The tensors of that drafter, as published."""
    h = HIDDEN
    layer = "midlayer" if style == "llama" else "layers.0"
    entries: list[Entry] = [("fc.weight", "BF16", (h, states * h))]
    entries += [(f"fc_norm.{i}.weight", "BF16", (h,)) for i in range(norms)]
    for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        entries.append((f"{layer}.{norm}.weight", "BF16", (h,)))
    attention: Sequence[tuple[str, tuple[int, ...]]]
    if style == "llama":
        attention = [(f"{x}_proj", (h, 2 * h)) for x in "qkv"] + [("o_proj", (h, h))]
    else:
        attention = [
            ("q_a_proj", (12, 2 * h)),
            ("q_a_layernorm", (12,)),
            ("q_b_proj", (HEADS * 12, 12)),
            ("kv_a_proj_with_mqa", (20, 2 * h)),
            ("kv_a_layernorm", (16,)),
            ("kv_b_proj", (HEADS * 16, 16)),
            ("o_proj", (h, HEADS * 8)),
        ]
    entries += [(f"{layer}.self_attn.{name}.weight", "BF16", shape) for name, shape in attention]
    for name, shape in (("gate", (INNER, h)), ("up", (INNER, h)), ("down", (h, INNER))):
        entries.append((f"{layer}.mlp.{name}_proj.weight", "BF16", shape))
    return [*entries, ("norm.weight", "BF16", (h,))]


def make_drafter(
    path: Path,
    style: str = "llama",
    *,
    entries: Sequence[Entry] | None = None,
    words: Sequence[int] | None = None,
    held: Sequence[int] | None = None,
    without: Sequence[str] = (),
    extra: Sequence[Entry] = (),
    config: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A drafter in ``path``, right but for what is asked.

    ``words``: a draft vocabulary of those tokens, with head, d2t and t2d (``held``: the tokens
    that t2d marks instead). ``without``: beginnings of tensor names to leave out.
    """
    path.mkdir(parents=True)
    listed = list(drafter_entries(style) if entries is None else entries)
    values: dict[str, bytes] = {}
    if words is not None:
        changes = {"draft_vocab_size": len(words), **changes}
        listed += [
            ("lm_head.weight", "BF16", (len(words), HIDDEN)),
            ("d2t", "I64", (len(words),)),
            ("t2d", "BOOL", (VOCABULARY,)),
        ]
        steps = [word - at for at, word in enumerate(words)]
        values["d2t"] = b"".join(step.to_bytes(8, "little", signed=True) for step in steps)
        marked = words if held is None else held
        values["t2d"] = bytes(token in marked for token in range(VOCABULARY))
    listed = [entry for entry in listed if not entry[0].startswith(tuple(without))] + list(extra)
    write_header(path / "model.safetensors", listed)
    kept = {name: data for name, data in values.items() if not name.startswith(tuple(without))}
    fill(path / "model.safetensors", kept)
    write_json(path / "config.json", drafter_config(style, **changes) if config is None else config)
    return path


def fill(path: Path, values: Mapping[str, bytes]) -> None:
    """Write data into a safetensors file made by ``write_header``."""
    with open(path, "r+b") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        for name, data in values.items():
            if name in header:
                stream.seek(8 + length + header[name]["data_offsets"][0])
                stream.write(data)


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")
