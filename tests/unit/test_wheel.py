"""Building a patched wheel, and the archives that must be refused."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installer.sources import WheelFile

from patchset import archive as archive_module
from patchset import wheel as wheel_module
from patchset.archive import Archive, Member, NewMember, write_archive
from patchset.errors import (
    Busy,
    EnvironmentFault,
    IntegrityFault,
    PatchsetError,
    Refused,
    UsageFault,
)
from patchset.project import Project
from patchset.wheel import BuiltWheel, build_wheel
from unit.support import PRISTINE, TALLY, VERSION, VERSION_TEXT, WHEEL, World, in_child, make_wheel

NAME = f"vllm-{VERSION}+kimi.eagle3.4-cp38-abi3-manylinux_2_31_x86_64.whl"


def build(world: World, out: str = "out", **options: object) -> BuiltWheel:
    release = world.project.release(VERSION)
    return build_wheel(
        world.wheel,
        world.project,
        release,
        out=world.root / out,
        **options,  # type: ignore[arg-type]
    )


def test_the_result_is_consistent_and_installs(world: World) -> None:
    built = build(world)
    assert built.path.name == NAME
    with WheelFile.open(built.path) as wheel:
        wheel.validate_record()  # every member's hash, by somebody else's code
        assert (wheel.distribution, wheel.version) == ("vllm", built.version)
        assert f"\nVersion: {built.version}\n" in wheel.read_dist_info("METADATA")
        assert wheel.read_dist_info("METADATA").endswith(f"\n\nVersion: {VERSION}\n")
        assert "\nTag: cp38-abi3-manylinux_2_31_x86_64\n" in wheel.read_dist_info("WHEEL")
        assert "linux_x86_64\n" not in wheel.read_dist_info("WHEEL").replace("_2_31_x86", "")
        provenance = json.loads(wheel.read_dist_info("kimi_eagle3.json"))
    assert provenance["digest"] == world.project.series(VERSION).digest
    assert provenance["source"]["sha256"] == hashlib.sha256(world.wheel.read_bytes()).hexdigest()
    assert provenance["patches"][1]["faults"] == ["F05", "F06"]
    expected = world.expected()
    with zipfile.ZipFile(built.path) as wheel:
        assert wheel.testzip() is None
        inside = {name for name in wheel.namelist() if name.startswith("vllm/")}
        assert inside == {*expected, "vllm/_C.abi3.so", "vllm/_version.py"}
        for name, content in expected.items():
            assert wheel.read(name) == content
        scope: dict[str, object] = {}
        exec(wheel.read("vllm/_version.py"), scope)
        assert scope["__version__"] == scope["version"] == f"{VERSION}+kimi.eagle3.4"
        assert scope["version_tuple"] == (9, 9, 0, "kimi.eagle3.4")
        assert wheel.namelist()[-1].endswith("RECORD")


def test_what_is_not_patched_is_copied_unread(world: World) -> None:
    with Archive(world.wheel) as old, Archive(build(world).path) as new:
        for name in ("vllm/_C.abi3.so", "vllm/__init__.py"):
            raw = []
            for holder in (old, new):
                member = holder.members[name]
                raw.append(
                    os.pread(holder.file.fileno(), member.end - member.offset, member.offset)
                )
            assert raw[0] == raw[1]


def test_the_same_bytes_every_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(world, "one")
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    monkeypatch.setattr(os, "copy_file_range", _not_here)  # another kernel or file system
    second = build(world, "two")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    stamp = second.path.stat().st_mtime_ns
    again = build(world, "two")
    assert (again.reused, again.path.stat().st_mtime_ns) == (True, stamp)


def _not_here(*_: object, **__: object) -> int:
    raise OSError(18, "Invalid cross-device link")


def test_a_cut_series_says_so_in_its_version(world: World) -> None:
    built = build(world, upto=1)
    assert built.version == f"{VERSION}+kimi.eagle3.4.upto1"
    assert built.version in built.path.name
    with zipfile.ZipFile(built.path) as wheel:
        assert wheel.read("vllm/beta.py") == PRISTINE["vllm/beta.py"]
        assert wheel.read("vllm/alpha.py") != PRISTINE["vllm/alpha.py"]


def test_another_sha256_is_an_integrity_fault(world: World) -> None:
    data = bytearray(world.wheel.read_bytes())
    data[5000] ^= 1
    world.wheel.write_bytes(data)
    with pytest.raises(IntegrityFault, match="no pinned artifact"):
        build(world)
    assert not (world.root / "out").exists()


@pytest.mark.parametrize("what", ["a byte", "no archive", "hostile"])
def test_another_sha256_of_the_pinned_size_leaves_nothing(world: World, what: str) -> None:
    """The size tells which file it must be; copying begins before the checksum is known."""
    data = bytearray(world.wheel.read_bytes())
    if what == "a byte":
        with zipfile.ZipFile(world.wheel) as archive:
            copied = archive.getinfo("vllm/_C.abi3.so")
        data[copied.header_offset + 30 + len(copied.filename) + 5] ^= 1
    elif what == "no archive":
        data = bytearray(len(data))
    else:
        data = data.replace(b"vllm/beta.py", b"../x/beta.py")
    world.wheel.write_bytes(data)
    with pytest.raises(IntegrityFault, match=r"has sha256 .* is no pinned artifact"):
        build(world)
    assert not list(world.root.glob("out/*"))


def test_a_copy_that_went_wrong_gets_no_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.copy_file_range

    def wrong(source: int, target: int, count: int, offset_src: int) -> int:
        done = real(source, target, count, offset_src=offset_src)
        end = os.lseek(target, 0, os.SEEK_CUR)
        last = os.pread(target, 1, end - 1)
        os.pwrite(target, bytes([last[0] ^ 1]), end - 1)
        return done

    monkeypatch.setattr(os, "copy_file_range", wrong)
    with pytest.raises(IntegrityFault, match="differs from its source at byte"):
        build(world)
    assert not list(world.root.glob("out/*"))


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_every_byte_that_is_copied_is_compared(
    world: World, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Also the last one of a run, and none that was left over from the piece before."""
    monkeypatch.setattr(wheel_module, "_PIECE", piece)
    built = build(world)
    data = built.path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == built.sha256
    with Archive(world.wheel) as source, Archive(built.path) as target:
        copied = [item for item in target.members.values() if same_place(item, source)]
        assert len(copied) > 2
        for item in copied:
            for at in {item.offset, item.data, item.end - 1}:
                built.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
                with pytest.raises(IntegrityFault, match="differs from its source at byte"):
                    wheel_module._verify_bytes(target, source, [source.members[item.name]])


