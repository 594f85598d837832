# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that a drafter inherits no attention backend that cannot run its layers.

MLA backends run MLA layers only, and no other backend does.
"""

from pathlib import Path

import pytest
from transformers import AutoConfig

from vllm.config import (
    AttentionConfig,
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum

pytestmark = pytest.mark.cpu_test

SIZES = dict(
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=2,
    num_key_value_heads=2,
    vocab_size=128,
    max_position_embeddings=512,
)
MLA = ("deepseek_v2", "DeepseekV2ForCausalLM", "Eagle3DeepseekV2ForCausalLM")
MHA = ("llama", "LlamaForCausalLM", "LlamaForCausalLMEagle3")
TRITON_MLA = AttentionBackendEnum.TRITON_MLA
FLASH_ATTN = AttentionBackendEnum.FLASH_ATTN


def _save_config(path: Path, model_type: str, architecture: str, num_layers: int):
    AutoConfig.for_model(
        model_type,
        architectures=[architecture],
        num_hidden_layers=num_layers,
        **SIZES,
    ).save_pretrained(path)
    return str(path)


def _draft_backend(
    tmp_path: Path,
    target: tuple[str, str, str],
    draft: tuple[str, str, str],
    target_backend: AttentionBackendEnum,
    draft_backend: AttentionBackendEnum | str | None = None,
) -> AttentionBackendEnum | None:
    """The backend that the drafter's layers are built with; None: one is selected."""
    model_config = ModelConfig(
        _save_config(tmp_path / "target", target[0], target[1], num_layers=4),
        skip_tokenizer_init=True,
    )
    speculative_config = SpeculativeConfig(
        method="eagle3",
        model=_save_config(tmp_path / "draft", draft[0], draft[2], num_layers=1),
        num_speculative_tokens=3,
        attention_backend=draft_backend,
        target_model_config=model_config,
        target_parallel_config=ParallelConfig(),
    )
    vllm_config = VllmConfig(
        model_config=model_config, speculative_config=speculative_config
    )
    # Assigned here, because a platform without that backend would refuse it.
    vllm_config.attention_config = AttentionConfig(backend=target_backend)
    used = speculative_config.apply_draft_overrides(vllm_config)
    assert vllm_config.attention_config.backend == target_backend
    return used.attention_config.backend


@pytest.mark.parametrize(
    ("target", "draft", "target_backend"),
    [(MLA, MHA, TRITON_MLA), (MHA, MLA, FLASH_ATTN)],
    ids=["mla_target", "mla_draft"],
)
@pytest.mark.parametrize("draft_backend", [None, "auto"])
def test_backend_of_the_other_kind_is_not_inherited(
    tmp_path: Path, target, draft, target_backend, draft_backend
):
    used = _draft_backend(tmp_path, target, draft, target_backend, draft_backend)
    assert used is None


@pytest.mark.parametrize(
    ("kind", "target_backend"),
    [(MLA, TRITON_MLA), (MHA, FLASH_ATTN)],
    ids=["both_mla", "neither_mla"],
)
def test_usable_backend_is_inherited(tmp_path: Path, kind, target_backend):
    """The two models then share a KV cache layout and block size."""
    assert _draft_backend(tmp_path, kind, kind, target_backend) == target_backend


def test_explicit_draft_backend_is_kept(tmp_path: Path):
    used = _draft_backend(tmp_path, MLA, MHA, TRITON_MLA, FLASH_ATTN)
    assert used == FLASH_ATTN
