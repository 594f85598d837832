# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that an EAGLE-3 drafter built of MLA layers is known to be one."""

import json
from pathlib import Path

import pytest
from transformers import DeepseekV3Config

from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig

pytestmark = pytest.mark.cpu_test


def _save_config(path: Path, **kwargs) -> str:
    config = DeepseekV3Config(
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        vocab_size=128,
        max_position_embeddings=512,
        **{"num_hidden_layers": 8, "num_nextn_predict_layers": 0, **kwargs},
    )
    path.mkdir()
    # transformers has no class of its own for the model_type of such drafters.
    content = {**config.to_dict(), **kwargs}
    (path / "config.json").write_text(json.dumps(content))
    return str(path)


def _make_speculative_config(tmp_path: Path, model_type: str) -> SpeculativeConfig:
    target = _save_config(
        tmp_path / "target",
        architectures=["DeepseekV3ForCausalLM"],
        model_type="deepseek_v3",
    )
    draft = _save_config(
        tmp_path / "draft",
        architectures=["Eagle3DeepseekV2ForCausalLM"],
        model_type=model_type,
        num_hidden_layers=1,
    )
    return SpeculativeConfig(
        method="eagle3",
        model=draft,
        num_speculative_tokens=3,
        target_model_config=ModelConfig(target, skip_tokenizer_init=True),
        target_parallel_config=ParallelConfig(),
    )


def test_kimi_k2_eagle3_drafter_uses_mla(tmp_path: Path):
    speculative_config = _make_speculative_config(tmp_path, "kimi_k2")
    draft_model_config = speculative_config.draft_model_config
    assert draft_model_config.architecture == "Eagle3DeepseekV2ForCausalLM"
    assert draft_model_config.use_mla
    # The latent and the rotary part, not the size of a query head.
    assert draft_model_config.get_head_size() == 512 + 64


def test_eagle3_drafter_with_model_type_of_target_is_rejected(tmp_path: Path):
    """deepseek_v3 would silently turn the drafter into an MTP model."""
    with pytest.raises(ValueError, match='set "model_type": "kimi_k2"'):
        _make_speculative_config(tmp_path, "deepseek_v3")
