"""Which fault a vLLM log shows: the first cause, not the last error.

Logs come coloured, prefixed by processes, containers and time stamps, as JSON lines, wrapped by a
terminal or a chat window, from many workers at once, and cut off anywhere. Only the text of the
lines counts here: prefixes are taken off, and what was wrapped is also read joined.
"""

from __future__ import annotations

import json
import os
import re
import stat
from bisect import bisect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from advice.release import MEETINGS
from advice.rules import rules_of
from patchset.errors import EnvironmentFault, UnknownRelease, UsageFault
from patchset.faults import Fault
from patchset.project import Project

# What is read of a longer log, in bytes: its start, where the first cause is, and its end.
LIMIT = 16 << 20

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])|[\x00-\x08\x0b-\x1f\x7f]"
)
# What stands before a line's own text, again and again until none is left: of container logs, of
# Ray and of vLLM's processes ("(EngineCore_DP0 pid=1) ", "(Worker_TP3 pid=1) ERROR 11-29 1:02:03").
# see vllm/logger.py and vllm/utils/system_utils.py. The "[core.py:936] " behind that is left: it
# says whose message it is.
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_PREFIXES = (
    re.compile(rf"{_STAMP}\s+(?:std(?:out|err)\s+[FP]\s+)?"),
    re.compile(r"\w{3} [ \d]\d \d\d:\d\d:\d\d \S+ \S+?(?:\[\d+\])?: "),
    re.compile(r"[\w.-]+\s*\| "),
    re.compile(r"\([^()]*\bpid=\d+[^()]*\)\s?"),
    re.compile(rf"{_LEVEL}(?::|\s+(?:\d{{4}}-)?\d\d-\d\d \d\d:\d\d:\d\d)\s*"),
)
_ERROR = re.compile(
    r"(?:^|[\s:])(?P<name>(?:\w+\.)*[A-Z]\w*(?:Error|Exception|OutOfResources)): \S"
)
_BARE = re.compile(r"^(?:\[[\w./-]+:\d+\])?\s*(?:\w+\.)*(?P<name>[A-Z]\w*(?:Error|Exception))\s*$")
# Errors that only say that another process failed.
_SECOND_HAND = re.compile(
    r"Engine core initialization failed|EngineDeadError|See (?:root cause|stack trace) \(?above"
    r"|WorkerProc initialization failed|Executor failed|ray\.exceptions|RayTaskError|cancelled"
)
_RELEASE = re.compile(
    r"(?:API server version|V1 LLM engine \(v?|[vV]LLM version|vllm[=-]=?|█\s+version)\s*v?"
    r"(?P<release>\d+\.\d+\.\d+)(?P<local>\+[\w.]+)?"
)
_QUIET = ("DEBUG", "INFO", "WARNING")
_JOINED = 6  # lines, at most, that a wrapped message takes


@dataclass(frozen=True)
class Line:
    """One line: its number in the log (from 1), its text without prefixes, its level if given.

    ``width`` is its length as it stood, prefixes and all: equal ones in a row were wrapped.
    """

    number: int
    text: str
    level: str | None
    prefixed: bool
    width: int


@dataclass(frozen=True)
class Finding:
    """A fault and where it shows first. ``fatal``: not in a line that is only a warning.

    ``release`` and ``local`` are the version that the log names last before it (``0.16.0``,
    ``+kimi.eagle3.1``): one file may hold several runs.
    """

    fault: Fault
    line: int
    text: str
    fatal: bool
    release: str | None
    local: str | None


@dataclass(frozen=True)
class Diagnosis:
    """What a log tells. ``findings`` are in the order of the log, one for each fault.

    ``release`` and ``local`` are the first version in the log, if one stands there. ``error`` is
    the first error of its own (not second hand), known or not.
    """

    release: str | None
    local: str | None
    findings: tuple[Finding, ...]
    error: Line | None

    @property
    def cause(self) -> Finding | None:
        """The first fault in an error line; without one, the first that is only hinted at."""
        return next((item for item in self.findings if item.fatal), None) or next(
            iter(self.findings), None
        )


def read_log(path: Path) -> str:
    """The text of a log file, of a huge one its first and last 8 MiB.

    Raises :class:`EnvironmentFault` if it cannot be read, :class:`UsageFault` if it is no text.
    """
    try:
        with (
            open(0, "rb", closefd=False) if str(path) == "-" else open(path, "rb", opener=_opened)
        ) as file:
            data = file.read(LIMIT + 1)
            if not data and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                raise UsageFault(f"{path}: nobody writes to that pipe", next_step="Name a file.")
            if len(data) > LIMIT:
                data = data[: LIMIT // 2]
                end = b""
                while more := file.read(LIMIT):  # what cannot be read from its end, in turn
                    end = (end + more)[-LIMIT // 2 :]
                data += b"\n" + end
    except OSError as fault:
        raise EnvironmentFault(f"{path}: cannot be read: {fault.strerror or fault}") from fault
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    packed = data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"BZh", b"\xfd7zXZ"))
    if packed or data[:4096].count(0) > 8:
        raise UsageFault(
            f"{path}: is not a text file", next_step="Give the log itself, unpacked if compressed."
        )
    return data.decode("utf-8", "replace")


def _opened(path: str, flags: int) -> int:
    """Open without waiting for somebody to write to a pipe; what one writes is waited for."""
    number = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(number, True)
    return number


