"""What the package index that pip is configured with has, and reading of a wheel there in parts."""

from __future__ import annotations

import io
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from packaging.version import InvalidVersion, Version
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    DistributionPackage,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedRepoVersionError,
)
from requests import RequestException, Session

from patchset.archive import Progress
from patchset.download import index_address
from patchset.errors import EnvironmentFault, IntegrityFault
from patchset.releases import PROJECTS, Releases

if TYPE_CHECKING:
    from patchset.releases import Artifact

_ARCHITECTURES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class NewRelease:
    """A release of which the index has ``files`` that releases.toml does not pin.

    ``pins`` is their TOML text; ``known``: the release itself is pinned.
    """

    version: str
    files: tuple[str, ...]
    pins: str
    known: bool = False


class Index:
    """The index that pip asks by itself, with pip's certificates."""

    def __init__(self, session: Session, pages: PyPISimple) -> None:
        self.session, self._pages = session, pages
        self._files: dict[str, list[DistributionPackage]] = {}

    def files(self, project: str) -> list[DistributionPackage]:
        """All files of a project that are not withdrawn; none if the index has no such project."""
        if project not in self._files:
            try:
                packages = self._pages.get_project_page(project, timeout=60).packages
            except NoSuchProjectError:
                packages = []
            self._files[project] = [item for item in packages if not item.is_yanked]
        return self._files[project]

    def size(self, url: str) -> int:
        """The size of a file in bytes."""
        with self.session.head(url, timeout=60, allow_redirects=True) as answer:
            answer.raise_for_status()
            return int(answer.headers["Content-Length"])

    def serves_parts(self, url: str) -> bool:
        """Whether parts of that file can be asked for."""
        part = {"Range": "bytes=0-0"}
        with self.session.get(url, headers=part, stream=True, timeout=60) as answer:
            answer.raise_for_status()
            return answer.status_code == 206

    @contextmanager
    def wheel(self, url: str, progress: Progress | None = None) -> Iterator[zipfile.ZipFile]:
        """A wheel on the index, of which only what is asked for is fetched.

        Where the index does not serve parts of a file, the whole is fetched into a temporary one.
        """
        size, parts = self.size(url), self.serves_parts(url)
        with tempfile.TemporaryFile() if not parts else _Remote(self.session, url, size) as file:
            if not parts:
                self._fetch(url, file, size, progress)
            with zipfile.ZipFile(file) as archive:
                yield archive

    def _fetch(self, url: str, file: IO[bytes], size: int, progress: Progress | None) -> None:
        with self.session.get(url, stream=True, timeout=60) as answer:
            answer.raise_for_status()
            done = 0
            for chunk in answer.iter_content(1 << 20):
                done += file.write(chunk)
                if progress:
                    progress(f"fetching {url.rsplit('/', 1)[-1]}", done, size)


@contextmanager
def open_index() -> Iterator[Index]:
    """The index; :class:`EnvironmentFault` when it is out of reach or cannot be understood."""
    step = "Check the network and pip's configuration (pip config list)."
    session = Session()
    if certificates := os.environ.get("PIP_CERT"):
        session.verify = certificates
    try:
        with PyPISimple(index_address() or PYPI_SIMPLE_ENDPOINT, session=session) as pages:
            yield Index(session, pages)
    except RequestException as fault:
        raise EnvironmentFault(
            f"the package index cannot be reached ({type(fault).__name__})", next_step=step
        ) from fault
    except (ValueError, KeyError, UnsupportedRepoVersionError, zipfile.BadZipFile) as fault:
        raise EnvironmentFault(
            f"the package index gives no answer that can be read ({type(fault).__name__})",
            next_step=step,
        ) from fault


def url_of(index: Index, artifact: Artifact) -> str:
    """The address of a pinned file, by its name and checksum."""
    for item in index.files(artifact.project):
        if item.filename == artifact.file:
            if item.digests.get("sha256") not in (None, artifact.sha256):
                raise IntegrityFault(f"the index has {artifact.file} with another sha256")
            return item.url
    raise EnvironmentFault(f"the package index does not have {artifact.file}")


