"""What the engine tests share besides fixtures."""

import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from standin.engine import cache_root, run_engines

from patchset.download import download
from patchset.project import Project
from patchset.wheel import build_wheel

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


def unpacked(wheel: Path, sha256: str) -> Path:
    """The folder in the cache that holds the content of `wheel`."""
    kept = cache_root() / "trees" / sha256[:16]
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="part-") as folder:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            Path(folder).rename(kept)
            Path(folder).mkdir()  # for TemporaryDirectory to remove
    return kept


def tree(version: str, upto: int | None = None) -> Path:
    """The pinned CPU build of `version` with the first `upto` patches of its series (None: all)."""
    project = Project.here()
    release = project.release(version)
    pin = release.find(kind="wheel", flavour="cpu")
    wheel = download(pin)
    if upto == 0:
        return unpacked(wheel, pin.sha256)
    wheels = cache_root() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    built = build_wheel(wheel, project, release, out=wheels, upto=upto)
    return unpacked(built.path, built.sha256)
