"""The engine under test: its environment, the pinned release's trees, and the stand-in.

Everything is made once and kept in the user's cache, named by its content. One engine takes
half a minute to import and start, so a module asks for all that it compares in one call of
`Engine.run`, in a module-scoped fixture.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]  # for `standin`

from standin.engine import make_checkpoint  # noqa: E402

import bootstrap  # noqa: E402
from engine.support import CARRIED, FIRST, LATER, Engine, Setting, tree  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("engine")


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The python of the engine environment of this release."""
    return python_of(FIRST)


def python_of(setting: Setting) -> Path:
    """The python of the environment that serves a setting, made first if it is missing."""
    return bootstrap.environment(ROOT / "requirements" / setting.lock)


@pytest.fixture(scope="session")
def engine_of() -> Callable[..., Engine]:
    """`engine_of(setting, upto)`: a release and a way to run it, with the first `upto` patches.

    0: as published; without: with the whole series, if it has one.
    """

    def engine(setting: Setting, upto: int | None = None) -> Engine:
        return Engine(python_of(setting), tree(setting.release, upto), setting)

    return engine


@pytest.fixture(scope="session")
def stock(engine_of: Callable[..., Engine]) -> Engine:
    """The release as published."""
    return engine_of(FIRST, 0)


@pytest.fixture(scope="session")
def patched(engine_of: Callable[[Setting], Engine]) -> Engine:
    """The release with the whole series."""
    return engine_of(FIRST)


@pytest.fixture(
    scope="session",
    params=[FIRST, *(pytest.param(s, marks=pytest.mark.slow) for s in (*CARRIED, *LATER))],
    ids=str,
)
def served(request: pytest.FixtureRequest, engine_of: Callable[[Setting], Engine]) -> Engine:
    """`patched`, and after it the same for the settings of other releases."""
    return engine_of(request.param)


@pytest.fixture(scope="session")
def checkpoint(engine_python: Path) -> Callable[..., Path]:
    """`standin.engine.make_checkpoint` in the engine's environment."""

    def make(call: str, **arguments: Any) -> Path:
        return make_checkpoint(engine_python, call, **arguments)

    return make


@pytest.fixture(scope="session")
def target(checkpoint: Callable[..., Path]) -> Path:
    """The stand-in with random weights."""
    return checkpoint("standin.target:make_target")
