"""Carry the series of one pinned release to another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cli import click, command, execute, json_option, run

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report


@command
@click.option("--from", "source", required=True, help="Pinned release that has a series.")
@click.option("--to", "target", required=True, help="Pinned release that shall get one.")
@click.option(
    "--from-source",
    type=click.Path(path_type=Path),
    help="Pristine source of --from; the pinned one is fetched if left out.",
)
@click.option("--to-source", type=click.Path(path_type=Path), help="The same for --to.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    help="Where conflicts are left and looked for; build/rebase-… if left out.",
)
@click.option(
    "--ask", multiple=True, help="Stop at this patch (0004) even if it merges; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Write nothing: say what would become of each patch.")
@json_option
def rebase(
    source: str,
    target: str,
    from_source: Path | None,
    to_source: Path | None,
    work: Path | None,
    ask: tuple[str, ...],
    dry_run: bool,
    json: bool,
) -> None:
    """Merge each patch of one release onto another, with both pinned sources as bases.

    Stops at the first conflict and leaves its files; edit them and call the same again.
    """

    def job(progress: Progress) -> Report:
        from patchset.carry import carry
        from patchset.download import download
        from patchset.project import Project
        from patchset.report import rebase_report
        from patchset.source import open_source

        project = Project.here()
        old, new = project.release(source), project.release(target)
        place = work or project.root / "build" / f"rebase-{old.version}-{new.version}"
        with (
            open_source(from_source or download(old.pristine(), progress)) as read_old,
            open_source(to_source or download(new.pristine(), progress)) as read_new,
        ):
            outcome = carry(
                project,
                old.version,
                new.version,
                read_old,
                read_new,
                place,
                ask=ask,
                dry_run=dry_run,
            )
        return rebase_report(outcome, old.version, new.version, dry_run=dry_run)

    execute("rebase", json, job)


if __name__ == "__main__":
    run(rebase, "rebase")
