"""What a bench of servers found, as data: the schema of its ``--json`` and ``report.json``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from measure.client import Role, Run
from measure.data import DataReport
from measure.published import Published
from patchset.errors import UsageFault
from patchset.paths import write_whole
from patchset.releases import Strict
from patchset.report import CheckReport, Report, harmless

if TYPE_CHECKING:
    from measure.server import Server


class ServerReport(Strict, frozen=True):
    """One server; see ``measure.server.Server``.

    ``patch_set`` is the digest of the patch set that it runs, or ``None``; ``patch_set_from`` says
    who told, or why it is not known.
    """

    role: Role
    url: str
    model: str
    root: str
    version: str | None
    draft_tokens: int
    patch_set: str | None
    patch_set_from: str


class Acceptance(Strict, frozen=True):
    """What became of the drafts of one data set, over all its runs.

    ``length`` is 1 + accepted / drafts, ``rates[i]`` the share of drafts that were accepted at
    position i; ``None`` and empty if nothing was drafted. ``published`` is the length published
    for this drafter and as many draft tokens. ``alone``: nobody else was served meanwhile.
    """

    data: str
    drafts: int
    accepted: int
    length: float | None
    rates: list[float]
    published: float | None
    alone: bool


class SpeedUp(Strict, frozen=True):
    """Output tokens a second with the drafter, without it, and their ratio; the same prompts."""

    data: str
    concurrency: int
    drafter: float
    baseline: float
    ratio: float
    alone: bool


class VerdictReport(Strict, frozen=True):
    """What the doctor says of the pair, without what it passes."""

    verdict: str
    message: str
    checks: list[CheckReport]


class ServerBenchReport(Report, frozen=True):
    """``tools/bench.py --url``; also the file ``report.json``.

    ``taken`` is the time of the start in UTC, ``stopped`` why not everything was measured
    (``None``: it was). ``client`` is the vLLM whose benchmark client was used. ``output_tokens`` is
    the most that an answer might have. ``verdict`` is ``None`` where the doctor was not asked or
    could not answer; ``verdict_missing`` is then the reason. ``notes`` is what a reader has to
    know, foreign traffic above all, ``written`` the files beside this one.
    """

    taken: str
    stopped: str | None
    servers: list[ServerReport]
    client: str
    output_tokens: int
    data: list[DataReport]
    runs: list[Run]
    acceptance: list[Acceptance]
    speed_ups: list[SpeedUp]
    published: list[Published]
    verdict: VerdictReport | None
    verdict_missing: str | None
    notes: list[str]
    written: list[str]

    def lines(self) -> list[str]:
        """Two tables and the notes."""
        lines = []
        if self.acceptance:
            rows = [("data set", "drafts", "acceptance length", "published", "by position")]
            for item in self.acceptance:
                length = "nothing drafted" if item.length is None else f"{item.length:.2f}"
                length += "" if item.alone else " *"
                known = "" if item.published is None else f"{item.published:.2f}"
                rates = " ".join(f"{rate:.0%}" for rate in item.rates)
                rows.append((item.data, str(item.drafts), length, known, rates))
            lines += [*_table(rows), ""]
        if self.speed_ups:
            rows = [("data set", "at once", "tokens/s with", "without", "speed-up")]
            for one in self.speed_ups:
                ratio = f"{one.ratio:.2f}" + ("" if one.alone else " *")
                numbers = (str(one.concurrency), f"{one.drafter:.1f}", f"{one.baseline:.1f}")
                rows.append((one.data, *numbers, ratio))
            lines += [*_table(rows), ""]
        elif self.runs:
            plain = [("server", "data set", "at once", "tokens/s")]
            for run in self.runs:
                speed = f"{run.output_throughput:.1f}" + ("" if run.foreign is None else " *")
                plain.append((str(run.role), run.data, str(run.concurrency), speed))
            lines += [*_table(plain), ""]
        return [harmless(line) for line in (*lines, *self.notes, *self.written)]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def acceptances(runs: Iterable[Run], published: Iterable[Published]) -> list[Acceptance]:
    """By data set, in the order in which they were measured."""
    sums: dict[str, list[Run]] = {}
    for run in runs:
        if run.role == "drafter":
            sums.setdefault(run.data, []).append(run)
    known = list(published)
    found = []
    for data, some in sums.items():
        drafts, accepted = sum(run.drafts for run in some), sum(run.accepted for run in some)
        width = len(some[0].accepted_at)
        at = [sum(run.accepted_at[i] for run in some) for i in range(width)]
        lengths = [item.length(data) for item in known if item.draft_tokens == width]
        found.append(
            Acceptance(
                data=data,
                drafts=drafts,
                accepted=accepted,
                length=1 + accepted / drafts if drafts else None,
                rates=[number / drafts for number in at] if drafts else [],
                published=next((length for length in lengths if length is not None), None),
                alone=all(run.foreign is None for run in some),
            )
        )
    return found


def speed_ups(runs: Iterable[Run]) -> list[SpeedUp]:
    """For each data set and concurrency that both servers were measured with."""
    by_role: dict[Role, dict[tuple[str, int], Run]] = {"baseline": {}, "drafter": {}}
    for run in runs:
        by_role[run.role][run.data, run.concurrency] = run
    return [
        SpeedUp(
            data=run.data,
            concurrency=run.concurrency,
            drafter=run.output_throughput,
            baseline=base.output_throughput,
            ratio=run.output_throughput / base.output_throughput,
            alone=run.foreign is None and base.foreign is None,
        )
        for key, run in by_role["drafter"].items()
        if (base := by_role["baseline"].get(key)) and base.output_throughput > 0
    ]


def notes_about(runs: Iterable[Run]) -> list[str]:
    """What there is to know about single runs: foreign traffic, and requests that failed."""
    notes = []
    for run in runs:
        which = f"{run.role}, {run.data}, {run.concurrency} at once"
        if run.foreign is not None and run.foreign.tokens < 0:
            notes.append(
                f"* {which}: the server counted {-run.foreign.tokens} generated tokens fewer than "
                "it answered with: its address leads to several servers, and these figures are "
                "those of one"
            )
        elif run.foreign is not None:
            notes.append(
                f"* {which}: somebody else used the server: {run.foreign}; "
                "speed and acceptance are of both together"
            )
        if run.failed:
            notes.append(f"{which}: {run.failed} of {run.requests} requests failed")
    return notes


def read_report(path: Path) -> ServerBenchReport:
    """An earlier ``report.json``. Raises UsageFault if it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerBenchReport)
    except OSError as fault:
        raise UsageFault(f"{path} cannot be read: {fault.strerror}") from fault
    except msgspec.DecodeError as fault:
        raise UsageFault(
            f"{path} is no report of this bench: {fault}",
            next_step="Give the report.json of a run with --baseline-url.",
        ) from fault


