"""Fetch a pinned artifact into the cache and print where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cli import click, command, execute, json_option, run

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report


@command
@click.option("--release", required=True, help="Pinned vLLM version, e.g. 0.16.0.")
@click.option(
    "--kind", type=click.Choice(["wheel", "sdist"]), default="wheel", help="Kind of artifact."
)
@click.option(
    "--flavour",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    help="Which build of the wheel: official or CPU.",
)
@click.option("--arch", help="x86_64 or aarch64; this machine's if left out.")
@json_option
def fetch(
    release: str,
    kind: Literal["wheel", "sdist"],
    flavour: Literal["cuda", "cpu"],
    arch: str | None,
    json: bool,
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
    run(fetch, "fetch")
