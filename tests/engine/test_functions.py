"""What the series touch, in every release from 0.18.0 on, by single functions of its source.

Few of these releases are run as engines. See `functions_probe.py` for what is real in this, and
tests/trees for functions that need no torch.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from patchset.download import download
from patchset.project import Project
from patchset.series import changes
from patchset.source import open_source

PROJECT = Project.here()
RELEASES = [
    item.version
    for item in PROJECT.releases.release
    if Version(item.version) >= Version("0.18.0") and PROJECT.has_series(item.version)
]
# Case -> what the patched function gives.
RIGHT: dict[str, Any] = {
    "states at 2": [2.0],
    "states at 0": [0.0, 2.0],
    "states at 4": [2.0, 4.0],
    "stages, at 1": [1.0],
    "stages, at 1, 2, 3": [1.0, 2.0, 3.0],
    "stages, at 3, 4": [3.0, 4.0],
    "fc_norm, llama": [2.0, 3.0, 5.0],
    "fc_norm, mla": [2.0, 3.0, 5.0],
    "rope_theta, mla": {"rope_type": "default", "rope_theta": 50000.0},
    "image": [0, [False] * 4],
    # What was beyond the limit stays there, and does not begin again at 0.
    "positions": [[2, 7], [3, 8], [4, 9]],
}
# Case -> how the stock function fails.
WRONG: dict[str, Any] = {
    "states at 0": "TypeError: unsupported operand type(s) for +: 'Tensor' and 'NoneType'",
    "states at 4": [2.0],
    "stages, at 1": "ValueError: not enough values to unpack (expected 2, got 1)",
    "stages, at 1, 2, 3": [2.0, 3.0],
    "fc_norm, mla": [1.0, 1.0, 1.0],
    "rope_theta, mla": {"rope_type": "default"},
    "image": "AssertionError: Encoder cache miss for 2f1c0e.",
    "positions": [[2, 7], [3, 0], [4, 1]],
}
# The first release whose own function is right.
HEALED = {
    "fc_norm, mla": "0.23.0",
    "image": "0.24.0",
    "states at 4": "0.25.0",
    "rope_theta, mla": "0.28.0",
}
# The first release that has the function.
SINCE = {"positions": "0.21.0", **{case: "0.30.0" for case in RIGHT if "stages" in case}}
# What a case needs besides the files that the series changes.
UNCHANGED = "vllm/model_executor/models/interfaces.py"


@pytest.fixture(scope="module")
def found(
    engine_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, dict[str, Any]]]:
    """The probe's answers: release -> stock or patched -> case."""
    folder = tmp_path_factory.mktemp("functions")
    for version in RELEASES:
        with open_source(download(PROJECT.release(version).pristine())) as read:
            for state in ("stock", "patched"):
                place = folder / version / state / UNCHANGED
                place.parent.mkdir(parents=True)
                place.write_bytes(read(UNCHANGED) or b"")
            for change in changes(PROJECT.series(version).forward(read), read):
                for state, content in (("stock", change.before), ("patched", change.after)):
                    place = folder / version / state / change.path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(content or b"")
    probe = Path(__file__).with_name("functions_probe.py")
    result = subprocess.run(
        [engine_python, probe, folder], capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stderr
    answers: dict[str, dict[str, dict[str, Any]]] = json.loads(result.stdout)
    return answers


def applies(case: str, version: str, first: dict[str, str]) -> bool:
    return case not in first or Version(version) >= Version(first[case])


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("case", RIGHT)
def test_patched(case: str, version: str, found: dict[str, dict[str, dict[str, Any]]]) -> None:
    if not applies(case, version, SINCE):
        pytest.skip(f"{version} has no such function: the engine tests look at it")
    if case == "fc_norm, llama" and case not in found[version]["patched"]:
        pytest.skip(f"the series of {version} leaves that file alone")
    assert found[version]["patched"][case] == RIGHT[case]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("case", WRONG)
def test_stock(case: str, version: str, found: dict[str, dict[str, dict[str, Any]]]) -> None:
    if not applies(case, version, SINCE):
        pytest.skip(f"{version} has no such function: the engine tests look at it")
    healed = case in HEALED and Version(version) >= Version(HEALED[case])
    assert found[version]["stock"][case] == (RIGHT if healed else WRONG)[case]
