"""What there is to know about a target before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from advice.checkpoint import Checkpoint, Group
from advice.fields import LAYERS, Fields, context_length

# Names under which configurations keep the id that stands for image content in a prompt.
IMAGE_TOKEN_KEYS = ("image_token_id", "image_token_index", "media_placeholder_token_id")


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention, in elements."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def cached(self) -> int:
        """Elements that a token takes in the KV cache of one layer, on every card."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class Target:
    """A target's configuration as vLLM reads it. Sizes are in elements, lengths in tokens.

    ``text`` are the fields of the text model, in a wrapper those of its ``text_config``. ``latent``
    is ``None`` for other attention than MLA. ``quantization`` is the method's name, ``None`` for
    none; ``fp8_cache`` whether the checkpoint itself asks for an FP8 KV cache, which
    ``--kv-cache-dtype auto`` then gives.
    """

    checkpoint: Checkpoint
    fields: Fields
    text: Fields
    architecture: str
    model_type: str
    text_model_type: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    context: int
    latent: Latent | None
    experts: int | None
    quantization: str | None
    fp8_cache: bool

    @property
    def name(self) -> str:
        """What the user called it."""
        return self.checkpoint.name

    @property
    def multimodal(self) -> bool:
        """Whether it takes images."""
        return "vision_config" in self.fields

    @property
    def is_kimi(self) -> bool:
        """Whether it is one of the Kimi-K2.5 family, whose wrapper class is the same."""
        return self.model_type == "kimi_k25"

    @property
    def default_ids(self) -> tuple[int, int, int]:
        """The layers whose inputs a target gives to a drafter that names none."""
        return (2, self.layers // 2, self.layers - 3)

    @cached_property
    def groups(self) -> list[Group]:
        """The tensors; see :meth:`advice.checkpoint.Checkpoint.groups`."""
        return self.checkpoint.groups()


def read_target(checkpoint: Checkpoint) -> Target:
    """Understand a target's configuration; :class:`IntegrityFault` names a field that is wrong."""
    fields = Fields(checkpoint.config, f"{checkpoint.source.place}/config.json")
    text = fields.part("text_config") if "text_config" in fields else fields
    heads = text.size("num_attention_heads")
    architectures = fields.texts("architectures")
    quantization = quantization_of(checkpoint, fields)
    if quantization is None and text is not fields:
        quantization = text.part("quantization_config").text("quant_method")
    return Target(
        checkpoint=checkpoint,
        fields=fields,
        text=text,
        architecture=architectures[0] if architectures else "",
        model_type=fields.text("model_type") or "",
        text_model_type=text.text("model_type") or "",
        hidden_size=text.size("hidden_size"),
        layers=text.size("num_hidden_layers", most=LAYERS),
        heads=heads,
        kv_heads=text.number("num_key_value_heads") or heads,
        vocab_size=text.size("vocab_size"),
        context=context_length(text) or 0,
        latent=read_latent(text),
        experts=text.number("n_routed_experts") or None,
        quantization=quantization,
        fp8_cache=_asks_for_fp8_cache(checkpoint, fields, text),
    )


def read_latent(fields: Fields) -> Latent | None:
    """The MLA sizes, ``None`` for a model of another attention."""
    if not fields.number("kv_lora_rank"):
        return None
    return Latent(
        q_lora_rank=fields.number("q_lora_rank"),
        kv_lora_rank=fields.size("kv_lora_rank"),
        qk_nope_head_dim=fields.size("qk_nope_head_dim"),
        qk_rope_head_dim=fields.size("qk_rope_head_dim"),
        v_head_dim=fields.size("v_head_dim"),
    )


def quantization_of(checkpoint: Checkpoint, fields: Fields) -> str | None:
    """The name of the quantization, also where only ``hf_quant_config.json`` tells."""
    if method := fields.part("quantization_config").text("quant_method"):
        return method
    where = f"{checkpoint.source.place}/hf_quant_config.json"
    exported = Fields(checkpoint.quantization, where).part("quantization")
    algorithm = exported.text("quant_algo")
    return f"modelopt ({algorithm})" if algorithm else None


def _asks_for_fp8_cache(checkpoint: Checkpoint, fields: Fields, text: Fields) -> bool:
    """Whether the checkpoint names FP8 for its KV cache, in any of the places for that."""
    exported: Any = checkpoint.quantization.get("quantization")
    if isinstance(exported, dict) and exported.get("kv_cache_quant_algo") == "FP8":
        return True
    for place in (fields, text):
        part = place.part("quantization_config")
        if part.values.get("kv_cache_quant_algo") == "FP8":
            return True
        scheme = part.part("kv_cache_scheme")
        if scheme.values.get("num_bits") == 8 and scheme.values.get("type") == "float":
            return True
    return False
