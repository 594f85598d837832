"""tools/results.py: the table of a JUnit file."""

from pathlib import Path

import pytest

import results

CASES = """<testsuites><testsuite>
<testcase classname="tests.engine.test_a" name="test_x[0.32.0-V2-MLA-1]"/>
<testcase classname="tests.engine.test_a" name="test_x[0.32.0-V2-MLA]"><failure/></testcase>
<testcase classname="tests.engine.test_a" name="test_x[0.32.0-V2-llama]"><skipped/></testcase>
<testcase classname="tests.engine.test_a" name="test_x[0.16.0-V1-1]"><error/></testcase>
<testcase classname="tests.unit.test_b" name="test_y[0.16.0]"/>
</testsuite></testsuites>
"""


def test_one_cell_for_each_file_and_setting(tmp_path: Path) -> None:
    (tmp_path / "all.xml").write_text(CASES)
    assert results.table(tmp_path / "all.xml").splitlines() == [
        "| tests | 0.16.0-V1 | 0.32.0-V2 | 0.32.0-V2-MLA | others |",
        "|---|---|---|---|---|",
        "| engine/test_a | 1 failed | 1 skipped | 1 failed, 1 passed | – |",
        "| unit/test_b | – | – | – | 1 passed |",
    ]


@pytest.mark.parametrize("arguments", [[], ["missing.xml"]])
def test_no_report(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["results.py", *arguments])
    assert results.main() == 2
    assert "no report of a test run" in capsys.readouterr().err