def split_log(text: str) -> list[Line]:
    """The lines of a log without colours and prefixes; those without any text are left out."""
    lines = []
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, plain in enumerate(_ESCAPE.sub("", text).split("\n"), 1):
        if not plain.strip():
            continue
        for part in _from_json(plain).split("\n"):
            rest, level, prefixed = part, None, part is not plain
            while found := next((m for p in _PREFIXES if (m := p.match(rest))), None):
                level = found.groupdict().get("level") or level
                rest, prefixed = rest[found.end() :], True
            lines.append(Line(number, rest, level, prefixed, len(plain)))
    return lines


def _from_json(text: str) -> str:
    """The message of a line in JSON form, or the line as it is."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return text
    parts = [record.get(key) for key in ("message", "msg", "log", "exc_info", "exception")]
    found = "\n".join(part for part in parts if isinstance(part, str))
    return (
        f"{record.get('level') or record.get('levelname') or 'ERROR'}: {found}" if found else text
    )


class _Searchable:
    """Many passages in one text, so that a pattern is searched for once."""

    def __init__(self, passages: Sequence[tuple[Line, str]]) -> None:
        self._lines = [line for line, _ in passages]
        self._text = "\n".join(passage for _, passage in passages)
        self._starts = list(accumulate((len(text) + 1 for _, text in passages), initial=0))

    def lines_with(self, fault: Fault) -> list[Line]:
        """The lines whose passages show the fault."""
        return [self._lines[bisect(self._starts, at) - 1] for at in fault.places(self._text)]


def diagnose(text: str, faults: Sequence[Fault]) -> Diagnosis:
    """Find the faults of ``faults`` in a log's text.

    Where the log names its release, only faults that stock vLLM of it has count.
    """
    lines = split_log(text)
    versions = [(n.number, found) for n in lines if (found := _RELEASE.search(n.text))]
    starts = [number for number, _ in versions]

    def version(line: Line) -> tuple[str | None, str | None]:
        """The release and local part that the run of that line has."""
        if not versions:
            return None, None
        found = versions[max(0, bisect(starts, line.number) - 1)][1]
        return found["release"], found["local"]

    def has(fault: Fault, line: Line) -> bool:
        release = version(line)[0]
        return release is None or fault.affects(release)

    whole = _Searchable([(line, line.text) for line in lines])
    joined = _Searchable(_joined(lines))
    findings = []
    for fault in faults:
        hits = whole.lines_with(fault) or joined.lines_with(fault)
        if seen := [line for line in hits if has(fault, line)]:
            line = min(seen, key=lambda line: (line.level in _QUIET, line.number))
            fatal = line.level not in _QUIET
            where = line.number, line.text.strip(), fatal
            findings.append(Finding(fault, *where, *version(line)))
    first = versions[0][1] if versions else None
    return Diagnosis(
        release=first["release"] if first else None,
        local=first["local"] if first else None,
        findings=tuple(sorted(findings, key=lambda item: item.line)),
        error=next((line for line in lines if _is_error(line)), None),
    )


def _is_error(line: Line) -> bool:
    if line.level in _QUIET or _SECOND_HAND.search(line.text):
        return False
    return bool(_ERROR.search(line.text) or _BARE.match(line.text))


def _joined(lines: Sequence[Line]) -> list[tuple[Line, str]]:
    """Each run of lines that may be one wrapped message, joined in both ways, under its first line.

    A wrapped message goes on in lines without a prefix. Cut at a column, its parts have one width;
    cut between words, they are about as wide.
    """
    passages = []
    for start, first in enumerate(lines):
        end, widest = start + 1, first.width
        while (
            end < min(start + _JOINED, len(lines))
            and not lines[end].prefixed
            and lines[end].number == lines[end - 1].number + 1
            and lines[end - 1].width >= 0.6 * widest
            and lines[end].width <= 1.4 * widest
        ):
            widest = max(widest, lines[end].width)
            end += 1
        texts = [line.text for line in lines[start:end]]
        if len(texts) > 1:
            passages.append((first, "".join(texts)))
            passages.append((first, " ".join(text.strip() for text in texts)))
    return passages


def cure_of(finding: Finding, project: Project) -> str:
    """A sentence that says what to do about a fault, in the release that the log names for it."""
    fault, version = finding.fault, finding.release
    sentences = []
    rules = None
    with suppress(UnknownRelease):
        rules = rules_of(project, version) if version else None
    patches = [name[:4] for cured, name in rules.cures if cured == fault.id] if rules else []
    if patches and finding.local:
        sentences.append(
            f"Patch {', '.join(patches)} cures it and this engine calls itself {version}"
            f"{finding.local}: see with tools/apply.py ENVIRONMENT --status whether it is whole."
        )
    elif patches:
        sentences.append(
            f"Patch {', '.join(patches)} of the series cures it: make wheel RELEASE={version}."
        )
    meeting = MEETINGS.get(fault.id)
    if version and (note := fault.note(version)):
        sentences.append(f"{note[0].upper()}{note[1:]}.")
    elif meeting and meeting.cure and not patches:
        sentences.append(meeting.cure)
    spans = [span for span in fault.affected if version is None or span.covers(version)]
    if version is None:
        told = " and ".join(str(span) for span in fault.affected)
        sentences.append(f"The log names no release; affected: {told}.")
    elif spans and spans[0].healed:
        sentences.append(f"vLLM {spans[0].healed} is without it.")
    elif not patches:
        sentences.append("No release up to the newest pinned one is without it.")
    return " ".join(sentences)
