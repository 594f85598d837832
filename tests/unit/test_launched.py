"""A server's whole process group ends with the block, and with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from standin.engine import EngineFailed, launched

from patchset.project import Project

# Answers /health after a moment; its child, like vLLM's engine core, does not heed SIGTERM.
SERVER = """
import http.server, subprocess, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
process = subprocess.Popen([sys.executable, "-c", child])
print("child", process.pid, flush=True)
time.sleep(0.7)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""
STARTER = """
import os, sys, time
from pathlib import Path
from conftest import stop_on_signals
from standin.engine import launched
stop_on_signals()
with launched([sys.executable, "-c", sys.argv[1]], os.environ, log=Path(sys.argv[2]), timeout=60):
    print("ready", flush=True)
    time.sleep(300)
"""


def child_of(log: Path) -> int:
    return int(log.read_text().split()[1])


def gone(pid: int) -> bool:
    """Whether the process has ended, or is only waiting for its parent to notice."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_the_group_ends_with_the_block(tmp_path: Path) -> None:
    log, waited = tmp_path / "log", list[float]()
    command = [sys.executable, "-c", SERVER]
    with launched(command, os.environ, log=log, timeout=60, waiting=waited.append) as server:
        assert server.process.poll() is None
        child = child_of(log)
        assert not gone_now(child)
    assert gone(child)
    assert waited


def gone_now(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_orphan_is_left(number: signal.Signals, tmp_path: Path) -> None:
    log, root = tmp_path / "log", Project.here().root
    path = os.pathsep.join(str(root / part) for part in ("", "tools", "tests"))
    command = [sys.executable, "-c", STARTER, SERVER, str(log)]
    environ = {**os.environ, "PYTHONPATH": path}
    heed = partial(signal.signal, number, signal.SIG_DFL)  # runs in the background do not
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, text=True, preexec_fn=heed
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        try:
            process.wait(30)
        finally:
            process.kill()
    assert process.returncode
    assert gone(child_of(log))


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        pytest.raises(EngineFailed, match=r"exited with 1\nno such model"),
        launched(command, os.environ, log=tmp_path / "log", timeout=60),
    ):
        pass
