"""What the command lines share: printing, progress, JSON and exit codes."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

# Until there is something to tidy up, Ctrl-C just ends the process: no traceback of an import. If
# the caller ignores it ("nohup", a job in the background), it stays ignored.
_handler = signal.getsignal(signal.SIGINT)
if _handler is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

if _missing := [name for name in ("click", "msgspec") if find_spec(name) is None]:
    # Started by another Python than that of the tools' environment.
    print(
        f"failed: {sys.executable} has no {_missing[0]}. Run the command with "
        "$(python3 tools/bootstrap.py env requirements/tools.txt)",
        file=sys.stderr,
    )
    sys.exit(5)

import click as click  # noqa: E402 - the commands take it from here, so that it comes after that

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.errors import PatchsetError
    from patchset.report import Report

# How the last line begins, by exit code; see patchset.errors for the codes.
_FAILED = {2: "bad usage", 3: "refused", 4: "integrity failure", 5: "failed"}
_WORD = {
    "done": "done and verified",
    "nothing-to-do": "nothing to do",
    "would-do": "would do",
    "state": "state",
    "conflict": "stopped",
    "error": "integrity failure",
    "go": "go",
    "warned": "go, with care",
    "stop": "stop",
    "partial": "stopped early",
}

EXIT_CODES = (
    "Exit codes: 0 done or nothing to do, 1 unexpected, 2 bad usage, 3 refused, "
    "4 integrity failure, 5 network or environment."
)


json_option = click.option("--json", is_flag=True, help="Print one JSON document.")


def command(function: Callable[..., None], codes: str = EXIT_CODES) -> click.Command:
    """Make a function with click's options a command whose help ends with the exit codes."""
    settings = {"show_default": True}
    return click.command(epilog=codes, context_settings=settings)(function)


def run(app: click.Command, name: str) -> None:
    """Run ``app`` on ``sys.argv``; with ``--json``, usage errors are JSON as well."""
    gc.disable()  # a short life with little garbage: collecting costs a tenth of the start
    os.environ["GIT_PYTHON_REFRESH"] = "quiet"  # no git: that is said where git is needed
    for stream in (sys.stdout, sys.stderr):
        # A name that cannot be printed as it is must not lose the rest of the line.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with _printing():
        _parse(app, name)


def _parse(app: click.Command, name: str) -> None:
    if "--json" not in sys.argv:
        app()
        return
    try:
        app.main(standalone_mode=False)
    except click.ClickException as fault:
        _print_failure(name, fault.format_message(), 2, "usage", as_json=True)
        sys.exit(2)


def execute(name: str, as_json: bool, job: Callable[[Progress], Report]) -> None:
    """Run ``job`` with a progress callback, print its report and leave with its exit code."""
    with _printing():
        _execute(name, as_json, job)


def _execute(name: str, as_json: bool, job: Callable[[Progress], Report]) -> None:
    from patchset.errors import EnvironmentFault, PatchsetError

    try:
        if _handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, _handler)
        with _progress(as_json) as progress:
            report = job(progress)
    except PatchsetError as fault:
        _print_fault(name, fault, as_json)
        sys.exit(fault.exit_code)
    except OSError as fault:
        place = os.fsdecode(fault.filename) if isinstance(fault.filename, str | bytes) else None
        where = "the system refuses" if place is None else place
        refusal = EnvironmentFault(f"{where}: {fault.strerror or fault}")
        _print_fault(name, refusal, as_json)
        sys.exit(refusal.exit_code)
    except KeyboardInterrupt:
        _print_failure(name, "interrupted by the user", 130, "interrupted", as_json)
        sys.exit(130)
    except Exception:
        # A defect of ours: the traceback is wanted.
        import traceback

        traceback.print_exc()
        message = "unexpected fault in the tool; please report the lines above"
        _print_failure(name, message, 1, "unexpected", as_json)
        sys.exit(1)
    if as_json:
        _print_json(report)
    else:
        for line in getattr(report, "lines", list)():
            say(line)
        say(f"{_WORD[report.result]}: {report.message}")
    sys.exit(report.exit_code)


def say(text: str, *, error: bool = False) -> None:
    """Print a line as it is: no markup, and no wrapping of paths."""
    print(text, file=sys.stderr if error else sys.stdout)


@contextmanager
def _printing() -> Iterator[None]:
    """Say in a line that the output cannot be written; the work itself is over by then."""
    try:
        try:
            yield
        finally:
            if sys.stdout:
                sys.stdout.flush()
    except OSError as fault:
        with suppress(OSError):
            say(f"failed: the output cannot be written: {fault.strerror}", error=True)
        # Python flushes once more at its end, and would complain again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        sys.exit(5)


def _print_json(report: Report) -> None:
    import msgspec

    # Not its own JSON: that takes no name that is not UTF-8.
    print(json.dumps(msgspec.to_builtins(report), indent=2))


def _print_fault(name: str, fault: PatchsetError, as_json: bool) -> None:
    if as_json:
        from patchset.report import error_report

        _print_json(error_report(name, fault))
        return
    from patchset.report import harmless

    step = f" {fault.next_step}" if fault.next_step else ""
    end = "" if fault.message.endswith((".", "!", "?")) else "."
    say(
        f"{_FAILED.get(fault.exit_code, 'failed')}: {harmless(fault.message)}{end}{step}",
        error=True,
    )


def _print_failure(name: str, message: str, code: int, kind: str, as_json: bool) -> None:
    if not as_json:
        say(f"failed: {message}", error=True)
        return
    detail = {"kind": kind, "message": message, "next_step": None, "path": None, "line": None}
    head = {"schema": f"vllm-kimi-eagle3/{name}/1", "result": "error", "exit_code": code}
    print(json.dumps({**head, "message": message, "error": detail}, indent=2))


@contextmanager
def _progress(as_json: bool) -> Iterator[Progress]:
    """A bar per kind of work on standard error, when somebody is there to see it."""
    if as_json or not sys.stderr.isatty():
        told: set[tuple[str, int]] = set()

        def note(what: str, done: int, total: int) -> None:
            # In a log, one line per kind of long work is what helps.
            if (what, total) not in told and total > 1 << 24 and not as_json:
                told.add((what, total))
                say(f"{what} ({total / 1e6:.0f} MB) ...", error=True)

        yield note
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    color = None if "NO_COLOR" not in os.environ else False
    console = Console(stderr=True, no_color=color is False)
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, object] = {}

        def show(what: str, done: int, total: int) -> None:
            task = tasks.get(what)
            if task is None:
                task = tasks[what] = bars.add_task(what, total=total)
            bars.update(task, completed=done, total=total)  # type: ignore[arg-type]

        yield show
