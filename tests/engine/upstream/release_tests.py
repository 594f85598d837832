"""pytest plugin in the engine's environment: lets the release's own tests run on a CPU.

Adds nothing to the code under test: it names an attention backend where the tests' helper
knows GPUs only, and writes each test's outcome, seconds and reason, if it has one, to the file in
RELEASE_TESTS_OUTCOMES.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

OUTCOMES: dict[str, dict[str, Any]] = {}


def pytest_configure() -> None:
    # The release's, in the current folder.
    import tests.utils  # type: ignore[import-not-found]
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    # The first that the release knows.
    known = AttentionBackendEnum.__members__
    backends = [name for name in ("TREE_ATTN", "TRITON_ATTN") if name in known][:1]
    tests.utils.get_attn_backend_list_based_on_platform = lambda: backends


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The release's own mark for tests without a GPU: no garbage collection, a second long
    # with torch in memory, after each test.
    for item in items:
        item.add_marker("skip_global_cleanup")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        how = report.outcome if report.when == "call" else f"{report.outcome} in {report.when}"
        crash = getattr(report.longrepr, "reprcrash", None)
        OUTCOMES[report.nodeid] = {
            "outcome": how,
            "seconds": report.duration,
            "reason": crash.message if crash else report.longreprtext,
        }


def pytest_sessionfinish() -> None:
    Path(os.environ["RELEASE_TESTS_OUTCOMES"]).write_text(json.dumps(OUTCOMES))
