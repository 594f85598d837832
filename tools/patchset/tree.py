"""Places where vLLM's source lives: a checkout, a source folder, an install, a wheel."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from packaging.version import InvalidVersion, Version

from patchset.errors import EnvironmentFault, IntegrityFault, Refused, UnknownRelease, UsageFault
from patchset.lock import SeriesLock, digest
from patchset.paths import PACKAGE, VERSION_FILE, locate
from patchset.project import Project
from patchset.releases import PROJECTS, Release
from patchset.version import read_version

if TYPE_CHECKING:
    from patchset.archive import Archive

Kind = Literal["checkout", "source", "install", "wheel"]

STATE_FOLDER = ".vllm-kimi-eagle3"

# Run by the interpreter of an environment: where would it import vllm from, without importing it?
_PROBE = """
import importlib.util, json, os, sys
copies = []
for entry in sys.path:
    path = os.path.join(entry, "vllm", "__init__.py")
    if entry and os.path.isfile(path) and path not in copies:
        copies.append(path)
spec = importlib.util.find_spec("vllm")
print(json.dumps({"origin": spec and spec.origin, "copies": copies}))
"""


@dataclass
class Tree:
    """One place to read from and, unless it is a wheel, to write to.

    ``root`` is the folder that holds ``vllm/`` (links resolved), or the wheel file. ``state_dir``
    is where the record of what was applied is kept, ``None`` for a wheel. ``dist_info`` is set for
    an install whose files a RECORD lists. ``others`` are further copies that the interpreter could
    import, were this one not first.
    """

    kind: Kind
    root: Path
    state_dir: Path | None = None
    dist_info: Path | None = None
    others: tuple[Path, ...] = ()
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @cached_property
    def _archive(self) -> Archive:
        from patchset.archive import Archive

        return self._stack.enter_context(Archive(self.root))

    def read(self, path: str) -> bytes | None:
        """The content of a file of the package, ``None`` if there is none.

        Raises :class:`UnsafePath` if a symbolic link below the root stands in the way.
        """
        if self.kind == "wheel":
            return self._archive.read(path)
        place = locate(self.root, path)
        try:
            return place.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError as fault:
            raise Refused(f"{place}: is a folder where a file should be") from fault
        except OSError as fault:
            raise EnvironmentFault(f"{place}: cannot be read: {fault.strerror}") from fault

    def read_info(self, name: str) -> bytes | None:
        """A file of the distribution's dist-info, e.g. ``RECORD``; ``None`` if there is none."""
        if self.kind == "wheel":
            return self._archive.read(f"{self._archive.dist_info}/{name}")
        if self.dist_info is None:
            return None
        return self.read(f"{self.dist_info.name}/{name}")


