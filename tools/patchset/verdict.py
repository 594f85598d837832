"""What state a tree is in: for the whole, for each touched file and for each patch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from patchset.diff import FileDiff
from patchset.errors import Refused
from patchset.lock import SeriesLock, digest
from patchset.paths import PROVENANCE, VERSION_FILE
from patchset.record import Record
from patchset.releases import Release
from patchset.series import Patch, Series
from patchset.state import State, is_current, load_state
from patchset.transaction import Journal, interrupted
from patchset.tree import Tree, version_of

if TYPE_CHECKING:
    from patchset.provenance import Provenance

TreeState = Literal["pristine", "applied", "partial", "foreign"]
PatchState = Literal["applied", "pending", "partial", "upstream", "foreign"]


@dataclass(frozen=True)
class FileVerdict:
    """One touched file. ``state``: a step's name, ``pristine``, ``applied`` or ``foreign``.

    ``found`` is its sha256 (``None``: no such file); ``problem`` says how a foreign file differs.
    """

    path: str
    state: str
    found: str | None
    expected: str | None
    problem: str | None = None


@dataclass(frozen=True)
class PatchVerdict:
    """One patch: ``upstream`` means that its effect is there although nobody applied it."""

    name: str
    state: PatchState


@dataclass(frozen=True)
class Verdict:
    """The state of a tree with respect to a series.

    ``digest`` is that of the patch set found (``None`` if none is). ``closest`` is the known state
    that most files have. ``journal`` is set when a run was interrupted here.
    """

    release: Release
    state: TreeState
    digest: str | None
    files: tuple[FileVerdict, ...]
    patches: tuple[PatchVerdict, ...]
    closest: Literal["pristine", "applied"]
    explanation: str
    record: State | None
    journal: Journal | None


def judge(tree: Tree, release: Release, series: Series, lock: SeriesLock) -> Verdict:
    """Compare every touched file with the lock. Reads only."""
    journal = interrupted(tree.state_dir) if tree.state_dir else None
    record = load_state(tree)
    content = {path: tree.read(path) for path in lock.paths}
    found = {path: digest(data) for path, data in content.items()}
    before = {path: entry.before for path, entry in lock.paths.items()}
    after = {path: lock.expected(path, series.upto) for path in lock.paths}

    files = tuple(
        _file(path, content[path], found[path], after[path], lock, series) for path in lock.paths
    )
    # A local version is a build of the same source, e.g. the one in a patched wheel.
    version = version_of(tree) or release.version
    ours = record is not None or version.partition("+")[0] == release.version
    placed = {path: _placed(path, content[path], found[path], series, lock) for path in lock.paths}
    patches = tuple(_patch(patch, placed, ours) for patch in series.patches)
    to_before = sum(found[path] == before[path] for path in found)
    to_after = sum(found[path] == after[path] for path in found)
    closest: Literal["pristine", "applied"] = "applied" if to_after > to_before else "pristine"

    # What these tools noted when they applied, if it is true of every file that it or the series
    # touches. It tells patch sets of the same effect apart.
    noted = None
    if record is not None and is_current(record, tree):
        touched = {item.path for item in record.files}
        if all(found[path] == before[path] for path in found.keys() - touched):
            noted = record
    wheel = _wheel_of(tree) if noted is None else None
    built = wheel if wheel and _is_sound(wheel, tree, found) else None
    # The verdicts on files tell of those that this series touches; an older set touches others.
    odd_one = _edited(wheel, tree, found) if wheel else None

    state: TreeState
    known: str | None = None
    if wheel and odd_one:
        state = "foreign"
        text = f"{odd_one}: is not as in the patched wheel that was installed, {wheel.version}"
    elif found == after and found != before:
        state, known = "applied", (noted or built or series).digest
        text = f"all {len(found)} touched files are as after the series"
    elif noted is not None and noted.digest != series.digest:
        state, known = "applied", noted.digest
        cut = "" if noted.upto is None else f", its first {noted.upto} patches,"
        text = f"another patch set{cut} was applied on {noted.applied}"
    elif found == before and not (built and built.known):
        state = "pristine"
        text = f"all {len(found)} touched files are as released"
        if left := _left(tree, record, lock):
            state = "partial"
            text = f"{left} is as the patch set applied on {record and record.applied} left it"
        elif wheel and (kept := sorted(wheel.known.keys() - found.keys())):
            state = "partial"
            text = f"{kept[0]} is as in the patched wheel that was installed, {wheel.version}"
    elif built is not None:
        state, known = "applied", built.digest
        text = f"another patch set is built into this wheel, {built.version}"
    elif all(item.state != "foreign" for item in files):
        state = "partial"
        odd = [item for item in files if item.state != closest]
        text = f"{len(odd)} of {len(files)} touched files are not {closest}: {_name(odd)}"
    else:
        state = "foreign"
        odd = [item for item in files if item.state == "foreign"]
        text = f"{odd[0].path}: {odd[0].problem}"
        if len(odd) > 1:
            text += f" (and {len(odd) - 1} more)"
    if journal:
        state, known = "partial", None
        text = f"a run was interrupted on {journal.started}; {text}"
    return Verdict(release, state, known, files, patches, closest, text, record, journal)


def _left(tree: Tree, record: State | None, lock: SeriesLock) -> str | None:
    """A file that only the recorded patch set touches and that is still patched."""
    for item in record.files if record else []:
        if item.path in lock.paths or item.path == VERSION_FILE:
            continue
        if digest(tree.read(item.path)) == item.after:
            return item.path
    return None


def _wheel_of(tree: Tree) -> Provenance | None:
    """What a patched wheel says of itself, in the wheel or where it was installed."""
    from patchset.provenance import Provenance

    content = tree.read_info(PROVENANCE)
    return None if content is None else Provenance.load(content, str(tree.root))


def _is_sound(wheel: Provenance, tree: Tree, found: dict[str, str | None]) -> bool:
    """Whether the files in ``found``, and all of its own, are still those that the wheel held."""
    record = tree.read_info("RECORD")
    if record is None or _edited(wheel, tree, {}):
        return False
    listed = Record(record, f"{tree.root}: RECORD")
    return all(listed.checksum(path) == checksum for path, checksum in found.items())


def _edited(wheel: Provenance, tree: Tree, apart: dict[str, str | None]) -> str | None:
    """The first file of the wheel's patch set, not in ``apart``, that is not as it was built."""
    for path, checksum in wheel.known.items():
        if path not in apart and digest(tree.read(path)) != checksum:
            return path
    return None


