"""A patch as a branch of an upstream checkout: what is made, refused, and never half made."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from patchset import hooks
from patchset.errors import Busy, IntegrityFault, Refused, UnsafePath, UsageFault
from patchset.faults import Fault, Span
from patchset.hooks import Linted
from patchset.probes import PROBES, Code
from patchset.project import Project
from patchset.pull import SUITE, TESTS, fill, writer
from patchset.report import prepare_report, upstream_status_report
from patchset.series import Read
from patchset.upstream import (
    PAGE,
    Prepared,
    Proposal,
    Repository,
    Standing,
    find,
    load_proposal,
    prepare,
    standing,
)
from unit.support import PRISTINE, VERSION, World, git, in_child, read_tree, write_tree

ALPHA = "vllm/alpha.py"
PR = """\
title = "[Bugfix][Core] Count alpha right"
purpose = "Alpha was counted wrong."
test_command = ["pytest -v tests/test_alpha.py"]
releases = ["9.9.0"]
linked = ["https://github.com/vllm-project/vllm/pull/12"]
"""
TEMPLATE = """\
## Overview

<!-- Summarize. -->

## Validation

<!-- Evidence. -->

## Details

---

- [ ] AI assistance was used during the creation of this PR.
"""
TEST = b"from vllm.alpha import alpha_3\n\n\ndef test_alpha():\n    assert alpha_3 == 33\n"
HELPER = b"".join(b"line_%d = %d\n" % (n, n) for n in range(20))
HELPER_PATCH = b"""\
diff --git a/tests/helper.py b/tests/helper.py
--- a/tests/helper.py
+++ b/tests/helper.py
@@ -8,4 +8,5 @@
 line_7 = 7
 line_8 = 8
+more = 1
 line_9 = 9
 line_10 = 10
"""
CURED = Fault(
    id="F03",
    title="alpha is 3",
    symptom="alpha",
    pattern="alpha",
    affected=[Span(first="9.9.0")],
    grade="E",
    evidence="here",
    probe="alpha_is_3",
)


@pytest.fixture(autouse=True)
def _own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's own configuration: the identity is the repository's."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)

    def alpha_is_3(code: Code) -> bool:
        text = code._read(ALPHA)
        return text is not None and b"alpha_3 = 3\n" in text

    monkeypatch.setitem(PROBES, "alpha_is_3", alpha_is_3)
    monkeypatch.setitem(PROBES, "always", lambda code: True)
    monkeypatch.setitem(PROBES, "broken", lambda code: bool({"here": True}["gone"]))


@pytest.fixture
def checkout(world: World) -> Path:
    """An upstream checkout that went on after the release, with a human's identity."""
    root = world.tree("checkout")
    later = PRISTINE[ALPHA].replace(b"alpha_20 = 20\n", b"alpha_20 = 21\n")
    write_tree(
        root,
        {
            ALPHA: later,
            "tests/helper.py": b"# new\n" + HELPER,
            ".github/PULL_REQUEST_TEMPLATE.md": TEMPLATE.encode(),
        },
    )
    git(root, "add", "-A")
    git(root, "commit", "-qm", "later")
    git(root, "config", "user.name", "Uma Upstream")
    git(root, "config", "user.email", "uma@example.invalid")
    write_tree(root, {"notes.txt": b"mine, and not git's\n"})
    return root


@pytest.fixture
def proposal(world: World) -> Proposal:
    folder = world.root / "upstream" / "0001-first-change"
    write_tree(
        folder,
        {
            "pr.toml": PR.encode(),
            "tests/test_alpha.py": TEST,
            "helper.patch": HELPER_PATCH,
        },
    )
    return find(Project(world.root), "1")


def no_lint(root: Path, paths: Sequence[str]) -> Linted:
    return Linted({"style": "passed"}, ("clang",))


def attempt(
    world: World,
    proposal: Proposal,
    checkout: Path,
    ref: str = "HEAD",
    **more: Any,
) -> Prepared:
    newest = {**PRISTINE, "tests/helper.py": HELPER}
    return prepare(
        proposal,
        Repository(checkout),
        ref,
        **{
            "faults": [CURED],
            "read_source": PRISTINE.get,
            "read_newest": newest.get,
            "place": world.root / "build" / "upstream-0001",
            "lint": no_lint,
            "body": writer(world.root, [CURED]),
            **more,
        },
    )


