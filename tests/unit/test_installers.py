"""What pip and uv make of a patched wheel, and of an install patched in place."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patchset import operations
from patchset.tree import open_tree
from unit.support import World, read_tree

INSTALLERS = ["pip", "uv"]


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    root = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    return root


def site(venv: Path) -> Path:
    return next(venv.glob("lib/python*/site-packages"))


def files(venv: Path) -> set[str]:
    return {name for name in read_tree(site(venv)) if not name.endswith(".pyc")}


def install(tool: str, venv: Path, wheel: Path, *options: str) -> None:
    python = str(venv / "bin" / "python")
    if tool == "uv":
        words = ["uv", "pip", "install", "--offline", "--python", python, "--no-cache"]
        options = tuple("--reinstall" if word == "--force-reinstall" else word for word in options)
    else:
        words = ["pip", "--python", python, "install", "--no-index"]
    command = [sys.executable, "-m", *words, "-q", "--no-deps", *options, str(wheel)]
    subprocess.run(command, check=True, capture_output=True)


def uninstall(tool: str, venv: Path) -> None:
    python = str(venv / "bin" / "python")
    words = ["pip", "--python", python, "uninstall", "-y"]
    if tool == "uv":
        words = ["uv", "pip", "uninstall", "--offline", "--python", python]
    subprocess.run([sys.executable, "-m", *words, "-q", "vllm"], check=True, capture_output=True)


def run(venv: Path, code: str) -> str:
    return subprocess.run(
        [str(venv / "bin" / "python"), "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize("tool", INSTALLERS)
def test_a_patched_wheel_installs_and_goes_away(world: World, venv: Path, tool: str) -> None:
    with open_tree(world.wheel) as tree:
        built = operations.apply(tree, world.project).wheel
    assert built is not None
    empty = files(venv)
    install(tool, venv, built.path)
    code = "import vllm, importlib.metadata as m; print(vllm.__version__, m.version('vllm'))"
    assert run(venv, code) == f"{built.version} {built.version}"
    with open_tree(venv) as tree:
        verdict = operations.inspect(tree, world.project).verdict
    assert (verdict.state, verdict.digest) == ("applied", built.digest)
    uninstall(tool, venv)
    assert files(venv) == empty


@pytest.mark.parametrize("tool", INSTALLERS)
def test_an_install_patched_in_place(world: World, venv: Path, tool: str) -> None:
    empty = files(venv)
    install(tool, venv, world.wheel)
    stock = files(venv)
    run(venv, "import vllm.alpha, vllm.beta")
    with open_tree(venv) as tree:
        operations.apply(tree, world.project)
    run(venv, "import vllm.alpha, vllm.extra.over")  # leaves bytecode of added files behind
    assert run(venv, "import vllm; print(vllm.__version__)") == "9.9.0+kimi.eagle3.4"
    install(tool, venv, world.wheel, "--force-reinstall")
    assert files(venv) == stock
    with open_tree(venv) as tree:
        assert operations.inspect(tree, world.project).verdict.state == "pristine"
        operations.apply(tree, world.project)
    uninstall(tool, venv)
    assert files(venv) == empty
    assert not (site(venv) / ".vllm-kimi-eagle3").exists()
    shutil.rmtree(venv)
