"""Turn an official vLLM wheel into a patched one, without compiling anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cli import click, command, execute, json_option, run

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report


@command
@click.option("--release", required=True, help="Pinned vLLM version, e.g. 0.16.0.")
@click.option(
    "--wheel",
    type=click.Path(path_type=Path),
    help="The official wheel; fetched through pip if left out.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("dist"),
    help="Folder for the patched wheel.",
)
@click.option(
    "--flavour",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    help="Which build to fetch: official or CPU.",
)
@click.option("--arch", help="x86_64 or aarch64; this machine's if left out.")
@click.option("--upto", type=click.IntRange(min=0), help="Only the first N patches of the series.")
@json_option
def build_wheel(
    release: str,
    wheel: Path | None,
    out: Path,
    flavour: Literal["cuda", "cpu"],
    arch: str | None,
    upto: int | None,
    json: bool,
) -> None:
    """Write the patched form of the pinned wheel of RELEASE, and verify it."""

    def job(progress: Progress) -> Report:
        from patchset.download import download
        from patchset.project import Project
        from patchset.report import WheelReport, schema
        from patchset.wheel import build_wheel as build

        project = Project.here()
        pin = project.release(release)
        series = project.series(release, upto)
        source = wheel or download(pin.find("wheel", flavour, arch), progress)
        built = build(source, project, pin, out=out, upto=upto, progress=progress)
        return WheelReport(
            schema=schema("build-wheel"),
            result="nothing-to-do" if built.reused else "done",
            exit_code=0,
            message=f"{built.path} ({built.size / 1e6:.1f} MB, sha256 {built.sha256})",
            wheel=str(built.path),
            version=built.version,
            sha256=built.sha256,
            size=built.size,
            digest=built.digest,
            source=built.source.file,
            source_sha256=built.source.sha256,
            patches=[patch.name for patch in series.patches],
        )

    execute("build-wheel", json, job)


if __name__ == "__main__":
    run(build_wheel, "build-wheel")
