"""Carrying a series to another release: what is merged, dropped, asked, and never half written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from patchset.carry import Files, Outcome, carry
from patchset.errors import EnvironmentFault, Refused, UsageFault
from patchset.lock import compute_lock
from patchset.project import Project
from patchset.report import rebase_report
from unit.support import OVERLAY, PRISTINE, VERSION, World, git, read_tree, write_tree

NEXT = "9.9.1"
ALPHA, BETA, GONE = "vllm/alpha.py", "vllm/beta.py", "vllm/gone.py"
# The first patch alone, as a later release could have taken it.
TAKEN = (
    PRISTINE[ALPHA]
    .replace(b"alpha_3 = 3\n", b"alpha_3 = 33\nmore = 1\n")
    .replace(b"alpha_40 = 40\n", b"")
)
FIRST, SECOND, THIRD = range(3)


def pin(root: Path) -> None:
    """Pin a second release, whose artifact nobody looks at."""
    path = root / "patches" / "releases.toml"
    path.write_text(path.read_text() + "\n" + path.read_text().replace(VERSION, NEXT))


@pytest.fixture
def next_world(world: World) -> World:
    pin(world.root)
    return World(world.root, Project(world.root))


def attempt(
    world: World,
    changes: Mapping[str, bytes | None] | None = None,
    *,
    ask: Iterable[str] = (),
    dry_run: bool = False,
) -> Outcome:
    """Carry to a release that differs by ``changes`` from the one of the series."""
    new: Files = {**PRISTINE, **(changes or {})}
    return carry(
        Project(world.root),
        VERSION,
        NEXT,
        PRISTINE.get,
        new.get,
        world.root / "work",
        ask=list(ask),
        dry_run=dry_run,
    )


def states(outcome: Outcome) -> list[str]:
    return [step.state for step in outcome.steps]


def files_of(world: World) -> dict[str, bytes]:
    return {name: text for name, text in read_tree(world.root).items() if name[:5] != "work/"}


def by_git(world: World, changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """The new series as ``git am`` and copying the overlay apply it."""
    root = world.root / "by-git"
    write_tree(root, {**PRISTINE})
    write_tree(root, dict(changes))
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "release")
    folder = world.root / "patches" / f"v{NEXT}"
    git(root, "am", "-q", *map(str, sorted(folder.glob("*.patch"))))
    shutil.copytree(world.root / "overlay" / f"v{NEXT}", root, dirs_exist_ok=True)
    return read_tree(root)


def test_moved_lines_are_followed_and_all_else_is_kept(next_world: World) -> None:
    world, changes = next_world, {ALPHA: b"import os\n\n" + PRISTINE[ALPHA], "vllm/new.py": b""}
    outcome = attempt(world, changes)
    assert states(outcome) == ["carried"] * 4
    project = Project(world.root)
    old, new = project.series(VERSION), project.series(NEXT)
    assert [patch.name for patch in new.patches] == [patch.name for patch in old.patches]
    for before, after in zip(old.patches, new.patches, strict=True):
        assert before.content.split(b"\n---\n")[0] == after.content.split(b"\n---\n")[0]
    assert project.lock(NEXT).digest == new.digest
    assert (world.root / "overlay" / f"v{NEXT}" / "vllm/extra/over.py").is_file()
    found = by_git(world, changes)
    assert found[ALPHA].startswith(b"import os\n\nalpha_0 = 0\nalpha_1 = 1\nalpha_2 = 2\nalpha_3")
    assert found["vllm/sub/deep/new.py"] == b"new = 1\nno_end = 2"
    assert GONE not in found
    for path, entry in project.lock(NEXT).paths.items():
        assert (entry.after is None) == (path not in found)
    assert not list((world.root / "patches").glob(".*"))
    assert not (world.root / "work").exists()


def test_carrying_to_the_same_source_changes_nothing(next_world: World) -> None:
    outcome = attempt(next_world)
    old, new = (Project(next_world.root).series(version) for version in (VERSION, NEXT))
    assert states(outcome) == ["carried"] * 4
    assert [patch.files for patch in old.patches] == [patch.files for patch in new.patches]
    assert old.overlay == new.overlay


def test_patches_that_come_out_equal_are_links(next_world: World) -> None:
    world, third = next_world, "9.9.2"
    attempt(world)
    pins = world.root / "patches" / "releases.toml"
    head, mark, last = pins.read_text().rpartition("[[release]]")
    pins.write_text(head + mark + last + "\n" + mark + last.replace(NEXT, third))
    work = world.root / "work"
    outcome = carry(Project(world.root), NEXT, third, PRISTINE.get, PRISTINE.get, work)
    names = [patch.name for patch in Project(world.root).series(third).patches]
    assert list(outcome.linked) == [f"v{third}/{name}" for name in names]
    assert f"links now: v{third}/0001" in rebase_report(outcome, NEXT, third, dry_run=False).message
    for name in names:
        assert (world.root / "patches" / f"v{third}" / name).readlink() == Path(
            f"../v{NEXT}/{name}"
        )


def test_what_the_release_has_already_is_dropped_and_shown(next_world: World) -> None:
    outcome = attempt(next_world, {ALPHA: TAKEN})
    assert states(outcome) == ["carried", "dropped", "carried", "carried"]
    evidence = outcome.steps[1].evidence
    assert evidence == (
        "vllm/alpha.py: lines 4 to 5: 'alpha_3 = 33' and 1 more",
        "vllm/alpha.py: without 'alpha_40 = 40'",
    )
    names = [patch.name[:4] for patch in Project(next_world.root).series(NEXT).patches]
    assert names == ["0002", "0003"]


def test_a_part_that_the_release_has_is_left_out(next_world: World) -> None:
    changes: Files = {ALPHA: PRISTINE[ALPHA].replace(b"alpha_40 = 40\n", b""), GONE: None}
    outcome = attempt(next_world, changes)
    assert states(outcome) == ["carried"] * 4
    first, _, third = Project(next_world.root).series(NEXT).patches
    assert len(first.files[0].hunks) == 1
    assert third.paths == ("vllm/sub/deep/new.py",)


def test_a_line_that_a_later_patch_changes_again_is_a_conflict(next_world: World) -> None:
    """A release with the whole series has the second patch's line where the first one looks."""
    theirs = next_world.expected()
    changes: Files = {path: theirs.get(path) for path in {**PRISTINE, **theirs}}
    assert states(attempt(next_world, changes))[:2] == ["dropped", "conflict"]


