"""The whole job once, on this machine's CPU: stock errors, patched wheel, served drafter.

Takes the CPU build of the pinned release, shows each error with which it refuses to start
Kimi-K2.5 with an EAGLE-3 drafter, rebuilds the wheel with the series, installs it, makes a
stand-in (the same architecture, 22 MB of random weights) and a drafter trained for it, and
serves both through the release's own OpenAI server.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bootstrap
from cli import click, command, execute, json_option, run, say
from patchset.errors import EnvironmentFault, PatchsetError
from patchset.faults import Fault, load_faults
from patchset.project import Project
from patchset.releases import Strict
from patchset.report import Report, schema
from patchset.wheel import build_wheel

sys.path.insert(0, str(bootstrap.ROOT))  # for `standin`
from standin.engine import EngineFailed, Server, cache_root, make_checkpoint, run_engine, serve

if TYPE_CHECKING:
    from patchset.archive import Progress

# The faults that stop a stock release one after another, in the order in which they show.
LADDER = ("F03", "F01", "F02")
DRAFT_TOKENS = 3
MAX_TOKENS = 48
PROMPTS = (
    "baba dabe gabi",
    "kabo lubu maba nefe",
    "user pabi raba",
    "safa tobe vaba zida foba",
    "geku",
    "bada kala nima poro sutu viza bebe gogo",
)


class ProofFailed(PatchsetError):
    """The demo ran, and showed something else than it promises: a defect of the patches."""

    exit_code = 1
    kind = "proof-failed"


class StockError(Strict, frozen=True):
    """What the engine said with the first `patches` patches applied, and which fault that is."""

    fault: str
    title: str
    patches: int
    error: str


class Answer(Strict, frozen=True):
    """One prompt served without and with the drafter."""

    prompt: str
    tokens: int
    same: bool
    text: str


class Took(Strict, frozen=True):
    """One step of the demo and its wall-clock seconds."""

    step: str
    seconds: float


class DemoReport(Report, frozen=True):
    """What `--json` prints. Rates are per draft position, between 0 and 1."""

    release: str
    wheel: str
    stock_errors: list[StockError]
    draft_tokens: int
    answers: list[Answer]
    acceptance_length: float
    acceptance_rates: list[float]
    steps: list[Took]


class Stopwatch:
    """Announces each step on standard error and keeps how long it took."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.steps: list[Took] = []

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """One step; a failure inside keeps its own message."""
        say(f"[{len(self.steps) + 1}/{self.total}] {title} ...", error=True)
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        self.steps.append(Took(step=title, seconds=round(seconds, 1)))
        say(f"      {seconds:.1f} s", error=True)


class Demo:
    """The parts of one run for one pinned release."""

    def __init__(self, version: str, progress: Progress | None) -> None:
        self.project = Project.here()
        self.release = self.project.release(version)
        self.series = self.project.series(version)
        self.progress = progress
        self.requirements = bootstrap.ROOT / "requirements" / f"engine-{version}.txt"
        self.faults = {
            fault.id: fault for fault in load_faults(self.project.root / "patches" / "faults.toml")
        }
        self.logs = cache_root() / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def install(self, source: Path, upto: int | None) -> tuple[Path, Path, Path]:
        """The wheel with the first `upto` patches installed: its Python, site-packages, itself."""
        wheel = source
        if upto != 0:
            out = cache_root() / "wheels"
            out.mkdir(parents=True, exist_ok=True)
            built = build_wheel(
                source, self.project, self.release, out=out, upto=upto, progress=self.progress
            )
            wheel = built.path
        python = bootstrap.layer(self.requirements, wheel)
        return python, bootstrap.site_packages(python), wheel

    def cut_before(self, fault: Fault) -> int:
        """How many patches come before the first one that cures `fault`."""
        for number, patch in enumerate(self.series.patches):
            if fault.id in patch.faults:
                return number
        raise ProofFailed(f"the series has no patch for {fault.id}")

    def stock_error(self, source: Path, fault: Fault, engine: dict[str, Any]) -> StockError:
        """Start the engine without the cure of `fault`, and see it fail with that fault."""
        patches = self.cut_before(fault)
        python, tree, _ = self.install(source, patches)
        result = run_engine(python, tree, {"engine": engine})
        if "error" not in result:
            raise ProofFailed(f"with {patches} patches the engine started, without {fault.id}")
        text = f"{result['error']['type']}: {result['error']['message']}"
        if not fault.seen_in(text):
            raise ProofFailed(f"with {patches} patches the engine said {_line(text)!r}")
        found = next(line for line in text.splitlines() if fault.seen_in(line))
        return StockError(
            fault=fault.id, title=fault.title, patches=patches, error=_line(found.strip())
        )

    def answers(
        self, python: Path, tree: Path, engine: dict[str, Any], log: str
    ) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """What the OpenAI server answers to PROMPTS, and its metrics afterwards."""
        with serve(python, tree, engine, log=self.logs / log) as server:
            return [_complete(server, prompt) for prompt in PROMPTS], server.metrics()


def _complete(server: Server, prompt: str) -> dict[str, Any]:
    body = {
        "model": "standin",
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "return_token_ids": True,
    }
    choice: dict[str, Any] = server.post("/v1/completions", body)["choices"][0]
    return choice