def seen(root: Path) -> dict[str, object]:
    """What a user sees of a checkout; a run that refuses must leave it, as every run its files."""
    words = {
        "branches": ("for-each-ref", "--format=%(refname) %(objectname)"),
        "status": ("status", "--porcelain"),
        "head": ("rev-parse", "--abbrev-ref", "HEAD"),
        "worktrees": ("worktree", "list", "--porcelain"),
    }
    return {
        "files": read_tree(root),
        **{name: git(root, *command) for name, command in words.items()},
    }


def test_a_branch_with_one_commit(world: World, checkout: Path, proposal: Proposal) -> None:
    """One signed commit in upstream's words, with its tests; the user's files are not touched."""
    before = seen(checkout)
    made = attempt(world, proposal, checkout, trailers=["Assisted-by: a tool"])
    after = seen(checkout)
    branch = b"refs/heads/kimi-eagle3/0001-first-change"
    assert made.result == "made"
    assert made.commit is not None
    assert after.pop("branches") == branch + b" " + made.commit.encode() + b"\n" + bytes(
        before.pop("branches")  # type: ignore[call-overload]
    )
    assert after == before
    assert git(checkout, "rev-list", f"HEAD..{made.commit}").split() == [made.commit.encode()]
    log = git(checkout, "log", "-1", "--format=%an <%ae>%n%cn%n%B", made.commit).decode()
    assert log.splitlines() == [
        "Uma Upstream <uma@example.invalid>",
        "Uma Upstream",
        "[Bugfix][Core] Count alpha right",
        "",
        "What breaks and for whom.",
        "",
        "Assisted-by: a tool",
        "Signed-off-by: Uma Upstream <uma@example.invalid>",
        "",
    ]
    assert made.paths == ("tests/helper.py", "tests/test_alpha.py", ALPHA)
    alpha = git(checkout, "show", f"{made.commit}:{ALPHA}")
    assert b"alpha_3 = 33\nmore = 1\n" in alpha
    assert b"alpha_20 = 21\n" in alpha
    helper = git(checkout, "show", f"{made.commit}:tests/helper.py")
    assert helper.startswith(b"# new\n")
    assert b"line_8 = 8\nmore = 1\nline_9" in helper
    report = prepare_report(made, proposal)
    assert (report.result, report.exit_code) == ("done", 0)
    assert "  not run   clang" in report.lines()


def test_without_pr_toml_the_subject_serves(world: World, checkout: Path) -> None:
    made = attempt(world, find(Project(world.root), "0001"), checkout)
    subject = git(checkout, "log", "-1", "--format=%s", made.branch).decode().strip()
    assert subject == "[Misc] First change"


def dirty(root: Path) -> None:
    write_tree(root, {ALPHA: b"edited\n"})


def nameless(root: Path) -> None:
    git(root, "config", "--unset", "user.email")


def sparse(root: Path) -> None:
    git(root, "sparse-checkout", "set", "docs")


def taken(root: Path) -> None:
    git(root, "branch", "kimi-eagle3/0001-first-change")


def in_the_way(root: Path) -> None:
    git(root, "branch", "kimi-eagle3")


def not_vllm(root: Path) -> None:
    git(root, "rm", "-rq", "vllm")
    git(root, "commit", "-qm", "something else")


@pytest.mark.parametrize(
    ("spoil", "ref", "said"),
    [
        (dirty, "HEAD", "vllm/alpha.py has changes"),
        (nameless, "HEAD", "git knows no user.name and user.email"),
        (sparse, "HEAD", "a sparse checkout"),
        (taken, "HEAD", "the branch kimi-eagle3/0001-first-change exists already"),
        (in_the_way, "HEAD", "beside which there can be no"),
        (not_vllm, "HEAD", "no commit of vLLM"),
        (lambda root: None, "no-such-ref", "has no commit 'no-such-ref'"),
        (lambda root: None, "--all", "has no commit '--all'"),
        (lambda root: None, "^HEAD", r"has no commit '\^HEAD'"),
    ],
)
def test_refused(
    world: World,
    checkout: Path,
    proposal: Proposal,
    spoil: Callable[[Path], None],
    ref: str,
    said: str,
) -> None:
    """Each in a sentence, and nothing is changed."""
    spoil(checkout)
    before = seen(checkout)
    with pytest.raises(Refused, match=said):
        attempt(world, proposal, checkout, ref)
    assert seen(checkout) == before
    assert not (world.root / "build").exists()


