#!/usr/bin/env python3
"""Virtual environments of this repository, made once and kept in the user's cache.

    bootstrap.py env requirements/tools.txt            prints that environment's Python
    bootstrap.py layer requirements/engine-0.16.0.txt WHEEL
    bootstrap.py clean [--all]

Standard library only, because it runs before anything is installed. Packages come from
wherever the user's own pip configuration says, and only with the hashes of the lock file.
Standard output carries the path of the Python, everything else goes to standard error.

Exit codes: 0 done, 2 bad usage (also: this Python is too old or too new), 4 a download does
not have its locked hash, 5 the machine is in the way (network, disk, permissions, pip),
130 interrupted.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - said before anything below can fail
    found = sys.version.split()[0]
    sys.stderr.write("bootstrap: Python 3.11 or newer is needed, this is " + found + "\n")
    sys.exit(2)

import argparse
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USAGE, INTEGRITY, ENVIRONMENT, INTERRUPTED = 2, 4, 5, 130
MARKER = "complete.json"  # written last: an environment without it is half-built
CPU_TORCH = ROOT / "requirements" / "torch-cpu.txt"
UNUSED_LAYER_DAYS = 14


class BootstrapError(Exception):
    """One sentence for the user, and the exit code that goes with it."""

    def __init__(self, message: str, exit_code: int = ENVIRONMENT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Needs:
    """What an environment asks of the machine: free bytes, and the first Python too new."""

    free_bytes: int
    python_below: tuple[int, int] | None


def needs_of(requirements: Path) -> Needs:
    """Engine environments carry torch with its CUDA libraries: 8 GB, plus pip's downloads."""
    if requirements.name.startswith("engine-"):
        return Needs(free_bytes=12 * 10**9, python_below=(3, 14))
    return Needs(free_bytes=10**9, python_below=None)


def cache_root() -> Path:
    """The folder in the user's cache that holds everything this repository downloads or makes."""
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):
        return Path(xdg) / "vllm-kimi-eagle3"
    try:
        home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    except KeyError as fault:
        raise BootstrapError("you have no home folder; set HOME or XDG_CACHE_HOME") from fault
    return Path(home) / ".cache" / "vllm-kimi-eagle3"


def say(message: str) -> None:
    """Tell the user something on standard error."""
    print(f"bootstrap: {message}", file=sys.stderr, flush=True)


def environment(requirements: Path) -> Path:
    """The Python of the environment locked in `requirements`, made first if it is missing.

    Raises BootstrapError.
    """
    try:
        content = requirements.read_bytes()
    except OSError as fault:
        raise BootstrapError(f"cannot read {requirements}: {fault.strerror}", USAGE) from fault
    needs = needs_of(requirements)
    if needs.python_below and sys.version_info[:2] >= needs.python_below:
        newest = f"{needs.python_below[0]}.{needs.python_below[1] - 1}"
        raise BootstrapError(
            f"{requirements.name} needs Python 3.11 to {newest}, "
            f"this is {platform.python_version()}; set PYTHON to one of those",
            USAGE,
        )
    target = _home("envs", content)
    described = {"requirements": requirements.name, "sha256": _sha256(content)}

    def build() -> None:
        _check_space(target.parent, needs.free_bytes, requirements.name)
        count = len(re.findall(rb"^[A-Za-z0-9_.-]+==", content, re.MULTILINE))
        say(f"making the environment of {requirements.name} ({count} packages) in {target}")
        _make_venv(Path(sys.executable), target, pip=True)
        # The lock is complete, and pip before 23.3 takes no pin for a package with extras.
        command = ["-m", "pip", "install", "--require-hashes", "--no-deps", "-r"]
        python, log = _python(target), target.with_suffix(".log")
        with tempfile.TemporaryDirectory() as folder:
            listed = requirements
            if _names_torch_of(CPU_TORCH, content):
                with contextlib.suppress(BootstrapError):
                    _run_pip(python, [*command, str(CPU_TORCH)], log, 1)
                    listed = Path(folder) / requirements.name
                    listed.write_text(_without_torch(content.decode()))
            _run_pip(python, [*command, str(listed)], log, count)

    return _once(target, described, build)


