"""The sources of the pinned releases whose Triton MLA backend has an FP8 cache, and their Python.

Nothing compiled is needed, so the source archive will do, also for releases without a CPU build.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]  # for `standin`

from standin.engine import cache_root  # noqa: E402

import bootstrap  # noqa: E402
from patchset.download import download  # noqa: E402
from patchset.faults import Fault, load_faults  # noqa: E402
from patchset.operations import apply  # noqa: E402
from patchset.project import Project  # noqa: E402
from patchset.releases import Release  # noqa: E402
from patchset.tree import open_tree  # noqa: E402

PROJECT = Project.here()
FAST = "0.33.0"
PROBE = Path(__file__).with_name("probe.py")
RELEASES = [
    pytest.param(item, marks=[] if item.version == FAST else [pytest.mark.slow])
    for item in PROJECT.releases.release
    if Version(item.version) >= Version("0.18.0") and PROJECT.lock_path(item).is_file()
]


@dataclass(frozen=True)
class Kernels:
    """A release's `vllm` package in `tree`, and a python with what it imports."""

    version: str
    python: Path
    tree: Path

    def ask(
        self, questions: Sequence[Mapping[str, Any]], *, interpret: bool = False
    ) -> list[dict[str, Any]]:
        """`probe.py`'s answers; with `interpret` kernels run, else they are compiled."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("VLLM_", "PYTHON", "TORCH", "TRITON"))
        }
        environ = {
            **kept,
            "PYTHONPATH": str(self.tree),
            # vLLM keeps Triton although it finds no driver.
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "TRITON_CACHE_DIR": str(cache_root() / "triton"),
            "VLLM_CACHE_ROOT": str(cache_root() / "vllm" / "kernels"),
            "VLLM_NO_USAGE_STATS": "1",
            **({"TRITON_INTERPRET": "1"} if interpret else {}),
        }
        done = subprocess.run(
            [self.python, PROBE, json.dumps(questions)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        if done.returncode:
            pytest.fail(f"{self.version}: the probe died:\n{done.stderr[-6000:]}")
        answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return answers


@pytest.fixture(scope="session")
def fault() -> Callable[[str], Fault]:
    """A fault of `patches/faults.toml` by its id."""
    faults = {item.id: item for item in load_faults(PROJECT.root / "patches" / "faults.toml")}
    return lambda name: faults[name]


@pytest.fixture(scope="module", params=RELEASES, ids=lambda item: str(item.version))
def release(request: pytest.FixtureRequest) -> Release:
    found = request.param
    assert isinstance(found, Release)
    return found


@pytest.fixture(scope="module")
def stock(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The release as published."""
    folder = tmp_path_factory.mktemp(release.version)
    with tarfile.open(download(release.find("sdist"))) as archive:
        package = [
            item for item in archive if item.name.split("/")[1:2] in (["vllm"], ["PKG-INFO"])
        ]
        archive.extractall(folder, package, filter="data")
    tree = folder / f"vllm-{release.version}"
    # vLLM asks for its own version as installed.
    metadata = tree / f"vllm-{release.version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    (tree / "PKG-INFO").rename(metadata)
    # The locks that its Python code runs with, compiled parts aside.
    lock = "0.16.0" if Version(release.version) < Version("0.24.0") else "0.32.0"
    python = bootstrap.environment(ROOT / "requirements" / f"engine-{lock}.txt")
    return Kernels(release.version, python, tree)


@pytest.fixture(scope="module")
def patched(stock: Kernels, release: Release) -> Kernels:
    """The release with the whole series."""
    tree = stock.tree.with_name(f"{stock.tree.name}-patched")
    shutil.copytree(stock.tree, tree)
    apply(open_tree(tree), PROJECT, release.version)
    return Kernels(stock.version, stock.python, tree)
