"""``kimi_eagle3.json`` in a patched wheel's dist-info: what was made from what."""

from __future__ import annotations

from typing import Literal, Self

import msgspec

from patchset.errors import IntegrityFault
from patchset.paths import PROVENANCE, noted_path
from patchset.releases import Sha256, Strict


class Source(Strict, frozen=True):
    """The official artifact that was patched."""

    file: str
    sha256: Sha256


class AppliedPatch(Strict, frozen=True):
    """A patch and the faults it cures."""

    name: str
    sha256: Sha256
    subject: str
    faults: list[str]


class AddedFile(Strict, frozen=True):
    """An overlay file, by the path where it landed."""

    path: str
    sha256: Sha256


class PatchedFile(Strict, frozen=True):
    """A file that the patch set changes, adds or (``None``) deletes, as the wheel holds it."""

    path: str
    sha256: Sha256 | None

    def __post_init__(self) -> None:
        noted_path(self.path)


class Provenance(Strict, frozen=True):
    """The file's schema. It holds no time and no place, so that builds are reproducible.

    The first schema had no ``files``; wheels that carry it are still understood.
    """

    schema: Literal["vllm-kimi-eagle3/provenance/1", "vllm-kimi-eagle3/provenance/2"]
    release: str
    version: str
    digest: Sha256
    upto: int | None
    source: Source
    patches: list[AppliedPatch]
    overlay: list[AddedFile]
    files: list[PatchedFile] | None = None

    def __post_init__(self) -> None:
        if (self.files is None) != self.schema.endswith("/1"):
            raise ValueError("files are a part of schema 2, and of no other")

    @property
    def known(self) -> dict[str, str | None]:
        """The sha256 of each file that the patch set touches, as far as this tells."""
        listed = self.overlay if self.files is None else self.files
        return {item.path: item.sha256 for item in listed}

    @classmethod
    def load(cls, content: bytes, where: str) -> Self:
        """Read the file; :class:`IntegrityFault` if it is not one of ours."""
        try:
            return msgspec.json.decode(content, type=cls)
        except msgspec.DecodeError as fault:
            raise IntegrityFault(f"{where}: {PROVENANCE} is damaged") from fault

    def dump(self) -> bytes:
        """The bytes of the file."""
        return self.as_json(indent=2) + b"\n"
