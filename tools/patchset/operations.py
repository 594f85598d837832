"""What can be done with a tree: look, check, apply, reverse."""

from __future__ import annotations

import re
import shlex
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from patchset.errors import EnvironmentFault, IntegrityFault, Refused, UsageFault
from patchset.lock import SeriesLock, digest
from patchset.paths import PACKAGE, PROVENANCE, VERSION_FILE
from patchset.project import Project
from patchset.releases import Release
from patchset.series import Change, Series, changes
from patchset.state import apply_edits, is_current, restore_edits, reverse_edits
from patchset.transaction import Action, Edit, Files, Transaction, exclusive, recover
from patchset.tree import Tree, release_of, version_of
from patchset.verdict import Verdict, judge
from patchset.version import MARK, read_version, set_version

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.wheel import BuiltWheel


@dataclass(frozen=True)
class Outcome:
    """What an operation did. ``written`` and ``deleted`` are the files of the package.

    ``verdict`` is the state afterwards, or for a dry run before. ``repaired`` tells of an earlier,
    interrupted run that was completed or undone first.
    """

    result: Literal["done", "nothing-to-do", "would-do", "state"]
    action: Literal["apply", "check", "status", "reverse"]
    tree: Tree
    release: Release
    series: Series
    verdict: Verdict
    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    repaired: str | None = None
    branch: str | None = None
    commits: tuple[str, ...] = ()
    wheel: BuiltWheel | None = None


@dataclass(frozen=True)
class _Job:
    """The tree with everything that belongs to its release."""

    tree: Tree
    release: Release
    series: Series
    lock: SeriesLock

    def judge(self) -> Verdict:
        return judge(self.tree, self.release, self.series, self.lock)


def inspect(
    tree: Tree, project: Project, named: str | None = None, *, upto: int | None = None
) -> Outcome:
    """The state of a tree. Writes nothing, takes no lock, works on read-only trees."""
    job = _open(tree, project, named, upto)
    return Outcome("state", "status", tree, job.release, job.series, job.judge())


def require(outcome: Outcome, wanted: str) -> None:
    """Raise :class:`Refused` unless the patch set with that digest is applied.

    ``wanted`` is the whole digest or at least its first twelve digits. For start-up scripts, and
    for comparing nodes.
    """
    if not re.fullmatch(r"[0-9a-f]{12,64}", wanted):
        raise UsageFault(f"{wanted!r} is not a digest: 12 to 64 hexadecimal digits")
    found, verdict = outcome.verdict.digest, outcome.verdict
    if found is None or not found.startswith(wanted):
        what = f"the patch set {found}" if found else f"{verdict.state}: {verdict.explanation}"
        raise Refused(
            f"{outcome.tree.root}: has {what}, not the patch set {wanted}",
            next_step="Apply that patch set, or start the engine elsewhere.",
        )


def check(
    tree: Tree, project: Project, named: str | None = None, *, upto: int | None = None
) -> Outcome:
    """Whether the series would apply, tried in memory. Raises :class:`Refused` if not."""
    job = _open(tree, project, named, upto)
    verdict = job.judge()
    if _settled(verdict, job.series):
        return Outcome("nothing-to-do", "check", tree, job.release, job.series, verdict)
    found = _plan(job, verdict)
    return _outcome("would-do", "check", job, verdict, found)


