"""Whether a release has a fault, found out from its own source, without importing it.

Each probe is one function ``(code) -> bool``: it reads the code where the fault sits, or runs that
piece of it on small stand-ins, and answers whether stock vLLM has the fault. `patches/faults.toml`
names the probe of each fault and the releases that have it; where the two disagree one of them is
wrong. A probe raises :class:`Unclear` when the code is neither as it was with the fault nor as it
was cured: a new release, or a patched one, that somebody has to read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final

from patchset.errors import PatchsetError
from patchset.series import Read

TARGET: Final = "KimiK25ForConditionalGeneration"
_MODELS: Final = "vllm/model_executor/models"
_TRITON_MLA: Final = "vllm/v1/attention/backends/mla/triton_mla.py"
_PLACES_ROWS: Final = "supports_dcp_with_varlen"
_MLA_LAYER: Final = "vllm/model_executor/layers/attention/mla_attention.py"
_V1: Final = "vllm/v1/worker/gpu_model_runner.py"
_V2_EAGLE: Final = "vllm/v1/worker/gpu/spec_decode/eagle"
_V2_CONFIG: Final = "vllm/config/vllm.py"
# Where the V1 proposer loads its drafter: the second one since 0.20.0.
_PROPOSERS: Final = ("vllm/v1/spec_decode/llm_base_proposer.py", "vllm/v1/spec_decode/eagle.py")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


# What the probe looks at stays as it is in a patched tree.
BLIND: Final = {
    "aux_layer_ids": "our cure sits where the configuration is read, before what the probe runs",
    "pipeline_parallel": "before 0.30.0 it is refused, not made to work",
    "unchecked_weights": "our cure checks the names in the checkpoint, before the loading",
}


class Unclear(PatchsetError):
    """The code is not as any release known to the probe had it."""

    exit_code = 3
    kind = "unclear"


class Code:
    """The source of one release; modules are parsed once."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._modules: dict[str, ast.Module | None] = {}

    def module(self, path: str) -> ast.Module | None:
        """The syntax tree of a file, ``None`` if the release has no such file."""
        if path not in self._modules:
            content = self._read(path)
            self._modules[path] = None if content is None else ast.parse(content, path)
        return self._modules[path]

    def find(self, path: str, name: str) -> Definition | None:
        """The class or function of that dotted name in a file, ``None`` if there is none."""
        place: ast.AST | None = self.module(path)
        for part in name.split("."):
            inside = ast.iter_child_nodes(place) if place is not None else ()
            place = next(
                (item for item in inside if isinstance(item, Definition) and item.name == part),
                None,
            )
        assert place is None or isinstance(place, Definition)
        return place

    def get(self, path: str, name: str) -> Definition:
        """The same; :class:`Unclear` if there is none."""
        if (found := self.find(path, name)) is None:
            raise Unclear(f"{path}: has no {name}")
        return found

    @cached_property
    def default_runner(self) -> str:
        """``V1`` or ``V2``: the runner that a CUDA server of Kimi-K2.5 takes by itself."""
        decide = self.find(_V2_CONFIG, "VllmConfig.use_v2_model_runner")
        if decide is None:
            return "V1"  # V2 only where an environment variable asks for it
        if "_is_default_v2_model_runner_model" not in _names(decide):
            return "V2"
        names = _literal(self.module(_V2_CONFIG), "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES")
        return "V2" if TARGET in names else "V1"


Probe = Callable[[Code], bool]


def image_token_index(code: Code) -> bool:
    """F01: run the choice of the image token with what Kimi-K2.5's configuration has."""
    return _image_token_fails(code, media_placeholder_token_id=7)


def image_token_id(code: Code) -> bool:
    """F19: the same with the configuration class of transformers, where the release takes that."""
    module = code.module("vllm/transformers_utils/config.py")
    taken = {
        keyword.value.value
        for node in _walk(module)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "kimi_k25" and isinstance(keyword.value, ast.Constant)
    }
    return taken == {"Kimi_K25Config"} and _image_token_fails(code, image_token_id=7)


def eagle3_interface(code: Code) -> bool:
    """F02: both the text model and the wrapper have to declare it."""
    places = {"deepseek_v2.py": "DeepseekV2ForCausalLM", "kimi_k25.py": TARGET}
    return any(
        "SupportsEagle3" not in _bases(code.get(f"{_MODELS}/{path}", name))
        for path, name in places.items()
    )


