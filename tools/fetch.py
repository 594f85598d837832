"""Fetch a pinned artifact into the cache and print where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cli import execute, make_app, run, typer

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report


def fetch(
    release: Annotated[str, typer.Option(help="Pinned vLLM version, e.g. 0.16.0.")],
    kind: Annotated[Literal["wheel", "sdist"], typer.Option(help="Kind of artifact.")] = "wheel",
    flavour: Annotated[
        Literal["cuda", "cpu"], typer.Option(help="Which build of the wheel: official or CPU.")
    ] = "cuda",
    arch: Annotated[
        str | None, typer.Option(help="x86_64 or aarch64; this machine's if left out.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Fetch a pinned artifact of RELEASE, check its sha256 and print its path."""

    def job(progress: Progress) -> Report:
        from patchset.download import download
        from patchset.project import Project
        from patchset.report import FetchReport, schema

        artifact = Project.here().release(release).find(kind, flavour, arch)
        path = download(artifact, progress)
        return FetchReport(
            schema=schema("fetch"),
            result="done",
            exit_code=0,
            message=str(path),
            release=release,
            file=artifact.file,
            path=str(path),
            sha256=artifact.sha256,
        )

    execute("fetch", json, job)


if __name__ == "__main__":
    run(make_app(fetch), "fetch")
