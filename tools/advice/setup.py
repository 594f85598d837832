"""How the user means to serve: the numbers of the command line, before anything was looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setup:
    """Release, cards and options of the command to be judged.

    ``stock``: the release without this repository's series. ``gpus`` is as the user wrote it, e.g.
    ``8xRTX-PRO-6000``. ``tp``, ``pp``, ``dcp``: tensor, pipeline and decode context parallel size.
    ``None`` stands for "not given": vLLM's own default, or the checkpoint's word, holds.
    """

    release: str
    stock: bool = False
    gpus: str | None = None
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    kv_cache_dtype: str | None = None
    attention_backend: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    num_speculative_tokens: int = 3
    draft_attention_backend: str | None = None
