"""What the doctor says of a pair is what the real engine then does; docs/doctor.md has the table.

The tables are written with WRITE_DOCS=1 in the environment, and checked without it.
"""

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from standin.engine import cache_root

import bootstrap
from advice.checks import Level
from advice.rules import rules_of
from engine.doctor_cases import (
    LUCKY,
    Outcome,
    Style,
    drafter_arguments,
    expanded,
    job,
    outcome,
    verdict,
)
from engine.support import Engine, unpacked
from patchset.download import download
from patchset.faults import load_faults
from patchset.project import Project
from patchset.wheel import build_wheel

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "doctor.md"
PROJECT = Project.here()
FAULTS = load_faults(ROOT / "patches" / "faults.toml")
SAID = {"pass": "go", "note": "go", "warn": "warn", "stop": "stop"}
OUTCOMES: dict[Outcome, str] = {
    "right": "every draft accepted",
    "lower": "fewer accepted",
    "collapse": "none accepted",
    "unloaded": "runs on unloaded weights",
    "error": "start-up error",
}


@dataclass(frozen=True)
class Run:
    """A release as released or with the series, and the styles that run in its environment."""

    version: str
    lock: str
    stock: bool = False

    def __str__(self) -> str:
        return f"{self.version} {'as released' if self.stock else 'with the series'}"

    def settings(self, style: Style) -> tuple[dict[str, Any], dict[str, str]]:
        """Arguments of vllm.LLM and variables that this release wants on a CPU.

        From 0.29.0 on CUDA servers run the V2 runner, so that is what is asked here. There are
        MLA layers for CPUs by then, with blocks of 16; a Llama-style drafter cannot go with them.
        """
        if self.version == "0.16.0":
            return {}, {}
        environ = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
        if style == "llama":
            return {}, environ
        engine = {"block_size": 16, "num_gpu_blocks_override": 32}
        return engine, {**environ, "VLLM_MLA_DISABLE": "0"}


RUNS = [
    Run("0.16.0", "engine-0.16.0.txt"),
    pytest.param(Run("0.32.0", "engine-0.32.0.txt", stock=True), marks=pytest.mark.slow),
]


@dataclass(frozen=True)
class Compared:
    """One case: what the doctor says, what the engine did, and the words of both."""

    said: Level
    did: Outcome
    reasons: str
    words: str


@pytest.fixture(scope="module", params=RUNS, ids=str)
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


@pytest.fixture(scope="module")
def compared(run: Run, checkpoint: Callable[..., Path]) -> dict[str, Compared]:
    cases = expanded()
    drafters = {f"d{i}": drafter_arguments(*case) for i, case in enumerate(cases.values())}
    made = checkpoint("standin.constructed:make_constructed_set", drafters=drafters)
    engine = engine_of(run)
    results: dict[str, dict[str, Any]] = {}
    for style in ("llama", "mla"):
        chosen = {
            name: (made / f"d{i}", case)
            for i, (name, (its, case)) in enumerate(cases.items())
            if its == style
        }
        extra, environ = run.settings(style)
        jobs = [job(made / "target", *pair) for pair in chosen.values()]
        jobs = [{**j, "engine": {**j["engine"], **extra}} for j in jobs]
        found = engine.run(*jobs, environ=environ, timeout=7200)
        results |= dict(zip(chosen, found, strict=True))
    rules = rules_of(PROJECT, run.version, stock=run.stock)
    compared = {}
    for i, (name, (_, case)) in enumerate(cases.items()):
        said, checks = verdict(made / "target", made / f"d{i}", case, rules, FAULTS)
        did, words = outcome(case_of(name), results[name])
        reasons = "; ".join(f"{c.id}: {c.reason}" for c in checks if c.level in ("warn", "stop"))
        compared[name] = Compared(said, did, reasons, words)
    return compared


def engine_of(run: Run) -> Engine:
    release = PROJECT.release(run.version)
    python = bootstrap.environment(ROOT / "requirements" / run.lock)
    artifact = release.find(kind="wheel", flavour="cpu")
    wheel = download(artifact)
    if run.stock:
        return Engine(python, unpacked(wheel, artifact.sha256))
    wheels = cache_root() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    built = build_wheel(wheel, PROJECT, release, out=wheels)
    return Engine(python, unpacked(built.path, built.sha256))


def test_no_failure_is_passed(compared: dict[str, Compared]) -> None:
    """Whatever does not start, or starts and drafts less than it could, is at least warned of."""
    passed = {n: c for n, c in compared.items() if SAID[c.said] == "go" and c.did != "right"}
    assert passed == {}


def test_nothing_that_works_is_stopped(compared: dict[str, Compared]) -> None:
    assert {name: compared[name] for name in stopped(compared) if case_of(name) not in LUCKY} == {}


def stopped(compared: dict[str, Compared]) -> list[str]:
    return [n for n, c in compared.items() if c.said == "stop" and c.did == "right"]


def case_of(name: str) -> str:
    return name.partition(": ")[2]


def test_a_start_up_error_is_a_stop(compared: dict[str, Compared]) -> None:
    missed = {n: c for n, c in compared.items() if c.did == "error" and c.said != "stop"}
    assert missed == {}


def test_the_page_has_what_was_found(run: Run, compared: dict[str, Compared]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    fresh = rewritten(page, run, compared)
    if os.environ.get("WRITE_DOCS"):
        PAGE.write_text(fresh, encoding="utf-8")
    assert fresh == page or os.environ.get("WRITE_DOCS"), "run again with WRITE_DOCS=1"


def rewritten(page: str, run: Run, compared: dict[str, Compared]) -> str:
    """The page with the tables of that run in place of the old ones."""
    begin = f"<!-- generated by tests/engine/test_doctor.py, {run}: do not edit by hand -->\n"
    pattern = re.compile(re.escape(begin) + ".*?(?=<!-- end of the generated part -->)", re.DOTALL)
    assert len(pattern.findall(page)) == 1, f"{PAGE}: no marks for {run}"
    return pattern.sub(lambda _: begin + tables(compared), page)


def tables(compared: dict[str, Compared]) -> str:
    """The confusion table, then every case."""
    counts = Counter((SAID[c.said], c.did) for c in compared.values())
    met = [did for did in OUTCOMES if any(c.did == did for c in compared.values())]
    lines = [
        "",
        "| the doctor says | " + " | ".join(OUTCOMES[did] for did in met) + " |",
        "|---" * (1 + len(met)) + "|",
    ]
    for said in ("go", "warn", "stop"):
        cells = [str(counts[said, did] or "–") for did in met]
        lines.append(f"| {said} | " + " | ".join(cells) + " |")
    lines += ["", "| pair or configuration | Llama style | MLA style |", "|---|---|---|"]
    names = dict.fromkeys(map(case_of, compared))
    for name in names:
        cells = []
        for style in ("llama", "mla"):
            found = compared.get(f"{style}: {name}")
            told = f"{SAID[found.said]}: {OUTCOMES[found.did]}" if found else ""
            cells.append(told)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if lucky := list(dict.fromkeys(map(case_of, stopped(compared)))):
        told = "; ".join(f"*{name}*: {LUCKY[name]}" for name in lucky)
        lines += ["", f"Stopped, and yet every draft was accepted: {told}."]
    return "\n".join([*lines, "", ""])