CONFLICT: Files = {ALPHA: PRISTINE[ALPHA].replace(b"alpha_3 = 3\n", b"alpha_3 = 3.5\n")}


def test_a_conflict_names_both_sides_and_the_same_call_resumes(next_world: World) -> None:
    world, before = next_world, files_of(next_world)
    outcome = attempt(world, CONFLICT)
    assert states(outcome) == ["carried", "conflict", "waiting", "waiting"]
    assert outcome.steps[1].evidence == ("vllm/alpha.py: 1 place to decide",)
    assert outcome.work == world.root / "work"
    assert files_of(world) == before, "nothing is written beside the conflict's folder"
    name = outcome.steps[1].name
    place = world.root / "work" / name / ALPHA
    text = place.read_text()
    for line in (
        "<<<<<<< vLLM 9.9.1, with what was carried before",
        f"||||||| vLLM 9.9.0, before {name}",
        f">>>>>>> vLLM 9.9.0, with {name}",
    ):
        assert f"{line}\n" in text

    with pytest.raises(Refused, match=r"alpha\.py:4: still has a conflict marker"):
        attempt(world, CONFLICT)
    place.write_text(text.replace("=======\n", "").replace("<<<<<<< vLLM", "# <<<<<<< vLLM"))
    with pytest.raises(Refused, match="still has a conflict marker"):
        attempt(world, CONFLICT)
    place.write_bytes(TAKEN.replace(b"33\n", b"33.5\n").replace(b"33.5\n", b"(\n", 1))
    with pytest.raises(Refused, match="no valid Python"):
        attempt(world, CONFLICT)
    assert files_of(world) == before

    place.write_bytes(TAKEN)  # from here on the second patch finds what it was made for
    outcome = attempt(world, CONFLICT)
    assert states(outcome) == ["carried", "resolved", "carried", "carried"]
    assert not (world.root / "work").exists()
    found = by_git(world, CONFLICT)
    assert b"alpha_3 = 333\nmore = 1\n" in found[ALPHA]


def test_a_conflict_resolved_to_nothing_drops_the_patch(next_world: World) -> None:
    name = attempt(next_world, CONFLICT).steps[1].name
    (next_world.root / "work" / name / ALPHA).write_bytes(CONFLICT[ALPHA] or b"")
    outcome = attempt(next_world, CONFLICT)
    assert states(outcome) == ["carried", "dropped", "conflict", "waiting"]
    assert outcome.steps[1].evidence[0] == "resolved by hand to what the release has"


