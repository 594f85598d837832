"""Carrying a series from one pinned release to another, or one patch of it to any commit.

Each patch is merged three ways, file by file, as ``git cherry-pick`` does without renames: base is
release A with the patches before it, one side A with the patch, the other B with what was carried
so far. What git merges cleanly is taken unless it looks wrong: text that no longer parses, or added
lines that end up in the file twice, are conflicts as well. A conflict stops the carrying, since
later patches build on it; its files are left in a folder, to be edited, and the same call goes on
from there. The new series is written in the end, in one piece, or not at all.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from patchset import links
from patchset.diff import FileDiff, split_lines
from patchset.errors import EnvironmentFault, IntegrityFault, Refused, UsageFault
from patchset.lock import NAME, compute_lock, digest
from patchset.paths import check_path
from patchset.project import Project
from patchset.series import MODE, OVERLAY, OverlayFile, Patch, Read, Series, load_series
from patchset.source import require_release

Files = dict[str, bytes | None]
"""Contents by path; ``None``: no such file."""
State = Literal["carried", "resolved", "dropped", "conflict", "waiting"]

INPUTS: Final = "conflict.json"
_MARKER = re.compile(rb"^(<{7} |\|{7} |={7}\r?$|>{7} )", re.MULTILINE)
_DUPLICATE: Final = 3  # so many added lines in a row, twice in a file, are no coincidence


@dataclass(frozen=True)
class Carried:
    """What became of one patch (or of the overlay, under the name ``overlay``).

    ``carried``: merged by git alone. ``resolved``: by the files a person left. ``dropped``: its
    effect is in B already; ``evidence`` says where. ``conflict``: ``evidence`` says what is to be
    decided, and in which file. ``waiting``: comes after a conflict.
    """

    name: str
    state: State
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """``work`` is the folder of an open conflict, ``series`` the new series where it was written.

    Without a conflict, ``patches`` are the contents of the new patch files, in order; ``linked``
    are those (of any release) that became links to an equal one, ``vA.B.C/NAME``. ``taken``, which
    only a dry run gets to see: the target has a series already.
    """

    steps: tuple[Carried, ...]
    patches: dict[str, bytes] = field(default_factory=dict)
    overlay: tuple[OverlayFile, ...] = ()
    work: Path | None = None
    series: Series | None = None
    linked: tuple[str, ...] = ()
    taken: bool = False

    @property
    def conflict(self) -> Carried | None:
        """The step that waits for a person."""
        return next((step for step in self.steps if step.state == "conflict"), None)


def carry(
    project: Project,
    source: str,
    target: str,
    read_source: Read,
    read_target: Read,
    work: Path,
    *,
    ask: Collection[str] = (),
    dry_run: bool = False,
) -> Outcome:
    """Carry the series of release ``source`` to ``target``; both have to be pinned.

    ``read_source`` and ``read_target`` read their pristine files. ``work`` is where conflicts are
    left, and looked for. ``ask`` names patches that stop as if they were conflicts, for a person to
    look at. Raises :class:`Refused` if ``target`` has a series already (a ``dry_run``
    only says so), a source is that of another release or patched, or a file in ``work`` is not
    resolved or was made from other contents.
    """
    old, new = project.release(source), project.release(target)
    if old.version == new.version:
        raise UsageFault(f"--from and --to are both {old.version}")
    series, lock = project.series(old.version), project.lock(old.version)
    for path, entry in lock.paths.items():
        if digest(read_source(path)) != entry.before:
            raise Refused(f"{path}: the source given as {old.version} is not as released")
    require_release(read_target, project, new.version)
    taken = (project.root / "patches" / new.directory).exists()
    if taken and not dry_run:
        raise Refused(
            f"patches/{new.directory}: exists already, and is never overwritten",
            next_step="Remove it, and its overlay, to carry the series anew. If the run that wrote "
            f"it was interrupted, tools/lock.py --release {new.version} finishes that.",
        )
    names = [patch.name for patch in series.patches]
    if unknown := sorted(set(ask) - {name[:4] for name in names}):
        raise UsageFault(f"--ask {unknown[0]}: the series of {old.version} has no such patch")

    with _scratch() as git:
        job = _Job(git, old.version, new.version, read_source, read_target, work, dry_run)
        job.overlay(series.overlay)
        for patch in series.patches:
            job.patch(patch, ask=patch.name[:4] in ask)
        outcome = Outcome(
            tuple(job.steps),
            job.patches,
            tuple(job.kept),
            work if job.stopped and not dry_run else None,
            taken=taken,
        )
    if job.stopped or dry_run:
        return outcome
    if not outcome.patches and not outcome.overlay:
        return outcome
    if not outcome.patches:
        raise Refused(
            f"only the overlay of {old.version} would be left, and a series needs a patch",
            next_step=f"Look what {new.version} still needs of it, and write the patch.",
        )
    written = _write(project.root, new.directory, new.version, outcome, read_target)
    _clear(work, (step.name for step in outcome.steps))
    try:
        linked = tuple(links.link(project.root / "patches"))
    except OSError as fault:
        raise EnvironmentFault(
            f"patches/{new.directory}: is written, but equal patches cannot be linked: {fault}",
            next_step=f"tools/lock.py --release {new.version} makes the links.",
        ) from fault
    return Outcome(outcome.steps, outcome.patches, outcome.overlay, None, written, linked)


def carry_alone(
    series: Series,
    name: str,
    target: str,
    read_source: Read,
    read_target: Read,
    work: Path,
    *,
    beside: tuple[Files, Files] | None = None,
    dry_run: bool = False,
) -> tuple[list[Carried], Files]:
    """Carry one patch of ``series``, without those before it, to what ``read_target`` reads.

    ``target`` is how that is called in messages. ``beside`` are other files that go with the patch,
    before and after. Returns what became of both, and the contents of all their files. A conflict
    is left in ``work`` as by :func:`carry`.
    """
    at = [patch.name for patch in series.patches].index(name)
    with _scratch() as git:
        job = _Job(git, series.release, target, read_source, read_target, work, dry_run)
        for step in series.cut(at).forward(read_source):
            job.theirs.update(step.files)
        job.patch(series.patches[at], ask=False)
        if beside and not job.stopped:
            ours = {path: read_target(path) for path in beside[1]}
            step_name = f"{name.removesuffix('.patch')}-beside"
            result = job._merge(step_name, beside[0], ours, beside[1], ask=False)
            if result is not None:
                job.ours.update(result)
                job._done(step_name, [], dropped=result == ours)
        return job.steps, job.ours


class _Job:
    """One run. ``theirs`` is A as patched so far, ``ours`` is B with what was carried so far."""

    def __init__(
        self,
        git: _Git,
        source: str,
        target: str,
        read_source: Read,
        read_target: Read,
        work: Path,
        dry_run: bool,
    ) -> None:
        self.git, self.source, self.target = git, source, target
        self.read_source, self.read_target = read_source, read_target
        self.work, self.dry_run = work, dry_run
        self.theirs: Files = {}
        self.ours: Files = {}
        self.steps: list[Carried] = []
        self.patches: dict[str, bytes] = {}
        self.kept: list[OverlayFile] = []
        self.stopped = False

    def overlay(self, files: tuple[OverlayFile, ...]) -> None:
        """Carry the whole new files; one that B has itself is dropped, or a conflict."""
        if not files:
            return
        base: Files = {item.path: None for item in files}
        theirs: Files = {item.path: item.content for item in files}
        ours: Files = {item.path: self.read_target(item.path) for item in files}
        self.theirs.update(theirs)
        result = self._merge(OVERLAY, base, ours, theirs, ask=False)
        if result is None:
            return
        evidence = []
        for item in files:
            content = result[item.path]
            if ours[item.path] is None and content is not None:
                self.kept.append(OverlayFile(item.path, content, digest(content) or ""))
                self.ours[item.path] = content
            elif content in (None, ours[item.path]):
                evidence.append(f"{item.path}: {self.target} has this file itself")
            else:
                raise Refused(
                    f"{item.path}: {self.target} has this file, so that an overlay cannot add it",
                    next_step="Remove it from the conflict's folder, and change it by a patch.",
                )
        self._done(OVERLAY, evidence, dropped=not self.kept)

    def patch(self, patch: Patch, *, ask: bool) -> None:
        """Carry one patch, or note that it waits."""
        base: Files = {}
        theirs: Files = {}
        for diff in patch.files:
            base[diff.path] = self._now(self.theirs, self.read_source, diff.path)
            theirs[diff.path] = diff.apply(base[diff.path])
        self.theirs.update(theirs)
        if self.stopped:
            self.steps.append(Carried(patch.name, "waiting"))
            return
        ours = {path: self._now(self.ours, self.read_target, path) for path in theirs}
        result = self._merge(patch.name, base, ours, theirs, ask=ask)
        if result is None:
            return
        self.ours.update(result)
        if result == ours:
            evidence = [line for diff in patch.files for line in _where(diff, ours[diff.path])]
            self._done(patch.name, evidence, dropped=True)
            return
        self._done(patch.name, [], dropped=False)
        message, line, _ = patch.content.partition(b"\ndiff --git ")[0].partition(b"\n---\n")
        if not line:
            raise Refused(f"{patch.name}: has no line '---' between its message and its diff")
        self.patches[patch.name] = message + line + self.git.diff(ours, result)

    def _now(self, state: Files, read: Read, path: str) -> bytes | None:
        return state[path] if path in state else read(path)

    def _done(self, name: str, evidence: list[str], *, dropped: bool) -> None:
        by_hand = (self.work / name).is_dir()
        if by_hand and dropped:
            evidence = ["resolved by hand to what the release has", *evidence]
        state: State = "dropped" if dropped else "resolved" if by_hand else "carried"
        self.steps.append(Carried(name, state, tuple(evidence)))

    def _merge(
        self, name: str, base: Files, ours: Files, theirs: Files, *, ask: bool
    ) -> Files | None:
        """The merged files; ``None`` where a person has to decide, which is then written down."""
        inputs = {
            path: [digest(side[path]) for side in (base, ours, theirs)] for path in sorted(theirs)
        }
        folder = self.work / name
        if folder.is_dir():
            return self._resolution(folder, inputs, (base, ours, theirs))
        labels = (
            f"vLLM {self.target}" + (", with what was carried before" if self.ours else ""),
            f"vLLM {self.source}, before {name}",
            f"vLLM {self.source}, with {name}",
        )
        result: Files = {}
        problems: list[str] = []
        for path in theirs:
            sides = (ours[path], base[path], theirs[path])
            result[path], problem = self._merge_file(path, *sides, labels)
            if problem:
                problems.append(f"{path}: {problem}")
        if ask:
            problems.append("asked for: look at each file, then call again")
        if not problems:
            return result
        self.stopped = True
        self.steps.append(Carried(name, "conflict", tuple(problems)))
        if not self.dry_run:
            self.work.mkdir(parents=True, exist_ok=True)
            stage = Path(tempfile.mkdtemp(prefix=".partial-", dir=self.work))
            for path, content in result.items():
                if content is not None:
                    _store(stage / path, content)
            _store(stage / INPUTS, (json.dumps(inputs, indent=2) + "\n").encode())
            stage.chmod(0o755)
            stage.rename(folder)
        return None

    def _merge_file(
        self,
        path: str,
        ours: bytes | None,
        base: bytes | None,
        theirs: bytes | None,
        labels: tuple[str, str, str],
    ) -> tuple[bytes | None, str | None]:
        """One file, and what a person has to decide about it."""
        if ours == theirs or theirs == base:
            return ours, None
        if ours == base:
            return theirs, None
        if ours is None or theirs is None or base is None:
            text = self.git.merge(ours or b"", base or b"", theirs or b"", labels)[0]
            if ours is None:
                return text, f"{self.target} has no such file; remove it here to leave it so"
            if theirs is None:
                return text, f"{self.target} has another text to delete; remove it here to do so"
            return text, f"{self.target} has another file of that name"
        text, count = self.git.merge(ours, base, theirs, labels)
        if count:
            return text, f"{count} place{'s' if count > 1 else ''} to decide"
        if path.endswith(".py") and _parses(theirs) and _parses(ours) and not _parses(text):
            return text, "merges, but is no valid Python then"
        for start, block in _added(base, theirs):
            if len([line for line in block if line.strip()]) < _DUPLICATE:
                continue
            found, wanted = _find(text, block), _find(theirs, block)
            if not found:
                return text, f"merges, but the lines added at {start} are not in it as they were"
            if len(found) > len(wanted):
                lines = " and ".join(str(line) for line in found)
                return text, f"merges, but has the same added lines at {lines}"
        return text, None

    def _resolution(
        self, folder: Path, inputs: dict[str, list[str | None]], sides: tuple[Files, Files, Files]
    ) -> Files:
        try:
            recorded = json.loads((folder / INPUTS).read_bytes())
        except (OSError, ValueError, RecursionError) as fault:
            raise IntegrityFault(
                f"{folder / INPUTS}: cannot be read",
                next_step=f"Move {folder} away and call again, to have it merged anew.",
            ) from fault
        if recorded != inputs:
            raise Refused(
                f"{folder}: was made from other contents than those of now",
                next_step="Move it away and call again, to have it merged anew.",
            )
        files = {item for item in folder.rglob("*") if not item.is_dir()}
        if odd := files - {folder / path for path in inputs} - {folder / INPUTS}:
            raise Refused(f"{min(odd)}: is no file of this patch", next_step="Move it away.")
        result: Files = {}
        for path in inputs:
            place = folder / path
            before = [side[path] for side in sides]
            if not place.is_file():
                if None not in before:
                    raise Refused(f"{place}: is missing", next_step=f"Move {folder} away.")
                result[path] = None
                continue
            content = place.read_bytes()
            known = {line for side in before for line in (side or b"").split(b"\n")}
            for number, line in enumerate(content.split(b"\n"), 1):
                if _MARKER.match(line) and line not in known:
                    raise Refused(
                        f"{place}:{number}: still has a conflict marker",
                        next_step="Edit the file until it says what it should, then call again.",
                    )
            if b"\r\n" in content and not any(b"\r\n" in (side or b"") for side in before):
                raise Refused(
                    f"{place}: has CRLF line ends, which none of its sources has",
                    next_step="Save it with LF, then call again.",
                )
            if path.endswith(".py") and not _parses(content) and all(map(_parses, before)):
                raise Refused(f"{place}: is no valid Python")
            result[path] = content
        return result


class _Git:
    """The git program in a folder of its own, whatever the machine's configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run("init", "-q")

    def merge(
        self, ours: bytes, base: bytes, theirs: bytes, labels: tuple[str, str, str]
    ) -> tuple[bytes, int]:
        """The merged text, and how many places in it conflict."""
        names = ("ours", "base", "theirs")
        for name, content in zip(names, (ours, base, theirs), strict=True):
            (self.folder / name).write_bytes(content)
        flags = [word for label in labels for word in ("-L", label)]
        found = self._try("merge-file", "-p", "--diff3", *flags, *names)
        # Above 127 it is an error; many conflicts are 127.
        if not 0 <= found.returncode <= 127:
            raise self._fault("merge-file", found)
        return found.stdout, found.returncode

    def diff(self, before: Files, after: Files) -> bytes:
        """Statistics and diff, as in a mail of git format-patch."""
        trees = (self._tree(before), self._tree(after))
        flags = ("-p", "--stat=72", "--summary", "--full-index", "--no-renames", "-r")
        return self._run("diff-tree", *flags, *trees)

    def _tree(self, files: Files) -> str:
        self._run("read-tree", "--empty")
        for path, content in files.items():
            if content is not None:
                blob = self._run("hash-object", "-w", "--stdin", data=content).decode().strip()
                self._run("update-index", "--add", "--cacheinfo", f"{MODE},{blob},{path}")
        return self._run("write-tree").decode().strip()

    def _run(self, *words: str, data: bytes | None = None) -> bytes:
        found = self._try(*words, data=data)
        if found.returncode:
            raise self._fault(words[0], found)
        return found.stdout

    def _try(self, *words: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        nothing = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "LC_ALL": "C",
        }
        # The attributes have a place of their own, with or without a configuration.
        options = ("-c", "core.quotePath=false", "-c", f"core.attributesFile={os.devnull}")
        place = {"GIT_CEILING_DIRECTORIES": str(self.folder.parent)}
        try:
            return subprocess.run(
                ["git", *options, *words],
                cwd=self.folder,
                input=data,
                capture_output=True,
                check=False,
                env={**clean, **nothing, **place},
            )
        except FileNotFoundError as fault:
            raise EnvironmentFault("git is not installed; carrying a series needs it") from fault

    @staticmethod
    def _fault(word: str, found: subprocess.CompletedProcess[bytes]) -> EnvironmentFault:
        reason = found.stderr.decode("utf-8", "replace").strip()
        return EnvironmentFault(f"git {word} failed: {reason or found.returncode}")


