"""Measure a running server (--url), or these tools against what one would use without them."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli import click, command, execute, json_option, run

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.project import Project
    from patchset.releases import Release
    from patchset.report import BenchLine, Report
    from patchset.series import Patch

TOOLS = Path(__file__).resolve().parent

# Run in a child of its own, so that its peak memory is that of a rebuild and nothing else.
_REBUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from patchset.project import Project
from patchset.wheel import build_wheel
project = Project(Path(sys.argv[2]))
build_wheel(Path(sys.argv[3]), project, project.release(sys.argv[4]), out=Path(sys.argv[5]))
"""


@dataclass(frozen=True)
class Timing:
    """Wall time in seconds and peak memory in MiB of one finished command."""

    seconds: float
    peak: float


@command
@click.option("--release", required=True, help="Pinned vLLM version, e.g. 0.16.0.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, help="Take the best of so many runs."
)
@click.option("--quick", is_flag=True, help="Leave out wheel unpack/pack and the 2 GB wheel.")
@json_option
def bench(
    release: str,
    rounds: int,
    quick: bool,
    json: bool,
) -> None:
    """Time rebuilding, applying and looking, each against its alternative.

    With --url or --baseline-url it measures a running server: see --url x --help.
    """

    def job(progress: Progress) -> Report:
        from patchset.project import Project
        from patchset.report import BenchReport, schema

        project = Project.here()
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            # Warm is a start with compiled modules. Python keeps them unless told otherwise, as
            # containers often do.
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
            suite = Suite(project, project.release(release), Path(folder), rounds, progress)
            lines = [*suite.wheels(quick), *suite.trees(), *suite.start(), *suite.doctor()]
        missed = [line.name for line in lines if not line.met]
        return BenchReport(
            schema=schema("bench"),
            result="done",
            exit_code=0,
            message=f"measured, and beyond the limit: {', '.join(missed)}"
            if missed
            else "every figure within its limit",
            release=release,
            figures=lines,
        )

    execute("bench", json, job)


@dataclass
class Suite:
    """All measurements. ``work`` is a scratch folder with room for three wheels."""

    project: Project
    release: Release
    work: Path
    rounds: int
    progress: Progress

    def wheels(self, quick: bool) -> list[BenchLine]:
        """Rebuilding the official wheel."""
        from patchset.download import download

        source = download(self.release.find("wheel"), self.progress)
        out = self.work / "out"
        size = source.stat().st_size / 1e6
        ours = self._best(lambda: self._rebuild(self.project.root, source, out), out)
        copy = self._best(lambda: self._copy_and_hash(source), self.work / "copy")
        lines = [
            _line(
                "rebuild / (cp + sha256)",
                f"{size:.0f} MB wheel",
                ours.seconds,
                copy.seconds,
                at_most=2.0,
            ),
            _single("peak memory of a rebuild", f"{size:.0f} MB wheel", ours.peak, "MiB", 150),
        ]
        if quick:
            return lines
        slow = self._unpack_and_pack(source)
        lines.insert(
            0,
            _line(
                "wheel unpack + pack / rebuild",
                f"{size:.0f} MB wheel",
                slow,
                ours.seconds,
                at_least=40.0,
            ),
        )
        root, large = self._synthetic(source, 1900)
        big = self._rebuild(root, large, out)
        size = large.stat().st_size / 1e6
        lines.append(
            _single("peak memory of a rebuild", f"{size:.0f} MB wheel", big.peak, "MiB", 150)
        )
        for path in (large, out):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return lines

    def trees(self) -> list[BenchLine]:
        """Applying to a checkout, and looking at one."""
        from patchset.download import download

        with tarfile.open(download(self.release.find("sdist"), self.progress)) as archive:
            archive.extractall(self.work, filter="data")
        root = self.work / f"vllm-{self.release.version}"
        for words in (["init"], ["add", "-A"], ["commit", "-m", "release"]):
            _git(root, *words)
        folder = self.project.root / "patches" / self.release.directory
        patches = [str(folder / patch.name) for patch in self._patches()]
        tool = [sys.executable, str(TOOLS / "apply.py"), str(root)]
        ours, theirs, look = [], [], []
        for _ in range(self.rounds + 1):  # the first one warms the caches
            theirs.append(_timed(lambda: _git(root, "am", "-q", *patches)))
            _git(root, "reset", "-q", "--hard", "HEAD~" + str(len(patches)))
            ours.append(_timed(lambda: _run(tool)))
            look.append(_timed(lambda: _run([*tool, "--status"])))
            _run([*tool, "--reverse"])
        what = f"{len(patches)} patches, checkout"
        return [
            _line("apply / git am", what, min(ours[1:]), min(theirs[1:]), at_most=2.0),
            _single("status", "checkout, warm", min(look[1:]), "s", 0.3),
        ]

    def start(self) -> list[BenchLine]:
        """Starting a command."""
        tool = [sys.executable, str(TOOLS / "apply.py"), "--help"]
        runs = [_timed(lambda: _run(tool)) for _ in range(self.rounds + 1)]
        return [_single("apply --help", "warm", min(runs[1:]), "s", 0.3)]

    def doctor(self) -> list[BenchLine]:
        """The doctor on the headers of the real Kimi-K2.5 and a drafter for it."""
        from advice.synthetic import write_drafter, write_kimi

        target = write_kimi(self.work / "Kimi-K2.5")
        drafter = write_drafter(self.work / "Kimi-K25-eagle3")
        tool = [sys.executable, str(TOOLS / "doctor.py"), "--release", self.release.version]
        tool += ["--target", str(target), "--drafter", str(drafter), "--gpus", "8xB200"]
        runs = [_measured(tool, verdicts=True) for _ in range(self.rounds + 1)]
        what = "208,550 tensors in 64 files"
        return [
            _single("doctor", f"{what}, warm", min(run.seconds for run in runs[1:]), "s", 1),
            _single("peak memory of the doctor", what, max(run.peak for run in runs), "MiB", 150),
        ]

    def _patches(self) -> list[Patch]:
        return list(self.project.series(self.release.version).patches)

    def _best(self, job: Callable[[], Timing], leftover: Path) -> Timing:
        runs = []
        for _ in range(self.rounds):
            shutil.rmtree(leftover, ignore_errors=True)
            runs.append(job())
        shutil.rmtree(leftover, ignore_errors=True)
        return Timing(min(one.seconds for one in runs), max(one.peak for one in runs))

    def _rebuild(self, root: Path, source: Path, out: Path) -> Timing:
        words = [str(TOOLS), str(root), str(source), self.release.version, str(out)]
        return _measured([sys.executable, "-c", _REBUILD, *words])

    def _copy_and_hash(self, source: Path) -> Timing:
        target = self.work / "copy"
        target.mkdir()
        copy = _measured(["cp", str(source), str(target)])
        check = _measured(["sha256sum", str(source)])
        return Timing(copy.seconds + check.seconds, max(copy.peak, check.peak))

    def _unpack_and_pack(self, source: Path) -> float:
        """Seconds of what `wheel` does; patching in between would come on top."""
        folder = self.work / "unpacked"
        size = source.stat().st_size
        self.progress("wheel unpack and pack", 0, size)
        wheel = [sys.executable, "-m", "wheel"]
        unpack = _measured([*wheel, "unpack", str(source), "-d", str(folder)])
        pack = _measured([*wheel, "pack", str(next(folder.iterdir())), "-d", str(folder)])
        self.progress("wheel unpack and pack", size, size)
        shutil.rmtree(folder)
        return unpack.seconds + pack.seconds

    def _synthetic(self, source: Path, megabytes: int) -> tuple[Path, Path]:
        """A project that pins a wheel of that size: the touched files and one huge member."""
        root = self.work / "synthetic"
        for name in ("patches", "overlay"):
            if (self.project.root / name).is_dir():
                shutil.copytree(self.project.root / name, root / name)
        target = root / source.name
        touched = set(self.project.lock(self.release.version).paths)
        record: list[str] = []
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
            lines = {
                line.split(",")[0]: line for line in old.read(_record(old)).decode().splitlines()
            }
            for info in old.infolist():
                kept = info.filename in touched or info.filename == "vllm/_version.py"
                if kept or ".dist-info/" in info.filename:
                    record.append(lines[info.filename])
                    if not info.filename.endswith("/RECORD"):
                        new.writestr(info, old.read(info))
            chunk = os.urandom(1 << 20)
            digest = hashlib.sha256()
            with new.open(zipfile.ZipInfo("vllm/huge.bin"), "w") as stream:
                for _ in range(megabytes):
                    stream.write(chunk)
                    digest.update(chunk)
            raw = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
            record.insert(0, f"vllm/huge.bin,sha256={raw},{megabytes << 20}")
            new.writestr(_record(old), "\n".join(record) + "\n")
        self._pin(root, target)
        return root, target

    def _pin(self, root: Path, wheel: Path) -> None:
        from patchset.checksum import file_sha256

        pins = root / "patches" / "releases.toml"
        old = self.release.find("wheel")
        text = pins.read_text(encoding="utf-8").replace(old.sha256, file_sha256(wheel))
        pins.write_text(text.replace(str(old.size), str(wheel.stat().st_size)), encoding="utf-8")


