"""Which releases are tried when."""

from __future__ import annotations

from typing import Any

import pytest

from patchset.project import Project

PROJECT = Project.here()
# The oldest with a source archive, one from the middle, the newest: what CI has time for.
QUICK = ("0.16.0", "0.23.0", PROJECT.releases.versions[-1])


def pins(*, series: bool) -> list[Any]:
    """All pinned releases (or those with a series) as parameters; all but three are ``slow``."""
    return [
        pytest.param(
            item, marks=[] if item.version in QUICK else [pytest.mark.slow], id=item.version
        )
        for item in PROJECT.releases.release
        if not series or PROJECT.has_series(item.version)
    ]