def target_list(code: Code) -> bool:
    """F03: a list of model types, none of which is part of Kimi's."""
    config = code.get("vllm/config/speculative.py", "SpeculativeConfig")
    for node in _walk(config):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name)
            and target.id in ("eagle3_target_supported", "aux_hidden_states_supported")
            for target in node.targets
        ):
            return not any(name in "kimi_k2" for name in ast.literal_eval(node.value))
    return False


def platform_writes_backend(code: Code) -> bool:
    """F05: the platform assigns to ``attention_config.backend``, and the drafter gets that."""
    check = code.get("vllm/platforms/cuda.py", "CudaPlatformBase.check_and_update_config")
    writes = any(
        ast.unparse(target).endswith("attention_config.backend")
        for node in _walk(check)
        if isinstance(node, ast.Assign)
        for target in node.targets
    )
    return writes and inherited_backend(code)


def inherited_backend(code: Code) -> bool:
    """F06: nothing gives the drafter a backend of its own whatever the target has."""
    if code.default_runner == "V2":
        places = [
            code.get(f"{_V2_EAGLE}/utils.py", "load_eagle_model"),
            code.find("vllm/config/speculative.py", "SpeculativeConfig.apply_draft_overrides"),
        ]
    else:
        name = "SpecDecodeBaseProposer._create_draft_vllm_config"
        places = [code.find(path, name) for path in _PROPOSERS]
    return not any(_sets_backend_always(place) for place in places if place is not None)


def mla_drafters(code: Code) -> bool:
    """F08: the architecture and the model type have to be registered."""
    known = _strings(code.module(f"{_MODELS}/registry.py"))
    config = code.module("vllm/transformers_utils/config.py")
    types = {
        keyword.arg
        for node in _walk(config)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    } | _strings(config)
    return "Eagle3DeepseekV2ForCausalLM" not in known or "kimi_k2" not in types


def fp8_triton_mla(code: Code) -> bool:
    """F10: the backend's list of KV-cache types has no FP8."""
    backend = code.get(_TRITON_MLA, "TritonMLABackend")
    return "fp8" not in _literal(backend, "supported_kv_cache_dtypes")


def single_token_uniform(code: Code) -> bool:
    """F11: uniform batches are promised for graphs, but only single tokens are decoded."""
    return _cudagraph_promise(code) == "UNIFORM_BATCH" and _query_len(code) == "SINGLE_ONLY"


def uniform_under_dcp(code: Code) -> bool:
    """F12: uniform batches are promised and decoded, but not with decode context parallelism."""
    if _cudagraph_promise(code) != "UNIFORM_BATCH" or _query_len(code) != "UNIFORM":
        return False
    builder = code.get(_TRITON_MLA, "TritonMLAMetadataBuilder")
    if any(isinstance(node, ast.keyword) and node.arg == _PLACES_ROWS for node in _walk(builder)):
        return False
    if code.find(_TRITON_MLA, "TritonMLAMetadataBuilder.get_cudagraph_support"):
        return "decode_context_parallel_size" not in _names(builder)
    threshold = code.get(
        "vllm/v1/attention/backend.py", "AttentionMetadataBuilder._init_reorder_batch_threshold"
    )
    return "decode_context_parallel_size" in _names(threshold)


def fp8_dcp_assertion(code: Code) -> bool:
    """F13: the MLA layer asserts that the KV cache is not FP8 with several DCP ranks."""
    return any(
        isinstance(node, ast.Assert) and "fp8_attention" in _names(node.test)
        for node in _walk(code.module(_MLA_LAYER))
    )


def unbounded_workspace(code: Code) -> bool:
    """F14: the splits of the KV cache grow with the SMs, whatever the number of rows."""
    module = code.module(_TRITON_MLA)
    used = _names(module) if module else set()
    return "_sm_count" in used and "row_splits" not in used