def same_place(item: Member, source: Archive) -> bool:
    """Whether the member was copied: it has the source's content and compression."""
    old = source.members.get(item.name)
    return old is not None and old.info.CRC == item.info.CRC and item.info.compress_type != 0


@pytest.mark.parametrize("size", [0, 1, 1000, -1])
def test_a_truncated_wheel_is_an_integrity_fault(world: World, size: int) -> None:
    world.wheel.write_bytes(world.wheel.read_bytes()[:size])
    with pytest.raises(IntegrityFault):
        build(world)
    with pytest.raises(IntegrityFault, match="not a complete ZIP"):
        Archive(world.wheel)


def test_a_missing_wheel_is_bad_usage(world: World) -> None:
    world.wheel.unlink()
    with pytest.raises(UsageFault, match="does not exist"):
        build(world)


def test_an_unwritable_folder_is_said_and_leaves_nothing(world: World) -> None:
    (world.root / "out").write_text("a file")
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        build(world)


def test_nothing_is_left_when_it_fails_half_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        build(world)
    assert list((world.root / "out").iterdir()) == []


def test_a_killed_build_leaves_nothing_that_lasts(world: World) -> None:
    """Whatever is left has the same name every time, and the next build uses it up."""
    good = build(world, "good").path.read_bytes()
    steps = 0
    for at in range(1000):

        def die(what: str, done: int, total: int, at: int = at) -> None:
            nonlocal steps
            steps += 1
            if steps > at:
                os.kill(os.getpid(), signal.SIGKILL)

        TALLY["kills while a wheel is built"] += 1
        died = in_child(lambda: build(world, progress=die))
        left = {path.name for path in (world.root / "out").glob("*")}
        assert left <= {NAME, f".{NAME}.partial"}
        if died == 0:
            break
        assert died == -signal.SIGKILL
    assert at >= 3
    names = sorted(path.name for path in (world.root / "out").iterdir())
    assert names == [NAME]
    assert (world.root / "out" / NAME).read_bytes() == good


def test_one_build_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_module, "WAIT", 0.1)
    out = world.root / "out"
    out.mkdir()
    with (out / f".{NAME}.partial").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Busy, match="another process"):
            build(world)
    assert build(world).path.is_file()


def test_builds_at_once_wait_for_each_other(world: World) -> None:
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            code = 9
            try:
                code = 7 if build(world).reused else 0
            finally:
                os._exit(code)
        children.append(child)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert codes == [0, 7, 7, 7]
    assert [path.name for path in (world.root / "out").iterdir()] == [NAME]