def test_a_resolution_made_for_other_contents_is_refused(next_world: World) -> None:
    name = attempt(next_world, CONFLICT).steps[1].name
    (next_world.root / "work" / name / ALPHA).write_bytes(TAKEN)
    with pytest.raises(Refused, match="made from other contents"):
        attempt(next_world, {ALPHA: b"# moved\n" + (CONFLICT[ALPHA] or b"")})


@pytest.mark.parametrize("what", ["missing", "odd"])
def test_a_folder_with_other_files_is_refused(next_world: World, what: str) -> None:
    name = attempt(next_world, CONFLICT).steps[1].name
    place = next_world.root / "work" / name / ALPHA
    if what == "odd":
        (place.parent / "other.py").write_bytes(b"")
    place.unlink()
    with pytest.raises(Refused, match="is missing" if what == "missing" else r"other\.py"):
        attempt(next_world, CONFLICT)


def test_a_file_that_the_release_deleted_is_asked_about(next_world: World) -> None:
    changes: Files = {BETA: None}
    outcome = attempt(next_world, changes)
    step = outcome.steps[2]
    assert states(outcome) == ["carried", "carried", "conflict", "waiting"]
    assert step.evidence == ("vllm/beta.py: 9.9.1 has no such file; remove it here to leave it so",)
    with pytest.raises(Refused, match=r"beta\.py:1: still has"):
        attempt(next_world, changes)
    (next_world.root / "work" / step.name / BETA).unlink()
    assert states(attempt(next_world, changes)) == ["carried", "carried", "resolved", "carried"]
    assert BETA not in Project(next_world.root).series(NEXT).paths


def test_a_file_to_delete_that_has_changed_is_asked_about(next_world: World) -> None:
    changes: Files = {GONE: b"one = 11\ntwo = 2\n"}
    outcome = attempt(next_world, changes)
    assert states(outcome)[-1] == "conflict"
    step = outcome.steps[-1]
    assert "has another text to delete" in step.evidence[0]
    (next_world.root / "work" / step.name / GONE).unlink()
    assert states(attempt(next_world, changes))[-1] == "resolved"
    diffs = Project(next_world.root).series(NEXT).patches[-1].files
    assert [diff.action for diff in diffs] == ["delete", "add"]


@pytest.mark.parametrize("content", [b"new = 1\nno_end = 2", b"new = 2\n"])
def test_a_file_to_add_that_is_there(next_world: World, content: bytes) -> None:
    outcome = attempt(next_world, {"vllm/sub/deep/new.py": content})
    if content == b"new = 1\nno_end = 2":
        assert states(outcome)[-1] == "carried"
        assert Project(next_world.root).series(NEXT).patches[-1].paths == (GONE,)
    else:
        assert states(outcome)[-1] == "conflict"
        assert "has another file of that name" in outcome.steps[-1].evidence[0]


def test_an_overlay_file_that_is_there_is_dropped(next_world: World) -> None:
    outcome = attempt(next_world, {**OVERLAY})
    assert states(outcome) == ["dropped", "carried", "carried", "carried"]
    assert not (next_world.root / "overlay" / f"v{NEXT}").exists()


def test_an_overlay_file_that_is_there_with_other_text_is_asked_about(next_world: World) -> None:
    changes: Files = {"vllm/extra/over.py": b"added = 'by the release'\n"}
    assert states(attempt(next_world, changes)) == ["conflict", "waiting", "waiting", "waiting"]
    place = next_world.root / "work" / "overlay" / "vllm/extra/over.py"
    place.write_bytes(b"added = 'by hand'\n")
    with pytest.raises(Refused, match="an overlay cannot add it"):
        attempt(next_world, changes)
    place.unlink()
    assert states(attempt(next_world, changes))[0] == "dropped"


def test_a_patch_can_be_asked_for(next_world: World) -> None:
    outcome = attempt(next_world, ask=["0002"])
    assert states(outcome) == ["carried", "carried", "conflict", "waiting"]
    files = read_tree(next_world.root / "work" / outcome.steps[2].name)
    assert set(files) == {ALPHA, BETA, "vllm/sub/gamma.py", "conflict.json"}
    assert states(attempt(next_world, ask=["0002"])) == [
        "carried",
        "carried",
        "resolved",
        "carried",
    ]


def test_a_dry_run_writes_nothing(next_world: World) -> None:
    before = read_tree(next_world.root)
    assert len(attempt(next_world, dry_run=True).patches) == 3
    assert states(attempt(next_world, CONFLICT, dry_run=True))[1] == "conflict"
    assert read_tree(next_world.root) == before


