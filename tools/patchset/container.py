"""Inside a base image: patch its vLLM, prove it, and leave what a start-up check needs."""

from __future__ import annotations

import json
import os
import pwd
import py_compile
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Literal

from patchset import operations
from patchset.errors import IntegrityFault, Refused, UsageFault
from patchset.image import copy_packages
from patchset.paths import VERSION_FILE
from patchset.project import Project
from patchset.releases import Sha256, Strict
from patchset.tree import open_tree

NOTE: Final = "image.json"
SBOM: Final = "sbom.cdx.json"
# What `apply.py --status --expect` imports; most packages behind it are those of the base.
_SCRIPTS: Final = ("apply.py", "cli.py")
_IMPORT_SECONDS: Final = 1800

# Names each module before its import, so that a crash without a traceback is attributed as well.
_SMOKE = """
import importlib, sys
for name in sys.argv[1:]:
    print("importing", name, file=sys.stderr, flush=True)
    importlib.import_module(name)
"""


class ImageNote(Strict, frozen=True):
    """``image.json``. ``tree`` is the folder that holds vLLM, ``imported`` the modules proved."""

    schema: Literal["vllm-kimi-eagle3/image/1"]
    release: str
    version: str
    patch_set: Sha256
    base: str
    base_digest: str
    entrypoint: list[str]
    python: str
    tree: str
    patches: list[str]
    imported: list[str]


def require_user(user: str) -> None:
    """Raise :class:`Refused` unless this process runs as ``user``: a name or a number."""
    name = user.partition(":")[0]
    try:
        wanted = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        wanted = -1
    if os.getuid() != wanted:
        raise Refused(
            f"the base runs as user {os.getuid()}, and the image was to run as {user}",
            next_step="Give the user of the base: --build-arg BASE_USER=...",
        )


def parse_entrypoint(text: str) -> list[str]:
    """The words of an entry point, a JSON list as image configurations have it."""
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise UsageFault(f"BASE_ENTRYPOINT is {text!r}, not a JSON list of words")
    return words


def build(
    project: Project,
    python: Path,
    release: str,
    *,
    base: str,
    base_digest: str,
    patch_set: str,
    version: str,
    entrypoint: list[str],
    out: Path,
) -> ImageNote:
    """Patch the vLLM that ``python`` imports, prove it, and write the folder ``out``.

    ``out`` gets ``check`` (exit code 0 only where exactly this patch set is applied),
    ``entrypoint`` (``check``, then the words of the base's own entry point), ``image.json``,
    ``sbom.cdx.json`` and what ``check`` needs. Raises :class:`Refused` when the base is not an
    untouched vLLM of ``release``, or when a patched module cannot be imported without a GPU.
    """
    series = project.series(release)
    _require_arguments(base_digest, patch_set, version, series.digest)
    pin = project.release(release)
    with open_tree(python) as tree:
        found = operations.inspect(tree, project, release)
        if found.verdict.state == "applied":
            raise Refused(
                f"{base}: its vLLM is patched already, with {found.verdict.digest}",
                next_step=f"Start from the image of the release: {pin.image}.",
            )
        operations.apply(tree, project, release)
        outcome = operations.inspect(tree, project, release)
        operations.require(outcome, patch_set)
        root, touched = tree.root, sorted({*project.lock(release).paths, VERSION_FILE})
    here = [root / path for path in touched if (root / path).is_file()]
    _compile(here)
    imported = [_module(path.relative_to(root)) for path in here if path.suffix == ".py"]
    _import(python, imported)
    note = ImageNote(
        schema="vllm-kimi-eagle3/image/1",
        release=pin.version,
        version=version,
        patch_set=series.digest,
        base=base,
        base_digest=base_digest,
        entrypoint=entrypoint,
        python=str(python),
        tree=str(root),
        patches=[patch.name for patch in series.patches],
        imported=imported,
    )
    _install(project, note, out)
    return note


