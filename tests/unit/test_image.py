"""The image: what happens inside a base, and what the build program is told."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patchset import container, image
from patchset.container import ImageNote, build, parse_entrypoint, require_user
from patchset.errors import EnvironmentFault, PatchsetError, Refused, UsageFault
from patchset.project import Project
from unit import support
from unit.support import VERSION, World, facts, make_world

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "sha256:" + "7" * 64
BASE = f"vllm/vllm-openai:v{VERSION}"


@pytest.fixture(scope="module")
def importable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose patched modules are all valid Python."""
    with pytest.MonkeyPatch.context() as patch:
        name, plain = "vllm/sub/gamma.py", b"def f():\n    return 1\n" * 6
        patch.setitem(support.PRISTINE, name, plain)
        patch.setitem(support._EDITS[1][2], name, plain.replace(b"1\n", b"2\n", 2))
        root = make_world(tmp_path_factory.mktemp("importable") / "world").root
    (root / "patches" / "faults.toml").write_text("""\
[[fault]]
id = "F05"
title = "the fifth"
symptom = "five"
pattern = "five"
affected = [{ first = "9.9.0" }]
grade = "?"
evidence = "none"
established = "guessing"
""")
    shutil.copytree(
        ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__", "advice")
    )
    for name in ("LICENSE", "NOTICE", "Dockerfile"):
        shutil.copyfile(ROOT / name, root / name)
    return root


@pytest.fixture
def world(importable: Path, tmp_path: Path) -> World:
    root = tmp_path / "world"
    shutil.copytree(importable, root)
    return World(root, Project(root))


