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
# Its neighbour has almost the same sources, and nearly the same patches.
SLOW = ("0.17.0",)
RELEASES = [
    pytest.param(item, marks=[pytest.mark.slow] if item.version in SLOW else [])
    for item in PROJECT.releases.release
    if PROJECT.lock_path(item).is_file()
]


@pytest.fixture(scope="session", params=RELEASES, ids=lambda item: str(item.version))
def release(request: pytest.FixtureRequest) -> Release:
    found = request.param
    assert isinstance(found, Release)
    return found


@pytest.fixture(scope="session")
def project() -> Project:
    return PROJECT


@pytest.fixture(scope="session")
def pristine(release: Release) -> Path:
    """The source archive; where the release has none, the CPU build."""
    return download(release.pristine())


@pytest.fixture(scope="session")
def cpu_wheel(release: Release) -> Path:
    return download(release.find("wheel", "cpu"))


@pytest.fixture(scope="session")
def source(pristine: Path, release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package from the source archive, or from the CPU build, to copy from."""
    folder = tmp_path_factory.mktemp("source")
    if pristine.suffix == ".whl":
        with zipfile.ZipFile(pristine) as wheel:
            members = [name for name in wheel.namelist() if name.startswith("vllm/")]
            wheel.extractall(folder, [name for name in members if not name.endswith(".so")])
        return folder
    with tarfile.open(pristine) as archive:
        package = [item for item in archive if item.name.split("/")[1:2] == ["vllm"]]
        archive.extractall(folder, package, filter="data")
    return folder / f"vllm-{release.version}"


@pytest.fixture(scope="session")
def installed(cpu_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked CPU build, as in site-packages, to copy from."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(cpu_wheel) as archive:
        archive.extractall(folder)
    return folder