def repin(world: World) -> None:
    """Pin what the wheel is now, so that only its content can be the reason to refuse it."""
    content = world.wheel.read_bytes()
    pins = world.root / "patches" / "releases.toml"
    lines = pins.read_text().splitlines()
    digest = hashlib.sha256(content).hexdigest()
    fresh = [f'sha256 = "{digest}"' if line.startswith("sha256") else line for line in lines]
    fresh = [f"size = {len(content)}" if line.startswith("size") else line for line in fresh]
    pins.write_text("\n".join(fresh))
    world.project = Project(world.root)


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("vllm/beta.py", b"beta_2 = 2", b"beta_2 = 7", "not what series.lock was made from"),
        ("vllm/_version.py", VERSION.encode(), b"9.9.1", "lines match"),
        ("METADATA", f"Version: {VERSION}".encode(), b"Version: 1", "lines match"),
        ("RECORD", b"vllm/beta.py,", b"vllm/zeta.py,", "RECORD and members differ"),
    ],
)
def test_an_inconsistent_source_is_refused(
    world: World, name: str, old: bytes, new: bytes, reason: str
) -> None:
    with zipfile.ZipFile(world.wheel) as source:
        members = {item: source.read(item) for item in source.infolist()}
    with zipfile.ZipFile(world.wheel, "w", zipfile.ZIP_DEFLATED) as target:
        for item, content in members.items():
            changed = content.replace(old, new) if item.filename.endswith(name) else content
            target.writestr(item, changed)
    repin(world)
    with pytest.raises(PatchsetError, match=reason):
        build(world)
    assert not list(world.root.glob("out/*"))


def test_a_series_that_touches_more_than_python_is_refused(world: World) -> None:
    folder = world.root / "overlay" / f"v{VERSION}" / "vllm"
    (folder / "kernel.cu").write_bytes(b"__global__\n")
    world.relock()
    world.project = Project(world.root)
    with pytest.raises(Refused, match="more than Python sources"):
        build(world)


Damage = Callable[[Path], None]


def member(path: Path, name: str) -> tuple[bytearray, int, int]:
    """The file's bytes, and where that member's local and central headers are."""
    with zipfile.ZipFile(path) as archive:
        local = archive.getinfo(name).header_offset
    data = bytearray(path.read_bytes())
    central = data.rindex(name.encode()) - 46
    while data[central : central + 4] != b"PK\x01\x02":
        central = data.rindex(name.encode(), 0, central + 46) - 46
    return data, local, central


def _patch(field: int, value: bytes, *, local: bool = True, central: bool = True) -> Damage:
    """Change a field, given by its place in the local header, in one header or in both."""

    def damage(path: Path) -> None:
        data, at, directory = member(path, "vllm/beta.py")
        if local:
            data[at + field : at + field + len(value)] = value
        if central:
            data[directory + field + 2 : directory + field + 2 + len(value)] = value
        path.write_bytes(data)

    return damage


def _write(*members: tuple[str, int]) -> Damage:
    def damage(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, mode in members:
                item = zipfile.ZipInfo(name)
                item.external_attr = mode << 16
                archive.writestr(item, b"content")

    return damage


def _rename(new: str) -> Damage:
    def damage(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data.replace(b"vllm/beta.py", new.encode()))

    return damage


def _bomb(path: Path) -> None:
    """A header that promises far more than deflate can hold."""
    data, at, central = member(path, "vllm/beta.py")
    for place in (at + 22, central + 24):
        data[place : place + 4] = struct.pack("<L", 1 << 30)
    path.write_bytes(data)


def _gap(path: Path) -> None:
    """Something in front of the archive, as in a self-extracting program."""
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())


def _overlap(path: Path) -> None:
    """Two directory entries for one member's bytes, as the densest bombs have."""
    data, at, _ = member(path, "vllm/beta.py")
    with zipfile.ZipFile(path) as archive:
        other = archive.getinfo("vllm/gone.py").header_offset
    place = data.rindex(b"vllm/gone.py") - 4
    assert struct.unpack_from("<L", data, place)[0] == other
    struct.pack_into("<L", data, place, at)
    path.write_bytes(data)


def _front(path: Path) -> None:
    """A directory that claims to be longer than it is, so that all offsets come out too low."""
    data = bytearray(path.read_bytes())
    place = len(data) - 22 + 12
    struct.pack_into("<L", data, place, struct.unpack_from("<L", data, place)[0] + 1)
    struct.pack_into("<L", data, place + 4, struct.unpack_from("<L", data, place + 4)[0] + 9)
    path.write_bytes(data)


