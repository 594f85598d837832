"""Many files changed as one: all of them or none, also through a crash.

1. ``journal.json`` (phase "staging") names every file that is about to appear.
2. Each new content is written and synced beside its target; each old file gets a second name.
3. The journal's phase becomes "committing". From here on the change will be completed.
4. The staged files are renamed over their targets; stale bytecode and the second names go away.
5. The journal is removed.

A run that dies before 3 leaves the old tree plus files that the journal names: :func:`recover`
removes them. One that dies after 3 is completed by :func:`recover`. An error (not a crash) during 4
is undone at once with the second names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from patchset.errors import Busy, EnvironmentFault, IntegrityFault, Refused, UnsafePath
from patchset.lock import digest
from patchset.paths import locate, noted_path
from patchset.releases import Sha256, Strict

JOURNAL = "journal.json"
_NEW = ".kimi-eagle3-new"
_OLD = ".kimi-eagle3-old"

STATE = "state.json"
MAX_NOTE = 1 << 26  # bytes of a state file or journal: 64 MiB, when those for vLLM have under 1
NEW_MODE = 0o644  # of a file that was not there before

Base = Literal["tree", "state"]
Action = Literal["apply", "reverse"]


@dataclass(frozen=True)
class Edit:
    """One file to write (``content``) or delete (``None``).

    ``base`` says whether ``path`` is below the tree's root or below the state folder. ``before`` is
    the content it must have now (``None``: it must not exist). ``mode`` and ``mtime_ns`` are set on
    the new file; left out, it keeps the old file's mode and gets the present time.
    """

    base: Base
    path: str
    before: bytes | None
    content: bytes | None
    mode: int | None = None
    mtime_ns: int | None = None


class JournalEdit(Strict, frozen=True):
    """An edit as the journal remembers it."""

    base: Base
    path: str
    before: Sha256 | None
    after: Sha256 | None

    def __post_init__(self) -> None:
        if self.base == "state" and self.path != STATE:
            raise ValueError(f"{self.path!r} is no state file")
        if self.base == "tree":
            noted_path(self.path)


class Journal(Strict, frozen=True):
    """Schema of ``journal.json``. ``made`` are folders that the run creates, outermost first."""

    schema: Literal["vllm-kimi-eagle3/journal/1"]
    phase: Literal["staging", "committing"]
    action: Action
    started: str
    edits: list[JournalEdit]
    made: list[str]
    removed: list[str]

    def __post_init__(self) -> None:
        for path in (*self.made, *self.removed):
            noted_path(path)


class Files:
    """The system calls a transaction makes, one by one, so that tests can break each of them."""

    def create(self, path: Path, content: bytes) -> None:
        """Write a new file; it must not exist."""
        with path.open("xb") as stream:
            stream.write(content)

    def sync(self, path: Path) -> None:
        """Make a file, or the names in a folder, durable."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as fault:
            # Some file systems cannot sync a folder; there is nothing more to be had there.
            if fault.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(handle)

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name."""
        os.link(old, new)

    def rename(self, old: Path, new: Path) -> None:
        """Replace ``new`` by ``old`` in one step."""
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        """Remove a name, if it is there."""
        path.unlink(missing_ok=True)

    def mkdir(self, path: Path) -> None:
        """Make one folder."""
        path.mkdir()

    def rmdir(self, path: Path) -> None:
        """Remove a folder if it is there and empty."""
        try:
            path.rmdir()
        except OSError as fault:
            if fault.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def set_mode(self, path: Path, mode: int) -> None:
        """chmod."""
        path.chmod(mode)

    def set_owner(self, path: Path, uid: int, gid: int) -> None:
        """chown."""
        os.chown(path, uid, gid)

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Set the time of the last change."""
        os.utime(path, ns=(mtime_ns, mtime_ns))


