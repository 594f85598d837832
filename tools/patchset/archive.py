"""ZIP archives read and written without inflating the members that stay as they are.

``zipfile`` reads the directory; everything else is checked here, because a member is copied with
its own local header: both headers must agree, and members must fill the file without gap or
overlap. New members are stored, not deflated: zlib and zlib-ng make different bytes of the same
input, and the output must be the same on every machine.
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from patchset.errors import IntegrityFault, Refused, UnsafePath

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in all)."""

CHUNK = 1 << 22
MAX_MEMBERS = 60_000  # below the ZIP64 limit; vLLM's wheels have 2,000
MAX_INFLATED = 1 << 26  # of a member that is read: 64 MiB, when Python files have under 1
_LIMIT = (1 << 32) - (1 << 24)  # no ZIP64 here: offsets and sizes fit 32 bits

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_UTF8 = 0x800
_EPOCH = (0, (1 << 5) | 1)  # DOS time and date of 1980-01-01 00:00, for members written here
_UNIX = 3 << 8 | 20


@dataclass(frozen=True)
class Member:
    """One member. ``offset``, ``data``, ``end``: positions of its header, its data and its end."""

    info: zipfile.ZipInfo
    offset: int
    data: int
    end: int

    @property
    def name(self) -> str:
        """Its path, with ``/``."""
        return self.info.filename


@dataclass(frozen=True)
class NewMember:
    """A member to write. ``mode`` is the Unix file mode with its type bits."""

    name: str
    content: bytes
    mode: int = 0o100644


