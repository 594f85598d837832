"""What vLLM's CPU worker lacks to run EAGLE-3 (fault F31), put in from outside.

vLLM loads this as a general plugin in the front-end, the engine core and every worker, before any
model runner is made. Nothing that the patches touch is replaced: proposer, rejection sampler,
models, scheduler and the runner's own logic are the release's. Two variables must be set before
vllm is imported, which `standin.engine.engine_environ` does: `CUDA_VISIBLE_DEVICES=""` (vLLM then
keeps Triton although it finds no driver) and `TRITON_INTERPRET=1` (its kernels then run on CPU
tensors).
"""

import contextlib
import dataclasses
import os
from typing import Any

import torch


class _Inert:
    """A stream or an event on a device that finishes each operation before the next starts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait(self, *args: Any) -> None:
        pass

    def wait_stream(self, *args: Any) -> None:
        pass

    def wait_event(self, *args: Any) -> None:
        pass

    def query(self) -> bool:
        return True


def _silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(first half) * second half of the last dimension."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def install() -> None:
    """Make the substitutions in this process; vLLM calls it once, a second call changes nothing."""
    import vllm
    from packaging.version import Version
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker import cpu_model_runner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    # From 0.18.0 on a CPU worker wants these two to be preloaded, for speed, and looks for their
    # names here; they need not be there.
    os.environ.setdefault("LD_PRELOAD", "libtcmalloc:libiomp")

    release = Version(vllm.__version__)
    if Version("0.28.0") <= release < Version("0.29.0"):
        # MLA attention on a CPU, but no prefill for it: see standin/prefill.py.
        from vllm import _custom_ops
        from vllm.model_executor.layers import utils
        from vllm.v1.attention.backends.mla.prefill import registry
        from vllm.v1.attention.ops import triton_merge_attn_states

        from standin.prefill import gather, merge

        chosen = registry.MLAPrefillBackendEnum.FLASH_ATTN
        registry.register_mla_prefill_backend(chosen, "standin.prefill.Prefill")
        _custom_ops.gather_and_maybe_dequant_cache = gather
        triton_merge_attn_states.merge_attn_states = merge

        # Linear layers throw their weights away once they are packed; then MLA wants kv_b_proj's.
        pack = utils.dispatch_cpu_unquantized_gemm
        utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: pack(layer, False)

    if release >= Version("0.20.0"):
        platform: Any = CpuPlatform
        platform_checks = platform.check_and_update_config

        def check_and_update_config(cls: Any, vllm_config: Any) -> None:
            parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
            executor = parallel.distributed_executor_backend
            asynchronous = scheduler.async_scheduling
            platform_checks(vllm_config)
            # Up to 0.22 a single worker gets a process of its own, for the sake of OpenMP's
            # settings, also where vLLM is told to stay in one, and there its errors stay.
            if executor == "uni" and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
                parallel.distributed_executor_backend = executor
            # The CPU platform turns asynchronous scheduling off, which a drafter needs whose target
            # is spread over pipeline stages. Then it stays as the release has decided.
            if release >= Version("0.30.0") and parallel.pipeline_parallel_size > 1:
                scheduler.async_scheduling = asynchronous

        platform.check_and_update_config = classmethod(check_and_update_config)

    if release >= Version("0.30.0"):
        # Its MLA backend verifies drafts as if they were a prompt, and takes the length of what is
        # there from the host, which under asynchronous scheduling still counts rejected drafts.
        from vllm.model_executor.layers.attention import mla_attention

        builder: Any = mla_attention.MLACommonMetadataBuilder
        build = builder.build

        def build_exactly(
            self: Any, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **rest: Any
        ) -> Any:
            lengths = common_attn_metadata.seq_lens
            common = dataclasses.replace(common_attn_metadata, seq_lens_cpu_upper_bound=lengths)
            return build(self, common_prefix_len, common, *args, **rest)

        builder.build = build_exactly

    if Version("0.20.0") <= release < Version("0.26.0"):
        # Without AVX-512 a MoE layer computes in plain torch, and makes a module for its activation
        # in each forward pass, where no configuration is set any more.
        from vllm.model_executor.layers.fused_moe import cpu_fused_moe
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation
        from vllm.v1.sample.ops import topk_topp_sampler

        cpu_fused_moe._CPU_MOE_ACT_FN[MoEActivation.SILU] = _silu_and_mul

        # The warm-up samples eight requests with top-k: for a kernel that wants to know the card,
        # and takes minutes in the interpreter.
        topk_topp_sampler.apply_top_k_top_p_triton = topk_topp_sampler.apply_top_k_top_p_pytorch

    if Version("0.23.0") <= release < Version("0.25.0"):
        # Its CPU version of one kernel does not know an argument that the caller has.
        from vllm.utils import cpu_triton_utils

        recovered = cpu_triton_utils._sample_recovered_tokens_kernel_impl
        cpu_triton_utils.sample_recovered_tokens_kernel = cpu_triton_utils._FuncWrapper(
            lambda *args, USE_FP64_GUMBEL=False, **rest: recovered(*args, **rest)
        )

    # The CPU runners of 0.19 to 0.30 put C++ kernels in the place of Triton's, one of which 0.23.0
    # calls with an argument that it does not take. Triton's own run in the interpreter.
    runner: Any = cpu_model_runner.CPUModelRunner
    runner._postprocess_triton = lambda self: None

    if release >= Version("0.22.1"):
        return  # its CPU worker runs EAGLE-3 by itself

    # Up to 0.19 the CPU runner's load_model loads the target only: no drafter. Up to 0.22.0 it does
    # not ask the target for auxiliary hidden states.
    runner.load_model = GPUModelRunner.load_model

    # The GPU runner's load_model reports the memory that the weights took; nobody counts it here.
    platform = CpuPlatform
    platform.get_current_memory_usage = classmethod(lambda cls, device=None: 0.0)

    if release >= Version("0.20.0"):
        return  # its CPU runner can draft

    # The GPU runner copies draft tokens on a side stream and waits for events. A CPU has neither.
    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = _Inert
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.current_stream = lambda device=None: _Inert()
    cuda.synchronize = lambda device=None: None
    module: Any = torch
    module.Event = _Inert

    # The CPU runner's own __init__ asserts that there is no speculative configuration, then makes
    # "device" and host buffers share memory. Drafting counts on two copies (it advances the
    # device's sequence lengths and the host's separately), so the GPU runner's is used as it is.
    def init(self: Any, vllm_config: Any, device: torch.device) -> None:
        GPUModelRunner.__init__(self, vllm_config, device)
        self.use_cuda_graph = False
        self.cascade_attn_enabled = False

    runner.__init__ = init

    if release >= Version("0.16.0"):
        return

    # The Kimi-K2.5 of 0.15 asks CUDA for its device, and its loader always looks for the fused
    # projections of MLA, which no CPU has here: without a q_lora_rank it loads the plain ones.
    cuda.current_device = lambda: torch.device("cpu")
    from vllm.model_executor.models.kimi_k25 import KimiK25ForConditionalGeneration

    kimi: Any = KimiK25ForConditionalGeneration
    load_weights = kimi.load_weights

    def load(self: Any, weights: Any) -> Any:
        text = self.config.text_config
        rank, text.q_lora_rank = text.q_lora_rank, None
        try:
            return load_weights(self, weights)
        finally:
            text.q_lora_rank = rank

    kimi.load_weights = load