@pytest.mark.parametrize("folder", ["patches", "overlay"])
def test_never_overwrites(next_world: World, folder: str) -> None:
    (next_world.root / folder / f"v{NEXT}").mkdir()
    before = read_tree(next_world.root)
    with pytest.raises(Refused, match="exists already"):
        attempt(next_world)
    outcome = attempt(next_world, dry_run=True)  # writes nothing, so it may still tell
    assert len(outcome.patches) == 3
    said = rebase_report(outcome, VERSION, NEXT, dry_run=True).message
    assert ("never overwritten" in said) == (folder == "patches")
    assert read_tree(next_world.root) == before
    assert not list((next_world.root / "patches").glob(".*"))


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (OSError(28, "No space left on device"), EnvironmentFault),
        (KeyboardInterrupt("Ctrl-C"), KeyboardInterrupt),
    ],
    ids=["full disk", "interrupt"],
)
def test_a_failure_to_write_leaves_nothing(
    fault: BaseException,
    raised: type[BaseException],
    next_world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, rename = read_tree(next_world.root), Path.rename

    def fail(self: Path, target: Path) -> Path:
        if "series" in [item.name for item in self.iterdir()]:
            raise fault
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(raised, match=r"No space left|Ctrl-C"):
        attempt(next_world)
    assert read_tree(next_world.root) == before
    place = next_world.root / "overlay" / f"v{NEXT}"
    assert not place.exists()
    assert not place.is_symlink()


def test_what_else_is_in_the_folder_of_conflicts_stays(next_world: World) -> None:
    work = next_world.root / "work"
    write_tree(work, {"mine/thesis.txt": b"x", ".partial-mine/x": b"x"})
    attempt(next_world, CONFLICT)
    (place,) = work.glob("0001-*")
    (place / ALPHA).write_bytes(TAKEN)
    assert attempt(next_world, CONFLICT).series is not None
    assert read_tree(work) == {"mine/thesis.txt": b"x", ".partial-mine/x": b"x"}


def test_a_resolution_with_other_line_ends_is_refused(next_world: World) -> None:
    attempt(next_world, CONFLICT)
    (place,) = (next_world.root / "work").glob("0001-*")
    (place / ALPHA).write_bytes(TAKEN.replace(b"\n", b"\r\n"))
    with pytest.raises(Refused, match="CRLF"):
        attempt(next_world, CONFLICT)


@pytest.mark.parametrize("said", [VERSION, f"{NEXT}+kimi.eagle3.1"])
def test_a_source_of_another_release_or_patched_is_refused(next_world: World, said: str) -> None:
    text = f"__version__ = version = '{said}'\n".encode()
    with pytest.raises(Refused, match=re.escape(f"given as {NEXT} is vLLM {said}")):
        attempt(next_world, {"vllm/_version.py": text})
    assert not (next_world.root / "patches" / f"v{NEXT}").exists()
    text = f"__version__ = version = '{NEXT}+cpu'\n".encode()
    assert attempt(next_world, {"vllm/_version.py": text}).series is not None


def test_an_overlay_left_by_an_interrupted_run_is_taken(next_world: World) -> None:
    place = next_world.root / "overlay" / f"v{NEXT}"
    write_tree(place, {**OVERLAY})
    assert attempt(next_world).series is not None
    assert read_tree(place) == OVERLAY


def test_an_equal_overlay_is_a_link(next_world: World) -> None:
    attempt(next_world)
    assert (next_world.root / "overlay" / f"v{NEXT}").readlink() == Path(f"v{VERSION}")


@pytest.mark.parametrize("rule", ["*.py diff=python", "*.py -diff", "*.py text eol=crlf"])
def test_the_attributes_of_the_users_git_do_not_count(
    next_world: World, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = attempt(next_world, dry_run=True).patches
    write_tree(tmp_path / "config", {"git/attributes": f"{rule}\n".encode()})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert attempt(next_world, dry_run=True).patches == want


def test_bad_requests(next_world: World) -> None:
    project, work = Project(next_world.root), next_world.root / "work"
    with pytest.raises(UsageFault, match="both"):
        carry(project, VERSION, VERSION, PRISTINE.get, PRISTINE.get, work)
    with pytest.raises(UsageFault, match="0009"):
        attempt(next_world, ask=["0009"])
    with pytest.raises(Refused, match=r"alpha\.py: the source given as 9\.9\.0"):
        carry(project, VERSION, NEXT, {ALPHA: TAKEN}.get, PRISTINE.get, work)


# What git merges without a word, and is wrong.

BASE = b"".join(b"line_%d = %d\n" % (n, n) for n in range(40))
BLOCK = b"def helper():\n    first = 1\n    return first\n"


def one_patch(world: World, base: bytes, patched: bytes) -> Project:
    """A project whose only patch turns ``base`` into ``patched``."""
    work, folder = world.root / "own", world.root / "patches" / f"v{VERSION}"
    shutil.rmtree(world.root / "overlay")
    shutil.rmtree(folder)
    folder.mkdir()
    write_tree(work, {"vllm/one.py": base})
    git(work, "init", "-q")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "release")
    write_tree(work, {"vllm/one.py": patched})
    git(work, "commit", "-qam", "one\n\nWhy.\n\nFault: F03\n")
    git(work, "format-patch", "-q", "-o", str(folder), "HEAD~1")
    (folder / "series").write_text("0001-one.patch\n")
    project = Project(world.root)
    text = compute_lock(project.series(VERSION), {"vllm/one.py": base}.get).dump()
    project.lock_path(project.release(VERSION)).write_text(text)
    return project


@pytest.mark.parametrize(
    ("patched", "release", "message"),
    [
        (
            BASE.replace(b"line_5 = 5\n", b"line_5 = 5\n" + BLOCK),
            BASE.replace(b"line_30 = 30\n", b"line_30 = 30\n" + BLOCK),
            "merges, but has the same added lines at 7 and 35",
        ),
        (
            BASE.replace(b"line_5 = 5\n", b"line_5 = (\n")
            .replace(b"line_6 = 6\n", b"6\n")
            # Every line from here to the end of the bracket is an operand.
            .replace(b"line_7 = 7\n", b"+ 7)\n"),
            BASE.replace(b"line_30 = 30\n", b"line_30 = 30\nmore = 1\n"),
            None,
        ),
        (
            BASE.replace(b"line_5 = 5\n", b"if True:\n"),
            BASE,
            None,
        ),
    ],
    ids=["twice", "fine", "not Python before either"],
)
def test_a_clean_merge_is_not_trusted_blindly(
    next_world: World, patched: bytes, release: bytes, message: str | None
) -> None:
    project = one_patch(next_world, BASE, patched)
    read, other = {"vllm/one.py": BASE}.get, {"vllm/one.py": release}.get
    outcome = carry(project, VERSION, NEXT, read, other, next_world.root / "work")
    step = outcome.steps[0]
    if message is None:
        assert step.state == "carried"
    else:
        assert (step.state, step.evidence) == ("conflict", (f"vllm/one.py: {message}",))
        # It is left as merged; giving the command again takes it as it is.
        again = carry(project, VERSION, NEXT, read, other, next_world.root / "work")
        assert again.steps[0].state == "resolved"


def test_a_merge_that_is_no_python_is_a_conflict(next_world: World) -> None:
    pad = b"".join(b"+ %d\n" % n for n in range(12))
    base = b"head = 0\n" + pad + b"tail = 0\n"
    patched = b"head = (0\n" + pad + b")\ntail = 0\n"
    release = base.replace(b"+ 6\n", b"+ 6\nimport os\n")
    project = one_patch(next_world, base, patched)
    read, other = {"vllm/one.py": base}.get, {"vllm/one.py": release}.get
    outcome = carry(project, VERSION, NEXT, read, other, next_world.root / "work")
    assert outcome.steps[0].evidence == ("vllm/one.py: merges, but is no valid Python then",)
    with pytest.raises(Refused, match="no valid Python"):
        carry(project, VERSION, NEXT, read, other, next_world.root / "work")


def test_a_release_that_has_it_all_gets_no_series(next_world: World) -> None:
    patched = BASE.replace(b"line_5 = 5\n", b"line_5 = 55\n")
    project, release = one_patch(next_world, BASE, patched), b"# more\n" + patched
    before = read_tree(next_world.root)
    read, other = {"vllm/one.py": BASE}.get, {"vllm/one.py": release}.get
    outcome = carry(project, VERSION, NEXT, read, other, next_world.root / "work")
    assert outcome.steps[0].evidence == ("vllm/one.py: line 7: 'line_5 = 55'",)
    assert (outcome.patches, outcome.series) == ({}, None)
    assert rebase_report(outcome, VERSION, NEXT, dry_run=False).result == "nothing-to-do"
    assert read_tree(next_world.root) == before
