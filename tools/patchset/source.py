"""Pristine sources to read from: a wheel, a source archive, or a folder."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchset.archive import Archive
from patchset.errors import IntegrityFault, Refused, UsageFault
from patchset.paths import PACKAGE, VERSION_FILE, locate
from patchset.project import Project
from patchset.series import Read
from patchset.version import MARK, read_version


@contextmanager
def open_source(path: Path, folders: tuple[str, ...] = (PACKAGE,)) -> Iterator[Read]:
    """A function that reads one path of ``path``, whatever it is; of a .tar.gz, in ``folders``."""
    if not path.exists():
        raise UsageFault(f"{path}: does not exist")
    if path.is_dir():
        if not (path / PACKAGE).is_dir():
            raise UsageFault(f"{path}: has no {PACKAGE}/ folder")
        yield lambda name: _read_file(path, name)
    elif path.name.endswith(".whl"):
        with Archive(path) as archive:
            yield archive.read
    elif path.name.endswith(".tar.gz"):
        yield _tarball(path, folders).get
    else:
        raise UsageFault(f"{path}: is not a wheel, a .tar.gz or a folder")


def require_release(read: Read, project: Project, version: str) -> None:
    """Raises :class:`Refused` if a source says that it is another pinned release, or patched.

    A checkout need not say what it is.
    """
    said = read_version(read(VERSION_FILE)) or version
    release = said.partition("+")[0]
    if MARK in said or (release != version and release in project.releases.versions):
        raise Refused(
            f"the source given as {version} is vLLM {said}, not {version} as released",
            next_step="Give its wheel, its source archive or neither, to have it fetched.",
        )


def _read_file(root: Path, name: str) -> bytes | None:
    try:
        return locate(root, name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _tarball(path: Path, folders: tuple[str, ...]) -> dict[str, bytes]:
    """All files of an sdist below ``folders``. It is 30 MB packed."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.partition("/")[2]
                if member.isfile() and name.partition("/")[0] in folders:
                    stream = archive.extractfile(member)
                    assert stream is not None
                    found[name] = stream.read()
    except (tarfile.TarError, EOFError, OSError) as fault:
        raise IntegrityFault(f"{path}: is not a complete archive: {fault}") from fault
    return found
