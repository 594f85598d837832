"""Carry the series of one pinned release to another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import execute, make_app, run

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report


def rebase(
    source: Annotated[str, typer.Option("--from", help="Pinned release that has a series.")],
    target: Annotated[str, typer.Option("--to", help="Pinned release that shall get one.")],
    from_source: Annotated[
        Path | None,
        typer.Option(help="Pristine source of --from; the pinned one is fetched if left out."),
    ] = None,
    to_source: Annotated[Path | None, typer.Option(help="The same for --to.")] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Where conflicts are left and looked for; build/rebase-… if left out."),
    ] = None,
    ask: Annotated[
        list[str] | None,
        typer.Option(help="Stop at this patch (0004) even if it merges; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing: say what would become of each patch.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
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
                ask=ask or (),
                dry_run=dry_run,
            )
        return rebase_report(outcome, old.version, new.version, dry_run=dry_run)

    execute("rebase", json, job)


if __name__ == "__main__":
    run(make_app(rebase), "rebase")
