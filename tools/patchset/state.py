"""``state.json``: what was applied to a tree, and what it takes to undo it exactly."""

from __future__ import annotations

import base64
import os
import time
import zlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from patchset.errors import IntegrityFault
from patchset.lock import digest
from patchset.paths import noted_path
from patchset.record import Record, path_of
from patchset.releases import Sha256, Strict
from patchset.series import Change, Series
from patchset.transaction import MAX_NOTE, STATE, Edit, read_note
from patchset.tree import STATE_FOLDER, Tree, record_of

Time = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # in nanoseconds


class TouchedFile(Strict, frozen=True):
    """A file before and after. ``original`` is its old content, deflated, in base64."""

    path: str
    before: Sha256 | None
    after: Sha256 | None
    original: str | None
    mode: Annotated[int, Meta(ge=0, le=0o7777)] | None
    mtime_ns: Time | None

    def __post_init__(self) -> None:
        noted_path(self.path)


class RecordLine(Strict, frozen=True):
    """What RECORD said of a path: the whole line and its 0-based number; ``None``: nothing."""

    path: str
    line: str | None
    position: Annotated[int, Meta(ge=0)] | None

    def __post_init__(self) -> None:
        # An uninstall removes what RECORD lists.
        if self.path != f"{STATE_FOLDER}/{STATE}":
            noted_path(self.path)
        if self.line is not None and path_of(self.line) != self.path:
            raise ValueError(f"{self.line!r} is not a line of {self.path}")


class RecordLines(Strict, frozen=True):
    """The RECORD of an install: its old checksum, and the old line of each path we set."""

    path: str
    before: Sha256
    mtime_ns: Time
    lines: list[RecordLine]

    def __post_init__(self) -> None:
        noted_path(self.path)


class State(Strict, frozen=True):
    """Schema of ``state.json``. ``made``: folders that were created, innermost last."""

    schema: Literal["vllm-kimi-eagle3/state/1"]
    release: str
    digest: Sha256
    upto: int | None
    applied: str
    patches: list[str]
    files: Annotated[list[TouchedFile], Meta(min_length=1)]
    made: list[str]
    record: RecordLines | None

    def __post_init__(self) -> None:
        for path in self.made:
            noted_path(path)


def load_state(tree: Tree) -> State | None:
    """The state file of a tree, if it has one; :class:`IntegrityFault` if it is damaged."""
    if tree.state_dir is None:
        return None
    path = tree.state_dir / STATE
    try:
        return msgspec.json.decode(read_note(path), type=State)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as fault:
        raise IntegrityFault(
            f"{path}: is damaged",
            next_step="Remove it; the tree can then only be reversed with its own series.",
        ) from fault


def is_current(state: State, tree: Tree) -> bool:
    """Whether the tree's files are still those that the state file describes as applied."""
    return all(digest(tree.read(item.path)) == item.after for item in state.files)


def apply_edits(tree: Tree, series: Series, found: list[Change]) -> list[Edit]:
    """All edits that apply ``found`` to a folder tree: sources, RECORD and state file."""
    assert tree.state_dir is not None
    edits = [Edit("tree", item.path, item.before, item.after) for item in found]
    record = record_of(tree)
    state_path = tree.state_dir / STATE
    stale = state_path.read_bytes() if state_path.is_file() else None
    lines: RecordLines | None = None
    listed: Record | None = None
    if record is not None:
        listed = Record(record[1], str(tree.root / record[0]))
        own = f"{tree.state_dir.name}/{STATE}"
        old = [
            RecordLine(path=path, line=listed.line(path), position=listed.position(path))
            for path in [*(item.path for item in found), own]
        ]
        _relist(listed, found)
        # The state file is listed, so that an uninstall removes it; its own hash cannot be known
        # here, because it holds this RECORD's.
        listed.put_line(own, f"{own},,")
        lines = RecordLines(
            path=record[0],
            before=digest(record[1]) or "",
            mtime_ns=(tree.root / record[0]).stat().st_mtime_ns,
            lines=old,
        )
        edits.append(Edit("tree", record[0], record[1], listed.dump()))
    state = State(
        schema="vllm-kimi-eagle3/state/1",
        release=series.release,
        digest=series.digest,
        upto=series.upto,
        applied=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        patches=[patch.name for patch in series.patches],
        files=[_touched(tree, item) for item in found],
        made=_new_folders(tree, found),
        record=lines,
    )
    text = state.as_json(indent=1)
    edits.append(Edit("state", STATE, stale, text))
    return edits


