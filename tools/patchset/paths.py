"""Which paths a series may name, and where they lie in a tree."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from patchset.errors import UnsafePath

PACKAGE = "vllm"
VERSION_FILE = "vllm/_version.py"
PROVENANCE = "kimi_eagle3.json"  # in the dist-info of a patched wheel

_RECORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.dist-info/RECORD")


def check_path(path: str, where: str, folders: tuple[str, ...] = (PACKAGE,)) -> str:
    """Return ``path`` if a series may touch it, else raise :class:`UnsafePath`.

    Allowed are normalised, relative POSIX paths of files below ``folders``: for a series, of those
    that ship in the wheels.
    ``where`` names the patch or folder that mentions the path, for the message.
    """
    parts = path.split("/")
    reason = None
    if path.startswith("/"):
        reason = "is absolute"
    elif any(part in ("", ".", "..") for part in parts):
        reason = "is not normalised or leaves the tree"
    elif any(part.lower() == ".git" for part in parts):
        reason = "lies inside a git directory"
    elif "\\" in path or ":" in path or any(ord(char) < 32 or ord(char) == 127 for char in path):
        reason = "has characters that are not portable"
    elif parts[0] not in folders or len(parts) < 2:
        only = "the only folder that ships in the wheels"
        beside = "where what goes with a patch belongs"
        reason = f"is outside {', '.join(f'{item}/' for item in folders)}, "
        reason += only if folders == (PACKAGE,) else beside
    elif path == VERSION_FILE:
        reason = "is written by the build, so that it differs between artifacts of one release"
    if reason:
        raise UnsafePath(f"{where}: the path {path!r} {reason}")
    return path


def noted_path(path: str) -> str:
    """Return ``path`` if these tools may have noted it in a tree, else raise :class:`ValueError`.

    What a series may touch, and what applying changes besides. A note that says more was forged.
    """
    if path != VERSION_FILE and not _RECORD.fullmatch(path):
        try:
            check_path(path, "the note")
        except UnsafePath as fault:
            raise ValueError(fault.message) from fault
    return path


def locate(root: Path, path: str) -> Path:
    """Where ``path`` lies under ``root``, refusing any symbolic link on the way.

    ``root`` itself may be reached through links (it is what the user named); below it a link could
    lead out of the tree, so neither folders nor the file itself may be one. Nor may ``path``.
    """
    parts = path.split("/")
    if {"", ".", ".."} & set(parts):
        raise UnsafePath(f"{root}: the path {path!r} is not normalised or leaves the tree")
    current = os.fspath(root)
    for part in parts:
        current = os.path.join(current, part)
        try:
            mode = os.lstat(current).st_mode
        except (FileNotFoundError, NotADirectoryError):
            break
        if stat.S_ISLNK(mode):
            raise UnsafePath(
                f"{current}: is a symbolic link, which could lead outside the tree {root}",
                next_step="Replace the link by what it points to, or patch that place itself.",
            )
    return root.joinpath(*parts)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file so that nobody, also after a kill, finds it cut off."""
    from tempfile import NamedTemporaryFile

    data = content.encode() if isinstance(content, str) else content
    with NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as out:
        try:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
            os.chmod(out.name, 0o644)
            os.replace(out.name, path)
        except BaseException:
            os.unlink(out.name)
            raise
