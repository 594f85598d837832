"""The command lines as a user runs them: last line, exit code, JSON."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patchset.project import Project
from unit.support import PRISTINE, VERSION, World, facts, read_tree

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def world(template: Path, tmp_path: Path) -> World:
    root = tmp_path / "world"
    shutil.copytree(template, root)
    shutil.copytree(TOOLS, root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    return World(root, Project(root))


def run(world: World, *words: str, code: int = 0, environ: dict[str, str] | None = None) -> str:
    """Run a tool; returns standard output (for a failure: standard error)."""
    found = subprocess.run(
        [sys.executable, *words],
        cwd=world.root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nowhere"}
        | {"XDG_CACHE_HOME": str(world.root / "cache")}
        | (environ or {}),
    )
    assert found.returncode == code, found.stdout + found.stderr
    assert ("Traceback" in found.stderr) == (code == 1)
    return found.stderr if code and "--json" not in words else found.stdout


def last(text: str) -> str:
    return text.strip().splitlines()[-1]


def document(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def test_a_day_with_a_source_tree(world: World) -> None:
    tree = str(world.tree("source"))
    tool = "tools/apply.py"
    assert last(run(world, tool, tree, "--status")).startswith("state: pristine: all ")
    assert last(run(world, tool, tree, "--check")).startswith("would do: 3 patches to ")
    preview = run(world, tool, tree, "--dry-run")
    assert "  would write   vllm/extra/over.py\n" in preview
    assert "  would delete  vllm/gone.py\n" in preview
    assert last(run(world, tool, tree)).startswith("done and verified: 3 patches applied to ")
    assert last(run(world, tool, tree)).startswith("nothing to do: ")
    found = document(run(world, tool, tree, "--status", "--json"))
    assert (found["schema"], found["result"]) == ("vllm-kimi-eagle3/apply/1", "state")
    assert (found["state"], found["digest"]) == ("applied", found["series"])
    assert found["patches"][1]["faults"] == ["F05", "F06"]
    digest = found["digest"]
    run(world, tool, tree, "--status", "--expect", digest[:12])
    other = "0" * 64
    assert f"not the patch set {other}" in run(
        world, tool, tree, "--status", "--expect", other, code=3
    )
    assert "is not a digest" in run(world, tool, tree, "--status", "--expect", "x", code=2)
    assert last(run(world, tool, tree, "--reverse")).startswith("done and verified: ")
    assert "has pristine" in run(world, tool, tree, "--status", "--expect", digest, code=3)
    assert {key: read_tree(Path(tree))[key] for key in PRISTINE} == PRISTINE


def test_every_kind_of_fault_has_its_code_and_one_sentence(world: World) -> None:
    tree = world.tree("source")
    (tree / "vllm" / "alpha.py").write_bytes(b"edited\n")
    before = facts(tree)
    out = run(world, "tools/apply.py", str(tree), code=3)
    assert out.count("\n") == 1
    assert out.startswith(f"refused: {tree}: is foreign: vllm/alpha.py: was edited")
    found = document(run(world, "tools/apply.py", str(tree), "--json", code=3))
    assert (found["result"], found["exit_code"], found["error"]["kind"]) == ("error", 3, "refused")
    assert found["error"]["next_step"]

    out = run(world, "tools/apply.py", str(tree), "--release", "1.0", code=3)
    assert "not a pinned release; pinned are: 9.9.0" in out
    out = run(world, "tools/apply.py", "nowhere", code=2)
    assert out == "bad usage: nowhere: does not exist.\n"
    out = run(world, "tools/apply.py", str(tree), "--check", "--reverse", code=2)
    assert "exclude each other" in out
    for look in ("--check", "--status"):
        out = run(world, "tools/apply.py", str(tree), look, "--dry-run", code=2)
        assert "--dry-run goes with applying and --reverse" in out
    for name in ("nowhere", "nowhere.whl", "nowhere.tar.gz"):
        out = run(world, "tools/lock.py", "--release", VERSION, "--source", name, code=2)
        assert out == f"bad usage: {name}: does not exist.\n"
    assert "No such option" in run(world, "tools/apply.py", str(tree), "--nonsense", code=2)
    found = document(run(world, "tools/apply.py", str(tree), "--nonsense", "--json", code=2))
    assert found["error"]["kind"] == "usage"

    (world.root / "short.whl").write_bytes(world.wheel.read_bytes()[:999])
    build = ("tools/build_wheel.py", "--release", VERSION)
    out = run(world, *build, "--wheel", "short.whl", code=4)
    assert out.startswith("integrity failure: short.whl: has sha256 ")
    out = run(world, *build, code=5)
    assert "out of reach or does not have it" in out
    assert f"put it into {world.root}/cache/" in out
    (world.root / "blocked").write_text("")
    out = run(world, *build, "--wheel", world.wheel.name, "--out", "blocked", code=5)
    assert out.startswith("failed: blocked/vllm-9.9.0+kimi.eagle3.4-")
    assert facts(tree) == before
    assert not (world.root / "dist").exists()


def test_build_wheel_and_lock(world: World) -> None:
    wheel = ("--wheel", world.wheel.name)
    build = ("tools/build_wheel.py", "--release", VERSION, *wheel)
    found = document(run(world, *build, "--json"))
    assert Path(world.root / found["wheel"]).is_file()
    assert found["version"] == "9.9.0+kimi.eagle3.4"
    assert last(run(world, *build)).startswith("nothing to do: dist/vllm-9.9.0+kimi.eagle3.4-")

    lock = ("tools/lock.py", "--release", VERSION, "--source", world.wheel.name)
    assert last(run(world, *lock, "--check")).startswith("nothing to do: ")
    path = world.root / "overlay" / f"v{VERSION}" / "vllm" / "extra" / "over.py"
    path.write_bytes(b"changed = 1\n")
    assert "is stale" in run(world, *lock, "--check", code=4)
    assert "is stale: overlay file: vllm/extra/over.py" in run(world, *build, code=4)
    assert last(run(world, *lock)).startswith("done and verified: ")
    assert last(run(world, *build)).startswith("done and verified: ")


@pytest.mark.parametrize("tool", ["apply", "build_wheel", "lock", "fetch"])
def test_help_names_the_exit_codes_and_imports_nothing_heavy(world: World, tool: str) -> None:
    text = run(world, f"tools/{tool}.py", "--help")
    assert "4 integrity failure" in " ".join(text.split()).replace("4 │", "4")
    code = f"import sys; sys.argv = ['x', '--help']; sys.path.insert(0, 'tools'); import {tool}"
    code += "; print(sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = run(world, "-c", code)
    for heavy in (
        "msgspec",
        "pydantic",
        "git",
        "unidiff",
        "installer",
        "requests",
        "pypi_simple",
        "patchset",
    ):
        assert f"'{heavy}'" not in loaded


@pytest.mark.parametrize("place", ["state", "journal", "series", "series.lock", "releases.toml"])
def test_what_the_system_refuses_is_an_environment_failure(world: World, place: str) -> None:
    """A folder where a file should be: refused to every user, also to root."""
    tree = world.tree("source")
    path = {
        "state": tree / ".vllm-kimi-eagle3" / "state.json",
        "journal": tree / ".vllm-kimi-eagle3" / "journal.json",
        "series": world.patches / "series",
        "series.lock": world.patches / "series.lock",
        "releases.toml": world.patches.parent / "releases.toml",
    }[place]
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)
    out = run(world, "tools/apply.py", str(tree), "--status", code=5)
    assert out.startswith(f"failed: {path}: ")
    assert out.count("\n") == 1
    found = document(run(world, "tools/apply.py", str(tree), "--json", "--status", code=5))
    assert found["error"]["kind"] == "environment"


def test_without_git_only_what_needs_it_fails(world: World) -> None:
    tree = str(world.tree("checkout"))
    alone = {"PATH": str(world.root / "nothing")}
    out = run(world, "tools/apply.py", tree, "--commit", code=5, environ=alone)
    assert "git cannot be run" in out
    assert "state: pristine" in run(world, "tools/apply.py", tree, "--status", environ=alone)
    (Path(tree) / "vllm" / "alpha.py").write_bytes(b"edited\n")
    out = run(world, "tools/apply.py", tree, "--status", code=5, environ=alone)
    assert "git, which could tell the release, cannot be run" in out
    named = ("tools/apply.py", tree, "--status", "--release", VERSION)
    assert "state: foreign" in run(world, *named, environ=alone)


def test_a_folder_that_is_gone(world: World) -> None:
    tool = str(world.root / "tools" / "apply.py")
    gone = world.root / "gone"
    code = f"import os, sys; os.mkdir({str(gone)!r}); os.chdir({str(gone)!r}); os.rmdir('.')"
    code = code.replace("os.rmdir('.')", f"os.rmdir({str(gone)!r})")
    code += f"; os.execv(sys.executable, [sys.executable, {tool!r}, '.', '--status'])"
    assert run(world, "-c", code, code=2).startswith("bad usage: ")


def test_a_python_that_answers_nonsense(world: World) -> None:
    python = world.root / "python"
    for answer in ('{"origin": 3, "copies": []}', '{"origin": null, "copies": [3]}', "[]"):
        python.write_text(f"#!/bin/sh\necho '{answer}'\n")
        python.chmod(0o755)
        out = run(world, "tools/apply.py", str(python), "--status", code=2)
        assert "is not a Python interpreter" in out


def test_a_lock_that_cannot_be_written_is_left_as_it_was(world: World) -> None:
    path = world.patches / "series.lock"
    old = path.read_bytes()
    path.write_bytes(old + b"\n")
    code = "import os, resource as r; r.setrlimit(r.RLIMIT_FSIZE, (99, 99)); "
    code += "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); import runpy, sys; "
    code += f"sys.argv = ['lock', '--release', '{VERSION}', '--source', '{world.wheel.name}']; "
    code += "sys.path.insert(0, 'tools'); sys.dont_write_bytecode = True; "
    code += "runpy.run_path('tools/lock.py', run_name='__main__')"
    before = sorted(world.patches.iterdir())
    assert "failed: " in run(world, "-c", code, code=5)
    assert path.read_bytes() == old + b"\n"
    assert sorted(world.patches.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "encoding"), [(b"n\xff", "utf-8"), ("\u00f1 \u00f6".encode(), "ascii")]
)
def test_names_that_cannot_be_printed(world: World, name: bytes, encoding: str) -> None:
    tree = world.tree("source", os.fsdecode(name))
    tool = ("tools/apply.py", str(tree))
    environ = {"PYTHONIOENCODING": encoding}
    assert last(run(world, *tool, environ=environ)).startswith("done and verified: ")
    found = document(run(world, *tool, "--status", "--json", environ=environ))
    assert found["tree"] == str(tree)
    (tree / "vllm" / "alpha.py").write_bytes(b"edited\n")
    assert "is foreign" in run(world, *tool, code=3, environ=environ)
    found = document(run(world, *tool, "--json", code=3, environ=environ))
    assert str(tree) in found["message"]


@pytest.mark.parametrize(
    ("broken", "more"),
    [
        ("pipe", []),
        ("pipe", ["--json"]),
        ("full", []),
        ("full", ["--json"]),
        ("full", ["--help"]),
        ("full", ["--nonsense", "--json"]),
    ],
)
def test_output_that_cannot_be_written(world: World, broken: str, more: list[str]) -> None:
    tree = world.tree("source")
    command = [sys.executable, str(world.root / "tools" / "apply.py"), str(tree), *more]
    if broken == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        end, out = os.pipe()
        os.close(end)
    done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    os.close(out)
    assert done.returncode == 5
    assert done.stderr.startswith("failed: the output cannot be written: ")
    assert done.stderr.count("\n") == 1
    written = (tree / ".vllm-kimi-eagle3" / "state.json").exists()
    assert written == (more in ([], ["--json"]))


SLOW = """\
import os, signal; os.kill(os.getpid(), signal.SIGINT)
import sys; sys.path.remove(os.path.dirname(__file__)); del sys.modules[__name__]
__import__(__name__)
"""
"""A package that gets Ctrl-C while it is imported, and then stands back for the real one."""


def interrupt_imports(world: World, *words: object, handler: signal.Handlers) -> tuple[str, int]:
    """Press Ctrl-C in the first import of a package; returns standard error and exit code."""
    (world.root / "slow").mkdir()
    for name in ("click", "msgspec"):
        (world.root / "slow" / f"{name}.py").write_text(SLOW)
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(world.root / "slow")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr, done.returncode


@pytest.mark.parametrize(
    "tool", sorted(p.name for p in TOOLS.glob("*.py") if "from cli import" in p.read_text())
)
def test_ctrl_c_while_starting_shows_no_traceback(world: World, tool: str) -> None:
    found = interrupt_imports(world, world.root / "tools" / tool, "--help", handler=signal.SIG_DFL)
    assert found == ("", -signal.SIGINT)


def test_ctrl_c_that_the_caller_ignores_stays_ignored(world: World) -> None:
    words = (world.root / "tools" / "apply.py", world.tree("source"), "--status")
    assert interrupt_imports(world, *words, handler=signal.SIG_IGN) == ("", 0)


def test_ctrl_c_later_is_told(world: World) -> None:
    code = "import os, signal, sys; sys.path.insert(0, 'tools'); sys.argv = ['x']\n"
    # As in a terminal: what a shell runs in the background is started with it ignored.
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); import cli\n"
    # The signal may come a moment after kill returns.
    code += "import time\n"
    code += "job = lambda _: [os.kill(os.getpid(), signal.SIGINT), time.sleep(60)]\n"
    code += "def command(): cli.execute('x', False, job)\n"
    code += "cli.run(cli.command(command), 'x')"
    assert run(world, "-c", code, code=130) == "failed: interrupted by the user\n"


def test_carrying_a_series_stops_and_resumes(world: World) -> None:
    pins = world.root / "patches" / "releases.toml"
    pins.write_text(pins.read_text() + "\n" + pins.read_text().replace(VERSION, "9.9.1"))
    new = world.tree("source", "new")
    alpha = new / "vllm" / "alpha.py"
    alpha.write_bytes(PRISTINE["vllm/alpha.py"].replace(b"alpha_3 = 3\n", b"alpha_3 = 4\n"))
    said = new / "vllm" / "_version.py"
    said.write_text(said.read_text().replace(VERSION, "9.9.1"))
    words = ["tools/rebase.py", "--from", VERSION, "--to", "9.9.1"]
    words += ["--from-source", str(world.tree("source")), "--to-source", str(new)]
    found = document(run(world, *words, "--json", code=3))
    assert (found["schema"], found["result"]) == ("vllm-kimi-eagle3/rebase/1", "conflict")
    assert [step["state"] for step in found["steps"]] == ["carried", "conflict"] + ["waiting"] * 2
    place = Path(found["work"]) / found["steps"][1]["name"] / "vllm" / "alpha.py"
    assert place.is_relative_to(world.root / "build")
    message = run(world, *words, code=3)
    assert f"refused: {place}:4: still has a conflict marker" in message
    place.write_bytes(alpha.read_bytes() + b"more = 1\n")
    assert "still" not in run(world, *words, code=3)  # the second patch wants the same line
    for item in Path(found["work"]).glob("0002-*/vllm/alpha.py"):
        item.write_bytes(alpha.read_bytes() + b"more = 1\nend = 1\n")
    assert last(run(world, *words)) == f"done and verified: 3 patches of {VERSION} carried to 9.9.1"
    assert "exists already" in run(world, *words, code=3)


def test_a_python_without_our_packages_is_told_which_to_take() -> None:
    tool = Path(__file__).resolve().parents[2] / "tools" / "apply.py"
    answer = subprocess.run(
        [sys.executable, "-S", str(tool), "--help"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 5
    assert "has no click" in answer.stderr
    assert "tools/bootstrap.py env requirements/tools.txt" in answer.stderr
    assert "Traceback" not in answer.stderr
