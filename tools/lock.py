"""Write or check series.lock, the checksums before and after a series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cli import click, command, execute, json_option, run

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report


@command
@click.option("--release", required=True, help="Pinned vLLM version, e.g. 0.16.0.")
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    help="Pristine source: a wheel, an sdist (file or folder) or a checkout; "
    "the pinned sdist, or else the CPU build, is fetched if left out.",
)
@click.option("--check", is_flag=True, help="Write nothing; fail if the lock is stale.")
@json_option
def lock(
    release: str,
    source: Path | None,
    check: bool,
    json: bool,
) -> None:
    """Apply the series of RELEASE in memory to its pristine source and write series.lock.

    Patches that are equal in several releases become links to the oldest of them.
    """

    def job(progress: Progress) -> Report:
        from patchset import links
        from patchset.download import download
        from patchset.errors import IntegrityFault
        from patchset.lock import compute_lock
        from patchset.paths import write_whole
        from patchset.project import Project
        from patchset.report import LockReport, schema
        from patchset.source import open_source, require_release

        project = Project.here()
        pin = project.release(release)
        series = project.series(release)
        with open_source(source or download(pin.pristine(), progress)) as read:
            require_release(read, project, pin.version)
            computed = compute_lock(series, read)
        path = project.lock_path(pin)
        text = computed.dump()
        same = path.is_file() and path.read_bytes() == text.encode()
        if check and not same:
            raise IntegrityFault(
                f"{path}: is stale", next_step=f"Write it with tools/lock.py --release {release}."
            )
        folder = project.root / "patches"
        copies = [f"{item.parent.name}/{item.name}" for item in links.equal(folder)]
        if check and copies:
            raise IntegrityFault(
                f"{copies[0]}: is a copy of an older release's patch, or a link to a later one's",
                next_step=f"Let tools/lock.py --release {release} make the links.",
            )
        if not same:
            write_whole(path, text)
        linked = links.link(folder)
        return LockReport(
            schema=schema("lock"),
            result="nothing-to-do" if same and not copies else "done",
            exit_code=0,
            message=f"{path} ({len(computed.paths)} paths, digest {computed.digest})"
            + (f"; links now: {', '.join(linked)}" if linked else ""),
            release=release,
            lock=str(path),
            digest=computed.digest,
            patches=[patch.name for patch in series.patches],
            paths=list(computed.paths),
            linked=linked,
        )

    execute("lock", json, job)


if __name__ == "__main__":
    run(lock, "lock")
