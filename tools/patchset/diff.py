"""Git-style unified diffs over bytes, applied exactly: no fuzz, no offset.

``unidiff`` does the parsing. Content stays bytes throughout (latin-1 maps each byte to one
character and back), so CRLF files and odd encodings survive. Lines end at ``\\n`` only.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from patchset.errors import DoesNotApply, IntegrityFault, Refused
from patchset.paths import PACKAGE, check_path

_HEADER_LINE = re.compile(
    r"^(diff --git a/(?P<old>\S.*) b/(?P<new>\S.*)"
    r"|new file mode 100644|deleted file mode 100644|index [0-9a-f]+\.\.[0-9a-f]+( 100644)?)\n$"
)
# What git writes after the last hunk of a mail: "-- ", its version, and an empty line.
_SIGNATURE = re.compile(rb"^-- \n[^\n]*\n\n?\Z", re.MULTILINE)


@dataclass(frozen=True)
class Hunk:
    """One change. ``old`` and ``new`` are the lines on each side, with their line ends.

    ``old_start`` and ``new_start`` are 0-based indices of the first line of each side.
    ``ends_file`` says that no context follows, so that the hunk must reach the end of the file.
    """

    old_start: int
    old: tuple[bytes, ...]
    new_start: int
    new: tuple[bytes, ...]
    ends_file: bool

    def reversed(self) -> Hunk:
        """The hunk that undoes this one."""
        return replace(
            self,
            old_start=self.new_start,
            old=self.new,
            new_start=self.old_start,
            new=self.old,
        )


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one file."""

    path: str
    action: Literal["add", "modify", "delete"]
    hunks: tuple[Hunk, ...]

    def reversed(self) -> FileDiff:
        """The diff that undoes this one."""
        opposite: dict[str, Literal["add", "modify", "delete"]] = {
            "add": "delete",
            "modify": "modify",
            "delete": "add",
        }
        hunks = tuple(hunk.reversed() for hunk in self.hunks)
        return FileDiff(self.path, opposite[self.action], hunks)

    def apply(self, content: bytes | None) -> bytes | None:
        """The file after this diff; ``None`` stands for "no such file" on both sides.

        Raises :class:`DoesNotApply` at the first line that is not exactly as the diff says.
        """
        if self.action == "add":
            if content is not None:
                first = split_lines(content)[:1]
                raise DoesNotApply(
                    self.path, 1, None, first[0] if first else b"", "the file already exists"
                )
            content = b""
        elif content is None:
            raise DoesNotApply(self.path, 1, _first(self.hunks), None, "the file is missing")
        lines = split_lines(content)
        result: list[bytes] = []
        cursor = 0
        for hunk in self.hunks:
            result += lines[cursor : hunk.old_start]
            self._match(hunk, lines)
            result += hunk.new
            cursor = hunk.old_start + len(hunk.old)
        result += lines[cursor:]
        if self.action == "delete":
            if result:
                raise DoesNotApply(
                    self.path, 1, None, result[0], "the file has more lines than the patch deletes"
                )
            return None
        return b"".join(result)

    def _match(self, hunk: Hunk, lines: list[bytes]) -> None:
        for offset, expected in enumerate(hunk.old):
            index = hunk.old_start + offset
            found = lines[index] if index < len(lines) else None
            if found != expected:
                raise DoesNotApply(self.path, index + 1, expected, found)
        end = hunk.old_start + len(hunk.old)
        if hunk.ends_file and end < len(lines):
            raise DoesNotApply(self.path, end + 1, None, lines[end])
        if hunk.old_start > len(lines):
            raise DoesNotApply(self.path, len(lines) + 1, _first((hunk,)), None)


def split_lines(content: bytes) -> list[bytes]:
    """The lines of a file with their ends; only ``\\n`` ends a line, as for git."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def named_paths(text: bytes, where: str) -> tuple[str, ...]:
    """The paths in a patch's git headers, checked, without parsing the rest."""
    found = re.findall(rb"^diff --git a/(.+) b/\1$", text, re.MULTILINE)
    if len(found) != len(re.findall(rb"^diff --git ", text, re.MULTILINE)):
        raise Refused(f"{where}: renames, copies or quotes a path")
    if not found:
        raise IntegrityFault(f"{where}: holds no 'diff --git' section")
    try:
        return tuple(check_path(path.decode("utf-8"), where) for path in found)
    except UnicodeDecodeError as fault:
        raise Refused(f"{where}: a path is not UTF-8") from fault


