"""Checkpoints on the Hugging Face hub, read in ranges: headers only, never the weights.

Needs the package ``huggingface_hub``, which these tools otherwise do without.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from patchset.errors import EnvironmentFault, Refused

# An owner and a name as the hub allows them, perhaps with a revision behind an @.
_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}(@[\w./-]+)?", re.ASCII)


def is_id(name: str) -> bool:
    """Whether ``name`` has the form of a hub id: ``owner/name``, also ``owner/name@revision``."""
    return _ID.fullmatch(name) is not None and ".." not in name


def cached(name: str) -> Path | None:
    """The folder of that model's snapshot in the hub's local cache, if there is one."""
    model, _, revision = name.partition("@")
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    root = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    folder = root / f"models--{model.replace('/', '--')}"
    revision = revision or "main"
    try:
        commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = revision
    found = folder / "snapshots" / commit
    return found if re.fullmatch(r"[0-9a-f]{40}", commit) and found.is_dir() else None


@dataclass(frozen=True)
class Hub:
    """A model on the hub as a :class:`advice.checkpoint.Source`."""

    name: str

    @property
    def place(self) -> str:
        """The id."""
        return self.name

    @cached_property
    def _files(self) -> Any:
        try:
            from huggingface_hub import HfFileSystem
        except ImportError as fault:
            raise EnvironmentFault(
                f"{self.name}: is no folder here, and reading it from the hub needs the package "
                "huggingface_hub",
                next_step="Name a local folder, or install it once: "
                "$(python3 tools/bootstrap.py env requirements/tools.txt) -m pip install "
                "huggingface_hub",
            ) from fault
        return HfFileSystem()

    def sizes(self) -> Mapping[str, int]:
        """See :class:`advice.checkpoint.Source`."""
        listed = self._ask("ls", self.name, detail=True)
        return {
            str(item["name"]).rpartition("/")[2]: int(item["size"])
            for item in listed
            if item["type"] == "file"
        }

    def read(self, name: str, start: int, end: int) -> bytes:
        """See :class:`advice.checkpoint.Source`."""
        # Without a cache: it would read megabytes ahead.
        place = f"{self.name}/{name}"
        found = self._ask("cat_file", place, start=start, end=end, cache_type="none")
        return bytes(found)

    def _ask(self, method: str, *what: Any, **how: Any) -> Any:
        files = self._files
        try:
            return getattr(files, method)(*what, **how)
        except FileNotFoundError as fault:
            raise Refused(
                f"{self.name}: is neither a folder here nor a model on the hub that can be seen",
                next_step="Check the name; for a private or gated model set HF_TOKEN.",
            ) from fault
        # Every client library below has errors of its own; all of them mean the same here.
        except Exception as fault:
            said = str(fault).strip().splitlines() or [type(fault).__name__]
            raise EnvironmentFault(
                f"{self.name}: the hub cannot be read: {said[0][:200]}",
                next_step="Check the network, or name a local folder.",
            ) from fault
