"""One server after another, every check on each, and what was found on disk at once."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from standin.engine import EngineFailed, Server

from advice.logs import cure_of, diagnose, read_log
from patchset.errors import PatchsetError, Refused
from patchset.faults import load_faults
from patchset.paths import write_whole
from patchset.project import Project
from suite.checks import CHECKS, Check, Context
from suite.outcome import Outcome, failed, skipped
from suite.talk import reason

_DEATHS = 2  # of one server, after which it is not started again


@dataclass(frozen=True)
class Configuration:
    """A server to look at.

    ``start`` gets the file for its log. ``baseline`` is the name of the configuration without a
    drafter, None for that one itself.
    """

    name: str
    start: Callable[[Path], AbstractContextManager[Server]]
    context: Context
    baseline: str | None = None


class Campaign:
    """Runs checks when their outcomes are asked for, and keeps every outcome in ``folder``.

    ``asked`` says what is looked at: cards, release, patch set, models. What ``folder`` holds of
    the same is taken up: a check that passed is not run again. Raises :class:`Refused` for a folder
    of something else.
    """

    def __init__(
        self,
        folder: Path,
        asked: Mapping[str, Any],
        configurations: Sequence[Configuration],
        told: Callable[[str], None],
        checks: Mapping[str, Check] = CHECKS,
    ) -> None:
        self.folder, self.asked, self.told, self.checks = folder, dict(asked), told, checks
        self.configurations = {item.name: item for item in configurations}
        self.outcomes: dict[str, dict[str, Outcome]] = {}
        self._stack = ExitStack()
        self._server: tuple[str, Server] | None = None
        self._deaths: dict[str, list[str]] = {}
        self._read()

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server that runs, if one does."""
        self._server = None
        self._stack.close()

    def outcome(self, configuration: str, check: str) -> Outcome:
        """The outcome of a check on a configuration's server; made now unless it passed before."""
        known = self.outcomes.setdefault(configuration, {})
        if check in known and known[check].status == "passed":
            return known[check]
        self.told(f"{configuration}: {check} ...")
        started = time.monotonic()
        found = self._perform(self.configurations[configuration], check)
        found = msgspec.structs.replace(found, seconds=round(time.monotonic() - started, 1))
        self.told(f"{configuration}: {check} {found.status}: {found.sentence}")
        known[check] = found
        self._write(configuration, check)
        return found

    def _perform(self, wanted: Configuration, check: str) -> Outcome:
        deaths = self._deaths.get(wanted.name, [])
        if len(deaths) >= _DEATHS:
            return skipped(f"needs a server that stays: {deaths[0]}")
        context = replace(
            wanted.context,
            kept=self._kept(wanted.name),
            reference=self._kept(wanted.baseline) if wanted.baseline else None,
            told=lambda text: self.told(f"    {text}"),
        )
        try:
            server = self._running(wanted)
        except PatchsetError as fault:
            return skipped(fault.message)
        except EngineFailed as fault:
            said = first_cause(self._log(wanted.name)) or str(fault).partition("\n")[0]
            self._deaths[wanted.name] = [f"it did not start: {said}"] * _DEATHS
            return failed(f"the server did not start: {said}")
        grace = 0.5
        try:
            found = self.checks[check](server, context)
        except Exception as fault:
            found = failed(f"cut short by {reason(fault)}")
            grace = 2.0
        if found.status != "failed":
            return found
        # A process that dies closes its connections first.
        with suppress(subprocess.TimeoutExpired):
            status = server.process.wait(grace)
            said = first_cause(server.log) or "its log names no cause"
            self._deaths.setdefault(wanted.name, []).append(f"it died in {check}: {said}")
            self.stop()
            return failed(
                f"the server ended with status {status}: {said}. The check: {found.sentence}",
                **found.figures,
            )
        return found

    def _running(self, wanted: Configuration) -> Server:
        name, server = self._server or ("", None)
        if server and name == wanted.name and server.process.poll() is None:
            return server
        self.stop()
        log = self._log(wanted.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():  # an earlier start's, which may tell why this one is made
            log.replace(log.with_suffix(f".{datetime.now(UTC):%Y%m%dT%H%M%S}.log"))
        server = self._stack.enter_context(wanted.start(log))
        self._server = wanted.name, server
        return server

    def _log(self, configuration: str) -> Path:
        return self.folder / "logs" / f"{configuration}.log"

    def _kept(self, configuration: str) -> dict[str, Any]:
        outcomes = self.outcomes.get(configuration, {})
        return {name: o.kept for name, o in outcomes.items() if o.kept is not None}

    def _read(self) -> None:
        report = self.folder / "report.json"
        if not report.exists():
            return
        try:
            found = json.loads(report.read_bytes())
            same = found["asked"] == json.loads(json.dumps(self.asked))
            for name, checks in found["configurations"].items():
                for check, outcome in checks.items():
                    kept = self.folder / "kept" / name / f"{check}.json"
                    outcome["kept"] = json.loads(kept.read_bytes()) if kept.exists() else None
                    read = msgspec.convert(outcome, Outcome)
                    self.outcomes.setdefault(name, {})[check] = read
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as fault:
            raise Refused(
                f"{report}: is no report of this suite: {fault}",
                next_step="Give another folder, or remove this one.",
            ) from fault
        if not same:
            raise Refused(
                f"{report}: is about something else: {json.dumps(found['asked'])}",
                next_step="Give another folder, or remove this one.",
            )

    def _write(self, configuration: str, check: str) -> None:
        outcome = self.outcomes[configuration][check]
        kept = self.folder / "kept" / configuration / f"{check}.json"
        if outcome.kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, json.dumps(outcome.kept))
        elif kept.exists():
            kept.unlink()
        document = {
            "schema": "vllm-kimi-eagle3/suite/1",
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "asked": self.asked,
            "configurations": {
                name: {
                    each: {k: v for k, v in msgspec.to_builtins(item).items() if k != "kept"}
                    for each, item in checks.items()
                }
                for name, checks in self.outcomes.items()
                if checks
            },
        }
        write_whole(self.folder / "report.json", json.dumps(document, indent=2) + "\n")
        write_whole(self.folder / "report.txt", self.text())

    def text(self) -> str:
        """The report for a reader."""
        lines = [f"{key}: {value}" for key, value in self.asked.items()]
        for name, checks in self.outcomes.items():
            lines += ["", name]
            for check, found in checks.items():
                took = f"{found.seconds:.0f} s"
                lines.append(f"  {found.status:7}  {check:12}  {took:>7}  {found.sentence}")
        counts = [o.status for checks in self.outcomes.values() for o in checks.values()]
        wanted = len(self.configurations) * len(self.checks)
        told = ", ".join(f"{counts.count(s)} {s}" for s in ("passed", "failed", "skipped"))
        return "\n".join([*lines, "", f"{told}, {wanted - len(counts)} of {wanted} to come"]) + "\n"


def first_cause(log: Path) -> str | None:
    """What the log of a server that failed says first: a known fault with its cure, or an error."""
    if not log.exists():
        return None
    project = Project.here()
    found = diagnose(read_log(log), load_faults(project.root / "patches" / "faults.toml"))
    if (cause := found.cause) and cause.fatal:
        return f"{cause.fault.id}, {cause.fault.title} (line {cause.line} of {log}). " + cure_of(
            cause, project
        )
    if found.error:
        return f"{found.error.text.strip()} (line {found.error.number} of {log})"
    return None
