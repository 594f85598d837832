"""Checksums of large files, with progress."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from patchset.archive import CHUNK, Progress
from patchset.errors import EnvironmentFault, UsageFault

Found = TypeVar("Found")


class Meanwhile(Generic[Found]):
    """A job in a thread of its own: hashing and reading large files lets other threads run.

    A thread that nobody waits for any more, because of an error or Ctrl-C, keeps no process alive.
    """

    def __init__(self, job: Callable[[], Found]) -> None:
        self._job = job
        self._found: list[Found] = []
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> Found:
        """Wait for the job: what it returned, or the exception that it raised."""
        self._thread.join()
        if self._fault is not None:
            raise self._fault
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._job())
        except BaseException as fault:
            self._fault = fault


def file_sha256(path: Path, progress: Progress | None = None, what: str = "checking") -> str:
    """sha256 of a file in lower-case hex, in constant memory. ``what`` is told to ``progress``."""
    try:
        with path.open("rb", buffering=0) as stream:
            total = path.stat().st_size
            state = hashlib.sha256()
            buffer = memoryview(bytearray(CHUNK))
            done = 0
            while size := stream.readinto(buffer):
                state.update(buffer[:size])
                done += size
                if progress:
                    progress(what, done, total)
            return state.hexdigest()
    except FileNotFoundError as fault:
        raise UsageFault(f"{path}: does not exist") from fault
    except IsADirectoryError as fault:
        raise UsageFault(f"{path}: is a folder, not a file") from fault
    except OSError as fault:
        raise EnvironmentFault(f"{path}: cannot be read: {fault.strerror}") from fault
