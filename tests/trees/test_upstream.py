"""Patches of ours on vLLM's real source: what can be prepared for it, and what it has already."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import bootstrap
from patchset import hooks
from patchset.download import download
from patchset.faults import load_faults
from patchset.hooks import Linted
from patchset.paths import PACKAGE
from patchset.pull import TEMPLATE, writer
from patchset.series import Read
from patchset.source import open_source
from patchset.upstream import BESIDE, Repository, Standing, find, prepare, standing
from trees.support import PROJECT

pytestmark = pytest.mark.network

FAULTS = load_faults(PROJECT.root / "patches" / "faults.toml")
NEWEST = PROJECT.releases.versions[-1]
BEFORE = PROJECT.releases.versions[-2]


@pytest.fixture(scope="module")
def sources() -> Iterator[dict[str, Read]]:
    """The newest two releases, and an old one."""
    with ExitStack() as stack:
        yield {
            version: stack.enter_context(
                open_source(download(PROJECT.release(version).pristine()), (PACKAGE, *BESIDE))
            )
            for version in (NEWEST, BEFORE, "0.16.0")
        }


def git(root: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=root, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The newest release's source archive as a repository, but for code that no patch touches."""
    folder = tmp_path_factory.mktemp("upstream")
    with tarfile.open(download(PROJECT.release(NEWEST).find("sdist"))) as archive:
        away = (["rust"], ["csrc"])
        members = [item for item in archive if item.name.split("/")[1:2] not in away]
        archive.extractall(folder, members, filter="data")
    root = folder / f"vllm-{NEWEST}"
    git(root, "init", "-q")
    git(root, "config", "user.name", "Uma Upstream")
    git(root, "config", "user.email", "uma@example.invalid")
    git(root, "add", "--all", "--force")
    git(root, "commit", "-q", "-m", f"vLLM {NEWEST}")
    return root


def stand(version: str, patch: str, onto: str, sources: dict[str, Read]) -> Standing:
    proposal = find(PROJECT, patch, version)
    return standing(proposal, FAULTS, onto, sources[version], sources[onto])


def test_the_newest_release_needs_every_patch(sources: dict[str, Read]) -> None:
    """Each merges by itself onto its own release, but where it builds on one before it."""
    for patch in PROJECT.series(NEWEST).patches:
        found = stand(NEWEST, patch.name[:4], NEWEST, sources)
        assert found.state == "missing", patch.name
        assert found.merges or find(PROJECT, patch.name[:4], NEWEST).neighbours, found.evidence
        assert not (set(found.found.values()) & {False}), found.evidence


def test_a_patched_release_needs_none(sources: dict[str, Read]) -> None:
    after: dict[str, bytes | None] = {}
    for step in PROJECT.series(NEWEST).forward(sources[NEWEST]):
        after.update(step.files)

    def patched(path: str) -> bytes | None:
        return after[path] if path in after else sources[NEWEST](path)

    for patch in PROJECT.series(NEWEST).patches:
        proposal = find(PROJECT, patch.name[:4], NEWEST)
        found = standing(proposal, FAULTS, "patched", sources[NEWEST], patched)
        assert found.drop, (patch.name, found.evidence)


def test_an_old_release_before_the_faults(sources: dict[str, Read]) -> None:
    """What faults.toml says that 0.16.0 has not is no reason for a patch there."""
    affected = {fault.id: fault.affects("0.16.0") for fault in FAULTS}
    for patch in PROJECT.series(NEWEST).patches:
        found = stand(NEWEST, patch.name[:4], "0.16.0", sources)
        if found.found and None not in found.found.values():
            assert found.drop == (not any(affected[fault] for fault in patch.faults)), patch.name


@pytest.mark.slow
def test_prepare_every_patch_of_the_release_before(
    checkout: Path, sources: dict[str, Read], tmp_path: Path
) -> None:
    """Made and cured, or a conflict with its files; the checkout's own files stay as they are."""
    before = git(checkout, "status", "--porcelain", "--ignored")
    made = {}
    for patch in PROJECT.series(BEFORE).patches:
        proposal = find(PROJECT, patch.name[:4], BEFORE)
        place = tmp_path / proposal.slug
        result = prepare(
            proposal,
            Repository(checkout),
            "HEAD",
            faults=FAULTS,
            read_source=sources[BEFORE],
            read_newest=sources[NEWEST],
            place=place,
            lint=lambda root, paths: Linted(not_run=("all",)),
            body=writer(tmp_path, FAULTS),
        )
        made[patch.name] = result.result
        if result.result == "conflict":
            for step in result.steps:
                if step.state == "conflict":
                    assert any((place / "conflict" / step.name).rglob("*.py"))
            continue
        assert result.result == "made", patch.name
        assert not result.left
        message = git(checkout, "log", "-1", "--format=%B", result.branch)
        assert message.rstrip().endswith("Signed-off-by: Uma Upstream <uma@example.invalid>")
        assert "Fault:" not in message
        assert result.body is not None
        template = (checkout / TEMPLATE).read_text()
        headings = [line for line in template.splitlines() if line.startswith("## ")]
        text = result.body.read_text()
        assert all(f"\n{heading}\n" in text for heading in headings)
        assert "<!-- Summarize" not in text
    assert "made" in made.values()
    assert git(checkout, "status", "--porcelain", "--ignored") == before
    assert git(checkout, "rev-list", "--count", "HEAD").strip() == "1"


@pytest.mark.slow
def test_the_hooks_of_the_newest_release(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own formatter and linters really run, at the versions that its checkout pins."""
    monkeypatch.setenv("SKIP", "mypy")  # it takes a minute for what the others show as well
    tree = tmp_path / "tree"
    git(checkout, "worktree", "add", "-q", "--detach", str(tree), "HEAD")
    bad = tree / "vllm" / "utils" / "of_ours.py"
    bad.write_text("import torch\ndef f( x ):\n    return undefined_name\n")
    git(tree, "add", "--all")
    found = hooks.lint(
        tree,
        ["vllm/utils/of_ours.py"],
        bootstrap.environment(PROJECT.root / "requirements" / "dev.txt"),
        bootstrap.cache_root() / "pre-commit",
    )
    assert {"ruff-check", "ruff-format"} <= found.hooks.keys()
    assert "ruff-check" in found.failed  # the undefined name, which no fix takes away
    assert "undefined_name" in found.output
    assert found.hooks["ruff-format"] == "fixed"
    assert "def f(x):" in bad.read_text()
    assert found.hooks["Check SPDX headers"] == "fixed"