def apply(
    tree: Tree,
    project: Project,
    named: str | None = None,
    *,
    upto: int | None = None,
    commit: bool = False,
    branch: str | None = None,
    dry_run: bool = False,
    files: Files | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Apply the series, or say that it is applied already. All of it or nothing.

    ``commit`` (checkouts) also makes one commit per patch on the new branch ``branch``. A wheel is
    never changed: its patched form is written beside it. ``dry_run`` stops before writing.
    ``files`` is for tests that break system calls.
    """
    if commit and tree.kind != "checkout":
        raise UsageFault(f"{tree.root}: --commit needs a git checkout, this is a {tree.kind}")
    with _locked(tree, dry_run):
        repaired = None if dry_run else _repair(tree, files)
        job = _open(tree, project, named, upto)
        if commit:
            return _apply_commits(job, branch, dry_run, repaired, files)
        verdict = job.judge()
        if _settled(verdict, job.series):
            return _outcome("nothing-to-do", "apply", job, verdict, [], repaired)
        found = _plan(job, verdict)
        if not found:  # --upto 0 of a series without overlay files
            return _outcome("nothing-to-do", "apply", job, verdict, [], repaired)
        if dry_run:
            return _outcome("would-do", "apply", job, verdict, found)
        if tree.kind == "wheel":
            from patchset.wheel import build_wheel

            built = build_wheel(
                tree.root,
                project,
                job.release,
                out=tree.root.parent,
                upto=upto,
                progress=progress,
            )
            result: Literal["done", "nothing-to-do"] = "nothing-to-do" if built.reused else "done"
            outcome = _outcome(result, "apply", job, verdict, found)
            return replace(outcome, wheel=built)
        marked = _version_change(job, job.release.local_version(upto))
        _write(job, "apply", apply_edits(tree, job.series, [*found, *marked]), (), files)
        after = job.judge()
        if not _settled(after, job.series):
            raise IntegrityFault(f"{tree.root}: changed while it was patched: {after.explanation}")
        return _outcome("done", "apply", job, after, found, repaired)


def reverse(
    tree: Tree,
    project: Project,
    named: str | None = None,
    *,
    upto: int | None = None,
    dry_run: bool = False,
    files: Files | None = None,
) -> Outcome:
    """Give the original files back. Refuses when somebody has edited them since.

    With the state file of the run that applied them, whatever series that was, their bytes, modes
    and times come back; without it (patched with ``git am``) the series is undone exactly.
    """
    if tree.kind == "wheel":
        raise UsageFault(f"{tree.root}: a wheel is never changed; use the one it was made from")
    with _locked(tree, dry_run):
        repaired = None if dry_run else _repair(tree, files)
        job = _open(tree, project, named, upto)
        verdict = job.judge()
        if verdict.state == "pristine":
            return _outcome("nothing-to-do", "reverse", job, verdict, [], repaired)
        edits, made = _plan_reverse(job, verdict)
        package = [edit for edit in edits if edit.path.startswith(f"{PACKAGE}/")]
        found = [Change(edit.path, edit.before, edit.content) for edit in package]
        if dry_run:
            return _outcome("would-do", "reverse", job, verdict, found)
        _write(job, "reverse", edits, made, files)
        after = job.judge()
        if after.state != "pristine":
            raise IntegrityFault(f"{tree.root}: is not as released: {after.explanation}")
        return _outcome("done", "reverse", job, after, found, repaired)


def _open(tree: Tree, project: Project, named: str | None, upto: int | None) -> _Job:
    release = release_of(tree, project, named)
    series = project.series(release.version, upto)
    return _Job(tree, release, series, project.lock(release.version))


def _locked(tree: Tree, dry_run: bool) -> AbstractContextManager[None]:
    if tree.kind == "wheel" or dry_run:
        return nullcontext()
    return exclusive(tree.root / PACKAGE)


def _repair(tree: Tree, files: Files | None) -> str | None:
    return recover(tree.root, tree.state_dir, files) if tree.state_dir else None


def _settled(verdict: Verdict, series: Series) -> bool:
    return verdict.state == "applied" and verdict.digest == series.digest


def _plan(job: _Job, verdict: Verdict) -> list[Change]:
    """What applying changes, checked against the lock; refuses any tree that is not pristine."""
    where = job.tree.root
    if verdict.journal:
        raise Refused(
            f"{where}: {verdict.explanation}",
            next_step="Run this without --check or --dry-run to repair the tree first.",
        )
    if verdict.state == "applied":
        raise Refused(
            f"{where}: {verdict.explanation}: {verdict.digest}, not {job.series.digest}",
            next_step="Install the official wheel over it."
            if job.tree.read_info(PROVENANCE)
            else "Run --reverse first.",
        )
    if verdict.state != "pristine":
        raise Refused(
            f"{where}: is {verdict.state}: {verdict.explanation}",
            next_step=_overlay_advice(job, verdict)
            or f"Start from unmodified files of vLLM {job.release.version}.",
        )
    found = changes(job.series.forward(job.tree.read), job.tree.read)
    for change in found:
        if digest(change.after) != job.lock.expected(change.path, job.series.upto):
            raise IntegrityFault(f"{change.path}: the result is not what series.lock says")
    return found


def _overlay_advice(job: _Job, verdict: Verdict) -> str | None:
    """What is left to do after ``git am``, if that is all that the tree lacks."""
    missing = {item.path for item in verdict.files if item.found != item.expected}
    if verdict.state != "partial" or not missing <= {item.path for item in job.series.overlay}:
        return None
    source, target = f"overlay/{job.release.directory}/.", shlex.quote(str(job.tree.root))
    return f"Only overlay files are missing; copy them: cp -r {source} {target}"


def _plan_reverse(job: _Job, verdict: Verdict) -> tuple[list[Edit], tuple[str, ...]]:
    tree, record = job.tree, verdict.record
    undo = "Undo those edits first, or restore the files from their origin."
    if verdict.journal:
        raise Refused(
            f"{tree.root}: {verdict.explanation}",
            next_step="Run this without --dry-run to repair the tree first.",
        )
    if record is not None and is_current(record, tree):
        edits = reverse_edits(tree, record)
        planned = {edit.path: digest(edit.content) for edit in edits if edit.base == "tree"}
        for file in verdict.files:
            if file.state == "foreign" and file.path not in planned:
                raise Refused(f"{tree.root}: {file.path} {file.problem}", next_step=undo)
        for path, entry in job.lock.paths.items():
            after = planned[path] if path in planned else digest(tree.read(path))
            if after != entry.before:
                raise IntegrityFault(f"{tree.state_dir}: would not give back {path} as released")
        return edits, tuple(reversed(record.made))
    for item in record.files if record is not None else []:
        # The verdict is about the lock's files; the record may tell of others.
        known = {item.before, *([item.after] if item.path == VERSION_FILE else [])}
        if item.path not in job.lock.paths and digest(tree.read(item.path)) not in known:
            raise Refused(
                f"{tree.root}: {item.path} was edited after the patch set was applied",
                next_step=undo,
            )
    if verdict.state == "applied" and tree.read_info(PROVENANCE):
        raise Refused(
            f"{tree.root}: was installed from a patched wheel, {version_of(tree)}",
            next_step="Install the official wheel over it.",
        )
    if verdict.state != "applied":
        raise Refused(
            f"{tree.root}: is {verdict.state}, so it cannot be reversed: {verdict.explanation}",
            next_step=_overlay_advice(job, verdict) or undo,
        )
    found = changes(job.series.backward(tree.read), tree.read)
    for change in found:
        if digest(change.after) != job.lock.paths[change.path].before:
            raise IntegrityFault(f"{change.path}: the result is not what series.lock says")
    marked = _version_change(job, job.release.version)
    return restore_edits(tree, [*found, *marked]), ()


def _version_change(job: _Job, version: str) -> list[Change]:
    """Let an installed engine say what it is, as that of a patched wheel does.

    vLLM also makes its version part of the keys of its compile caches, so that nothing compiled
    from the unpatched code is used. Checkouts and source folders stay as ``git am`` leaves them:
    there the file is not part of the source.
    """
    content = job.tree.read(VERSION_FILE)
    old = read_version(content)
    if job.tree.kind != "install" or content is None or old is None or old == version:
        return []
    if old.partition("+")[0] != job.release.version or (MARK not in old and "+" in old):
        return []  # a build of its own kind; its version is not ours to change
    return [Change(VERSION_FILE, content, set_version(content, old, version, VERSION_FILE))]


def _write(
    job: _Job, action: Action, edits: list[Edit], made: tuple[str, ...], files: Files | None
) -> None:
    tree = job.tree
    assert tree.state_dir is not None
    if tree.state_dir.is_symlink():
        raise Refused(f"{tree.state_dir}: is a symbolic link")
    try:
        Transaction(tree.root, tree.state_dir, action, edits, made, files or Files()).run()
    except FileExistsError as fault:  # pragma: no cover - only if somebody else writes our names
        raise EnvironmentFault(f"{fault.filename}: is in the way") from fault


def _apply_commits(
    job: _Job, branch: str | None, dry_run: bool, repaired: str | None, files: Files | None
) -> Outcome:
    # GitPython takes a while to import.
    from patchset.checkout import Checkout

    checkout = Checkout(job.tree.root)
    verdict = job.judge()
    name = f"kimi-eagle3/{job.release.directory}" if branch is None else branch
    checkout.require_name(name)
    if checkout.state(job.lock, job.series) == "applied" and _settled(verdict, job.series):
        if checkout.has_stale_index(job.series) and not dry_run:
            checkout.refresh_index(job.series)
            told = "an interrupted --commit left git's index behind; it is as committed now"
            return _outcome("done", "apply", job, verdict, [], repaired or told)
        return _outcome("nothing-to-do", "apply", job, verdict, [], repaired)
    found = [] if _settled(verdict, job.series) else _plan(job, verdict)
    if not job.series.patches and not job.series.overlay:
        return _outcome("nothing-to-do", "apply", job, verdict, [], repaired)
    commits = checkout.made(job.lock, job.series, name)  # by a run that was interrupted
    checkout.require_clean(job.lock, None if commits else name)
    if dry_run:
        return Outcome(
            **{**vars(_outcome("would-do", "apply", job, verdict, found)), "branch": name}
        )
    created = not commits
    if created:
        commits = checkout.commit(job.series)
        checkout.create(name, commits[-1])
    try:
        if found:
            _write(job, "apply", apply_edits(job.tree, job.series, found), (), files)
    except BaseException:
        if created:
            checkout.delete(name, commits[-1])
        raise
    checkout.switch(name, job.series)
    after = job.judge()
    if not _settled(after, job.series) or checkout.state(job.lock, job.series) != "applied":
        raise IntegrityFault(f"{job.tree.root}: changed while it was patched: {after.explanation}")
    outcome = _outcome("done", "apply", job, after, found, repaired)
    return replace(outcome, branch=name, commits=tuple(commits))


def _outcome(
    result: Literal["done", "nothing-to-do", "would-do"],
    action: Literal["apply", "check", "reverse"],
    job: _Job,
    verdict: Verdict,
    found: list[Change],
    repaired: str | None = None,
) -> Outcome:
    return Outcome(
        result,
        action,
        job.tree,
        job.release,
        job.series,
        verdict,
        tuple(item.path for item in found if item.after is not None),
        tuple(item.path for item in found if item.after is None),
        repaired,
    )