def _comment(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"hello"


def _descriptor(path: Path) -> None:
    """Written to a pipe: sizes follow the data."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as pipe, zipfile.ZipFile(pipe, "w") as archive:
        archive.writestr("vllm/x.py", b"content")
    with os.fdopen(reader, "rb") as stream:
        path.write_bytes(stream.read())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_patch(6, b"\x01\x00"), "encrypted"),
        (_patch(6, b"\x08\x00"), "data descriptor"),
        (_descriptor, "data descriptor"),
        (_patch(8, b"\x0c\x00"), "compression method"),
        (_patch(14, b"\x00\x00\x00\x00", central=False), "disagree"),
        (_patch(14, b"\x00\x00\x00\x00", local=False), "disagree"),
        (_patch(22, b"\x07", central=False), "disagree"),
        (_patch(18, b"\x07", central=False), "disagree"),
        (_patch(30, b"wllm", central=False), "disagree"),
        (_patch(4, b"\x2d\x00", central=False), "disagree"),
        (_bomb, "claims to inflate"),
        (_gap, "starts at byte|not a complete"),
        (_overlap, "overlap|disagree"),
        (_comment, "comment"),
        (_front, "starts before|not a complete"),
        (_rename("../../etc/py"), "leaves the archive"),
        (_rename("/etc/beta.py"), "leaves the archive"),
        (_rename("vllm/../a.py"), "leaves the archive"),
        (_rename("vllm\\beta.py"), "read differently"),
        (_rename("C:lm/beta.py"), "read differently"),
        (_rename("vllm/gone.py"), "two members"),
        (_rename("vllm/./ta.py"), "leaves the archive"),
        (_write(("vllm/link.py", 0o120777)), "symbolic link"),
        (_write(("vllm/pipe", 0o010644)), "symbolic link or special"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_archive_is_refused_when_it_is_opened(
    world: World, damage: Damage, reason: str
) -> None:
    TALLY["damaged or hostile archives"] += 1
    damage(world.wheel)
    with pytest.raises(PatchsetError, match=reason):
        Archive(world.wheel)


def test_too_many_members_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 5)
    with pytest.raises(Refused, match="members"):
        Archive(world.wheel)


def test_a_member_that_inflates_to_more_than_it_says_is_not_read(world: World) -> None:
    data, at, central = member(world.wheel, "vllm/beta.py")
    size = struct.unpack_from("<L", data, at + 22)[0]
    for place in (at + 22, central + 24):
        struct.pack_into("<L", data, place, size - 1)
    world.wheel.write_bytes(data)
    with Archive(world.wheel) as archive, pytest.raises(IntegrityFault):
        archive.read("vllm/beta.py")


@given(at=st.integers(0, 10**9), junk=st.binary(min_size=1, max_size=4))
def test_a_damaged_archive_is_refused_or_reads_the_same(
    template: Path, at: int, junk: bytes
) -> None:
    TALLY["damaged or hostile archives"] += 1
    source = template / WHEEL
    data = bytearray(source.read_bytes())
    # Headers, names and the directory are the interesting part of a file that is mostly data.
    with zipfile.ZipFile(source) as archive:
        places = [item.header_offset for item in archive.infolist()]
        first, last = archive.start_dir, len(data)
        content = {name: archive.read(name) for name in archive.namelist()}
    spots = [place + step for place in places for step in range(60)] + list(range(first, last))
    at = spots[at % len(spots)]
    data[at : at + len(junk)] = junk
    damaged = template.parent / f"damaged-{os.getpid()}.whl"
    damaged.write_bytes(data)
    try:
        with Archive(damaged) as archive:
            found = {name: archive.read(name) for name in archive.members}
    except PatchsetError:
        return
    assert set(found.values()) <= set(content.values())


def test_writing_and_reading_archives_agree(tmp_path: Path) -> None:
    source = make_wheel(tmp_path)
    target = tmp_path / "out.whl"
    with Archive(source) as old, target.open("wb") as out:
        plan: list[Member | NewMember] = [*old.members.values(), NewMember("z", b"")]
        plan.insert(0, NewMember("vllm/naïve.py", b"x"))
        write_archive(old, plan, out)
    with zipfile.ZipFile(target) as new, zipfile.ZipFile(source) as old_zip:
        assert new.testzip() is None
        assert new.read("vllm/naïve.py") == b"x"
        assert new.namelist() == ["vllm/naïve.py", *old_zip.namelist(), "z"]
        assert all(new.read(name) == old_zip.read(name) for name in old_zip.namelist())


def test_the_helper_makes_what_setuptools_makes(world: World) -> None:
    """The stand-in wheel must be a valid one, or the tests above prove nothing."""
    with WheelFile.open(world.wheel) as wheel:
        wheel.validate_record()
    assert VERSION_TEXT.count(VERSION) == 1
