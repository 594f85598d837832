"""The command to run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from advice.checks import Check
from advice.together import Pair

# Options that a check may ask for, and the field of advice.setup.Setup behind each.
FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--attention-backend": ("attention_backend", str),
    "--max-model-len": ("max_model_len", int),
    "--max-num-seqs": ("max_num_seqs", int),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
}
# Every option that a command may have; tests/trees looks for them in each release.
OPTIONS = (
    *FIELDS,
    "--trust-remote-code",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--decode-context-parallel-size",
    "--mm-encoder-tp-mode",
    "--compilation-config",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "--reasoning-parser",
    "--speculative-config",
)
_DRAFT_FIELDS = {"attention_backend": "draft_attention_backend"}
_ROUNDS = 4  # of judging again: a cure may meet the next fault


def command(pair: Pair, checks: Sequence[Check], judge: Callable[[Pair], list[Check]]) -> list[str]:
    """The words of a ``vllm serve`` that ``judge`` stops no more, empty if there is none.

    What the checks that stop the pair ask for is put in, and the pair is judged again with it.
    """
    others: dict[str, str] = {}  # options that Setup does not know
    for _ in range(_ROUNDS):
        stops = [check for check in checks if check.level == "stop"]
        asked = {name: value for check in stops for name, value in check.flags}
        draft = {_DRAFT_FIELDS[name]: value for check in stops for name, value in check.draft}
        changed = {FIELDS[n][0]: FIELDS[n][1](v) for n, v in asked.items() if n in FIELDS}
        others |= {name: value for name, value in asked.items() if name not in FIELDS}
        if not all(check.flags or check.draft for check in stops):
            return []
        setup = replace(pair.setup, **{**changed, **draft})
        if setup == pair.setup:  # nothing is left to change
            left = [c for c in stops if not c.flags or any(n in FIELDS for n, _ in c.flags)]
            return [] if left else _words(pair, others)
        pair = replace(pair, setup=setup)
        checks = judge(pair)
    return []


def _words(pair: Pair, others: dict[str, str]) -> list[str]:
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
    for name, (field, _) in FIELDS.items():
        if (value := getattr(setup, field)) is not None:
            options[name] = str(value)
    options |= others
    if target.is_kimi:
        options["--enable-auto-tool-choice"] = ""
        options["--tool-call-parser"] = options["--reasoning-parser"] = "kimi_k2"
    draft: dict[str, str | int] = {
        "method": "eagle3",
        "model": pair.drafter.name,
        "num_speculative_tokens": setup.num_speculative_tokens,
    }
    if setup.draft_attention_backend:
        draft["attention_backend"] = setup.draft_attention_backend
    # A folder of that name must not be taken for an option.
    name = f"./{target.name}" if target.name.startswith("-") else target.name
    words = ["vllm", "serve", name]
    for name, text in options.items():
        words += [name, text] if text else [name]
    return [*words, "--speculative-config", json.dumps(draft)]
