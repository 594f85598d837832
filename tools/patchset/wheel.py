"""An official wheel in, a patched wheel out: compiled members are copied unread."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from patchset.archive import (
    Archive,
    Member,
    NewMember,
    Progress,
    write_archive,
)
from patchset.checksum import Meanwhile, file_sha256
from patchset.errors import (
    Busy,
    EnvironmentFault,
    IntegrityFault,
    Refused,
    UsageFault,
)
from patchset.lock import SeriesLock, digest
from patchset.paths import PROVENANCE, VERSION_FILE
from patchset.project import Project
from patchset.provenance import AddedFile, AppliedPatch, PatchedFile, Provenance, Source
from patchset.record import Record
from patchset.releases import Artifact, Release
from patchset.series import Change, Series, changes
from patchset.version import replace_once, set_version

# Files of the package that are text in every artifact; anything else is compiled or generated.
TEXT_SUFFIXES = (".py", ".json")

_PIECE = 1 << 20  # bytes compared at once: two of them fit a processor's cache
WAIT = 60.0  # seconds for another process that builds the same wheel


@dataclass(frozen=True)
class BuiltWheel:
    """A patched and verified wheel. ``size`` in bytes; ``reused``: it was there already."""

    path: Path
    version: str
    sha256: str
    size: int
    digest: str
    source: Artifact
    reused: bool


def identify(source: Path, release: Release, progress: Progress | None = None) -> Artifact:
    """The pinned wheel that ``source`` is, by its sha256; else :class:`IntegrityFault`."""
    found = file_sha256(source, progress)
    artifact = release.by_sha256(found)
    if artifact is None:
        pins = ", ".join(f"{item.sha256} ({item.file})" for item in release.artifact)
        raise IntegrityFault(
            f"{source}: has sha256 {found}, which is no pinned artifact of vLLM "
            f"{release.version}; pinned are: {pins}",
            next_step="Leave out --wheel to fetch the pinned file, or give that file.",
        )
    if artifact.kind != "wheel":
        raise UsageFault(f"{source}: is the source archive {artifact.file}, not a wheel")
    return artifact


def wheel_changes(archive: Archive, series: Series, lock: SeriesLock | None) -> list[Change]:
    """What the series changes in an official wheel, checked against the lock if given."""
    for path in series.paths:
        if not path.endswith(TEXT_SUFFIXES):
            raise Refused(
                f"{path}: the series touches more than Python sources, and what is compiled from "
                "this file cannot be rebuilt in a wheel"
            )
        if lock and digest(archive.read(path)) != lock.paths[path].before:
            raise IntegrityFault(f"{archive.path}: {path} is not what series.lock was made from")
    found = changes(series.forward(archive.read), archive.read)
    for change in found:
        if lock and digest(change.after) != lock.expected(change.path, series.upto):
            raise IntegrityFault(f"{change.path}: the result is not what series.lock says")
    return found


def build_wheel(
    source: Path,
    project: Project,
    release: Release,
    *,
    out: Path,
    upto: int | None = None,
    progress: Progress | None = None,
) -> BuiltWheel:
    """Write the patched form of the pinned wheel ``source`` into the folder ``out``, verified.

    ``upto`` keeps only the first patches of the series. The result is the same byte for byte
    wherever and whenever it is built. Nothing is left in ``out`` unless everything was verified.
    """
    series = project.series(release.version, upto)
    lock = project.lock(release.version)
    version = release.local_version(upto)
    # Its size tells which pinned file it must be. Whether it is that file is found out while it is
    # copied, and always before the result gets its name.
    identified = Meanwhile(lambda: identify(source, release, progress))
    artifact = _of_size(source, release) or identified.result()
    try:
        with Archive(source) as archive:
            plan = _plan(archive, artifact, series, lock, version)
            target = out / artifact.file.replace(f"-{release.version}-", f"-{version}-", 1)
            with _temporary(target) as (temporary, stream):
                # Not synced: that would wait for half a gigabyte to reach the disk. After a power
                # cut the wheel may be cut off; no installer takes it then, and the next build
                # replaces it.
                write_archive(archive, plan, stream, progress)
                if identified.result() != artifact:
                    raise IntegrityFault(f"{source}: changed while it was read")
                sha256 = verify_wheel(temporary, target.name, archive, plan, progress)
                size = temporary.stat().st_size
                reused = target.is_file() and file_sha256(target) == sha256
                if not reused:
                    os.replace(temporary, target)
    except Exception:
        identified.result()  # of a file that is not the pinned one, no other fault counts
        raise
    return BuiltWheel(target, version, sha256, size, series.digest, artifact, reused)


def verify_wheel(
    built: Path,
    name: str,
    source: Archive,
    members: list[Member | NewMember],
    progress: Progress | None = None,
) -> str:
    """Check a built wheel against its plan and its source; returns its sha256.

    Opened anew: every member is there once, the copied ones equal the source's bytes, the written
    ones read back, RECORD is complete (read by ``installer``, not by us), and file name, METADATA,
    WHEEL and ``vllm/_version.py`` agree. The checksum is taken meanwhile.
    """
    hashed = Meanwhile(lambda: file_sha256(built, progress, "verifying"))
    with Archive(built) as archive:
        wanted = [item.name for item in members]
        if list(archive.members) != wanted:
            raise IntegrityFault(f"{built}: its members are not the planned ones")
        for item in members:
            if isinstance(item, NewMember) and archive.read(item.name) != item.content:
                raise IntegrityFault(f"{built}: {item.name}: does not read back as written")
            if isinstance(item, Member) and _facts(item) != _facts(archive.members[item.name]):
                raise IntegrityFault(f"{built}: {item.name}: its directory entry changed")
        _verify_names(archive, name)
        _verify_record(archive, source, members)
        _verify_bytes(archive, source, members)
    return hashed.result()


def _of_size(source: Path, release: Release) -> Artifact | None:
    """The only pinned wheel with the size of ``source``, if there is just one."""
    try:
        size = source.stat().st_size
    except OSError:
        return None
    found = [item for item in release.artifact if item.kind == "wheel" and item.size == size]
    return found[0] if len(found) == 1 else None


def _plan(
    archive: Archive, artifact: Artifact, series: Series, lock: SeriesLock, version: str
) -> list[Member | NewMember]:
    old_info = archive.dist_info
    new_info = old_info.replace(f"-{series.release}.", f"-{version}.", 1)
    found = {change.path: change for change in wheel_changes(archive, series, lock)}
    written: dict[str, bytes] = {
        path: change.after for path, change in found.items() if change.after is not None
    }
    stock = _need(archive, VERSION_FILE)
    written[VERSION_FILE] = set_version(stock, series.release, version, VERSION_FILE)

    body: list[Member | NewMember] = []
    for name, member in archive.members.items():
        if name.startswith(f"{old_info}/"):
            continue
        if name in written:
            mode = member.info.external_attr >> 16
            body.append(NewMember(name, written[name], mode or 0o100644))
        elif name not in found:
            body.append(member)
    body += [
        NewMember(name, content)
        for name, content in sorted(written.items())
        if name not in archive.members
    ]

    tags = artifact.file.removesuffix(".whl").split("-")[-3:]
    info: dict[str, bytes] = {}
    for name in archive.members:
        if name.startswith(f"{old_info}/") and not name.endswith(("/", "/RECORD")):
            info[name.removeprefix(f"{old_info}/")] = _need(archive, name)
    info["METADATA"] = _set_metadata(info["METADATA"], series.release, version)
    info["WHEEL"] = _set_tags(info["WHEEL"], tags)
    info[PROVENANCE] = _provenance(artifact, series, version, list(found.values())).dump()

    record = Record(_need(archive, f"{old_info}/RECORD"), f"{archive.path}: RECORD")
    for path in found:
        if found[path].after is None:
            record.remove(path)
    for path in [path for path in record.paths if path.startswith(f"{old_info}/")]:
        record.remove(path)
    for path, content in sorted(written.items()):
        record.put(path, content)
    for short, content in info.items():
        record.put(f"{new_info}/{short}", content)
    record.put_line(f"{new_info}/RECORD", f"{new_info}/RECORD,,")
    tail = [NewMember(f"{new_info}/{short}", content) for short, content in info.items()]
    tail.append(NewMember(f"{new_info}/RECORD", record.dump()))
    return [*body, *tail]


def _provenance(
    artifact: Artifact, series: Series, version: str, found: list[Change]
) -> Provenance:
    return Provenance(
        schema="vllm-kimi-eagle3/provenance/2",
        release=series.release,
        version=version,
        digest=series.digest,
        upto=series.upto,
        source=Source(file=artifact.file, sha256=artifact.sha256),
        patches=[
            AppliedPatch(
                name=patch.name,
                sha256=patch.sha256,
                subject=patch.subject,
                faults=list(patch.faults),
            )
            for patch in series.patches
        ],
        overlay=[AddedFile(path=item.path, sha256=item.sha256) for item in series.overlay],
        files=[PatchedFile(path=item.path, sha256=digest(item.after)) for item in found],
    )


def _set_metadata(content: bytes, old: str, new: str) -> bytes:
    headers, blank, body = content.decode().partition("\n\n")
    pattern = rf"^Version: {re.escape(old)}$"
    return (replace_once(headers, pattern, f"Version: {new}", "METADATA") + blank + body).encode()


def _set_tags(content: bytes, tags: list[str]) -> bytes:
    """vLLM's WHEEL says linux_x86_64 where the file name says manylinux: the name is right."""
    lines = [line for line in content.decode().splitlines() if line and line[:5] != "Tag: "]
    for python in tags[0].split("."):
        for abi in tags[1].split("."):
            lines += [f"Tag: {python}-{abi}-{machine}" for machine in tags[2].split(".")]
    return ("\n".join(lines) + "\n").encode()


