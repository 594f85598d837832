"""Questions to one release's Triton MLA decode code, answered on a machine without a GPU.

Runs in an engine environment with the release's own `vllm` on PYTHONPATH and prints one JSON
document: a list of answers to the list of questions in argv[1]. Every question is a function
below and its arguments.

What is replaced, everything else is the release's own code:

* the platform object answers for a card (capability, number of SMs, shared memory of a block);
* Triton's driver names that card as its target; a kernel launch then compiles for it, with the
  arguments and options of that launch, and does not run. Under TRITON_INTERPRET=1 launches run on
  CPU tensors instead;
* builder and implementation are made by their own constructors, with a plain object that has the
  fields of the configuration that they read, and a layer with the dimensions of Kimi-K2.5. The
  process group for decode context parallelism is its size and this rank;
* the workspace lies on torch's "meta" device: sizes without memory.
"""

import dataclasses
import inspect
import json
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

HEADS, LATENT, ROPE, NOPE, VALUE = 64, 512, 64, 128, 128  # Kimi-K2.5
PAGE = 16


@dataclasses.dataclass(frozen=True)
class Card:
    """What vLLM and Triton ask about a GPU."""

    major: int
    minor: int
    sms: int
    shared: int  # bytes that one block may have at most (opt-in)


CARDS = {
    "RTX PRO 6000": Card(12, 0, 188, 101376),
    "B200": Card(10, 0, 148, 232448),
    "L40S": Card(8, 9, 142, 101376),
}
INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"


def be(card: Card) -> None:
    """Let vLLM and Triton believe that `card` is there."""
    import vllm.platforms
    from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

    class Answers(Platform):  # type: ignore[misc]
        # CUDA only after the imports: with it they want the compiled extensions.
        _enum = PlatformEnum.UNSPECIFIED
        device_name = device_type = "cuda"
        dispatch_key = "CUDA"

    if type(vllm.platforms._current_platform).__name__ != "Answers":
        vllm.platforms._current_platform = Answers()
    triton_mla()
    answers = type(vllm.platforms._current_platform)
    answers._enum = PlatformEnum.CUDA
    answers.get_device_capability = classmethod(
        lambda cls, device_id=0: DeviceCapability(card.major, card.minor)
    )
    answers.get_device_name = classmethod(lambda cls, device_id=0: "a card")
    answers.num_compute_units = classmethod(lambda cls, device_id=0: card.sms)

    import vllm._custom_ops as ops
    from vllm.utils.mem_utils import get_max_shared_memory_bytes

    ops.get_max_shared_memory_per_block_device_attribute = lambda gpu: card.shared
    get_max_shared_memory_bytes.cache_clear()
    torch.accelerator.empty_cache = lambda: None


COMPILED: list[dict[str, Any]] = []


def compile_instead_of_launch(card: Card) -> None:
    """Every launch of a Triton kernel compiles it for `card` and is noted in COMPILED."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    target = GPUTarget("cuda", 10 * card.major + card.minor, 32)
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target,
            # Triton keeps what it compiled by device, not by target.
            get_current_device=lambda: target.arch,
            get_current_stream=lambda device=None: 0,
        )
    )
    if not hasattr(JITFunction, "compiling"):
        JITFunction.compiling = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = self.compiling(*args, grid=grid, warmup=True, **kwargs)
        COMPILED.append(
            {
                "kernel": self.fn.__name__,
                "shared": kernel.metadata.shared,
                "num_stages": kernel.metadata.num_stages,
                "num_warps": kernel.metadata.num_warps,
                "capability": kernel.metadata.target.arch,
                "block_n": kwargs.get("BLOCK_N"),
                "splits": kwargs.get("NUM_KV_SPLITS"),
            }
        )
        return kernel

    JITFunction.run = run


def triton_mla() -> Any:
    """The release's module of the backend."""
    import vllm.v1.attention.backends.mla.triton_mla as module

    return module


