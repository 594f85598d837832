"""What the engine tests share besides fixtures."""

import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from standin.engine import cache_root, run_engines

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
    tree = cache_root() / "trees" / sha256[:16]
    if not tree.exists():
        tree.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=tree.parent, prefix="part-") as folder:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            Path(folder).rename(tree)
            Path(folder).mkdir()  # for TemporaryDirectory to remove
    return tree
