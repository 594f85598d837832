"""Fetching through pip, from a folder that plays the package index."""

from __future__ import annotations

import shutil
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

import bootstrap
from patchset.download import cache_dir, cached, download
from patchset.errors import EnvironmentFault, IntegrityFault, Refused
from patchset.releases import Artifact, Release, load_releases
from unit.support import VERSION, World


@pytest.fixture
def index(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index reachable without any network, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def pin(world: World) -> Artifact:
    return world.project.release(VERSION).find("wheel", "cuda", "x86_64")


def test_fetches_once_and_checks_each_time(world: World, index: Path) -> None:
    (index / world.wheel.name).write_bytes(world.wheel.read_bytes())
    path = download(pin(world))
    assert path == cached(pin(world))
    assert path.is_relative_to(cache_dir())
    assert path.read_bytes() == world.wheel.read_bytes()
    (index / world.wheel.name).unlink()
    assert download(pin(world)) == path  # from the cache

    path.write_bytes(b"damaged")
    with pytest.raises(EnvironmentFault):  # so it is fetched again, and is gone by now
        download(pin(world))
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_something_else_under_that_name_is_an_integrity_fault(world: World, index: Path) -> None:
    data = bytearray(world.wheel.read_bytes())
    data[2000] ^= 1
    (index / world.wheel.name).write_bytes(data)
    with pytest.raises(IntegrityFault, match=r"the index serves .* pinned is"):
        download(pin(world))
    assert not cached(pin(world)).exists()


def test_a_wheel_that_pip_cannot_read_is_an_integrity_fault(world: World, index: Path) -> None:
    (index / world.wheel.name).write_bytes(world.wheel.read_bytes()[:999])
    with pytest.raises(IntegrityFault, match="the index serves something else"):
        download(pin(world))
    with zipfile.ZipFile(index / world.wheel.name, "w") as archive:
        info = f"vllm-{VERSION}.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\n")
    with pytest.raises(IntegrityFault, match="inconsistent"):
        download(pin(world))


def test_what_the_index_lacks_is_said_with_the_way_out(world: World, index: Path) -> None:
    with pytest.raises(EnvironmentFault, match="does not have it") as fault:
        download(pin(world))
    assert "is out of reach or does not have it" in str(fault.value)
    folder = cached(pin(world)).parent
    assert str(fault.value.next_step).endswith(f"elsewhere and put it into {folder}.")
    shutil.copy(world.wheel, folder)
    assert download(pin(world)) == folder / world.wheel.name


def test_no_network_without_a_retry(
    world: World, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(EnvironmentFault, match=r"out of reach|cannot be reached"):
        download(pin(world))


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As bootstrap.py does, so that both use the same folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "cache", "./cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_dir() == tmp_path / ".cache" / "vllm-kimi-eagle3" / "downloads"
        assert cache_dir().parent == bootstrap.cache_root()
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(EnvironmentFault, match="no home folder"):
        cache_dir()


def test_no_network_is_said(world: World, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(EnvironmentFault, match="cannot be reached"):
        download(pin(world))
    sdist = msgspec.structs.replace(pin(world), kind="sdist", file="vllm-9.9.0.tar.gz")
    with pytest.raises(EnvironmentFault, match="cannot be reached"):
        download(sdist)


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (404, "text/html", b""),
        (200, "text/html", b"<!DOCTYPE html><title>none</title>"),
        (200, "image/png", b""),
        (200, "application/vnd.pypi.simple.v1+json", b"{}"),
        (200, "application/vnd.pypi.simple.v1+json", b'{"meta": {"api-version": "9.0"}}'),
        (200, "application/vnd.pypi.simple.v1+json", b"{"),
    ],
)
def test_an_index_without_the_sdist(
    world: World,
    index: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    kind: str,
    body: bytes,
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        sdist = msgspec.structs.replace(pin(world), kind="sdist", file="vllm-9.9.0.tar.gz")
        with pytest.raises(EnvironmentFault, match=r"vllm-9\.9\.0\.tar\.gz could not be fetched"):
            download(sdist)
        server.shutdown()
        thread.join()


def test_an_unwritable_cache_is_said(
    world: World, index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(EnvironmentFault, match="cannot be used"):
        download(pin(world))


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("release", load_releases(ROOT / "patches" / "releases.toml").release)
def test_the_real_pins_are_complete(release: Release) -> None:
    flavours = {item.flavour for item in release.artifact}
    assert flavours == ({"cuda"} if release.version == "0.33.0" else {"cuda", "cpu"})
    for flavour in sorted(flavours):
        for arch in ("x86_64", "aarch64"):
            found = release.find("wheel", flavour, arch)
            assert found.flavour == flavour
            assert found.file.endswith(f"_{arch}.whl")
            assert f"-{release.version}-" in found.file
    source = "wheel" if release.version in ("0.15.0", "0.15.1") else "sdist"
    assert release.pristine().kind == source
    assert release.image.endswith(release.tag)
    with pytest.raises(Refused, match="no pinned cuda wheel for riscv64"):
        release.find("wheel", "cuda", "riscv64")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("revision = 4", "revision = 0"),
        ("revision = 4", 'revision = "4"'),
        ("revision = 4", "revision = 4\nsurprise = 1"),
        ("sha256 = ", "sha265 = "),
        ("[[release]]", "[[release"),
        ('kind = "wheel"', 'kind = "egg"'),
        (f'version = "{VERSION}"', f"version = '{VERSION}'"),
        ("[[release]]", "[[ release ]]"),
        ("revision = 4", 'revision = 4\n[[ release ]]\nversion = "1.0.0"'),
    ],
)
def test_wrong_pins_name_the_key(world: World, old: str, new: str) -> None:
    path = world.root / "patches" / "releases.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(IntegrityFault, match=r"releases\.toml: "):
        load_releases(path).get(VERSION)


def test_each_pin_is_read_by_itself(world: World) -> None:
    """The cost of a command must not grow with the number of pinned releases."""
    path = world.root / "patches" / "releases.toml"
    text = path.read_text()
    path.write_text(text + text.replace(VERSION, "9.9.1").replace("revision = 4", "revision = 0"))
    releases = load_releases(path)
    assert releases.versions == [VERSION, "9.9.1"]
    assert releases.get(VERSION).revision == 4
    with pytest.raises(IntegrityFault, match=r"releases\.toml: 9\.9\.1: .*revision"):
        releases.get("9.9.1")
    path.write_text(text + text)
    with pytest.raises(IntegrityFault, match="each with its own"):
        load_releases(path)


@pytest.mark.parametrize("version", ["0.33.x", "../../x", "0.33"])
def test_a_pinned_version_is_that_of_a_release(tmp_path: Path, version: str) -> None:
    path = tmp_path / "releases.toml"
    path.write_text(f'[[release]]\nversion = "{version}"\n')
    with pytest.raises(IntegrityFault, match="is no version of a release"):
        load_releases(path)