def parse_diff(
    text: bytes, where: str, folders: tuple[str, ...] = (PACKAGE,)
) -> tuple[FileDiff, ...]:
    """All file diffs of a patch file, in order.

    ``where`` names the patch in messages. Raises :class:`Refused` for what a series must not do
    (renames, copies, mode changes, binary files), :class:`UnsafePath` for a path outside
    ``folders``, and :class:`IntegrityFault` for text that is not a complete diff.
    """
    # Needed by few commands; importing it late keeps the others quick.
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    start = re.search(rb"^diff --git ", text, re.MULTILINE)
    if start is None:
        raise IntegrityFault(f"{where}: holds no 'diff --git' section")
    end = _SIGNATURE.search(text, start.start())
    body = text[start.start() : end.start() if end else len(text)]
    if not body.endswith(b"\n"):
        raise IntegrityFault(f"{where}: is cut off: the last line has no end")
    body = body.rstrip(b"\n") + b"\n"
    try:
        # io.StringIO splits at "\n" only, and translates nothing.
        parsed = PatchSet(io.StringIO(body.decode("latin-1"), newline="\n"))
    except (UnidiffParseError, ValueError, AssertionError) as fault:
        raise IntegrityFault(f"{where}: is not a valid diff: {str(fault).strip()}") from fault

    diffs: list[FileDiff] = []
    lines = 0
    for item in parsed:
        info = list(item.patch_info or [])
        diffs.append(_convert(item, info, where, folders))
        lines += len(info) + (2 if item else 0) + sum(1 + len(hunk) for hunk in item)
    # unidiff skips what it does not know; a skipped line is a change that would silently be lost.
    if lines != body.count(b"\n"):
        raise IntegrityFault(
            f"{where}: has lines between or after its hunks that belong to no hunk"
        )
    paths = [diff.path for diff in diffs]
    for path in paths:
        if paths.count(path) > 1:
            raise IntegrityFault(f"{where}: {path} appears more than once")
    return tuple(diffs)


def _convert(item: object, info: list[str], where: str, folders: tuple[str, ...]) -> FileDiff:
    """Turn unidiff's file (typed ``object``: its lists are untyped) into ours, checking all."""
    from unidiff.patch import PatchedFile

    assert isinstance(item, PatchedFile)
    header = _HEADER_LINE.match(info[0]) if info else None
    if header is None or header["old"] is None or header["old"] != header["new"]:
        raise Refused(f"{where}: renames, copies or quotes a path, or has no git header: {info}")
    for line in info:
        if not _HEADER_LINE.match(line):
            raise Refused(
                f"{where}: {header['old']}: only plain text changes of files with mode 100644 are "
                f"allowed, not {line.strip()!r}"
            )
    try:
        path = header["old"].encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as fault:
        raise Refused(f"{where}: a path is not UTF-8: {header['old']!r}") from fault
    check_path(path, where, folders)
    new_file = any(line.startswith("new file") for line in info)
    deleted = any(line.startswith("deleted file") for line in info)
    action: Literal["add", "modify", "delete"] = (
        "add" if new_file else "delete" if deleted else "modify"
    )
    names = (item.source_file, item.target_file)
    wanted = (
        "/dev/null" if new_file else f"a/{header['old']}",
        "/dev/null" if deleted else f"b/{header['old']}",
    )
    if names != wanted or (new_file and deleted):
        raise IntegrityFault(f"{where}: {path}: header says {wanted}, the diff {names}")
    if action == "modify" and not item:
        raise IntegrityFault(f"{where}: {path}: changes nothing")
    return FileDiff(path, action, tuple(_hunks(item, path, where)))


def _hunks(item: object, path: str, where: str) -> Iterator[Hunk]:
    from unidiff.patch import PatchedFile

    assert isinstance(item, PatchedFile)
    cursor = shift = 0
    for number, raw in enumerate(item, 1):
        place = f"{where}: {path}: hunk {number}"
        old: list[bytes] = []
        new: list[bytes] = []
        sides: tuple[list[bytes], ...] = ()
        changed = False
        for line in raw:
            value = line.value.encode("latin-1")
            if line.line_type == "\\":
                if not sides:
                    raise IntegrityFault(f"{place}: 'No newline' follows no line")
                for side in sides:
                    side[-1] = side[-1].removesuffix(b"\n")
                continue
            sides = {"+": (new,), "-": (old,)}.get(line.line_type, (old, new))
            changed |= len(sides) == 1
            for side in sides:
                side.append(value)
        if not changed:
            raise IntegrityFault(f"{place}: changes nothing")
        if len(old) != raw.source_length or len(new) != raw.target_length:
            raise IntegrityFault(f"{place}: its header does not match its lines")
        for side in (old, new):
            if any(not line.endswith(b"\n") for line in side[:-1]):
                raise IntegrityFault(f"{place}: a line without end is not the last one")
        # An empty side is numbered by the line before it, all others by their first line.
        old_start = raw.source_start - bool(old)
        new_start = raw.target_start - bool(new)
        if old_start < cursor or new_start != old_start + shift:
            raise IntegrityFault(f"{place}: its line numbers contradict the hunks before it")
        last = [line.line_type for line in raw if line.line_type != "\\"][-1]
        yield Hunk(old_start, tuple(old), new_start, tuple(new), ends_file=last in "+-")
        cursor = old_start + len(old)
        shift += len(new) - len(old)


def _first(hunks: tuple[Hunk, ...]) -> bytes | None:
    return hunks[0].old[0] if hunks and hunks[0].old else None
