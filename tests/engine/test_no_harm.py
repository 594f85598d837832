"""The release's own tests have the same outcomes on the patched tree as on the stock one."""

import json
import subprocess
import tarfile
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from standin.engine import cache_root, engine_environ

from engine.support import RELEASE, Engine
from patchset.download import download
from patchset.project import Project

UPSTREAM = Path(__file__).parent / "upstream"
LISTS = tomllib.loads((UPSTREAM / "files.toml").read_text())


@pytest.fixture(scope="session")
def release_tests() -> Path:
    """The folder with `tests/` of the release's source archive."""
    artifact = Project.here().release(RELEASE).find("sdist")
    kept = cache_root() / "trees" / f"{artifact.sha256[:16]}-tests"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="part-") as folder:
            with tarfile.open(download(artifact)) as archive:
                top = f"vllm-{RELEASE}/"
                wanted = (top + "tests/", top + "pyproject.toml")
                members = [m for m in archive if m.name.startswith(wanted)]
                archive.extractall(folder, members, filter="data")
            (Path(folder) / f"vllm-{RELEASE}").rename(kept)
    return kept


@pytest.fixture(scope="session")
def hub(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub cache with the configurations that the tests ask for, and a tokenizer for all."""
    root = tmp_path_factory.mktemp("hub")
    for name, config in json.loads((UPSTREAM / "hub.json").read_text()).items():
        home, commit = root / f"models--{name.replace('/', '--')}", "0" * 40
        snapshot = home / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text(commit)
        (snapshot / "config.json").write_text(json.dumps(config))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (snapshot / file).write_bytes((target / file).read_bytes())
    return root


def outcomes(engine: Engine, files: list[str], release_tests: Path, hub: Path) -> dict[str, str]:
    """Test id -> passed, failed, skipped and so on, of the release's `files` on that engine."""
    answer = hub / f"{engine.tree.name}-outcomes.json"
    environ = {
        "RELEASE_TESTS_OUTCOMES": str(answer),
        "HF_HUB_CACHE": str(hub),
        "VLLM_PLUGINS": "",  # the scaffolding is for whole engines
    }
    settings = engine_environ(engine.tree, environ)
    settings["PYTHONPATH"] += f":{UPSTREAM}"
    command = [
        str(engine.python),
        "-m",
        "pytest",
        "-q",
        "-p",
        "release_tests",
        "-p",
        "no:cacheprovider",
    ]
    command += [argument for test in LISTS["without"] for argument in ("--deselect", test)]
    done = subprocess.run(
        [*command, *files],
        cwd=release_tests,
        env=settings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode in (0, 1), (done.stdout + done.stderr)[-3000:]
    found: dict[str, str] = json.loads(answer.read_text())
    return found


@pytest.mark.parametrize(
    "which", ["quick", pytest.param("slow", marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_same_outcomes(
    which: str,
    stock: Engine,
    patched: Engine,
    release_tests: Path,
    hub: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = outcomes(stock, LISTS[which]["files"], release_tests, hub)
    after = outcomes(patched, LISTS[which]["files"], release_tests, hub)
    with capsys.disabled():
        for name, found in (("stock", before), ("patched", after)):
            print(f"\n  {name}: {len(found)} tests of the release: {dict(Counter(found.values()))}")
    assert Counter(before.values())["passed"] >= LISTS[which]["least"]
    assert {t: o for t, o in after.items() if before.get(t) != o} == {}
    assert before.keys() == after.keys()
