"""Which attention backends the installed vLLM offers on this machine's card; prints JSON.

`{NAME: {"mla": ..., "float32": ..., "auto": ..., "fp8": ...}}`: what each backend's class says of
itself, its kind, whether it computes in float32, and the types of its KV cache.
"""

import json
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

# Served to other kinds of layers or devices, whatever their classes say.
OTHERS = ("ROCM", "AITER", "CPU", "AMX", "XPU", "MAMBA", "LINEAR", "GDN", "TREE", "CUSTOM", "NO_")


def offered() -> dict[str, dict[str, Any]]:
    capability = current_platform.get_device_capability()
    found = {}
    for member in AttentionBackendEnum:
        if any(part in member.name for part in OTHERS):
            continue
        try:
            backend = member.get_class()
            if backend.is_sparse() or not backend.supports_compute_capability(capability):
                continue
        except (ImportError, AttributeError, ValueError):  # not in this build
            continue
        found[member.name] = {
            "mla": backend.is_mla(),
            "float32": backend.supports_dtype(torch.float32),
            "auto": backend.supports_kv_cache_dtype("auto"),
            "fp8": backend.supports_kv_cache_dtype("fp8"),
        }
    return found


if __name__ == "__main__":
    print(json.dumps(offered()))