def _names_torch_of(cpu_torch: Path, lock: bytes) -> bool:
    """Whether `lock` pins the very torch of which `cpu_torch` pins the CPU build."""
    pin = re.compile(rb"^torch==[^ +]+", re.MULTILINE)
    wanted, offered = pin.search(lock), pin.search(cpu_torch.read_bytes())
    return bool(wanted and offered and wanted[0] == offered[0])


def _without_torch(lock: str) -> str:
    """The lock less torch and less CUDA's libraries, which only torch's CUDA build needs."""
    entries = re.findall(r"^\S.*(?:\n[ \t].*)*", lock, re.MULTILINE)
    left_out = ("torch==", "nvidia-", "cuda-")
    return "\n".join(entry for entry in entries if not entry.startswith(left_out)) + "\n"


def layer(base: Path, wheel: Path) -> Path:
    """The Python of an environment that has `wheel`, and sees all packages of `base` behind it.

    `base` is a requirements file. The wheel's own dependencies are not looked at: the base
    is there to hold them. Raises BootstrapError.
    """
    base_python = environment(base)
    try:
        digest = _sha256(wheel.read_bytes())
    except OSError as fault:
        raise BootstrapError(f"cannot read {wheel}: {fault.strerror}", USAGE) from fault
    base_home = base_python.parent.parent
    target = _home("layers", f"{base_home.name} {digest}".encode())
    described = {"base": base_home.name, "wheel": wheel.name, "wheel_sha256": digest}

    def build() -> None:
        _check_space(target.parent, 10**9, wheel.name)
        say(f"installing {wheel.name} over {base.name} in {target}")
        _make_venv(base_python, target, pip=False)
        # addsitedir, not a bare path: the base's own .pth files have to run as well.
        line = f"import site; site.addsitedir({str(_site_packages(base_home))!r})\n"
        (_site_packages(target) / "base.pth").write_text(line)
        command = ["-m", "pip", "--python", str(_python(target)), "install"]
        # No bytecode: the engine is run with its cache elsewhere.
        command += ["--no-index", "--no-deps", "--no-compile", str(wheel.resolve())]
        _run_pip(base_python, command, target.with_suffix(".log"), 1)

    return _once(target, described, build)


def site_packages(python: Path) -> Path:
    """Where the packages are of a Python that `environment` or `layer` returned."""
    return _site_packages(python.parent.parent)


def clean(everything: bool = False) -> dict[Path, int]:
    """Remove what this checkout does not ask for from the cache; returns it with its bytes.

    That is environments of other requirements, half-built ones, layers whose base went, layers
    unused for two weeks; downloads of files that are not pinned, wheels of other releases or
    revisions, what was unpacked from or compiled for others, and checkpoints of another stand-in.
    With `everything`, all of that. What another process is making at the moment is left alone.
    """
    wanted = {_sha256(path.read_bytes()) for path in ROOT.glob("requirements/*.txt")}
    kept: set[str] = set()
    removed: dict[Path, int] = {}
    for kind in ("envs", "layers"):
        for home in sorted((cache_root() / kind).glob("*/")):
            marker = home / MARKER
            described = _read_marker(home)
            if kind == "envs":
                keep = described.get("sha256") in wanted
            else:
                fresh = marker.exists() and _age_days(marker) < UNUSED_LAYER_DAYS
                keep = fresh and described.get("base") in kept
            if keep and not everything:
                kept.add(home.name)
                continue
            with contextlib.suppress(BlockingIOError), _lock(home, wait=False):
                removed[home] = _size(home)
                _remove(home)
                home.with_suffix(".log").unlink(missing_ok=True)
    for path in _unasked(everything):
        removed[path] = _size(path)
        _remove(path)
    return removed


