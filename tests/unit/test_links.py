"""Equal patches of several releases are one file and links to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patchset import links, operations
from patchset.errors import IntegrityFault, Refused, UnknownRelease
from patchset.lock import compute_lock
from patchset.project import Project
from patchset.source import open_source
from patchset.tree import open_tree
from patchset.wheel import build_wheel
from unit.support import PRISTINE, VERSION, VERSION_TEXT, World, git, read_tree, write_tree

NEXT = "9.10.0"  # as text before 9.9.0, as a version after it


@pytest.fixture
def twins(world: World) -> World:
    """Two releases with the same sources and series, in equal copies."""
    pins = world.root / "patches" / "releases.toml"
    pins.write_text(pins.read_text() + "\n" + pins.read_text().replace(VERSION, NEXT))
    shutil.copytree(world.patches, world.patches.with_name(f"v{NEXT}"))
    overlay = world.root / "overlay"
    shutil.copytree(overlay / f"v{VERSION}", overlay / f"v{NEXT}")
    project = Project(world.root)
    with open_source(world.wheel) as read:
        text = compute_lock(project.series(NEXT), read).dump()
    project.lock_path(project.release(NEXT)).write_text(text)
    return World(world.root, project)


def source_of(world: World, version: str) -> Path:
    """A source folder that says it is that release."""
    tree = world.tree("source")
    write_tree(tree, {"vllm/_version.py": VERSION_TEXT.replace(VERSION, version).encode()})
    return tree


def patches_of(world: World, version: str) -> list[Path]:
    return sorted((world.root / "patches" / f"v{version}").glob("*.patch"))


def test_equal_patches_become_links_to_the_oldest_release(twins: World) -> None:
    before = {path: path.read_bytes() for path in patches_of(twins, VERSION)}
    digest = Project(twins.root).series(NEXT).digest
    made = links.link(twins.root / "patches")
    assert made == [f"v{NEXT}/{path.name}" for path in before]
    for old, new in zip(patches_of(twins, VERSION), patches_of(twins, NEXT), strict=True):
        assert not old.is_symlink()
        assert old.read_bytes() == before[old]
        assert os.readlink(new) == f"../v{VERSION}/{old.name}"
    assert links.link(twins.root / "patches") == []
    assert Project(twins.root).lock(NEXT).digest == digest, "a link changes no digest"


def test_a_new_oldest_release_gets_the_file(twins: World) -> None:
    links.link(twins.root / "patches")
    older = twins.root / "patches" / "v9.8.7.post1"
    # As somebody may leave it: the oldest one a link to a later one.
    shutil.copytree(twins.patches, older, ignore=shutil.ignore_patterns("*.patch"))
    for path in twins.patches.glob("*.patch"):
        (older / path.name).symlink_to(f"../v{VERSION}/{path.name}")
    links.link(twins.root / "patches")
    assert links.equal(twins.root / "patches") == {}
    for path in older.glob("*.patch"):
        assert path.is_file()
        assert not path.is_symlink()
        for version in (VERSION, NEXT):
            text = os.readlink(twins.root / "patches" / f"v{version}" / path.name)
            assert text == f"../{older.name}/{path.name}"
    assert not list((twins.root / "patches").rglob("*.new"))


def test_a_patch_that_differs_stays_a_file(twins: World) -> None:
    first = patches_of(twins, NEXT)[0]
    first.write_bytes(first.read_bytes().replace(b"What breaks", b"What broke"))
    links.link(twins.root / "patches")
    assert [path.is_symlink() for path in patches_of(twins, NEXT)] == [False, True, True]


@pytest.mark.parametrize(
    "text",
    [
        "/etc/passwd",
        "../../patches/v9.9.0/{name}",
        "../v9.9.0/0002-other.patch",
        "./../v9.9.0/{name}",
        "../v9.9.0/./{name}",
        "../elsewhere/{name}",
        "../v9.9/{name}",
        "../v9.9.0x/{name}",
        "../v1.2.3/{name}",  # is not there
        "../v9.10.0/{name}",  # itself: a loop
        "../v9.9.1/{name}",  # a link
        "../v9.9.2/{name}",  # below a link
        "../v9.9.3/{name}",  # a folder
    ],
)
def test_any_other_link_is_refused(twins: World, text: str) -> None:
    root, first = twins.root / "patches", patches_of(twins, NEXT)[0]
    (root / "elsewhere").mkdir()
    shutil.copy(first, root / "elsewhere")
    (root / "v9.9.1").mkdir()
    (root / "v9.9.1" / first.name).symlink_to(f"../v{VERSION}/{first.name}")
    (root / "v9.9.2").symlink_to(f"v{VERSION}")
    (root / "v9.9.3" / first.name).mkdir(parents=True)
    first.unlink()
    first.symlink_to(text.format(name=first.name))
    with pytest.raises(IntegrityFault, match=rf"lists {first.name}, which is a link to"):
        Project(twins.root).series(NEXT)


def test_a_copy_made_without_links_says_so(twins: World) -> None:
    first = patches_of(twins, NEXT)[0]
    first.write_text(f"../v{VERSION}/{first.name}")  # as git writes it with core.symlinks=false
    with pytest.raises(IntegrityFault, match="without its symbolic link"):
        Project(twins.root).series(NEXT)


def test_a_linked_series_applies_builds_and_is_carried_by_git(twins: World, tmp_path: Path) -> None:
    """Through git's own archive of the repository, as a download of it has the links."""
    links.link(twins.root / "patches")
    git(twins.root, "init", "-q")
    git(twins.root, "add", "patches", "overlay")
    git(twins.root, "commit", "-qm", "all")
    packed = git(twins.root, "archive", "--format=tar", "HEAD")
    copy = tmp_path / "copy"
    copy.mkdir()
    subprocess.run(["tar", "-x", "-C", str(copy)], input=packed, check=True)
    folder = copy / "patches" / f"v{NEXT}"
    assert all(path.is_symlink() for path in folder.glob("*.patch"))
    project = Project(copy)
    tree = source_of(twins, NEXT)
    with open_tree(tree) as place:
        assert operations.apply(place, project).result == "done"
    by_git = tmp_path / "by-git"
    write_tree(by_git, {**PRISTINE})
    git(by_git, "init", "-q")
    git(by_git, "add", "-A")
    git(by_git, "commit", "-qm", "release")
    git(by_git, "am", "-q", *map(str, sorted(folder.glob("*.patch"))))
    shutil.copytree(copy / "overlay" / f"v{NEXT}", by_git, dirs_exist_ok=True)
    found = read_tree(by_git)
    assert {name: (tree / name).read_bytes() for name in found} == found
    built = build_wheel(twins.wheel, Project(twins.root), project.release(VERSION), out=tmp_path)
    same = build_wheel(twins.wheel, project, project.release(VERSION), out=tmp_path / "again")
    assert built.sha256 == same.sha256


