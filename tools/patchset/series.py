"""The ordered changes of one release: overlay files, then patches.

``patches/vX/series`` lists the patch files, one a line; ``overlay/vX/`` holds whole new files laid
out as they land. Loading checks everything that can be checked without a tree.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from email.errors import MessageError
from functools import cached_property
from pathlib import Path
from typing import Final

from patchset import links
from patchset.diff import FileDiff, named_paths, parse_diff
from patchset.errors import IntegrityFault, Refused, UsageFault
from patchset.paths import check_path

OVERLAY = "overlay"  # the name of the step, before the first patch, that adds the overlay files
MODE: Final = "100644"  # of every file a series touches or adds

_PATCH_NAME = re.compile(r"^\d{4}-[A-Za-z0-9][A-Za-z0-9._-]*\.patch$")
# Lines before the first "diff --git" at which git would start a diff, or another mail.
_OTHER_START = re.compile(
    rb"^(--- |\+\+\+ |@@ -|Index: |diff -|(?<!\A)From .*\d:\d).*$", re.MULTILINE
)
# Encodings that leave the text as it is. Others, and parts of a mail, git would decode.
_PLAIN = {
    "content-transfer-encoding": re.compile(r"7bit|8bit"),
    "content-type": re.compile(r"text/plain(; charset=[\w\"-]+)?"),
}
_TRAILER = re.compile(r"^(Fault|Upstream|Drop-when|Signed-off-by):[ \t]*(.+)$", re.MULTILINE)

Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Patch:
    """One patch file. ``paths`` are the files it names; ``faults`` come from its trailers."""

    name: str
    content: bytes
    sha256: str
    headers: dict[str, str]
    message: str
    trailers: tuple[tuple[str, str], ...]
    paths: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The first line of the commit message."""
        text = " ".join(_decode(self.headers["Subject"]).split())
        return re.sub(r"^(\[[^\]]*\]\s*)+", "", text)

    @property
    def author(self) -> str:
        """Name and address, as in ``From:``."""
        return _decode(self.headers["From"])

    @cached_property
    def files(self) -> tuple[FileDiff, ...]:
        """The diffs, parsed when they are first needed: looking at a tree does without them."""
        diffs = parse_diff(self.content, self.name)
        if tuple(diff.path for diff in diffs) != self.paths:
            raise IntegrityFault(f"{self.name}: names files that it does not change")
        return diffs

    @property
    def faults(self) -> tuple[str, ...]:
        """Fault ids in the order written, e.g. ``("F05", "F06")``."""
        found = [re.findall(r"F\d+", value) for key, value in self.trailers if key == "Fault"]
        return tuple(fault for part in found for fault in part)


@dataclass(frozen=True)
class OverlayFile:
    """A whole new file. ``path`` is where it lands in the tree."""

    path: str
    content: bytes
    sha256: str


@dataclass(frozen=True)
class Step:
    """One stage of a series: its name (a patch's, or ``overlay``) and the files after it.

    ``files`` maps each path that this step touches to its new content (``None``: deleted).
    """

    name: str
    files: dict[str, bytes | None]