@contextmanager
def _scratch() -> Iterator[_Git]:
    with tempfile.TemporaryDirectory() as folder:
        yield _Git(Path(folder))


def _write(root: Path, directory: str, version: str, outcome: Outcome, read: Read) -> Series:
    """Put series, lock and overlay in place; the folder of patches comes last, in one piece."""
    place = root / "overlay" / directory
    # An interrupted run has left the overlay alone.
    there = place.exists() and _holds(place, outcome.overlay)
    if place.exists() and not there:
        raise Refused(
            f"{place}: exists already, and is never overwritten",
            next_step="Remove it to carry the series anew.",
        )
    try:
        (root / "build").mkdir(exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".partial-", dir=root / "build"))
    except OSError as fault:
        raise EnvironmentFault(f"{root}: cannot be written: {fault.strerror or fault}") from fault
    try:
        patches = stage / "patches" / directory
        patches.mkdir(parents=True)
        for name, content in outcome.patches.items():
            _store(patches / name, content)
        _store(patches / "series", "".join(f"{name}\n" for name in outcome.patches).encode())
        for item in outcome.overlay:
            check_path(item.path, directory)
            _store(stage / "overlay" / directory / item.path, item.content)
        # Reads back what was written, and applies it without fuzz.
        series = load_series(stage, directory, version)
        _store(patches / NAME, compute_lock(series, read).dump().encode())
        made = bool(outcome.overlay) and not there
        if made:
            place.parent.mkdir(exist_ok=True)
            equal = [
                older.name
                for older in links.folders(place.parent)
                if links.age(older.name) < links.age(directory)
                and not older.is_symlink()
                and _holds(older, outcome.overlay)
            ]
            if equal:
                place.symlink_to(equal[0])
            else:
                (stage / "overlay" / directory).rename(place)
        try:
            patches.rename(root / "patches" / directory)
        except BaseException:
            if made:
                place.unlink() if place.is_symlink() else shutil.rmtree(place)
            raise
    except OSError as fault:
        raise EnvironmentFault(f"{root}: cannot be written: {fault.strerror or fault}") from fault
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return series


