"""The cards: what ``cards.toml`` knows of them, and ``8xRTX-PRO-6000`` read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from patchset.errors import IntegrityFault, UsageFault

MIB = 1 << 20
_FILE = Path(__file__).with_name("cards.toml")


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of card. ``memory`` in MiB, ``shared_memory`` (of one block) in bytes."""

    name: str
    also: list[str]
    capability: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d\Z")]
    memory: Annotated[int, msgspec.Meta(gt=0)]
    shared_memory: Annotated[int, msgspec.Meta(gt=0)]
    link: Literal["PCIe", "NVLink"]
    sms: int | None = None

    @property
    def major(self) -> int:
        """The first number of the compute capability, which vLLM chooses backends by."""
        return int(self.capability.split(".")[0])


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    card: list[Card]


@dataclass(frozen=True)
class Cards:
    """Some cards of one kind."""

    number: int
    card: Card

    def __str__(self) -> str:
        return f"{self.number}x {self.card.name}"


@cache
def known_cards() -> tuple[Card, ...]:
    """All cards of ``cards.toml``; :class:`IntegrityFault` if the file is wrong."""
    try:
        return tuple(msgspec.toml.decode(_FILE.read_bytes(), type=_File).card)
    except (OSError, ValueError) as fault:
        raise IntegrityFault(f"{_FILE.name}: {fault}") from fault


def read_cards(text: str) -> Cards:
    """``8xRTX-PRO-6000``, ``8 x b200``, ``H200``; :class:`UsageFault` for another kind."""
    found = re.fullmatch(r"\s*(?:(\d{1,5})\s*[xX×*]\s*)?([\w .-]+?)\s*", text)
    wanted = re.sub(r"[ _]+", "-", found[2]).upper() if found else ""
    wanted = wanted.removeprefix("NVIDIA-")
    for card in known_cards():
        if found and wanted in (card.name, *card.also):
            number = int(found[1] or 1)
            if number:
                return Cards(number, card)
    names = ", ".join(card.name for card in known_cards())
    raise UsageFault(
        f"--gpus {text!r} is no number and kind of card",
        next_step=f"Write it as 8xRTX-PRO-6000; known are {names}.",
    )