@dataclass(frozen=True)
class Change:
    """The effect of a whole series on one path; ``None`` stands for "no such file"."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Series:
    """The patches and overlay files of a release.

    ``upto`` is how many patches were kept when the series was cut, else ``None``. ``digest``
    identifies what is applied: sha256 over the listing of all patch and overlay checksums.
    """

    release: str
    patches: tuple[Patch, ...]
    overlay: tuple[OverlayFile, ...]
    upto: int | None = None

    @property
    def digest(self) -> str:
        """sha256, in hex, of the lines ``patch <sha256> <name>`` and ``overlay <sha256> <path>``.

        Patches come in their order, overlay files sorted by path.
        """
        lines = [f"release {self.release}"]
        lines += [f"patch {patch.sha256} {patch.name}" for patch in self.patches]
        lines += [f"overlay {item.sha256} {item.path}" for item in self.overlay]
        return sha256("".join(f"{line}\n" for line in lines).encode())

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path the series touches, sorted."""
        found = {item.path for item in self.overlay}
        found.update(path for patch in self.patches for path in patch.paths)
        return tuple(sorted(found))

    def cut(self, upto: int | None) -> Series:
        """The series with only its first ``upto`` patches (all overlay files stay)."""
        if upto is None:
            return self
        if not 0 <= upto <= len(self.patches):
            raise UsageFault(
                f"--upto {upto}: the series of {self.release} has {len(self.patches)} patches"
            )
        return Series(self.release, self.patches[:upto], self.overlay, upto)

    def forward(self, read: Read) -> list[Step]:
        """Apply everything to what ``read`` gives, in memory; one step per stage.

        ``read`` returns a path's content or ``None``. Raises :class:`DoesNotApply`.
        """
        state: dict[str, bytes | None] = {}
        steps: list[Step] = []
        if self.overlay:
            added: dict[str, bytes | None] = {}
            for item in self.overlay:
                if read(item.path) is not None:
                    raise Refused(f"{item.path}: exists already; the overlay adds it as a new file")
                added[item.path] = item.content
            state.update(added)
            steps.append(Step(OVERLAY, added))
        for patch in self.patches:
            steps.append(_advance(patch.name, patch.files, state, read))
        return steps

    def backward(self, read: Read) -> list[Step]:
        """Undo everything from what ``read`` gives, in memory, last patch first."""
        state: dict[str, bytes | None] = {}
        steps: list[Step] = []
        for patch in reversed(self.patches):
            undo = tuple(diff.reversed() for diff in reversed(patch.files))
            steps.append(_advance(patch.name, undo, state, read))
        if self.overlay:
            for item in self.overlay:
                current = state[item.path] if item.path in state else read(item.path)
                if current != item.content:
                    raise Refused(f"{item.path}: is not the file that the overlay added")
            steps.append(Step(OVERLAY, {item.path: None for item in self.overlay}))
        return steps


def changes(steps: list[Step], read: Read) -> list[Change]:
    """What ``steps`` amount to, one entry per path whose content differs in the end."""
    final: dict[str, bytes | None] = {}
    for step in steps:
        final.update(step.files)
    result = [Change(path, read(path), after) for path, after in sorted(final.items())]
    return [change for change in result if change.before != change.after]


def load_series(root: Path, directory: str, release: str) -> Series:
    """Read ``patches/<directory>/`` and ``overlay/<directory>/`` under ``root``.

    Raises :class:`IntegrityFault` when the series is empty, names a missing patch or leaves one
    unlisted; :class:`Refused` or :class:`UnsafePath` for what a patch must not contain.
    """
    folder = root / "patches" / directory
    listing = folder / "series"
    try:
        text = listing.read_text(encoding="utf-8")
    except FileNotFoundError as fault:
        raise IntegrityFault(f"{listing}: is missing") from fault
    except UnicodeDecodeError as fault:
        raise IntegrityFault(f"{listing}: is not UTF-8") from fault
    names = [line.split("#", 1)[0].strip() for line in text.splitlines()]
    names = [name for name in names if name]
    if not names:
        raise IntegrityFault(f"{listing}: lists no patch")
    for name in names:
        if not _PATCH_NAME.match(name):
            raise IntegrityFault(f"{listing}: {name!r} is not of the form NNNN-slug.patch")
        if names.count(name) > 1:
            raise IntegrityFault(f"{listing}: lists {name} more than once")
        if reason := links.problem(folder / name):
            raise IntegrityFault(f"{listing}: lists {name}, {reason}")
    if unlisted := sorted({item.name for item in folder.glob("*.patch")} - set(names)):
        raise IntegrityFault(f"{listing}: does not list {', '.join(unlisted)}")
    if names != sorted(names):
        # git am patches/vX/*.patch takes them in this order
        raise IntegrityFault(f"{listing}: the patches are not in the order of their numbers")
    patches = tuple(load_patch(folder / name) for name in names)
    overlay = tuple(_load_overlay(root / "overlay" / directory))
    for patch in patches:
        # Otherwise 'git am' and then copying the overlay would give something else.
        if both := set(patch.paths) & {item.path for item in overlay}:
            raise IntegrityFault(f"{patch.name}: changes the overlay file {min(both)}")
    return Series(release, patches, overlay)


