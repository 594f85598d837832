"""Real images, built and run by buildah without any daemon, on bases made here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin.engine import engine_environ, make_checkpoint, serve

import bootstrap
from images.support import RELEASE, ROOT, SITE, USER, Builder, engine_packages, files_of, make_base
from patchset.operations import apply
from patchset.project import Project
from patchset.tree import open_tree

pytestmark = pytest.mark.slow
OURS = Path("opt/vllm-kimi-eagle3")
FREE = 10 * 10**9  # vfs keeps a whole copy of each image and container


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed (Debian's package will do)")
    if os.geteuid() != 0:
        pytest.skip("making a base image with buildah needs root here")
    folder = tmp_path_factory.mktemp("images")
    if shutil.disk_usage(folder).free < FREE:
        pytest.skip(f"less than {FREE / 1e9:.0f} GB free in {folder}")
    made = Builder(folder)
    yield made
    made.close()


def test_a_base_that_does_not_fit_fails_the_build(builder: Builder) -> None:
    packages = bootstrap.site_packages(bootstrap.environment(ROOT / "requirements" / "tools.txt"))
    make_base(builder, "localhost/stock:1", packages, small=True)
    found = builder.make_image("localhost/stock:1", "--release", "0.31.0", code=3)
    assert f"is vLLM {RELEASE}, not 0.31.0" in found["message"]
    # It has no engine to import: that is said as well, and nothing is kept.
    found = builder.make_image("localhost/stock:1", "--release", RELEASE, code=3)
    assert "cannot be imported without a GPU: ModuleNotFoundError" in found["message"]
    assert builder("images", "--quiet").count("\n") == 0

    touched = SITE / "vllm" / "v1" / "core" / "sched" / "scheduler.py"

    def edited(site: Path) -> None:
        path = site / touched.relative_to(SITE)
        path.write_text(path.read_text() + "# by hand\n")

    make_base(builder, "localhost/edited:1", packages, small=True, edit=edited)
    found = builder.make_image("localhost/edited:1", "--release", RELEASE, code=3)
    assert f"is foreign: {touched.relative_to(SITE)}: was edited" in found["message"]

    def patched(site: Path) -> None:
        with open_tree(site) as tree:
            apply(tree, Project.here())

    make_base(builder, "localhost/patched:1", packages, small=True, edit=patched)
    found = builder.make_image("localhost/patched:1", "--release", RELEASE, code=3)
    digest = Project.here().lock(RELEASE).digest
    assert f"its vLLM is patched already, with {digest}" in found["message"]


def test_an_image_serves_the_stand_in(builder: Builder, tmp_path: Path) -> None:
    project = Project.here()
    lock = project.lock(RELEASE)
    packages = engine_packages()
    base = "localhost/vllm-cpu:1"
    before = make_base(builder, base, packages)
    found = builder.make_image(base, "--release", RELEASE)
    builder("rmi", base)
    image = found["image"]

    config = builder.config(image)
    assert (config["User"], config["Entrypoint"]) == (USER, [f"/{OURS}/entrypoint"])
    labels = config["Labels"]
    assert labels["vllm-kimi-eagle3.patch-set"] == lock.digest
    assert labels["org.opencontainers.image.base.digest"] == found["base_digest"]
    assert labels["org.opencontainers.image.base.name"] == base

    container = builder("from", "--pull-never", image)
    root = Path(builder("mount", container))
    note = json.loads((root / OURS / "image.json").read_text())
    assert (note["patch_set"], note["base_digest"]) == (lock.digest, found["base_digest"])
    assert note["entrypoint"] == ["vllm", "serve"]
    bill = json.loads((root / labels["vllm-kimi-eagle3.sbom"].lstrip("/")).read_text())
    (vllm,) = (item for item in bill["components"] if item["name"] == "vllm-cpu")
    assert len(vllm["pedigree"]["patches"]) == len(lock.patches)

    # Beside our own folder: the touched files, their bytecode, the record of it. No cache, no tool.
    after = files_of(root)
    new = {name for name in after if name not in before and Path(name).parts[:2] != OURS.parts}
    touched = {*lock.paths, "vllm/_version.py"}
    bytecode = {name for name in new if name.endswith(".pyc")}
    assert len(bytecode) == len(touched)
    added = {path for path, entry in lock.paths.items() if entry.before is None}
    state = f"{SITE}/.vllm-kimi-eagle3/state.json"
    # What buildah itself leaves in every container, to be mounted over.
    mounted = {"etc/hostname", "etc/hosts", "etc/resolv.conf", "run/.containerenv"}
    assert new - bytecode - mounted == {state, *(f"{SITE}/{path}" for path in added)}
    changed = {name for name in before if after.get(name) != before[name]}
    record = f"{SITE}/vllm_cpu-{RELEASE}.dist-info/RECORD"
    assert changed == {record, *(f"{SITE}/{path}" for path in touched - added)}

    # The stand-in and its plugin come from outside, through mounts.
    python = bootstrap.environment(ROOT / "requirements" / f"engine-{RELEASE}.txt")
    made = make_checkpoint(
        python, "standin.constructed:make_constructed_set", drafters={"drafter": {}}
    )
    # The weights in the cache are for their owner alone, and the image runs as another user.
    readable = shutil.copytree(made, tmp_path / "made")
    for path in [readable, *readable.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    environ = engine_environ(root / SITE)
    wanted = {key: environ[key] for key in environ if os.environ.get(key) != environ[key]}
    wanted |= {
        "PYTHONPATH": "/proof/standin/plugin:/proof",
        "VLLM_CACHE_ROOT": "/tmp/vllm",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    start = ["buildah", "run", "--isolation", "chroot"]
    start += [word for key, value in wanted.items() for word in ("--env", f"{key}={value}")]
    for outside, inside in [
        (ROOT / "standin", "/proof/standin"),
        (readable, "/proof/made"),
    ]:
        start += ["--volume", f"{outside}:{inside}:ro"]
    start += [container, "--", *config["Entrypoint"]]
    speculation = {"method": "eagle3", "model": "/proof/made/drafter", "num_speculative_tokens": 3}
    engine = {
        "model": "/proof/made/target",
        "limit_mm_per_prompt": {"vision_chunk": 0},
        "speculative_config": speculation,
    }
    own = {key: builder.environ[key] for key in ("STORAGE_DRIVER", "CONTAINERS_STORAGE_CONF")}
    log = tmp_path / "server.log"
    with serve(
        python, root / SITE, engine, log=log, environ=own, timeout=1800, launch=start
    ) as server:
        body = {"model": "standin", "prompt": "baba dabe gabi", "max_tokens": 32, "temperature": 0}
        answer = server.post("/v1/completions", body)
        metrics = server.metrics()
        version = server.get("/version")
    assert answer["usage"]["completion_tokens"] == 32
    assert metrics["vllm:spec_decode_num_accepted_tokens_total"] > 0
    assert version == {"version": project.release(RELEASE).local_version()}

    # An edit in the running container: the next start refuses, whoever starts it.
    place = root / SITE / "vllm" / "v1" / "core" / "sched" / "scheduler.py"
    place.write_text(place.read_text() + "# by hand\n")
    done = subprocess.run(
        [*start, "/proof/made/target"],
        env=builder.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 3, done.stderr
    assert "foreign: vllm/v1/core/sched/scheduler.py" in done.stderr
    assert done.stdout == ""