def _unasked(everything: bool) -> Iterator[Path]:
    """What lies in the cache beside environments and is not asked for (`everything`: at all)."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from standin.engine import MADE_BY, makers_sha256

    pins = tomllib.loads((ROOT / "patches" / "releases.toml").read_text("utf-8"))["release"]
    pinned = {item["sha256"] for pin in pins for item in pin["artifact"]}
    ours = {f"{pin['version']}+kimi.eagle3.{pin['revision']}" for pin in pins}
    built = [
        path
        for path in (cache_root() / "wheels").glob("*.whl")
        if re.sub(r"\.upto\d+$", "", path.name.split("-")[1]) in ours
    ]
    trees = {sha256[:16] for sha256 in (*pinned, *(_sha256(p.read_bytes()) for p in built))}
    made = (cache_root() / "checkpoints").glob(f"*{MADE_BY}")
    checkpoints = {path.name for path in made if path.read_text() == makers_sha256()}
    asked = {
        "downloads": pinned,
        "wheels": {path.name for path in built},
        "trees": trees | {f"{name}-tests" for name in trees},
        "vllm": trees | {"site-packages"},
        "checkpoints": checkpoints | {name.removesuffix(MADE_BY) for name in checkpoints},
        # Of the hooks of any checkout of vLLM, so that nobody knows which ones go unused.
        "pre-commit": {path.name for path in (cache_root() / "pre-commit").glob("*")},
    }
    for kind, names in asked.items():
        for path in sorted((cache_root() / kind).glob("*")):
            unfinished = path.name.startswith(("part-", ".")) and _age_days(path) < 1
            if not unfinished and (everything or path.name not in names):
                yield path


def _home(kind: str, content: bytes) -> Path:
    """Where the environment of this content, for this Python on this platform, has its place."""
    python = f"{sys.implementation.name} {platform.python_version()} {sysconfig.get_platform()}"
    return cache_root() / kind / _sha256(content + b"\0" + python.encode())[:16]


def _once(target: Path, described: dict[str, str], build: Callable[[], None]) -> Path:
    """Run `build` unless `target` is complete already; one process at a time."""
    python = _python(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target, wait=True):
            marker = _read_marker(target)
            if marker and _works(python) and _is_whole(target, marker):
                os.utime(target / MARKER)
                return python
            _remove(target)
            build()
            temporary = target / (MARKER + ".tmp")
            holds = sorted(_installed(target))
            temporary.write_text(json.dumps({**described, "holds": holds}) + "\n")
            temporary.replace(target / MARKER)
            return python
    except OSError as fault:
        if fault.errno == errno.ENOSPC:
            raise BootstrapError(f"the disk that holds {target.parent} is full") from fault
        raise BootstrapError(
            f"cannot write {fault.filename or target}: {fault.strerror}"
        ) from fault


@contextlib.contextmanager
def _lock(target: Path, wait: bool) -> Iterator[None]:
    with open(target.with_suffix(".lock"), "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
            say(f"waiting for another process that is making {target}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _read_marker(home: Path) -> dict[str, object]:
    try:
        marker = json.loads((home / MARKER).read_text())
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}


def _works(python: Path) -> bool:
    """Whether it still starts: an environment dies with the interpreter it was made from."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


def _installed(home: Path) -> set[str]:
    """What stands in its site-packages: one or more folders and files for each package."""
    try:
        return set(os.listdir(_site_packages(home))) - {"__pycache__"}
    except FileNotFoundError:
        return set()


def _is_whole(home: Path, marker: dict[str, object]) -> bool:
    """Whether nothing that was installed is gone. Older markers do not tell what that was."""
    holds = marker.get("holds", [])
    return isinstance(holds, list) and _installed(home).issuperset(holds)


def _make_venv(interpreter: Path, target: Path, pip: bool) -> None:
    command = [str(interpreter), "-I", "-m", "venv", str(target)]
    command += [] if pip else ["--without-pip"]
    done = subprocess.run(command, capture_output=True, text=True, env=_clean_environ())
    if done.returncode:
        _remove(target)
        output = done.stdout + done.stderr
        if "ensurepip" in output:
            raise BootstrapError(
                f"{interpreter} cannot make virtual environments; install its venv package "
                "(python3-venv on Debian and Ubuntu) or set PYTHON to another one"
            )
        raise BootstrapError(f"python -m venv failed: {_last_line(output)}")


