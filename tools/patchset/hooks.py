"""Upstream's own formatters and linters, as the checkout's `.pre-commit-config.yaml` pins them.

They run through pre-commit, on the changed files, in a folder that holds the whole checkout. Where
the repositories that hold hooks are out of reach, hooks whose program is on the package index too
are taken from there at the same version, and the rest is named as not run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from patchset.errors import EnvironmentFault, IntegrityFault

CONFIG: Final = ".pre-commit-config.yaml"
# What each repository's own .pre-commit-hooks.yaml says of the hooks that look at Python files.
_PYTHON: Final = {"types_or": ["python", "pyi", "jupyter"], "require_serial": True}
_ON_INDEX: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "astral-sh/ruff-pre-commit": {
        "ruff": {"entry": "ruff check --force-exclude", **_PYTHON},
        "ruff-check": {"entry": "ruff check --force-exclude", **_PYTHON},
        "ruff-format": {"entry": "ruff format --force-exclude", **_PYTHON},
    },
    "crate-ci/typos": {
        "typos": {"entry": "typos", "args": ["--write-changes", "--force-exclude"]},
    },
}
_PACKAGE: Final = {"astral-sh/ruff-pre-commit": "ruff", "crate-ci/typos": "typos"}
_LINE: Final = re.compile(r"^(.+?)\.{3,}(\(.*\))?(Passed|Failed|Skipped)$", re.MULTILINE)
_BROKEN: Final = 3  # pre-commit's exit code for what is no finding of a hook
_ROUNDS: Final = 4
_SECONDS: Final = 1800  # one run, the first time with all environments to make

Result = Literal["passed", "fixed", "failed"]


@dataclass(frozen=True)
class Linted:
    """``hooks`` are those that had a file to look at; ``fixed`` ones changed it, and pass now.

    ``not_run`` names the others that could not be had, or says why none was run. ``output`` is what
    the last run printed.
    """

    hooks: dict[str, Result] = field(default_factory=dict)
    not_run: tuple[str, ...] = ()
    output: str = ""

    @property
    def failed(self) -> list[str]:
        """The hooks with findings that are left."""
        return [name for name, result in self.hooks.items() if result == "failed"]


Lint = Callable[[Path, Sequence[str]], Linted]


def lint(root: Path, paths: Sequence[str], python: Path, home: Path) -> Linted:
    """Run the hooks of the checkout at ``root`` on ``paths``, which have to be staged.

    ``python`` has pre-commit; ``home`` keeps the hooks' environments. Files that hooks change are
    staged, and the hooks run again, as one may undo what another one wants. Raises
    :class:`EnvironmentFault` if none can be run.
    """
    config = root / CONFIG
    if not config.is_file():
        return Linted(not_run=(f"the checkout has no {CONFIG}",))
    listed = _parsed(config, python)
    with tempfile.TemporaryDirectory() as folder:
        reduced = Path(folder) / "config.yaml"  # JSON is YAML
        asked, left_out = offline(listed, paths)
        reduced.write_text(json.dumps(asked))
        ways = [(config, ())] if _in_reach(listed) else []
        for way, not_run in [*ways, (reduced, left_out)]:
            said: list[str] = []
            while len(said) < _ROUNDS:
                before = _staged(root)
                status, output = _run(root, way, paths, python, home)
                said.append(output)
                if status in (0, _BROKEN) or _staged(root) == before:
                    break
            if status != _BROKEN:
                found, skipped = _results(said)
                return Linted(found, (*not_run, *skipped), said[-1])
    raise EnvironmentFault(
        f"the hooks of {CONFIG} cannot be run: {_last(said[-1])}",
        next_step=f"See {home / 'pre-commit.log'}, or give --no-lint and run them yourself.",
    )


def offline(config: dict[str, Any], paths: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``config`` without its remote repositories, and the names of the hooks that go with them."""
    repos: list[dict[str, Any]] = []
    left_out: list[str] = []
    for repo in config.get("repos", []):
        if repo["repo"] in ("local", "meta"):
            hooks = [hook for hook in repo["hooks"] if _concerned(hook, paths)]
        else:
            hooks = []
            known = "/".join(repo["repo"].removesuffix(".git").split("/")[-2:])
            for hook in repo["hooks"]:
                if given := _ON_INDEX.get(known, {}).get(hook["id"]):
                    version = re.sub(r"^v", "", str(repo["rev"]))
                    own = {"name": hook["id"], "language": "python", **given, **hook}
                    own["additional_dependencies"] = [f"{_PACKAGE[known]}=={version}"]
                    hooks.append(own)
                elif _concerned(hook, paths):
                    left_out.append(hook.get("name", hook["id"]))
        if hooks:
            repos.append({"repo": "local" if repo["repo"] != "meta" else "meta", "hooks": hooks})
    return {**config, "repos": repos}, tuple(left_out)


