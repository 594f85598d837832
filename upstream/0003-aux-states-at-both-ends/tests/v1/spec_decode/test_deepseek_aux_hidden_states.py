# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests the hidden states that DeepseekV2Model hands to an EAGLE-3 drafter."""

from pathlib import Path

import pytest
import torch
from transformers import DeepseekV3Config

from vllm.config import (
    CompilationConfig,
    CompilationMode,
    ModelConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.model_executor.models import deepseek_v2

pytestmark = pytest.mark.cpu_test

HIDDEN_SIZE = 64
NUM_LAYERS = 4


class _Layer(torch.nn.Module):
    """Adds 10 * (index + 1) to the residual stream, and overwrites its input."""

    use_sequence_parallel_moe = False

    def __init__(self, *, prefix: str, **kwargs):
        super().__init__()
        self.value = 10.0 * (int(prefix.rsplit(".", 1)[1]) + 1)

    def forward(self, positions, hidden_states, residual, llama_4_scaling=None):
        stream = hidden_states + (0 if residual is None else residual)
        hidden_states.fill_(-1.0)
        return torch.full_like(stream, self.value), stream


@pytest.fixture
def model(tmp_path: Path, dist_init, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deepseek_v2, "DeepseekV2DecoderLayer", _Layer)
    DeepseekV3Config(
        architectures=["DeepseekV3ForCausalLM"],
        num_hidden_layers=NUM_LAYERS,
        hidden_size=HIDDEN_SIZE,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=512,
    ).save_pretrained(tmp_path)
    model_config = ModelConfig(str(tmp_path), dtype="float32", skip_tokenizer_init=True)
    vllm_config = VllmConfig(
        model_config=model_config,
        compilation_config=CompilationConfig(mode=CompilationMode.NONE),
    )
    with set_current_vllm_config(vllm_config):
        yield deepseek_v2.DeepseekV2Model(vllm_config=vllm_config, prefix="model")


@pytest.mark.parametrize("layers", [(0,), (0, 2, NUM_LAYERS), (1, 2, 3)])
def test_aux_hidden_states_are_the_streams_before_the_layers(
    model: deepseek_v2.DeepseekV2Model, layers: tuple[int, ...]
):
    """Layer 0 stands for the embeddings, the number of layers for the last output."""
    model.aux_hidden_state_layers = layers
    embeds = torch.randn(3, HIDDEN_SIZE)
    expected = [
        embeds + sum(10.0 * (index + 1) for index in range(layer)) for layer in layers
    ]

    # The input buffer is written again in the next step, and by the first layer here.
    _, aux_hidden_states = model(None, torch.arange(3), None, embeds.clone())

    assert len(aux_hidden_states) == len(layers)
    for actual, wanted in zip(aux_hidden_states, expected):
        torch.testing.assert_close(actual, wanted)
