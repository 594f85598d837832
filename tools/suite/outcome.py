"""What a check found, as it is kept on disk."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from patchset.releases import Strict

Status = Literal["passed", "failed", "skipped"]


class Outcome(Strict, frozen=True):
    """One check on one server.

    ``sentence`` says what was seen, or what is missing. ``figures`` are its numbers by name.
    ``kept`` is what the same check, or a later one, compares with; it is stored beside the report.
    """

    status: Status
    sentence: str
    figures: dict[str, Any] = msgspec.field(default_factory=dict)
    kept: Any = None
    seconds: float = 0.0


def passed(sentence: str, kept: Any = None, **figures: Any) -> Outcome:
    """It is as it must be."""
    return Outcome(status="passed", sentence=sentence, figures=figures, kept=kept)


def failed(sentence: str, **figures: Any) -> Outcome:
    """It is not."""
    return Outcome(status="failed", sentence=sentence, figures=figures)


def skipped(sentence: str) -> Outcome:
    """It could not be looked at; ``sentence`` says what that needs."""
    return Outcome(status="skipped", sentence=sentence)
