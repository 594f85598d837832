"""What others have published about a drafter: `published.toml`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from patchset.releases import Strict

_HUB = re.compile(r"models--([^/]+)--([^/]+)")  # a folder in the hub's cache


class Published(Strict, frozen=True):
    """One source: acceptance lengths by data set, with ``draft_tokens`` drafted in a round."""

    drafter: str
    source: str
    how: str
    draft_tokens: int
    lengths: dict[str, float]

    def length(self, data: str) -> float | None:
        """The length for a data set, whose name may be written otherwise ("mt_bench")."""
        names = {_plain(name): length for name, length in self.lengths.items()}
        return names.get(_plain(data))


class _File(Strict, frozen=True):
    published: list[Published]


def load_published() -> tuple[Published, ...]:
    """All of the file."""
    content = (Path(__file__).parent / "published.toml").read_bytes()
    return tuple(msgspec.toml.decode(content, type=_File).published)


def published_for(drafter: str) -> tuple[Published, ...]:
    """What was published for a drafter: a hub id, or a folder that ends in the drafter's name."""
    if hub := _HUB.search(drafter):
        drafter = f"{hub[1]}/{hub[2]}"
    name = drafter.rstrip("/").rpartition("/")[2].casefold()
    found = load_published()
    whole = [item for item in found if item.drafter.casefold() == drafter.casefold()]
    # Two owners may use one name: then only the whole id tells.
    named = [item for item in found if item.drafter.rpartition("/")[2].casefold() == name]
    owners = {item.drafter for item in named}
    return tuple(whole or (named if len(owners) == 1 else ()))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
