"""``series.lock``: the content of every touched path before, during and after a series."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from patchset.errors import IntegrityFault
from patchset.releases import Sha256, Strict
from patchset.series import MODE, OVERLAY, Read, Series, sha256

SCHEMA: Final = "vllm-kimi-eagle3/series-lock/1"
NAME = "series.lock"


class LockedStep(Strict, frozen=True):
    """A path's checksum after one step (a patch's name, or ``overlay``); ``None``: deleted."""

    step: str
    sha256: Sha256 | None


class LockedPath(Strict, frozen=True):
    """One touched path. ``None`` for a checksum means that there is no such file."""

    before: Sha256 | None
    after: Sha256 | None
    mode: Literal["100644"]
    steps: Annotated[list[LockedStep], Meta(min_length=1)]


class LockedPart(Strict, frozen=True):
    """A patch or overlay file of the series."""

    name: str
    sha256: Sha256


class SeriesLock(Strict, frozen=True):
    """The whole lock. ``paths`` is sorted by path."""

    schema: Literal["vllm-kimi-eagle3/series-lock/1"]
    release: str
    digest: Sha256
    patches: list[LockedPart]
    overlay: list[LockedPart]
    paths: dict[str, LockedPath]

    def expected(self, path: str, upto: int | None = None) -> str | None:
        """The checksum of ``path`` after the series, or after its first ``upto`` patches."""
        entry = self.paths[path]
        if upto is None:
            return entry.after
        kept = {"overlay", *(part.name for part in self.patches[:upto])}
        current = entry.before
        for step in entry.steps:
            if step.step in kept:
                current = step.sha256
        return current

    def dump(self) -> str:
        """The text of the file: stable, one value a line, so that a diff of it can be read."""
        return self.as_json(indent=2).decode() + "\n"


def compute_lock(series: Series, read: Read) -> SeriesLock:
    """Apply ``series`` in memory to the pristine source that ``read`` gives, and note it all."""
    before = {path: read(path) for path in series.paths}
    chains: dict[str, list[LockedStep]] = {path: [] for path in series.paths}
    after = dict(before)
    for step in series.forward(read):
        for path, content in step.files.items():
            chains[path].append(LockedStep(step=step.name, sha256=digest(content)))
            after[path] = content
    if before == after:
        raise IntegrityFault(f"the series of {series.release} changes nothing in the end")
    paths = {
        path: LockedPath(
            before=digest(before[path]),
            after=digest(after[path]),
            mode=MODE,
            steps=chains[path],
        )
        for path in series.paths
    }
    return SeriesLock(
        schema=SCHEMA,
        release=series.release,
        digest=series.digest,
        patches=[LockedPart(name=patch.name, sha256=patch.sha256) for patch in series.patches],
        overlay=[LockedPart(name=item.path, sha256=item.sha256) for item in series.overlay],
        paths=paths,
    )


def load_lock(path: Path) -> SeriesLock:
    """Read and validate a lock; :class:`IntegrityFault` says what is wrong with it."""
    step = "Write it with tools/lock.py --release VERSION."
    try:
        return msgspec.json.decode(path.read_bytes(), type=SeriesLock)
    except FileNotFoundError as fault:
        raise IntegrityFault(f"{path}: is missing", next_step=step) from fault
    except msgspec.DecodeError as fault:
        raise IntegrityFault(f"{path}: {fault}", next_step=step) from fault


def check_lock(lock: SeriesLock, series: Series, path: Path) -> None:
    """Raise :class:`IntegrityFault` unless ``lock`` was written for exactly this whole series."""
    step = f"Write it again with tools/lock.py --release {series.release}."
    if lock.release != series.release:
        raise IntegrityFault(f"{path}: is the lock of {lock.release}", next_step=step)
    for kind, locked, real in (
        ("patch", lock.patches, [(item.name, item.sha256) for item in series.patches]),
        ("overlay file", lock.overlay, [(item.path, item.sha256) for item in series.overlay]),
    ):
        known = [(part.name, part.sha256) for part in locked]
        if known != real:
            odd = sorted({name for name, _ in set(known) ^ set(real)}) or ["their order"]
            raise IntegrityFault(f"{path}: is stale: {kind}: {', '.join(odd)}", next_step=step)
    if lock.digest != series.digest or tuple(lock.paths) != series.paths:
        raise IntegrityFault(f"{path}: is stale: its digest or paths differ", next_step=step)
    for name, entry in lock.paths.items():
        wanted = [patch.name for patch in series.patches if name in patch.paths] or [OVERLAY]
        if [part.step for part in entry.steps] != wanted or entry.steps[-1].sha256 != entry.after:
            raise IntegrityFault(f"{path}: contradicts itself about {name}", next_step=step)


def digest(content: bytes | None) -> str | None:
    """sha256 of a file's content, ``None`` for a file that does not exist."""
    return None if content is None else sha256(content)
