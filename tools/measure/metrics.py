"""vLLM's ``/metrics`` page, and what its counters say about the time between two readings.

The names are those of `vllm/v1/metrics/loggers.py` and `vllm/v1/spec_decode/metrics.py`; they are
the same in every release from 0.15.0 to 0.33.0. The client library appends ``_total`` to a counter,
and gives each a ``_created`` time, unless the server has several API processes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from measure.web import fetch
from patchset.errors import EnvironmentFault, Refused

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
REQUESTS = "vllm:request_success_total"
PROMPT = "vllm:prompt_tokens_total"
GENERATION = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
_WANTED = frozenset(
    (DRAFTS, DRAFT_TOKENS, ACCEPTED, ACCEPTED_AT, REQUESTS, PROMPT, GENERATION, RUNNING, WAITING)
)
_CREATED = GENERATION.removesuffix("_total") + "_created"
_STARTED = "process_start_time_seconds"

# Prometheus' text format: name{label="value",...} value [timestamp]
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a server counts of one model, summed over engines.

    ``accepted_at[i]`` are the accepted tokens of draft position i, as many as the server drafts in
    a round; ``drafts``, ``draft_tokens``, ``accepted`` are 0 and ``accepted_at`` is empty where it
    does not draft (``drafting`` is false then). ``requests`` are the finished ones, aborted ones
    among them.
    """

    drafting: bool
    drafts: int
    draft_tokens: int
    accepted: int
    accepted_at: tuple[int, ...]
    requests: int
    prompt_tokens: int
    generation_tokens: int


@dataclass(frozen=True, kw_only=True)
class Snapshot(Counts):
    """The counters of one moment.

    ``running`` and ``waiting`` are requests of this moment. ``started`` are the times at which
    counters and process came to life, in seconds since 1970; empty if the page has none. ``taken``
    is of the monotonic clock, in seconds.
    """

    model: str
    taken: float
    running: int
    waiting: int
    started: tuple[float, ...]

    def __sub__(self, earlier: Snapshot) -> Delta:
        """What happened since ``earlier``. Raises EnvironmentFault if the counters were reset."""
        delta = Delta(
            seconds=self.taken - earlier.taken,
            drafting=self.drafting,
            drafts=self.drafts - earlier.drafts,
            draft_tokens=self.draft_tokens - earlier.draft_tokens,
            accepted=self.accepted - earlier.accepted,
            accepted_at=tuple(
                new - old for new, old in zip(self.accepted_at, earlier.accepted_at, strict=False)
            ),
            requests=self.requests - earlier.requests,
            prompt_tokens=self.prompt_tokens - earlier.prompt_tokens,
            generation_tokens=self.generation_tokens - earlier.generation_tokens,
        )
        same = (self.model, self.started, len(self.accepted_at)) == (
            earlier.model,
            earlier.started,
            len(earlier.accepted_at),
        )
        if not same or delta.fell:
            raise EnvironmentFault(
                f"the counters of {self.model} began anew between two readings: "
                "the server was started again",
                next_step="Measure again, on a server that stays up.",
            )
        return delta


@dataclass(frozen=True, kw_only=True)
class Delta(Counts):
    """What a server did between two snapshots."""

    seconds: float

    @property
    def fell(self) -> bool:
        """Whether a counter went down, which none does while its server lives."""
        numbers = (self.drafts, self.draft_tokens, self.accepted, *self.accepted_at, self.requests)
        return min(*numbers, self.prompt_tokens, self.generation_tokens) < 0

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verification, the target's own one included: 1 + accepted / drafts.

        So defined in `vllm/v1/spec_decode/metrics.py`; ``None`` if nothing was drafted.
        """
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def acceptance_rates(self) -> tuple[float, ...]:
        """For each draft position the share of drafts in which it was accepted, 0 to 1."""
        return tuple(n / self.drafts for n in self.accepted_at) if self.drafts else ()


def read(url: str, model: str | None = None, *, timeout: float = 30) -> Snapshot:
    """The counters of the server whose address begins with ``url`` (``/metrics`` is appended).

    ``model`` is as in `parse`. Raises EnvironmentFault if nothing answers, Refused if the answer is
    not that of a vLLM server that counts.
    """
    page = fetch(url + "/metrics", timeout=timeout)
    return parse(page.decode("utf-8", "replace"), model, where=url)


def parse(page: str, model: str | None = None, *, where: str = "the server") -> Snapshot:
    """The counters on a page in Prometheus' text format.

    ``model`` is the label ``model_name``, which is the first name under which the server serves;
    it may be left out where only one is there. Raises Refused for a page without vLLM's counters,
    for another model, and for numbers that are none.
    """
    samples = list(_samples(page, where))
    if not any(name in _WANTED for name, _, _ in samples):
        if re.search(r"^vllm:", page, re.MULTILINE):
            raise Refused(
                f"{where} is vLLM, but counts no tokens",
                next_step="Start it without --disable-log-stats.",
            )
        raise Refused(
            f"{where} answers, but not as vLLM does: there is no counter of vLLM at /metrics",
            next_step="Give the address that `vllm serve` prints, such as http://localhost:8000.",
        )
    models = sorted(
        {labels.get("model_name", "") for name, labels, _ in samples if name in _WANTED}
    )
    if model is None and len(models) == 1:
        model = models[0]
    if model not in models:
        known = ", ".join(models)
        asked = "several models" if model is None else f"no model {model}"
        raise Refused(
            f"{where} has {asked}; it counts for {known}",
            next_step=f"Add --model {models[0]}, for example.",
        )
    sums: dict[str, int] = dict.fromkeys(_WANTED, 0)
    positions: dict[int, int] = {}
    seen = set()
    started = []
    for name, labels, value in samples:
        if name == _STARTED or (name == _CREATED and labels.get("model_name", "") == model):
            started.append(value)
        elif name in _WANTED and labels.get("model_name", "") == model:
            seen.add(name)
            sums[name] += int(value)
            if name == ACCEPTED_AT:
                at = labels.get("position", "")
                if not re.fullmatch(r"\d{1,3}", at, re.ASCII):
                    raise Refused(f"{where} counts for draft position {at[:120]!r}, which is none")
                positions[int(at)] = positions.get(int(at), 0) + int(value)
    return Snapshot(
        model=model,
        taken=time.monotonic(),
        drafting=DRAFTS in seen,
        drafts=sums[DRAFTS],
        draft_tokens=sums[DRAFT_TOKENS],
        accepted=sums[ACCEPTED],
        accepted_at=tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1)),
        requests=sums[REQUESTS],
        prompt_tokens=sums[PROMPT],
        generation_tokens=sums[GENERATION],
        running=sums[RUNNING],
        waiting=sums[WAITING],
        started=tuple(sorted(started)),
    )


def _samples(page: str, where: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each line that counts here."""
    for line in page.split("\n"):
        name = re.split(r"[{ \t]", line, maxsplit=1)[0]
        if name not in _WANTED and name not in (_CREATED, _STARTED):
            continue
        found = _LINE.fullmatch(line.rstrip("\r"))
        try:
            value = float(found[3]) if found else math.nan
        except ValueError:
            value = math.nan
        if found is None or not math.isfinite(value) or value < 0:
            raise Refused(
                f"{where} has a line at /metrics that is no count: {line[:120]!r}",
                next_step="Look at that page: something between you and vLLM may rewrite it.",
            )
        labels = {
            match[1]: _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], match[2])
            for match in _LABEL.finditer(found[2] or "")
        }
        yield name, labels, value