class Archive:
    """A ZIP file open for reading, with every header checked.

    Raises :class:`IntegrityFault` for a broken file, :class:`Refused` for features that no wheel
    needs (encryption, data descriptors, ZIP64) and :class:`UnsafePath` for names that lead out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file: BinaryIO = path.open("rb")
        except OSError as fault:
            raise IntegrityFault(f"{path}: cannot be read: {fault.strerror}") from fault
        try:
            self._zip = zipfile.ZipFile(self.file)
            self.members = self._check()
        except (
            zipfile.BadZipFile,
            struct.error,
            EOFError,
            ValueError,
            NotImplementedError,
        ) as fault:
            self.file.close()
            raise IntegrityFault(
                f"{path}: is not a complete ZIP archive: {fault}",
                next_step="Fetch the file again; it may have been cut off.",
            ) from fault
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def dist_info(self) -> str:
        """The name of a wheel's only dist-info folder."""
        names = {name.split("/")[0] for name in self.members if ".dist-info/" in name}
        if len(names) != 1:
            raise IntegrityFault(f"{self.path}: has {len(names)} dist-info folders, not one")
        return names.pop()

    def close(self) -> None:
        """Close the file."""
        self._zip.close()
        self.file.close()

    def read(self, name: str) -> bytes | None:
        """The inflated content of a member, checked against its CRC; ``None`` if there is none."""
        member = self.members.get(name)
        if member is None:
            return None
        info = member.info
        if info.file_size > MAX_INFLATED:
            raise Refused(f"{self.path}: {name}: inflates to {info.file_size} bytes, too many")
        raw = os.pread(self.file.fileno(), info.compress_size, member.data)
        try:
            if info.compress_type == zipfile.ZIP_STORED:
                content = raw
            else:
                inflater = zlib.decompressobj(-zlib.MAX_WBITS)
                # One byte more than declared is enough to see that there is more.
                content = inflater.decompress(raw, info.file_size + 1)
                if not inflater.eof or inflater.unused_data:
                    raise zlib.error("its data does not end where the headers say")
        except zlib.error as fault:
            raise IntegrityFault(f"{self.path}: {name}: is damaged: {fault}") from fault
        if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
            raise IntegrityFault(
                f"{self.path}: {name}: its CRC or size is not what the headers say"
            )
        return content

    def _check(self) -> dict[str, Member]:
        size = os.fstat(self.file.fileno()).st_size
        infos = self._zip.infolist()
        if len(infos) > MAX_MEMBERS:
            raise Refused(f"{self.path}: has {len(infos)} members, more than {MAX_MEMBERS}")
        if size > _LIMIT:
            raise Refused(f"{self.path}: has {size} bytes; 4 GiB and more (ZIP64) is not handled")
        if self._zip.comment:
            raise Refused(f"{self.path}: has an archive comment, which no wheel has")
        members: dict[str, Member] = {}
        position = 0
        for info in sorted(infos, key=lambda item: item.header_offset):
            member = self._member(info)
            if member.name in members:
                raise Refused(f"{self.path}: has two members named {member.name}")
            if member.offset != position:
                raise Refused(
                    f"{self.path}: {member.name}: starts at byte {member.offset} instead of "
                    f"{position}: members overlap or leave a gap"
                )
            members[member.name] = member
            position = member.end
        if position != self._zip.start_dir:
            raise Refused(f"{self.path}: has bytes between its members and its directory")
        return members

    def _member(self, info: zipfile.ZipInfo) -> Member:
        where = f"{self.path}: {info.orig_filename!r}"
        _check_name(info, where)
        if info.header_offset < 0:  # zipfile's guess where bytes were cut off in front
            raise Refused(f"{where}: starts before the file does")
        if info.flag_bits & ~_UTF8 & ~0x6:  # bits 1 and 2 only tell how hard deflate tried
            raise Refused(f"{where}: is encrypted, or its header lacks sizes (data descriptor)")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Refused(f"{where}: uses compression method {info.compress_type}")
        if (info.external_attr >> 16) & 0o170000 not in (0, 0o100000, 0o040000):
            raise UnsafePath(f"{where}: is a symbolic link or special file")
        if info.file_size > _LIMIT:
            raise Refused(f"{where}: needs ZIP64, which is not handled")
        # Deflate cannot do better than 1032:1; more is a lie in the header.
        if info.file_size > 1032 * info.compress_size + 1032:
            raise Refused(f"{where}: claims to inflate {info.compress_size} to {info.file_size}")
        raw = os.pread(self.file.fileno(), _LOCAL.size, info.header_offset)
        (sign, version, flags, method, time, date, crc, packed, size, names, extras) = (
            _LOCAL.unpack(raw)
        )
        start = info.header_offset + _LOCAL.size
        name = os.pread(self.file.fileno(), names, start)
        local = (sign, version, flags, method, crc, packed, size, name, time, date)
        stamp = info.date_time
        central = (
            b"PK\x03\x04",
            info.extract_version,
            info.flag_bits,
            info.compress_type,
            info.CRC,
            info.compress_size,
            info.file_size,
            _encode(info),
            stamp[3] << 11 | stamp[4] << 5 | stamp[5] // 2,
            (stamp[0] - 1980) << 9 | stamp[1] << 5 | stamp[2],
        )
        if local != central:
            raise Refused(f"{where}: its local header and the directory disagree")
        data = start + names + extras
        return Member(info, info.header_offset, data, data + info.compress_size)


def write_archive(
    source: Archive,
    plan: Sequence[Member | NewMember],
    out: BinaryIO,
    progress: Progress | None = None,
) -> None:
    """Write members in the order of ``plan``: a :class:`Member` of ``source`` is copied unread.

    ``out`` must be a real file, open for writing and empty. Memory does not grow with the size.
    """
    directory: list[bytes] = []
    position = 0
    total = sum(item.end - item.offset for item in plan if isinstance(item, Member))
    done = 0
    for run in _runs(plan):
        if isinstance(run, NewMember):
            local, central = _headers(run, position)
            out.write(local)
            out.write(run.content)
            directory.append(central)
            position += len(local) + len(run.content)
            continue
        out.flush()
        start = run[0].offset
        for member in run:
            directory.append(_copied_entry(member.info, position + member.offset - start))
        length = run[-1].end - start
        for step in _copy(source.file, start, length, out):
            done += step
            if progress:
                progress("copying", done, total)
        position += length
    if len(directory) > MAX_MEMBERS or position > _LIMIT:
        raise Refused("the result would need ZIP64, which is not handled")
    out.write(b"".join(directory))
    size = sum(len(entry) for entry in directory)
    out.write(_END.pack(b"PK\x05\x06", 0, 0, len(directory), len(directory), size, position, 0))
    out.flush()


