"""Runs under the engine's python: are the modules of every prefix of a series importable?

`python prefixes_probe.py STEPS`, with the release as published on PYTHONPATH. STEPS holds a folder
for each prefix, named so that they sort, with the files that it has changed so far, laid out as in
the tree. Prints one JSON object: prefix -> the error, or null.

vLLM is imported once, as published. Each prefix then has a fork of that process, which forgets the
modules that a series touches and imports them anew, each from its folder if it is there. What is
registered by name at import is there already, and not registered again.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


class Folder:
    """Finds the modules of one folder, before what is on PYTHONPATH."""

    def __init__(self, root: Path) -> None:
        self.files = {module(file, root): file for file in root.rglob("*.py")}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The importer's question: where is the module of that name?"""
        return spec_from_file_location(name, self.files[name]) if name in self.files else None


def module(file: Path, root: Path) -> str:
    """The name of the module in `file` of the tree `root`."""
    return ".".join(file.relative_to(root).with_suffix("").parts)


def attempt(step: Path, touched: list[str]) -> str | None:
    """Import what the prefix in the folder `step` touches, in this process; the error, if any."""
    from vllm.utils import torch_utils

    known: Any = torch_utils
    known.direct_register_custom_op = lambda *_, **__: None
    for name in touched:
        sys.modules.pop(name, None)
    folder: Any = Folder(step)
    sys.meta_path.insert(0, folder)
    try:
        for name in {*folder.files, *touched}:
            if name in folder.files or importlib.util.find_spec(name):
                found = importlib.import_module(name)
                assert name not in folder.files or found.__file__ == str(folder.files[name])
    except Exception:
        return traceback.format_exc()
    return None


def forked(step: Path, touched: list[str]) -> str | None:
    """`attempt` in a fork of this process."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, json.dumps(attempt(step, touched))[-60000:].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found: str | None = json.loads(text) if text else "the process died"
    return found


def main() -> None:
    """Try every prefix."""
    steps = sorted(Path(sys.argv[1]).iterdir())
    touched = sorted({module(file, step) for step in steps for file in step.rglob("*.py")})
    for name in touched:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # a new file of the series
                raise
    print(json.dumps({step.name: forked(step, touched) for step in steps}))


if __name__ == "__main__":
    main()
