"""Sparse files with the headers of the real Kimi-K2.5: 208,550 tensors, 595 GB that take no disk.

For the bench and the tests: what the doctor costs on the real layout, without the weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHARDS = 64
_LAYERS, _HIDDEN, _EXPERTS, _VOCABULARY = 61, 7168, 384, 163840
_Entry = tuple[str, str, tuple[int, ...]]

TEXT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "vocab_size": _VOCABULARY,
    "hidden_size": _HIDDEN,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": _LAYERS,
    "first_k_dense_replace": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": _EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.827,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_theta": 50000.0,
    "num_nextn_predict_layers": 0,
    "bos_token_id": 163584,
    "eos_token_id": 163585,
    "pad_token_id": 163839,
    "dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True},
            }
        },
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
        "kv_cache_scheme": None,
    },
}
VISION: dict[str, Any] = {
    "hidden_size": 1152,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "intermediate_size": 4304,
    "patch_size": 14,
    "merge_kernel_size": [2, 2],
}
CONFIG: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "media_placeholder_token_id": 163605,
    "bos_token_id": 163584,
    "eos_token_id": 163585,
    "pad_token_id": 163839,
    "text_config": TEXT,
    "vision_config": VISION,
    "quantization_config": TEXT["quantization_config"],
}


def kimi_tensors() -> Iterator[_Entry]:
    """Name, type and shape of every tensor: INT4 experts in groups of 32, all else in BF16."""
    text = "language_model.model"
    yield f"{text}.embed_tokens.weight", "BF16", (_VOCABULARY, _HIDDEN)
    for layer in range(_LAYERS):
        place = f"{text}.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{place}.{norm}.weight", "BF16", (_HIDDEN,)
        for name, shape in (
            ("q_a_proj", (1536, _HIDDEN)),
            ("q_a_layernorm", (1536,)),
            ("q_b_proj", (64 * 192, 1536)),
            ("kv_a_proj_with_mqa", (576, _HIDDEN)),
            ("kv_a_layernorm", (512,)),
            ("kv_b_proj", (64 * 256, 512)),
            ("o_proj", (_HIDDEN, 64 * 128)),
        ):
            yield f"{place}.self_attn.{name}.weight", "BF16", shape
        if layer == 0:
            yield from _mlp(f"{place}.mlp", 18432)
            continue
        yield f"{place}.mlp.gate.weight", "BF16", (_EXPERTS, _HIDDEN)
        yield f"{place}.mlp.gate.e_score_correction_bias", "F32", (_EXPERTS,)
        yield from _mlp(f"{place}.mlp.shared_experts", 2048)
        for expert in range(_EXPERTS):
            for name, rows, columns in (
                ("gate_proj", 2048, _HIDDEN),
                ("up_proj", 2048, _HIDDEN),
                ("down_proj", _HIDDEN, 2048),
            ):
                weight = f"{place}.mlp.experts.{expert}.{name}.weight"
                yield f"{weight}_packed", "I32", (rows, columns // 8)
                yield f"{weight}_scale", "BF16", (rows, columns // 32)
                yield f"{weight}_shape", "I64", (2,)
    yield f"{text}.norm.weight", "BF16", (_HIDDEN,)
    yield "language_model.lm_head.weight", "BF16", (_VOCABULARY, _HIDDEN)
    yield from _vision()


def write_kimi(folder: Path) -> Path:
    """Write configuration, index and the sparse shards to ``folder`` and return it."""
    folder.mkdir(parents=True)
    entries = list(kimi_tensors())
    share = -(-len(entries) // SHARDS)
    index: dict[str, str] = {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05}-of-{SHARDS:06}.safetensors"
        part = entries[number * share : (number + 1) * share]
        write_header(folder / file, part)
        index |= {name: file for name, _, _ in part}
    _write(folder / "config.json", CONFIG)
    _write(folder / "generation_config.json", {"eos_token_id": 163586, "max_length": 262144})
    _write(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    return folder


def write_drafter(folder: Path) -> Path:
    """Write a drafter like AQ-MedAI/Kimi-K25-eagle3 to ``folder`` and return it: same fields and
    tensors, and maps to every fifth token. Its weights are a hole, too.
    """
    folder.mkdir(parents=True)
    inner, heads, drafted = 18432, 64 * 128, 32000
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    entries: list[_Entry] = [("d2t", "I64", (drafted,)), ("t2d", "BOOL", (_VOCABULARY,))]
    entries += [("fc.weight", "BF16", (_HIDDEN, 3 * _HIDDEN)), ("norm.weight", "BF16", (_HIDDEN,))]
    entries += [(f"midlayer.{norm}.weight", "BF16", (_HIDDEN,)) for norm in norms]
    for name in ("q_proj", "k_proj", "v_proj"):
        entries.append((f"midlayer.self_attn.{name}.weight", "BF16", (heads, 2 * _HIDDEN)))
    entries.append(("midlayer.self_attn.o_proj.weight", "BF16", (_HIDDEN, heads)))
    entries += [*_mlp("midlayer.mlp", inner), ("lm_head.weight", "BF16", (drafted, _HIDDEN))]
    path = folder / "model.safetensors"
    write_header(path, entries)
    with open(path, "r+b") as stream:
        stream.seek(8 + int.from_bytes(stream.read(8), "little"))
        stream.write(b"".join((4 * i).to_bytes(8, "little") for i in range(drafted)))
        stream.write(bytes(i % 5 == 0 and i < 5 * drafted for i in range(_VOCABULARY)))
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": inner,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "head_dim": 128,
        "num_hidden_layers": 1,
        "vocab_size": _VOCABULARY,
        "draft_vocab_size": drafted,
        "max_position_embeddings": 262144,
        "rope_theta": 1000000.0,
        "eagle_config": ids,
    }
    _write(folder / "config.json", config)
    return folder


def write_header(path: Path, entries: list[_Entry]) -> None:
    """A safetensors file of those tensors; its data is a hole that reads as zeros."""
    bits = {"BF16": 16, "F16": 16, "F32": 32, "I32": 32, "I64": 64, "F8_E4M3": 8, "U8": 8}
    bits["BOOL"] = 8
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in entries:
        size = bits[dtype] // 8
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        stream.truncate(8 + len(raw) + end)


def _mlp(place: str, inner: int) -> Iterator[_Entry]:
    yield f"{place}.gate_proj.weight", "BF16", (inner, _HIDDEN)
    yield f"{place}.up_proj.weight", "BF16", (inner, _HIDDEN)
    yield f"{place}.down_proj.weight", "BF16", (_HIDDEN, inner)


def _vision() -> Iterator[_Entry]:
    def with_bias(name: str, *shape: int) -> Iterator[_Entry]:
        yield f"{name}.weight", "BF16", shape
        yield f"{name}.bias", "BF16", shape[:1]

    width, inner = 1152, 4304
    yield from with_bias("vision_tower.patch_embed.proj", width, 3, 14, 14)
    yield "vision_tower.patch_embed.pos_emb.weight", "BF16", (64, 64, width)
    for block in range(27):
        place = f"vision_tower.encoder.blocks.{block}"
        yield from with_bias(f"{place}.norm0", width)
        yield from with_bias(f"{place}.norm1", width)
        yield from with_bias(f"{place}.wqkv", 3 * width, width)
        yield from with_bias(f"{place}.wo", width, width)
        yield from with_bias(f"{place}.mlp.fc0", inner, width)
        yield from with_bias(f"{place}.mlp.fc1", width, inner)
    yield from with_bias("vision_tower.encoder.final_layernorm", width)
    yield from with_bias("mm_projector.pre_norm", width)
    yield from with_bias("mm_projector.proj.0", 4 * width, 4 * width)
    yield from with_bias("mm_projector.proj.2", _HIDDEN, 4 * width)


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")
