"""Full disks, lost permissions and files that cannot be replaced, with the real system calls."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patchset import operations
from patchset.errors import EnvironmentFault
from patchset.transaction import Files
from patchset.tree import open_tree
from unit.support import TALLY, World, facts, in_child
from unit.test_transaction import run

NOBODY = 65534
root_only = pytest.mark.skipif(os.getuid() != 0, reason="needs root to set the stage")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@root_only
@pytest.mark.parametrize("action", ["apply", "reverse"])
def test_a_disk_that_fills_up_at_any_point(world: World, small_disk: Path, action: str) -> None:
    """With any number of free pages: done, or refused with everything as it was."""
    root = small_disk / "tree"
    shutil.copytree(world.tree("install"), root, ignore=shutil.ignore_patterns("*.so"))
    if action == "reverse":
        run(world, root, "apply")
    start = facts(root)
    filler = small_disk / "filler"
    page = os.sysconf("SC_PAGE_SIZE")
    free = os.statvfs(small_disk).f_bavail
    results = []
    for pages in range(free):
        TALLY["disks full at another page"] += 1
        filler.write_bytes(b"x" * (free - pages) * page)
        try:
            run(world, root, action)
        except EnvironmentFault as fault:
            results.append("full")
            cause = fault.__cause__
            assert isinstance(cause, OSError)
            assert cause.errno == errno.ENOSPC
            filler.unlink()
            assert facts(root) == start, pages
            continue
        results.append("done")
        filler.unlink()
        break
    assert results.count("full") > 5
    assert results[-1] == "done"
    with open_tree(root) as tree:
        state = operations.inspect(tree, world.project).verdict.state
    assert state == ("applied" if action == "apply" else "pristine")


class Plain(Files):
    """A file system without hard links."""

    def link(self, old: Path, new: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(old))


def as_nobody(work: Callable[[], object]) -> int:
    def drop() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    return in_child(drop)


@pytest.fixture
def lent(world: World) -> Path:
    """A tree that belongs to an ordinary user, who can reach it."""
    root = world.tree("install")
    for path in [root, *root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    for path in [world.root, *world.root.parents]:
        if (
            path.stat().st_uid == os.getuid()
            and path != Path(path.anchor)
            and path.parent != Path(path.anchor)
        ):
            path.chmod(path.stat().st_mode | 0o055)
    for path in [world.root, *(world.root / "patches").rglob("*")]:
        path.chmod(path.stat().st_mode | 0o044 | (0o011 if path.is_dir() else 0))
    return root


@root_only
def test_a_folder_in_the_middle_that_cannot_be_written(world: World, lent: Path) -> None:
    (lent / "vllm" / "sub").chmod(0o555)
    start = facts(lent)

    def work() -> None:
        with pytest.raises(EnvironmentFault, match="Permission denied"):
            run(world, lent, "apply")
        with open_tree(lent) as tree:
            assert operations.inspect(tree, world.project).verdict.state == "pristine"

    assert as_nobody(work) == 0
    assert facts(lent) == start
    (lent / "vllm" / "sub").chmod(0o755)
    assert as_nobody(lambda: run(world, lent, "apply")) == 0
    assert (lent / "vllm" / "alpha.py").stat().st_uid == NOBODY


@root_only
def test_a_read_only_tree_can_be_looked_at(world: World, lent: Path) -> None:
    for path in [lent, *lent.rglob("*")]:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o555)

    def work() -> None:
        with open_tree(lent) as tree:
            assert operations.inspect(tree, world.project).verdict.state == "pristine"
            assert operations.check(tree, world.project).result == "would-do"
        with pytest.raises(EnvironmentFault):
            run(world, lent, "apply")

    start = facts(lent)
    assert as_nobody(work) == 0
    assert facts(lent) == start


def test_read_only_files_keep_their_mode(world: World) -> None:
    root = world.tree("source")
    (root / "vllm" / "alpha.py").chmod(0o444)
    (root / "vllm" / "gone.py").chmod(0o400)
    start = facts(root)
    run(world, root, "apply")
    assert stat.S_IMODE((root / "vllm" / "alpha.py").stat().st_mode) == 0o444
    run(world, root, "reverse")
    assert facts(root) == start


def modes(root: Path) -> dict[str, int]:
    return {
        path.relative_to(root).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in root.rglob("*")
    }


@pytest.mark.parametrize("links", [True, False])
def test_a_private_umask_makes_no_private_files(world: World, links: bool) -> None:
    files = Files() if links else Plain()
    root = world.tree("install")
    before = modes(root)
    old = os.umask(0o077)
    try:
        run(world, root, "apply", files)
        applied = modes(root)
        run(world, root, "reverse", files)
    finally:
        os.umask(old)
    new = {name: mode for name, mode in applied.items() if name not in before}
    assert new == {
        ".vllm-kimi-eagle3": 0o755,
        ".vllm-kimi-eagle3/state.json": 0o644,
        "vllm/extra": 0o755,
        "vllm/extra/over.py": 0o644,
        "vllm/sub/deep": 0o755,
        "vllm/sub/deep/new.py": 0o644,
    }
    assert before.items() >= applied.items() - new.items()
    assert modes(root) == before


@root_only
@pytest.mark.parametrize("links", [True, False])
def test_root_leaves_nothing_of_its_own_in_a_users_tree(
    world: World, lent: Path, links: bool
) -> None:
    files = Files() if links else Plain()
    for action in ("apply", "reverse"):
        run(world, lent, action, files)
        assert {path.stat().st_uid for path in lent.rglob("*")} == {NOBODY}
        assert {path.stat().st_gid for path in lent.rglob("*")} == {NOBODY}
    run(world, lent, "apply")
    assert as_nobody(lambda: run(world, lent, "reverse")) == 0


def test_an_owner_that_cannot_be_given_is_no_obstacle(world: World) -> None:
    class Contained(Files):
        def set_owner(self, path: Path, uid: int, gid: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument", str(path))

    root = world.tree("source")
    assert run(world, root, "apply", Contained()).result == "done"


@root_only
@pytest.mark.parametrize("name", ["alpha.py", "beta.py", "gone.py", "sub/gamma.py"])
def test_a_file_that_not_even_root_may_replace(world: World, name: str) -> None:
    root = world.tree("source")
    start = facts(root)
    path = root / "vllm" / name
    if subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        with pytest.raises(EnvironmentFault, match="Operation not permitted"):
            run(world, root, "apply")
        assert facts(root) == start
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)
    assert run(world, root, "apply").result == "done"


def test_where_there_are_no_hard_links(world: World) -> None:
    root = world.tree("source")
    start = facts(root)
    run(world, root, "apply", Plain())
    run(world, root, "reverse", Plain())
    assert facts(root) == start