def aux_layer_ids(code: Code) -> bool:
    """F15: run the reading of nested ids, in either convention, of the runner that is taken."""
    wanted = (2, 30, 58)
    for ids in ([2, 30, 58], [1, 29, 57]):
        nested = SimpleNamespace(eagle_config={"eagle_aux_hidden_state_layer_ids": ids})
        drafter = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=nested))
        if code.default_runner == "V2":
            name = "get_eagle3_aux_layers_from_config"
            function = code.get(f"{_V2_EAGLE}/eagle3_utils.py", name)
            found = _run(function)[name](drafter)
        else:
            name = "_get_eagle3_aux_layers_from_config"
            function = code.get(_V1, f"GPUModelRunner.{name}")
            found = _run(function)[name](SimpleNamespace(speculative_config=drafter))
        if found != wanted:
            return True
    return False


def capture_at_layer_0(code: Code) -> bool:
    """F16: before layer 0 the residual is None, and the capture adds it without a look."""
    forward = code.get(f"{_MODELS}/deepseek_v2.py", "DeepseekV2Model.forward")
    for loop in _walk(forward):
        if isinstance(loop, ast.For):
            for node in _walk(loop):
                if isinstance(node, ast.If) and "aux_hidden_state_layers" in _names(node.test):
                    text = ast.unparse(node)
                    return "hidden_states + residual" in text and "residual is" not in text
    return False


def pipeline_parallel(code: Code) -> bool:
    """F17: the text model does not say that it hands auxiliary states from stage to stage."""
    model = code.get(f"{_MODELS}/deepseek_v2.py", "DeepseekV2Model")
    return _literal(model, "supports_aux_hidden_states_over_pp", False) is not True


def eagle31_fields(code: Code) -> bool:
    """F18: each kind of drafter has to norm the auxiliary states (``fc_norm``), in each format."""
    places = {
        "llama_eagle3.py": "Eagle3LlamaForCausalLM",
        "deepseek_eagle3.py": "Eagle3DeepseekV2ForCausalLM",
    }
    combine = [
        code.find(f"{_MODELS}/{path}", f"{name}.combine_hidden_states")
        for path, name in places.items()
    ]
    path = "vllm/transformers_utils/configs/speculators/algos.py"
    read: dict[str, Any] = {}
    _run(code.get(path, "update_eagle3"))["update_eagle3"]({"fc_norm": True}, read)
    return read.get("fc_norm") is not True or any(
        "fc_norm" not in _names(item) for item in combine if item is not None
    )


def encoder_cache_miss(code: Code) -> bool:
    """F21: an encoder output that is not there is asserted, even if only the drafter wants it."""
    if code.default_runner == "V2":
        path, name = "vllm/v1/worker/gpu/mm/encoder_runner.py", "EncoderRunner.gather_mm_embeddings"
    else:
        path, name = _V1, "GPUModelRunner._gather_mm_embeddings"
    nodes = list(_walk(code.get(path, name)))
    escapes = any(
        isinstance(node, ast.If)
        and "encoder_output is None" in ast.unparse(node.test)
        and any(isinstance(item, ast.Continue) for item in _walk(node))
        for node in nodes
    )
    return not escapes and any(
        isinstance(node, ast.Assert) and "encoder_output" in _names(node.test) for node in nodes
    )


def counted_markers(code: Code) -> bool:
    """F22: the parser counts the markers' tokens in a delta instead of reading its text."""
    path = "vllm/tool_parsers/kimi_k2_tool_parser.py"
    parser = code.get(path, "KimiK2ToolParser")
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "count"
        and any(ast.unparse(item).endswith("_token_id") for item in node.args)
        for node in _walk(parser)
    )


def lost_reasoning(code: Code) -> bool:
    """F36: the tool parser's delta replaces the one that ends the reasoning, with what it holds."""
    parse = code.find("vllm/parser/abstract_parser.py", "DelegatingParser.parse_delta")
    if parse is None:  # before 0.20.0
        path = "vllm/entrypoints/openai/chat_completion/serving.py"
        parse = code.get(path, "OpenAIServingChat.chat_completion_stream_generator")
    return not any(
        isinstance(node, ast.Attribute)
        and node.attr == "reasoning"
        and isinstance(node.ctx, ast.Store)
        for node in _walk(parse)
    )