def test_a_bad_name_for_the_branch(world: World, checkout: Path, proposal: Proposal) -> None:
    with pytest.raises(UsageFault, match="is not a name"):
        attempt(world, proposal, checkout, branch="a..b")


def test_a_trailer_of_two_lines(world: World, checkout: Path, proposal: Proposal) -> None:
    with pytest.raises(UsageFault, match="a trailer is one line"):
        attempt(world, proposal, checkout, trailers=["Assisted-by: a\n\nFixes: b"])


def test_a_link_that_leads_out(
    world: World, checkout: Path, proposal: Proposal, tmp_path: Path
) -> None:
    """A commit may hold links to anywhere; nothing is written through one."""
    outside = tmp_path / "outside"
    outside.mkdir()
    git(checkout, "rm", "-rq", "tests")
    (checkout / "tests").symlink_to(outside)
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "a link")
    new = dataclasses.replace(proposal, diffs=())
    before = seen(checkout)
    with pytest.raises(Refused, match="a symbolic link of HEAD is in the way of tests/test_alpha"):
        attempt(world, new, checkout)
    assert list(outside.iterdir()) == []
    assert seen(checkout) == before


def test_settings_of_the_environment_stay(
    world: World, checkout: Path, proposal: Proposal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build machines give git its identity this way; the user's own hooks stay out all the same."""
    for at, name in enumerate(("name", "email")):
        git(checkout, "config", "--unset", f"user.{name}")
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{at}", f"user.{name}")
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{at}", "uma@example.invalid")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    for name in ("post-checkout", "pre-commit"):
        hook = checkout / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\nexit 1\n")
        hook.chmod(0o755)
    assert attempt(world, proposal, checkout).result == "made"


def test_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not a git checkout"):
        Repository(tmp_path)


@pytest.mark.parametrize("name", ["~root", "two words\nand a line"])
def test_a_strange_name_of_the_folder(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checkout.rename(checkout.parent / name)
    monkeypatch.chdir(checkout.parent)
    assert Repository(Path(name)).vllm_at("HEAD")[1](ALPHA) is not None


def test_repositories_that_cannot_serve(
    world: World, checkout: Path, proposal: Proposal, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(checkout), "bare")
    with pytest.raises(Refused, match="git takes it for no working tree"):
        attempt(world, proposal, tmp_path / "bare")
    git(tmp_path, "init", "-q", "--object-format=sha256", "other")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.invalid")
    git(tmp_path / "other", *identity, "commit", "-q", "--allow-empty", "-m", "a")
    with pytest.raises(Refused, match="object format is not SHA-1"):
        Repository(tmp_path / "other")
    with pytest.raises(Refused, match=r"takes the \$ in it for a variable"):
        Repository(checkout.rename(tmp_path / "a$HOME"))


def test_nothing_to_do_if_it_is_there(world: World, checkout: Path, proposal: Proposal) -> None:
    """By its lines, and by the probe where upstream cured it in another way."""
    git(checkout, "am", "-q", "-3", str(world.patches / proposal.patch.name))
    made = attempt(world, proposal, checkout, faults=[])
    assert made.result == "nothing"
    assert made.standing.state == "contained"
    assert any("more = 1" in line or "and 1 more" in line for line in made.standing.evidence)
    write_tree(checkout, {ALPHA: PRISTINE[ALPHA].replace(b"alpha_3 = 3\n", b"alpha_3 = 4\n")})
    git(checkout, "commit", "-qam", "otherwise")
    before = seen(checkout)
    made = attempt(world, proposal, checkout)
    assert made.result == "nothing"
    assert made.standing.state == "not needed"
    assert made.standing.evidence == ("F03: the probe alpha_is_3 does not find it",)
    assert prepare_report(made, proposal).result == "nothing-to-do"
    assert seen(checkout) == before


def test_a_conflict_waits_outside(world: World, checkout: Path, proposal: Proposal) -> None:
    """Readable files beside the checkout, which stays as it is; edited, they are taken."""
    write_tree(checkout, {ALPHA: PRISTINE[ALPHA].replace(b"alpha_4 = 4\n", b"alpha_4 = 5\n")})
    git(checkout, "commit", "-qam", "in the way")
    before = seen(checkout)
    made = attempt(world, proposal, checkout)
    assert made.result == "conflict"
    assert seen(checkout) == before
    report = prepare_report(made, proposal)
    assert report.exit_code == 3
    assert report.message.endswith(f"{made.work}, then give the same command again")
    second = find(Project(world.root), "2")
    assert prepare_report(made, second).message.endswith("a branch with 0001, prepared first")
    assert made.work is not None
    left = made.work / proposal.patch.name / ALPHA
    assert b"<<<<<<< vLLM" in left.read_bytes()
    with pytest.raises(Refused, match="still has a conflict marker"):
        attempt(world, proposal, checkout)
    wanted = PRISTINE[ALPHA].replace(b"alpha_3 = 3\nalpha_4 = 4\n", b"alpha_3 = 33\nalpha_4 = 5\n")
    left.write_bytes(wanted)
    made = attempt(world, proposal, checkout)
    assert [step.state for step in made.steps] == ["resolved", "carried"]
    assert git(checkout, "show", f"{made.branch}:{ALPHA}") == wanted
    assert not left.exists()


def test_a_test_that_upstream_has_otherwise(
    world: World, checkout: Path, proposal: Proposal
) -> None:
    write_tree(checkout, {"tests/test_alpha.py": b"other = 1\n"})
    git(checkout, "add", "tests/test_alpha.py")
    git(checkout, "commit", "-qm", "a test of that name")
    made = attempt(world, proposal, checkout)
    assert made.result == "conflict"
    assert made.steps[-1].name == "0001-first-change-beside"
    assert "another file of that name" in made.steps[-1].evidence[0]


def test_a_dry_run_changes_nothing(world: World, checkout: Path, proposal: Proposal) -> None:
    before = seen(checkout)
    made = attempt(world, proposal, checkout, dry_run=True)
    assert made.result == "ready"
    assert len(made.paths) == 3
    assert seen(checkout) == before
    assert not (world.root / "build").exists()


def test_killed_half_way(world: World, checkout: Path, proposal: Proposal) -> None:
    """No branch, no file; the next run removes what was left of the working tree and succeeds."""
    before = seen(checkout)

    def die(root: Path, paths: Sequence[str]) -> Linted:
        os.kill(os.getpid(), signal.SIGKILL)
        return Linted()

    assert in_child(lambda: attempt(world, proposal, checkout, lint=die)) == -signal.SIGKILL
    after = seen(checkout)
    assert b"upstream-0001/worktree" in bytes(after.pop("worktrees"))  # type: ignore[call-overload]
    assert after == {name: what for name, what in before.items() if name != "worktrees"}
    assert attempt(world, proposal, checkout).result == "made"
    assert seen(checkout)["worktrees"] == before["worktrees"]
    assert not (world.root / "build" / "upstream-0001" / "worktree").exists()


def test_one_at_a_time(world: World, checkout: Path, proposal: Proposal) -> None:
    """A second run would take the first one's working tree away."""

    def again(root: Path, paths: Sequence[str]) -> Linted:
        with pytest.raises(Busy, match="another process"):
            attempt(world, proposal, checkout)
        return no_lint(root, paths)

    assert attempt(world, proposal, checkout, lint=again).result == "made"


def test_a_fault_that_is_still_there(world: World, checkout: Path, proposal: Proposal) -> None:
    """A merge may succeed where the cure no longer reaches: that is said, in the body too."""
    faults = [replace(CURED, probe="always")]
    made = attempt(world, proposal, checkout, faults=faults)
    report = prepare_report(made, proposal)
    assert (report.result, report.exit_code) == ("warned", 10)
    assert report.message.endswith("; the probe still finds F03")
    assert made.body is not None
    assert ", so with this change" in made.body.read_text()


def test_a_probe_that_later_code_breaks(world: World, checkout: Path, proposal: Proposal) -> None:
    """It cannot tell, and does not end the run."""
    made = attempt(world, proposal, checkout, faults=[replace(CURED, probe="broken")])
    assert made.result == "made"
    assert made.standing.found == {"F03": None}
    assert "F03: the probe broken cannot tell: KeyError: 'gone'" in made.standing.evidence
    assert made.body is not None
    assert "alpha is 3: cannot be told from the source" in made.body.read_text()


def test_a_failing_lint_leaves_nothing(world: World, checkout: Path, proposal: Proposal) -> None:
    before = seen(checkout)

    def fail(root: Path, paths: Sequence[str]) -> Linted:
        raise Refused("no hooks")

    with pytest.raises(Refused, match="no hooks"):
        attempt(world, proposal, checkout, lint=fail)
    assert seen(checkout) == before


def hook(name: str, entry: str, **more: object) -> dict[str, object]:
    return {"id": name, "name": name, "language": "system", "entry": entry, **more}


def test_the_hooks_of_the_checkout(
    world: World, checkout: Path, proposal: Proposal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a formatter changes is in the commit; what a linter finds is said."""
    local = [
        hook("tidy", "sed -i s/neat/tidied/", files="alpha"),
        hook("neat", "sed -i s/more/neat/", files="alpha"),
        hook("strict", "grep -L assert", files="test_"),
        hook("moody", f"{sys.executable} -c 'print(7*6); raise SystemExit(1)'"),
        hook("other", "false", files="nothing of ours"),
        hook("unwanted", "false"),
        hook("picky", "false", types=["markdown"]),
    ]
    remote = {"repo": "file:///nowhere/clang", "rev": "v1", "hooks": [{"id": "clang"}]}
    config = {"repos": [{"repo": "local", "hooks": local}, remote]}
    write_tree(checkout, {hooks.CONFIG: json.dumps(config).encode()})
    git(checkout, "add", hooks.CONFIG)
    git(checkout, "commit", "-qm", "hooks")

    monkeypatch.setenv("SKIP", "unwanted")

    def lint(root: Path, paths: Sequence[str]) -> Linted:
        return hooks.lint(root, paths, Path(sys.executable), world.root / "home")

    made = attempt(world, proposal, checkout, lint=lint)
    assert made.linted.hooks == {
        "tidy": "fixed",
        "neat": "fixed",
        "strict": "passed",
        "moody": "failed",
    }
    assert made.linted.not_run == ("clang", "unwanted (SKIP)")
    assert b"tidied = 1\n" in git(checkout, "show", f"{made.branch}:{ALPHA}")
    report = prepare_report(made, proposal)
    assert (report.result, report.exit_code) == ("warned", 10)
    assert report.message.endswith("hooks that still find something: moody")
    assert "42" in report.hook_output


def test_no_configuration_of_hooks(tmp_path: Path) -> None:
    found = hooks.lint(tmp_path, ["a.py"], Path(sys.executable), tmp_path / "home")
    assert found.not_run == ("the checkout has no .pre-commit-config.yaml",)


@pytest.mark.parametrize("text", ["repos: [", "repos: 1"])
def test_a_broken_configuration_of_hooks(tmp_path: Path, text: str) -> None:
    (tmp_path / hooks.CONFIG).write_text(text)
    with pytest.raises(IntegrityFault, match="of the checkout"):
        hooks.lint(tmp_path, ["a.py"], Path(sys.executable), tmp_path / "home")


def test_hooks_from_the_package_index() -> None:
    """At the version that the file pins, with its own arguments and files."""
    ruff = {
        "repo": "https://github.com/astral-sh/ruff-pre-commit",
        "rev": "v0.14.0",
        "hooks": [{"id": "ruff-check", "args": ["--fix"]}, {"id": "ruff-format"}],
    }
    other = {
        "repo": "https://github.com/x/y",
        "rev": "1",
        "hooks": [{"id": "a"}, {"id": "b", "files": r"\.md$"}],
    }
    config = {"exclude": "third_party", "repos": [ruff, other]}
    asked, left_out = hooks.offline(config, ["vllm/a.py"])
    assert left_out == ("a",)
    assert asked["exclude"] == "third_party"
    assert [item["repo"] for item in asked["repos"]] == ["local"]
    check = asked["repos"][0]["hooks"][0]
    assert check["additional_dependencies"] == ["ruff==0.14.0"]
    assert (check["entry"], check["args"]) == ("ruff check --force-exclude", ["--fix"])


def test_find(world: World) -> None:
    project = Project(world.root)
    name = project.series(VERSION).patches[0].name
    for wanted in ("1", "0001", "first-change", "0001-first-change", str(world.patches / name)):
        assert find(project, wanted).patch.name == name
    for wanted in ("7", "no-such"):
        with pytest.raises(UsageFault, match="there is no such patch in any series"):
            find(project, wanted)
    with pytest.raises(UsageFault, match=f"in the series of {VERSION}"):
        find(project, "7", VERSION)
    write_tree(world.root, {f"mine/{name}": b"another patch"})
    with pytest.raises(UsageFault, match="is no patch file of"):
        find(project, str(world.root / "mine" / name))


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("pr.toml", PR + "surprise = 1\n", IntegrityFault),
        ("pr.toml", PR.replace("[Bugfix][Core] ", ""), IntegrityFault),
        ("pr.toml", PR.replace("/pull/12", ""), IntegrityFault),
        ("pr.toml", PR + "# \udcff\n", IntegrityFault),
        ("pr.toml", PR + "deep = " + "[" * 5000, IntegrityFault),
        ("x.patch", HELPER_PATCH.decode().replace("tests/", "vllm/"), UnsafePath),
    ],
)
def test_a_folder_that_is_not_right(
    world: World, proposal: Proposal, name: str, text: str, fault: type[Exception]
) -> None:
    folder = world.root / "upstream" / "0001-first-change"
    (folder / name).write_text(text, errors="surrogateescape")
    with pytest.raises(fault):
        load_proposal(world.root, proposal.series, proposal.patch)


def test_a_folder_without_pr_toml(world: World, proposal: Proposal) -> None:
    (world.root / "upstream" / "0001-first-change" / "pr.toml").unlink()
    with pytest.raises(IntegrityFault, match="is missing"):
        load_proposal(world.root, proposal.series, proposal.patch)


def stand(proposal: Proposal, read: Read, faults: Sequence[Fault] = ()) -> Standing:
    return standing(proposal, faults, "9.9.1", PRISTINE.get, read)


def test_standing(world: World) -> None:
    """Contained, not needed, partly and missing, each told from the others."""
    first, second, third = (
        Proposal(world.project.series(VERSION), patch)
        for patch in world.project.series(VERSION).patches
    )
    assert stand(first, PRISTINE.get).state == "missing"
    applied = world.expected()
    assert stand(third, applied.get).state == "contained"
    beta = {**PRISTINE, "vllm/beta.py": applied["vllm/beta.py"]}
    partly = stand(second, beta.get)
    assert partly.state == "partly"
    assert partly.evidence[0].startswith("vllm/beta.py: hunk 1")
    otherwise = {**PRISTINE, ALPHA: PRISTINE[ALPHA].replace(b"alpha_3 = 3\n", b"alpha_3 = 9\n")}
    found = stand(first, otherwise.get, [CURED])
    assert (found.state, found.drop, found.merges) == ("not needed", True, False)
    report = upstream_status_report([found, partly], VERSION, "9.9.1")
    assert report.message.endswith("9.9.1 makes 1 needless; to drop there: 0001")
    assert "merge by hand" not in "".join(report.lines()[4:6])


def test_the_body(world: World, checkout: Path, proposal: Proposal) -> None:
    """The template's sections filled; without a report nothing is claimed to have run."""
    made = attempt(world, proposal, checkout)
    assert made.body is not None
    text = made.body.read_text()
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## Overview", "## Validation", "## Details"]
    assert "<!--" not in text
    assert "Tests: not run" in text
    assert "- alpha is 3: so at " in text
    assert ", not so with this change" in text
    assert "- passed: style\n- not run: clang\n" in text
    assert "stand-in model: not run" in text
    assert "gh pr view 12 --repo vllm-project/vllm --comments" in text
    assert "- [ ] I, Uma Upstream <uma@example.invalid>, have reviewed" in text
    assert "- [x] AI assistance was used" in text

    run = {
        "patch": proposal.slug,
        "release": VERSION,
        "command": "pytest",
        "skipped": 0,
        "date": "2026-11-29",
    }
    runs = [
        {**run, "patched": False, "passed": 0, "failed": 1, "failures": ["t: wrong"]},
        {**run, "patched": True, "passed": 1, "failed": 0},
        {**run, "patch": "0002-other", "patched": True, "passed": 5, "failed": 0},
    ]
    suite = (
        b"3 passed\n\n| release | unit |\n|---|---|\n| 9.8.0 | 7 passed |\n| 9.9.0 | 3 passed |\n"
    )
    write_tree(world.root, {TESTS: json.dumps({"runs": runs}).encode(), SUITE: suite})
    git(checkout, "branch", "-D", made.branch)
    attempt(world, proposal, checkout)
    text = made.body.read_text()
    assert "| 9.9.0 | `pytest` | without | 1 failed | 2026-11-29 |" in text
    assert "| 9.9.0 | `pytest` | with | 1 passed | 2026-11-29 |" in text
    assert "stand-in model:\n\n| release | unit |\n|---|---|\n| 9.9.0 | 3 passed |\n" in text
    assert "`t: wrong`" in text
    assert "5 passed" not in text
    assert "Tests: not run" not in text

    write_tree(world.root, {TESTS: b"[]"})
    git(checkout, "branch", "-D", made.branch)
    attempt(world, proposal, checkout)
    assert "Tests: not run (upstream-tests.json cannot be read" in made.body.read_text()


def test_other_templates() -> None:
    parts = {"overview": "why", "plan": "how", "results": "what", "details": "more"}
    old = (
        "<!-- m -->\n## Purpose\n\n## Test Plan\nold\n## Test Result\n\n---\n<details>x</details>\n"
    )
    assert fill(old, parts) == (
        "<!-- m -->\n## Purpose\n\nwhy\n\nmore\n\n## Test Plan\n\nhow\n\n"
        "## Test Result\n\nwhat\n\n---\n<details>x</details>\n"
    )
    assert fill("", {"overview": "why"}) == "## Overview\n\nwhy\n"


def test_the_command_line(tmp_path: Path) -> None:
    """Its faults are sentences, as JSON too, before anything is fetched."""
    tool = Path(__file__).parents[2] / "tools" / "upstream.py"

    def fail(*words: str) -> tuple[int, str]:
        command = [sys.executable, str(tool), *words, "--repo", str(tmp_path), "--json"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        told = json.loads(found.stdout)
        assert told["exit_code"] == found.returncode
        return found.returncode, told["schema"]

    assert fail("prepare", "3") == (3, "vllm-kimi-eagle3/upstream-prepare/1")
    assert fail("prepare", "no-such") == (2, "vllm-kimi-eagle3/upstream-prepare/1")
    assert fail("status", "--pinned", "0.16.0") == (2, "vllm-kimi-eagle3/upstream-status/1")


def test_the_page_names_patches_that_there_are() -> None:
    """What is said by hand of a patch goes when the patch does, and never twice."""
    project = Project.here()
    series = project.series(project.releases.versions[-1])
    numbers = re.findall(r"^### (\d{4})$", (project.root / PAGE).read_text(), re.MULTILINE)
    assert numbers == sorted(set(numbers) & {patch.name[:4] for patch in series.patches})


def test_what_is_there_for_upstream_can_be_read() -> None:
    """Each folder belongs to a patch of the newest release, and is complete."""
    project = Project.here()
    series = project.series(project.releases.versions[-1])
    slugs = {patch.name.removesuffix(".patch"): patch for patch in series.patches}
    for folder in sorted((project.root / "upstream").glob("[0-9]*/")):
        proposal = load_proposal(project.root, series, slugs[folder.name])
        assert proposal.submission is not None
        assert proposal.new or proposal.diffs, f"{folder.name}: brings no test"