def configuration(
    max_num_seqs: int, max_model_len: int, drafts: int, tp: int, dcp: int, interleave: int
) -> Any:
    """What the builder reads of a VllmConfig: Kimi-K2.5 with `drafts` draft tokens."""
    model = SimpleNamespace(
        max_model_len=max_model_len,
        dtype=torch.bfloat16,
        get_num_attention_heads=lambda parallel: HEADS // tp,
        get_head_size=lambda: LATENT + ROPE,
        hf_text_config=SimpleNamespace(
            q_lora_rank=1536,
            kv_lora_rank=LATENT,
            qk_nope_head_dim=NOPE,
            qk_rope_head_dim=ROPE,
            v_head_dim=VALUE,
        ),
    )
    speculative = SimpleNamespace(
        num_speculative_tokens=drafts, method="eagle3", parallel_drafting=False
    )
    return SimpleNamespace(
        model_config=model,
        scheduler_config=SimpleNamespace(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=8192, enable_chunked_prefill=True
        ),
        cache_config=SimpleNamespace(block_size=PAGE, cache_dtype="auto"),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tp,
            decode_context_parallel_size=dcp,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=interleave,
            dcp_kv_cache_interleave_size=interleave,
        ),
        speculative_config=speculative if drafts else None,
        num_speculative_tokens=drafts,
        use_v2_model_runner=True,
        compilation_config=SimpleNamespace(static_forward_context={}),
        attention_config=SimpleNamespace(
            use_prefill_query_quantization=False,
            disable_flashinfer_prefill=True,
            use_cudnn_prefill=False,
            use_trtllm_ragged_deepseek_prefill=False,
        ),
    )


def made(cls: Any, **fields: Any) -> Any:
    """An instance of dataclass `cls` from those of `fields` that it has in this release."""
    known = {field.name for field in dataclasses.fields(cls) if field.init}
    return cls(**{name: value for name, value in fields.items() if name in known})


def in_group(dcp: int, rank: int) -> None:
    """Make this process rank `rank` of `dcp`, as far as anybody asks."""
    import vllm.distributed.parallel_state as state

    state._DCP = SimpleNamespace(world_size=dcp, rank_in_group=rank)


def current(config: Any) -> None:
    """Make `config` what vLLM's `get_current_vllm_config` returns."""
    from vllm.config import vllm as module

    module._current_vllm_config = config


def make_builder(config: Any, rank: int = 0, device: str = "cpu") -> Any:
    """The release's builder for one MLA layer."""
    import vllm.model_executor.layers.attention.mla_attention as attention
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    dcp = config.parallel_config.decode_context_parallel_size
    in_group(dcp, rank)
    current(config)
    layer = SimpleNamespace(
        q_lora_rank=1536,
        kv_lora_rank=LATENT,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=VALUE,
        prefill_backend=SimpleNamespace(clone=lambda: None),
    )
    if dcp > 1 and hasattr(attention, "MLADCPManager"):
        manager = attention.MLADCPManager.__new__(attention.MLADCPManager)
        manager.init_kv_gather = lambda workspace, size: None
        layer.dcp_manager = manager
    config.compilation_config.static_forward_context["layer"] = layer
    spec = made(
        MLAAttentionSpec,
        block_size=PAGE,
        num_kv_heads=1,
        head_size=LATENT + ROPE,
        dtype=torch.bfloat16,
    )
    builder = triton_mla().TritonMLABackend.get_builder_cls()
    return builder(spec, ["layer"], config, torch.device(device))


def batch(
    query_lens: list[int],
    seq_lens: list[int],
    config: Any,
    rank: int,
    pages: torch.Tensor,
    max_seq_len: int = 0,
) -> Any:
    """CommonAttentionMetadata of requests with these lengths; `pages`: one row a request.

    `max_seq_len` may promise longer ones, as it does while a graph is captured.
    """
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    return made(
        CommonAttentionMetadata,
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        _seq_lens_cpu=lengths,
        _num_computed_tokens_cpu=lengths - torch.tensor(query_lens, dtype=torch.int32),
        num_reqs=len(query_lens),
        num_actual_tokens=sum(query_lens),
        max_query_len=max(query_lens),
        max_seq_len=max(max_seq_len, *seq_lens),
        block_table_tensor=pages,
        slot_mapping=torch.zeros(sum(query_lens), dtype=torch.int64),
        dcp_local_seq_lens=torch.tensor(
            [held(config.parallel_config, length, rank) for length in seq_lens], dtype=torch.int32
        ),
    )