def _record(archive: zipfile.ZipFile) -> str:
    return next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))


def _line(
    name: str,
    what: str,
    first: float,
    second: float,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> BenchLine:
    from patchset.report import BenchLine

    ratio = first / second
    met = (at_most is None or ratio <= at_most) and (at_least is None or ratio >= at_least)
    limit = f"at most {at_most:g}x" if at_most is not None else f"at least {at_least:g}x"
    return BenchLine(
        name=name,
        what=what,
        figure=round(ratio, 2),
        unit="x",
        limit=limit,
        met=met,
        seconds=[round(first, 3), round(second, 3)],
    )


def _single(name: str, what: str, figure: float, unit: str, at_most: float) -> BenchLine:
    from patchset.report import BenchLine

    return BenchLine(
        name=name,
        what=what,
        figure=round(figure, 3),
        unit=unit,
        limit=f"at most {at_most:g} {unit}",
        met=figure <= at_most,
        seconds=[],
    )


def _measured(command: list[str], *, verdicts: bool = False) -> Timing:
    from advice.checks import EXIT_CODES
    from patchset.errors import EnvironmentFault

    start = time.perf_counter()
    with tempfile.TemporaryFile() as noise:
        child = subprocess.Popen(command, stdout=noise, stderr=noise)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if child.returncode not in (EXIT_CODES.values() if verdicts else (0,)):
            noise.seek(0)
            said = noise.read().decode(errors="replace").strip().splitlines()[-1:]
            raise EnvironmentFault(
                f"{command[0]} ended with code {child.returncode}: {' '.join(said)}",
                next_step="The bench needs requirements/dev.txt (for the package wheel) and git.",
            )
    return Timing(seconds, usage.ru_maxrss / 1024)


def _timed(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def _run(command: list[str]) -> None:
    _measured(command)


def _git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.invalid"]
    _measured(["git", "-C", str(root), *identity, "-c", "gc.auto=0", *words])


if __name__ == "__main__":
    if any(word.partition("=")[0] in ("--url", "--baseline-url") for word in sys.argv[1:]):
        from bench_server import app

        run(app, "bench-server")
    run(bench, "bench")
