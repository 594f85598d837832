# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""EAGLE-3 and EAGLE-3.1 drafters whose layers are DeepSeek-V2/V3 layers (MLA).

Everything around the layers (embedding, fc, draft vocabulary, loading) is that
of the Llama drafter; only the decoder layer and the fused projections differ.
"""

import torch
import torch.nn as nn
from transformers import DeepseekV2Config, DeepseekV3Config

from vllm.config import VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.models.deepseek_v2 import (
    DeepseekV2Attention,
    DeepseekV2MLAAttention,
    DeepseekV2MLP,
)

from .llama_eagle3 import Eagle3LlamaForCausalLM, LlamaModel
from .utils import get_draft_quant_config

_PACKED_MODULES = {
    "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}


class DeepseekV2Eagle3DecoderLayer(nn.Module):
    """Decoder layer of an EAGLE-3 drafter in the DeepSeek-V2/V3 style.

    The first layer attends over the normalized token embeddings concatenated
    with the normalized hidden states, later layers over hidden states alone.
    The MLP is always dense: drafter configs often repeat the target's expert
    fields, and later releases build dense drafters from them as well.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        prefix: str = "",
        config: DeepseekV2Config | DeepseekV3Config | None = None,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        draft_model_config = vllm_config.speculative_config.draft_model_config
        config = config or draft_model_config.hf_config
        if getattr(config, "use_moe", False):
            raise ValueError(
                "EAGLE-3 drafters with MoE layers (use_moe) are not supported."
            )
        self.layer_idx = layer_idx
        self.norm_before_residual = getattr(config, "norm_before_residual", False)

        # The drafter is quantized on its own, not as the target is.
        quant_config = get_draft_quant_config(vllm_config)
        if quant_config is not None:
            quant_config.packed_modules_mapping = _PACKED_MODULES

        attn_cls = (
            DeepseekV2MLAAttention
            if draft_model_config.use_mla
            else DeepseekV2Attention
        )
        self.self_attn = attn_cls(
            vllm_config=vllm_config,
            config=config,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            qk_nope_head_dim=config.qk_nope_head_dim,
            qk_rope_head_dim=config.qk_rope_head_dim,
            v_head_dim=config.v_head_dim,
            q_lora_rank=getattr(config, "q_lora_rank", None),
            kv_lora_rank=config.kv_lora_rank,
            max_position_embeddings=getattr(config, "max_position_embeddings", 8192),
            cache_config=vllm_config.cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.self_attn",
            input_size=(2 if layer_idx == 0 else 1) * config.hidden_size,
        )
        self.mlp = DeepseekV2MLP(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            hidden_act=config.hidden_act,
            quant_config=quant_config,
            prefix=f"{prefix}.mlp",
        )
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(
            config.hidden_size, eps=config.rms_norm_eps
        )

    def forward(
        self,
        positions: torch.Tensor,
        embeds: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.layer_idx == 0:
            normed = self.hidden_norm(hidden_states)
            residual = normed if self.norm_before_residual else hidden_states
            hidden_states = torch.cat([self.input_layernorm(embeds), normed], dim=-1)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)

        hidden_states = self.self_attn(
            positions=positions,
            hidden_states=hidden_states,
            llama_4_scaling=None,
        )
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class DeepseekV2Eagle3Model(LlamaModel):
    decoder_layer_cls = DeepseekV2Eagle3DecoderLayer

    def __init__(
        self, *, vllm_config: VllmConfig, start_layer_id: int = 0, prefix: str = ""
    ) -> None:
        super().__init__(
            vllm_config=vllm_config, start_layer_id=start_layer_id, prefix=prefix
        )
        params = dict(self.named_parameters())
        # The projections into the latent space are fused only under MLA.
        self.stacked_params_mapping = [
            (f".{packed}", f".{shard}", shard_id)
            for packed, shards in _PACKED_MODULES.items()
            if any(f".{packed}." in name for name in params)
            for shard_id, shard in enumerate(shards)
        ]


class Eagle3DeepseekV2ForCausalLM(Eagle3LlamaForCausalLM):
    packed_modules_mapping = _PACKED_MODULES
    model_cls = DeepseekV2Eagle3Model
