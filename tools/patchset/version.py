"""``vllm/_version.py``: what an engine says it is. Read and rewritten as text, never imported."""

from __future__ import annotations

import re

from patchset.errors import IntegrityFault

# The part of a local version that these tools add to a release's own.
MARK = "+kimi.eagle3."


def read_version(content: bytes | None) -> str | None:
    """The version that the file states, e.g. ``0.16.0+kimi.eagle3.1``; ``None`` if none."""
    pattern = rb"^(?:__version__ = )?(?:version|__version__)(?: = version)? = ['\"]([^'\"]+)['\"]"
    found = re.search(pattern, content or b"", re.MULTILINE)
    return found[1].decode("ascii", "replace") if found else None


def set_version(content: bytes, old: str, new: str, where: str) -> bytes:
    """The file with another version; it must be as setuptools-scm or vcs-versioning wrote it."""
    text = replace_once(
        content.decode(),
        rf"^__version__ = version = '{re.escape(old)}'$",
        f"__version__ = version = '{new}'",
        where,
    )
    return replace_once(
        text,
        rf"^__version_tuple__ = version_tuple = {re.escape(_tuple(old))}$",
        f"__version_tuple__ = version_tuple = {_tuple(new)}",
        where,
    ).encode()


def replace_once(text: str, pattern: str, new: str, where: str) -> str:
    """Replace the one line that matches; :class:`IntegrityFault` if there is not just one."""
    result, count = re.subn(pattern, lambda _: new, text, flags=re.MULTILINE)
    if count != 1:
        raise IntegrityFault(f"{where}: {count} lines match {pattern!r} instead of one")
    return result


def _tuple(version: str) -> str:
    """As setuptools-scm writes it: the numbers, then the local part as one string."""
    release, _, local = version.partition("+")
    return f"({', '.join([*release.split('.'), *([repr(local)] if local else [])])})"