def _need(archive: Archive, name: str) -> bytes:
    content = archive.read(name)
    if content is None:
        raise IntegrityFault(f"{archive.path}: has no {name}")
    return content


@contextmanager
def _temporary(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A file beside ``target`` that disappears unless it was renamed.

    Its name is always the same, so that one left by a killed run is used up by the next; the lock
    on it keeps a second run out, and ends with its process.
    """
    path = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path, target) as file:
            try:
                file.truncate(0)
                yield path, file
            finally:
                # Once renamed, the name may already be another run's.
                if _is_open(file, path):
                    path.unlink()
    except OSError as fault:
        raise EnvironmentFault(
            f"{target}: cannot be written: {fault.strerror or fault}",
            next_step="Choose another folder with --out, or make room there.",
        ) from fault


def _locked(path: Path, target: Path) -> BinaryIO:
    """Open ``path`` for this run alone, waiting up to :data:`WAIT` seconds for another one."""
    deadline = time.monotonic() + WAIT
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        file = os.fdopen(os.open(path, flags, 0o666), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Renamed between opening and locking? Then this is the other run's finished wheel.
            if _is_open(file, path):
                return file
        except BlockingIOError:
            pass
        file.close()
        if time.monotonic() >= deadline:
            raise Busy(
                f"{target}: another process is building this wheel",
                next_step="Wait until it has ended and run this again.",
            )
        time.sleep(0.05)


def _is_open(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _facts(member: Member) -> tuple[object, ...]:
    info = member.info
    return (
        info.CRC,
        info.file_size,
        info.compress_size,
        info.compress_type,
        info.external_attr,
        info.date_time,
        info.flag_bits,
        info.extra,
    )


def _verify_names(archive: Archive, name: str) -> None:
    from packaging.utils import canonicalize_name, parse_wheel_filename

    project, version, _, tags = parse_wheel_filename(name)
    folder = archive.dist_info
    metadata = _need(archive, f"{folder}/METADATA").decode()
    wheel = _need(archive, f"{folder}/WHEEL").decode()
    listed = set(re.findall(r"^Tag: (\S+)$", wheel, re.MULTILINE))
    meta_name = re.search(r"^Name: (\S+)$", metadata, re.MULTILINE)
    meta_version = re.search(r"^Version: (\S+)$", metadata, re.MULTILINE)
    code_version = re.search(
        r"^__version__ = version = '(.*)'$", _need(archive, VERSION_FILE).decode(), re.MULTILINE
    )
    said = [found[1] if found else None for found in (meta_version, code_version)]
    if (
        said != [str(version)] * 2
        or meta_name is None
        or canonicalize_name(meta_name[1]) != project
        or folder.removesuffix(".dist-info") != "-".join(name.split("-")[:2])
        or listed != {str(tag) for tag in tags}
    ):
        raise IntegrityFault(f"{name}: file name, METADATA, WHEEL and _version.py do not agree")


def _verify_record(archive: Archive, source: Archive, members: list[Member | NewMember]) -> None:
    from installer.records import RecordEntry, parse_record_file

    def parse(holder: Archive) -> dict[str, RecordEntry]:
        text = _need(holder, f"{holder.dist_info}/RECORD").decode()
        rows = parse_record_file(text.splitlines())
        return {row[0]: RecordEntry.from_elements(*row) for row in rows}

    entries, official = parse(archive), parse(source)
    files = {item.name for item in members if not item.name.endswith("/")}
    if odd := sorted(files ^ set(entries)):
        raise IntegrityFault(f"{archive.path}: RECORD and members differ: {', '.join(odd[:5])}")
    for item in members:
        if item.name.endswith(("/", ".dist-info/RECORD")):
            continue
        found = entries[item.name]
        if isinstance(item, NewMember):
            good = found.hash_ is not None and found.validate(item.content)
        else:
            good = found == official.get(item.name)
        if not good:
            raise IntegrityFault(f"{archive.path}: RECORD is wrong about {item.name}")


def _verify_bytes(archive: Archive, source: Archive, members: list[Member | NewMember]) -> None:
    """Each copied member, its header included, equals its source byte for byte.

    What lies between them are the written members, which were read back, and their headers and
    the directory, which :class:`Archive` checked.
    """
    target, origin = archive.file.fileno(), source.file.fileno()
    # Used again and again: new memory for each piece would cost more than reading it.
    found, wanted = bytearray(_PIECE), bytearray(_PIECE)
    spans = [
        (archive.members[item.name].offset, archive.members[item.name].end, item.offset)
        for item in members
        if isinstance(item, Member)
    ]
    for start, end, from_ in _joined(spans):
        at = start
        while at < end:
            size = os.preadv(target, [memoryview(found)[: end - at]], at)
            same = os.preadv(origin, [memoryview(wanted)[:size]], from_ + at - start) == size > 0
            # Behind a shorter piece both hold what they held before, and that was equal.
            if not same or found != wanted:
                raise IntegrityFault(f"{archive.path}: differs from its source at byte {at}")
            at += size


def _joined(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join neighbours (start, end, start in the source), so that reads are large."""
    joined: list[tuple[int, int, int]] = []
    for start, end, from_ in spans:
        if joined and joined[-1][1] == start and from_ - joined[-1][2] == start - joined[-1][0]:
            joined[-1] = (joined[-1][0], end, joined[-1][2])
        else:
            joined.append((start, end, from_))
    return joined
