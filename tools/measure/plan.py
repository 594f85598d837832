"""What is measured in which order, and doing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure.client import Client, Role, Run, measure
from measure.data import DataSet
from measure.server import Server, warm_up

ROUNDS = 4
"""Requests for each one served at once, at least: with fewer, the end of a run, where the last
answers have the server for themselves, would count for too much."""
PART_CONCURRENCY = 4
"""At once, for a part of a data set: acceptance is counted there and not speed."""


@dataclass(frozen=True)
class Step:
    """One run to be made."""

    role: Role
    server: Server
    data: DataSet
    concurrency: int
    requests: int

    def __str__(self) -> str:
        return (
            f"{self.role}, {self.data.name}, {self.requests} requests, {self.concurrency} at once"
        )


def plan(
    servers: Mapping[Role, Server], data: Sequence[DataSet], concurrency: Sequence[int]
) -> list[Step]:
    """The drafter's parts of data sets first, then each whole set at each concurrency.

    The same prompts for both servers; of the smaller number of requests at once, all prompts of
    the set once.
    """
    steps = []
    for role, server in sorted(servers.items(), reverse=True):  # the drafter's, then the baseline's
        for one in data:
            if role == "drafter":
                steps += [
                    Step(role, server, part, PART_CONCURRENCY, len(part.prompts))
                    for part in one.parts
                ]
            steps += [
                Step(role, server, one, number, max(len(one.prompts), ROUNDS * number))
                for number in sorted(set(concurrency))
            ]
    return steps


def perform(
    steps: Sequence[Step],
    client: Client,
    *,
    output_tokens: int,
    logs: Path,
    before: Callable[[int, Step], None] = lambda number, step: None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Iterator[Run]:
    """The runs of these steps, one by one; raises what `measure` and `warm_up` raise.

    ``before`` is called with the number of each step, from 0 on. What the client says goes to
    ``logs``, a folder that exists, in a file for each step.
    """
    warm: set[tuple[Role, int]] = set()
    for number, step in enumerate(steps):
        before(number, step)
        if (step.role, step.concurrency) not in warm:
            warm_up(step.server, step.concurrency)
            warm.add((step.role, step.concurrency))
        yield measure(
            client,
            step.server,
            step.role,
            step.data,
            step.concurrency,
            step.requests,
            output_tokens=output_tokens,
            log=logs / f"client-{number + 1:02}.log",
            progress=progress,
        )
