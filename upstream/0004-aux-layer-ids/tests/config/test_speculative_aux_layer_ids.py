# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that SpeculativeConfig resolves the layers an EAGLE-3 drafter reads.

Drafters keep `eagle_aux_hidden_state_layer_ids` at the top level of config.json
or in `eagle_config`, and name either the layers whose inputs they read, as vLLM
does, or those whose outputs they read. Whichever it is, the model runner must see
the former.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import (
    get_eagle3_aux_layers_from_config,
)

pytestmark = pytest.mark.cpu_test

HIDDEN_SIZE = 64
NUM_TARGET_LAYERS = 8
KEY = "eagle_aux_hidden_state_layer_ids"


def _save_config(path: Path, **kwargs) -> str:
    LlamaConfig(
        hidden_size=HIDDEN_SIZE,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=512,
        **kwargs,
    ).save_pretrained(path)
    return str(path)


def _make_speculative_config(
    tmp_path: Path, num_fc_states: int = 3, **draft_kwargs
) -> SpeculativeConfig:
    target = _save_config(
        tmp_path / "target",
        architectures=["LlamaForCausalLM"],
        num_hidden_layers=NUM_TARGET_LAYERS,
    )
    draft = _save_config(
        tmp_path / "draft",
        architectures=["LlamaForCausalLMEagle3"],
        num_hidden_layers=1,
        **draft_kwargs,
    )
    fc = torch.zeros(HIDDEN_SIZE, num_fc_states * HIDDEN_SIZE)
    save_file({"fc.weight": fc}, tmp_path / "draft" / "model.safetensors")
    return SpeculativeConfig(
        method="eagle3",
        model=draft,
        num_speculative_tokens=3,
        target_model_config=ModelConfig(target, skip_tokenizer_init=True),
        target_parallel_config=ParallelConfig(),
    )


@pytest.mark.parametrize(
    ("draft_kwargs", "expected"),
    [
        # The ids of layer inputs, in either place; the top level has precedence.
        ({"eagle_config": {KEY: [2, 4, 5]}}, (2, 4, 5)),
        ({KEY: [2, 4, 5], "eagle_config": {KEY: [3, 4, 5]}}, (2, 4, 5)),
        # The ids of layer outputs, which start with 1.
        ({"eagle_config": {KEY: [1, 4, 6]}}, (2, 5, 7)),
        # At the top level only if they are the default of those who count outputs.
        ({KEY: [1, 3, 4]}, (2, 4, 5)),
        ({KEY: [1, 4, 6]}, (1, 4, 6)),
        # No ids: the target has a default.
        ({}, None),
    ],
)
def test_layer_ids_are_those_of_layer_inputs(
    tmp_path: Path, draft_kwargs: dict, expected: tuple[int, ...] | None
):
    speculative_config = _make_speculative_config(tmp_path, **draft_kwargs)
    assert get_eagle3_aux_layers_from_config(speculative_config) == expected


def test_fc_width_follows_the_resolved_ids(tmp_path: Path):
    """The drafter's fc is built from num_aux_hidden_states."""
    speculative_config = _make_speculative_config(
        tmp_path,
        num_fc_states=4,
        **{KEY: [2, 4, 5, 7], "eagle_config": {KEY: [2, 4, 5]}},
    )
    draft_hf_config = speculative_config.draft_model_config.hf_config
    assert draft_hf_config.num_aux_hidden_states == 4


@pytest.mark.parametrize(
    "layer_ids",
    [[2, 4, NUM_TARGET_LAYERS + 1], [5, 4, 2], [2, 2, 4], [-1, 4, 5], ["2", 4, 5]],
)
def test_layer_ids_the_target_cannot_serve_are_rejected(
    tmp_path: Path, layer_ids: list
):
    with pytest.raises(ValueError, match="distinct integers in ascending order"):
        _make_speculative_config(tmp_path, eagle_config={KEY: layer_ids})


def test_layer_ids_that_do_not_fit_fc_are_rejected(tmp_path: Path):
    """Found from the safetensors header, before any weight is loaded."""
    with pytest.raises(ValueError, match="takes 256 inputs, but 3 auxiliary layers"):
        _make_speculative_config(
            tmp_path, num_fc_states=4, eagle_config={KEY: [2, 4, 5]}
        )
