"""What the bench of servers takes for granted of a release: its client's options, its counters."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from measure import metrics
from measure.client import Client, client_options
from measure.server import Server
from patchset.releases import Release

SERVER = Server("http://localhost", "m", "m", "r", None, 3)
COUNTERS = (
    metrics.DRAFTS,
    metrics.DRAFT_TOKENS,
    metrics.ACCEPTED,
    metrics.ACCEPTED_AT,
    metrics.REQUESTS,
    metrics.PROMPT,
    metrics.GENERATION,
    metrics.RUNNING,
    metrics.WAITING,
)


def test_options_of_the_client(source: Path, release: Release, tmp_path: Path) -> None:
    code = "".join(
        path.read_text("utf-8") for path in sorted((source / "vllm/benchmarks").rglob("*.py"))
    )
    told = set(re.findall(r'"(--[a-z-]+)"', code))
    client = Client(Path("python"), release.version, False, trust_remote_code=True, extra={"a": 1})
    for pandas in (False, True):
        words = client_options(replace(client, pandas=pandas), SERVER, ["prompt"], 1, 32, tmp_path)
        asked = {word for word in words if word.startswith("--")}
        assert asked <= told
    # One option for the length of answers in either data set.
    for name in ("custom", "sharegpt"):
        assert f"args.{name}_output_len = args.output_len" in code


def test_counters(source: Path, release: Release) -> None:
    files = ("vllm/v1/metrics/loggers.py", "vllm/v1/spec_decode/metrics.py")
    code = "".join((source / path).read_text("utf-8") for path in files)
    for name in COUNTERS:
        assert f'"{name.removesuffix("_total")}"' in code