@dataclass
class Transaction:
    """A set of edits on one tree. Call :meth:`run` while holding :func:`exclusive`."""

    root: Path
    state_dir: Path
    action: Action
    edits: list[Edit]
    removed: tuple[str, ...] = ()
    """Folders below the root to remove afterwards if they are empty, innermost first."""
    files: Files = Files()  # noqa: RUF009 - it has no state

    def run(self) -> None:
        """Do it. Raises :class:`EnvironmentFault`, with everything as before, if it cannot."""
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        journal = Journal(
            schema="vllm-kimi-eagle3/journal/1",
            phase="staging",
            action=self.action,
            started=started,
            edits=[
                JournalEdit(
                    base=edit.base,
                    path=edit.path,
                    before=digest(edit.before),
                    after=digest(edit.content),
                )
                for edit in self.edits
            ],
            made=self._missing_folders(),
            removed=list(self.removed),
        )
        work = _Work(self.root, self.state_dir, journal, self.files)
        try:
            work.begin()
            for edit in self.edits:
                self._stage(work, edit)
            work.sync_folders()
            work.write_journal("committing")
            work.commit()
        except BaseException as fault:  # also the user's Ctrl-C
            with contextlib.suppress(OSError):  # what cannot be undone now is left to recover()
                work.roll_back()
            if isinstance(fault, OSError):
                raise _unwritable(fault) from fault
            raise
        try:
            work.finish()
        except OSError as fault:
            raise EnvironmentFault(
                f"{fault.filename}: the change is complete, but cannot be tidied up: "
                f"{fault.strerror}",
                next_step="Check permissions and run this again.",
            ) from fault

    def _missing_folders(self) -> list[str]:
        missing: set[str] = set()
        for edit in self.edits:
            if edit.base == "tree" and edit.content is not None:
                folder = Path(edit.path).parent
                while not (self.root / folder).is_dir():
                    missing.add(folder.as_posix())
                    folder = folder.parent
        return sorted(missing)

    def _stage(self, work: _Work, edit: Edit) -> None:
        target = work.place(edit.base, edit.path)
        new = _beside(target, _NEW)
        status = target.stat() if edit.before is not None else None
        if edit.content is not None:
            self.files.create(new, edit.content)
            mode = edit.mode
            if mode is None:
                mode = NEW_MODE if status is None else status.st_mode & 0o7777
            work.settle(new, mode, status)
            mtime = edit.mtime_ns
            if mtime is None and status is not None:
                mtime = _distinct_mtime(status, new.stat())
            if mtime is not None:
                self.files.set_mtime(new, mtime)
            self.files.sync(new)
        if status is not None:
            old = _beside(target, _OLD)
            try:
                self.files.link(target, old)
            except OSError as fault:
                # No hard links here, or not to somebody else's file: a copy does as well.
                if fault.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                    raise
                assert edit.before is not None
                self.files.create(old, edit.before)
                work.settle(old, status.st_mode & 0o7777, status)
                self.files.set_mtime(old, status.st_mtime_ns)
                self.files.sync(old)


@dataclass
class _Work:
    """The steps shared by a run and by its recovery; each can be repeated after a crash."""

    root: Path
    state_dir: Path
    journal: Journal
    files: Files

    def place(self, base: Base, path: str) -> Path:
        return locate(self.root if base == "tree" else self.state_dir, path)

    def targets(self) -> Iterator[tuple[JournalEdit, Path]]:
        for edit in self.journal.edits:
            yield edit, self.place(edit.base, edit.path)

    def settle(self, path: Path, mode: int, like: os.stat_result | None = None) -> None:
        """Give a new file the owner of ``like``, or else of the folder it is in, and its mode.

        Neither who runs this nor their umask may decide who can read the tree.
        """
        like = like or path.parent.stat()
        try:
            self.files.set_owner(path, like.st_uid, like.st_gid)
        except OSError as fault:
            # Only root may give files away, and not to an owner that has no number here.
            if fault.errno not in (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP):
                raise
        self.files.set_mode(path, mode)

    def make_folder(self, path: Path) -> None:
        self.files.mkdir(path)
        self.settle(path, 0o755 | path.parent.stat().st_mode & stat.S_ISGID)

    def begin(self) -> None:
        if not self.state_dir.is_dir():
            self.make_folder(self.state_dir)
            self.files.sync(self.state_dir.parent)
        self.write_journal("staging")
        for folder in self.journal.made:
            place = self.place("tree", folder)
            self.make_folder(place)
            self.files.sync(place.parent)

    def write_journal(self, phase: Literal["staging", "committing"]) -> None:
        self.journal = msgspec.structs.replace(self.journal, phase=phase)
        text = self.journal.as_json(indent=1)
        path = self.state_dir / JOURNAL
        new = _beside(path, _NEW)
        self.files.unlink(new)
        self.files.create(new, text)
        self.settle(new, NEW_MODE)
        self.files.sync(new)
        self.files.rename(new, path)
        self.files.sync(self.state_dir)

    def commit(self) -> None:
        for edit, target in self.targets():
            if edit.after is None:
                self.files.unlink(target)
            elif (new := _beside(target, _NEW)).exists():
                self.files.rename(new, target)
        for edit, target in self.targets():
            if edit.base == "tree":
                self.purge_bytecode(target)
        self.sync_folders()

    def finish(self) -> None:
        for _, target in self.targets():
            self.files.unlink(_beside(target, _OLD))
        for folder in self.journal.removed:
            self.files.rmdir(self.place("tree", f"{folder}/__pycache__"))
            self.files.rmdir(self.place("tree", folder))
        self.close()

    def roll_back(self) -> None:
        """Return to the old files, each as far as that can be done.

        Raises the first error; the journal then stays, and the rest is left to :func:`recover`.
        """
        failed: OSError | None = None
        for edit, target in self.targets():
            try:
                self._restore(edit, target)
            except OSError as fault:
                failed = failed or fault
        if failed:
            raise failed
        for folder in reversed(self.journal.made):
            self.files.rmdir(self.place("tree", f"{folder}/__pycache__"))
            self.files.rmdir(self.place("tree", folder))
        self.close()

    def _restore(self, edit: JournalEdit, target: Path) -> None:
        old = _beside(target, _OLD)
        self.files.unlink(_beside(target, _NEW))
        found = _digest_of(target)
        if found != edit.before:
            if edit.before is not None:
                self.files.rename(old, target)
            elif found == edit.after:
                self.files.unlink(target)
        self.files.unlink(old)
        if edit.base == "tree":
            self.purge_bytecode(target)

    def close(self) -> None:
        if self.state_dir.is_dir():
            self.files.unlink(_beside(self.state_dir / JOURNAL, _NEW))
            self.files.unlink(self.state_dir / JOURNAL)
            self.files.sync(self.state_dir)
            self.files.rmdir(self.state_dir)

    def sync_folders(self) -> None:
        for folder in sorted({target.parent for _, target in self.targets()}):
            if folder.is_dir():
                self.files.sync(folder)

    def purge_bytecode(self, target: Path) -> None:
        """Remove what any interpreter compiled from ``target``.

        Interpreters recompile when time or size differ; a copy that kept the time, or bytecode that
        is never checked, would survive that.
        """
        cache = target.parent / "__pycache__"
        if target.suffix == ".py" and cache.is_dir():
            for name in os.listdir(cache):
                if name.startswith(f"{target.stem}.") and name.endswith(".pyc"):
                    self.files.unlink(cache / name)