def reverse_edits(tree: Tree, state: State) -> list[Edit]:
    """All edits that undo an applied tree from its state file."""
    assert tree.state_dir is not None
    edits: list[Edit] = []
    for item in state.files:
        original = _unpack(item.original)
        if digest(original) != item.before:
            raise IntegrityFault(f"{tree.state_dir / STATE}: its copy of {item.path} is damaged")
        edits.append(
            Edit("tree", item.path, tree.read(item.path), original, item.mode, item.mtime_ns)
        )
    record = record_of(tree)
    if record is None or state.record is None or record[0] != state.record.path:
        edits += _record_edits(tree, [Change(x.path, x.before, x.content) for x in edits])
    else:
        listed = Record(record[1], str(tree.root / record[0]))
        for was in state.record.lines:
            if was.line is None:
                listed.remove(was.path)
            elif listed.position(was.path) is not None:
                listed.put_line(was.path, was.line)
        gone = [was for was in state.record.lines if listed.position(was.path) is None]
        # In the old order, so that each position is right when its turn comes.
        for was in sorted(gone, key=lambda was: was.position or 0):
            if was.line is not None:
                listed.insert(was.position or 0, was.path, was.line)
        text = listed.dump()
        same = digest(text) == state.record.before
        mtime = state.record.mtime_ns if same else None
        edits.append(Edit("tree", record[0], record[1], text, None, mtime))
    edits.append(Edit("state", STATE, (tree.state_dir / STATE).read_bytes(), None))
    return edits


def restore_edits(tree: Tree, found: list[Change]) -> list[Edit]:
    """All edits that undo a tree of which no state file tells how it was, or only a stale one."""
    assert tree.state_dir is not None
    edits = [Edit("tree", item.path, item.before, item.after) for item in found]
    edits += _record_edits(tree, found)
    state_path = tree.state_dir / STATE
    if state_path.is_file():
        edits.append(Edit("state", STATE, state_path.read_bytes(), None))
    return edits


def _record_edits(tree: Tree, found: list[Change]) -> list[Edit]:
    """Make RECORD true after ``found``, and without a state file."""
    record = record_of(tree)
    if record is None or tree.state_dir is None:
        return []
    listed = Record(record[1], str(tree.root / record[0]))
    _relist(listed, found)
    listed.remove(f"{tree.state_dir.name}/{STATE}")
    return [Edit("tree", record[0], record[1], listed.dump())]


def _relist(listed: Record, found: list[Change]) -> None:
    for item in found:
        if item.after is None:
            listed.remove(item.path)
        else:
            listed.put(item.path, item.after)


def _touched(tree: Tree, item: Change) -> TouchedFile:
    status = os.stat(tree.root / item.path) if item.before is not None else None
    packed = None if item.before is None else zlib.compress(item.before, 1)
    return TouchedFile(
        path=item.path,
        before=digest(item.before),
        after=digest(item.after),
        original=None if packed is None else base64.b64encode(packed).decode("ascii"),
        mode=None if status is None else status.st_mode & 0o7777,
        mtime_ns=None if status is None else status.st_mtime_ns,
    )


def _unpack(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        inflater = zlib.decompressobj()
        # A few bytes can inflate to gigabytes; no more is taken than a source file can have.
        content = inflater.decompress(base64.b64decode(text, validate=True), MAX_NOTE)
        if not inflater.eof or inflater.unused_data:
            raise ValueError("its data does not end where it should")
        return content
    except (ValueError, zlib.error) as fault:
        raise IntegrityFault(f"{STATE}: is damaged") from fault


def _new_folders(tree: Tree, found: list[Change]) -> list[str]:
    missing: set[str] = set()
    for item in found:
        folder = Path(item.path).parent
        while item.after is not None and not (tree.root / folder).is_dir():
            missing.add(folder.as_posix())
            folder = folder.parent
    return sorted(missing)
