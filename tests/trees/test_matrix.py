"""The facts about every release are true of its real source."""

from __future__ import annotations

import pytest

from patchset.download import download
from patchset.matrix import Matrix, examine
from patchset.project import Project
from patchset.releases import Release
from patchset.source import open_source

pytestmark = pytest.mark.network

FACTS = Matrix(Project.here())
QUICK = ("0.16.0", "0.23.0", "0.33.0")  # between them each probe says yes and no


@pytest.mark.parametrize(
    "pin",
    [
        pytest.param(item, marks=[] if item.version in QUICK else [pytest.mark.slow])
        for item in FACTS.project.releases.release
    ],
    ids=lambda item: str(item.version),
)
def test_probes_and_series_agree_with_the_facts(pin: Release) -> None:
    """Each fault is there, or not, as faults.toml says, and gone where a patch shall cure it."""
    with open_source(download(pin.pristine())) as read:
        assert examine(FACTS, pin.version, read).wrong == ()