def test_the_lock_tool_makes_the_links_and_finds_missing_ones(twins: World) -> None:
    tools = Path(__file__).resolve().parents[2] / "tools"
    shutil.copytree(tools, twins.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    source = source_of(twins, NEXT)

    def lock(*words: str) -> tuple[int, dict[str, object]]:
        command = [sys.executable, str(twins.root / "tools" / "lock.py"), "--release", NEXT]
        command += ["--source", str(source), "--json", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)

    code, report = lock("--check")
    assert (code, report["result"]) == (4, "error")
    assert f"v{NEXT}/0001-first-change.patch: is a copy" in str(report["message"])
    code, report = lock()
    assert (code, report["result"]) == (0, "done")
    assert report["linked"] == [f"v{NEXT}/{path.name}" for path in patches_of(twins, NEXT)]
    assert lock("--check")[0] == 0
    assert lock()[1]["result"] == "nothing-to-do"
    stored = twins.root / "patches" / f"v{NEXT}" / "series.lock"
    text = stored.read_bytes()
    for damaged in (b"\xff\xfe{}", text.replace(b"\n", b"\r\n")):
        stored.write_bytes(damaged)
        assert lock("--check")[0] == 4
        assert lock()[1]["result"] == "done"
        assert stored.read_bytes() == text


def test_a_checkout_whose_files_are_those_of_two_releases_is_known_by_history(twins: World) -> None:
    root = twins.tree("checkout")  # of the older one, whose tag it has

    def version() -> str:
        with open_tree(root) as tree:
            return operations.inspect(tree, Project(twins.root)).release.version

    assert version() == VERSION
    with open_tree(root) as tree:
        operations.apply(tree, Project(twins.root), commit=True)
    assert version() == VERSION, "on the branch with the patches, too"
    git(root, "switch", "-q", "main")
    git(root, "commit", "-q", "--allow-empty", "-m", "the next release")
    git(root, "tag", f"v{NEXT}")
    git(root, "commit", "-q", "--allow-empty", "-m", "own work")
    assert version() == NEXT
    git(root, "tag", "-d", f"v{VERSION}", f"v{NEXT}")
    with pytest.raises(UnknownRelease, match=f"is vLLM {VERSION} or {NEXT}; "):
        version()


def test_a_pinned_release_without_a_series_says_so_in_one_sentence(world: World) -> None:
    pins = world.root / "patches" / "releases.toml"
    pins.write_text(pins.read_text() + "\n" + pins.read_text().replace(VERSION, NEXT))
    project = Project(world.root)
    words = f"^vLLM {NEXT} is pinned, but there is no series for it yet$"
    with pytest.raises(Refused, match=words) as refused:
        project.series(NEXT)
    assert VERSION in str(refused.value.next_step)
    with pytest.raises(Refused, match=words):
        project.lock(NEXT, check=False)
    with open_tree(source_of(world, NEXT)) as tree:
        for act in (operations.apply, operations.inspect, operations.check, operations.reverse):
            with pytest.raises(Refused, match=words):
                act(tree, project)


def overlay_link(world: World, text: str) -> Project:
    folder = world.root / "overlay" / f"v{NEXT}"
    shutil.rmtree(folder)
    folder.symlink_to(text)
    return Project(world.root)


def test_an_overlay_may_be_that_of_another_release(twins: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    before = Project(twins.root).series(NEXT)
    after = overlay_link(twins, f"v{VERSION}").series(NEXT)
    assert (after.digest, after.overlay) == (before.digest, before.overlay)
    subprocess.run(["cp", "-r", f"{twins.root}/overlay/v{NEXT}/.", str(out)], check=True)
    copied = {path: content for path, content in read_tree(out).items() if content}
    assert copied == {item.path: item.content for item in before.overlay}


@pytest.mark.parametrize(
    "text", ["/etc", "../patches", "v1.2.3", ".", f"v{NEXT}", f"../overlay/v{VERSION}"]
)
def test_an_overlay_that_is_any_other_link_is_refused(twins: World, text: str) -> None:
    with pytest.raises(IntegrityFault, match="is a link to"):
        overlay_link(twins, text).series(NEXT)


def test_an_overlay_unpacked_without_links_says_so(twins: World) -> None:
    folder = twins.root / "overlay" / f"v{NEXT}"
    shutil.rmtree(folder)
    folder.write_text(f"v{VERSION}")
    with pytest.raises(IntegrityFault, match="without its symbolic link"):
        Project(twins.root).series(NEXT)
