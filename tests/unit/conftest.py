"""Fixtures of the unit tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from patchset.project import Project
from unit.support import TALLY, World, make_world

# The machine may be busy with other work; what counts is that properties hold.
settings.register_profile("usual", deadline=None, max_examples=60)
# For the table in docs/applying.md: pytest --hypothesis-profile=thorough
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("usual")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY:
        terminalreporter.section("faults injected and inputs tried")
        for what, count in sorted(TALLY.items()):
            terminalreporter.write_line(f"{count:8}  {what}")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("template") / "world").root


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here cuts the power, so that waiting for the disk proves nothing."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def world(template: Path, tmp_path: Path) -> World:
    root = tmp_path / "world"
    shutil.copytree(template, root)
    return World(root, Project(root))
