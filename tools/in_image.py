"""The steps of the Dockerfile, run by the Python of the base image; nothing is fetched."""

from __future__ import annotations

import sys
from importlib.util import find_spec

# Said before anything below can fail: the base decides which Python and packages there are.
_needed = ("click", "msgspec", "packaging")
_lacks = [name for name in _needed if find_spec(name) is None]
if sys.version_info < (3, 11):  # noqa: UP036
    _lacks = ["Python 3.11 or newer"]
if _lacks:
    sys.stderr.write(f"refused: {sys.executable} of the base lacks {', '.join(_lacks)}\n")
    sys.exit(3)

from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from cli import click, command, execute, json_option, run  # noqa: E402

if TYPE_CHECKING:
    from patchset.archive import Progress
    from patchset.report import Report

# Where tools/image.py puts what the base lacks. Behind all else: it must not shadow anything.
sys.path.append(str(Path(__file__).resolve().parents[1] / "build" / "image"))


@click.group(context_settings={"show_default": True})
def in_image() -> None:
    """Turn the vLLM of a base image into a patched one, from inside."""


@command
@click.argument("user")
@json_option
def user(user: str, json: bool) -> None:
    """Refuse unless the base image runs as USER, a name or a number, perhaps with :GROUP."""

    def job(progress: Progress) -> Report:
        from patchset.container import require_user
        from patchset.report import Report, schema

        require_user(user)
        message = f"the base runs as {user}"
        return Report(schema=schema("in-image"), result="state", exit_code=0, message=message)

    execute("in-image", json, job)


@command
@click.option("--release", required=True, help="The release that the base has.")
@click.option("--base", required=True, help="Name of the base image.")
@click.option("--digest", required=True, help="Digest of the base image.")
@click.option("--patch-set", required=True, help="Digest of the patch set, as in series.lock.")
@click.option("--version", required=True, help="Version of the image.")
@click.option("--entrypoint", required=True, help="Entry point of the base, a JSON list.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("/opt/vllm-kimi-eagle3"),
    help="Where to put what the image keeps of ours.",
)
@json_option
def build(
    release: str,
    base: str,
    digest: str,
    patch_set: str,
    version: str,
    entrypoint: str,
    out: Path,
    json: bool,
) -> None:
    """Apply the series to this Python's vLLM, verify, compile, import, and note it all in --out."""

    def job(progress: Progress) -> Report:
        from patchset.container import build, parse_entrypoint
        from patchset.project import Project
        from patchset.report import Report, schema

        note = build(
            Project.here(),
            Path(sys.executable),
            release,
            base=base,
            base_digest=digest,
            patch_set=patch_set,
            version=version,
            entrypoint=parse_entrypoint(entrypoint),
            out=out,
        )
        message = f"{len(note.patches)} patches in {note.tree}, {len(note.imported)} modules import"
        return Report(schema=schema("in-image"), result="done", exit_code=0, message=message)

    execute("in-image", json, job)


in_image.add_command(user)
in_image.add_command(build)

if __name__ == "__main__":
    run(in_image, "in-image")
