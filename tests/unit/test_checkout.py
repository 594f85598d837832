"""``--commit``: nothing is changed if git would fail, and an interrupted run can be finished."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from patchset import operations
from patchset.checkout import Checkout
from patchset.errors import EnvironmentFault, PatchsetError, Refused, UsageFault
from patchset.operations import Outcome
from patchset.transaction import Files
from patchset.tree import open_tree
from unit.support import PRISTINE, VERSION, World, git, read_tree

BRANCH = f"kimi-eagle3/v{VERSION}"


def commit(root: Path, world: World, **options: object) -> Outcome:
    with open_tree(root) as tree:
        return operations.apply(tree, world.project, commit=True, **options)  # type: ignore[arg-type]


def untouched(root: Path) -> bool:
    branch = git(root, "branch", "--show-current").decode().strip()
    found = {name: data for name, data in read_tree(root).items() if name.startswith("vllm/")}
    return branch == "main" and found == PRISTINE and git(root, "status", "--porcelain") == b""


def finished(root: Path) -> bool:
    branch = git(root, "branch", "--show-current").decode().strip()
    count = git(root, "rev-list", "--count", f"v{VERSION}..HEAD").strip()
    return (branch, count) == (BRANCH, b"4") and git(root, "status", "--porcelain") == b""


@pytest.mark.parametrize("name", ["foo..bar", "a b", "x.lock", "@{", "@{-1}", "", "-x", "HEAD"])
def test_a_bad_branch_name_is_bad_usage(world: World, name: str) -> None:
    root = world.tree("checkout")
    git(root, "checkout", "-q", "-b", "other")
    git(root, "checkout", "-q", "main")
    with pytest.raises(UsageFault, match="--branch"):
        commit(root, world, branch=name)
    assert untouched(root)


@pytest.mark.parametrize("name", ["kimi-eagle3", f"{BRANCH}/more"])
def test_a_branch_that_leaves_no_place_is_named(world: World, name: str) -> None:
    root = world.tree("checkout")
    git(root, "branch", name)
    with pytest.raises(Refused, match=f"the branch {name} exists already, beside which"):
        commit(root, world)
    assert untouched(root)


@pytest.mark.parametrize("name", ["index.lock", "HEAD.lock"])
def test_a_lock_of_git_stops_it_before_anything_is_written(world: World, name: str) -> None:
    root = world.tree("checkout")
    (root / ".git" / name).touch()
    with pytest.raises(Refused, match=f"{name}: exists"):
        commit(root, world)
    (root / ".git" / name).unlink()
    assert untouched(root)
    assert commit(root, world).result == "done"


def test_a_repository_without_working_tree_is_refused(world: World) -> None:
    root = world.tree("checkout")
    git(root, "config", "core.bare", "true")
    with pytest.raises(Refused, match="no working tree"):
        commit(root, world)
    git(root, "config", "core.bare", "false")
    assert untouched(root)


def test_the_branch_goes_when_the_files_cannot_be_written(world: World) -> None:
    class Full(Files):
        def __getattribute__(self, name: str) -> object:
            raise OSError(errno.ENOSPC, "No space left on device")

    root = world.tree("checkout")
    with pytest.raises((OSError, PatchsetError)):
        commit(root, world, files=Full())
    assert untouched(root)
    assert git(root, "branch", "--list", BRANCH) == b""


@pytest.mark.parametrize("step", ["create", "switch", "refresh_index"])
@pytest.mark.parametrize("after", [False, True])
def test_what_was_interrupted_is_finished(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    root = world.tree("checkout")
    real = getattr(Checkout, step)

    def die(self: Checkout, *words: object) -> None:
        if after:
            real(self, *words)
        raise KeyboardInterrupt  # as good as a kill here: nothing is undone after this

    with monkeypatch.context() as patch:
        patch.setattr(Checkout, step, die)
        with pytest.raises(KeyboardInterrupt):
            commit(root, world)
    with open_tree(root) as tree:
        operations.apply(tree, world.project, commit=True, dry_run=True)
    again = commit(root, world)
    done = after and step != "create"
    assert again.result == ("nothing-to-do" if done else "done")
    assert bool(again.repaired) == (step == "refresh_index" and not after)
    assert finished(root)


def test_a_failure_of_git_at_the_end_says_how_to_finish(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = world.tree("checkout")
    real = Checkout.switch

    def switch(self: Checkout, *words: object) -> None:
        (root / ".git" / "index.lock").touch()
        real(self, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(Checkout, "switch", switch)
    with pytest.raises(EnvironmentFault, match=r"index\.lock") as fault:
        commit(root, world)
    assert "run the same command again" in str(fault.value.next_step)
    (root / ".git" / "index.lock").unlink()
    assert commit(root, world).repaired
    assert finished(root)


def test_what_the_user_staged_is_no_leftover(world: World) -> None:
    root = world.tree("checkout")
    commit(root, world)
    path = root / "vllm" / "beta.py"
    patched = path.read_bytes()
    path.write_bytes(b"staged = 1\n")
    git(root, "add", "vllm/beta.py")
    path.write_bytes(patched)
    assert commit(root, world).result == "nothing-to-do"
    assert git(root, "show", ":vllm/beta.py") == b"staged = 1\n"


def test_a_repository_of_another_user_is_said_to_be_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = world.tree("checkout")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with pytest.raises(EnvironmentFault, match="belongs to another user") as fault:
        commit(root, world)
    assert f"--add safe.directory {root}" in str(fault.value.next_step)
    (root / "vllm" / "alpha.py").write_bytes(b"edited\n")
    with open_tree(root) as tree:
        with pytest.raises(EnvironmentFault, match="belongs to another user"):
            operations.inspect(tree, world.project)
        assert operations.inspect(tree, world.project, VERSION).verdict.state == "foreign"


def test_a_repository_without_a_commit_is_refused(world: World) -> None:
    root = world.tree("source")
    git(root, "init", "-q")
    with pytest.raises(Refused, match="has no commit yet"):
        commit(root, world)