class Inside:
    """A base image's Python and vLLM, without the image around it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tree = world.tree("install")
        self.out = world.root / "opt"
        self.python = world.root / "python"
        self.python.write_text(
            f'#!/bin/sh\nPYTHONPATH={self.tree}:"${{PYTHONPATH-}}" exec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o755)

    def build(self, **changed: Any) -> ImageNote:
        given: dict[str, Any] = {
            "base": BASE,
            "base_digest": DIGEST,
            "patch_set": self.world.project.series(VERSION).digest,
            "version": "9.9.0-kimi.eagle3.4",
            "entrypoint": ["echo", "vllm serve"],
            "out": self.out,
        }
        release = changed.pop("release", VERSION)
        return build(self.world.project, self.python, release, **{**given, **changed})

    def start(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.out / "entrypoint"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def inside(world: World) -> Inside:
    return Inside(world)


def test_a_base_becomes_an_image(inside: Inside) -> None:
    before = facts(inside.tree)
    note = inside.build()
    digest = inside.world.project.series(VERSION).digest
    assert json.loads((inside.out / "image.json").read_text()) == {
        "schema": "vllm-kimi-eagle3/image/1",
        "release": VERSION,
        "version": "9.9.0-kimi.eagle3.4",
        "patch_set": digest,
        "base": BASE,
        "base_digest": DIGEST,
        "entrypoint": ["echo", "vllm serve"],
        "python": str(inside.python),
        "tree": str(inside.tree),
        "patches": list(note.patches),
        "imported": [
            "vllm._version",
            "vllm.alpha",
            "vllm.beta",
            "vllm.extra.over",
            "vllm.sub.deep.new",
            "vllm.sub.gamma",
        ],
    }
    # Bytecode of what was touched, and nothing else that was not there.
    known = {name for name in facts(inside.tree) if ".pyc" in name} - set(before)
    assert {re.sub(r"__pycache__/(\w+)\..*", r"\1", name) for name in known} == {
        name.replace(".", "/") for name in note.imported
    }
    for name in known:
        # PEP 552: the second word of a .pyc is 3 when it is keyed and checked by content.
        assert (inside.tree / name).read_bytes()[4:8] == b"\x03\0\0\0"
    for path in [inside.out, *inside.out.rglob("*")]:
        runs = path.is_dir() or path.name in ("check", "entrypoint")
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if runs else 0o644), path
    assert not [path for path in inside.out.rglob("*") if path.is_symlink()]


def test_the_entry_point_starts_the_bases_own_only_on_what_was_built(inside: Inside) -> None:
    inside.build()
    shutil.rmtree(inside.world.root / "tools")  # what the check needs is in the image
    done = inside.start("--model", "a b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "vllm serve --model a b\n", "")
    path = inside.tree / "vllm" / "beta.py"
    path.write_bytes(path.read_bytes() + b"\n")
    (inside.tree / "unidiff.py").write_text("raise ImportError\n")  # a base has no such package
    done = inside.start()
    assert (done.returncode, done.stdout) == (3, "")
    assert "foreign: vllm/beta.py" in done.stderr


def test_links_to_other_releases_go_along_as_files(inside: Inside) -> None:
    patch = next(inside.world.patches.glob("0001-*"))
    older = inside.world.patches.parent / "v9.8.0"
    older.mkdir()
    patch.rename(older / patch.name)
    patch.symlink_to(f"../v9.8.0/{patch.name}")
    inside.build()
    kept = inside.out / "patches" / f"v{VERSION}" / patch.name
    assert kept.is_file()
    assert not kept.is_symlink()
    assert sorted(path.name for path in (inside.out / "patches").iterdir()) == [
        "releases.toml",
        f"v{VERSION}",
    ]
    assert inside.start().returncode == 0


def test_the_bill_of_materials_names_patches_and_faults(inside: Inside) -> None:
    inside.build()
    found = json.loads((inside.out / "sbom.cdx.json").read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    properties = {
        item["name"]: item["value"] for item in found["metadata"]["component"]["properties"]
    }
    assert properties["vllm-kimi-eagle3:base-digest"] == DIGEST
    by_name = {item["name"]: item for item in found["components"]}
    assert by_name["click"]["purl"].startswith("pkg:pypi/click@")


def test_the_pedigree_of_vllm(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(inside.tree))
    inside.build()
    found = json.loads((inside.out / "sbom.cdx.json").read_text())
    (vllm,) = (item for item in found["components"] if item["name"] == "vllm")
    assert vllm["version"] == VERSION
    patches = vllm["pedigree"]["patches"]
    assert [[item["id"] for item in patch["resolves"]] for patch in patches] == [
        ["F03"],
        ["F05", "F06"],
        ["F08"],
    ]
    assert patches[1]["resolves"][0]["name"] == "the fifth"
    for patch in patches:
        name, _, sha256 = patch["diff"]["url"].partition("#sha256=")
        content = (inside.out / name).read_bytes()
        assert sha256 == hashlib.sha256(content).hexdigest()
    assert "vllm/extra/over.py" in vllm["pedigree"]["notes"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"base_digest": ""}, "BASE_DIGEST is '', not the digest of the base image"),
        ({"patch_set": "0" * 64}, "the series in the build context is "),
        ({"version": ""}, "IMAGE_VERSION is empty"),
        ({"release": "9.9.1"}, "vLLM 9.9.1 is not a pinned release"),
    ],
)
def test_wrong_arguments_change_nothing(inside: Inside, changed: dict[str, str], said: str) -> None:
    before = facts(inside.world.root)
    with pytest.raises(PatchsetError, match=re.escape(said)):
        inside.build(**changed)
    assert facts(inside.world.root) == before


def test_a_patched_base_is_refused(inside: Inside) -> None:
    inside.build()
    with pytest.raises(Refused, match=r"its vLLM is patched already, with [0-9a-f]{64}"):
        inside.build()


def test_an_edited_base_is_refused(inside: Inside) -> None:
    path = inside.tree / "vllm" / "alpha.py"
    path.write_bytes(path.read_bytes().replace(b"alpha_50", b"alpha_55"))
    with pytest.raises(Refused, match=r"is foreign: vllm/alpha.py: was edited"):
        inside.build()


def test_a_base_of_another_release_is_refused(inside: Inside) -> None:
    path = inside.tree / "vllm" / "_version.py"
    path.write_text(path.read_text().replace(VERSION, "9.8.0"))
    with pytest.raises(Refused, match=r"is vLLM 9\.8\.0, not 9\.9\.0"):
        inside.build()


def test_a_module_that_cannot_be_imported_is_refused(inside: Inside) -> None:
    (inside.tree / "vllm" / "__init__.py").write_text("raise OSError('libcuda.so.1 is missing')\n")
    said = r"vllm\._version: cannot be imported without a GPU: OSError: libcuda"
    with pytest.raises(Refused, match=said):
        inside.build()
    assert not inside.out.exists()


def test_users() -> None:
    require_user(str(os.getuid()))
    require_user(f"{os.getuid()}:0")
    for other in (str(os.getuid() + 1), "nobody-of-that-name", ""):
        with pytest.raises(Refused, match="the base runs as user"):
            require_user(other)


@pytest.mark.parametrize("text", ["", "vllm serve", "[]", '"vllm"', "[1]", "{}"])
def test_an_entry_point_is_a_list_of_words(text: str) -> None:
    assert parse_entrypoint('["vllm", "serve"]') == ["vllm", "serve"]
    with pytest.raises(UsageFault, match="not a JSON list of words"):
        parse_entrypoint(text)


# ---------------------------------------------------------------- outside

DOCKER = """\
#!{python}
import json, sys
open({log!r}, "a").write(json.dumps(sys.argv) + "\\n")
there = {there!r}
if "inspect" in sys.argv:
    import os
    if not os.path.exists(there):
        sys.exit(1)
    print(open(there).read())
