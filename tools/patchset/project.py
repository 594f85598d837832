"""A folder that holds ``patches/`` and ``overlay/``: this repository, or a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from patchset.errors import Refused
from patchset.lock import NAME, SeriesLock, check_lock, load_lock
from patchset.releases import Release, Releases, load_releases
from patchset.series import Series, load_series


class Project:
    """Finds and loads the pins, the series and their locks below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._series: dict[str, Series] = {}

    @classmethod
    def here(cls) -> Project:
        """The repository that this file belongs to."""
        return cls(Path(__file__).resolve().parents[2])

    @cached_property
    def releases(self) -> Releases:
        """All pins."""
        return load_releases(self.root / "patches" / "releases.toml")

    def release(self, version: str) -> Release:
        """One pin; :class:`UnknownRelease` if there is none."""
        return self.releases.get(version)

    def lock_path(self, release: Release) -> Path:
        """Where the lock of that release lies."""
        return self.root / "patches" / release.directory / NAME

    def locks(self) -> Iterator[tuple[str, SeriesLock]]:
        """Every release that has a lock, with its lock as it is; no pin is read for that."""
        for version in self.releases.versions:
            if (path := self.root / "patches" / f"v{version}" / NAME).is_file():
                yield version, load_lock(path)

    def series(self, version: str, upto: int | None = None) -> Series:
        """The series of a release, cut after its first ``upto`` patches if given."""
        release = self.release(version)
        if release.version not in self._series:
            self._require_series(release)
            loaded = load_series(self.root, release.directory, release.version)
            self._series[release.version] = loaded
        return self._series[release.version].cut(upto)

    def lock(self, version: str, *, check: bool = True) -> SeriesLock:
        """The lock of a release. With ``check``, it must fit the whole series on disk."""
        release = self.release(version)
        self._require_series(release)
        path = self.lock_path(release)
        lock = load_lock(path)
        if check:
            check_lock(lock, self.series(version), path)
        return lock

    def has_series(self, version: str) -> bool:
        """Whether there is a folder of patches for that release."""
        return (self.root / "patches" / f"v{version}").is_dir()

    def _require_series(self, release: Release) -> None:
        if not self.has_series(release.version):
            have = [item for item in self.releases.versions if self.has_series(item)]
            raise Refused(
                f"vLLM {release.version} is pinned, but there is no series for it yet",
                next_step=f"Use one of the releases that have one: {', '.join(have) or 'none'}.",
            )