def read_note(path: Path) -> bytes:
    """A state file or journal; what is longer than any that these tools write is cut, so damaged.

    A forged one must not fill the memory.
    """
    with path.open("rb") as stream:
        return stream.read(MAX_NOTE)


def interrupted(state_dir: Path) -> Journal | None:
    """The journal of a run that did not end, if there is one. Changes nothing."""
    path = state_dir / JOURNAL
    try:
        return msgspec.json.decode(read_note(path), type=Journal)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
    except msgspec.DecodeError as fault:
        raise IntegrityFault(
            f"{path}: is not a journal that these tools wrote",
            next_step="Restore the tree from its origin; this file says what was being changed.",
        ) from fault


def recover(root: Path, state_dir: Path, files: Files | None = None) -> str | None:
    """Complete or undo an interrupted run; returns a sentence about it, or ``None``.

    Refuses when somebody changed one of its files in the meantime.
    """
    files = files or Files()
    if state_dir.is_symlink():
        raise UnsafePath(f"{state_dir}: is a symbolic link")
    journal = interrupted(state_dir)
    if journal is None:
        if state_dir.is_dir():
            _tidy(state_dir, files)
        return None
    work = _Work(root, state_dir, journal, files)
    what = f"an interrupted {journal.action} of {journal.started}"
    try:
        if journal.phase == "staging":
            work.roll_back()
            return f"{what} was undone: it had changed nothing yet"
        complete = True
        for edit, target in work.targets():
            found = _digest_of(target)
            if found not in (edit.before, edit.after):
                raise Refused(
                    f"{target}: was changed after {what}, which therefore cannot be repaired",
                    next_step=f"Restore it from {_beside(target, _OLD)} if that file exists.",
                )
            staged = _digest_of(_beside(target, _NEW))
            complete &= found == edit.after or edit.after is None or staged == edit.after
        if not complete:
            work.roll_back()
            return f"{what} was undone: a file that it needed is gone"
        work.commit()
        work.finish()
        return f"{what} was completed"
    except OSError as fault:
        raise _unwritable(fault) from fault


@contextlib.contextmanager
def exclusive(folder: Path, wait: float = 10.0) -> Iterator[None]:
    """Hold the tree's lock, waiting up to ``wait`` seconds; raises :class:`Busy`.

    The lock is on the package folder itself, so it needs no file, works on a read-only tree, and
    ends with its process.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as fault:
                if time.monotonic() >= deadline:
                    raise Busy(
                        f"{folder}: another process is changing this tree",
                        next_step="Wait until it has ended and run this again.",
                    ) from fault
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _tidy(state_dir: Path, files: Files) -> None:
    """What a run can leave behind before its journal exists."""
    try:
        files.unlink(_beside(state_dir / JOURNAL, _NEW))
        files.rmdir(state_dir)
    except OSError as fault:
        raise _unwritable(fault) from fault


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}{suffix}")


def _digest_of(path: Path) -> str | None:
    try:
        return digest(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _distinct_mtime(old: os.stat_result, new: os.stat_result) -> int | None:
    """A time that differs from the old file's where bytecode elsewhere could take them for one.

    Bytecode is matched by size and whole seconds; copies under PYTHONPYCACHEPREFIX are out of reach
    of :meth:`_Work.purge_bytecode`.
    """
    if old.st_size == new.st_size and int(old.st_mtime) == int(new.st_mtime):
        return (int(old.st_mtime) + 1) * 1_000_000_000
    return None


def _unwritable(fault: OSError) -> EnvironmentFault:
    place = fault.filename2 or fault.filename or "the tree"
    return EnvironmentFault(
        f"{place}: cannot be changed: {fault.strerror or fault}",
        next_step="Check permissions and free space, then run this again.",
    )