def replaced_delta(code: Code) -> bool:
    """F37: the chat endpoint looks for what one call lacks without a look at the delta's calls."""
    path = "vllm/entrypoints/openai/chat_completion/serving.py"
    stream = code.get(path, "OpenAIServingChat.chat_completion_stream_generator")
    tests = [
        _names(node.test)
        for node in _walk(stream)
        if isinstance(node, ast.If) and "should_check" in _names(node.test)
    ]
    # A parser that counts markers gives one call a delta.
    return bool(tests) and "tool_calls" not in tests[0] and not counted_markers(code)


def drafter_length(code: Code) -> bool:
    """F24: V1 asks the longest request of the batch; V2 limits no request (or the target)."""
    if code.default_runner == "V2":
        used = _names(code.module("vllm/v1/core/sched/scheduler.py"))
        return not any("draft" in name and "max_model_len" in name for name in used)
    return any(
        isinstance(node, ast.Compare)
        and {"max_seq_len", "effective_drafter_max_model_len"} <= _names(node)
        for node in _walk(code.module(_V1))
    )


def pcie_all_reduce(code: Code) -> bool:
    """F26: more than two GPUs that are not fully connected: set-up ends there."""
    for node in _walk(code.module("vllm/distributed/device_communicators/custom_all_reduce.py")):
        if isinstance(node, ast.If) and any(isinstance(item, ast.Return) for item in node.body):
            text = ast.unparse(node.test)
            if "world_size > 2" in text and "not fully_connected" in text:
                return True
    return False


def no_lora(code: Code) -> bool:
    """F30: the wrapper does not declare LoRA."""
    return "SupportsLoRA" not in _bases(code.get(f"{_MODELS}/kimi_k25.py", TARGET))


def draft_tensor_parallel(code: Code) -> bool:
    """F33: nothing on the way of an EAGLE drafter reads the draft's parallel configuration."""
    places = [f"{_V2_EAGLE}/utils.py", f"{_V2_EAGLE}/speculator.py", *_PROPOSERS]
    used = {name for path in places for name in _names(code.module(path))}
    return not used & {"draft_parallel_config", "draft_tensor_parallel_size"}


def mla_drafter_kind(code: Code) -> bool:
    """F34: run the question whether a drafter is MLA-style on one of model type kimi_k2."""
    path = "vllm/transformers_utils/model_arch_config_convertor.py"
    function = code.get(path, "ModelArchConfigConvertorBase.is_deepseek_mla")
    config = SimpleNamespace(
        model_type="eagle", model=SimpleNamespace(model_type="kimi_k2"), kv_lora_rank=512
    )
    mla = _run(function)[function.name](SimpleNamespace(hf_text_config=config))
    return not mla_drafters(code) and not mla


def unchecked_weights(code: Code) -> bool:
    """F35: what was loaded is not compared with what the drafter has."""
    load = code.get(f"{_MODELS}/llama_eagle3.py", "Eagle3LlamaForCausalLM.load_weights")
    return any(
        isinstance(node, ast.Expr) and ast.unparse(node).startswith("loader.load_weights(")
        for node in _walk(load)
    )


def unlike_workers(code: Code) -> bool:
    """F38: what a worker calls when it joins the others looks at no version and no content."""
    path = "vllm/v1/worker/gpu_worker.py"
    called = _names(code.get(path, "init_worker_distributed_environment"))
    used = {name for callee in called for name in _names(code.find(path, callee))}
    return not used & {"__version__", "hashlib"}


PROBES: Final[dict[str, Probe]] = {
    probe.__name__: probe
    for probe in (
        image_token_index,
        image_token_id,
        eagle3_interface,
        target_list,
        platform_writes_backend,
        inherited_backend,
        mla_drafters,
        fp8_triton_mla,
        single_token_uniform,
        uniform_under_dcp,
        fp8_dcp_assertion,
        unbounded_workspace,
        aux_layer_ids,
        capture_at_layer_0,
        pipeline_parallel,
        eagle31_fields,
        encoder_cache_miss,
        counted_markers,
        lost_reasoning,
        replaced_delta,
        drafter_length,
        pcie_all_reduce,
        no_lora,
        draft_tensor_parallel,
        mla_drafter_kind,
        unchecked_weights,
        unlike_workers,
    )
}


