# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that a drafter next to Kimi-K2.5 learns the target's image placeholder."""

from pathlib import Path
from unittest import mock

import pytest
from transformers import LlamaConfig
from transformers.models.kimi_k25 import Kimi_K25Config

from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig, VllmConfig
from vllm.model_executor.models.kimi_k25 import KimiK25ForConditionalGeneration
from vllm.v1.spec_decode.eagle import EagleProposer

pytestmark = pytest.mark.cpu_test


def _save_config(path: Path, architecture: str, num_hidden_layers: int) -> str:
    LlamaConfig(
        architectures=[architecture],
        num_hidden_layers=num_hidden_layers,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=512,
    ).save_pretrained(path)
    return str(path)


@pytest.mark.parametrize(
    "old_names",
    # Checkpoints saved before transformers had a class of its own have this as well.
    # The processor corrects image_token_id from the tokenizer, and only that.
    [{}, {"media_placeholder_token_id": 99}],
    ids=["new_form", "both_names"],
)
@mock.patch("vllm.v1.spec_decode.llm_base_proposer.get_pp_group")
@mock.patch("vllm.v1.spec_decode.llm_base_proposer.get_layers_from_vllm_config")
@mock.patch("vllm.v1.spec_decode.llm_base_proposer.get_model")
def test_load_model_reads_image_token_id(
    mock_get_model, mock_get_layers, mock_get_pp_group, tmp_path: Path, old_names: dict
):
    mock_get_layers.return_value = {}
    mock_get_pp_group.return_value.world_size = 1
    model_config = ModelConfig(
        _save_config(tmp_path / "target", "LlamaForCausalLM", 4),
        skip_tokenizer_init=True,
    )
    speculative_config = SpeculativeConfig(
        method="eagle3",
        model=_save_config(tmp_path / "draft", "LlamaForCausalLMEagle3", 1),
        num_speculative_tokens=3,
        target_model_config=model_config,
        target_parallel_config=ParallelConfig(),
    )
    vllm_config = VllmConfig(
        model_config=model_config, speculative_config=speculative_config
    )
    proposer = EagleProposer(vllm_config=vllm_config, device="cpu")
    target_model = mock.create_autospec(KimiK25ForConditionalGeneration, instance=True)
    target_model.config = Kimi_K25Config(image_token_id=77, **old_names)

    proposer.load_model(target_model)

    assert proposer.model.config.image_token_index == 77
