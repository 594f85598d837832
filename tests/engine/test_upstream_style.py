"""The tests that would go upstream with a patch fail on the stock release and pass on the patched.

They lie in `upstream/NNNN-slug/tests` as in a checkout of vLLM, and run here on the newest release
that has a CPU build, among its own tests. What came out is kept in `build/upstream-tests.json`,
which `tools/upstream.py prepare` shows in the body of a pull request. Where a patch changes tests
that are there already (`upstream/NNNN-slug/*.patch`), those run too: before and after the change.
"""

import json
import os
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from engine.conftest import python_of
from engine.support import Engine, Setting, release_tests, run_release_tests, tree
from patchset.diff import parse_diff
from patchset.project import Project
from patchset.upstream import BESIDE

PROJECT = Project.here()
EVIDENCE = PROJECT.root / "build" / "upstream-tests.json"
SCHEMA = "vllm-kimi-eagle3/upstream-tests/1"
NEWEST = max(
    (
        item.version
        for item in PROJECT.releases.release
        if any(artifact.flavour == "cpu" for artifact in item.artifact)
    ),
    key=Version,
)
PATCHES = sorted(path.parent.name for path in PROJECT.root.glob("upstream/*/tests"))

# This machine's own folder of a test, in a message that goes to upstream.
TEMPORARY = re.compile(r"/\S*/pytest-\d+/")

Outcomes = dict[str, dict[str, Any]]


def files_of(patch: str) -> list[str]:
    """The test files of that patch, as pytest is given them in a checkout."""
    folder = PROJECT.root / "upstream" / patch
    return [str(path.relative_to(folder)) for path in sorted(folder.glob("tests/**/test_*.py"))]


def adapt(patch: str, folder: Path) -> list[str]:
    """Change the tests in `folder` as that patch wants it; those that this release has like that.

    The changes are made for the newest pinned release, of which there may be no CPU build.
    """
    changed = []
    for diff in sorted((PROJECT.root / "upstream" / patch).glob("*.patch")):
        for path in (item.path for item in parse_diff(diff.read_bytes(), diff.name, BESIDE)):
            done = subprocess.run(
                ["git", "apply", f"--include={path}", str(diff)],
                cwd=folder,
                env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
                capture_output=True,
                text=True,
            )
            if done.returncode == 0:
                changed.append(path)
            else:
                print(f"{patch}: not for {NEWEST}: {done.stderr.strip()}")
    return changed


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Outcomes]:
    """What became of each test of `PATCHES`, on the stock (False) and on the patched tree."""
    folder = tmp_path_factory.mktemp("checkout") / "vllm"
    shutil.copytree(release_tests(NEWEST), folder)
    for patch in PATCHES:
        for file in files_of(patch):
            assert not (folder / file).exists(), f"{patch}: {file} is one of the release's own"
        shutil.copytree(
            PROJECT.root / "upstream" / patch / "tests", folder / "tests", dirs_exist_ok=True
        )
    before = shutil.copytree(folder, folder.with_name("before"))
    adapted = [file for patch in PATCHES for file in adapt(patch, folder)]
    files = [*(file for patch in PATCHES for file in files_of(patch)), *adapted]
    setting = Setting(NEWEST)
    # As in a job without a GPU: both model runners, MLA, and kernels that are compiled if at all.
    environ = {
        "TRITON_INTERPRET": None,
        "VLLM_MLA_DISABLE": None,
        "VLLM_USE_V2_MODEL_RUNNER": None,
    }
    found = {
        patched: run_release_tests(
            Engine(python_of(setting), tree(NEWEST, None if patched else 0)), where, files, environ
        )
        for patched, where in ((False, before), (True, folder))
    }
    runs = [run(patch, found[patched], patched) for patch in PATCHES for patched in found]
    EVIDENCE.parent.mkdir(exist_ok=True)
    EVIDENCE.write_text(json.dumps({"schema": SCHEMA, "runs": runs}, indent=2) + "\n")
    return found


def run(patch: str, found: Outcomes, patched: bool) -> dict[str, Any]:
    """The evidence of one patch on one tree; `outcomes` has every test's."""
    own = {test: one for test, one in found.items() if test.split("::")[0] in files_of(patch)}
    count = {
        outcome: sum(one["outcome"].startswith(outcome) for one in own.values())
        for outcome in ("passed", "failed", "skipped")
    }
    return {
        "patch": patch,
        "release": NEWEST,
        "patched": patched,
        "patch_set": PROJECT.lock(NEWEST).digest if patched else None,
        "command": f"pytest -v {' '.join(files_of(patch))}",
        **count,
        "seconds": round(sum(one["seconds"] for one in own.values()), 1),
        "date": datetime.now(UTC).date().isoformat(),
        "failures": [
            f"{test}: {TEMPORARY.sub('', one['reason'].strip().splitlines()[0])}"
            for test, one in own.items()
            if one["outcome"].startswith("failed")
        ],
        "outcomes": {test: one["outcome"] for test, one in own.items()},
    }


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES)
def test_fails_without_the_patch_and_passes_with_it(
    patch: str, outcomes: dict[bool, Outcomes]
) -> None:
    stock, patched = (run(patch, outcomes[key], key) for key in (False, True))
    assert patched["outcomes"], "no test was collected"
    assert set(patched["outcomes"].values()) == {"passed"}, patched["failures"]
    # In the call itself: not because of an import or a fixture.
    assert stock["outcomes"].keys() == patched["outcomes"].keys()
    assert set(stock["outcomes"].values()) <= {"failed", "passed"}, stock["failures"]
    failed = {test.split("::")[0] for test, one in stock["outcomes"].items() if one == "failed"}
    assert failed == set(files_of(patch))


@pytest.mark.slow
def test_changed_tests_still_pass(outcomes: dict[bool, Outcomes]) -> None:
    """Of the tests that were there, some want the hub, with the patch or without."""
    own = {file for patch in PATCHES for file in files_of(patch)}
    failed = {
        key: {
            test
            for test, one in found.items()
            if test.split("::")[0] not in own and one["outcome"] != "passed"
        }
        for key, found in outcomes.items()
    }
    assert failed[True] <= failed[False]
    assert any(test.split("::")[0] not in own for test in outcomes[True].keys() - failed[True])
