# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests EAGLE-3's auxiliary hidden states across the PP stages of DeepseekV2Model."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import DeepseekV3Config, LlamaConfig

from vllm.config import (
    CompilationConfig,
    CompilationMode,
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed import parallel_state
from vllm.model_executor.models import deepseek_v2
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import (
    reserve_aux_intermediate_tensor_slots,
    verify_supports_aux_hidden_states_over_pp,
)

pytestmark = pytest.mark.cpu_test

HIDDEN_SIZE = 64
NUM_LAYERS = 6
SPLIT = 3


class _Layer(torch.nn.Module):
    """Adds 10 * (index + 1) to the residual stream, and overwrites its input."""

    use_sequence_parallel_moe = False

    def __init__(self, index: int):
        super().__init__()
        self.value = 10.0 * (index + 1)

    def forward(self, positions, hidden_states, residual, llama_4_scaling=None):
        stream = hidden_states + (0 if residual is None else residual)
        hidden_states.fill_(-1.0)
        return torch.full_like(stream, self.value), stream


def _stream_before(layer: int) -> torch.Tensor:
    """The residual stream of `_Layer`s before that one, on embeddings of 7."""
    value = 7.0 + sum(10.0 * (index + 1) for index in range(layer))
    return torch.full((2, HIDDEN_SIZE), value)


@pytest.fixture
def make_stage(tmp_path: Path, dist_init, monkeypatch: pytest.MonkeyPatch):
    group = SimpleNamespace(world_size=2, is_first_rank=True, is_last_rank=False)
    bounds = [0, NUM_LAYERS]

    def make_layers(num_layers, build, prefix):
        layers = torch.nn.ModuleList(_Layer(index) for index in range(num_layers))
        return (*bounds, layers)

    monkeypatch.setattr(deepseek_v2, "get_pp_group", lambda: group)
    monkeypatch.setattr(parallel_state, "get_pp_group", lambda: group)
    monkeypatch.setattr(deepseek_v2, "make_layers", make_layers)
    DeepseekV3Config(
        architectures=["DeepseekV3ForCausalLM"],
        num_hidden_layers=NUM_LAYERS,
        hidden_size=HIDDEN_SIZE,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=512,
    ).save_pretrained(tmp_path)
    vllm_config = VllmConfig(
        model_config=ModelConfig(
            str(tmp_path), dtype="float32", skip_tokenizer_init=True
        ),
        compilation_config=CompilationConfig(mode=CompilationMode.NONE),
    )

    def make_stage(start: int, end: int, taps: tuple[int, ...]):
        bounds[:] = [start, end]
        group.world_size = 1 if end - start == NUM_LAYERS else 2
        group.is_first_rank = start == 0
        group.is_last_rank = end == NUM_LAYERS
        model = deepseek_v2.DeepseekV2Model(vllm_config=vllm_config, prefix="model")
        target = SimpleNamespace(
            model=model,
            make_empty_intermediate_tensors=model.make_empty_intermediate_tensors,
        )
        deepseek_v2.DeepseekV2ForCausalLM.set_aux_hidden_state_layers(target, taps)
        reserve_aux_intermediate_tensor_slots(target)
        return target

    with set_current_vllm_config(vllm_config):
        yield make_stage


# The stages meet before layer 3.
@pytest.mark.parametrize("taps", [(1, 3, 6), (1, 2), (4, 5, 6)])
def test_last_stage_returns_the_states_of_all_stages(make_stage, taps):
    positions = torch.arange(2)
    first = make_stage(0, SPLIT, taps)
    verify_supports_aux_hidden_states_over_pp(first, "eagle3")
    sent = first.model(None, positions, None, _stream_before(0))

    last = make_stage(SPLIT, NUM_LAYERS, taps)
    reserved = last.make_empty_intermediate_tensors(2, torch.float32, "cpu")
    assert set(sent.tensors) == set(reserved.tensors)
    _, aux_hidden_states = last.model(None, positions, sent)

    assert len(aux_hidden_states) == len(taps)
    for actual, tap in zip(aux_hidden_states, taps):
        torch.testing.assert_close(actual, _stream_before(tap))


def test_one_stage_returns_the_same_states(make_stage):
    taps = (1, 3, 6)
    target = make_stage(0, NUM_LAYERS, taps)
    _, aux_hidden_states = target.model(None, torch.arange(2), None, _stream_before(0))
    for actual, tap in zip(aux_hidden_states, taps):
        torch.testing.assert_close(actual, _stream_before(tap))


def test_model_runner_v1_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It has no transport for the states; said before any weight is loaded."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    sizes = dict(
        hidden_size=HIDDEN_SIZE,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=512,
    )
    for name, architecture, num_layers in (
        ("target", "LlamaForCausalLM", NUM_LAYERS),
        ("draft", "LlamaForCausalLMEagle3", 1),
    ):
        LlamaConfig(
            architectures=[architecture], num_hidden_layers=num_layers, **sizes
        ).save_pretrained(tmp_path / name)
    model_config = ModelConfig(str(tmp_path / "target"), skip_tokenizer_init=True)
    parallel_config = ParallelConfig(
        pipeline_parallel_size=2, distributed_executor_backend="mp"
    )
    speculative_config = SpeculativeConfig(
        method="eagle3",
        model=str(tmp_path / "draft"),
        num_speculative_tokens=3,
        target_model_config=model_config,
        target_parallel_config=parallel_config,
    )
    with pytest.raises(ValueError, match="needs Model Runner V2 and async scheduling"):
        VllmConfig(
            model_config=model_config,
            parallel_config=parallel_config,
            speculative_config=speculative_config,
        )