def _concerned(hook: dict[str, Any], paths: Sequence[str]) -> bool:
    """Whether one of ``paths`` may be the hook's: it costs an environment to find out by trying."""
    files = hook.get("files")
    return files is None or bool(hook.get("always_run")) or any(re.search(files, p) for p in paths)


def _parsed(config: Path, python: Path) -> dict[str, Any]:
    """The file as data: by the YAML of pre-commit's environment, which ours has not."""
    code = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"
    with config.open() as text:
        found = subprocess.run(
            [python, "-I", "-c", code], stdin=text, capture_output=True, text=True, check=False
        )
    if found.returncode:
        raise IntegrityFault(f"{CONFIG} of the checkout: {_last(found.stderr)}")
    data = json.loads(found.stdout)
    if not isinstance(data, dict) or not isinstance(data.get("repos"), list):
        raise IntegrityFault(f"{CONFIG} of the checkout: has no list of repos")
    return data


def _in_reach(config: dict[str, Any]) -> bool:
    """Whether the first repository of hooks answers; they all lie at the same place."""
    remote = [item["repo"] for item in config["repos"] if item["repo"] not in ("local", "meta")]
    if not remote:
        return True
    try:
        found = subprocess.run(
            ["git", "ls-remote", "--exit-code", remote[0], "HEAD"],
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return found.returncode == 0


def _run(
    root: Path, config: Path, paths: Sequence[str], python: Path, home: Path
) -> tuple[int, str]:
    """pre-commit's exit code and output."""
    command = [str(python), "-m", "pre_commit", "run", "--color", "never", "--config", str(config)]
    folders = [str(python.parent), os.environ.get("PATH", "")]
    environ = {
        **os.environ,
        "PRE_COMMIT_HOME": str(home),
        "PRE_COMMIT_NO_CONCURRENCY": "1",
        # A hook that asks for python3 in plain words gets one that has what vLLM's hooks import.
        "PATH": os.pathsep.join(folders),
    }
    try:
        found = subprocess.run(
            [*command, "--files", *paths],
            cwd=root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as fault:
        raise EnvironmentFault(f"the hooks of {CONFIG} took more than {_SECONDS} s") from fault
    return found.returncode, found.stdout


def _results(said: list[str]) -> tuple[dict[str, Result], list[str]]:
    """What each hook did that had a file of its kind, and those that ``SKIP`` leaves out."""
    *before, last = [_LINE.findall(output) for output in said]
    results: dict[str, Result] = {}
    skipped = []
    for name, why, word in last:
        if word != "Skipped":
            fixed = any((name, "", "Failed") in found for found in before)
            results[name] = "failed" if word == "Failed" else "fixed" if fixed else "passed"
        elif not why:
            skipped.append(f"{name} (SKIP)")
    return results, skipped


def _staged(root: Path) -> bytes:
    """Stage what was changed, and identify the result."""
    subprocess.run(["git", "add", "--update"], cwd=root, check=True, capture_output=True)
    return subprocess.run(["git", "write-tree"], cwd=root, check=True, capture_output=True).stdout


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"
