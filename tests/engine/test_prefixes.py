"""Each prefix of a series can be imported, in every release: a bisection never stops at a patch.

That they compile is tested in tests/trees. See `prefixes_probe.py` for how.
"""

import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from standin.engine import engine_environ

from engine.conftest import python_of
from engine.support import RELEASE, Setting
from patchset.download import download
from patchset.project import Project
from patchset.source import open_source

PROJECT = Project.here()
CASES = [
    pytest.param(item.version, marks=[] if item.version == RELEASE else [pytest.mark.slow])
    for item in PROJECT.releases.release
    if PROJECT.has_series(item.version)
]


def package(archive: Path, version: str, folder: Path) -> Path:
    """The `vllm` package of a source archive or wheel, without what is compiled in it."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            names = [name for name in wheel.namelist() if name.startswith("vllm/")]
            wheel.extractall(folder, [name for name in names if not name.endswith(".so")])
        tree = folder
    else:
        with tarfile.open(archive) as sources:
            members = [item for item in sources if item.name.split("/")[1:2] == ["vllm"]]
            sources.extractall(folder, members, filter="data")
        tree = folder / f"vllm-{version}"
    # vLLM asks for its own version as installed.
    metadata = tree / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return tree


@pytest.mark.parametrize("version", CASES)
def test_each_prefix_is_imported(version: str, tmp_path: Path) -> None:
    archive = download(PROJECT.release(version).pristine())
    so_far: dict[str, bytes] = {}
    with open_source(archive) as read:
        for number, step in enumerate(PROJECT.series(version).forward(read)):
            so_far.update({path: content or b"" for path, content in step.files.items()})
            for path, content in so_far.items():
                place = tmp_path / "steps" / f"{number:02}-{step.name}" / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
    tree = package(archive, version, tmp_path / "tree")
    probe = Path(__file__).with_name("prefixes_probe.py")
    done = subprocess.run(
        [python_of(Setting(version)), probe, tmp_path / "steps"],
        env=engine_environ(tree, {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR"}),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == number + 1
    wrong = [f"{step}: {error}" for step, error in found.items() if error]
    assert not wrong, "\n".join(wrong)
