"""pytest plugin in the engine's environment: lets the release's own tests run on a CPU.

Adds nothing to the code under test: it names an attention backend where the tests' helper
knows GPUs only, and writes each test's outcome to the file in RELEASE_TESTS_OUTCOMES.
"""

import json
import os
from pathlib import Path

import pytest

OUTCOMES: dict[str, str] = {}


def pytest_configure() -> None:
    # The release's, in the current folder.
    import tests.utils  # type: ignore[import-not-found]

    tests.utils.get_attn_backend_list_based_on_platform = lambda: ["TREE_ATTN"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The release's own mark for tests without a GPU: no garbage collection, a second long
    # with torch in memory, after each test.
    for item in items:
        item.add_marker("skip_global_cleanup")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        how = report.outcome if report.when == "call" else f"{report.outcome} in {report.when}"
        OUTCOMES[report.nodeid] = how


def pytest_sessionfinish() -> None:
    Path(os.environ["RELEASE_TESTS_OUTCOMES"]).write_text(json.dumps(OUTCOMES))
