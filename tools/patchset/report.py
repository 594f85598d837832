"""What each command says, as data: the schema of ``--json``.

Every report has ``schema``, ``result``, ``exit_code`` and ``message``; ``message`` is also the last
line that a person sees. A change that breaks a reader raises the number in the schema's name.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from patchset.errors import DoesNotApply, PatchsetError
from patchset.releases import Strict

PREFIX = "vllm-kimi-eagle3"

Result = Literal["done", "nothing-to-do", "would-do", "state", "error"]


class Report(Strict):
    """The part common to all commands."""

    schema_: str = Field(alias="schema")
    result: Result
    exit_code: int
    message: str


class ErrorDetail(Strict):
    """An expected fault. ``path`` and ``line`` are set where a patch does not apply."""

    kind: str
    message: str
    next_step: str | None
    path: str | None = None
    line: int | None = None


class ErrorReport(Report):
    """Any command that failed; its schema is the command's own."""

    error: ErrorDetail


class WheelReport(Report):
    """``tools/build_wheel.py``, and ``tools/apply.py`` on a wheel. ``size`` is in bytes."""

    wheel: str
    version: str
    sha256: str
    size: int
    digest: str
    source: str
    source_sha256: str
    patches: list[str]


class LockReport(Report):
    """``tools/lock.py``."""

    release: str
    lock: str
    digest: str
    patches: list[str]
    paths: list[str]


class FetchReport(Report):
    """``tools/fetch.py``."""

    release: str
    file: str
    path: str
    sha256: str


def schema(command: str) -> str:
    """The schema name of a command's reports."""
    return f"{PREFIX}/{command}/1"


def error_report(command: str, fault: PatchsetError) -> ErrorReport:
    """The report for an expected fault."""
    place = (fault.path, fault.line) if isinstance(fault, DoesNotApply) else (None, None)
    return ErrorReport(
        schema=schema(command),
        result="error",
        exit_code=fault.exit_code,
        message=fault.message,
        error=ErrorDetail(
            kind=fault.kind,
            message=fault.message,
            next_step=fault.next_step,
            path=place[0],
            line=place[1],
        ),
    )
