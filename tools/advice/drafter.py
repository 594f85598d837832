"""What there is to know about an EAGLE-3 drafter before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from advice.checkpoint import Checkpoint, Tensor
from advice.fields import LAYERS, Fields, context_length
from advice.target import Latent, quantization_of, read_latent

IDS = "eagle_aux_hidden_state_layer_ids"

Style = Literal["llama", "mla", "other"]

# model_type values that vLLM turns into a request for a model's own multi-token prediction
# (SpeculativeConfig.hf_config_override), whatever method is asked for.
MTP_MODEL_TYPES = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "deepseek_mtp", "deepseek_v4")


@dataclass(frozen=True)
class Drafter:
    """A drafter's configuration as vLLM reads it. Sizes are in elements, lengths in tokens.

    ``fields`` are those of ``config.json``; for the form of the library *speculators*
    (``speculators``) already flattened as vLLM does. ``top_ids`` and ``nested_ids`` are the layer
    ids as written at the top level and in ``eagle_config``, of whatever type. ``target_hidden`` is
    the hidden size that it is made for.
    """

    checkpoint: Checkpoint
    fields: Fields
    speculators: bool
    verifier: str | None
    architecture: str
    model_type: str
    style: Style
    hidden_size: int
    target_hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    context: int | None
    latent: Latent | None
    top_ids: Any
    nested_ids: Any
    uses_states: bool
    quantization: str | None

    @property
    def name(self) -> str:
        """What the user called it."""
        return self.checkpoint.name

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by the checkpoint's names."""
        return self.checkpoint.tensors()

    @cached_property
    def loaded(self) -> dict[str, tuple[str, Tensor]]:
        """Its tensors by the names that vLLM gives them, with the checkpoint's own names."""
        return {
            name.replace("midlayer.", "layers.0."): (name, tensor)
            for name, tensor in self.tensors.items()
        }

    @cached_property
    def steps(self) -> list[int] | None:
        """What d2t holds, for each draft token; ``None`` without it, or if it is no integers."""
        d2t = self.tensors.get("d2t")
        if d2t is None or d2t.dtype not in ("I64", "I32"):
            return None
        return self.checkpoint.values(d2t)

    @cached_property
    def held(self) -> list[int] | None:
        """The tokens that t2d marks, ascending; ``None`` without it."""
        t2d = self.tensors.get("t2d")
        if t2d is None or t2d.shape != (self.vocab_size,) or t2d.dtype not in ("BOOL", "U8"):
            return None
        return [token for token, flag in enumerate(self.checkpoint.values(t2d)) if flag]

    @property
    def fc_inputs(self) -> int | None:
        """How many elements fc takes, by its tensor; ``None`` if that cannot be told."""
        entry = self.loaded.get("fc.weight")
        # Other types hold several packed values in each element.
        if entry is None or entry[1].dtype not in ("F32", "F16", "BF16", "F8_E4M3"):
            return None
        return entry[1].shape[-1] if len(entry[1].shape) == 2 else None

    @property
    def head_dim(self) -> int:
        """Elements of one attention head (Llama style)."""
        return self.fields.number("head_dim") or self.hidden_size // self.heads

    @property
    def listed_ids(self) -> Any:
        """The layer ids where vLLM looks first: at the top level, else in ``eagle_config``."""
        return self.top_ids or self.nested_ids


def read_drafter(checkpoint: Checkpoint) -> Drafter:
    """Understand a drafter's configuration; :class:`IntegrityFault` names a field that is wrong."""
    fields = Fields(checkpoint.config, f"{checkpoint.source.place}/config.json")
    speculators = "speculators_model_type" in fields
    verifier = None
    if speculators:
        about = fields.part("speculators_config")
        verifier = about.part("verifier").text("name_or_path")
        fields = _flattened(fields)
    names = fields.texts("architectures")
    architecture = names[0] if names else ""
    model_type = fields.text("model_type") or ""
    hidden = fields.size("hidden_size")
    heads = fields.size("num_attention_heads")
    vocabulary = fields.size("vocab_size")
    nested = fields.part("eagle_config")
    return Drafter(
        checkpoint=checkpoint,
        fields=fields,
        speculators=speculators,
        verifier=verifier,
        architecture=_served_as(architecture),
        model_type=model_type,
        style=_style(architecture, model_type, fields),
        hidden_size=hidden,
        target_hidden=fields.number("target_hidden_size") or hidden,
        layers=fields.size("num_hidden_layers", most=LAYERS),
        heads=heads,
        kv_heads=fields.number("num_key_value_heads") or heads,
        intermediate_size=fields.size("intermediate_size"),
        vocab_size=vocabulary,
        draft_vocab_size=fields.number("draft_vocab_size") or vocabulary,
        context=context_length(fields),
        latent=read_latent(fields),
        top_ids=fields.values.get(IDS),
        nested_ids=nested.values.get(IDS),
        uses_states=nested.flag("use_aux_hidden_state", True),
        quantization=quantization_of(checkpoint, fields),
    )


# What vLLM copies from the top level of the speculators form into the flat configuration
# (transformers_utils/configs/speculators/algos.py); the last three by this repository's series, the
# first two of them also by vLLM itself from 0.25.0.
_COPIED = ("draft_vocab_size", "target_hidden_size", "norm_before_fc", IDS)
COPIED_LATER = ("fc_norm", "norm_output", "num_aux_hidden_states")


def _flattened(fields: Fields) -> Fields:
    layer = fields.part("transformer_layer_config")
    flat = dict(layer.values)
    flat |= {key: fields.values[key] for key in (*_COPIED, *COPIED_LATER) if key in fields}
    flat["norm_before_residual"] = fields.flag("norm_before_residual", True)
    names = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}
    kind = layer.text("model_type") or "llama"
    flat["architectures"] = [names.get(kind, f"Eagle3 of {kind}")]
    flat["model_type"] = kind
    return Fields(flat, fields.where)


def _served_as(architecture: str) -> str:
    """The name under which vLLM looks for the class (EAGLEConfig in transformers_utils)."""
    if architecture.startswith("Eagle3") or architecture.endswith("Eagle3"):
        return architecture
    return f"Eagle3{architecture}"


def _style(architecture: str, model_type: str, fields: Fields) -> Style:
    if "deepseek" in architecture.lower() or model_type in ("kimi_k2", *MTP_MODEL_TYPES):
        return "mla"
    if "kv_lora_rank" in fields:
        return "mla"
    return "llama" if "llama" in architecture.lower() or model_type == "llama" else "other"
