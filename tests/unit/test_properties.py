"""Any tree, any series: apply, reverse and status agree, and damage never looks like success.

The series are written by ``difflib``, not by git, so that an example takes milliseconds; that our
reading of diffs is git's is shown in ``test_diff``.
"""

from __future__ import annotations

import difflib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchset import operations
from patchset.diff import split_lines
from patchset.errors import PatchsetError
from patchset.lock import compute_lock
from patchset.project import Project
from patchset.tree import open_tree
from unit.support import TALLY, VERSION, VERSION_TEXT, read_tree, write_tree

Files = dict[str, bytes]

paths = st.sampled_from(
    [f"vllm/{name}" for name in ("a.py", "b.py", "s/c.py", "s/t/d.py", "é é.py")]
)
body = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"x\r\n", b"\xff\n", b"-- \n"]), max_size=9
)
content = st.builds(lambda lines, tail: b"".join(lines) + tail, body, st.sampled_from([b"", b"z"]))
trees = st.dictionaries(paths, content, max_size=5)
RELEASES = f"""\
[[release]]
version = "{VERSION}"
tag = "v{VERSION}"
commit = "012345678"
torch = "2"
image = "x"
revision = 1
[[release.artifact]]
file = "x.whl"
project = "vllm"
kind = "wheel"
sha256 = "{"0" * 64}"
size = 1
"""


def diff(path: str, old: bytes | None, new: bytes | None) -> bytes:
    """One file's section of a patch, as git writes it."""
    head = f"diff --git a/{path} b/{path}\n".encode()
    if old is None:
        head += b"new file mode 100644\n"
    if new is None:
        head += b"deleted file mode 100644\n"
    head += b"index 0000000..1111111" + (b" 100644\n" if old and new else b"\n")
    names = [b"/dev/null" if old is None else f"a/{path}".encode()]
    names += [b"/dev/null" if new is None else f"b/{path}".encode()]
    lines = list(
        difflib.diff_bytes(
            difflib.unified_diff,
            split_lines(old or b""),
            split_lines(new or b""),
            names[0],
            names[1],
        )
    )
    # difflib leaves the end of a last line without newline open
    return head + b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    )


def patch(number: int, old: Files, new: Files) -> bytes:
    head = (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: A <a@example.invalid>\n"
        f"Date: Fri, 2 Jan 2026 03:04:05 +0200\nSubject: [PATCH] change {number}\n\nWhy.\n---\n\n"
    ).encode()
    changed = [path for path in sorted({*old, *new}) if old.get(path) != new.get(path)]
    return head + b"".join(diff(path, old.get(path), new.get(path)) for path in changed)


@dataclass
class Case:
    root: Path
    pristine: Files
    stages: list[Files]
    project: Project

    @property
    def tree(self) -> Path:
        return self.root / "tree"

    @property
    def final(self) -> Files:
        return self.stages[-1]

    def lay(self, files: Files) -> None:
        shutil.rmtree(self.tree, ignore_errors=True)
        base = {"vllm/__init__.py": b"", "vllm/_version.py": VERSION_TEXT.encode()}
        write_tree(self.tree, {**base, **files})

    def found(self) -> Files:
        names = {"vllm/__init__.py", "vllm/_version.py"}
        found = read_tree(self.tree)
        return {name: found[name] for name in found if name[:5] == "vllm/" and name not in names}

    def state(self) -> str:
        with open_tree(self.tree) as tree:
            return operations.inspect(tree, self.project).verdict.state


@contextmanager
def case(pristine: Files, stages: list[Files]) -> Iterator[Case | None]:
    """A project whose series leads from one tree to the next; none if nothing changes."""
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        folder = root / "patches" / f"v{VERSION}"
        folder.mkdir(parents=True)
        (root / "patches" / "releases.toml").write_text(RELEASES)
        names: list[str] = []
        kept: list[Files] = []
        old = pristine
        for new in stages:
            data = patch(len(names), old, new)
            # git am drops carriage returns of patches, so that a series must not have any
            if old != new and b"\r\n" not in data:
                names.append(f"{len(names) + 1:04}-change.patch")
                (folder / names[-1]).write_bytes(data)
                kept.append(new)
                old = new
        if not names or old == pristine:  # a series that changes nothing cannot be locked
            yield None
            return
        (folder / "series").write_text("\n".join(names) + "\n")
        project = Project(root)
        series = project.series(VERSION)
        lock = compute_lock(series, lambda path: pristine.get(path))
        (folder / "series.lock").write_text(lock.dump())
        yield Case(root, pristine, kept, project)