def _line(text: str, width: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def perform(version: str, progress: Progress | None) -> DemoReport:
    """Run all steps. Raises PatchsetError, EngineFailed and bootstrap.BootstrapError."""
    from patchset.download import download

    demo = Demo(version, progress)
    watch = Stopwatch(total=6 + len(LADDER))
    with watch.step(f"environment of the engine of vLLM {version}"):
        engine_python = bootstrap.environment(demo.requirements)
    with watch.step("CPU build of the release"):
        source = download(demo.release.find("wheel", "cpu"), progress)
    with watch.step("stand-in and drafter, trained on the spot"):
        target = make_checkpoint(engine_python, "standin.target:make_target")
        drafter = make_checkpoint(
            engine_python, "standin.drafter:make_drafter", trained=True, target=str(target)
        )
    plain = {"model": str(target), "limit_mm_per_prompt": {"vision_chunk": 0}}
    speculation = {
        "method": "eagle3",
        "model": str(drafter),
        "num_speculative_tokens": DRAFT_TOKENS,
    }
    drafting = {**plain, "speculative_config": speculation}

    errors = []
    for name in LADDER:
        fault = demo.faults[name]
        patches = demo.cut_before(fault)
        which = "stock" if patches == 0 else f"with {patches} of {len(demo.series.patches)} patches"
        with watch.step(f"start-up error, {which}"):
            errors.append(demo.stock_error(source, fault, drafting))
        say(f"      {errors[-1].fault}: {errors[-1].error}", error=True)

    with watch.step("patched wheel, installed"):
        python, tree, wheel = demo.install(source, None)
    with watch.step("served without a drafter"):
        without, _ = demo.answers(python, tree, plain, "without-drafter.log")
    with watch.step(f"served with the drafter, {DRAFT_TOKENS} draft tokens"):
        with_drafter, metrics = demo.answers(python, tree, drafting, "with-drafter.log")

    answers = [
        Answer(
            prompt=prompt,
            tokens=len(a["token_ids"]),
            same=a["text"] == b["text"] and a["token_ids"] == b["token_ids"],
            text=_line(b["text"], 60),
        )
        for prompt, a, b in zip(PROMPTS, without, with_drafter, strict=True)
    ]
    drafts = metrics["vllm:spec_decode_num_drafts_total"]
    accepted = [
        metrics[f"vllm:spec_decode_num_accepted_tokens_per_pos_total[{i}]"]
        for i in range(DRAFT_TOKENS)
    ]
    length = 1 + sum(accepted) / drafts
    different = sum(not answer.same for answer in answers)
    if different:
        raise ProofFailed(f"{different} of {len(answers)} texts differ with the drafter")
    if length < 1.5:
        raise ProofFailed(f"the trained drafter has an acceptance length of {length:.2f} only")
    return DemoReport(
        schema=schema("demo"),
        result="done",
        exit_code=0,
        message=f"{len(answers)} of {len(answers)} texts are the same, "
        f"acceptance length {length:.2f} with {DRAFT_TOKENS} draft tokens",
        release=version,
        wheel=str(wheel),
        stock_errors=errors,
        draft_tokens=DRAFT_TOKENS,
        answers=answers,
        acceptance_length=round(length, 3),
        acceptance_rates=[round(count / drafts, 3) for count in accepted],
        steps=watch.steps,
    )


def show(report: DemoReport) -> None:
    """The report as tables on standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    errors = Table(title=f"vLLM {report.release} without the series", title_justify="left")
    errors.add_column("patches", justify="right")
    errors.add_column("fault")
    errors.add_column("the engine stops with", overflow="fold")
    for stock in report.stock_errors:
        errors.add_row(str(stock.patches), stock.fault, stock.error)
    console.print(errors)

    texts = Table(title="With the series, through the OpenAI server", title_justify="left")
    texts.add_column("prompt")
    texts.add_column("tokens", justify="right")
    texts.add_column("same text with drafter")
    for answer in report.answers:
        texts.add_row(answer.prompt, str(answer.tokens), "yes" if answer.same else "NO")
    console.print(texts)

    figures = Table(title="Drafter", title_justify="left", show_header=False)
    figures.add_row("draft tokens", str(report.draft_tokens))
    figures.add_row("acceptance length", f"{report.acceptance_length:.2f}")
    for position, rate in enumerate(report.acceptance_rates, start=1):
        figures.add_row(f"accepted at position {position}", f"{rate:.0%}")
    console.print(figures)

    steps = Table(title="Seconds", title_justify="left", show_header=False)
    for took in report.steps:
        steps.add_row(took.step, f"{took.seconds:.1f}")
    console.print(steps)
    say(f"patched wheel: {report.wheel}")


@command
@click.option("--release", default="0.16.0", help="Pinned vLLM version.")
@json_option
def demo(
    release: str,
    json: bool,
) -> None:
    """Stock errors, patched wheel, served drafter: the whole job on a CPU with a stand-in."""

    def interrupt(number: int, frame: object) -> None:
        # Servers are stopped on the way out, which a plain SIGTERM would not allow.
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)

    def job(progress: Progress) -> Report:
        try:
            report = perform(release, progress)
        except bootstrap.BootstrapError as fault:
            error = EnvironmentFault(str(fault))
            error.exit_code = fault.exit_code
            raise error from fault
        except EngineFailed as fault:
            first, _, log = str(fault).partition("\n")
            words = [line for line in log.splitlines() if "Error" in line]
            said = f": {_line(words[-1])}" if words else ""
            where = cache_root() / "logs"
            raise ProofFailed(first + said, next_step=f"The logs are in {where}.") from fault
        except subprocess.CalledProcessError as fault:
            raise ProofFailed("the stand-in could not be made; see the lines above") from fault
        if not json:
            show(report)
        return report

    execute("demo", json, job)


if __name__ == "__main__":
    run(demo, "demo")