def _name(items: list[FileVerdict]) -> str:
    names = [f"{item.path} ({item.state})" for item in items[:3]]
    return ", ".join(names) + (", ..." if len(items) > 3 else "")


def _file(
    path: str,
    content: bytes | None,
    found: str | None,
    after: str | None,
    lock: SeriesLock,
    series: Series,
) -> FileVerdict:
    entry = lock.paths[path]
    if found == after:
        return FileVerdict(path, "applied" if found != entry.before else "pristine", found, after)
    if found == entry.before:
        return FileVerdict(path, "pristine", found, after)
    for step in entry.steps:
        if found == step.sha256:
            return FileVerdict(path, step.step, found, after)
    return FileVerdict(path, "foreign", found, after, _problem(path, content, entry.before, series))


def _problem(path: str, content: bytes | None, before: str | None, series: Series) -> str:
    """How a file differs from every state that the series knows, as far as that can be told."""
    if content is None:
        return "is missing"
    if before is None:
        return "is not the file that the series adds"
    if b"\r\n" in content and digest(content.replace(b"\r\n", b"\n")) == before:
        return "has CRLF line ends; check it out with core.autocrlf=false"
    diffs = [diff for _, diff in _diffs(path, series)]
    try:
        _run(diffs, content)
        return "was edited, though not in the lines that the series changes"
    except Refused as forward:
        try:
            _run([diff.reversed() for diff in reversed(diffs)], content)
            return "was edited after the series was applied, though not in the lines it changes"
        except Refused:
            return f"was edited ({forward.message})"


def _diffs(path: str, series: Series) -> list[tuple[str, FileDiff]]:
    """What the series does to one file: (patch name, diff), in order."""
    return [
        (patch.name, diff) for patch in series.patches for diff in patch.files if diff.path == path
    ]


def _run(diffs: list[FileDiff], content: bytes | None) -> bytes | None:
    for diff in diffs:
        content = diff.apply(content)
    return content


def _fits(diffs: list[FileDiff], content: bytes | None) -> bool:
    try:
        _run(diffs, content)
    except Refused:
        return False
    return True


def _placed(
    path: str, content: bytes | None, found: str | None, series: Series, lock: SeriesLock
) -> dict[str, PatchState]:
    """For one file, whether each patch's part is in it: by checksum if known, else by its lines."""
    steps = lock.paths[path].steps
    chain = [lock.paths[path].before, *(step.sha256 for step in steps)]
    if found in chain:
        there = len(chain) - 1 - chain[::-1].index(found)
        return {step.step: "applied" if at < there else "pending" for at, step in enumerate(steps)}
    diffs = _diffs(path, series)
    for there in range(len(diffs), -1, -1):
        undo = [diff.reversed() for _, diff in reversed(diffs[:there])]
        todo = [diff for _, diff in diffs[there:]]
        if _fits(undo, content) and _fits(todo, content):
            return {
                name: "applied" if at < there else "pending" for at, (name, _) in enumerate(diffs)
            }
    # No prefix of the series: then each patch for itself, as far as its lines stand alone.
    return {
        name: "upstream"
        if _fits([diff.reversed()], content)
        else "pending"
        if _fits([diff], content)
        else "foreign"
        for name, diff in diffs
    }


def _patch(patch: Patch, placed: dict[str, dict[str, PatchState]], ours: bool) -> PatchVerdict:
    """Sum up a patch over its files. What is there in a tree not ours came from upstream."""
    seen = {placed[path][patch.name] for path in patch.paths}
    if not ours:
        seen = {"upstream" if state == "applied" else state for state in seen}
    if len(seen) == 1:
        return PatchVerdict(patch.name, seen.pop())
    return PatchVerdict(patch.name, "foreign" if "foreign" in seen else "partial")