def _run_pip(python: Path, arguments: list[str], log: Path, count: int) -> None:
    """Run pip, its whole output in `log`, a line of progress now and then on standard error."""
    command = [str(python), "-I", *arguments, "--no-input", "--disable-pip-version-check"]
    collected = 0
    with (
        open(log, "w") as kept,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_clean_environ(),
        ) as pip,
    ):
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                kept.write(line)
                collected += line.startswith("Collecting ")
                size = re.search(r"\((\d{3,}\.\d MB|[\d.]+ GB)\)\s*$", line)
                if line.lstrip().startswith("Downloading ") and size:
                    name = Path(line.split()[1]).name
                    say(f"[{collected}/{count}] downloading {name} ({size[1]})")
                elif line.startswith("Installing collected") and count > 1:
                    say(f"[{count}/{count}] unpacking; this takes minutes for a large environment")
                elif line.startswith("Collecting ") and collected % 25 == 0:
                    say(f"[{collected}/{count}] packages found")
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        raise _explain(log)


def _explain(log: Path) -> BootstrapError:
    """The reason for pip's failure, in a sentence, read from its log."""
    text = log.read_text(errors="replace")
    kept = f"; pip's own words: {log}"
    if "DO NOT MATCH THE HASHES" in text:
        return BootstrapError(
            "a downloaded package does not have the hash of the lock file" + kept, INTEGRITY
        )
    if "No space left on device" in text:
        return BootstrapError("the disk is full" + kept)
    unreachable = (
        r"NewConnectionError|NameResolutionError|name resolution|ConnectTimeout|ReadTimeout"
        r"|ProxyError|Connection refused|Network is unreachable|Max retries exceeded"
        r"|connection broken|SSLError"
    )
    if re.search(unreachable, text):
        return BootstrapError("the package index cannot be reached" + kept)
    if "(constraint)" in text:
        return BootstrapError("a constraint in your pip configuration forbids the lock file" + kept)
    missing = re.search(r"No matching distribution found for (\S+)", text)
    if missing:
        where = f"Python {platform.python_version()} on {sysconfig.get_platform()}"
        # pip says no more than this when it may not retry (PIP_RETRIES=0).
        doubt = "is out of reach or " if "(from versions: none)" in text else ""
        return BootstrapError(f"the package index {doubt}has no {missing[1]} for {where}" + kept)
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
    return BootstrapError(f"pip failed: {_last_line(chr(10).join(errors) or text)}" + kept)


def _clean_environ() -> dict[str, str]:
    """The user's environment less what would make pip write elsewhere than into the target."""
    unwanted = {"PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT", "PIP_PYTHON"}
    unwanted |= {"PYTHONHOME", "PYTHONPATH", "PIP_DRY_RUN", "PIP_QUIET", "__PYVENV_LAUNCHER__"}
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def _check_space(folder: Path, needed: int, name: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BootstrapError(
            f"{name} needs {needed / 1e9:.0f} GB free in {folder}, there are {free / 1e9:.1f} GB; "
            "free some, or set XDG_CACHE_HOME to another disk"
        )


def _remove(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        folder.unlink()
        return
    # The marker first: if the rest is interrupted, what is left counts as half-built.
    (folder / MARKER).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    places = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(place.lstat().st_size for place in places)


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def _site_packages(home: Path) -> Path:
    return home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _age_days(path: Path) -> float:
    return (time.time() - path.stat().st_mtime) / 86400


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bootstrap.py", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    env = commands.add_parser("env", help="make the environment of a lock file, print its Python")
    env.add_argument("requirements", type=Path)
    over = commands.add_parser("layer", help="one wheel over the environment of a lock file")
    over.add_argument("requirements", type=Path)
    over.add_argument("wheel", type=Path)
    tidy = commands.add_parser("clean", help="remove from the cache what is not asked for")
    tidy.add_argument("--all", action="store_true", help="remove every one of them")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "env":
            print(environment(options.requirements))
        elif options.command == "layer":
            print(layer(options.requirements, options.wheel))
        else:
            removed = clean(options.all)
            for path, size in removed.items():
                say(f"removed {path} ({size / 1e6:.1f} MB)")
            total = sum(removed.values())
            say(f"{total / 1e6:.1f} MB removed" if removed else "nothing to remove")
    except BootstrapError as fault:
        say(str(fault))
        return fault.exit_code
    except KeyboardInterrupt:
        say("interrupted; what was half-built is made anew the next time")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
