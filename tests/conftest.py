"""What each test says of itself in a report: the release that it is about, and its group.

And that no server outlives a run that is ended from outside.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from types import FrameType

import pytest

_SETTING = re.compile(r"\d+\.\d+\.\d+-V(\d)(-MLA)?")
_RELEASE = re.compile(r"(?<![\d.])0\.\d+\.\d+(?![\d.])")


def properties(nodeid: str) -> dict[str, str]:
    """``group`` and, where it is about one, ``release`` of the test with that id."""
    path, _, rest = nodeid.partition("::")
    parts = Path(path).parts
    group = parts[parts.index("tests") + 1] if "tests" in parts else parts[0]
    _, _, parameters = rest.partition("[")
    found = _RELEASE.search(parameters)
    release = found[0] if found else None
    if group == "engine":
        from engine.support import RELEASE

        setting = _SETTING.search(parameters)
        release = release or RELEASE
        group = f"engine V{setting[1]}{' MLA' if setting[2] else ''}" if setting else "engine V1"
    return {"group": group} | ({"release": release} if release else {})


def stop_on_signals() -> None:
    """A kill or a closed terminal ends the run as Ctrl-C does: servers are stopped on the way."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for kind in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(kind) is not signal.SIG_IGN:  # as nohup asks for
            signal.signal(kind, stop)


def pytest_configure() -> None:
    stop_on_signals()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.user_properties += properties(item.nodeid).items()
