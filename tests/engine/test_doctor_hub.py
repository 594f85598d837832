"""The doctor on the hub: the real client, a hub on this machine, and no byte of weights.

Lives with the engine tests because the client, which the tools do without, is in the engine's
environment.
"""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from advice.synthetic import write_header
from unit.doctor_files import make_drafter, make_target

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """Serves the folders below ``root`` as models of any owner, and notes what was asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.asked: list[tuple[str, str | None]] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((path, self.headers["Range"]))
        api = re.fullmatch(r"/api/models/[^/]+/([^/]+)(/tree/.*)?", path)
        file = re.fullmatch(r"/[^/]+/([^/]+)/resolve/[^/]+/([^/]+)", path)
        if api and (folder := self.server.root / api[1]).is_dir():
            files = [
                {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": COMMIT}
                for f in sorted(folder.iterdir())
            ]
            model = {"id": f"owner/{api[1]}", "sha": COMMIT, "siblings": []}
            self._send(200, json.dumps(files if api[2] else model).encode())
        elif file and (place := self.server.root / file[1] / file[2]).is_file():
            self._send_file(place)
        else:
            self._send(404, b'{"error": "not found"}', {"X-Error-Code": "RepoNotFound"})

    def _send_file(self, place: Path) -> None:
        size = place.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        first, last = (int(asked[1]), int(asked[2])) if asked else (0, size - 1)
        with place.open("rb") as stream:
            stream.seek(first)
            body = stream.read(last - first + 1)
        span = {"Content-Range": f"bytes {first}-{first + len(body) - 1}/{size}"}
        self._send(206 if asked else 200, body, {"ETag": '"x"', "X-Repo-Commit": COMMIT, **span})

    def _send(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    root = tmp_path / "hub"
    make_target(root / "Kimi-K2.5")
    make_drafter(root / "Kimi-K2.5-eagle3")
    server = Hub(root)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(python: Path, server: Hub | None, home: Path, *words: str) -> tuple[int, dict[str, Any]]:
    port = server.server_port if server else 9  # nobody listens there
    found = subprocess.run(
        [str(python), str(ROOT / "tools" / "doctor.py"), *words, "--release", "0.33.0", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={
            "PATH": "/usr/bin:/bin",
            "HF_ENDPOINT": f"http://127.0.0.1:{port}",
            "HF_HOME": str(home),
            "NO_PROXY": "127.0.0.1",
        },
    )
    return found.returncode, json.loads(found.stdout)


def test_a_pair_on_the_hub(engine_python: Path, hub: Hub, tmp_path: Path) -> None:
    big = hub.root / "Kimi-K2.5" / "more.safetensors"
    write_header(big, [("language_model.lm_head.weight", "BF16", (1 << 20, 32))])
    words = ("--target", "any/Kimi-K2.5", "--drafter", "any/Kimi-K2.5-eagle3")
    code, found = run(engine_python, hub, tmp_path, *words)
    assert (code, found["result"]) == (0, "go")
    assert "any/Kimi-K2.5-eagle3" in found["command"][-1]
    spans = [span or "" for path, span in hub.asked if path.endswith(".safetensors")]
    fetched = [int(last) - int(first) for first, last in (s[6:].split("-") for s in spans)]
    assert len(fetched) == 3
    assert max(fetched) <= 1 << 20 < big.stat().st_size


def test_no_model_and_no_hub(engine_python: Path, hub: Hub, tmp_path: Path) -> None:
    words = ("--target", "any/Kimi-K9", "--drafter", "any/Kimi-K2.5-eagle3")
    code, found = run(engine_python, hub, tmp_path, *words)
    assert (code, found["error"]["kind"]) == (3, "refused")
    assert "any/Kimi-K9: is neither a folder here nor a model on the hub" in found["message"]
    code, found = run(engine_python, None, tmp_path, *words)
    assert (code, found["error"]["kind"]) == (5, "environment")
    assert "the hub cannot be read" in found["message"]


def test_the_local_cache_goes_first(engine_python: Path, hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "home" / "hub" / "models--any--Kimi-K2.5"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(COMMIT)
    snapshot = make_target(cache / "snapshots" / COMMIT)
    words = ("--target", "any/Kimi-K2.5", "--drafter", str(hub.root / "Kimi-K2.5-eagle3"))
    code, _ = run(engine_python, None, tmp_path / "home", *words)
    assert code == 0
    (snapshot / "model.safetensors").rename(snapshot / "gone")  # not downloaded yet
    code, _ = run(engine_python, hub, tmp_path / "home", *words)
    assert code == 0
    assert hub.asked
