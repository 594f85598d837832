"""What the engine tests share besides fixtures."""

import functools
import json
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.version import Version
from standin.engine import cache_root, engine_environ, run_engines

from patchset.download import download
from patchset.faults import load_faults
from patchset.project import Project
from patchset.wheel import build_wheel

RELEASE = "0.16.0"
UPSTREAM = Path(__file__).parent / "upstream"  # what the release's own tests need on a CPU

# The first release that an environment serves, and the release it was locked for. The CPU builds of
# 0.24 to 0.26 want transformers 5 and the torch of 0.23.0: of them it serves the sources only.
LOCKS = {"0.15.0": "0.16.0", "0.20.0": "0.23.0", "0.24.0": "0.32.0"}


class Setting(NamedTuple):
    """A release and how its engine runs: which model runner, and MLA attention or none.

    A CPU has MLA attention from 0.28.0 on. A Llama-style drafter beside it finds no block size that
    suits both. An MLA-style drafter without it needs the cure of F34 in 0.18.0 to 0.27.1.
    """

    release: str
    runner: int = 1
    mla: bool = False

    def __str__(self) -> str:
        return f"{self.release}-V{self.runner}" + "-MLA" * self.mla

    @property
    def lock(self) -> str:
        """The name of the file in requirements/ that locks its environment."""
        served = [first for first in LOCKS if Version(first) <= Version(self.release)]
        return f"engine-{LOCKS[served[-1]]}.txt"

    @property
    def styles(self) -> tuple[str, ...]:
        """The styles of drafters that run with it."""
        if self.mla:
            return ("mla",)
        if Version(self.release) < Version("0.28.0") and not self.uncured("F34"):
            return ("llama", "mla")
        return ("llama",)

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that choose it."""
        return {
            "VLLM_USE_V2_MODEL_RUNNER": str(self.runner - 1),
            "VLLM_MLA_DISABLE": str(int(not self.mla)),
        }

    def want(self, style: str) -> None:
        """Skip the test unless drafters of that style run with it."""
        if style not in self.styles:
            pytest.skip(f"no {style}-style drafter runs with {self} on a CPU")

    def uncured(self, *faults: str) -> list[str]:
        """Those of `faults` that stock vLLM of this release has and its series does not cure."""
        return [fault for fault in faults if fault in _uncured(self.release)]

    def require(self, *faults: str) -> None:
        """Skip the test unless all of `faults` are cured or absent."""
        if missing := self.uncured(*faults):
            pytest.skip(f"{', '.join(missing)} not cured in the series of {self.release}")


@functools.cache
def _uncured(release: str) -> frozenset[str]:
    project = Project.here()
    patches = project.series(release).patches if project.has_series(release) else ()
    cured = {fault for patch in patches for fault in patch.faults}
    known = load_faults(project.root / "patches" / "faults.toml")
    return frozenset(f.id for f in known if f.affects(release) and f.id not in cured)


FIRST = Setting(RELEASE)
# The others whose series is that of the first one, carried over.
CARRIED = (Setting("0.15.1"), Setting("0.17.1"))
# What is run of later releases, besides the one above. A CPU has no room for every release.
LATER = (
    Setting("0.19.1"),
    Setting("0.21.0"),
    Setting("0.23.0"),
    Setting("0.28.0"),
    Setting("0.28.0", mla=True),
    *(Setting("0.32.0", runner, mla) for runner in (1, 2) for mla in (False, True)),
)


@dataclass(frozen=True)
class Engine:
    """A python with vLLM's dependencies, and a tree with vLLM."""

    python: Path
    tree: Path
    setting: Setting = FIRST

    def run(
        self,
        *jobs: Mapping[str, Any],
        environ: Mapping[str, str] | None = None,
        timeout: float = 900,
        at_once: int = 2,
    ) -> list[dict[str, Any]]:
        """`standin.engine.run_engines` on this engine; an engine of one worker has one thread."""
        settings = {**self.setting.environ, **(environ or {})}
        return run_engines(
            self.python, self.tree, jobs, environ=settings, timeout=timeout, at_once=at_once
        )


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
    if upto == 0 or not project.has_series(version):
        return unpacked(wheel, pin.sha256)
    wheels = cache_root() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    built = build_wheel(wheel, project, release, out=wheels, upto=upto)
    return unpacked(built.path, built.sha256)


def release_tests(version: str) -> Path:
    """The folder with `tests/` of the release's source archive."""
    artifact = Project.here().release(version).find("sdist")
    kept = cache_root() / "trees" / f"{artifact.sha256[:16]}-tests"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="part-") as folder:
            with tarfile.open(download(artifact)) as archive:
                top = f"vllm-{version}/"
                wanted = (top + "tests/", top + "pyproject.toml")
                members = [m for m in archive if m.name.startswith(wanted)]
                archive.extractall(folder, members, filter="data")
            (Path(folder) / f"vllm-{version}").rename(kept)
    return kept


def run_release_tests(
    engine: Engine,
    folder: Path,
    arguments: list[str],
    environ: Mapping[str, str | None] | None = None,
) -> dict[str, dict[str, Any]]:
    """What pytest, given `arguments` in `folder`, made of each test there, by its id.

    `folder` is like that of `release_tests`. `outcome` is passed, failed, skipped and so on; there
    are `seconds` and, unless it passed, the `reason`. None in `environ` takes a variable away.
    """
    with tempfile.TemporaryDirectory(prefix="outcomes-") as kept:
        answer = Path(kept) / "outcomes.json"
        settings = engine_environ(engine.tree)
        settings |= {
            "PYTHONPATH": f"{settings['PYTHONPATH']}:{UPSTREAM}",
            "RELEASE_TESTS_OUTCOMES": str(answer),
            "VLLM_PLUGINS": "",  # the scaffolding is for whole engines
        }
        command = [str(engine.python), "-m", "pytest", "-q", "-p", "release_tests"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", *arguments],
            cwd=folder,
            env={k: v for k, v in {**settings, **(environ or {})}.items() if v is not None},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode in (0, 1), (done.stdout + done.stderr)[-3000:]
        found: dict[str, dict[str, Any]] = json.loads(answer.read_text())
        return found


# What each style of drafter calls its layer.
LAYER = {"llama": "midlayer", "mla": "layers.0"}


def named(value: Any, style: str) -> Any:
    """The same with ``{layer}`` in every text replaced by that style's name of it."""
    if isinstance(value, str):
        return value.format(layer=LAYER[style])
    if isinstance(value, list):
        return [named(item, style) for item in value]
    if isinstance(value, dict):
        return {named(key, style): named(item, style) for key, item in value.items()}
    return value
