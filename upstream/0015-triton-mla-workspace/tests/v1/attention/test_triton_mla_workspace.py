# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that the Triton MLA decode scratch is bounded by what a batch can use.

The workspace lies on the meta device and the kernel is replaced by a spy, so that
neither memory nor a GPU is needed.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import DeepseekV3Config

from tests.v1.attention.utils import BatchSpec, create_common_attn_metadata
from vllm.config import (
    CacheConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.v1.attention.backends.mla import triton_mla
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.worker.workspace import (
    current_workspace_manager,
    init_workspace_manager,
    reset_workspace_manager,
)

pytestmark = pytest.mark.cpu_test

NUM_SPECULATIVE_TOKENS = 3
MAX_NUM_SEQS = 1024
MAX_MODEL_LEN = 262144
SM_COUNT = 188
NUM_HEADS = 8
KV_LORA_RANK = 512
QK_ROPE_HEAD_DIM = 64
QK_NOPE_HEAD_DIM = V_HEAD_DIM = 128
HEAD_SIZE = KV_LORA_RANK + QK_ROPE_HEAD_DIM
BLOCK_SIZE = 16


@pytest.fixture
def reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Builder and implementation of a layer, after the workspace was reserved."""
    DeepseekV3Config(
        architectures=["DeepseekV3ForCausalLM"],
        num_hidden_layers=2,
        hidden_size=64,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        max_position_embeddings=MAX_MODEL_LEN,
    ).save_pretrained(tmp_path)
    vllm_config = VllmConfig(
        model_config=ModelConfig(
            str(tmp_path), dtype="bfloat16", skip_tokenizer_init=True
        ),
        cache_config=CacheConfig(block_size=BLOCK_SIZE),
        scheduler_config=SchedulerConfig(
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=8192,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
        ),
        parallel_config=ParallelConfig(),
        speculative_config=SpeculativeConfig(
            method="ngram", num_speculative_tokens=NUM_SPECULATIVE_TOKENS
        ),
    )
    vllm_config.compilation_config.static_forward_context["layer"] = SimpleNamespace(
        q_lora_rank=None,
        kv_lora_rank=KV_LORA_RANK,
        qk_nope_head_dim=QK_NOPE_HEAD_DIM,
        qk_rope_head_dim=QK_ROPE_HEAD_DIM,
        v_head_dim=V_HEAD_DIM,
        prefill_backend=SimpleNamespace(clone=lambda: None),
    )
    monkeypatch.setattr(
        triton_mla.current_platform, "num_compute_units", lambda device_id=0: SM_COUNT
    )
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    init_workspace_manager(torch.device("meta"))
    spec = MLAAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=HEAD_SIZE, dtype=torch.bfloat16
    )
    with set_current_vllm_config(vllm_config):
        builder = triton_mla.TritonMLAMetadataBuilder(
            spec, ["layer"], vllm_config, torch.device("cpu")
        )
        impl = triton_mla.TritonMLAImpl(
            num_heads=NUM_HEADS,
            head_size=HEAD_SIZE,
            scale=HEAD_SIZE**-0.5,
            num_kv_heads=1,
            alibi_slopes=None,
            sliding_window=None,
            kv_cache_dtype="auto",
            logits_soft_cap=None,
            attn_type="decoder",
            kv_sharing_target_layer_name=None,
            q_lora_rank=None,
            kv_lora_rank=KV_LORA_RANK,
            qk_nope_head_dim=QK_NOPE_HEAD_DIM,
            qk_rope_head_dim=QK_ROPE_HEAD_DIM,
            qk_head_dim=QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM,
            v_head_dim=V_HEAD_DIM,
            kv_b_proj=None,
        )
    yield builder, impl
    reset_workspace_manager()


def _num_kv_splits(reserved, num_reqs: int, query_len: int, seq_len: int, monkeypatch):
    """KV splits of a decode batch; the locked workspace has to be large enough."""
    builder, impl = reserved
    splits: list[int] = []

    def spy(q, k, v, o, lse, blocks, seq_lens, attn_logits, num_kv_splits, *args, **kw):
        assert attn_logits.shape == (len(q), NUM_HEADS, num_kv_splits, KV_LORA_RANK + 1)
        splits.append(num_kv_splits)

    monkeypatch.setattr(triton_mla, "decode_attention_fwd", spy)
    batch = create_common_attn_metadata(
        BatchSpec(seq_lens=[64] * num_reqs, query_lens=[query_len] * num_reqs),
        BLOCK_SIZE,
        torch.device("cpu"),
    )
    # An upper bound, as while a graph is captured.
    batch.max_seq_len = seq_len
    metadata = builder.build(0, batch)
    assert metadata.num_decodes == num_reqs
    impl.forward_mqa(
        torch.zeros(num_reqs * query_len, NUM_HEADS, HEAD_SIZE, dtype=torch.bfloat16),
        torch.zeros(4, BLOCK_SIZE, HEAD_SIZE, dtype=torch.bfloat16),
        metadata,
        SimpleNamespace(_k_scale=torch.ones(1)),
    )
    return splits[0]


def _workspace_bytes() -> int:
    manager = current_workspace_manager()
    return sum(map(manager._workspace_size_bytes, manager._current_workspaces))


def test_reservation_does_not_grow_with_rows_times_splits(reserved):
    """1024 requests of 4 tokens with 376 splits each would be 25 GB."""
    rows = MAX_NUM_SEQS * (1 + NUM_SPECULATIVE_TOKENS)
    unsplit = rows * NUM_HEADS * (KV_LORA_RANK + 1) * 4
    assert unsplit <= _workspace_bytes() <= 2 * unsplit


@pytest.mark.parametrize("query_len", [1, 1 + NUM_SPECULATIVE_TOKENS])
def test_every_batch_fits_the_reservation(reserved, query_len: int, monkeypatch):
    reserved_bytes = _workspace_bytes()
    current_workspace_manager().lock()
    for num_reqs in (1, 2, 7, 16, 33, 128, 600, MAX_NUM_SEQS):
        splits = _num_kv_splits(
            reserved, num_reqs, query_len, MAX_MODEL_LEN, monkeypatch
        )
        assert splits >= 1
    assert _workspace_bytes() == reserved_bytes


@pytest.mark.parametrize(
    ("num_reqs", "query_len", "seq_len", "expected"),
    [
        # Few rows: by the length alone, at most two splits per SM.
        (1, 1, 64, 1),
        (1, 1, 4096, 8),
        (1, 1, MAX_MODEL_LEN, 2 * SM_COUNT),
        (4, 4, 65536, 128),
        # Rows enough for every SM: no split is worth its scratch.
        (MAX_NUM_SEQS, 4, MAX_MODEL_LEN, 1),
    ],
)
def test_only_large_batches_are_split_less(
    reserved, num_reqs: int, query_len: int, seq_len: int, expected: int, monkeypatch
):
    splits = _num_kv_splits(reserved, num_reqs, query_len, seq_len, monkeypatch)
    assert splits == expected
