"""Kimi-K2.5 with its drafters on real cards, through the OpenAI server: the campaign of `suite`.

What to set, how long it takes and what it writes: docs/gpu.md. The checks and the campaign are
tried on a CPU in tests/engine/test_suite.py.
"""

import os
import sys
from collections.abc import Iterator

import pytest

from patchset.project import Project
from suite import kimi
from suite.campaign import Campaign
from suite.checks import CHECKS

NEEDS = kimi.needs


def _pairs() -> list[tuple[str, str]]:
    """Configuration and check; without the variables, one of each check, to be skipped."""
    if kimi.needs(os.environ):
        return [("kimi", check) for check in CHECKS]
    return kimi.read(os.environ, Project.here().root).checks


@pytest.fixture(scope="session")
def campaign() -> Iterator[Campaign]:
    wanted = kimi.read(os.environ, Project.here().root)

    def told(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    told(f"\nresults: {wanted.folder}/report.txt and report.json")
    configurations = kimi.configurations(wanted, told)
    with Campaign(wanted.folder, kimi.asked(wanted), configurations, told) as found:
        yield found
        told(found.text())


@pytest.mark.parametrize(("configuration", "check"), _pairs())
def test_kimi(configuration: str, check: str, campaign: Campaign) -> None:
    outcome = campaign.outcome(configuration, check)
    if outcome.status == "skipped":
        pytest.skip(outcome.sentence)
    assert outcome.status == "passed", outcome.sentence
