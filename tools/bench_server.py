"""Measure a running server: acceptance and speed-up of its drafter, as a page with pictures."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cli import EXIT_CODES, click, command, execute, json_option, run, say

if TYPE_CHECKING:
    from measure.client import Client, Role, Run
    from measure.data import DataSet
    from measure.plan import Step
    from measure.report import ServerBenchReport, ServerReport
    from measure.server import Server
    from patchset.archive import Progress
    from patchset.report import Report

CODES = EXIT_CODES + " 130: interrupted; what was measured until then is in the report."


@click.option("--url", help="Server with the drafter, e.g. http://localhost:8000.")
@click.option("--baseline-url", help="Server without one; alone, for a later --baseline.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="report.json of an earlier run with --baseline-url.",
)
@click.option("--model", help="Name of the model, where a server has several.")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    help="Python with vLLM, for its benchmark client; if left out, that of the command vllm, or "
    "python3.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="NAME=FILE",
    help='JSON lines such as {"prompt": "...", "category": "code"}; may be repeated. If left out: '
    "60 prompts of ours, in six categories.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), help="So many prompts of each category at most."
)
@click.option("--concurrency", default="1,4,16,64", help="Requests at once, one number or several.")
@click.option(
    "--output-tokens",
    type=click.IntRange(min=1),
    default=256,
    help="The most tokens of an answer.",
)
@click.option("--tokenizer", help="Folder or hub id of the tokenizer, if not the server's model.")
@click.option("--trust-remote-code", is_flag=True, help="For a tokenizer that brings its own code.")
@click.option(
    "--extra-body",
    metavar="JSON",
    help='Laid into each request, e.g. {"chat_template_kwargs": {"thinking": false}}.',
)
@click.option("--drafter", help="Folder or hub id, for published values and the doctor.")
@click.option("--target", help="The same of the target, if not as the server names it.")
@click.option("--gpus", help="The server's cards, for the doctor, e.g. 8xB200.")
@click.option("--patch-set", help="Digest of the server's patch set, if nothing here tells it.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the report; if left out, out/bench-DATE-TIME.",
)
@json_option
def bench_server(
    url: str | None,
    baseline_url: str | None,
    baseline: Path | None,
    model: str | None,
    python: Path | None,
    data: tuple[str, ...],
    limit: int | None,
    concurrency: str,
    output_tokens: int,
    tokenizer: str | None,
    trust_remote_code: bool,
    extra_body: str | None,
    drafter: str | None,
    target: str | None,
    gpus: str | None,
    patch_set: str | None,
    out: Path | None,
    json: bool,
) -> None:
    """Drive a running vLLM server with vLLM's own benchmark client and write what it did.

    Acceptance comes from the server's counters, read before and after each run; whatever else it
    served meanwhile is named. Interrupt it whenever you like: what was measured stays.
    """

    def interrupt(number: int, frame: object) -> None:
        # The client has to be ended on the way out, which a plain SIGTERM would not allow.
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)

    def job(progress: Progress) -> Report:
        from dataclasses import replace
        from datetime import UTC, datetime

        from measure.client import find_client
        from measure.context import patch_set as find_patch_set
        from measure.context import verdict
        from measure.plan import plan
        from measure.published import published_for
        from measure.report import ServerBenchReport, baseline_of, read_report, server_report
        from measure.server import look
        from patchset.errors import UsageFault
        from patchset.project import Project
        from patchset.report import schema

        if url is None and baseline_url is None:
            raise UsageFault(
                "--url names the server to measure, or --baseline-url a baseline alone"
            )
        if baseline is not None and (url is None or baseline_url is not None):
            raise UsageFault("--baseline goes with --url, and takes the place of --baseline-url")
        levels = _numbers(concurrency)
        sets = _data_sets(data, limit)
        extra = _object(extra_body)
        found = find_client(python or _default_python())
        client = replace(
            found, tokenizer=tokenizer, trust_remote_code=trust_remote_code, extra=extra
        )
        servers: dict[Role, Server] = {}
        if url is not None:
            servers["drafter"] = look(url, model, drafting=True)
        if baseline_url is not None:
            servers["baseline"] = look(baseline_url, model, drafting=False)
        told = [
            server_report(role, server, *find_patch_set(server, client, patch_set))
            for role, server in servers.items()
        ]
        steps = plan(servers, sets, levels)
        measured = list(dict.fromkeys(step.data.report() for step in steps))
        earlier: list[Run] = []
        if baseline is not None:
            old_servers, earlier = baseline_of(
                read_report(baseline), baseline, measured, output_tokens
            )
            told += old_servers
        said, unsaid = (
            verdict(Project.here(), servers["drafter"], target, drafter, gpus)
            if "drafter" in servers
            else (None, "not asked: there is no drafter")
        )
        folder = _folder(out)
        start = ServerBenchReport(
            schema=schema("bench-server"),
            result="done",
            exit_code=0,
            message="",
            taken=datetime.now(UTC).isoformat(timespec="seconds"),
            stopped=None,
            servers=told,
            client=client.version,
            output_tokens=output_tokens,
            data=measured,
            runs=[],
            acceptance=[],
            speed_ups=[],
            published=list(published_for(drafter)) if drafter else [],
            verdict=said,
            verdict_missing=unsaid,
            notes=_differences(told),
            written=[],
        )
        return _measure(start, steps, client, earlier, folder)

    execute("bench-server", json, job)


def _measure(
    start: ServerBenchReport, steps: list[Step], client: Client, earlier: list[Run], folder: Path
) -> ServerBenchReport:
    """Make the runs; the report in ``folder`` is whole after each of them."""
    from measure.plan import perform
    from measure.report import complete, save
    from patchset.errors import PatchsetError

    runs = list(earlier)
    bar = sys.stderr.isatty()

    def before(number: int, step: Step) -> None:
        say(f"[{number + 1}/{len(steps)}] {step} ...", error=True)

    def progress(done: int, of: int) -> None:
        if bar:
            print(f"\r      {done} of {of} answered ", end="", file=sys.stderr, flush=True)

    stopped, code = None, 0
    try:
        for one in perform(
            steps,
            client,
            output_tokens=start.output_tokens,
            logs=folder,
            before=before,
            progress=progress,
        ):
            runs.append(one)
            say("\r" * bar + f"      {one.told}", error=True)
            save(complete(start, runs, "still at it"), folder, pictures=False)
    except (KeyboardInterrupt, PatchsetError) as fault:
        if len(runs) == len(earlier):
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        done = f"after {len(runs) - len(earlier)} of {len(steps)} runs"
        if isinstance(fault, PatchsetError):
            stopped, code = f"{fault.message} {done}", fault.exit_code
        else:
            stopped, code = f"interrupted by the user {done}", 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # seconds from the end: let it be written
    return save(complete(start, runs, stopped, code), folder, pictures=True)


def _numbers(text: str) -> list[int]:
    from patchset.errors import UsageFault

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= 4096 for word in words):
        raise UsageFault(f"--concurrency {text!r} is no list of numbers such as 1,4,16")
    return [int(word) for word in words]


def _object(text: str | None) -> dict[str, object]:
    import json

    from patchset.errors import UsageFault

    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageFault(f"--extra-body {text!r} is no JSON object")
    return found


def _data_sets(named: tuple[str, ...], limit: int | None) -> list[DataSet]:
    from measure.data import OURS, read_data
    from patchset.errors import UsageFault

    if not named:
        return [read_data("prompts", OURS, limit)]
    sets = []
    for item in named:
        name, equals, path = item.partition("=")
        if not (name and equals and path):
            raise UsageFault(f"--data {item} is not NAME=FILE")
        sets.append(read_data(name, Path(path), limit))
    if len({one.name for one in sets}) < len(sets):
        raise UsageFault("two --data have one name")
    return sets


def _default_python() -> Path:
    """The Python beside the command vllm, or the first on the path."""
    program = shutil.which("vllm")
    if program and (beside := Path(program).parent / "python").exists():
        return beside
    return Path(shutil.which("python3") or sys.executable)


def _folder(out: Path | None) -> Path:
    """A new folder, or an empty one."""
    import time

    from patchset.errors import UsageFault

    folder = out or Path("out") / time.strftime("bench-%Y%m%d-%H%M%S")
    folder = Path(os.path.abspath(folder))
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageFault(f"{folder} is not empty", next_step="Name a new folder with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _differences(servers: list[ServerReport]) -> list[str]:
    """What makes two servers hard to compare."""
    if len(servers) < 2:
        return []
    one, two = servers
    notes = []
    if one.root != two.root:
        notes.append(f"the baseline serves {two.root}, the server with the drafter {one.root}")
    if one.version != two.version:
        notes.append(
            f"the baseline is vLLM {two.version}, the server with the drafter {one.version}"
        )
    return notes


app = command(bench_server, codes=CODES)

if __name__ == "__main__":
    run(app, "bench-server")
