# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that an EAGLE-3 checkpoint that does not fit its config is refused.

Served, it would draft tokens that are never accepted, without a word.
"""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from vllm.config import (
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

pytestmark = pytest.mark.cpu_test

HIDDEN_SIZE = 64
INTERMEDIATE_SIZE = 128
VOCAB_SIZE = 128
DRAFT_VOCAB_SIZE = 32


def _save_config(path: Path, architecture: str, num_layers: int, **kwargs) -> str:
    LlamaConfig(
        architectures=[architecture],
        num_hidden_layers=num_layers,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=512,
        **kwargs,
    ).save_pretrained(path)
    return str(path)


@pytest.fixture
def draft_model(tmp_path: Path, dist_init):
    """A drafter with a vocabulary of its own, so that it needs head and mapping."""
    model_config = ModelConfig(
        _save_config(tmp_path / "target", "LlamaForCausalLM", 8),
        dtype="float32",
        skip_tokenizer_init=True,
    )
    vllm_config = VllmConfig(
        model_config=model_config,
        speculative_config=SpeculativeConfig(
            method="eagle3",
            model=_save_config(
                tmp_path / "draft",
                "LlamaForCausalLMEagle3",
                1,
                draft_vocab_size=DRAFT_VOCAB_SIZE,
            ),
            num_speculative_tokens=3,
            target_model_config=model_config,
            target_parallel_config=ParallelConfig(),
        ),
    )
    with set_current_vllm_config(vllm_config):
        yield Eagle3LlamaForCausalLM(vllm_config=vllm_config)


def _make_checkpoint() -> dict[str, torch.Tensor]:
    """The tensors of such a drafter, as trainers save them."""
    square = (HIDDEN_SIZE, HIDDEN_SIZE)
    shapes = {
        "midlayer.self_attn.q_proj.weight": (HIDDEN_SIZE, 2 * HIDDEN_SIZE),
        "midlayer.self_attn.k_proj.weight": (HIDDEN_SIZE, 2 * HIDDEN_SIZE),
        "midlayer.self_attn.v_proj.weight": (HIDDEN_SIZE, 2 * HIDDEN_SIZE),
        "midlayer.self_attn.o_proj.weight": square,
        "midlayer.mlp.gate_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "midlayer.mlp.up_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "midlayer.mlp.down_proj.weight": (HIDDEN_SIZE, INTERMEDIATE_SIZE),
        "midlayer.hidden_norm.weight": (HIDDEN_SIZE,),
        "midlayer.input_layernorm.weight": (HIDDEN_SIZE,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN_SIZE,),
        "fc.weight": (HIDDEN_SIZE, 3 * HIDDEN_SIZE),
        "norm.weight": (HIDDEN_SIZE,),
        "lm_head.weight": (DRAFT_VOCAB_SIZE, HIDDEN_SIZE),
    }
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    tensors["d2t"] = torch.arange(DRAFT_VOCAB_SIZE)
    tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    return tensors


def test_complete_checkpoint_loads(draft_model: Eagle3LlamaForCausalLM):
    """embed_tokens is taken from the target."""
    checkpoint = _make_checkpoint()
    draft_model.load_weights(checkpoint.items())
    lm_head = draft_model.lm_head.weight[:DRAFT_VOCAB_SIZE]  # the rest is padding
    assert torch.equal(lm_head, checkpoint["lm_head.weight"])
    assert torch.equal(draft_model.draft_id_to_target_id, checkpoint["d2t"])


@pytest.mark.parametrize(
    "name", ["midlayer.mlp.up_proj.weight", "fc.weight", "lm_head.weight", "d2t"]
)
def test_missing_tensor_is_named(draft_model: Eagle3LlamaForCausalLM, name: str):
    checkpoint = _make_checkpoint()
    del checkpoint[name]
    with pytest.raises(ValueError, match=f"missing tensors: {name}"):
        draft_model.load_weights(checkpoint.items())


def test_unexpected_tensor_is_named(draft_model: Eagle3LlamaForCausalLM):
    """fc_norm is not set in the config."""
    checkpoint = _make_checkpoint()
    checkpoint["fc_norm.0.weight"] = torch.ones(HIDDEN_SIZE)
    with pytest.raises(ValueError, match=r"unexpected tensors: fc_norm\.0\.weight"):
        draft_model.load_weights(checkpoint.items())


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("lm_head.weight", (VOCAB_SIZE, HIDDEN_SIZE), "32 for draft_vocab_size"),
        ("fc.weight", (HIDDEN_SIZE, 4 * HIDDEN_SIZE), "192 for 3 hidden states"),
    ],
)
def test_tensor_of_the_wrong_size_is_named(
    draft_model: Eagle3LlamaForCausalLM, name: str, shape: tuple, wanted: str
):
    checkpoint = _make_checkpoint()
    checkpoint[name] = torch.randn(shape)
    with pytest.raises(ValueError, match=rf"{name} has shape .*, not {wanted}"):
        draft_model.load_weights(checkpoint.items())


def test_mapping_out_of_the_vocabulary_is_refused(draft_model: Eagle3LlamaForCausalLM):
    checkpoint = _make_checkpoint()
    checkpoint["d2t"] += VOCAB_SIZE
    with pytest.raises(ValueError, match="d2t leads out of the vocabulary"):
        draft_model.load_weights(checkpoint.items())
