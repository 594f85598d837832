"""EAGLE-3 in plain torch: what a drafter and its target must do, without vLLM.

The target is transformers' own ``DeepseekV3ForCausalLM``, and the attention of both drafter
styles is transformers' ``LlamaAttention`` and ``DeepseekV3Attention`` with a wider input, so
nothing here shares code with the engine under test. Everything runs in float32 on the CPU.

Words: *slot* t of a drafter reads the embedding of token t+1 and the target's state at token t,
and predicts token t+2. *Tap* i is the residual stream before layer i; tap L (the number of
layers) is the stream after the last layer, before the final norm.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, DynamicCache, LlamaConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RMSNorm,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

TEXT_PREFIX = "language_model."


def read_config(path: Path) -> dict[str, Any]:
    """Returns the ``config.json`` of the checkpoint in ``path``."""
    config: dict[str, Any] = json.loads((path / "config.json").read_text())
    return config


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns all tensors of all safetensors files of the checkpoint in ``path``."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{path} holds no safetensors file")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def load_target(path: Path) -> DeepseekV3ForCausalLM:
    """Loads the text model of a Kimi-K2.5 checkpoint into transformers' DeepSeek-V3.

    Raises ``RuntimeError`` when a text tensor is missing or left over.
    """
    config = DeepseekV3Config(**read_config(path)["text_config"])
    config._attn_implementation = "eager"
    model = DeepseekV3ForCausalLM(config)
    text = {
        name.removeprefix(TEXT_PREFIX): tensor.float()
        for name, tensor in read_tensors(path).items()
        if name.startswith(TEXT_PREFIX)
    }
    for name in [name for name in model.state_dict() if name not in text]:
        _stack_experts(text, name)
    model.load_state_dict(text)
    _one_epsilon(model, config.rms_norm_eps)
    return model.float().eval()


def _stack_experts(text: dict[str, Tensor], name: str) -> None:
    """Puts the experts of a layer together under ``name``, as transformers keeps them from 5 on.

    That is [experts, output, input], for ``gate_up_proj`` with the outputs of gate before those of
    up. What is no such name stays missing.
    """
    layer, _, projections = name.rpartition(".experts.")
    *halves, last = projections.removesuffix("_proj").split("_")
    experts: list[Tensor] = []
    while (part := f"{layer}.experts.{len(experts)}.{{}}_proj.weight").format(last) in text:
        experts.append(torch.cat([text.pop(part.format(half)) for half in (*halves, last)]))
    if experts:
        text[name] = torch.stack(experts)


def _one_epsilon(module: nn.Module, epsilon: float) -> None:
    """transformers gives the two norms inside MLA an epsilon of their own, vLLM the config's."""
    for part in module.modules():
        if isinstance(part, DeepseekV3RMSNorm):
            part.variance_epsilon = epsilon


@torch.no_grad()
def target_states(model: DeepseekV3ForCausalLM, ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """Runs the target over ``ids`` [batch, time].

    Returns the taps 0..L, each [batch, time, hidden], and the logits [batch, time, vocabulary].
    """
    taps: list[Tensor] = []
    layers = list(model.model.layers)
    hooks = [
        layer.register_forward_pre_hook(lambda _module, args: taps.append(args[0]))
        for layer in layers
    ]
    # transformers' own last "hidden state" is taken after the final norm, so take tap L here.
    hooks.append(layers[-1].register_forward_hook(lambda _m, _a, out: taps.append(_first(out))))
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    return taps, logits


def _first(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


@torch.no_grad()
def greedy(model: DeepseekV3ForCausalLM, prompts: Tensor, length: int) -> Tensor:
    """Continues ``prompts`` [batch, time] by ``length`` most likely tokens each.

    Returns prompts and continuations, [batch, time + length].
    """
    ids, past, step = prompts, DynamicCache(), prompts
    for _ in range(length):
        logits = model(input_ids=step, past_key_values=past, use_cache=True).logits
        step = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, step], dim=1)
    return ids


