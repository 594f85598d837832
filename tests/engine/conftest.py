"""The engine under test: its environment, the pinned release's trees, and the stand-in.

Everything is made once and kept in the user's cache, named by its content. One engine takes
half a minute to import and start, so a module asks for all that it compares in one call of
`Engine.run`, in a module-scoped fixture.
"""

import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]  # for `standin`

import bootstrap  # noqa: E402
from patchset.download import download  # noqa: E402
from patchset.project import Project  # noqa: E402
from patchset.wheel import build_wheel  # noqa: E402

from standin.engine import cache_root, make_checkpoint, run_engines  # noqa: E402

RELEASE = "0.16.0"


@dataclass(frozen=True)
class Engine:
    """A python with vLLM's dependencies, and a tree with vLLM."""

    python: Path
    tree: Path

    def run(
        self,
        *jobs: Mapping[str, Any],
        environ: Mapping[str, str] | None = None,
        timeout: float = 900,
    ) -> list[dict[str, Any]]:
        """`standin.engine.run_engines` on this engine."""
        return run_engines(self.python, self.tree, jobs, environ=environ, timeout=timeout)


def good(result: dict[str, Any]) -> dict[str, Any]:
    """`result` of a job that must not have failed."""
    if "error" in result:
        pytest.fail(f"engine failed:\n{result['error']['traceback']}")
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("engine")


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The python of the engine environment of this release."""
    return bootstrap.environment(ROOT / "requirements" / f"engine-{RELEASE}.txt")


@pytest.fixture(scope="session")
def tree_of() -> Callable[[int | None], Path]:
    """The pinned CPU build with the first `upto` patches of the series (0: as released)."""
    project = Project.here()
    release = project.release(RELEASE)

    def make(upto: int | None) -> Path:
        wheel = download(release.find(kind="wheel", flavour="cpu"))
        if upto == 0:
            return unpacked(wheel, release.find(kind="wheel", flavour="cpu").sha256)
        wheels = cache_root() / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        built = build_wheel(wheel, project, release, out=wheels, upto=upto)
        return unpacked(built.path, built.sha256)

    return make


def unpacked(wheel: Path, sha256: str) -> Path:
    """The folder in the cache that holds the content of `wheel`."""
    tree = cache_root() / "trees" / sha256[:16]
    if not tree.exists():
        tree.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=tree.parent, prefix="part-") as folder:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            Path(folder).rename(tree)
            Path(folder).mkdir()  # for TemporaryDirectory to remove
    return tree


@pytest.fixture(scope="session")
def stock(engine_python: Path, tree_of: Callable[[int | None], Path]) -> Engine:
    """The release as published."""
    return Engine(engine_python, tree_of(0))


@pytest.fixture(scope="session")
def patched(engine_python: Path, tree_of: Callable[[int | None], Path]) -> Engine:
    """The release with the whole series."""
    return Engine(engine_python, tree_of(None))


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
