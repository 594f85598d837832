"""Build an image of a release with docker, podman or buildah: what there is to know outside of it.

What happens inside is :mod:`patchset.container`, and the Dockerfile holds the two together.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, get_args

from patchset.errors import EnvironmentFault, IntegrityFault, PatchsetError, Refused, UsageFault
from patchset.project import Project
from patchset.releases import Release

Program = Literal["docker", "podman", "buildah"]
PROGRAMS: Final = get_args(Program)
NAME: Final = "vllm-kimi-eagle3"
BAKE: Final = "docker-bake.hcl"
STAGE: Final = "build/image"  # in the build context: what the base lacks
# Pure Python, of the locked environment that runs this; vLLM itself depends on all else.
_PACKAGES: Final = ("unidiff",)
# Asks each program for something that needs it to work, not just to be there.
_ALIVE: Final[dict[Program, list[str]]] = {
    "docker": ["docker", "version"],
    "podman": ["podman", "info"],
    "buildah": ["buildah", "info"],
}
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
# How the steps inside end, whatever the program puts before the line.
_FAILURE: Final = re.compile(r"(bad usage|refused|integrity failure|failed): (.+)")
_FAULTS: Final[dict[str, type[PatchsetError]]] = {
    "bad usage": UsageFault,
    "refused": Refused,
    "integrity failure": IntegrityFault,
    "failed": EnvironmentFault,
}


@dataclass(frozen=True)
class Base:
    """A base image. ``digest`` is ``sha256:`` and 64 digits, ``user`` never empty."""

    name: str
    digest: str
    user: str
    entrypoint: list[str]


def choose(named: Program | None) -> Program:
    """The program that builds: the named one, or the first that works."""
    for program in [named] if named else PROGRAMS:
        try:
            if subprocess.run(_ALIVE[program], capture_output=True, check=False).returncode == 0:
                return program
        except OSError:
            continue
    missing = f"{named} does" if named else "none of docker, podman and buildah does"
    raise EnvironmentFault(
        f"{missing} not work here", next_step="Install one of them, or start its daemon."
    )


def tag_of(release: Release) -> str:
    """The version of an image as a tag, e.g. ``0.16.0-kimi.eagle3.1``: no ``+`` is allowed."""
    return release.local_version().replace("+", "-")


def stage(root: Path) -> Path:
    """Put what the base lacks into the build context below ``root``; returns its folder."""
    folder = root / STAGE
    copy_packages(folder)
    return folder


def copy_packages(folder: Path) -> None:
    """Put the packages that vLLM does not bring into ``folder``, with their licences."""
    kept = shutil.ignore_patterns("__pycache__")
    for name in _PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise EnvironmentFault(f"{sys.executable} lacks {name}", next_step="Use make image.")
        package = Path(spec.origin).parent
        # With its dist-info, which holds its licence.
        for source in (package, *package.parent.glob(f"{name}-*.dist-info")):
            shutil.rmtree(folder / source.name, ignore_errors=True)
            shutil.copytree(source, folder / source.name, ignore=kept)


def find_base(program: Program, image: str, arch: str | None) -> Base:
    """The base image, fetched if it is not there, or if another machine's is wanted."""
    name, _, digest = image.partition("@")
    inspect = [program, "inspect", "--type", "image", image]
    if program != "buildah":
        inspect = [program, "image", "inspect", image]
    found = None if arch else _answer(inspect)
    if found is None:
        pull = [program, "pull", *_platform(arch), image]
        done = subprocess.run(pull, stdout=sys.stderr, check=False)
        found = _answer(inspect)
        if done.returncode or found is None:
            step = "See its message above; --base names another image."
            if program != "docker" and not re.match(r"localhost/|[^/]*[.:][^/]*/", image):
                step = (
                    f"See its message above: where no search registry is configured, {program} "
                    f"wants the registry as well: --base REGISTRY/{image}."
                )
            raise EnvironmentFault(f"{image}: {program} cannot fetch it", next_step=step)
    data = json.loads(found)
    data = data[0] if isinstance(data, list) else data
    config = (data.get("OCIv1", {}).get("config") if program == "buildah" else data["Config"]) or {}
    return Base(
        name=name,
        digest=digest or _digest(data, name, program),
        user=config.get("User") or "0",
        entrypoint=config.get("Entrypoint") or ["vllm", "serve"],
    )


