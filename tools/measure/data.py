"""Data sets: prompts in JSON lines, one object a line, as vLLM's client takes them."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from patchset.errors import UsageFault
from patchset.releases import Strict

OURS = Path(__file__).resolve().parent / "prompts.jsonl"
LIMIT = 256 << 20  # bytes of a file; one without an end would fill the memory


class Prompt(msgspec.Struct, frozen=True):
    """One line. Other keys are ignored."""

    prompt: str
    category: str | None = None


class DataReport(Strict, frozen=True):
    """A data set in a report; ``sha256`` is that of its prompts as a JSON list, in order."""

    name: str
    prompts: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """A name and its prompts, at least one."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def parts(self) -> tuple[DataSet, ...]:
        """One data set for each category, called NAME/CATEGORY; none if there are not several."""
        kinds = dict.fromkeys(prompt.category for prompt in self.prompts)
        if len(kinds) < 2:
            return ()
        return tuple(
            DataSet(
                f"{self.name}/{kind or 'other'}",
                tuple(prompt for prompt in self.prompts if prompt.category == kind),
            )
            for kind in kinds
        )

    def report(self) -> DataReport:
        """What a report says of it."""
        told = json.dumps([item.prompt for item in self.prompts]).encode()
        return DataReport(self.name, len(self.prompts), hashlib.sha256(told).hexdigest())

    def take(self, number: int) -> list[str]:
        """``number`` prompts: all in order, again and again.

        So every release sends the same, whatever its own way of drawing from a short file.
        """
        prompts = itertools.cycle(item.prompt for item in self.prompts)
        return list(itertools.islice(prompts, number))


def read_data(name: str, path: Path, limit: int | None = None) -> DataSet:
    """The first ``limit`` prompts of each category in a file (``None``: all).

    Raises UsageFault for a file that cannot be read or has a line that is no prompt.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(LIMIT + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = getattr(fault, "strerror", None) or fault
        raise UsageFault(f"the data set {name} cannot be read: {path}: {reason}") from fault
    if len(content) > LIMIT:
        raise UsageFault(f"the data set {name} is larger than {LIMIT >> 20} MiB: {path}")
    prompts: list[Prompt] = []
    counts: dict[str | None, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = msgspec.json.decode(line, type=Prompt)
        except (msgspec.DecodeError, ValueError, RecursionError) as fault:
            raise UsageFault(
                f"{path}:{number}: {fault}",
                next_step='Each line is an object such as {"prompt": "...", "category": "code"}.',
            ) from fault
        if not item.prompt.strip():
            raise UsageFault(f"{path}:{number}: an empty prompt")
        counts[item.category] = counts.get(item.category, 0) + 1
        if limit is None or counts[item.category] <= limit:
            prompts.append(item)
    if not prompts:
        raise UsageFault(f"the data set {name} is empty: {path}")
    return DataSet(name, tuple(prompts))
