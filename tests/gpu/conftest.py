"""What the tests on GPUs need, and skipping each that lacks it, before anything is started.

A test module says in NEEDS what its tests want besides a card.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

GUIDE = "see docs/gpu.md"


@cache
def cards() -> tuple[str, ...]:
    """The CUDA GPUs of this machine, by name."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return tuple(done.stdout.split("\n")[:-1]) if done.returncode == 0 else ()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker("gpu")
        needs: Callable[[Any], Sequence[str]] = getattr(item, "module").NEEDS  # noqa: B009
        if missing := [*needs(os.environ), *([] if cards() else ["a CUDA GPU"])]:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}; {GUIDE}"))
        else:
            item.add_marker("slow")  # make test counts what it skips, and does not take hours
