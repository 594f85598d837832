"""Apply the series of a pinned release to a checkout, a source folder, an install or a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cli import click, command, execute, json_option, run

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report


@command
@click.argument("tree", type=click.Path(path_type=Path))
@click.option("--release", help="The release, where the tree does not tell.")
@click.option("--check", is_flag=True, help="Write nothing: exit 0 if it would apply, 3 if not.")
@click.option("--status", is_flag=True, help="Write nothing: tell the state of the tree.")
@click.option("--reverse", is_flag=True, help="Give the original files back.")
@click.option("--commit", is_flag=True, help="Also commit, one commit per patch, on a new branch.")
@click.option("--branch", help="Name of that branch; kimi-eagle3/vRELEASE if left out.")
@click.option("--upto", type=click.IntRange(min=0), help="Only the first N patches of the series.")
@click.option(
    "--expect", help="With --status: exit 3 unless this patch set (its digest) is applied."
)
@click.option("--dry-run", is_flag=True, help="Write nothing: say what would be written.")
@json_option
def apply(
    tree: Path,
    release: str | None,
    check: bool,
    status: bool,
    reverse: bool,
    commit: bool,
    branch: str | None,
    upto: int | None,
    expect: str | None,
    dry_run: bool,
    json: bool,
) -> None:
    """Apply the patches of vLLM's release to TREE: all of them, or none and the reason why.

    TREE is a git checkout, an unpacked source archive, site-packages, an environment, a Python
    executable, or a wheel (its patched form is written beside it).
    """

    def job(progress: Progress) -> Report:
        from patchset import operations
        from patchset.errors import UsageFault
        from patchset.project import Project
        from patchset.report import tree_report
        from patchset.tree import open_tree

        if check + status + reverse > 1:
            raise UsageFault("--check, --status and --reverse exclude each other")
        if (commit or branch) and (check or status or reverse):
            raise UsageFault("--commit and --branch go with applying only")
        if dry_run and (check or status):
            raise UsageFault("--dry-run goes with applying and --reverse; --check writes nothing")
        if expect is not None and not status:
            raise UsageFault("--expect goes with --status")
        if branch and not commit:
            raise UsageFault("--branch needs --commit")
        project = Project.here()
        with open_tree(tree) as place:
            if status:
                outcome = operations.inspect(place, project, release, upto=upto)
                if expect is not None:
                    operations.require(outcome, expect)
            elif check:
                outcome = operations.check(place, project, release, upto=upto)
            elif reverse:
                outcome = operations.reverse(place, project, release, upto=upto, dry_run=dry_run)
            else:
                outcome = operations.apply(
                    place,
                    project,
                    release,
                    upto=upto,
                    commit=commit,
                    branch=branch,
                    dry_run=dry_run,
                    progress=progress,
                )
            return tree_report(outcome)

    execute("apply", json, job)


if __name__ == "__main__":
    run(apply, "apply")
