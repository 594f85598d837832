"""The real sources of every pinned release that has a series.

They come through the tools' own downloader: from its cache, or else (and only then) from the
package index.
"""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from patchset.download import download
from patchset.project import Project
from patchset.releases import Release

PROJECT = Project.here()
RELEASES = [item for item in PROJECT.releases.release if PROJECT.lock_path(item).is_file()]


@pytest.fixture(scope="session", params=RELEASES, ids=lambda item: item.version)
def release(request: pytest.FixtureRequest) -> Release:
    found = request.param
    assert isinstance(found, Release)
    return found


@pytest.fixture(scope="session")
def project() -> Project:
    return PROJECT


@pytest.fixture(scope="session")
def sdist(release: Release) -> Path:
    return download(release.find("sdist"))


@pytest.fixture(scope="session")
def cpu_wheel(release: Release) -> Path:
    return download(release.find("wheel", "cpu"))


@pytest.fixture(scope="session")
def source(sdist: Path, release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist, to copy from."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"vllm-{release.version}"


@pytest.fixture(scope="session")
def installed(cpu_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked CPU build, as in site-packages, to copy from."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(cpu_wheel) as archive:
        archive.extractall(folder)
    return folder
