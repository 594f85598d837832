"""Pinned artifacts through the user's own package index, kept in a cache by checksum.

Wheels are fetched by pip, which knows the user's index, proxies, certificates and credentials. For
source archives pip would first build their metadata (for vLLM that needs torch), so those are found
through the index's simple page, at the address that pip is configured with.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from patchset.archive import Progress
from patchset.checksum import file_sha256
from patchset.errors import EnvironmentFault, IntegrityFault
from patchset.releases import Artifact

_STEP = (
    "Check the network and pip's configuration (pip config list), or fetch {file} elsewhere and "
    "put it into {folder}."
)


def cache_dir() -> Path:
    """Where downloads are kept: ``$XDG_CACHE_HOME/vllm-kimi-eagle3/downloads``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # its specification: a relative one is to be ignored
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        raise EnvironmentFault("you have no home folder", next_step="Set HOME or XDG_CACHE_HOME.")
    return Path(base) / "vllm-kimi-eagle3" / "downloads"


def cached(artifact: Artifact) -> Path:
    """Where that artifact lies once fetched."""
    return cache_dir() / artifact.sha256 / artifact.file


def download(artifact: Artifact, progress: Progress | None = None) -> Path:
    """The artifact in the cache, fetched if need be; its size and sha256 are checked each time.

    Raises :class:`EnvironmentFault` with the reason when it cannot be fetched or written, and
    :class:`IntegrityFault` when the index serves something else under that name.
    """
    target = cached(artifact)
    try:
        if target.is_file() and _matches(target, artifact, progress):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(".partial-*"):  # by a killed run; a live one is younger
            if time.time() - left.stat().st_mtime > 86_400:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent) as text:
            folder = Path(text)
            if artifact.kind == "wheel":
                _fetch_wheel(artifact, folder, progress)
            else:
                _fetch_sdist(artifact, folder, progress)
            found = folder / artifact.file
            if not found.is_file():
                have = ", ".join(sorted(item.name for item in folder.iterdir())) or "nothing"
                raise IntegrityFault(
                    f"the index gave {have} instead of {artifact.file}",
                    next_step=_step(artifact),
                )
            if not _matches(found, artifact, progress):
                raise IntegrityFault(
                    f"the index serves {artifact.file} with sha256 {file_sha256(found)}; pinned is "
                    f"{artifact.sha256}",
                    next_step=_step(artifact),
                )
            os.replace(found, target)
    except OSError as fault:
        raise EnvironmentFault(
            f"{target.parent}: cannot be used: {fault.strerror or fault}",
            next_step="Make room there, or set XDG_CACHE_HOME to another folder.",
        ) from fault
    return target


def _matches(path: Path, artifact: Artifact, progress: Progress | None) -> bool:
    return path.stat().st_size == artifact.size and (file_sha256(path, progress) == artifact.sha256)


def _fetch_wheel(artifact: Artifact, folder: Path, progress: Progress | None) -> None:
    # Between version and tags there may be a build number; pip takes the highest one by itself.
    project, version, *_, abi, platform = artifact.file.removesuffix(".whl").split("-")
    # A Python that may use the wheel; cp38-abi3 serves all later ones.
    python = f"{abi[2]}.{abi[3:]}" if re.fullmatch(r"cp3\d+", abi) else "3.12"
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"),
        *("--disable-pip-version-check", "--no-input", "--progress-bar", "raw"),
        *("--only-binary", ":all:", "--platform", platform),
        *("--python-version", python, "--implementation", "cp", "--abi", abi),
        *("--dest", str(folder), f"{project.replace('_', '-')}=={version}"),
    ]
    reason: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"Progress (\d+) of (\d+)", line):
                if progress:
                    progress(f"fetching {artifact.file}", int(found[1]), int(found[2]))
            elif line.lower().lstrip().startswith(("error", "warning: retrying", "discarding")):
                reason.append(line.strip())
    if process.returncode and re.search("is invalid|invalid wheel|inconsistent", " ".join(reason)):
        raise IntegrityFault(
            f"the index serves something else as {artifact.file}: {reason[0].rstrip('.')}",
            next_step=_step(artifact),
        )
    if process.returncode:
        raise EnvironmentFault(
            f"{artifact.file} could not be fetched: {_reason(reason, process.returncode)}",
            next_step=_step(artifact),
        )


def _reason(lines: list[str], code: int) -> str:
    """One sentence out of what pip said."""
    text = " ".join(lines)
    if re.search(r"No module named '?pip", text):
        return "this Python has no pip"
    if re.search("Retrying|NameResolution|NewConnection|Connection|timed out|Proxy|SSL", text):
        return "the package index cannot be reached (no network, or a wrong index address)"
    if "No matching distribution" in text or "Could not find a version" in text:
        # pip says no more than this when it may not retry (PIP_RETRIES=0), or may ask no index.
        doubt = "is out of reach or " if "(from versions: none)" in text else ""
        return f"the package index {doubt}does not have it"
    errors = [line.split(":", 1)[-1].strip() for line in lines if line.lower().startswith("error")]
    return errors[-1] if errors else f"pip ended with code {code}"


def _fetch_sdist(artifact: Artifact, folder: Path, progress: Progress | None) -> None:
    from pypi_simple import (
        PYPI_SIMPLE_ENDPOINT,
        NoSuchProjectError,
        PyPISimple,
        UnsupportedRepoVersionError,
    )
    from requests import RequestException, Session

    session = Session()
    if certificates := os.environ.get("PIP_CERT"):
        session.verify = certificates
    address = index_address() or PYPI_SIMPLE_ENDPOINT
    try:
        with PyPISimple(address, session=session) as index:
            try:
                page = index.get_project_page(artifact.project, timeout=60)
                found = [item for item in page.packages if item.filename == artifact.file]
            except NoSuchProjectError:
                found = []
            if not found:
                raise EnvironmentFault(
                    f"{artifact.file} could not be fetched: the package index does not have it",
                    next_step=_step(artifact),
                )
            with session.get(found[0].url, stream=True, timeout=60) as answer:
                answer.raise_for_status()
                with (folder / artifact.file).open("wb") as out:
                    done = 0
                    for chunk in answer.iter_content(1 << 20):
                        done += out.write(chunk)
                        if progress:
                            progress(f"fetching {artifact.file}", done, artifact.size)
    except RequestException as fault:
        raise EnvironmentFault(
            f"{artifact.file} could not be fetched: the package index cannot be reached "
            f"({type(fault).__name__})",
            next_step=_step(artifact),
        ) from fault
    except (ValueError, UnsupportedRepoVersionError) as fault:
        raise EnvironmentFault(
            f"{artifact.file} could not be fetched: the package index gives no answer "
            f"that can be read ({type(fault).__name__})",
            next_step=_step(artifact),
        ) from fault


def index_address() -> str | None:
    """The index that pip would ask, or ``None`` for the default one."""
    if address := os.environ.get("PIP_INDEX_URL"):
        return address
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or None


def _step(artifact: Artifact) -> str:
    return _STEP.format(file=artifact.file, folder=cached(artifact).parent)