def new_releases(
    index: Index, releases: Releases, progress: Progress | None = None
) -> list[NewRelease]:
    """Final releases since the oldest pin that are not pinned, or have files that are not."""
    oldest = min(Version(version) for version in releases.versions)
    pinned = {Version(version) for version in releases.versions}
    files = {artifact.file for release in releases.release for artifact in release.artifact}
    offered: dict[Version, list[DistributionPackage]] = {}
    for project in PROJECTS.values():
        for item in index.files(project):
            version = _version(item)
            if version is None or version < oldest or not _wanted(item) or item.filename in files:
                continue
            offered.setdefault(version, []).append(item)
    found = []
    for version, items in sorted(offered.items()):
        items.sort(key=_order)
        if version in pinned:
            names = tuple(item.filename for item in items)
            text = "".join(_artifact(index, item) for item in items)
            found.append(NewRelease(str(version), names, text, known=True))
        # The community's build of a version that vLLM itself has not released is no release.
        elif any(item.project == "vllm" for item in items):
            found.append(_pin(index, str(version), items, progress))
    return found


def _pin(
    index: Index, version: str, files: list[DistributionPackage], progress: Progress | None
) -> NewRelease:
    """The TOML of a release: what the index says of its files, and its first wheel of itself."""
    wheels = [item for item in files if item.project == "vllm" and item.package_type == "wheel"]
    if not wheels:
        raise EnvironmentFault(f"the package index has no official wheel of vLLM {version}")
    first = min(wheels, key=_build)
    with index.wheel(first.url, progress) as archive:
        said = archive.read("vllm/_version.py").decode("utf-8", "replace")
        name = next(item for item in archive.namelist() if item.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode("utf-8", "replace")
    commit = re.search(r"commit_id = '?g?([0-9a-f]{9,40})", said)
    torch = re.search(r"^Requires-Dist: torch *\(?== *([0-9.]+)", metadata, re.MULTILINE)
    if commit is None or torch is None:
        raise IntegrityFault(f"{first.filename}: does not say its commit or its torch")
    lines = [
        "[[release]]",
        f'version = "{version}"',
        f'tag = "v{version}"',
        f'commit = "{commit[1]}"',
        f'torch = "{torch[1]}"',
        f'image = "vllm/vllm-openai:v{version}"',
        "revision = 1",
    ]
    artifacts = "".join(_artifact(index, item) for item in files)
    names = tuple(item.filename for item in files)
    return NewRelease(version, names, "\n".join(lines) + "\n" + artifacts)


def _artifact(index: Index, item: DistributionPackage) -> str:
    if (sha256 := item.digests.get("sha256")) is None:
        raise EnvironmentFault(f"the package index gives no sha256 of {item.filename}")
    return f"""
[[release.artifact]]
file = "{item.filename}"
project = "{_project(item)}"
kind = "{item.package_type}"
sha256 = "{sha256}"
size = {item.size or index.size(item.url)}
"""


def _project(item: DistributionPackage) -> str:
    """The name on the index, which a file's name spells with underscores."""
    return (item.project or "").replace("_", "-")


def _version(item: DistributionPackage) -> Version | None:
    try:
        version = Version(item.version or "")
    except InvalidVersion:
        return None
    return None if version.is_prerelease or version.local else version


def _wanted(item: DistributionPackage) -> bool:
    """Source archives, and wheels for Linux that a Python 3.11 takes."""
    if item.package_type == "sdist":
        return item.project == "vllm" and item.filename.endswith(".tar.gz")
    name = item.filename.removesuffix(".whl")
    return (
        item.package_type == "wheel"
        and "manylinux" in name
        and name.endswith(_ARCHITECTURES)
        and ("-abi3-" in name or "-cp311-" in name)
    )


def _build(item: DistributionPackage) -> int:
    """The build number in a wheel's name; 0 if it has none."""
    parts = item.filename.removesuffix(".whl").split("-")
    return int(parts[2]) if len(parts) == 6 else 0


def _order(item: DistributionPackage) -> tuple[int, bool, int]:
    """Official wheels, source archive, CPU builds; x86_64 first, and later builds first."""
    kind = 2 if _project(item) != "vllm" else 1 if item.package_type == "sdist" else 0
    return kind, "aarch64" in item.filename, -_build(item)


class _Remote(io.BufferedReader):
    """A file on a server, read by ranged requests of at least 128 KiB."""

    def __init__(self, session: Session, url: str, size: int) -> None:
        super().__init__(_Ranges(session, url, size), 1 << 17)


class _Ranges(io.RawIOBase):
    def __init__(self, session: Session, url: str, size: int) -> None:
        self._session, self._url, self._size, self._at = session, url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        wanted = {"Range": f"bytes={self._at}-{end - 1}"}
        with self._session.get(self._url, headers=wanted, timeout=60) as answer:
            answer.raise_for_status()
            content = answer.content
        if answer.status_code != 206 or len(content) != end - self._at:
            raise ValueError("the index gave another part of the file than it was asked for")
        buffer[: len(content)] = content
        self._at = end
        return len(content)
