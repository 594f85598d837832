# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that only requests too long for the drafter go on without drafts.

The drafter here supports 32 positions (YaRN, so that its RoPE is not extended), the
target 256. A long and a short request share the batch.
"""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from vllm.config import (
    CacheConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

from .utils import create_requests

pytestmark = pytest.mark.cpu_test

BLOCK_SIZE = 16
TARGET_LEN = 256
DRAFTER_LEN = 32
NUM_SPECULATIVE_TOKENS = 3
LONG, SHORT = 40, 8


def _save_config(path: Path, **kwargs) -> str:
    LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=128,
        **kwargs,
    ).save_pretrained(path)
    return str(path)


def _create_scheduler(tmp_path: Path, async_scheduling: bool) -> Scheduler:
    target = _save_config(
        tmp_path / "target",
        architectures=["LlamaForCausalLM"],
        num_hidden_layers=8,
        max_position_embeddings=TARGET_LEN,
    )
    draft = _save_config(
        tmp_path / "draft",
        architectures=["LlamaForCausalLMEagle3"],
        num_hidden_layers=1,
        max_position_embeddings=DRAFTER_LEN,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": DRAFTER_LEN // 2,
        },
    )
    model_config = ModelConfig(target, skip_tokenizer_init=True)
    vllm_config = VllmConfig(
        model_config=model_config,
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=False),
        scheduler_config=SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=TARGET_LEN,
            max_model_len=TARGET_LEN,
            is_encoder_decoder=False,
            async_scheduling=async_scheduling,
        ),
        speculative_config=SpeculativeConfig(
            method="eagle3",
            model=draft,
            num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
            target_model_config=model_config,
            target_parallel_config=ParallelConfig(),
        ),
    )
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    vllm_config.cache_config.num_gpu_blocks = 100
    register_all_kvcache_specs(vllm_config)
    scheduler_cls = AsyncScheduler if async_scheduling else Scheduler
    return scheduler_cls(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=100,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        block_size=BLOCK_SIZE,
        structured_output_manager=StructuredOutputManager(vllm_config),
    )


def _run_step(scheduler: Scheduler, output: SchedulerOutput) -> None:
    """Sample one token and draft for each request of `output`, as a worker does."""
    req_ids = list(output.num_scheduled_tokens)
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=req_ids,
            req_id_to_index={req_id: i for i, req_id in enumerate(req_ids)},
            sampled_token_ids=[[1] for _ in req_ids],
        ),
    )
    if not isinstance(scheduler, AsyncScheduler):
        drafts = [[2] * NUM_SPECULATIVE_TOKENS for _ in req_ids]
        scheduler.update_draft_token_ids(DraftTokenIds(req_ids, drafts))


@pytest.fixture(params=["0", "1"], ids=["v1", "v2"])
def scheduler(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", request.param)
    return _create_scheduler(tmp_path, async_scheduling=False)


def test_drafter_does_not_limit_the_target(scheduler: Scheduler):
    assert scheduler.max_model_len == TARGET_LEN
    assert scheduler.vllm_config.model_config.max_model_len == TARGET_LEN


def test_only_the_long_request_loses_its_drafts(scheduler: Scheduler):
    (long,) = create_requests(1, num_tokens=LONG, req_ids=["long"])
    (short,) = create_requests(1, num_tokens=SHORT, req_ids=["short"])
    scheduler.add_request(long)
    scheduler.add_request(short)
    _run_step(scheduler, scheduler.schedule())

    output = scheduler.schedule()

    assert set(output.num_scheduled_tokens) == {"long", "short"}
    assert set(output.scheduled_spec_decode_tokens) == {"short"}
    assert output.num_scheduled_tokens["long"] == 1
    assert output.num_scheduled_tokens["short"] == 1 + NUM_SPECULATIVE_TOKENS


def test_drafts_end_where_the_drafter_ends(scheduler: Scheduler):
    (request,) = create_requests(
        1, num_tokens=DRAFTER_LEN - 2 * NUM_SPECULATIVE_TOKENS, max_tokens=32
    )
    scheduler.add_request(request)
    drafted: dict[int, bool] = {}
    for _ in range(3 * NUM_SPECULATIVE_TOKENS):
        output = scheduler.schedule()
        drafted[request.num_tokens] = bool(output.scheduled_spec_decode_tokens)
        _run_step(scheduler, output)

    # The prompt has no drafts yet; the last drafts reach the last position.
    del drafted[request.num_prompt_tokens]
    last = DRAFTER_LEN - NUM_SPECULATIVE_TOKENS + 1
    assert min(drafted) <= last < max(drafted)
    assert drafted == {length: length <= last for length in drafted}


def test_async_scheduling_has_no_placeholders_for_the_long_request(tmp_path: Path):
    scheduler = _create_scheduler(tmp_path, async_scheduling=True)
    (long,) = create_requests(1, num_tokens=LONG, req_ids=["long"])
    (short,) = create_requests(1, num_tokens=SHORT, req_ids=["short"])
    scheduler.add_request(long)
    scheduler.add_request(short)

    # The second step is scheduled before the first one's output is there.
    scheduler.schedule()
    output = scheduler.schedule()

    assert set(output.num_scheduled_tokens) == {"long", "short"}
    assert set(output.scheduled_spec_decode_tokens) == {"short"}
