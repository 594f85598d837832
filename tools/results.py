"""What a test run did, release by release: a table of a JUnit file that pytest wrote.

    results.py build/test-all.xml

A row for each file of tests, a column for each setting (release, model runner, MLA attention) that
tests carry in their names; tests that name none are in the column of all others.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

SETTING = re.compile(r"\[(\d+\.\d+\.\d+-V\d(?:-MLA)?)[-\]]")
OTHERS = "others"


def table(report: Path) -> str:
    """The table as Markdown. Raises OSError or ElementTree.ParseError for what is no report."""
    cells: dict[tuple[str, str], Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "")
        setting = found[1] if (found := SETTING.search(name)) else OTHERS
        row = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = ("failed" if kinds - {"skipped"} else "skipped") if kinds else "passed"
        cells.setdefault((row, setting), Counter())[outcome] += 1
    rows = sorted({row for row, _ in cells})
    columns = sorted({column for _, column in cells})
    lines = [f"| tests | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for row in rows:
        counts = [cells.get((row, column), Counter()) for column in columns]
        said = (", ".join(f"{n} {what}" for what, n in sorted(c.items())) or "–" for c in counts)
        lines.append(f"| {row} | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table of the report that is named on the command line."""
    try:
        print(table(Path(sys.argv[1])), end="")
    except (IndexError, OSError, ElementTree.ParseError) as fault:
        print(f"results: no report of a test run: {fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
