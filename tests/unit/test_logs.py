"""Reading vLLM logs: every fault is found in every disguise that logs come in."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advice.logs import LIMIT, cure_of, diagnose, read_log, split_log
from patchset.errors import EnvironmentFault, UsageFault
from patchset.faults import Fault, load_faults
from patchset.project import Project

ROOT = Path(__file__).resolve().parents[2]
FAULTS = load_faults(ROOT / "patches" / "faults.toml")
BY_ID = {fault.id: fault for fault in FAULTS}


def sample_of(fault: Fault) -> str:
    """A line that shows the fault, as vLLM writes it."""
    return next(text for text in (*fault.samples, fault.symptom) if fault.seen_in(text))


def release_of(fault: Fault) -> str:
    return fault.affected[0].first


def crash(fault: Fault, version: str) -> list[str]:
    """A server log as vLLM writes it, whose root cause is that fault's line."""
    core = "(EngineCore_DP0 pid=4242) ERROR 11-29 18:00:09 [core.py:936] "
    return [
        "(APIServer pid=4100) INFO 11-29 18:00:00 [utils.py:325] "
        f"vLLM API server version {version}",
        "(EngineCore_DP0 pid=4242) INFO 11-29 18:00:05 [core.py:98] Initializing a V1 LLM engine "
        f"(v{version}) with config: model='moonshotai/Kimi-K2.5', dtype=torch.bfloat16",
        core + "EngineCore failed to start.",
        core + "Traceback (most recent call last):",
        core + '  File "/opt/vllm/v1/engine/core.py", line 927, in run_engine_core',
        core + "    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
        core + sample_of(fault),
        "(EngineCore_DP0 pid=4242) Process EngineCore_DP0:",
        "(APIServer pid=4100) Traceback (most recent call last):",
        "(APIServer pid=4100) RuntimeError: Engine core initialization failed. See root cause "
        "above. Failed core proc(s): {}",
    ]


def coloured(lines: list[str]) -> str:
    return "\n".join(re.sub(r"(\w+)", "\x1b[0;36m\\1\x1b[0;0m", line) for line in lines)


def wrapped_at_a_column(lines: list[str]) -> str:
    return "\n".join(line[i : i + 80] for line in lines for i in range(0, len(line), 80))


def wrapped_at_words(lines: list[str]) -> str:
    return "\n".join("\n".join(textwrap.wrap(line, 100, break_on_hyphens=False)) for line in lines)


def from_many_workers(lines: list[str]) -> str:
    found = [
        line.replace("EngineCore_DP0 pid=4242", f"Worker_TP{rank} pid={4300 + rank}")
        for line in lines
        for rank in range(8)
    ]
    return "\n".join(found)


def from_containers(lines: list[str]) -> str:
    return "\r\n".join(f"vllm-1  | 2026-11-29T18:00:09.123456789Z {line}" for line in lines)


def from_ray(lines: list[str]) -> str:
    return "\n".join(f"(RayWorkerWrapper pid=77, ip=10.0.0.2) {line}" for line in lines)


def as_json(lines: list[str]) -> str:
    return "\n".join(json.dumps({"level": "ERROR", "message": line}) for line in lines)


def without_its_start(lines: list[str]) -> str:
    return "\n".join(lines)[-400 - len(lines[6]) :]


DISGUISES: list[Callable[[list[str]], str]] = [
    "\n".join,
    coloured,
    wrapped_at_a_column,
    wrapped_at_words,
    from_many_workers,
    from_containers,
    from_ray,
    as_json,
    without_its_start,
]


@pytest.mark.parametrize("disguise", DISGUISES, ids=lambda item: item.__name__)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda item: item.id)
def test_the_cause_is_found_in_every_disguise(
    fault: Fault, disguise: Callable[[list[str]], str]
) -> None:
    found = diagnose(disguise(crash(fault, release_of(fault))), FAULTS)
    assert found.cause is not None
    if found.release is None:  # cut off: those that share the line are all named
        named = [item.fault.id for item in found.findings]
        assert fault.id in named
    else:
        assert (found.release, found.cause.fault.id) == (release_of(fault), fault.id)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda item: item.id)
def test_a_log_of_another_release_does_not_show_the_fault(fault: Fault) -> None:
    found = diagnose("\n".join(crash(fault, "0.14.0")), FAULTS)
    assert fault.id not in [item.fault.id for item in found.findings]
    assert found.release == "0.14.0"


def test_the_first_cause_counts_not_the_last_error_and_not_a_warning() -> None:
    lines = crash(BY_ID["F03"], "0.16.0")
    warning = "(Worker_TP0 pid=1) WARNING 11-29 18:00:01 [ca.py:1] " + BY_ID["F26"].symptom
    later = "(EngineCore_DP0 pid=1) ERROR 11-29 18:01:00 [core.py:1] " + BY_ID["F01"].symptom
    found = diagnose("\n".join([warning, *lines, later]), FAULTS)
    assert [item.fault.id for item in found.findings] == ["F26", "F03", "F01"]
    assert [item.fatal for item in found.findings] == [False, True, True]
    assert found.cause is not None
    assert (found.cause.fault.id, found.cause.line) == ("F03", 8)


def test_a_warning_alone_is_a_hint() -> None:
    found = diagnose("WARNING 11-29 18:00:01 [ca.py:1] " + BY_ID["F26"].symptom, FAULTS)
    assert found.cause is not None
    assert (found.cause.fault.id, found.cause.fatal, found.error) == ("F26", False, None)


