"""What the doctor found: one :class:`Check` for each question, and the verdict over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from patchset.report import CheckReport

# In the order of their weight. pass: looked at and right. note: worth knowing, nothing to do.
# warn: it starts and is right, but something is lost, or could not be judged. stop: it will not
# start, or starts and drafts nothing of use.
Level = Literal["pass", "note", "warn", "stop"]
LEVELS: tuple[Level, ...] = get_args(Level)

# What the doctor leaves with. Not the codes of patchset.errors: those say that it could not judge.
EXIT_CODES: dict[Level, int] = {"pass": 0, "note": 0, "warn": 10, "stop": 11}


@dataclass(frozen=True)
class Check:
    """One question and its answer.

    ``id`` is stable and begins with its area: ``pair.fc``, ``release.F03``, ``card.backend``,
    ``memory.context``. ``what`` names what was looked at in a few words, ``reason`` is a sentence
    with the values found, ``cure`` a sentence that says what to do (``None``: nothing).

    ``fault`` is the fault of ``patches/faults.toml`` that this is about. ``flags`` are options that
    the command to run needs because of it, as ``("--kv-cache-dtype", "bfloat16")`` (an empty value:
    a switch); ``draft`` are entries that ``--speculative-config`` needs.
    """

    id: str
    level: Level
    what: str
    reason: str
    cure: str | None = None
    fault: str | None = None
    flags: tuple[tuple[str, str], ...] = ()
    draft: tuple[tuple[str, str | int], ...] = ()


def report_of(check: Check) -> CheckReport:
    """What a report says of ``check``."""
    return CheckReport(
        id=check.id,
        level=check.level,
        what=check.what,
        reason=check.reason,
        cure=check.cure,
        fault=check.fault,
    )


def worst(checks: Iterable[Check]) -> Level:
    """The verdict: the heaviest level among ``checks``."""
    return max((check.level for check in checks), key=LEVELS.index, default="pass")


def listed(values: Iterable[object]) -> str:
    """For a message: ``[2, 30, 58]``."""
    return "[" + ", ".join(str(value) for value in values) + "]"


def some(names: Sequence[str]) -> str:
    """For a message: the first three of many."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