def open_tree(path: Path) -> Tree:
    """Recognise what ``path`` is; use the result in a ``with`` statement.

    Accepts a git checkout, an unpacked source archive, a site-packages folder, an environment's
    folder, a Python executable and a wheel file. Raises :class:`UsageFault` for anything else.
    """
    if not os.path.lexists(path):
        raise UsageFault(f"{path}: does not exist")
    if path.is_file():
        if path.suffix == ".whl":
            return Tree("wheel", path)
        if os.access(path, os.X_OK):
            return _environment(path)
        raise UsageFault(f"{path}: is neither a wheel nor a Python executable")
    if (path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir():
        python = path / "bin" / "python"
        if not python.exists():
            raise Refused(f"{path}: is an environment without bin/python")
        return _environment(python)
    if (path / PACKAGE / "__init__.py").is_file():
        return _folder(path.resolve())
    if editable := sorted(path.glob("__editable__*vllm*")):
        raise Refused(
            f"{path}: has an editable install of vLLM ({editable[0].name}), not its files",
            next_step="Name the environment or the checkout instead.",
        )
    if path.name == PACKAGE and (path / "__init__.py").is_file():
        raise UsageFault(f"{path}: is the package itself; name the folder that holds it")
    raise UsageFault(
        f"{path}: holds no vLLM: expected a checkout, an unpacked source archive, site-packages, "
        "an environment, a Python executable or a wheel"
    )


def release_of(tree: Tree, project: Project, named: str | None = None) -> Release:
    """The pinned release of a tree; ``named`` is what the user says it is.

    Read from ``vllm/_version.py`` (parsed, not imported). A checkout may lack that file or carry a
    development version: then the checksums of the touched files tell. Where they fit no release,
    an exact git tag does; where they fit several, the newest one whose tag HEAD is based on.
    Raises :class:`UnknownRelease`, also when the tree is certainly another release.
    """
    wanted = project.release(named) if named else None
    version = version_of(tree)
    found = _pin(project, version)
    alike: list[str] = []
    if found is None and tree.kind == "checkout":
        alike = _by_checksums(tree, project)
        try:
            found = project.release(alike[0]) if len(alike) == 1 else _by_tag(tree, project, alike)
        except EnvironmentFault:
            if wanted is None:
                raise
    if wanted is None:
        if found is None:
            versions = project.releases.versions
            known = ", ".join(item for item in versions if project.has_series(item))
            raise UnknownRelease(
                f"{tree.root}: is vLLM {version or ' or '.join(alike) or 'of an unknown release'}; "
                "there is a series for "
                f"{known}",
                next_step="If you know the release, say it with --release.",
            )
        return found
    other = found.version if found else version if tree.kind != "checkout" else None
    if other and other != wanted.version:
        raise UnknownRelease(
            f"{tree.root}: is vLLM {other}, not {wanted.version}",
            next_step="Leave out --release, or name the right tree.",
        )
    return wanted


def version_of(tree: Tree) -> str | None:
    """What ``vllm/_version.py`` says, e.g. ``0.16.0+kimi.eagle3.1``; ``None`` if nothing."""
    return read_version(tree.read(VERSION_FILE))


def _matches(tree: Tree, lock: SeriesLock, seen: dict[str, str | None]) -> bool:
    """Whether every touched file is in one of the states that the lock knows.

    ``seen`` holds the checksums of files that were looked at for another lock.
    """
    for path, entry in lock.paths.items():
        if path not in seen:
            seen[path] = digest(tree.read(path))
        if seen[path] not in {entry.before, *(step.sha256 for step in entry.steps)}:
            return False
    return True


def git_dir(root: Path) -> Path | None:
    """The git directory of a checkout's top folder, also of a worktree or submodule."""
    entry = root / ".git"
    if entry.is_dir():
        return entry
    try:
        text = entry.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if not text.startswith("gitdir: "):
        return None
    return (root / text.removeprefix("gitdir: ").rstrip("\n")).resolve()


def require_trust(root: Path, said: str) -> None:
    """Pass on that git, by what it said, works in no repository of another user."""
    if "dubious ownership" in said:
        raise EnvironmentFault(
            f"{root}: belongs to another user, so git refuses to work in it",
            next_step=f"Run this as its owner, or: git config --global --add safe.directory {root}",
        )


def _pin(project: Project, version: str | None) -> Release | None:
    try:
        parsed = Version(version or "")
    except InvalidVersion:
        return None
    if parsed.is_prerelease:
        return None
    known = project.releases.versions
    return project.release(parsed.public) if parsed.public in known else None


def _by_checksums(tree: Tree, project: Project) -> list[str]:
    """The releases whose touched files these could be; neighbours may have the same ones."""
    seen: dict[str, str | None] = {}
    return [version for version, lock in project.locks() if _matches(tree, lock, seen)]


def _by_tag(tree: Tree, project: Project, alike: list[str]) -> Release | None:
    """The release whose tag HEAD has; the last of those ``alike`` whose tag is HEAD's ancestor."""
    import subprocess

    kind = "--merged" if alike else "--points-at"
    step = "Say the release with --release."
    try:
        answer = subprocess.run(
            ["git", "-C", str(tree.root), "tag", kind, "HEAD"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, "LC_ALL": "C", "LANGUAGE": "C"},
        )
    except OSError as fault:
        raise EnvironmentFault(
            f"{tree.root}: git, which could tell the release, cannot be run: {fault.strerror}",
            next_step=step,
        ) from fault
    require_trust(tree.root, answer.stderr)
    tags = answer.stdout.split()
    known = [item for item in project.releases.release if item.tag in tags]
    if alike:
        return next((item for item in reversed(known) if item.version in alike), None)
    return known[0] if known else None


def _folder(root: Path, others: tuple[Path, ...] = ()) -> Tree:
    if git := git_dir(root):
        return Tree("checkout", root, git / STATE_FOLDER.lstrip("."), None, others)
    owners = [item for item in sorted(root.glob("*.dist-info")) if _owns(item)]
    if len(owners) > 1:
        raise Refused(
            f"{root}: two distributions claim vllm/: {', '.join(item.name for item in owners)}",
            next_step="Uninstall both and install one of them again.",
        )
    kind: Kind = "install" if owners else "source"
    return Tree(kind, root, root / STATE_FOLDER, owners[0] if owners else None, others)


def _owns(dist_info: Path) -> bool:
    """Whether that distribution is a vLLM build whose RECORD lists the package."""
    if dist_info.name.split("-")[0].lower().replace("_", "-") not in PROJECTS.values():
        return False
    try:
        return b"vllm/__init__.py," in (dist_info / "RECORD").read_bytes()
    except OSError:
        return False


def _environment(python: Path) -> Tree:
    """The copy of vLLM that this interpreter would import."""
    import subprocess

    try:
        answer = subprocess.run(
            # In "/", so that the current folder cannot shadow what is installed.
            [os.path.abspath(python), "-c", _PROBE],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            timeout=120,
        )
        found = json.loads(answer.stdout.splitlines()[-1])
        origin, copies = found["origin"], found["copies"]
        if not all(isinstance(item, str) for item in [origin or "", *copies]):
            raise TypeError(found)
    except (OSError, ValueError, LookupError, TypeError, subprocess.TimeoutExpired) as fault:
        raise UsageFault(f"{python}: is not a Python interpreter that runs here") from fault
    if origin is None:
        raise Refused(
            f"{python}: has no importable vLLM",
            next_step="Install the pinned release there first.",
        )
    package = Path(origin).parent
    if package.name != PACKAGE or not Path(origin).is_file():
        raise Refused(f"{python}: imports vLLM from {origin}, which is not a folder of files")
    root = package.resolve().parent
    others = tuple(
        dict.fromkeys(
            place for copy in copies if (place := Path(copy).parent.resolve().parent) != root
        )
    )
    return _folder(root, others)


def record_of(tree: Tree) -> tuple[str, bytes] | None:
    """Path below the root and content of the RECORD of an install."""
    if tree.dist_info is None:
        return None
    path = tree.dist_info / "RECORD"
    if path.is_symlink():
        raise IntegrityFault(f"{path}: is a symbolic link")
    return f"{tree.dist_info.name}/RECORD", path.read_bytes()