elif "pull" in sys.argv:
    open(there, "w").write({answer!r})
elif "build" in sys.argv:
    print("#7 1.2 {said}")
    sys.exit({code})
"""


class Program:
    """A stand-in for docker or podman that notes what it is told."""

    def __init__(self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "bin" / name
        self.log = folder / "log"
        self.there = folder / "there"
        self.path.parent.mkdir(exist_ok=True)
        self.answer({"RepoDigests": [f"vllm/vllm-openai@{DIGEST}"], "Config": {"User": "vllm"}})
        monkeypatch.setenv("PATH", str(self.path.parent))

    def answer(self, about: dict[str, Any], said: str = "done", code: int = 0) -> None:
        text = DOCKER.format(
            python=sys.executable,
            log=str(self.log),
            there=str(self.there),
            answer=json.dumps([about]),
            said=said,
            code=code,
        )
        self.path.write_text(text)
        self.path.chmod(0o755)

    def told(self) -> list[list[str]]:
        return [json.loads(line)[1:] for line in self.log.read_text().splitlines()]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(tmp_path, "docker", monkeypatch)


def run(world: World, *words: str, code: int = 0) -> dict[str, Any]:
    command = [sys.executable, str(world.root / "tools" / "image.py"), *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_the_command_builds_on_the_digest_of_the_base(world: World, docker: Program) -> None:
    found = run(world, "--release", VERSION)
    digest = world.project.lock(VERSION).digest
    assert found == {
        "schema": "vllm-kimi-eagle3/image/1",
        "result": "done",
        "exit_code": 0,
        "message": f"vllm-kimi-eagle3:9.9.0-kimi.eagle3.4 has {BASE} and patch set {digest[:12]}",
        "release": VERSION,
        "engine": "docker",
        "image": "vllm-kimi-eagle3:9.9.0-kimi.eagle3.4",
        "base": BASE,
        "base_digest": DIGEST,
        "patch_set": digest,
    }
    assert [words[0] for words in docker.told()] == ["version", "image", "pull", "image", "build"]
    words = docker.told()[-1]
    assert words[-1] == str(world.root)
    given = dict(word.split("=", 1) for word in words if "=" in word)
    assert given == {
        "VLLM_RELEASE": VERSION,
        "BASE_IMAGE": BASE,
        "BASE_DIGEST": DIGEST,
        "BASE_USER": "vllm",
        "BASE_ENTRYPOINT": '["vllm", "serve"]',
        "PATCH_SET": digest,
        "IMAGE_VERSION": "9.9.0-kimi.eagle3.4",
    }
    assert words[words.index("--network") + 1] == "none"
    # What the applier needs beyond vLLM's own dependencies, with its licence.
    staged = world.root / "build" / "image"
    assert (staged / "unidiff" / "patch.py").is_file()
    assert list(staged.glob("unidiff-*.dist-info/**/LICENSE*"))
    assert not list(staged.rglob("__pycache__"))


def test_another_machine_is_always_fetched(world: World, docker: Program) -> None:
    run(world, "--release", VERSION)
    run(world, "--release", VERSION, "--arch", "aarch64", "--tag", "mine:1")
    pull, _, words = docker.told()[-3:]
    assert pull == ["pull", "--platform", "linux/arm64", BASE]
    assert words[words.index("--platform") + 1] == "linux/arm64"
    assert words[words.index("--tag") + 1] == "mine:1"


@pytest.mark.parametrize(
    ("line", "code", "kind"),
    [
        ("refused: /a: is foreign: vllm/x.py: was edited. Start.", 3, "refused"),
        ("integrity failure: series.lock: is stale.", 4, "integrity"),
        ("failed: /a: cannot be written.", 5, "environment"),
        ("failed: unexpected fault in the tool.", 1, "unexpected"),
        ("no space left on device", 5, "environment"),
    ],
)
def test_the_reason_of_a_failed_build(
    world: World, docker: Program, line: str, code: int, kind: str
) -> None:
    docker.answer({"Digest": DIGEST, "Config": {}}, line, code=125)
    found = run(world, "--release", VERSION, code=code)
    assert found["error"]["kind"] == kind
    assert line.partition(": ")[2] in found["message"]


def test_what_is_refused_before_anything_is_built(world: World, docker: Program) -> None:
    assert "not a pinned release" in run(world, "--release", "1.0", code=3)["message"]
    assert not docker.log.exists()
    docker.answer({"RepoDigests": [], "Config": {}})
    found = run(world, "--release", VERSION, code=3)
    assert "knows no digest of it" in found["message"]
    found = run(world, "--release", VERSION, "--engine", "podman", code=5)
    assert found["message"] == "podman does not work here"
    docker.path.write_text("#!/bin/sh\nexit 1\n")
    found = run(world, "--release", VERSION, code=5)
    assert "none of docker, podman and buildah" in found["message"]
    assert "--release is missing" in run(world, code=2)["message"]


@pytest.mark.parametrize(
    ("name", "base", "step"),
    [
        ("docker", BASE, "--base names another image."),
        ("podman", BASE, f"podman wants the registry as well: --base REGISTRY/{BASE}."),
        ("podman", f"registry.example/{BASE}", "--base names another image."),
        ("buildah", "localhost:5000/a:1", "--base names another image."),
        ("buildah", "localhost/a:1", "--base names another image."),
    ],
)
def test_a_base_that_cannot_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: image.Program, base: str, step: str
) -> None:
    Program(tmp_path, name, monkeypatch).path.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(EnvironmentFault, match=f"{name} cannot fetch it") as caught:
        image.find_base(name, base, None)
    assert (caught.value.next_step or "").endswith(step)


@pytest.mark.parametrize("program", image.PROGRAMS)
def test_no_network_and_no_image_for_each_step(
    program: image.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def words() -> set[str]:
        return set(image.command(program, ROOT, {}, "a:1", None))

    monkeypatch.delenv("BUILDAH_ISOLATION", raising=False)
    assert {"--network", "none"} <= words()
    assert ("--layers=false" in words()) == (program != "docker")
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")  # means nothing to docker
    assert ("none" in words()) == (program == "docker")


def test_dockerfile_and_bake_file_take_what_the_command_gives(world: World) -> None:
    text = (ROOT / "Dockerfile").read_text()
    base = image.Base(BASE, DIGEST, "0", ["vllm", "serve"])
    given = image.arguments(world.project, world.project.release(VERSION), base)
    declared = set(re.findall(r"^ARG (\w+)", text.partition("\nFROM ")[2], re.MULTILINE))
    assert declared == {*given, "PYTHONDONTWRITEBYTECODE"}
    baked = set(re.findall(r"^    ([A-Z_]+) +=", image.bake(world.project), re.MULTILINE))
    assert baked == set(given) - {"BASE_USER", "BASE_ENTRYPOINT"}  # their defaults hold for vLLM's
    assert "/opt/vllm-kimi-eagle3" in text
    assert container.NOTE == "image.json"


def test_the_bake_file_has_every_release_with_a_series() -> None:
    project = Project.here()
    text = (ROOT / image.BAKE).read_text()
    assert text == image.bake(project), "run: make table"
    versions = [item for item in project.releases.versions if project.has_series(item)]
    assert re.findall(r'release = "([^"]+)"', text) == versions
    for version in versions:
        assert f'"{image.target_of(version)}"' in text
        assert project.lock(version).digest in text
