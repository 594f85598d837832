"""The stand-in target: a complete local Kimi-K2.5 checkpoint of a few dozen megabytes.

Same architecture, weight names and configuration fields as the published model, with real head
sizes (rope 64, nope 128, v 128, latent 512) because attention code branches on them, and everything
else as small as the engine accepts. Needs torch, safetensors and tokenizers; never vllm.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

VOCAB_SIZE = 512

SPECIAL_TOKENS = (
    "[BOS]",
    "[EOS]",
    "[UNK]",
    "[PAD]",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_pad|>",
    "<|media_end|>",
    "<|kimi_k25_video_placeholder|>",
)
_PLAIN_WORDS = ("user", "assistant", "system", "image", "video")
# Ordinary words come first and special tokens last, as in the published vocabulary.
NUM_WORDS = VOCAB_SIZE - len(SPECIAL_TOKENS)
SPECIAL_IDS = {token: NUM_WORDS + i for i, token in enumerate(SPECIAL_TOKENS)}

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|im_{{ message.role }}|> {{ message.role }} <|im_middle|> "
    "{%- if message.content is string -%}{{ ' ' + message.content }}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type in ['image', 'image_url'] -%}"
    "{{ ' <|media_begin|> image <|media_content|> <|media_pad|> <|media_end|>' }}"
    "{%- elif part.type in ['video', 'video_url'] -%}{{ ' <|kimi_k25_video_placeholder|>' }}"
    "{%- else -%}{{ ' ' + part.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%} <|im_end|>{{ ' ' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_assistant|> assistant <|im_middle|>{%- endif -%}"
)


def vocabulary() -> dict[str, int]:
    """Token string -> id: pronounceable words, a few role names, then the special tokens."""
    syllables = [c + v for c, v in product("bdfgklmnprstvz", "aeiou")]
    words = (a + b for b, a in product(syllables, syllables))
    ordinary = [*_PLAIN_WORDS, *(next(words) for _ in range(NUM_WORDS - len(_PLAIN_WORDS)))]
    return {token: i for i, token in enumerate([*ordinary, *SPECIAL_TOKENS])}


def text_config(**overrides: Any) -> dict[str, Any]:
    """`text_config` of the stand-in (DeepSeek-V3 fields, `model_type` kimi_k2 as published)."""
    config: dict[str, Any] = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 8,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.827,
        "q_lora_rank": 96,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": 4096,
        "rope_theta": 50000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 64.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "bos_token_id": SPECIAL_IDS["[BOS]"],
        "eos_token_id": SPECIAL_IDS["[EOS]"],
        "pad_token_id": SPECIAL_IDS["[PAD]"],
        "use_cache": True,
    }
    return config | overrides


def vision_config(**overrides: Any) -> dict[str, Any]:
    """`vision_config` of the stand-in: a MoonViT tower of two layers of width 64."""
    config: dict[str, Any] = {
        "model_type": "kimi_k25_vision",
        "patch_size": 14,
        "init_pos_emb_height": 8,
        "init_pos_emb_width": 8,
        "init_pos_emb_time": 4,
        "pos_emb_type": "divided_fixed",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "merge_kernel_size": [2, 2],
        "video_attn_type": "spatial_temporal",
        "merge_type": "sd2_tpool",
        "mm_projector_type": "patchmerger",
        "mm_hidden_size": 256,
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-5,
    }
    return config | overrides


def target_config(*, dtype: str = "float32", **text_overrides: Any) -> dict[str, Any]:
    """The whole `config.json` of the stand-in; `text_overrides` go to its `text_config`."""
    text = text_config(dtype=dtype, **text_overrides)
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": dtype,
        "text_config": text,
        "vision_config": vision_config(mm_hidden_size=text["hidden_size"]),
        "media_placeholder_token_id": SPECIAL_IDS["<|media_pad|>"],
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
        "use_unified_vision_chunk": True,
        "ignore_index": -100,
        "tie_word_embeddings": False,
        "bos_token_id": SPECIAL_IDS["[BOS]"],
        "eos_token_id": SPECIAL_IDS["[EOS]"],
        "pad_token_id": SPECIAL_IDS["[PAD]"],
    }


def tensor_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a checkpoint with this `config`, as published."""
    text, vision = config["text_config"], config["vision_config"]
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    nope, rope, v_dim = (text[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    q_rank, kv_rank = text["q_lora_rank"], text["kv_lora_rank"]

    def mlp(prefix: str, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{prefix}.gate_proj.weight", (inner, hidden)
        yield f"{prefix}.up_proj.weight", (inner, hidden)
        yield f"{prefix}.down_proj.weight", (hidden, inner)

    yield "language_model.model.embed_tokens.weight", (text["vocab_size"], hidden)
    for i in range(text["num_hidden_layers"]):
        layer = f"language_model.model.layers.{i}"
        attn = f"{layer}.self_attn"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{attn}.q_a_proj.weight", (q_rank, hidden)
        yield f"{attn}.q_a_layernorm.weight", (q_rank,)
        yield f"{attn}.q_b_proj.weight", (heads * (nope + rope), q_rank)
        yield f"{attn}.kv_a_proj_with_mqa.weight", (kv_rank + rope, hidden)
        yield f"{attn}.kv_a_layernorm.weight", (kv_rank,)
        yield f"{attn}.kv_b_proj.weight", (heads * (nope + v_dim), kv_rank)
        yield f"{attn}.o_proj.weight", (hidden, heads * v_dim)
        if i < text["first_k_dense_replace"]:
            yield from mlp(f"{layer}.mlp", text["intermediate_size"])
            continue
        inner = text["moe_intermediate_size"]
        yield f"{layer}.mlp.gate.weight", (text["n_routed_experts"], hidden)
        yield f"{layer}.mlp.gate.e_score_correction_bias", (text["n_routed_experts"],)
        for expert in range(text["n_routed_experts"]):
            yield from mlp(f"{layer}.mlp.experts.{expert}", inner)
        yield from mlp(f"{layer}.mlp.shared_experts", inner * text["n_shared_experts"])
    yield "language_model.model.norm.weight", (hidden,)
    yield "language_model.lm_head.weight", (text["vocab_size"], hidden)

    def with_bias(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]

    width, inner, patch = (vision[k] for k in ("hidden_size", "intermediate_size", "patch_size"))
    rows, cols = vision["init_pos_emb_height"], vision["init_pos_emb_width"]
    merged = width * vision["merge_kernel_size"][0] * vision["merge_kernel_size"][1]
    yield from with_bias("vision_tower.patch_embed.proj", width, 3, patch, patch)
    yield "vision_tower.patch_embed.pos_emb.weight", (rows, cols, width)
    for i in range(vision["num_hidden_layers"]):
        block = f"vision_tower.encoder.blocks.{i}"
        yield from with_bias(f"{block}.norm0", width)
        yield from with_bias(f"{block}.norm1", width)
        yield from with_bias(f"{block}.wqkv", 3 * width, width)
        yield from with_bias(f"{block}.wo", width, width)
        yield from with_bias(f"{block}.mlp.fc0", inner, width)
        yield from with_bias(f"{block}.mlp.fc1", width, inner)
    yield from with_bias("vision_tower.encoder.final_layernorm", width)
    yield from with_bias("mm_projector.pre_norm", width)
    yield from with_bias("mm_projector.proj.0", merged, merged)
    yield from with_bias("mm_projector.proj.2", vision["mm_hidden_size"], merged)


_TO_RESIDUAL = ("o_proj.weight", "down_proj.weight")  # the last matrix of a sub-layer


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under which greedy text varies and depends on the whole prompt.

    Every matrix is drawn so that unit-variance input gives unit-variance output, but a sub-layer
    adds only a tenth of that to the residual stream: then the last token alone decides about half
    of the choices, which a drafter can learn, and the tokens before it the other half. Rows of
    `lm_head` for special tokens are zero, so that text never stops early nor invents an image.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in tensor_shapes(config):
        noise = torch.randn(shape, generator=generator)
        if name.endswith("e_score_correction_bias"):
            tensors[name] = 0.1 * noise
        elif name.endswith(".bias"):
            tensors[name] = 0.02 * noise
        elif len(shape) == 1:  # the scale of a norm
            tensors[name] = 1.0 + 0.1 * noise
        elif "embed_tokens" in name:
            tensors[name] = noise
        elif "lm_head" in name:
            # Logits with a standard deviation of 3: a sharp choice, yet a few likely tokens.
            tensors[name] = 3.0 * noise / shape[1] ** 0.5
            tensors[name][NUM_WORDS:] = 0.0
        elif "pos_emb" in name:
            tensors[name] = noise
        else:
            tensors[name] = noise / noise[0].numel() ** 0.5
            if name.startswith("language_model.") and name.endswith(_TO_RESIDUAL):
                tensors[name] *= 0.1
    return tensors


def write_weights(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> Path:
    """Write `config.json` and `model.safetensors` to the directory `path` (created if missing).

    Floating-point tensors are stored in `config["dtype"]`. Enough for a drafter, which has no
    tokenizer of its own.
    """
    path.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, config["dtype"])
    stored = {
        name: (t.to(dtype) if t.is_floating_point() else t).contiguous()
        for name, t in tensors.items()
    }
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    _write_json(path / "config.json", config)
    return path


def write_checkpoint(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> Path:
    """Write a complete target: configuration, weights, tokenizer, image processor, chat template.

    `tensors` must be exactly what `tensor_shapes(config)` lists, else ValueError.
    """
    expected = dict(tensor_shapes(config))
    given = {name: tuple(t.shape) for name, t in tensors.items()}
    if given != expected:
        wrong = sorted(set(given.items()) ^ set(expected.items()))
        raise ValueError(f"tensors do not fit the configuration: {wrong[:4]}")
    write_weights(path, config, tensors)
    _write_tokenizer(path)
    module = Path(__file__).with_name("vision_processor.py")
    shutil.copyfile(module, path / "standin_vision_processor.py")
    processor = "standin_vision_processor.StandinVisionProcessor"
    _write_json(
        path / "preprocessor_config.json",
        {
            "image_processor_type": "StandinVisionProcessor",
            "auto_map": {"AutoImageProcessor": processor},
            "patch_size": config["vision_config"]["patch_size"],
            "merge_size": config["vision_config"]["merge_kernel_size"][0],
            "patch_limit": 64,
            "num_frames_per_chunk": 4,
            # The same for the image processor that vLLM has itself from 0.32 on.
            "media_proc_cfg": {
                "patch_size": config["vision_config"]["patch_size"],
                "merge_kernel_size": config["vision_config"]["merge_kernel_size"][0],
                "in_patch_limit": 64,
                "patch_limit_on_one_side": 64,
                "in_patch_limit_each_frame": None,
                "in_patch_limit_video": None,
                "fixed_output_tokens": None,
                "temporal_merge_kernel_size": 4,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
            },
        },
    )
    _write_json(
        path / "generation_config.json",
        {
            "bos_token_id": SPECIAL_IDS["[BOS]"],
            "eos_token_id": SPECIAL_IDS["<|im_end|>"],
            "pad_token_id": SPECIAL_IDS["[PAD]"],
        },
    )
    return path


def make_target(path: Path, *, seed: int = 0, dtype: str = "float32") -> Path:
    """Write the stand-in with random weights to the directory `path` and return it."""
    config = target_config(dtype=dtype)
    return write_checkpoint(path, config, random_tensors(config, seed))


def _write_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel(vocabulary(), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # `normalized` stays off and spaces around a special token are dropped, as in the published one.
    tokenizer.add_special_tokens(
        [AddedToken(t, lstrip=True, rstrip=True, normalized=False) for t in SPECIAL_TOKENS]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "[BOS]",
            "eos_token": "[EOS]",
            "unk_token": "[UNK]",
            "pad_token": "[PAD]",
            "additional_special_tokens": list(SPECIAL_TOKENS[4:]),
            "clean_up_tokenization_spaces": False,
            "model_max_length": 4096,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
