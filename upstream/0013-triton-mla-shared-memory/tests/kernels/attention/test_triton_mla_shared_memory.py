# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that the Triton MLA decode kernels fit into a block's shared memory.

The launches of `decode_attention_fwd` are compiled for a given compute capability
instead of run, so no GPU is needed.
"""

from types import SimpleNamespace

import pytest
import torch

import vllm.v1.attention.ops.triton_decode_attention as ops
from vllm.triton_utils import HAS_TRITON, triton

pytestmark = [
    pytest.mark.cpu_test,
    pytest.mark.skip_global_cleanup,
    pytest.mark.skipif(not HAS_TRITON, reason="compiles Triton kernels"),
]

KV_LORA_RANK = 512
HEAD_SIZE = KV_LORA_RANK + 64
PAGE_SIZE = 16

# Opt-in shared memory per block, in bytes, by compute capability.
SHARED_MEMORY = {89: 101376, 90: 232448, 100: 232448, 120: 101376}


@pytest.fixture
def compile_decode(monkeypatch: pytest.MonkeyPatch):
    """Compile one decode for a capability; returns the kernels' metadata by name."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    def compile_decode(capability: int, kv_cache_dtype: torch.dtype, num_heads: int):
        target = GPUTarget("cuda", capability, 32)
        driver = SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: capability,
            get_current_stream=lambda device=None: 0,
        )
        monkeypatch.setattr(triton.runtime.driver, "_active", driver)
        monkeypatch.setattr(
            ops, "current_platform", SimpleNamespace(is_cuda=lambda: True)
        )
        monkeypatch.setattr(
            ops,
            "get_max_shared_memory_bytes",
            lambda gpu: SHARED_MEMORY[capability],
            raising=False,
        )
        compiled = {}
        run = JITFunction.run

        def compile_only(self, *args, grid, warmup, **kwargs):
            kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
            compiled[self.fn.__name__] = kernel.metadata
            return kernel

        with monkeypatch.context() as patch:
            patch.setattr(JITFunction, "run", compile_only)
            num_kv_splits = 4
            kv_cache = torch.zeros(4, PAGE_SIZE, 1, HEAD_SIZE).to(kv_cache_dtype)
            ops.decode_attention_fwd(
                torch.zeros(1, num_heads, HEAD_SIZE, dtype=torch.bfloat16),
                kv_cache,
                kv_cache[..., :KV_LORA_RANK],
                torch.zeros(1, num_heads, KV_LORA_RANK, dtype=torch.bfloat16),
                torch.zeros(1, num_heads, dtype=torch.bfloat16),
                torch.zeros(1, 4, dtype=torch.int32),
                torch.tensor([40], dtype=torch.int32),
                torch.zeros(1, num_heads, num_kv_splits, KV_LORA_RANK + 1),
                num_kv_splits,
                1.0,
                PAGE_SIZE,
                k_scale=torch.ones(1),
                v_scale=torch.ones(1),
                is_mla=True,
            )
        return compiled

    return compile_decode


@pytest.mark.parametrize("capability", list(SHARED_MEMORY))
@pytest.mark.parametrize("kv_cache_dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("num_heads", [8, 64])
def test_decode_fits_shared_memory(
    compile_decode, capability: int, kv_cache_dtype: torch.dtype, num_heads: int
):
    compiled = compile_decode(capability, kv_cache_dtype, num_heads)

    assert set(compiled) == {"_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"}
    for name, metadata in compiled.items():
        assert metadata.target.arch == capability
        assert metadata.shared <= SHARED_MEMORY[capability], name


@pytest.mark.parametrize("kv_cache_dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_larger_shared_memory_keeps_two_stages(compile_decode, kv_cache_dtype):
    compiled = compile_decode(100, kv_cache_dtype, num_heads=64)
    assert compiled["_fwd_grouped_kernel_stage1"].num_stages == 2
