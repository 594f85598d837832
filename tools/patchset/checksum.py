"""Checksums of large files, with progress."""

from __future__ import annotations

import hashlib
from pathlib import Path

from patchset.archive import CHUNK, Progress
from patchset.errors import EnvironmentFault, UsageFault


def file_sha256(path: Path, progress: Progress | None = None) -> str:
    """sha256 of a file in lower-case hex, in constant memory."""
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
                    progress("checking", done, total)
            return state.hexdigest()
    except FileNotFoundError as fault:
        raise UsageFault(f"{path}: does not exist") from fault
    except IsADirectoryError as fault:
        raise UsageFault(f"{path}: is a folder, not a file") from fault
    except OSError as fault:
        raise EnvironmentFault(f"{path}: cannot be read: {fault.strerror}") from fault