def _holds(folder: Path, files: Iterable[OverlayFile]) -> bool:
    """Whether ``folder`` has just these files."""
    found = {path for path in folder.rglob("*") if not path.is_dir()}
    return found == {folder / item.path for item in files} and all(
        (folder / item.path).read_bytes() == item.content for item in files
    )


def _clear(work: Path, names: Iterable[str]) -> None:
    """Remove what conflicts have left in ``work``; whatever else is in it stays."""
    folders = [work / name for name in names] + list(work.glob(".partial-*"))
    ours = [folder for folder in folders if (folder / INPUTS).is_file()]
    for folder in ours:
        shutil.rmtree(folder, ignore_errors=True)
    if ours:
        with suppress(OSError):  # not empty
            work.rmdir()


def _store(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _parses(content: bytes | None) -> bool:
    """Whether it is Python; a file that does not exist is no objection."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(content or b"")
    except (SyntaxError, ValueError):
        return False
    return True


def _added(before: bytes, after: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """The runs of lines that ``after`` has more or other, and the number of their first line."""
    old, new = split_lines(before), split_lines(after)
    for tag, _, _, start, end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if tag in ("insert", "replace"):
            yield start + 1, new[start:end]


def _find(content: bytes, block: list[bytes]) -> list[int]:
    """The numbers of the lines at which ``block`` stands in ``content``."""
    lines, size = split_lines(content), len(block)
    return [
        at + 1
        for at, line in enumerate(lines)
        if line == block[0] and lines[at : at + size] == block
    ]


def _where(diff: FileDiff, content: bytes | None) -> Iterator[str]:
    """Where the effect of ``diff`` stands in a release that has it already."""
    if content is None:
        yield f"{diff.path}: there is no such file"
        return
    for hunk in diff.hunks:
        matcher = difflib.SequenceMatcher(None, hunk.old, hunk.new, False)
        for tag, first, last, start, end in matcher.get_opcodes():
            if tag in ("insert", "replace"):
                block = list(hunk.new[start:end])
                for line in _find(content, block)[:1]:
                    until = line + len(block) - 1
                    span = f"line {line}" if until == line else f"lines {line} to {until}"
                    yield f"{diff.path}: {span}: {_show(block)}"
            elif tag == "delete":
                yield f"{diff.path}: without {_show(list(hunk.old[first:last]))}"


def in_place(diff: FileDiff, content: bytes | None) -> list[bool]:
    """For each hunk of ``diff``, whether its effect stands in ``content``, wherever that is.

    Either with its context, or as a run of added lines that is no coincidence.
    """
    found = []
    for hunk in diff.hunks:
        runs = [
            block
            for _, block in _added(b"".join(hunk.old), b"".join(hunk.new))
            if len([line for line in block if line.strip()]) >= _DUPLICATE
        ]
        text = content or b""
        whole = content is not None and bool(hunk.new) and bool(_find(text, list(hunk.new)))
        found.append(whole or (bool(runs) and all(_find(text, block) for block in runs)))
    return found


def _show(block: list[bytes]) -> str:
    text = [line.decode("utf-8", "replace").strip() for line in block]
    first = next((line for line in text if line), "")
    return repr(first) + (f" and {len(block) - 1} more" if len(block) > 1 else "")