@given(pristine=trees, stages=st.lists(trees, min_size=1, max_size=4), data=st.data())
def test_apply_reverse_and_status_agree(
    pristine: Files, stages: list[Files], data: st.DataObject
) -> None:
    with case(pristine, stages) as made:
        if made is None:
            return
        TALLY["generated trees and series applied and reversed"] += 1
        made.lay(pristine)
        start = read_tree(made.tree)
        assert made.state() == "pristine"
        with open_tree(made.tree) as tree:
            upto = data.draw(st.none() | st.integers(0, len(made.stages)))
            outcome = operations.apply(tree, made.project, upto=upto)
            reached = [pristine, *made.stages][len(made.stages) if upto is None else upto]
            assert made.found() == reached
            if upto is None:
                assert made.state() == "applied"
                assert outcome.verdict.digest == made.project.series(VERSION).digest
            if reached == pristine:
                assert made.state() == "pristine"
            operations.reverse(tree, made.project)
        assert read_tree(made.tree) == start


@given(
    pristine=trees,
    stages=st.lists(trees, min_size=1, max_size=3),
    path=paths,
    damage=st.none() | content,
    applied=st.booleans(),
)
def test_damage_is_never_called_applied_or_pristine(
    pristine: Files, stages: list[Files], path: str, damage: bytes | None, applied: bool
) -> None:
    with case(pristine, stages) as made:
        if made is None or path not in made.project.series(VERSION).paths:
            return
        TALLY["damaged files judged"] += 1
        made.lay(pristine)
        if applied:
            with open_tree(made.tree) as tree:
                operations.apply(tree, made.project)
        place = made.tree / path
        place.unlink(missing_ok=True)
        if damage is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(damage)
        touched = made.project.series(VERSION).paths
        found = {name: made.found().get(name) for name in touched}
        truth = {
            "pristine": {name: pristine.get(name) for name in touched},
            "applied": {name: made.final.get(name) for name in touched},
        }
        state = made.state()
        if state in truth:
            assert found == truth[state]
            return
        before = read_tree(made.tree)
        for job in (operations.apply, operations.reverse):
            with open_tree(made.tree) as tree, pytest.raises(PatchsetError):
                job(tree, made.project)
        assert read_tree(made.tree) == before


@given(
    name=st.sampled_from(["series", "0001-change.patch", "series.lock"]),
    at=st.integers(0, 10**6),
    size=st.integers(0, 3),
    junk=st.binary(max_size=3),
)
def test_a_damaged_project_is_refused_or_changes_nothing_but_what_it_says(
    name: str, at: int, size: int, junk: bytes
) -> None:
    pristine = {"vllm/a.py": b"a\nb\nc\n", "vllm/b.py": b"1\n2\n"}
    stages = [{"vllm/a.py": b"a\nB\nc\n", "vllm/b.py": b"1\n2\n3\n"}]
    with case(pristine, stages) as made:
        assert made is not None
        TALLY["damaged series, patches and locks"] += 1
        made.lay(pristine)
        file = made.root / "patches" / f"v{VERSION}" / name
        data = file.read_bytes()
        at %= len(data)
        file.write_bytes(data[:at] + junk + data[at + size :])
        same = file.read_bytes() == data
        project = Project(made.root)
        start = read_tree(made.tree)
        try:
            with open_tree(made.tree) as tree:
                operations.apply(tree, project)
        except PatchsetError:
            assert read_tree(made.tree) == start
            return
        # Harmless: white space or a comment in series, the order of keys in the lock.
        assert made.found() == stages[0]
        assert same or name != "0001-change.patch"
