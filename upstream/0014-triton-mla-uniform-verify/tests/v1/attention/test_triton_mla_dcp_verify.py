# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that Triton MLA verifies draft tokens on the decode path under DCP.

Every rank keeps a part of each request's KV cache. A row of a verified block sees the
prefix and the block up to itself, of which the rank has to read what it keeps. The
kernel is replaced by a spy; no GPU is needed.
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
from vllm.distributed import parallel_state
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends.mla import triton_mla
from vllm.v1.attention.ops.dcp import MLADCPManager
from vllm.v1.kv_cache_interface import MLAAttentionSpec

pytestmark = pytest.mark.cpu_test

NUM_SPECULATIVE_TOKENS = 3
QUERY_LEN = 1 + NUM_SPECULATIVE_TOKENS
DCP_WORLD_SIZE = 4
NUM_HEADS = 4
KV_LORA_RANK = 512
QK_ROPE_HEAD_DIM = 64
QK_NOPE_HEAD_DIM = V_HEAD_DIM = 128
HEAD_SIZE = KV_LORA_RANK + QK_ROPE_HEAD_DIM
BLOCK_SIZE = 16
# With and without a committed prefix; on some ranks the shortest keeps nothing.
SEQ_LENS = [QUERY_LEN, QUERY_LEN + 1, 41, 200]


def _make_vllm_config(path: Path, interleave_size: int) -> VllmConfig:
    DeepseekV3Config(
        architectures=["DeepseekV3ForCausalLM"],
        num_hidden_layers=2,
        hidden_size=64,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        max_position_embeddings=512,
    ).save_pretrained(path)
    vllm_config = VllmConfig(
        model_config=ModelConfig(str(path), dtype="bfloat16", skip_tokenizer_init=True),
        cache_config=CacheConfig(block_size=BLOCK_SIZE),
        scheduler_config=SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=512,
            max_model_len=512,
            is_encoder_decoder=False,
        ),
        parallel_config=ParallelConfig(),
        speculative_config=SpeculativeConfig(
            method="ngram", num_speculative_tokens=NUM_SPECULATIVE_TOKENS
        ),
    )
    # Assigned here, because the constructor wants as many devices.
    vllm_config.parallel_config.decode_context_parallel_size = DCP_WORLD_SIZE
    vllm_config.parallel_config.cp_kv_cache_interleave_size = interleave_size
    dcp_manager = object.__new__(MLADCPManager)
    dcp_manager.init_kv_gather = lambda *args: None
    vllm_config.compilation_config.static_forward_context["layer"] = SimpleNamespace(
        q_lora_rank=None,
        kv_lora_rank=KV_LORA_RANK,
        qk_nope_head_dim=QK_NOPE_HEAD_DIM,
        qk_rope_head_dim=QK_ROPE_HEAD_DIM,
        v_head_dim=V_HEAD_DIM,
        prefill_backend=SimpleNamespace(clone=lambda: None),
        dcp_manager=dcp_manager,
    )
    return vllm_config


def _make_rank(
    vllm_config: VllmConfig, rank: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[triton_mla.TritonMLAMetadataBuilder, triton_mla.TritonMLAImpl]:
    monkeypatch.setattr(
        parallel_state,
        "_DCP",
        SimpleNamespace(world_size=DCP_WORLD_SIZE, rank_in_group=rank),
    )
    spec = MLAAttentionSpec(
        block_size=BLOCK_SIZE,
        num_kv_heads=1,
        head_size=HEAD_SIZE,
        dtype=torch.bfloat16,
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
    return builder, impl


def _kept(seq_len: int, rank: int, interleave_size: int) -> int:
    """How many of the first `seq_len` positions the rank keeps."""
    return sum(
        position // interleave_size % DCP_WORLD_SIZE == rank
        for position in range(seq_len)
    )


def _make_batch(rank: int, interleave_size: int) -> CommonAttentionMetadata:
    batch = create_common_attn_metadata(
        BatchSpec(seq_lens=SEQ_LENS, query_lens=[QUERY_LEN] * len(SEQ_LENS)),
        BLOCK_SIZE,
        torch.device("cpu"),
    )
    local = [_kept(seq_len, rank, interleave_size) for seq_len in SEQ_LENS]
    batch.dcp_local_seq_lens = torch.tensor(local, dtype=torch.int32)
    return batch


def test_declared_batches_can_be_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The runner captures 1 + num_speculative_tokens tokens a request wherever the
    builder declares UNIFORM_BATCH."""
    vllm_config = _make_vllm_config(tmp_path, interleave_size=1)
    builder, _ = _make_rank(vllm_config, 0, monkeypatch)
    support = builder.get_cudagraph_support(vllm_config, builder.kv_cache_spec)
    assert support == AttentionCGSupport.UNIFORM_BATCH

    assert builder.reorder_batch_threshold == QUERY_LEN
    metadata = builder.build_for_cudagraph_capture(_make_batch(0, interleave_size=1))
    assert (metadata.num_decodes, metadata.num_prefills) == (len(SEQ_LENS), 0)


@pytest.mark.parametrize("interleave_size", [1, BLOCK_SIZE])
@pytest.mark.parametrize("rank", range(DCP_WORLD_SIZE))
def test_rows_see_what_the_rank_keeps_of_their_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, interleave_size: int
):
    vllm_config = _make_vllm_config(tmp_path, interleave_size)
    builder, impl = _make_rank(vllm_config, rank, monkeypatch)
    assert builder.reorder_batch_threshold == QUERY_LEN
    submitted: list[int] = []

    def spy(q, kv_cache, kv_c_cache, o, lse, block_table, b_seq_len, *args, **kwargs):
        assert len(b_seq_len) == len(block_table) == len(q)
        submitted.extend(b_seq_len.tolist())

    monkeypatch.setattr(triton_mla, "decode_attention_fwd", spy)
    metadata = builder.build(0, _make_batch(rank, interleave_size))
    assert metadata.num_decodes == len(SEQ_LENS)
    impl.forward_mqa(
        torch.zeros(
            len(SEQ_LENS) * QUERY_LEN, NUM_HEADS, HEAD_SIZE, dtype=torch.bfloat16
        ),
        torch.zeros(4, BLOCK_SIZE, HEAD_SIZE, dtype=torch.bfloat16),
        metadata,
        SimpleNamespace(_k_scale=torch.ones(1)),
    )

    assert submitted == [
        _kept(seq_len - QUERY_LEN + 1 + row, rank, interleave_size)
        for seq_len in SEQ_LENS
        for row in range(QUERY_LEN)
    ]
