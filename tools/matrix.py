"""Every release × fault, and whether the facts about them are true of the real sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli import click, command, execute, json_option, run

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report


@command
@click.option("--release", "releases", multiple=True, help="Only this one; may be repeated.")
@click.option("--write", is_flag=True, help="Only write the tables and docker-bake.hcl anew.")
@click.option(
    "--new", is_flag=True, help="Only tell which releases the package index has beyond the pins."
)
@json_option
def matrix(releases: tuple[str, ...], write: bool, new: bool, json: bool) -> None:
    """Tell for each release which faults it has, which are patched, and if its series applies.

    Each pinned source is fetched, probed for each fault, patched in memory, and probed again. What
    contradicts patches/faults.toml or a series ends in exit code 4. --write needs no source. --new
    asks the index that pip is configured with, and prints the pins of what it finds.
    """

    def job(progress: Progress) -> Report:
        from patchset import matrix as library
        from patchset.download import download
        from patchset.errors import UsageFault
        from patchset.project import Project
        from patchset.report import matrix_report, new_report, tables_report
        from patchset.source import open_source

        if write + new + bool(releases) > 1:
            raise UsageFault("--write, --new and --release exclude each other")
        project = Project.here()
        if new:
            from patchset.index import new_releases, open_index

            with open_index() as index:
                return new_report(new_releases(index, project.releases, progress))
        facts = library.Matrix(project)
        if write:
            return tables_report(library.write(facts))
        found = []
        for pin in [project.release(item) for item in releases] or project.releases.release:
            with open_source(download(pin.pristine(), progress)) as read:
                found.append(library.examine(facts, pin.version, read))
        return matrix_report(facts, found)

    execute("matrix", json, job)


if __name__ == "__main__":
    run(matrix, "matrix")
