"""Equal patches of several releases: one file in the oldest of them, and links to it.

``patches/v0.18.1/0009-x.patch`` may be the symbolic link ``../v0.18.0/0009-x.patch``, so that
``git am patches/v0.18.1/*.patch`` works with plain git and no hunk is kept twice. A whole overlay
folder may be such a link, ``overlay/v0.16.0 -> v0.15.0``: ``cp -r overlay/v0.16.0/. TREE`` follows.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

_FOLDER = re.compile(r"v\d+\.\d+\.\d+(\.post\d+)?")


def problem(path: Path) -> str | None:
    """Why ``path`` is no patch file to read, or ``None``.

    A link has to name a regular file of the same name in another release's folder, in the form
    ``../vA.B.C/NAME``: what it names is then checked in, and locked, like any other patch.
    """
    if not path.is_symlink():
        if not path.is_file():
            return "which is not a file"
        with path.open("rb") as file:
            lost = file.read(4) == b"../v"  # no mail begins so
        return "which was unpacked or checked out without its symbolic link" if lost else None
    text = os.readlink(path)
    above, _, rest = text.partition("/")
    folder, _, name = rest.partition("/")
    if above != ".." or name != path.name or not _FOLDER.fullmatch(folder):
        return f"which is a link to {text!r}, not to ../vA.B.C/{path.name}"
    place = path.parent.parent / folder
    if place.is_symlink() or (place / name).is_symlink() or not (place / name).is_file():
        return f"which is a link to {text}, and that is not a regular file"
    return None


def overlay_problem(folder: Path) -> str | None:
    """Why ``folder`` is no overlay to read, or ``None``; a release need not have one.

    A link has to name another release's folder beside it, in the form ``vA.B.C``.
    """
    if not folder.is_symlink():
        return "is a file: unpacked without its symbolic link?" if folder.is_file() else None
    text = os.readlink(folder)
    other = folder.parent / text
    if not _FOLDER.fullmatch(text) or other.is_symlink() or not other.is_dir():
        return f"is a link to {text!r}, which is no other release's folder"
    return None


def equal(patches: Path) -> dict[Path, Path | None]:
    """What is to be changed so that no two patch files below ``patches`` are equal.

    Maps a file to the one that it has to link to; ``None``: it has to be a regular file itself,
    as the oldest release's is, but is a link.
    """
    holders: dict[tuple[str, bytes], list[Path]] = defaultdict(list)
    for folder in folders(patches):
        for path in sorted(folder.glob("*.patch")):
            if path.is_file():
                holders[path.name, path.read_bytes()].append(path)
    wanted: dict[Path, Path | None] = {}
    for oldest, *later in holders.values():
        if oldest.is_symlink():
            wanted[oldest] = None
        for path in later:
            if not path.is_symlink() or os.readlink(path) != _text(oldest):
                wanted[path] = oldest
    return wanted


def link(patches: Path) -> list[str]:
    """Make the changes that :func:`equal` tells; returns the links made, ``vA.B.C/NAME``.

    Each file is replaced in one step, and first those that others will link to.
    """
    wanted = equal(patches)
    for path, target in sorted(wanted.items(), key=lambda item: item[1] is not None):
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        if target is None:
            new.write_bytes(path.read_bytes())
        else:
            new.symlink_to(_text(target))
        os.replace(new, path)
    return sorted(f"{path.parent.name}/{path.name}" for path, target in wanted.items() if target)


def folders(place: Path) -> list[Path]:
    """The releases' folders in ``place``, oldest first."""
    found = [item for item in place.iterdir() if _FOLDER.fullmatch(item.name)]
    return sorted(found, key=lambda item: age(item.name))


def age(name: str) -> list[int]:
    """What a release's folder is ordered by."""
    return [int(part) for part in re.findall(r"\d+", name)]


def _text(target: Path) -> str:
    return f"../{target.parent.name}/{target.name}"
