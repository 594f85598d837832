"""Base images made on this machine: Python and the CPU build of a release, by buildah alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.support import Setting
from patchset.download import download
from patchset.project import Project

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "0.32.0"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = Path("usr/local/lib") / f"python{VERSION}" / "site-packages"
USER = "2000"  # as `vllm` is in vLLM's own images
# What an engine on a CPU does without: half of the space.
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "*.a", "*.dbg", "test", "include", "pip", "ptxas*"
)
# The applier's own needs, of which vLLM's are a superset.
SMALL = ("click", "msgspec", "packaging")


class Builder:
    """buildah with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            **os.environ,
            "STORAGE_DRIVER": "vfs",
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
        )

    def __call__(self, *words: str | Path) -> str:
        """Run buildah; returns standard output."""
        done = subprocess.run(
            ["buildah", *map(str, words)],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def config(self, image: str) -> dict[str, Any]:
        """User, entry point, labels and so on of an image."""
        found = json.loads(self("inspect", "--type", "image", image))["OCIv1"]["config"]
        assert isinstance(found, dict)
        return found

    def make_image(self, base: str, *words: str, code: int = 0) -> dict[str, Any]:
        """`tools/image.py` on a base; returns its report."""
        command = [sys.executable, str(ROOT / "tools" / "image.py"), "--engine", "buildah"]
        done = subprocess.run(
            [*command, "--base", base, "--json", *words],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert done.returncode == code, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        """Remove everything in the store."""
        self("rm", "--all")
        self("rmi", "--all", "--force")
        shutil.rmtree(self.folder / "store", ignore_errors=True)


def make_base(
    builder: Builder,
    name: str,
    packages: Path,
    *,
    small: bool = False,
    edit: Callable[[Path], object] = lambda site: None,
) -> dict[str, tuple[int, int]]:
    """Commit an image ``name``; returns size and time of each file in it, by path.

    It has this machine's Python and C library, ``packages`` (a site-packages folder) and the CPU
    build of the release. A ``small`` one is for what is refused before anything is imported: no
    compiled part of vLLM, few packages. ``edit`` gets the site-packages folder of the image.
    """
    container = builder("from", "scratch")
    root = Path(builder("mount", container))
    site = root / SITE
    for folder in ("bin", "etc", "usr/bin", "usr/local/bin", "home/vllm"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    os.chown(root / "home" / "vllm", int(USER), 0)
    (root / "etc" / "passwd").write_text(
        f"root:x:0:0::/root:/bin/sh\nvllm:x:{USER}:0::/home/vllm:/bin/sh\n"
    )
    (root / "etc" / "group").write_text("root:x:0:\n")

    library = Path(sys.base_prefix) / "lib" / f"python{VERSION}"
    _copy(library, root / SITE.parent, skip=frozenset(["site-packages"]))
    programs = [_program(root, Path(sys.base_prefix) / "bin" / f"python{VERSION}", "usr/local/bin")]
    (root / "usr/local/bin/python3").symlink_to(programs[0].name)
    programs += [_program(root, Path(shutil.which("sh") or "/bin/sh"), "bin")]
    for tool in ("lscpu", "uname"):
        if found := shutil.which(tool):
            programs.append(_program(root, Path(found), "usr/bin"))

    site.mkdir(exist_ok=True)
    for item in packages.iterdir():
        wanted = item.name.partition("-")[0] in SMALL
        if item.name == "pip" or item.name.startswith("pip-") or (small and not wanted):
            continue
        if item.is_dir():
            _copy(item, site / item.name)
        elif item.suffix != ".pth":
            _link(str(item), str(site / item.name))
    if not small:
        # Intel's OpenMP and others put their libraries beside Python's.
        for item in packages.parents[1].glob("*.so*"):
            _link(str(item), str(root / "usr/local/lib" / item.name))
    release = Project.here().release(RELEASE)
    with zipfile.ZipFile(download(release.find("wheel", "cpu"))) as wheel:
        names = [n for n in wheel.namelist() if not small or not n.endswith(".so")]
        wheel.extractall(site, names)
    script = root / "usr/local/bin/vllm"
    script.write_text(
        "#!/usr/local/bin/python3\nimport sys\nfrom vllm.entrypoints.cli.main import main\n"
        "if __name__ == '__main__':  # the engine core is spawned, and imports this again\n"
        "    sys.exit(main())\n"
    )
    script.chmod(0o755)
    needing = [*programs, *(root / SITE.parent / "lib-dynload").glob("*.so")]
    if not small:
        needing += [*(site / "torch" / "lib").glob("*.so*"), *(site / "vllm").glob("*.so")]
    _libraries(root, needing)
    edit(site)
    listing = files_of(root)
    builder("umount", container)
    builder(
        "config",
        *("--user", USER),
        *("--entrypoint", '["vllm", "serve"]'),
        *("--env", "PATH=/usr/local/bin:/usr/bin:/bin"),
        *("--env", "LD_LIBRARY_PATH=/usr/local/lib"),
        *("--env", "HOME=/home/vllm"),
        *("--workingdir", "/home/vllm"),
        container,
    )
    builder("commit", "--rm", container, name)
    return listing


def files_of(root: Path) -> dict[str, tuple[int, int]]:
    """Size in bytes and time in whole seconds of every file and link below ``root``."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            status = path.lstat()
            found[path.relative_to(root).as_posix()] = (status.st_size, int(status.st_mtime))
    return found


def engine_packages() -> Path:
    """The site-packages of the environment that the release's engine runs in."""
    import bootstrap

    python = bootstrap.environment(ROOT / "requirements" / Setting(RELEASE).lock)
    return bootstrap.site_packages(python)


def _program(root: Path, source: Path, folder: str) -> Path:
    made = root / folder / source.name
    shutil.copy2(source, made)
    return made


def _copy(source: Path, made: Path, skip: frozenset[str] = frozenset()) -> None:
    def ignore(folder: str, names: list[str]) -> set[str]:
        return _LEFT_OUT(folder, names) | (skip if Path(folder) == source else set())

    shutil.copytree(source, made, symlinks=True, ignore=ignore, copy_function=_link)


def _link(source: str, made: str) -> str:
    """A hard link where the file system allows: nothing is written through them."""
    try:
        os.link(source, made, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, made, follow_symlinks=False)
    return made


def _libraries(root: Path, programs: list[Path]) -> None:
    """Copy what `ldd` finds for ``programs`` outside of ``root``, at the same places."""
    inside = os.pathsep.join([str(root / SITE / "torch" / "lib"), str(root / "usr/local/lib")])
    done = subprocess.run(
        ["ldd", *map(str, programs)],
        env={**os.environ, "LD_LIBRARY_PATH": inside},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {Path(name) for name in re.findall(r"(?:=> |^\t)(/\S+)", done.stdout, re.MULTILINE)}
    # Empty since glibc 2.34, but wheels made for older ones still name them.
    for libc in [path for path in found if path.name == "libc.so.6"]:
        old = (libc.parent / name for name in ("libpthread.so.0", "libdl.so.2", "librt.so.1"))
        found |= {path for path in old if path.exists()}
    for source in found:
        if source.is_relative_to(root):
            continue
        # The interpreter's own library lies in its prefix, which other users may not enter.
        inside_prefix = source.is_relative_to(sys.base_prefix)
        made = root / "usr/local/lib" / source.name if inside_prefix else root / str(source)[1:]
        made.parent.mkdir(parents=True, exist_ok=True)
        if not made.exists():
            shutil.copy2(source, made)
