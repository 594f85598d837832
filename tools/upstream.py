"""A patch of ours for upstream as a branch and a pull request, and what upstream has already."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cli import EXIT_CODES, click, execute, json_option, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchset.archive import Progress
    from patchset.report import Report


@click.group(epilog=EXIT_CODES, context_settings={"show_default": True})
def upstream() -> None:
    """Prepare a patch for a pull request to vLLM, or tell what a source has of each patch.

    Nothing is ever pushed.
    """


repo_option = click.option(
    "--repo", type=click.Path(path_type=Path, exists=True), help="A git checkout of vLLM."
)
onto_option = click.option("--onto", help="The commit of it that is meant; HEAD if left out.")


@upstream.command()
@click.argument("patch")
@click.option(
    "--repo",
    type=click.Path(path_type=Path, exists=True),
    required=True,
    help="A git checkout of vLLM.",
)
@click.option("--onto", default="HEAD", help="The commit that the branch starts from.")
@click.option("--release", help="Take that release's form of the patch; else the newest one.")
@click.option("--branch", help="Name of the branch; kimi-eagle3/NNNN-slug if left out.")
@click.option("--assisted-by", multiple=True, help="A tool to name in a trailer; may be repeated.")
@click.option("--no-lint", is_flag=True, help="Do not run the checkout's own hooks.")
@click.option("--dry-run", is_flag=True, help="Change nothing: say what would be done.")
@json_option
def prepare(
    patch: str,
    repo: Path,
    onto: str,
    release: str | None,
    branch: str | None,
    assisted_by: tuple[str, ...],
    no_lint: bool,
    dry_run: bool,
    json: bool,
) -> None:
    """Carry PATCH (0004, its slug or its file) onto a commit of vLLM, as a branch with one commit.

    Files, index and HEAD of the checkout stay as they are. The checkout's own hooks run on the
    changed files, and the pull request's text is left in build/upstream-NNNN/pr.md. Exit code 10:
    prepared, but a hook or a probe still finds something.
    """

    def job(progress: Progress) -> Report:
        import bootstrap
        from patchset import hooks
        from patchset import upstream as library
        from patchset.download import download
        from patchset.errors import EnvironmentFault
        from patchset.faults import load_faults
        from patchset.paths import PACKAGE
        from patchset.project import Project
        from patchset.pull import writer
        from patchset.report import prepare_report
        from patchset.source import open_source

        def lint(root: Path, paths: Sequence[str]) -> hooks.Linted:
            if no_lint:
                return hooks.Linted(not_run=("all of them (--no-lint)",))
            try:
                python = bootstrap.environment(bootstrap.ROOT / "requirements" / "dev.txt")
            except bootstrap.BootstrapError as fault:
                raise EnvironmentFault(str(fault)) from fault
            return hooks.lint(root, paths, python, bootstrap.cache_root() / "pre-commit")

        project = Project.here()
        proposal = library.find(project, patch, release)
        faults = load_faults(project.root / "patches" / "faults.toml")
        checkout = library.Repository(repo)
        newest = project.release(project.releases.versions[-1])
        own = project.release(proposal.series.release)
        folders = (PACKAGE, *library.BESIDE)
        with (
            open_source(download(own.pristine(), progress)) as read_source,
            open_source(download(newest.pristine(), progress), folders) as read_newest,
        ):
            made = library.prepare(
                proposal,
                checkout,
                onto,
                faults=faults,
                read_source=read_source,
                read_newest=read_newest,
                place=project.root / "build" / f"upstream-{proposal.slug[:4]}",
                lint=lint,
                body=writer(project.root, faults),
                branch=branch,
                trailers=[f"Assisted-by: {name}" for name in assisted_by],
                dry_run=dry_run,
            )
        return prepare_report(made, proposal)

    execute("upstream-prepare", json, job)


@upstream.command()
@repo_option
@onto_option
@click.option("--pinned", help="Look at this pinned release instead of a checkout.")
@click.option("--release", help="The patches of that release; of the newest one if left out.")
@json_option
def status(
    repo: Path | None, onto: str | None, pinned: str | None, release: str | None, json: bool
) -> None:
    """Tell for each patch if a checkout, or a pinned release, has its effect and may drop it.

    Without --repo the newest pinned release is looked at.
    """

    def job(progress: Progress) -> Report:
        from contextlib import ExitStack

        from patchset import upstream as library
        from patchset.download import download
        from patchset.errors import UsageFault
        from patchset.faults import load_faults
        from patchset.project import Project
        from patchset.report import upstream_status_report
        from patchset.source import open_source

        if repo and pinned:
            raise UsageFault("--repo and --pinned exclude each other")
        if onto is not None and repo is None:
            raise UsageFault("--onto names a commit of --repo, which is not given")
        project = Project.here()
        have = [item for item in project.releases.versions if project.has_series(item)]
        own = project.release(release or have[-1])
        series = project.series(own.version)
        faults = load_faults(project.root / "patches" / "faults.toml")
        with ExitStack() as stack:
            opened = partial(stack.enter_context)
            read_source = opened(open_source(download(own.pristine(), progress)))
            if repo:
                checkout = library.Repository(repo)
                commit, read = checkout.vllm_at("HEAD" if onto is None else onto)
                target = commit[:12]
            else:
                pin = project.release(pinned or project.releases.versions[-1])
                read = opened(open_source(download(pin.pristine(), progress)))
                target = pin.version
            found = [
                library.standing(library.Proposal(series, patch), faults, target, read_source, read)
                for patch in series.patches
            ]
        return upstream_status_report(found, own.version, target)

    execute("upstream-status", json, job)


if __name__ == "__main__":
    run(upstream, "upstream")