def _require_arguments(base_digest: str, patch_set: str, version: str, ours: str) -> None:
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", base_digest):
        raise UsageFault(
            f"BASE_DIGEST is {base_digest!r}, not the digest of the base image",
            next_step="Use make image, or give --build-arg BASE_DIGEST=sha256:...",
        )
    if patch_set != ours:
        raise UsageFault(
            f"PATCH_SET is {patch_set!r}, and the series in the build context is {ours}",
            next_step="Use make image, or give that digest with --build-arg PATCH_SET=...",
        )
    if not version:
        raise UsageFault("IMAGE_VERSION is empty", next_step="Use make image, or give it.")


def _compile(sources: list[Path]) -> None:
    """Bytecode that holds whatever becomes of the times of the files: keyed by their content."""
    for source in sources:
        if source.suffix != ".py":
            continue
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        try:
            made = py_compile.compile(str(source), doraise=True, invalidation_mode=mode)
            assert made is not None  # without doraise it could be
        except py_compile.PyCompileError as fault:
            raise IntegrityFault(f"{source}: does not compile: {fault.exc_value}") from fault
        os.chmod(made, 0o644)


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _import(python: Path, modules: list[str]) -> None:
    """Import them all in one process without a GPU, leaving no cache behind."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_PLUGINS": "",
            **dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), folder),
            **dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"), folder),
            "VLLM_CACHE_ROOT": folder,
        }
        try:
            done = subprocess.run(
                [str(python), "-B", "-c", _SMOKE, *modules],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                cwd=folder,
                env=environ,
                timeout=_IMPORT_SECONDS,
            )
        except subprocess.TimeoutExpired as fault:
            took = f"{_IMPORT_SECONDS} s"
            raise Refused(f"importing the patched modules takes more than {took}") from fault
    if done.returncode:
        names = re.findall(r"^importing (\S+)$", done.stderr, re.MULTILINE)
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise Refused(
            f"{names[-1] if names else python}: cannot be imported without a GPU: {said}",
            next_step="Start from the image of the release; if you did, the series is at fault.",
        )


def _install(project: Project, note: ImageNote, out: Path) -> None:
    """Write ``out``: readable by every user, without anything that only building needs."""
    from patchset.sbom import sbom

    if out.exists():
        raise Refused(f"{out}: exists in the base", next_step="Start from an untouched base.")
    tools = out / "tools"
    kept = shutil.ignore_patterns("__pycache__")
    shutil.copytree(project.root / "tools" / "patchset", tools / "patchset", ignore=kept)
    for name in _SCRIPTS:
        shutil.copyfile(project.root / "tools" / name, tools / name)
    copy_packages(tools)  # beside the scripts: no other program finds them there
    for kind in ("patches", "overlay"):
        # Patches may be links to those of other releases, which do not go along.
        if (source := project.root / kind / f"v{note.release}").is_dir():
            shutil.copytree(source, out / kind / source.name)
    for name in ("patches/releases.toml", "LICENSE", "NOTICE"):
        shutil.copyfile(project.root / name, out / name)
    (out / NOTE).write_bytes(note.as_json(indent=2) + b"\n")
    (out / SBOM).write_text(json.dumps(sbom(project, note), indent=1) + "\n", encoding="utf-8")
    check = [note.python, str(tools / "apply.py"), note.python, "--status"]
    check += ["--expect", note.patch_set]
    _script(
        out / "check",
        "Exit code 3 unless vLLM is what this image was built with.",
        f"export PYTHONDONTWRITEBYTECODE=1  # also for the processes that it starts\n"
        f"exec {shlex.join(check)}",
    )
    _script(
        out / "entrypoint",
        "The base's own entry point, if vLLM is still what this image was built with.",
        f'{shlex.quote(str(out / "check"))} > /dev/null\nexec {shlex.join(note.entrypoint)} "$@"',
    )
    # Whatever the umask and the modes in the build context.
    for folder, _, files in os.walk(out):
        os.chmod(folder, 0o755)
        for name in files:
            os.chmod(Path(folder, name), 0o755 if name in ("check", "entrypoint") else 0o644)
    _compile(sorted(tools.rglob("*.py")))
    for made in tools.rglob("__pycache__"):
        made.chmod(0o755)


def _script(path: Path, what: str, body: str) -> None:
    path.write_text(f"#!/bin/sh\n# {what}\nset -eu\n{body}\n", encoding="utf-8")
