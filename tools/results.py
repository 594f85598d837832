"""What a test run did, release by release: a table of the JUnit file that pytest wrote.

    results.py build/test-all.xml

A row for each release, a column for each group of tests; tests/conftest.py writes both into the
file. Below it the tests that failed, and why tests were skipped.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

NO_RELEASE = "of no one release"
_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def table(report: Path) -> str:
    """The report as Markdown. Raises OSError or ElementTree.ParseError for what is none."""
    cells: dict[str, dict[str, Counter[str]]] = {}
    groups: set[str] = set()
    failed: list[str] = []
    skipped: Counter[str] = Counter()
    seconds = 0.0
    for case in ElementTree.parse(report).iter("testcase"):
        said = {item.get("name"): item.get("value", "") for item in case.iter("property")}
        release, group = said.get("release", NO_RELEASE), said.get("group", "other")
        outcome = next((_OUTCOMES[part.tag] for part in case if part.tag in _OUTCOMES), "passed")
        cells.setdefault(release, {}).setdefault(group, Counter())[outcome] += 1
        groups.add(group)
        seconds += float(case.get("time", "0"))
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if outcome == "failed":
            failed.append(name)
        for part in case.iter("skipped"):
            skipped[part.get("message", "")] += 1
    columns = sorted(groups)
    total = sum((count for row in cells.values() for count in row.values()), Counter())
    lines = [
        f"{_say(total) or 'no test ran'}, in {seconds / 60:.0f} minutes of tests",
        "",
        f"| release | {' | '.join(columns)} |",
        "|---" * (1 + len(columns)) + "|",
    ]
    for release in sorted(cells, key=_order):
        row = [_say(cells[release].get(group, Counter())) or "–" for group in columns]
        lines.append(f"| {release} | {' | '.join(row)} |")
    if failed:
        lines += ["", "Failed:", "", *(f"- `{name}`" for name in failed)]
    if skipped:
        lines += ["", "Skipped:", ""]
        lines += [f"- {count}: {reason}" for reason, count in sorted(skipped.items())]
    return "\n".join(lines) + "\n"


def _say(count: Counter[str]) -> str:
    return ", ".join(
        f"{count[what]} {what}" for what in ("passed", "failed", "skipped") if count[what]
    )


def _order(release: str) -> list[int]:
    """Releases by number; what belongs to none comes last."""
    return [int(part) for part in re.findall(r"\d+", release)] or [sys.maxsize]


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