def owner(parallel: Any, position: int) -> tuple[int, int]:
    """The rank that keeps `position` of a request, and its place there.

    As ParallelConfig.cp_kv_cache_interleave_size says: interleave tokens on rank i, the next ones
    on rank i + 1.
    """
    world, interleave = (
        parallel.decode_context_parallel_size,
        parallel.cp_kv_cache_interleave_size,
    )
    chunk, within = divmod(position, interleave)
    return chunk % world, chunk // world * interleave + within


def held(parallel: Any, length: int, rank: int) -> int:
    """How many of the first `length` positions `rank` keeps; counted, not computed."""
    if parallel.decode_context_parallel_size == 1:
        return length
    return sum(owner(parallel, position)[0] == rank for position in range(length))


def make_impl(config: Any, rank: int, cache: str) -> Any:
    """The release's implementation of one layer, for `num_heads` of this rank's share."""
    import vllm.model_executor.layers.attention.mla_attention as attention

    parallel = config.parallel_config
    in_group(parallel.decode_context_parallel_size, rank)
    current(config)
    if getattr(attention, "flash_attn_varlen_func", 0) is None:  # for prefills, compiled
        attention.flash_attn_varlen_func = lambda: None
        attention.get_flash_attn_version = lambda **head: None
    return triton_mla().TritonMLAImpl(
        config.model_config.get_num_attention_heads(parallel),
        LATENT + ROPE,
        (NOPE + ROPE) ** -0.5,
        1,
        None,
        None,
        cache,
        None,
        "decoder",
        None,
        q_lora_rank=1536,
        kv_lora_rank=LATENT,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        qk_head_dim=NOPE + ROPE,
        v_head_dim=VALUE,
        kv_b_proj=None,
    )


SCALES = SimpleNamespace(
    _k_scale=torch.tensor(0.5), _v_scale=torch.tensor(0.25), _q_scale=torch.tensor(1.0)
)


def attempt(work: Callable[[], Any]) -> Any:
    """What `work` returns, or its exception as text."""
    try:
        return work()
    except Exception as error:
        frame = inspect.trace()[-1]
        return {
            "error": f"{type(error).__name__}: {error}",
            "line": (frame.code_context or [""])[0].strip(),
        }


