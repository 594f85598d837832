"""The facts about every release are true of its real source."""

from __future__ import annotations

import pytest

from patchset.download import download
from patchset.matrix import Matrix, examine
from patchset.releases import Release
from patchset.source import open_source
from trees.support import PROJECT, pins

pytestmark = pytest.mark.network

FACTS = Matrix(PROJECT)


@pytest.mark.parametrize("pin", pins(series=False))
def test_probes_and_series_agree_with_the_facts(pin: Release) -> None:
    """Each fault is there, or not, as faults.toml says, and gone where a patch shall cure it."""
    with open_source(download(pin.pristine())) as read:
        assert examine(FACTS, pin.version, read).wrong == ()
