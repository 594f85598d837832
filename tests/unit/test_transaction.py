"""A crash, or an error, at every single system call of a run: never half a tree."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from patchset import operations
from patchset.errors import Busy, EnvironmentFault, IntegrityFault, Refused
from patchset.transaction import Files, exclusive, recover
from patchset.tree import open_tree
from unit.support import TALLY, VERSION, World, facts, in_child, read_tree

NAMES = [name for name in vars(Files) if not name.startswith("_")]


class Counting(Files):
    """Counts the calls; the subclass decides what happens at the chosen one."""

    def __init__(self, at: int = -1, *, torn: bool = False) -> None:
        self.at = at
        self.torn = torn
        self.calls: list[str] = []

    def strike(self, name: str) -> None:
        raise NotImplementedError

    def __getattribute__(self, name: str) -> Any:
        real = super().__getattribute__(name)
        if name not in NAMES:
            return real

        def call(*arguments: object) -> object:
            self.calls.append(name)
            if len(self.calls) - 1 == self.at:
                if self.torn and name == "create":
                    path, content = arguments
                    assert isinstance(path, Path)
                    assert isinstance(content, bytes)
                    path.write_bytes(content[: len(content) // 2])
                self.strike(name)
            return real(*arguments)

        return call


class Killed(Counting):
    def strike(self, name: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Broken(Counting):
    def strike(self, name: str) -> None:
        raise OSError(5, "Input/output error", f"<{name}>")


class AtTheEnd(Files):
    """Killed when all is done but for tidying up."""

    def unlink(self, path: Path) -> None:
        if path.name.endswith("-old"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().unlink(path)


def run(world: World, root: Path, action: str, files: Files | None = None) -> operations.Outcome:
    with open_tree(root) as tree:
        return getattr(operations, action)(tree, world.project, files=files)  # type: ignore[no-any-return]


def clean(found: dict[str, tuple[bytes, int, int]]) -> dict[str, bytes]:
    """Contents only; the state file and RECORD's line of it hold a time and are left out."""
    return {
        name: content for name, (content, _, _) in found.items() if not name.endswith("state.json")
    }


def prepare(world: World, kind: str, action: str) -> Path:
    root = world.tree(kind)
    cache = root / "vllm" / "__pycache__"
    cache.mkdir()
    if action == "reverse":
        run(world, root, "apply")
    (cache / "alpha.cpython-311.pyc").write_bytes(b"stale")
    return root


@pytest.mark.parametrize("action", ["apply", "reverse"])
@pytest.mark.parametrize("kind", ["install", "checkout"])
def test_killed_at_every_call(world: World, kind: str, action: str) -> None:
    """Before each call, which is after the one before, and in the middle of each write.

    Then the next run of the same command completes or repeats it, whatever was left.
    """
    model = prepare(world, kind, action)
    start = clean(facts(model))
    counter = Killed()
    run(world, model, action, counter)
    end = clean(facts(model))
    total = len(counter.calls)
    assert total > 30
    journal = counter.calls.index("rename") + 1  # before that there is none
    assert set(NAMES) <= set(counter.calls) | {"rmdir", "mkdir", "set_mtime"}

    seen: set[str] = set()
    for at in range(total):
        for torn in {False, counter.calls[at] == "create"}:
            root = world.root / "victim"
            shutil.rmtree(root, ignore_errors=True)
            _copy(root, world, kind, action)
            died = in_child(lambda: run(world, root, action, Killed(at, torn=torn)))  # noqa: B023
            TALLY["kills at a system call of apply or reverse"] += 1
            if at > total - 4 and died == 0:
                continue  # fewer calls, where a copied file's time happens to differ
            assert died == -signal.SIGKILL, (at, torn)
            with open_tree(root) as tree:
                looked = operations.inspect(tree, world.project).verdict
                before = facts(root)
                operations.inspect(tree, world.project)
                assert facts(root) == before  # looking repairs nothing
                if looked.journal is None:
                    assert clean(facts(root)) in (start, end) or at < journal
                outcome = getattr(operations, action)(tree, world.project)
            seen.add(outcome.result)
            if looked.journal is not None:
                assert outcome.repaired
            left = clean(facts(root))
            left.pop("vllm/__pycache__/alpha.cpython-311.pyc", None)
            assert left == end, (at, torn, counter.calls[at])
            assert "vllm/__pycache__/alpha.cpython-311.pyc" not in read_tree(root)
            assert not list(root.rglob("*kimi-eagle3-*"))
    assert seen == {"done", "nothing-to-do"}


def _copy(root: Path, world: World, kind: str, action: str) -> None:
    """A tree as :func:`prepare` makes it, at another place."""
    made = world.root / "prepared"
    if not made.exists():
        fresh = world.root / "tree"
        fresh.rename(world.root / "model")
        prepare(world, kind, action).rename(made)
        (world.root / "model").rename(fresh)
    shutil.copytree(made, root, symlinks=True)


@pytest.mark.parametrize("action", ["apply", "reverse"])
def test_an_error_at_every_call_leaves_the_old_tree(world: World, action: str) -> None:
    root = prepare(world, "install", action)
    start = facts(root)
    at = 0
    while True:
        broken = Broken(at)
        TALLY["errors at a system call"] += 1
        try:
            outcome = run(world, root, action, broken)
        except EnvironmentFault as fault:
            reason = fault.message
        else:
            assert outcome.result == "done"
            break
        assert "Input/output error" in reason
        found = facts(root)
        found.setdefault("vllm/__pycache__/alpha.cpython-311.pyc", start_pyc(start))
        if found != start:
            # Only tidying up had failed: then the change is complete, and the next run says so.
            assert run(world, root, action).result == "nothing-to-do"
            break
        at += 1
    assert at > 25


