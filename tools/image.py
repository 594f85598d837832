"""Build an image: vLLM's own of a release, with the series, checked at each start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli import click, command, execute, json_option, run, say

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.image import Program
    from patchset.report import Report


@command
@click.option("--release", help="Pinned vLLM version, e.g. 0.16.0.")
@click.option("--base", help="Base image; vLLM's own of the release if left out.")
@click.option("--tag", help="Name of the image; vllm-kimi-eagle3:VERSION if left out.")
@click.option(
    "--engine",
    type=click.Choice(["docker", "podman", "buildah"]),
    help="What builds it; the first that works if left out.",
)
@click.option("--arch", help="x86_64 or aarch64; what the base here is, or this machine's.")
@click.option("--context", is_flag=True, help="Only put into build/ what the Dockerfile needs.")
@json_option
def image(
    release: str | None,
    base: str | None,
    tag: str | None,
    engine: Program | None,
    arch: str | None,
    context: bool,
    json: bool,
) -> None:
    """Build the image of RELEASE, with docker, podman or buildah.

    The build itself fetches nothing but the base, and fails with the reason when the base is not
    an untouched vLLM of that release.
    """

    def job(progress: Progress) -> Report:
        from patchset import image as library
        from patchset.errors import UsageFault
        from patchset.project import Project
        from patchset.report import ImageReport, Report, schema

        project = Project.here()
        if context:
            message = f"{library.stage(project.root)} is ready for docker build and bake"
            return Report(schema=schema("image"), result="done", exit_code=0, message=message)
        if release is None:
            raise UsageFault("--release is missing", next_step="Name a pinned release.")
        pin = project.release(release)
        project.lock(release)  # refuses a release without a series, before anything is fetched
        program = library.choose(engine)
        found = library.find_base(program, base or pin.image, arch)
        given = library.arguments(project, pin, found)
        name = tag or f"{library.NAME}:{library.tag_of(pin)}"
        library.stage(project.root)
        words = library.command(program, project.root, given, name, arch)
        library.build(words, lambda line: say(line, error=True))
        return ImageReport(
            schema=schema("image"),
            result="done",
            exit_code=0,
            message=f"{name} has {found.name} and patch set {given['PATCH_SET'][:12]}",
            release=pin.version,
            engine=program,
            image=name,
            base=found.name,
            base_digest=found.digest,
            patch_set=given["PATCH_SET"],
        )

    execute("image", json, job)


if __name__ == "__main__":
    run(image, "image")
