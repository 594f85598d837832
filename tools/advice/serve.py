"""The command to run."""

from __future__ import annotations

import json
from collections.abc import Sequence

from advice.checks import Check
from advice.together import Pair


def serve_words(pair: Pair, checks: Sequence[Check], drafter: str | None = None) -> list[str]:
    """``vllm serve`` for the pair with what the checks ask for, as words of a command line.

    ``drafter``: another place of the drafter, e.g. the folder that ``--fix`` wrote.
    """
    setup, target = pair.setup, pair.target
    options: dict[str, str] = {}
    options["--trust-remote-code"] = ""
    options["--tensor-parallel-size"] = str(setup.tp)
    if setup.pp > 1:
        options["--pipeline-parallel-size"] = str(setup.pp)
    if setup.dcp > 1:
        options["--decode-context-parallel-size"] = str(setup.dcp)
    if target.multimodal and setup.tp > 1:
        options["--mm-encoder-tp-mode"] = "data"
    for name, value in (
        ("--kv-cache-dtype", setup.kv_cache_dtype),
        ("--attention-backend", setup.attention_backend),
        ("--max-model-len", setup.max_model_len),
        ("--max-num-seqs", setup.max_num_seqs),
        ("--gpu-memory-utilization", setup.gpu_memory_utilization),
    ):
        if value is not None:
            options[name] = str(value)
    if target.is_kimi:
        options["--enable-auto-tool-choice"] = ""
        options["--tool-call-parser"] = options["--reasoning-parser"] = "kimi_k2"
    draft: dict[str, str | int] = {
        "method": "eagle3",
        "model": drafter or pair.drafter.name,
        "num_speculative_tokens": setup.num_speculative_tokens,
    }
    if setup.draft_attention_backend:
        draft["attention_backend"] = setup.draft_attention_backend
    for check in checks:
        for name, value in check.flags:
            options[name] = value  # also over what was asked for: the check says why
        draft |= dict(check.draft)
    words = ["vllm", "serve", target.name]
    for name, value in options.items():
        words += [name, value] if value else [name]
    order = ("method", "model", "num_speculative_tokens")
    spec = {key: draft[key] for key in (*order, *sorted(draft.keys() - set(order)))}
    return [*words, "--speculative-config", json.dumps(spec)]


def can_serve(checks: Sequence[Check]) -> bool:
    """Whether everything that stops the combination as asked for is cured by that command line."""
    return all(check.flags or check.draft for check in checks if check.level == "stop")
