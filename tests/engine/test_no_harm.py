"""The release's own tests have the same outcomes on the patched tree as on the stock one."""

import json
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from engine.support import RELEASE, UPSTREAM, Engine, release_tests, run_release_tests

LISTS = tomllib.loads((UPSTREAM / "files.toml").read_text())


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
    """Test id -> passed, failed, skipped and so on, of the release's `files` on that engine."""
    without = [argument for test in LISTS["without"] for argument in ("--deselect", test)]
    found = run_release_tests(
        engine, release_tests(RELEASE), [*without, *files], environ={"HF_HUB_CACHE": str(hub)}
    )
    return {test: one["outcome"] for test, one in found.items()}


@pytest.mark.parametrize(
    "which", ["quick", pytest.param("slow", marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_same_outcomes(
    which: str,
    stock: Engine,
    patched: Engine,
    hub: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = outcomes(stock, LISTS[which]["files"], hub)
    after = outcomes(patched, LISTS[which]["files"], hub)
    with capsys.disabled():
        for name, found in (("stock", before), ("patched", after)):
            print(f"\n  {name}: {len(found)} tests of the release: {dict(Counter(found.values()))}")
    assert Counter(before.values())["passed"] >= LISTS[which]["least"]
    assert {t: o for t, o in after.items() if before.get(t) != o} == {}
    assert before.keys() == after.keys()