def test_an_unknown_error_is_given_with_its_line_and_not_the_second_hand_one() -> None:
    lines = crash(BY_ID["F03"], "0.16.0")
    lines[6] = "(EngineCore_DP0 pid=4242) ERROR 11-29 18:00:09 [core.py:936] OSError: no such host"
    found = diagnose("\n".join(lines), FAULTS)
    assert found.findings == ()
    assert found.error is not None
    assert (found.error.number, found.error.text) == (7, "[core.py:936] OSError: no such host")


def test_the_second_hand_error_may_come_first() -> None:
    lines = [*crash(BY_ID["F03"], "0.16.0")[-2:], "OSError: no such host"]
    error = diagnose("\n".join(lines), FAULTS).error
    assert error is not None
    assert error.text == "OSError: no such host"


def test_a_warning_before_the_error_hides_nothing() -> None:
    text = BY_ID["F26"].symptom
    found = diagnose(f"WARNING 11-29 18:00:01 [ca.py:1] {text}\nValueError: {text}", FAULTS)
    assert [(item.line, item.fatal) for item in found.findings] == [(2, True)]


def test_a_patched_release_is_told() -> None:
    found = diagnose(
        "INFO 11-29 18:00:00 [a.py:1] vLLM API server version 0.16.0+kimi.eagle3.1", ()
    )
    assert (found.release, found.local, found.error) == ("0.16.0", "+kimi.eagle3.1", None)


def test_the_log_of_a_stock_server() -> None:
    # Kept from a run of vLLM 0.16.0's own server on a CPU; the pair was this project's stand-in.
    text = (Path(__file__).parent / "logs" / "0.16.0-stock-server.log").read_text(encoding="utf-8")
    found = diagnose(text, FAULTS)
    assert found.cause is not None
    assert (found.release, found.cause.fault.id, found.cause.line) == ("0.16.0", "F03", 61)
    told = cure_of(found.cause, Project.here())
    assert "Patch 0001" in told
    assert "make wheel RELEASE=0.16.0" in told
    assert "0.18.0 is without it" in told


@pytest.mark.parametrize("fault", FAULTS, ids=lambda item: item.id)
def test_every_fault_has_something_to_do(fault: Fault) -> None:
    first = release_of(fault)
    for version in (first, f"{first}+kimi.eagle3.1"):
        found = diagnose("\n".join(crash(fault, version)), FAULTS).findings
        told = cure_of(next(item for item in found if item.fault is fault), Project.here())
        assert told.endswith(".")
        assert len(told) > 20


def test_a_quiet_log_has_no_cause() -> None:
    found = diagnose("INFO 11-29 18:00:00 [a.py:1] Application startup complete.\n" * 3, FAULTS)
    assert (found.cause, found.error) == (None, None)


@given(st.text())
def test_any_text_has_an_answer(text: str) -> None:
    found = diagnose(text, FAULTS)
    assert all(
        1 <= item.line <= len(text.splitlines()) + text.count("\r") + 1 for item in found.findings
    )
    assert [line.number for line in split_log(text)] == sorted(
        line.number for line in split_log(text)
    )


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="No such file"):
        read_log(tmp_path / "none.log")
    with pytest.raises(EnvironmentFault, match="Is a directory"):
        read_log(tmp_path)
    (tmp_path / "binary").write_bytes(b"\x7fELF" + bytes(4096))
    with pytest.raises(UsageFault, match="not a text file"):
        read_log(tmp_path / "binary")
    (tmp_path / "utf16").write_bytes(("ValueError: x\n" + sample_of(BY_ID["F03"])).encode("utf-16"))
    assert diagnose(read_log(tmp_path / "utf16"), FAULTS).cause is not None


def test_a_huge_log_is_read_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "huge.log"
    with path.open("wb") as file:
        file.write(sample_of(BY_ID["F03"]).encode() + b"\n" * 4096)
        file.seek(2 * LIMIT)
        file.write(b"\nlast\n")
    text = read_log(path)
    assert len(text) == LIMIT + 1
    assert (text[:10], text[-6:]) == (sample_of(BY_ID["F03"])[:10], "\nlast\n")


def test_a_compressed_log_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(sample_of(BY_ID["F03"]).encode() * 99))
    with pytest.raises(UsageFault, match="not a text file"):
        read_log(tmp_path / "log.gz")


def test_a_pipe_is_read_to_its_end_and_not_waited_for_without_a_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageFault, match="pipe: nobody writes to that pipe"):
        read_log(pipe)
    reads, writes = os.pipe()  # as the shell's <(...) gives one
    with subprocess.Popen(["sh", "-c", "sleep 1; echo late"], stdout=writes):
        os.close(writes)
        assert read_log(Path(f"/dev/fd/{reads}")) == "late\n"
    os.close(reads)


def test_a_log_of_two_runs_shows_the_faults_of_both() -> None:
    lines = [*crash(BY_ID["F12"], "0.33.0"), *crash(BY_ID["F03"], "0.16.0")]
    found = diagnose("\n".join(lines), FAULTS).findings
    assert [(item.fault.id, item.release) for item in found] == [
        ("F12", "0.33.0"),
        ("F03", "0.16.0"),
    ]
    assert "RELEASE=0.16.0" in cure_of(found[1], Project.here())
    # In the other order each line shows what its own run cannot have.
    lines = [*crash(BY_ID["F03"], "0.33.0"), *crash(BY_ID["F12"], "0.16.0")]
    assert diagnose("\n".join(lines), FAULTS).findings == ()


def test_a_log_on_standard_input() -> None:
    tool = Path(__file__).resolve().parents[2] / "tools" / "doctor.py"
    answer = subprocess.run(
        [sys.executable, str(tool), "--log", "-"],
        input="\n".join(crash(BY_ID["F03"], "0.16.0")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 11
    assert "stop: the first cause is F03 in line 7" in answer.stdout