def load_patch(path: Path) -> Patch:
    """Read one patch file in ``git format-patch`` form."""
    content = path.read_bytes()
    if b"\r\n" in content:
        raise Refused(
            f"{path.name}: has CRLF line ends, which 'git am' would drop and so change the result"
        )
    head, _, rest = content.partition(b"\n\n")
    pairs = _headers(head)
    headers = dict(reversed(pairs))  # of equal names the first one counts
    for name in ("From", "Date", "Subject"):
        if not headers.get(name):
            raise IntegrityFault(
                f"{path.name}: has no {name}: line; write it with git format-patch"
            )
    for name in ("From", "Subject"):
        try:
            _decode(headers[name])
        except (LookupError, ValueError, MessageError) as fault:
            raise IntegrityFault(f"{path.name}: the {name}: line cannot be decoded") from fault
    for name, value in pairs:
        plain = _PLAIN.get(name.lower())
        if plain and not plain.fullmatch(value.strip().lower()):
            raise Refused(f"{path.name}: is encoded, which is not read here: {name}: {value}")
    before = re.split(rb"^diff --git ", content, maxsplit=1, flags=re.MULTILINE)[0]
    if odd := _OTHER_START.search(before):
        raise Refused(
            f"{path.name}: 'git am' would take this line of the message for the start of a diff or "
            f"mail: {odd[0].decode('utf-8', 'replace')!r}"
        )
    body = rest.decode("utf-8", "replace")
    message = re.split(r"^(?:---|diff --git .*)$", body, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return Patch(
        name=path.name,
        content=content,
        sha256=sha256(content),
        headers=headers,
        message=message,
        trailers=tuple((key, value.strip()) for key, value in _TRAILER.findall(message)),
        paths=named_paths(content, path.name),
    )


def _headers(head: bytes) -> list[tuple[str, str]]:
    """The headers of a mail, unfolded.

    The parser and policies of the email package cost more time than all else that a look at a
    tree needs.
    """
    text = re.sub(r"\n[ \t]+", " ", head.decode("utf-8", "replace"))
    pairs = [line.partition(":") for line in text.split("\n")]
    return [(name, value.strip()) for name, colon, value in pairs if colon]


def _decode(value: str) -> str:
    """A header's text, where it is not plain ASCII."""
    if "=?" not in value:
        return value
    from email.header import decode_header, make_header

    return str(make_header(decode_header(value)))


def sha256(content: bytes) -> str:
    """Lower-case hex."""
    return hashlib.sha256(content).hexdigest()


def _load_overlay(folder: Path) -> list[OverlayFile]:
    if wrong := links.overlay_problem(folder):
        raise IntegrityFault(f"{folder}: {wrong}")
    found = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = path.relative_to(folder).as_posix()
        # Python leaves these behind when a test imports an overlay file in place.
        if "__pycache__" in path.parts:
            continue
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise IntegrityFault(f"{path}: an overlay holds regular files only")
        if path.is_file():
            check_path(name, str(folder))
            content = path.read_bytes()
            found.append(OverlayFile(name, content, sha256(content)))
    return sorted(found, key=lambda item: item.path)


def _advance(
    name: str, diffs: tuple[FileDiff, ...], state: dict[str, bytes | None], read: Read
) -> Step:
    touched: dict[str, bytes | None] = {}
    for diff in diffs:
        current = state[diff.path] if diff.path in state else read(diff.path)
        touched[diff.path] = diff.apply(current)
    state.update(touched)
    return Step(name, touched)