def _runs(plan: Sequence[Member | NewMember]) -> Iterator[list[Member] | NewMember]:
    """Neighbours in the source that stay neighbours are copied in one go."""
    run: list[Member] = []
    for item in plan:
        if isinstance(item, Member) and run and run[-1].end == item.offset:
            run.append(item)
            continue
        if run:
            yield run
            run = []
        if isinstance(item, Member):
            run = [item]
        else:
            yield item
    if run:
        yield run


def _copy(source: BinaryIO, offset: int, length: int, out: BinaryIO) -> Iterator[int]:
    """Copy bytes inside the kernel where it can; yields the bytes of each step."""
    target = out.fileno()
    kernel = hasattr(os, "copy_file_range")
    while length:
        step = 0
        if kernel:
            try:
                step = os.copy_file_range(
                    source.fileno(), target, min(length, CHUNK * 8), offset_src=offset
                )
            except OSError as fault:
                # Not on this file system, or not between these two: read and write instead.
                if fault.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                kernel = False
                continue
        else:
            chunk = os.pread(source.fileno(), min(length, CHUNK), offset)
            view = memoryview(chunk)
            while view:
                view = view[os.write(target, view) :]
            step = len(chunk)
        if step == 0:
            raise IntegrityFault("the source became shorter while it was copied")
        offset += step
        length -= step
        yield step
    out.seek(0, os.SEEK_END)


def _headers(member: NewMember, offset: int) -> tuple[bytes, bytes]:
    name = member.name.encode()
    flags = 0 if name.isascii() else _UTF8
    size = len(member.content)
    common = (20, flags, zipfile.ZIP_STORED, *_EPOCH, zlib.crc32(member.content), size, size)
    local = _LOCAL.pack(b"PK\x03\x04", *common, len(name), 0)
    central = _CENTRAL.pack(
        b"PK\x01\x02", _UNIX, *common, len(name), 0, 0, 0, 0, member.mode << 16, offset
    )
    return local + name, central + name


def _copied_entry(info: zipfile.ZipInfo, offset: int) -> bytes:
    name = _encode(info)
    stamp = info.date_time
    entry = _CENTRAL.pack(
        b"PK\x01\x02",
        info.create_system << 8 | info.create_version,
        info.extract_version,
        info.flag_bits,
        info.compress_type,
        stamp[3] << 11 | stamp[4] << 5 | stamp[5] // 2,
        (stamp[0] - 1980) << 9 | stamp[1] << 5 | stamp[2],
        info.CRC,
        info.compress_size,
        info.file_size,
        len(name),
        len(info.extra),
        len(info.comment),
        0,
        info.internal_attr,
        info.external_attr,
        offset,
    )
    return entry + name + info.extra + info.comment


def _encode(info: zipfile.ZipInfo) -> bytes:
    return info.filename.encode("utf-8" if info.flag_bits & _UTF8 else "ascii")


def _check_name(info: zipfile.ZipInfo, where: str) -> None:
    name = info.orig_filename
    parts = name.removesuffix("/").split("/")
    if name != info.filename or "\\" in name or "\0" in name or ":" in parts[0]:
        raise UnsafePath(f"{where}: has a name that systems read differently")
    if any(part in ("", ".", "..") for part in parts):
        raise UnsafePath(f"{where}: has a name that is absolute or leaves the archive")
    if not info.flag_bits & _UTF8 and not name.isascii():
        raise Refused(f"{where}: has a name in an unknown encoding")