class Drafter(nn.Module):
    """One EAGLE-3 decoder layer with its tensors named as vLLM's module tree names them.

    ``config`` is the drafter's ``config.json``. The style follows its ``model_type``: ``llama``
    or, with MLA attention, ``kimi_k2``.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.mla = config["model_type"] != "llama"
        nested = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
        self.taps = config.get("num_aux_hidden_states") or len(nested or (0, 0, 0))
        self.norm_output = bool(config.get("norm_output"))
        self.norm_before_residual = bool(config.get("norm_before_residual"))
        self.draft_vocab = config.get("draft_vocab_size") or config["vocab_size"]

        self.fc = nn.Linear(self.taps * hidden, hidden, bias=False)
        self.fc_norm = (
            nn.ModuleList(LlamaRMSNorm(hidden, eps) for _ in range(self.taps))
            if config.get("fc_norm")
            else None
        )
        self.input_layernorm = LlamaRMSNorm(hidden, eps)
        self.hidden_norm = LlamaRMSNorm(hidden, eps)
        self.post_attention_layernorm = LlamaRMSNorm(hidden, eps)
        self.norm = LlamaRMSNorm(hidden, eps)
        self.self_attn, self.rotary = _mla_attention(config) if self.mla else _mha(config)
        self.mlp = LlamaMLP(LlamaConfig(**_plain(config)))
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.lm_head = nn.Linear(hidden, self.draft_vocab, bias=False)
        self.d2t: Tensor
        self.register_buffer("d2t", torch.zeros(self.draft_vocab, dtype=torch.long))

    def combine(self, taps: Sequence[Tensor]) -> Tensor:
        """Maps the taps, each [..., hidden], to the drafter's first hidden state."""
        if self.fc_norm is not None:
            taps = [norm(tap) for norm, tap in zip(self.fc_norm, taps, strict=True)]
        states: Tensor = self.fc(torch.cat(list(taps), dim=-1))
        return states

    def forward(
        self,
        ids: Tensor,
        hidden: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        past: DynamicCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Runs the layer.

        ``ids`` [batch, time], ``hidden`` [batch, time, hidden], ``positions`` [batch or 1, time],
        ``mask`` added to the attention scores, [1, 1, time, past + time]; causal when absent.
        Returns the logits over the draft vocabulary and the state that the next draft step reads.
        """
        if mask is None:
            mask = causal_mask(ids.shape[1])
        embeds = self.input_layernorm(self.embed_tokens(ids))
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        attended, _ = self.self_attn(
            torch.cat([embeds, normed], dim=-1),
            self.rotary(hidden, positions),
            mask,
            past_key_values=past,
        )
        residual = residual + attended
        prenorm = residual + self.mlp(self.post_attention_layernorm(residual))
        output = self.norm(prenorm)
        return self.lm_head(output), output if self.norm_output else prenorm

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Maps ids of the draft vocabulary to ids of the target's."""
        return draft_ids + self.d2t[draft_ids]

    def load(self, path: Path, target: DeepseekV3ForCausalLM) -> None:
        """Loads a drafter checkpoint; what it lacks of embedding and head is the target's."""
        self.embed_tokens.weight.data = target.model.embed_tokens.weight.data.clone()
        if self.draft_vocab == target.config.vocab_size:
            self.lm_head.weight.data = target.lm_head.weight.data.clone()
        tensors = {
            published_to_module(name): tensor
            for name, tensor in read_tensors(path).items()
            if name != "t2d"
        }
        missing, unknown = self.load_state_dict(tensors, strict=False)
        missing = [name for name in missing if not name.startswith(("embed", "lm_head", "d2t"))]
        if missing or unknown:
            raise ValueError(f"{path}: missing tensors {missing}, unknown tensors {unknown}")


def published_to_module(name: str) -> str:
    """Maps a tensor name of a published drafter to its name in :class:`Drafter`."""
    return name.removeprefix("midlayer.").removeprefix("layers.0.")


def causal_mask(length: int) -> Tensor:
    """Returns the additive causal mask, [1, 1, length, length]."""
    return torch.full((length, length), float("-inf")).triu(1)[None, None]


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Leaves out of a drafter's configuration what transformers would not know."""
    return {name: value for name, value in config.items() if name not in ("eagle_config",)}


def _mha(config: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    settings = LlamaConfig(**_plain(config), attn_implementation="eager")
    attention = LlamaAttention(settings, layer_idx=0)
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(attention, name, _doubled(getattr(attention, name)))
    return attention, LlamaRotaryEmbedding(settings)


def _mla_attention(config: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    settings = DeepseekV3Config(**_plain(config), attn_implementation="eager")
    attention = DeepseekV3Attention(settings, layer_idx=0)
    for name in ("q_a_proj", "kv_a_proj_with_mqa"):
        setattr(attention, name, _doubled(getattr(attention, name)))
    _one_epsilon(attention, config["rms_norm_eps"])
    return attention, DeepseekV3RotaryEmbedding(settings)


def _doubled(linear: nn.Linear) -> nn.Linear:
    """The drafter's first layer reads embedding and state side by side: twice the width."""
    return nn.Linear(2 * linear.in_features, linear.out_features, bias=False)


@dataclass(frozen=True)
class Speculation:
    """What a speculative run produced: ``tokens`` without the prompt, and accepts per round."""

    tokens: list[int]
    accepted: list[int]

    @property
    def acceptance_length(self) -> float:
        """Mean number of tokens per round, the bonus token included."""
        return 1 + sum(self.accepted) / len(self.accepted)


@torch.no_grad()
def speculate(
    target: DeepseekV3ForCausalLM,
    drafter: Drafter,
    tap_ids: Sequence[int],
    prompt: Sequence[int],
    length: int,
    draft_tokens: int,
) -> Speculation:
    """Greedy decoding of one prompt with chain drafts; every round recomputes everything.

    Produces at least ``length`` tokens (the last round is not cut short). ``tap_ids`` select the
    taps that the drafter reads, in fc's order.
    """
    tokens = list(prompt)
    taps, logits = target_states(target, torch.tensor([tokens]))
    tokens.append(int(logits[0, -1].argmax()))
    accepted: list[int] = []
    while len(tokens) - len(prompt) < length:
        known = len(tokens) - 1  # the target's states exist for tokens 0..known-1
        hidden = drafter.combine([taps[i][:, :known] for i in tap_ids])
        drafts = _draft(drafter, tokens, hidden, draft_tokens)
        taps, logits = target_states(target, torch.tensor([tokens + drafts]))
        choices = logits[0, known:].argmax(-1).tolist()
        good = 0
        while good < draft_tokens and drafts[good] == choices[good]:
            good += 1
        tokens += choices[: good + 1]
        accepted.append(good)
    return Speculation(tokens[len(prompt) :], accepted)


def _draft(drafter: Drafter, tokens: list[int], hidden: Tensor, count: int) -> list[int]:
    """Drafts ``count`` tokens after ``tokens``, given the states of all tokens but the last."""
    past = DynamicCache()
    known = len(tokens) - 1
    ids, positions = torch.tensor([tokens[1:]]), torch.arange(known)[None]
    logits, feedback = drafter(ids, hidden, positions, past=past)
    drafts: list[int] = []
    while True:
        token = drafter.target_ids(logits[:, -1:].argmax(-1))
        drafts.append(int(token))
        if len(drafts) == count:
            return drafts
        position = torch.tensor([[known + len(drafts) - 1]])
        mask = torch.zeros(1, 1, 1, known + len(drafts))
        logits, feedback = drafter(token, feedback[:, -1:], position, mask, past)
