"""tools/results.py: what a test run did, release by release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import results
from conftest import properties

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pytest
@pytest.mark.parametrize("version", ["0.16.0", "0.9.2"])
def test_good(version): pass
@pytest.mark.parametrize("version", ["0.16.0"])
def test_bad(version): assert False
@pytest.fixture
def broken(): raise OSError
def test_broken(broken): pass
@pytest.mark.parametrize("setting", ["0.32.0-V2-MLA", "0.32.0-V1"])
def test_skipped(setting): pytest.skip("for a reason")
"""


def test_a_row_for_each_release_and_a_column_for_each_group(tmp_path: Path) -> None:
    """Through pytest itself, as make test-all does."""
    for name, text in (
        ("unit/test_a.py", TESTS),
        ("trees/test_b.py", TESTS.partition("@pytest.fix")[0]),
    ):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "tests" / "conftest.py").write_bytes((ROOT / "tests" / "conftest.py").read_bytes())
    report = tmp_path / "all.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(
        [*command, "--junitxml", str(report), "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    first, *lines = results.table(report).splitlines()
    assert first.startswith("4 passed, 3 failed, 2 skipped, in ")
    assert lines == [
        "",
        "| release | trees | unit |",
        "|---|---|---|",
        "| 0.9.2 | 1 passed | 1 passed |",
        "| 0.16.0 | 1 passed, 1 failed | 1 passed, 1 failed |",
        "| 0.32.0 | – | 2 skipped |",
        "| of no one release | – | 1 failed |",
        "",
        "Failed:",
        "",
        "- `tests/trees/test_b.py::test_bad[0.16.0]`",
        "- `tests/unit/test_a.py::test_bad[0.16.0]`",
        "- `tests/unit/test_a.py::test_broken`",
        "",
        "Skipped:",
        "",
        "- 2: for a reason",
    ]


@pytest.mark.parametrize(
    ("nodeid", "group", "release"),
    [
        ("tests/trees/test_x.py::test_y[0.16.0-x86_64]", "trees", "0.16.0"),
        ("tests/unit/test_x.py::test_y[0002-x.patch]", "unit", None),
        ("tests/unit/test_x.py::test_y", "unit", None),
        ("tests/engine/test_x.py::test_y[0.32.0-V2-MLA-3]", "engine V2 MLA", "0.32.0"),
        ("tests/engine/test_x.py::test_y[0.28.0-V1]", "engine V1", "0.28.0"),
        ("tests/engine/test_x.py::test_y[quick]", "engine V1", "0.16.0"),
        ("tests/kernels/test_x.py::test_y[0.33.0]", "kernels", "0.33.0"),
    ],
)
def test_a_test_says_what_it_is_about(nodeid: str, group: str, release: str | None) -> None:
    found = properties(nodeid)
    assert (found["group"], found.get("release")) == (group, release)


@pytest.mark.parametrize("arguments", [[], ["missing.xml"]])
def test_no_report(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["results.py", *arguments])
    assert results.main() == 2
    assert "no report of a test run" in capsys.readouterr().err