def compile_kernels(card: Card, cache: str, heads: int, seq_len: int, rows: int = 1) -> Any:
    """Compile what one decode of `rows` requests launches, without DCP.

    The cache holds `cache` ("bfloat16" or "fp8"), the query is bfloat16. The list has one
    description a kernel.
    """
    config = configuration(32, 262144, 0, HEADS // heads, 1, 1)
    pages = torch.zeros(rows, seq_len // PAGE + 1, dtype=torch.int32)
    builder = make_builder(config)
    metadata = builder.build(0, batch([1] * rows, [seq_len] * rows, config, 0, pages))
    dtype = torch.bfloat16 if cache == "bfloat16" else torch.float8_e4m3fn
    kv_cache = torch.zeros(4, PAGE, LATENT + ROPE).to(dtype)
    query = torch.zeros(rows, heads, LATENT + ROPE, dtype=torch.bfloat16)
    COMPILED.clear()
    make_impl(config, 0, cache).forward_mqa(query, kv_cache, metadata, SCALES)
    return list(COMPILED)


def compile_mha(card: Card, cache: str) -> Any:
    """Compile the stage 1 kernel that is not grouped (one query head a KV head)."""
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

    dtype = torch.bfloat16 if cache == "bfloat16" else torch.float8_e4m3fn
    query = torch.zeros(1, 8, 128, dtype=torch.bfloat16)
    keys = torch.zeros(4, PAGE, 8, 128).to(dtype)
    COMPILED.clear()
    decode_attention_fwd(
        query,
        keys,
        keys,
        torch.zeros(1, 8, 128, dtype=torch.bfloat16),
        torch.zeros(1, 8, dtype=torch.bfloat16),
        torch.zeros(1, 4, dtype=torch.int32),
        torch.tensor([40], dtype=torch.int32),
        torch.zeros(1, 8, 4, 129),
        4,
        1.0,
        PAGE,
        k_scale=SCALES._k_scale,
        v_scale=SCALES._v_scale,
    )
    return list(COMPILED)


def capture(card: Card, drafts: int, dcp: int, interleave: int = 1) -> Any:
    """What the builder declares, and whether it takes the batch that the runner then captures."""
    config = configuration(32, 4096, drafts, 8, dcp, interleave)
    builder = make_builder(config)
    cls = type(builder)
    declared = cls.get_cudagraph_support(config, builder.kv_cache_spec).name
    # gpu_model_runner captures full graphs with 1 + k tokens a request if the declaration is
    # UNIFORM_BATCH or more, with one token a request below.
    query_len = 1 + drafts if declared in ("UNIFORM_BATCH", "ALWAYS") else 1
    pages = torch.zeros(4, 64, dtype=torch.int32)
    common = batch([query_len] * 4, [1024] * 4, config, 0, pages)

    def build() -> Any:
        metadata = builder.build_for_cudagraph_capture(common)
        return {"decodes": metadata.num_decodes, "prefills": metadata.num_prefills}

    return {
        "declared": declared,
        "threshold": builder.reorder_batch_threshold,
        "captured": attempt(build),
    }


def workspace(
    card: Card, max_num_seqs: int, max_model_len: int, drafts: int, tp: int, dcp: int
) -> Any:
    """Bytes of the scratch for the split KV cache, on one GPU.

    `profiled`: reserved while memory is profiled; `reserved`: after the builder is made; `largest`:
    what the largest of some sixty sizes of decode batches takes. The workspace is locked before
    those run, as the runner does, so a batch that does not fit is an error.
    """
    module = triton_mla()
    config = configuration(max_num_seqs, max_model_len, drafts, tp, dcp, 1)
    impl = make_impl(config, 0, "bfloat16")
    sizes = {"profiled": 0, "reserved": 0, "largest": 0}
    manager = None
    if hasattr(module, "current_workspace_manager"):
        import vllm.v1.worker.workspace as shared

        shared.reset_workspace_manager()
        shared.init_workspace_manager(torch.device("meta"))
        manager = shared.current_workspace_manager()

        def size() -> int:
            return sum(manager._workspace_size_bytes(item) for item in manager._current_workspaces)

        if "reserve_workspace" in vars(type(impl)):
            impl.reserve_workspace()
        sizes["profiled"] = size()
    builder = make_builder(config)
    if manager is not None:
        sizes["reserved"] = size()
        manager.lock()

    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

    signature = inspect.signature(decode_attention_fwd)

    def launch(*args: Any, **kwargs: Any) -> None:
        logits = signature.bind(*args, **kwargs).arguments["attn_logits"]
        sizes["largest"] = max(sizes["largest"], logits.numel() * logits.element_size())

    module.decode_attention_fwd = launch
    heads = HEADS // tp * dcp
    cache = torch.empty(4, PAGE, LATENT + ROPE, dtype=torch.bfloat16, device="meta")
    for query_len in {1, builder.reorder_batch_threshold}:
        for requests in {*range(1, max_num_seqs, max(1, max_num_seqs // 60)), max_num_seqs}:
            query = torch.empty(
                requests * query_len, heads, LATENT + ROPE, dtype=torch.bfloat16, device="meta"
            )
            common = batch(
                [query_len] * requests,
                [1024] * requests,
                config,
                0,
                torch.zeros(requests, 1, dtype=torch.int32),
                max_model_len,
            )
            metadata = builder.build(0, common)
            assert metadata.num_decode_tokens == query.shape[0]
            impl.forward_mqa(query, cache, metadata, SCALES)
    return sizes


def numbers(
    card: Card,
    cache: str,
    heads: int,
    query_len: int,
    seq_lens: list[int],
    dcp: int,
    interleave: int,
    seed: int,
) -> Any:
    """Decode random requests on every rank, merge as the release does, compare with the reference.

    With a "float32" cache and query nothing but the order of the additions differs; an "fp8" cache
    has a float32 query and is compared with its rounded values. `heads` are those after the gather.
    `error` is the largest difference from softmax attention in float64 over what each row may see,
    `shifted` the smallest of the rows' largest differences from a reference that sees one position
    less: how far a wrong extent would be off. A builder that puts the rows elsewhere: `prefills`.
    """
    random = torch.Generator().manual_seed(seed)
    config = configuration(32, 4096, query_len - 1, HEADS // (heads // dcp), dcp, interleave)
    parallel, requests = config.parallel_config, len(seq_lens)
    rows = requests * query_len
    stored = {"fp8": torch.float8_e4m3fn}.get(cache) or getattr(torch, cache)
    query = torch.randn(rows, heads, LATENT + ROPE, generator=random)
    if cache != "fp8":
        query = query.to(stored)
    keys = [torch.randn(length, LATENT + ROPE, generator=random).to(stored) for length in seq_lens]
    scale = float(SCALES._k_scale) if cache == "fp8" else 1.0
    pages_each = max(seq_lens) // PAGE + 1
    outputs, lses = [], []
    for rank in range(dcp):
        pages = torch.randperm(requests * pages_each, generator=random).to(torch.int32)
        pages = pages.view(requests, pages_each)
        # What no request has written is never to be read: not a number.
        kv_cache = torch.full((requests * pages_each, PAGE, LATENT + ROPE), float("nan"))
        kv_cache = kv_cache.to(stored)
        for request, item in enumerate(keys):
            for position in range(len(item)):
                where, place = owner(parallel, position)
                if where == rank:
                    page = pages[request, place // PAGE]
                    kv_cache.view(torch.uint8)[page, place % PAGE] = item.view(torch.uint8)[
                        position
                    ]
        common = batch([query_len] * requests, seq_lens, config, rank, pages, 1024)
        metadata = make_builder(config, rank).build(0, common)
        if metadata.num_decodes != requests:
            return {"prefills": metadata.num_prefills}
        impl = make_impl(config, rank, "fp8" if cache == "fp8" else "auto")
        out, lse = impl.forward_mqa(query.clone(), kv_cache, metadata, SCALES)
        outputs.append(out)
        lses.append(lse)
    merged = merge(outputs, lses) if dcp > 1 else outputs[0]

    away = torch.zeros(rows, 2, dtype=torch.float64)
    for row in range(rows):
        item = keys[row // query_len].to(torch.float64) * scale
        extent = len(item) - query_len + 1 + row % query_len
        for less in (0, 1):
            seen = item[: extent - less]
            weights = torch.softmax(query[row].double() @ seen.T * (NOPE + ROPE) ** -0.5, dim=-1)
            difference = merged[row].double() - weights @ seen[:, :LATENT]
            away[row, less] = difference.abs().max()
    # Unlike Python's, these hand a NaN on.
    error, shifted = float(away[:, 0].max()), float(away[:, 1].min())
    return {"error": error, "shifted": shifted, "rows": rows}


def merge(outputs: list[torch.Tensor], lses: list[torch.Tensor]) -> torch.Tensor:
    """The ranks' parts put together by the release's own kernel; the collectives are sums here."""
    try:
        import vllm.v1.attention.ops.dcp as dcp
    except ImportError:
        import vllm.v1.attention.ops.common as dcp

    if INTERPRET:
        from triton.runtime.interpreter import InterpretedFunction

        # The launcher of 0.28 and later counts them; the interpreter's form does not have them.
        InterpretedFunction.constexprs = property(
            lambda self: [
                name
                for name in self.arg_names
                if "constexpr" in str(self.fn.__annotations__.get(name))
            ]
        )
    gathered = torch.stack(lses)
    parts = [
        dcp.correct_attn_out(out, gathered, rank, dcp.CPTritonContext())[0]
        for rank, out in enumerate(outputs)
    ]
    return torch.stack(parts).sum(0)


def ask(question: dict[str, Any]) -> Any:
    """The answer to one question: `card`, `what` (a function above), its arguments."""
    arguments = dict(question)
    work = globals()[arguments.pop("what")]
    card = CARDS[arguments.pop("card")]
    be(card)
    if not INTERPRET:
        compile_instead_of_launch(card)
    return attempt(lambda: work(card, **arguments))


if __name__ == "__main__":
    answers = [ask(question) for question in json.loads(sys.argv[1])]
    print("\n" + json.dumps(answers))
