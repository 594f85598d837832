"""A release's own tests have the same outcomes on the patched tree as on the stock one."""

import json
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.support import (
    CARRIED,
    LATER,
    RELEASE,
    UPSTREAM,
    Engine,
    Setting,
    release_tests,
    run_release_tests,
)
from patchset.project import Project

LISTS = tomllib.loads((UPSTREAM / "files.toml").read_text())
# Of those tried on an engine; 0.15.1 has no source archive, and wheels hold no tests.
RELEASES = [
    version
    for version in dict.fromkeys(setting.release for setting in (*CARRIED, *LATER))
    if any(artifact.kind == "sdist" for artifact in Project.here().release(version).artifact)
]


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


def outcomes(engine: Engine, files: list[str], hub: Path) -> dict[str, str]:
    """Test id -> passed, failed, skipped and so on, of those of `files` that the release has."""
    folder = release_tests(engine.setting.release)
    there = [file for file in files if (folder / file).exists()]
    without = [argument for test in LISTS["without"] for argument in ("--deselect", test)]
    found = run_release_tests(
        engine, folder, [*without, *there], environ={"HF_HUB_CACHE": str(hub)}
    )
    return {test: one["outcome"] for test, one in found.items()}


@pytest.mark.parametrize(
    ("release", "which"),
    [
        (RELEASE, "quick"),
        pytest.param(RELEASE, "slow", marks=pytest.mark.slow),
        # Of the others the quick ones: Triton's interpreter takes half an hour for the rest.
        *(pytest.param(other, "quick", marks=pytest.mark.slow) for other in RELEASES),
    ],
)
def test_same_outcomes(
    release: str,
    which: str,
    engine_of: Callable[..., Engine],
    hub: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, after = (
        outcomes(engine_of(Setting(release), upto), LISTS[which]["files"], hub)
        for upto in (0, None)
    )
    with capsys.disabled():
        for name, found in (("stock", before), ("patched", after)):
            print(
                f"\n  {release}, {name}: {len(found)} of its tests: {dict(Counter(found.values()))}"
            )
    assert Counter(before.values())["passed"] >= LISTS[which]["least"]
    assert {t: o for t, o in after.items() if before.get(t) != o} == {}
    assert before.keys() == after.keys()
