"""The faults of vLLM that this repository knows, as `patches/faults.toml` lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from packaging.version import Version

from patchset.errors import IntegrityFault
from patchset.releases import Strict, parse_toml

Grade = Literal["E", "S", "R", "?"]
Release = Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+\Z")]
Releases = Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+(\.\.\d+\.\d+\.\d+)?\Z")]


class Span(Strict, frozen=True):
    """Releases with a fault: from ``first`` up to, not including, ``healed`` (None: all later)."""

    first: Release
    healed: Release | None = None

    def covers(self, version: str) -> bool:
        """Whether that release lies in the span."""
        if Version(version) < Version(self.first):
            return False
        return self.healed is None or Version(version) < Version(self.healed)

    def __str__(self) -> str:
        return f"{self.first} – {f'before {self.healed}' if self.healed else ''}".rstrip()


class Fault(Strict, frozen=True, kw_only=True):
    """One defect or gap of vLLM. ``samples`` are log lines that show it, besides ``symptom``.

    ``pattern`` finds it in a log: in ``symptom``, or in ``samples`` where the symptom is a
    description. ``probe`` is a function of ``patchset.probes``; where none can tell,
    ``established`` says by what it is known. A key of ``notes`` is a release, or the first and last
    of several: ``0.15.0..0.17.1``.
    """

    id: Annotated[str, Meta(pattern=r"^F\d{2}\Z")]
    title: Annotated[str, Meta(min_length=1)]
    symptom: Annotated[str, Meta(min_length=1)]
    pattern: Annotated[str, Meta(min_length=1)]
    samples: list[str] = msgspec.field(default_factory=list)
    affected: Annotated[list[Span], Meta(min_length=1)]
    grade: Grade
    evidence: Annotated[str, Meta(min_length=1)]
    probe: str | None = None
    established: Annotated[str, Meta(min_length=1)] | None = None
    notes: dict[Releases, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except (re.error, OverflowError) as fault:
            raise ValueError(f"pattern: not a regular expression: {fault}") from fault
        if (self.probe is None) == (self.established is None):
            raise ValueError("either a probe or by what it was established")

    def affects(self, version: str) -> bool:
        """Whether stock vLLM of that version has the fault."""
        return any(span.covers(version) for span in self.affected)

    def note(self, version: str) -> str | None:
        """What is to be said about that release; its own note goes before those of several."""
        for releases, text in sorted(self.notes.items(), key=lambda item: ".." in item[0]):
            first, _, last = releases.partition("..")
            if Version(first) <= Version(version) <= Version(last or first):
                return text
        return None

    def seen_in(self, text: str) -> bool:
        """Whether `text` (a log, an error message) shows the fault."""
        return bool(self.places(text))

    def places(self, text: str) -> list[int]:
        """Where in `text` the fault shows, as offsets; its pattern stays within a line."""
        return [found.start() for found in re.finditer(self.pattern, text)]


class _File(Strict, frozen=True):
    fault: Annotated[list[Fault], Meta(min_length=1)]


def load_faults(path: Path) -> tuple[Fault, ...]:
    """Read and validate ``faults.toml``; :class:`IntegrityFault` names the faulty key."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as fault:
        raise IntegrityFault(f"{path}: is missing") from fault
    except UnicodeDecodeError as fault:
        raise IntegrityFault(f"{path}: is not valid TOML: {fault}") from fault
    faults = parse_toml(text, _File, str(path)).fault
    ids = [fault.id for fault in faults]
    if ids != sorted(set(ids)):
        raise IntegrityFault(f"{path}: the fault ids are not distinct and in order")
    return tuple(faults)