def _image_token_fails(code: Code, **config: int) -> bool:
    """Whether the proposer's choice of the image token fails for a target with that config."""
    for path in _PROPOSERS:
        module = code.module(path)
        for node in _walk(module):
            if not isinstance(node, ast.If) or "supports_multimodal" not in _names(node.test):
                continue
            wanted = "self.model.config.image_token_index"
            pieces = [item for item in node.body if _assigns(item, wanted)]
            names = {name for piece in pieces for name in _names(piece)}
            helpers = [
                item
                for item in _walk(module)
                if isinstance(item, ast.FunctionDef) and item.name in names
            ]
            proposer = SimpleNamespace(
                model=SimpleNamespace(config=SimpleNamespace()), get_model_name=lambda _: TARGET
            )
            target = SimpleNamespace(config=SimpleNamespace(**config))
            try:
                _run(*helpers, *pieces, self=proposer, target_model=target)
            except AttributeError:
                return True
            return bool(proposer.model.config.image_token_index != 7)
    raise Unclear("the V1 proposer chooses no image token")


def _sets_backend_always(function: Definition) -> bool:
    """Whether ``attention_config`` gets ``backend=…`` also where none is set for the draft."""

    def visit(node: ast.AST, free: bool) -> bool:
        if isinstance(node, ast.If) and "attention_backend is not None" in ast.unparse(node.test):
            free = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or)
        if isinstance(node, ast.keyword) and node.arg == "backend" and free:
            return True
        return any(visit(item, free) for item in ast.iter_child_nodes(node))

    return visit(function, True)


def _cudagraph_promise(code: Code) -> str | None:
    """``AttentionCGSupport`` of Triton MLA's builder; ``None`` where it has no builder."""
    builder = code.find(_TRITON_MLA, "TritonMLAMetadataBuilder")
    return None if builder is None else _attribute(builder, "_cudagraph_support")


def _query_len(code: Code) -> str | None:
    """``QueryLenSupport`` of Triton MLA's builder, its own or the common one's."""
    builder = code.get(_TRITON_MLA, "TritonMLAMetadataBuilder")
    common = code.get(_MLA_LAYER, "MLACommonMetadataBuilder")
    return _attribute(builder, "query_len_support") or _attribute(common, "query_len_support")


def _attribute(definition: Definition, name: str) -> str | None:
    """The last word of what a class assigns to a name: ``UNIFORM`` of ``Support.UNIFORM``."""
    value = _assigned(definition, name)
    return ast.unparse(value).rpartition(".")[2] if value is not None else None


def _assigned(place: ast.Module | Definition | None, name: str) -> ast.expr | None:
    for node in ast.iter_child_nodes(place) if place is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(item, ast.Name) and item.id == name for item in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            return node.value
    return None


def _literal(place: ast.Module | Definition | None, name: str, default: Any = None) -> Any:
    """What a module or class assigns to a name; a call around it (``frozenset``) is taken off."""
    value = _assigned(place, name)
    if isinstance(value, ast.Call):
        value = value.args[0]
    if value is None:
        if default is None:
            raise Unclear(f"nothing is assigned to {name}")
        return default
    return ast.literal_eval(value)


def _assigns(node: ast.AST, target: str) -> bool:
    return any(
        ast.unparse(item) == target
        for inner in _walk(node)
        if isinstance(inner, ast.Assign)
        for item in inner.targets
    )


def _bases(definition: Definition) -> set[str]:
    assert isinstance(definition, ast.ClassDef)
    return {name for base in definition.bases for name in _names(base)}


def _names(place: ast.AST | None) -> set[str]:
    """The names and attributes that the code uses or defines."""
    found = set()
    for node in _walk(place):
        for field in ("id", "attr", "name"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found.add(value)
    return found


def _strings(place: ast.AST | None) -> set[str]:
    return {
        node.value
        for node in _walk(place)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def _walk(place: ast.AST | None) -> Iterator[ast.AST]:
    return ast.walk(place) if place is not None else iter(())


def _run(*pieces: ast.stmt, **names: Any) -> dict[str, Any]:
    """Run statements of vLLM's on stand-ins; annotations and decorators are not evaluated."""
    for piece in pieces:
        if isinstance(piece, Definition):
            piece.decorator_list = []
    module = ast.Module(list(pieces), [])
    flags = annotations.compiler_flag
    exec(compile(module, "<probe>", "exec", flags=flags, dont_inherit=True), names)
    return names