def _digest(data: dict[str, Any], name: str, program: Program) -> str:
    """Of the manifest as it lies in the registry, where docker knows that; else of what is here."""
    bare = re.sub(r":[^/:]*$", "", name)
    for item in data.get("RepoDigests") or []:
        where, _, digest = item.partition("@")
        if where == bare or where.endswith(f"/{bare}"):
            return str(digest)
    if digest := data.get("Digest") or data.get("FromImageDigest"):
        return str(digest)
    raise Refused(
        f"{name}: {program} knows no digest of it: it was built here and never pushed",
        next_step="Push it to a registry, or build with podman or buildah.",
    )


def arguments(project: Project, release: Release, base: Base) -> dict[str, str]:
    """The build arguments of the Dockerfile."""
    return {
        "VLLM_RELEASE": release.version,
        "BASE_IMAGE": base.name,
        "BASE_DIGEST": base.digest,
        "BASE_USER": base.user,
        "BASE_ENTRYPOINT": json.dumps(base.entrypoint),
        "PATCH_SET": project.lock(release.version).digest,
        "IMAGE_VERSION": tag_of(release),
    }


def command(
    program: Program, root: Path, given: dict[str, str], tag: str, arch: str | None
) -> list[str]:
    """The words that build an image ``tag`` from the Dockerfile of ``root``."""
    words = [program, "build", "--file", str(root / "Dockerfile"), "--tag", tag, *_platform(arch)]
    # That isolation, of buildah and podman, shares the network of the machine and takes no other.
    if program == "docker" or os.environ.get("BUILDAH_ISOLATION") != "chroot":
        words += ["--network", "none"]
    if program != "docker":
        # SELinux would keep the build from reading its own context, without a word why. Layers
        # are podman's cache: an image for each step, which some storage copies in whole.
        words += ["--security-opt", "label=disable", "--layers=false"]
    for name, value in given.items():
        words += ["--build-arg", f"{name}={value}"]
    return [*words, str(root)]


def build(words: list[str], say: Callable[[str], None]) -> None:
    """Run ``command``, passing on what it says; its reason becomes the fault that is raised."""
    last = ""
    environ = {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"}
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environ,
    ) as running:
        assert running.stdout is not None
        reason = None
        for line in running.stdout:
            say(line.rstrip("\n"))
            last = line.strip() or last
            # The first: the program repeats the end of the output in its own words.
            reason = reason or _FAILURE.search(line)
    if running.returncode:
        if reason and reason[2].startswith("unexpected"):
            raise PatchsetError(f"the image was not built: {reason[2]}")
        if reason:
            raise _FAULTS[reason[1]](f"the image was not built: {reason[2]}")
        raise EnvironmentFault(f"{words[0]} ended with {running.returncode}: {last}")


def _platform(arch: str | None) -> list[str]:
    return ["--platform", f"linux/{_MACHINES.get(arch, arch)}"] if arch else []


def _answer(words: list[str]) -> str | None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def bake(project: Project) -> str:
    """``docker-bake.hcl``: a target for each release that has a series."""
    items = []
    for version in project.releases.versions:
        if project.has_series(version):
            release = project.release(version)
            digest = project.lock(version, check=False).digest
            items.append(
                f'    {{ release = "{version}", base = "{release.image}", '
                f'version = "{tag_of(release)}",\n      patch_set = "{digest}" }},'
            )
    names = ", ".join(
        f'"{target_of(version)}"'
        for version in project.releases.versions
        if project.has_series(version)
    )
    return _BAKE.replace("@ITEMS@", "\n".join(items)).replace("@NAMES@", names)


def target_of(version: str) -> str:
    """The name of a release's target, e.g. ``v0_16_0``."""
    return "v" + version.replace(".", "_")


_BAKE = """\
# Written by `make table`: do not edit by hand. See docs/image.md.
#
#   make image-context
#   BASE_DIGEST=sha256:... docker buildx bake v0_16_0
#
# The digest is that of the base image, for all machines:
#   docker buildx imagetools inspect vllm/vllm-openai:v0.16.0 \\
#     --format '{{printf "%s" .Manifest.Digest}}'

variable "BASE_DIGEST" {
  default = ""
}

variable "REPOSITORY" {
  default = "vllm-kimi-eagle3"
}

group "default" {
  targets = [@NAMES@]
}

target "image" {
  name = "v${replace(item.release, ".", "_")}"
  matrix = { item = [
@ITEMS@
  ] }
  context   = "."
  platforms = ["linux/amd64", "linux/arm64"]
  tags      = ["${REPOSITORY}:${item.version}"]
  network   = "none"
  args = {
    VLLM_RELEASE  = item.release
    BASE_IMAGE    = item.base
    BASE_DIGEST   = BASE_DIGEST
    PATCH_SET     = item.patch_set
    IMAGE_VERSION = item.version
  }
}
"""