def baseline_of(
    earlier: ServerBenchReport, path: Path, data: Iterable[DataReport], output_tokens: int
) -> tuple[list[ServerReport], list[Run]]:
    """The baseline's part of an earlier report, for runs with these data sets.

    Raises UsageFault if it has none, or was measured with other prompts or lengths.
    """
    servers = [server for server in earlier.servers if server.role == "baseline"]
    runs = [run for run in earlier.runs if run.role == "baseline"]
    if not servers or not runs:
        raise UsageFault(
            f"{path} has no baseline", next_step="Measure one: --baseline-url and no --url."
        )
    before = {item.name: item for item in earlier.data}
    for item in data:
        if item.name in before and before[item.name] != item:
            raise UsageFault(
                f"{path} was measured with other prompts in {item.name}",
                next_step="Measure the baseline again, with the same --data and --limit.",
            )
    if earlier.output_tokens != output_tokens:
        raise UsageFault(
            f"{path} was measured with --output-tokens {earlier.output_tokens}",
            next_step="Use the same number.",
        )
    return servers, runs


def complete(
    start: ServerBenchReport, runs: list[Run], stopped: str | None, exit_code: int = 0
) -> ServerBenchReport:
    """``start`` with these runs, at least one, and all that follows from them.

    ``stopped`` and ``exit_code`` say why it is not all that was meant to be measured.
    """
    found = acceptances(runs, start.published)
    ratios = speed_ups(runs)
    told = []
    if lengths := [item.length for item in found if item.length is not None]:
        told.append(f"acceptance length {_range(lengths)}")
    elif found:
        told.append("nothing was drafted")
    if ratios:
        told.append(f"speed-up {_range([item.ratio for item in ratios])}")
    if not found:
        speeds = [run.output_throughput for run in runs]
        told.append(f"without a drafter {_range(speeds)} tokens a second")
    foreign = sum(run.foreign is not None for run in runs)
    if foreign:
        told.append(f"{foreign} of {len(runs)} runs with foreign traffic")
    if stopped is not None:
        told.append(stopped)
    return msgspec.structs.replace(
        start,
        result="done" if stopped is None else "partial",
        exit_code=exit_code,
        message="; ".join(told),
        stopped=stopped,
        runs=runs,
        acceptance=found,
        speed_ups=ratios,
        notes=[*start.notes, *notes_about(runs)],
    )


def _range(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):.2f}", f"{max(numbers):.2f}"
    return low if low == high else f"{low} to {high}"


def save(report: ServerBenchReport, folder: Path, *, pictures: bool) -> ServerBenchReport:
    """Write ``report.json`` and, with ``pictures``, the PNG files and ``report.html`` as well.

    Each file is there as a whole or not at all. Returns the report with their names in it.
    """
    from measure.page import page
    from measure.plots import can_draw, draw

    if pictures:
        notes, drawn = report.notes, []
        if can_draw():
            drawn = draw(report, folder)
        else:
            notes = [*notes, "no pictures: this Python has no matplotlib; make bench has it"]
        names = [str(path) for path in (folder / "report.html", *drawn)]
        report = msgspec.structs.replace(report, notes=notes, written=names)
        write_whole(folder / "report.html", page(report, drawn).encode("utf-8", "backslashreplace"))
    write_whole(folder / "report.json", report.as_json(indent=2) + b"\n")
    return report


def server_report(
    role: Role, server: Server, patch_set: str | None, patch_set_from: str
) -> ServerReport:
    """The report of one server; what it says of itself is made harmless."""
    return ServerReport(
        role=role,
        url=server.url,
        model=harmless(server.model),
        root=harmless(server.root),
        version=None if server.version is None else harmless(server.version),
        draft_tokens=server.draft_tokens,
        patch_set=patch_set,
        patch_set_from=patch_set_from,
    )
