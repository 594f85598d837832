"""What each test says of itself in a report: the release that it is about, and its group."""

from __future__ import annotations

import re
from pathlib import Path

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.user_properties += properties(item.nodeid).items()
