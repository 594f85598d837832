"""What the doctor knows of attention backends, against the sources of each release."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.version import Version

from advice.backends import BACKENDS, Backend
from patchset.releases import Release

FILES = {"FLASH_ATTN_MLA": "flashattn_mla", "FLASHINFER_MLA": "flashinfer_mla"}


def test_backends_are_those_of_the_release(source: Path, release: Release) -> None:
    order = mla_order((source / "vllm/platforms/cuda.py").read_text(encoding="utf-8"))
    here = [item for item in BACKENDS if Version(release.version) >= Version(item.since)]
    assert order == [item.name for item in here]
    for backend in here:
        name = FILES.get(backend.name, backend.name.lower())
        path = source / f"vllm/v1/attention/backends/mla/{name}.py"
        assert told(path.read_text(encoding="utf-8"), release.version) == facts(backend, release)


def mla_order(text: str) -> list[str]:
    """The dense MLA backends in the order in which compute capability 10.x is served."""
    start = text.index("def _get_backend_priorities")
    first = text.index("device_capability.major == 10", start)
    end = re.compile(r"\n        el(se|if )").search(text, first)
    assert end
    names = re.findall(r"AttentionBackendEnum\.(\w+_MLA|FLASHMLA)\b", text[first : end.start()])
    return list(dict.fromkeys(names))


def told(text: str, version: str) -> tuple[str, bool, bool, str]:
    majors = re.search(r"def supports_compute_capability.*?return ([^\n]*)", text, re.DOTALL)
    types = re.search(r"supported_kv_cache_dtypes.*?= \[(.*?)\]", text, re.DOTALL)
    blocks = re.search(r"def get_supported_kernel_block_sizes.*?return (\[.*?\])", text, re.DOTALL)
    assert majors
    assert types
    return majors[1], '"fp8"' in types[1], '"bfloat16"' in types[1], blocks[1] if blocks else ""


def facts(backend: Backend, release: Release) -> tuple[str, bool, bool, str]:
    majors = backend.majors
    capability = (
        "True"
        if majors is None
        else f"capability.major == {majors[0]}"
        if len(majors) == 1
        else f"capability.major in {list(majors)}"
    )
    blocks = f"[MultipleOf({backend.blocks[0]})]" if backend.multiple else str(list(backend.blocks))
    if backend.name == "TRITON_MLA" and Version(release.version) < Version("0.18.0"):
        blocks = ""  # takes any, as its base class
    fp8 = backend.takes_fp8(release.version)
    return capability, fp8, backend.fp8 != "only", blocks
