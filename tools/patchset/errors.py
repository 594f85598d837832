"""The faults a caller can expect, and the exit code of each.

====  ==========================================================================================
code  meaning
====  ==========================================================================================
0     done and verified, or nothing to do
1     unexpected: a defect of these tools; the only case that shows a traceback
2     bad usage: unknown option, contradictory options, a path that does not exist
3     refused: the tree, wheel or series is not what the job needs; nothing was changed
4     integrity: a checksum, lock, archive or record is not what it must be; nothing was changed
5     environment: no network, no permission, no space, a missing program; nothing was changed,
      unless the message says that only the output failed, or how to finish (--commit)
====  ==========================================================================================
"""

from __future__ import annotations


class PatchsetError(Exception):
    """Base of every expected fault.

    ``message`` is one sentence that says what was found where; ``next_step`` is one sentence that
    says what the user can do. ``exit_code`` and ``kind`` are fixed by the subclass.
    """

    exit_code = 1
    kind = "unexpected"

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class UsageFault(PatchsetError):
    """The request itself makes no sense."""

    exit_code = 2
    kind = "usage"


class Refused(PatchsetError):
    """The input is not what the job was made for; nothing was changed."""

    exit_code = 3
    kind = "refused"


class UnknownRelease(Refused):
    """The tree belongs to no release that this repository pins."""

    kind = "unknown-release"


class UnsafePath(Refused):
    """A patch, overlay file, tree or archive names a place outside what it may touch."""

    kind = "unsafe-path"


class Busy(Refused):
    """Another process is changing the same tree."""

    kind = "busy"


class DoesNotApply(Refused):
    """A hunk does not stand where the patch says.

    ``path`` is the file, ``line`` the 1-based line in it, ``expected`` and ``found`` the two lines
    (``None`` for "no such line").
    """

    kind = "does-not-apply"

    def __init__(
        self,
        path: str,
        line: int,
        expected: bytes | None,
        found: bytes | None,
        reason: str = "the patch does not fit",
    ) -> None:
        super().__init__(
            f"{path}:{line}: {reason}: expected {_show(expected)}, found {_show(found)}",
            next_step="Start from an unmodified copy of the pinned release.",
        )
        self.path = path
        self.line = line
        self.expected = expected
        self.found = found


class IntegrityFault(PatchsetError):
    """Something does not have the content that its checksum, lock or format promises."""

    exit_code = 4
    kind = "integrity"


class EnvironmentFault(PatchsetError):
    """The machine cannot do it: network, permissions, space, a missing program."""

    exit_code = 5
    kind = "environment"


def _show(line: bytes | None) -> str:
    if line is None:
        return "the end of the file"
    text = line.decode("utf-8", "backslashreplace").rstrip("\n")
    return repr(text if len(text) <= 120 else text[:117] + "...")
