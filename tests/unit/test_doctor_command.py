"""tools/doctor.py as a user runs it: verdict, exit code, JSON, the command to run."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import doctor
from advice.checks import EXIT_CODES, LEVELS
from advice.release import MEETINGS, NOT_JUDGED, WITH_CARDS
from advice.serve import OPTIONS
from cli import run
from patchset.errors import PatchsetError
from patchset.faults import load_faults
from patchset.project import Project
from unit.doctor_files import drafter_config, make_drafter, make_target
from unit.support import World

ROOT = Path(__file__).resolve().parents[2]
FAULTS = load_faults(ROOT / "patches" / "faults.toml")
NAMED: dict[str, Any] = {"_name_or_path": "someone/Kimi-K2.5-eagle3"}


class Doctor:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.capsys, self.patch = capsys, patch

    def __call__(self, *words: object, code: int = 0) -> str:
        """Standard output, of a failure without --json standard error."""
        self.patch.setattr(sys, "argv", ["doctor.py", *map(str, words)])
        self.patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as end:
            run(doctor.doctor, "doctor")
        out, err = self.capsys.readouterr()
        assert end.value.code == code, out + err
        assert "Traceback" not in err
        return out or err

    def json(self, *words: object, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self(*words, "--json", code=code))
        assert found["exit_code"] == code
        return found


@pytest.fixture
def run_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    return Doctor(capsys, monkeypatch)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[object, ...]:
    target = make_target(tmp_path / "Kimi-K2.5")
    return "--target", target, "--drafter", make_drafter(tmp_path / "drafter", **NAMED)


def levels(found: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["level"] for check in found["checks"]}


def test_a_good_pair(run_doctor: Doctor, pair: tuple[object, ...]) -> None:
    found = run_doctor.json(*pair, "--release", "0.33.0", "--tp", 2)
    assert found["schema"] == "vllm-kimi-eagle3/doctor/1"
    assert found["result"] == "go"
    assert found["command"][:3] == ["vllm", "serve", str(pair[1])]
    assert found["command"][-2] == "--speculative-config"
    assert json.loads(found["command"][-1]) == {
        "method": "eagle3",
        "model": str(pair[3]),
        "num_speculative_tokens": 3,
    }
    told = run_doctor(*pair, "--release", "0.33.0", "--tp", 2)
    # What is printed is that command, for a shell.
    printed = told[told.index("\nvllm serve") : told.rindex("\n\n")].replace("\\\n", "")
    assert shlex.split(printed) == found["command"]
    assert told.strip().splitlines()[-1].startswith("go: vLLM 0.33.0")


def test_the_stock_release_and_the_series(run_doctor: Doctor, pair: tuple[object, ...]) -> None:
    stock = run_doctor.json(*pair, "--release", "0.16.0", "--stock", code=11)
    assert stock["result"] == "stop"
    assert stock["command"] == []
    assert {levels(stock)[f"release.F0{i}"] for i in (1, 2, 3)} == {"stop"}
    better = next(check for check in stock["checks"] if check["id"] == "release.better")
    assert "vLLM 0.16.0 with the series" in better["reason"]
    cured = run_doctor.json(*pair, "--release", "0.16.0", code=10 if warns("0.16.0") else 0)
    assert {levels(cured)[f"release.F0{i}"] for i in (1, 2, 3)} == {"pass"}
    told = run_doctor(*pair, "--release", "0.16.0", code=cured["exit_code"])
    assert "cured by the series: F01, F02, F03" in told


def warns(version: str) -> bool:
    """Whether a fault that every such pair meets and that warns is not cured there."""
    patches = Project.here().series(version).patches
    cured = {fault for patch in patches for fault in patch.faults}
    return any(
        fault.affects(version) and fault.id in ("F21", "F22") and fault.id not in cured
        for fault in FAULTS
    )


def test_the_fixed_copy_is_judged(
    run_doctor: Doctor, tmp_path: Path, pair: tuple[object, ...]
) -> None:
    ids: dict[str, Any] = {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "eagle_config": None,
        **NAMED,
    }
    drafter = make_drafter(tmp_path / "spoilt", **ids)
    words = (*pair[:2], "--drafter", drafter, "--release", "0.33.0", "--stock")
    assert levels(run_doctor.json(*words, code=11))["pair.ids"] == "stop"
    fixed = tmp_path / "fixed"
    found = run_doctor.json(*words, "--fix", fixed)
    assert found["fixed"] == str(fixed)
    assert str(fixed) in found["command"][-1]
    assert json.loads((fixed / "config.json").read_text()) == {
        **drafter_config(**ids),
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    }
    assert "eagle_aux_hidden_state_layer_ids: [1, 3, 4] -> [2, 4, 5]" in found["changes"][0]
    assert "exists" in run_doctor(*words, "--fix", fixed, code=2)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "--target and --drafter"),
        (("--release", "0.16"), 3, "not a pinned release"),
        (("--env", ".", "--stock"), 2, "leave out --stock"),
        (("--tp", 0), 2, "--tp"),
    ],
)
def test_bad_requests(
    words: tuple[object, ...],
    code: int,
    said: str,
    run_doctor: Doctor,
    pair: tuple[object, ...],
) -> None:
    for as_json in ((), ("--json",)):
        told = run_doctor(*(pair if words else ()), *words, *as_json, code=code)
        assert said in told


def test_no_release_named(run_doctor: Doctor, pair: tuple[object, ...]) -> None:
    assert "neither --release nor --env" in run_doctor(*pair, code=3)


def test_a_damaged_drafter(run_doctor: Doctor, pair: tuple[object, ...], tmp_path: Path) -> None:
    path = make_drafter(tmp_path / "damaged") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    words = (*pair[:2], "--drafter", path.parent, "--release", "0.33.0")
    found = run_doctor.json(*words, code=4)
    assert found["error"]["kind"] == "integrity"
    assert found["error"]["next_step"] == "Download that file again."
    told = run_doctor(*words, code=4)
    assert told.startswith("integrity failure: ")
    assert len(told.splitlines()) == 1


def test_the_verdicts_codes_are_nobody_elses() -> None:
    kinds = {kind.exit_code for kind in PatchsetError.__subclasses__()}
    ours = {EXIT_CODES[level] for level in ("warn", "stop")}
    assert not ours & {0, 1, 130, *kinds}
    assert list(EXIT_CODES) == list(LEVELS)
    assert "10 go with care (a warning), 11 stop" in doctor.CODES


def test_every_fault_is_judged_or_has_a_reason_not_to_be() -> None:
    known = [*MEETINGS, *WITH_CARDS, *NOT_JUDGED]
    assert sorted(known) == sorted(fault.id for fault in FAULTS)


def test_every_option_in_a_command_is_a_known_one(
    run_doctor: Doctor, pair: tuple[object, ...]
) -> None:
    cards = ("--gpus", "8xRTX-PRO-6000", "--tp", 2, "--dcp", 2, "--kv-cache-dtype", "fp8")
    for version in ("0.16.0", "0.23.0", "0.33.0"):
        words = (*pair, "--release", version, "--stock", *cards, "--max-num-seqs", 8)
        for check in json.loads(run_doctor(*words, "--json", code=11))["command"]:
            assert not check.startswith("--") or check in OPTIONS


def test_a_second_copy_in_the_environment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from advice import environment
    from patchset.tree import Tree, open_tree

    tree = world.tree("source")

    def with_another(place: Path) -> Tree:
        found = open_tree(place)
        found.others = (tree.parent / "other",)
        return found

    monkeypatch.setattr(environment, "open_tree", with_another)
    seen = environment.look_at(tree, world.project, None)
    assert (seen.checks[0].id, seen.checks[0].level) == ("environment.copies", "warn")
    assert "there is another copy" in seen.checks[0].reason


def test_environments(
    run_doctor: Doctor, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test's own little release, in every state."""
    from advice.environment import look_at
    from patchset.operations import apply
    from patchset.tree import open_tree

    tree = world.tree("source")
    seen = look_at(tree, world.project, None)
    assert [check.level for check in seen.checks] == ["note"]
    assert not seen.rules.patches
    with open_tree(tree) as place:
        apply(place, world.project)
    seen = look_at(tree, world.project, None)
    assert [check.level for check in seen.checks] == ["pass"]
    assert len(seen.rules.patches) == len(world.project.series(seen.rules.version).patches)
    touched = world.project.series(seen.rules.version).patches[0].paths[0]
    (tree / touched).write_text("something else\n")
    seen = look_at(tree, world.project, None)
    assert [(c.id, c.level) for c in seen.checks] == [("environment.state", "stop")]
    assert touched in seen.checks[0].reason


def test_a_share_of_memory_that_is_no_number(run_doctor: Doctor, pair: tuple[object, ...]) -> None:
    words = (*pair, "--release", "0.33.0", "--gpu-memory-utilization", "nan")
    assert "above 0 and at most 1" in run_doctor(*words, code=2)


def test_a_folder_is_not_taken_for_an_option(
    run_doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_target(tmp_path / "-t")
    make_drafter(tmp_path / "d", **NAMED)
    words = ("--target", "-t", "--drafter", "d", "--release", "0.33.0", "--tp", 2)
    assert run_doctor.json(*words, code=0)["command"][:3] == ["vllm", "serve", "./-t"]