def start_pyc(start: dict[str, tuple[bytes, int, int]]) -> tuple[bytes, int, int]:
    return start["vllm/__pycache__/alpha.cpython-311.pyc"]


def test_an_error_that_cannot_be_undone_is_repaired_by_the_next_run(world: World) -> None:
    class Stuck(Counting):
        """Everything fails from the chosen call on, as when a disk goes away."""

        def strike(self, name: str) -> None:
            self.at += 1
            raise OSError(5, "Input/output error", f"<{name}>")

    root = world.tree("install")
    start = clean(facts(root))
    run(world, world.tree("install", "model"), "apply", counter := Stuck())
    end = clean(facts(world.root / "model"))
    for at in range(len(counter.calls) - 3):  # there are a few less where times differ
        TALLY["errors at every system call from one on"] += 1
        with pytest.raises(EnvironmentFault):
            run(world, root, "apply", Stuck(at))
        run(world, root, "apply")
        assert clean(facts(root)) == end
        run(world, root, "reverse")
        assert clean(facts(root)) == start


class Watched(Files):
    """Notes each call with its first path's name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __getattribute__(self, name: str) -> Any:
        real = super().__getattribute__(name)
        if name not in NAMES:
            return real

        def call(path: Path, *rest: object) -> object:
            self.calls.append((name, path.name))
            return real(path, *rest)

        return call


def test_what_must_be_on_the_disk_before_what(world: World) -> None:
    """So that a power cut is no worse than a kill: contents, then the journal, then the names."""
    watched = Watched()
    run(world, world.tree("install"), "apply", watched)
    journal = ".journal.json.kimi-eagle3-new"
    staging, committing = [
        at for at, call in enumerate(watched.calls) if call == ("rename", journal)
    ]
    synced = {name: at for at, (what, name) in enumerate(watched.calls) if what == "sync"}
    created = [
        (at, name) for at, (what, name) in enumerate(watched.calls) if what in ("create", "link")
    ]
    renamed = [at for at, (what, _) in enumerate(watched.calls) if what == "rename"]
    done = watched.calls.index(("unlink", "journal.json"))
    for at, name in created:
        if name != journal:
            assert staging < at < committing, name
            if name.endswith("-new"):
                assert at < synced[name] < committing, name
    assert [at for at in renamed if at not in (staging, committing)]
    assert all(committing < at < done for at in renamed if at not in (staging, committing))
    for folder in ("vllm", "sub", "deep", "extra"):
        assert max(renamed) < synced[folder] < done


def test_repair_refuses_a_file_changed_in_the_meantime(world: World) -> None:
    root = world.tree("source")
    counter = Killed()
    run(world, world.tree("source", "model"), "apply", counter)
    renames = [at for at, name in enumerate(counter.calls) if name == "rename"]
    in_child(lambda: run(world, root, "apply", Killed(renames[3] + 1)))
    (root / "vllm" / "alpha.py").write_bytes(b"mine\n")
    before = facts(root)
    with pytest.raises(Refused, match="was changed after an interrupted apply"):
        run(world, root, "apply")
    assert facts(root) == before


def test_a_tree_whose_run_only_lacks_the_end_is_not_settled(world: World) -> None:
    """Each file is as it should be, but leftovers lie beside them: only a real run may say so."""
    root = world.tree("source")
    for action in ("apply", "reverse"):
        in_child(lambda: run(world, root, action, AtTheEnd()))  # noqa: B023
        before = facts(root)
        with open_tree(root) as tree:
            verdict = operations.inspect(tree, world.project).verdict
            assert (verdict.state, verdict.digest) == ("partial", None)
            with pytest.raises(Refused, match="a run was interrupted"):
                operations.check(tree, world.project)
            for look in (operations.apply, operations.reverse):
                with pytest.raises(Refused, match="a run was interrupted"):
                    look(tree, world.project, dry_run=True)
            with pytest.raises(Refused, match="a run was interrupted"):
                operations.require(
                    operations.inspect(tree, world.project), world.project.series(VERSION).digest
                )
        assert facts(root) == before
        outcome = run(world, root, action)
        assert (outcome.result, bool(outcome.repaired)) == ("nothing-to-do", True)


def test_a_foreign_journal_is_an_integrity_fault(world: World) -> None:
    root = world.tree("source")
    folder = root / ".vllm-kimi-eagle3"
    folder.mkdir()
    (folder / "journal.json").write_text("{}")
    with pytest.raises(IntegrityFault, match="not a journal"):
        run(world, root, "apply")


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Another process that holds the lock of a tree."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        with exclusive(folder):
            os.write(tell, b"x")
            time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_one_at_a_time_and_dead_owners_do_not_block(world: World) -> None:
    root = world.tree("source")
    with held(root / "vllm"):
        with pytest.raises(Busy, match="another process"), exclusive(root / "vllm", wait=0.1):
            pass
        with open_tree(root) as tree:  # looking needs no lock
            assert operations.inspect(tree, world.project).verdict.state == "pristine"
    assert run(world, root, "apply").result == "done"


def test_many_processes_at_once_apply_it_once(world: World) -> None:
    root = world.tree("source")
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            code = 9
            try:
                code = {"done": 0, "nothing-to-do": 7}[run(world, root, "apply").result]
            finally:
                os._exit(code)
        children.append(child)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert codes == [0, 7, 7, 7, 7, 7]


def test_nothing_to_recover_is_no_news(tmp_path: Path) -> None:
    assert recover(tmp_path, tmp_path / "state") is None
    (tmp_path / "state").mkdir()
    assert recover(tmp_path, tmp_path / "state") is None
    assert not (tmp_path / "state").exists()
