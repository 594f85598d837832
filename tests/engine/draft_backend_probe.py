"""Runs under the engine's python: the attention backend of a drafter on a card that is not here.

`python draft_backend_probe.py CASES` prints one JSON object a case, in order. CASES is a JSON list
of objects with the keys `capability` ([major, minor]), `mla` (is the drafter MLA-style?), `target`
(the target's `--attention-backend`, or null), `cache` (its `--kv-cache-dtype`) and `drafter`
(fields of the speculative configuration).

vLLM is told that it runs on CUDA of that compute capability, so that its own configuration and
selection run unchanged. Loading the drafter is replaced by asking which backend its attention layer
would be built with. FlashInfer is stubbed because its modules only have to be importable.
"""

import importlib
import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

# vLLM's CUDA platform imports the extension under this name, which in CPU builds of later releases
# asks for more of the processor than there may be. Choosing a backend calls nothing in it.
sys.modules.update({f"vllm.{name}": ModuleType(name) for name in ("_C", "_C_stable_libtorch")})

from vllm import platforms  # noqa: E402
from vllm.config import (  # noqa: E402
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.platforms.cuda import CudaPlatformBase  # noqa: E402
from vllm.platforms.interface import DeviceCapability, Platform  # noqa: E402
from vllm.v1.attention import selector  # noqa: E402
from vllm.v1.attention.backend import AttentionBackend, MultipleOf  # noqa: E402
from vllm.v1.spec_decode import eagle  # noqa: E402

# Where the proposer that loads drafters stands.
proposer: Any = sys.modules[eagle.SpecDecodeBaseProposer.__module__]

# DeepSeek-V3 itself, whose own MTP layer is the MLA-style drafter, and a Llama-style EAGLE head:
# pairs that the release as published accepts and that meet the same choice as Kimi-K2.5's.
MLA_TARGET = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_nextn_predict_layers": 1,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 96,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
GQA_DRAFTER = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}


class _Stub(ModuleType):
    """A module in which every name is an empty class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, loader=None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *size, **options: make(*size, **{**options, "device": "cpu"})


def import_backends() -> None:
    """Import what can be imported only once here, while the platform is still the real one."""
    for name in ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils"):
        sys.modules.setdefault(name, _Stub(name))
    importlib.import_module("vllm.compilation.backends")
    card = SimpleNamespace(multi_processor_count=1)
    with (
        # These two allocate a workspace on the card when they are imported.
        mock.patch.object(torch, "zeros", _on_cpu(torch.zeros)),
        mock.patch.object(torch, "empty", _on_cpu(torch.empty)),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=card),
        mock.patch.object(Platform, "num_compute_units", return_value=1, create=True),
    ):
        importlib.import_module("vllm.v1.attention.backends.mla.flashinfer_mla")
        importlib.import_module("vllm.v1.attention.backends.mla.cutlass_mla")


def pretend(capability: DeviceCapability) -> None:
    """From now on vLLM runs on CUDA with this compute capability, as far as it can tell."""

    class Cuda(CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return capability

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return f"CUDA {capability}"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 96 << 30

    platforms._current_platform = proposer.current_platform = Cuda()
    selector._cached_get_attn_backend.cache_clear()


def configuration(case: dict[str, Any], folder: Path) -> VllmConfig:
    """The whole configuration of an MLA target and a drafter, as vLLM completes it."""
    for name, content in (("target", MLA_TARGET), ("drafter", GQA_DRAFTER)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(content), encoding="utf-8")
    chosen = {"method": "mtp"} if case["mla"] else {"method": "eagle", "model": f"{folder}/drafter"}
    model = ModelConfig(model=f"{folder}/target", skip_tokenizer_init=True, max_model_len=2048)
    parallel = ParallelConfig()
    return VllmConfig(
        model_config=model,
        cache_config=CacheConfig(cache_dtype=case["cache"]),
        parallel_config=parallel,
        device_config=DeviceConfig(device="cpu"),
        attention_config=AttentionConfig(backend=case["target"]),
        speculative_config=SpeculativeConfig(
            target_model_config=model,
            target_parallel_config=parallel,
            num_speculative_tokens=3,
            **chosen,
            **case["drafter"],
        ),
    )


def layer_backend(config: VllmConfig, *, mla: bool) -> type[AttentionBackend]:
    """The backend of an attention layer that is built under `config`."""
    asked: dict[str, Any] = {
        "head_size": 576 if mla else 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": config.cache_config.cache_dtype,
        "use_mla": mla,
    }
    if "block_size" in inspect.signature(selector.get_attn_backend).parameters:  # up to 0.17.1
        asked["block_size"] = config.cache_config.block_size
    with set_current_vllm_config(config):
        return selector.get_attn_backend(**asked)


def drafter_backend(config: VllmConfig, *, mla: bool) -> type[AttentionBackend]:
    """The backend of the attention layer of the model that the proposer loads."""
    used: list[type[AttentionBackend]] = []

    def get_model(*, vllm_config: VllmConfig, **_: Any) -> torch.nn.Module:
        used.append(layer_backend(vllm_config, mla=mla))
        return torch.nn.Module()

    with set_current_vllm_config(config), mock.patch.object(proposer, "get_model", get_model):
        eagle.EagleProposer(config, torch.device("cpu"))._get_model()
    (backend,) = used
    return backend


def share_a_block_size(config: VllmConfig, *backends: type[AttentionBackend]) -> bool:
    """Whether one kernel block size suits all `backends`, as layers of one cache group need."""

    def takes(backend: type[AttentionBackend], size: int) -> bool:
        sizes = backend.get_supported_kernel_block_sizes()
        return any(size % s.base == 0 if isinstance(s, MultipleOf) else size == s for s in sizes)

    block_size = config.cache_config.block_size
    if hasattr(backends[0], "get_preferred_block_size"):  # from 0.18.0: the target's choice
        block_size = backends[0].get_preferred_block_size(block_size)
    with set_current_vllm_config(config):
        divisors = [s for s in range(1, block_size + 1) if block_size % s == 0]
        return any(all(takes(b, s) for b in backends) for s in divisors)


def answer(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The names of the target's and the drafter's backend, or the error."""
    pretend(DeviceCapability(*case["capability"]))
    try:
        config = configuration(case, folder)
        target = layer_backend(config, mla=True)
        drafter = drafter_backend(config, mla=case["mla"])
        return {
            "target": target.get_name(),
            "drafter": drafter.get_name(),
            "drafter_is_mla": drafter.is_mla(),
            "share_a_block_size": share_a_block_size(config, target, drafter),
            "target_afterwards": layer_backend(config, mla=True).get_name(),
            "compile_key": config.compute_hash(),
        }
    except ValueError as error:
        return {"error": str(error)}


def main() -> None:
    """Answer the cases."""
    import_backends()
    with tempfile.TemporaryDirectory() as folder:
        answers = [answer(case, Path(folder)) for case in json.loads(sys.argv[1])]
    print(*map(json.dumps, answers), sep="\n")


if __name__ == "__main__":
    main()
