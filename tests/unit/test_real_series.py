"""The series in this repository: complete, locked, and each patch with its header."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from patchset import links
from patchset.project import Project
from patchset.releases import Release
from patchset.series import Patch

PROJECT = Project.here()
RELEASES = [item for item in PROJECT.releases.release if (PROJECT.lock_path(item).parent).is_dir()]
PATCHES = [patch for item in RELEASES for patch in PROJECT.series(item.version).patches]


@pytest.mark.parametrize("release", RELEASES, ids=lambda item: item.version)
def test_the_lock_is_fresh(release: Release) -> None:
    lock = PROJECT.lock(release.version)
    assert lock.digest == PROJECT.series(release.version).digest


def test_no_patch_is_kept_twice() -> None:
    """Equal ones are links to the oldest release that has it: ``make series-lock``."""
    folder = PROJECT.root / "patches"
    assert links.equal(folder) == {}, "run: make series-lock"
    files = [path for path in folder.glob("*/*.patch") if not path.is_symlink()]
    twice = Counter(path.read_bytes() for path in files).most_common(1)[0][1] > 1
    assert not twice, "the same bytes under two names"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda item: item.name)
def test_a_patch_says_what_it_is_for(patch: Patch) -> None:
    trailers = dict(patch.trailers)
    assert set(trailers) == {"Fault", "Upstream", "Drop-when", "Signed-off-by"}
    assert patch.faults
    assert re.search(r"\b\d+\.\d+\.\d+\b", trailers["Drop-when"])
    assert len(patch.subject) <= 80
    why = patch.message.split("\n\n")
    assert len(why) >= 2, "what breaks and for whom, and why this cure, above the trailers"


def test_no_overlay_is_kept_twice() -> None:
    """One that equals an older release's is a link to its folder: ``ln -s v0.15.0 v0.16.0``."""
    held = [
        tuple(
            (path.relative_to(folder), path.read_bytes()) for path in sorted(folder.rglob("*.py"))
        )
        for folder in (PROJECT.root / "overlay").iterdir()
        if not folder.is_symlink()
    ]
    assert all(held)
    assert len(set(held)) == len(held)
