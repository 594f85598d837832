"""What stands on the page besides figures: the patch set that was measured, the doctor's word."""

from __future__ import annotations

from pathlib import Path

import msgspec

from advice.checks import report_of
from advice.examine import examine
from advice.setup import Setup
from measure.client import Client
from measure.report import VerdictReport
from measure.server import Server
from patchset.errors import IntegrityFault, PatchsetError
from patchset.project import Project
from patchset.provenance import Provenance

IMAGE = Path("/opt/vllm-kimi-eagle3/image.json")  # see tools/patchset/container.py


class _Note(msgspec.Struct, frozen=True):
    """The part of ``image.json`` that counts here; the version is a tag, which has no ``+``."""

    version: str
    patch_set: str


def patch_set(
    server: Server, client: Client, given: str | None, image: Path = IMAGE
) -> tuple[str | None, str]:
    """The digest of the patch set that the server runs, and who told; ``None``: nobody knows.

    The server tells its version only. The digest is that of an install beside us which has the
    same version: the vLLM of ``client``, or that of the image in which we run.
    """
    if given is not None:
        return given, "--patch-set"
    if server.version is None:
        return None, "unknown: the server tells no version; --patch-set names it"
    if "+kimi." not in server.version:
        return None, f"vLLM {server.version} is no patched wheel of ours by its version"
    if client.provenance is not None:
        try:
            noted = Provenance.load(client.provenance.encode(), str(client.python))
        except IntegrityFault:
            return None, "unknown: kimi_eagle3.json beside the client's vLLM is damaged"
        if noted.version == server.version:
            return noted.digest, f"kimi_eagle3.json beside the client's vLLM {noted.version}"
    try:
        note = msgspec.json.decode(image.read_bytes(), type=_Note)
    except (OSError, msgspec.DecodeError):
        note = None
    if note is not None and note.version == server.version.replace("+", "-"):
        return note.patch_set, f"image.json of the image, vLLM {note.version}"
    return None, (
        f"unknown: neither the client's vLLM ({client.version}) nor an image here is the server's "
        f"{server.version}; --patch-set names it"
    )


def verdict(
    project: Project, server: Server, target: str | None, drafter: str | None, gpus: str | None
) -> tuple[VerdictReport | None, str | None]:
    """What the doctor says of the pair, or the reason why it says nothing.

    ``target`` is what the server names as its checkpoint, unless given.
    """
    if drafter is None:
        return None, "not asked: a server does not tell its drafter; give it with --drafter"
    if server.version is None:
        return None, "not asked: the server tells no version"
    release, _, local = server.version.partition("+")
    setup = Setup(
        release=release,
        stock=not local.startswith("kimi."),
        gpus=gpus,
        num_speculative_tokens=server.draft_tokens,
    )
    try:
        found = examine(project, target or server.root, drafter, setup)
    except PatchsetError as fault:
        return None, f"no answer: {fault.message}"
    checks = [report_of(check) for check in found.checks if check.level != "pass"]
    passed = len(found.checks) - len(checks)
    message = f"{found.pair.rules.name}: {passed} questions passed, {len(checks)} to look at"
    return VerdictReport(verdict=found.verdict, message=message, checks=checks), None
