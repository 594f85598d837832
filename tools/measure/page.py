"""The report as one HTML file that asks for nothing else: no script, pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from measure.report import ServerBenchReport
from patchset.report import harmless

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #ddd;
         vertical-align: top; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; white-space: nowrap; }
img { max-width: 100%; height: auto; margin: .5rem 0; }
.warn { background: #fff3d6; border-left: 6px solid #d98e00; padding: .6rem 1rem; margin: .6rem 0; }
.quiet { color: #666; } code { font-size: .9em; overflow-wrap: anywhere; }
""".strip()

_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
"""

_HOW = (
    "Each line is a run of vLLM's own benchmark client against the server's chat endpoint: greedy, "
    "the prompts in the order of the file and again from its beginning, the template put on by the "
    "server. Before each number of requests at once the server was warmed up with other prompts. "
    "Acceptance length is 1 + accepted / drafts, from the differences of the server's counters "
    "around the run. Tokens that the server generated beyond those that the client was answered "
    "are foreign traffic; such runs are marked with *."
)


def page(report: ServerBenchReport, pictures: Sequence[Path]) -> str:
    """The whole page; ``pictures`` are the PNG files of `measure.plots`."""
    images = {path.name: path.read_bytes() for path in pictures}
    drafter = next((s for s in report.servers if s.role == "drafter"), None)
    what = drafter or report.servers[0]
    title = f"{what.model}: " + (
        f"{what.draft_tokens} draft tokens" if drafter else "without a drafter"
    )
    parts = [_HEAD, f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n"]
    parts.append(f"<h1>{_text(title)}</h1>\n<p>{_text(report.message)}.</p>\n")
    if report.stopped is not None:
        told = f"Not everything was measured: {report.stopped}."
        parts.append(f'<p class="warn">{_text(told)}</p>\n')
    parts += [f'<p class="warn">{_text(note)}.</p>\n' for note in report.notes]
    if report.acceptance:
        parts += ["<h2>Acceptance</h2>\n", _picture(images, "acceptance.png", "acceptance length")]
        parts.append(_picture(images, "positions.png", "drafts accepted by position"))
        parts.append(_acceptance(report))
    if report.speed_ups:
        parts += ["<h2>Speed-up</h2>\n", _picture(images, "speed-up.png", "speed-up")]
        parts.append(_speed_ups(report))
    elif drafter is not None:
        parts.append('<h2>Speed-up</h2>\n<p class="quiet">No baseline was given or measured.</p>\n')
    parts += ["<h2>What was measured</h2>\n", _servers(report)]
    parts += ["<h2>The doctor's verdict</h2>\n", _verdict(report)]
    parts += ["<h2>Published for this drafter</h2>\n", _published(report)]
    parts += ["<h2>All runs</h2>\n", _runs(report)]
    parts += [f'<h2>How it was measured</h2>\n<p class="quiet">{_text(_HOW)}</p>\n', "</html>\n"]
    return "".join(parts)


def _text(text: str) -> str:
    return escape(harmless(text))


def _picture(images: dict[str, bytes], name: str, what: str) -> str:
    if name not in images:
        return ""
    data = base64.b64encode(images[name]).decode()
    return f'<p><img alt="{_text(what)}" src="data:image/png;base64,{data}"></p>\n'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are text; a column whose heading ends in # has numbers."""
    kinds = [' class="n"' if name.endswith("#") else "" for name in head]
    names = "".join(
        f"<th{kind}>{_text(name.rstrip('#'))}</th>" for kind, name in zip(kinds, head, strict=True)
    )
    lines = [f"<table>\n<tr>{names}</tr>\n"]
    for row in rows:
        cells = zip(kinds, row, strict=True)
        lines.append("<tr>" + "".join(f"<td{k}>{_text(c)}</td>" for k, c in cells) + "</tr>\n")
    return "".join([*lines, "</table>\n"])


def _acceptance(report: ServerBenchReport) -> str:
    return _table(
        ("data set", "drafts#", "accepted#", "acceptance length#", "published#", "by position#"),
        (
            (
                item.data,
                f"{item.drafts:,}",
                f"{item.accepted:,}",
                ("none drafted" if item.length is None else f"{item.length:.2f}")
                + ("" if item.alone else " *"),
                "" if item.published is None else f"{item.published:.2f}",
                "  ".join(f"{rate:.0%}" for rate in item.rates),
            )
            for item in report.acceptance
        ),
    )


def _speed_ups(report: ServerBenchReport) -> str:
    return _table(
        ("data set", "at once#", "tokens/s with#", "without#", "speed-up#"),
        (
            (
                item.data,
                str(item.concurrency),
                f"{item.drafter:,.1f}",
                f"{item.baseline:,.1f}",
                f"{item.ratio:.2f}" + ("" if item.alone else " *"),
            )
            for item in report.speed_ups
        ),
    )


def _servers(report: ServerBenchReport) -> str:
    head = ("server", "model", "checkpoint", "vLLM", "draft tokens#", "patch set")
    rows = (
        (
            server.role,
            server.model,
            server.root,
            server.version or "not told",
            str(server.draft_tokens),
            f"{server.patch_set} ({server.patch_set_from})"
            if server.patch_set
            else server.patch_set_from,
        )
        for server in report.servers
    )
    data = (
        (item.name, str(item.prompts), str(report.output_tokens), item.sha256)
        for item in report.data
    )
    return (
        _table(head, rows)
        + _table(("data set", "prompts#", "tokens at most#", "sha256 of the prompts"), data)
        + f'<p class="quiet">{_text(report.taken)}, client of vLLM {_text(report.client)}</p>\n'
    )


def _verdict(report: ServerBenchReport) -> str:
    if report.verdict is None:
        return f'<p class="quiet">{_text(report.verdict_missing or "not asked")}</p>\n'
    word = {"pass": "go", "note": "go", "warn": "go, with care", "stop": "stop"}
    found = f"<p><b>{word[report.verdict.verdict]}</b>: {_text(report.verdict.message)}</p>\n"
    rows = [(item.level, item.what, item.reason, item.cure or "") for item in report.verdict.checks]
    return found + (_table(("", "about", "found", "to do"), rows) if rows else "")


def _published(report: ServerBenchReport) -> str:
    if not report.published:
        return '<p class="quiet">No drafter was named (--drafter), or nothing is known of it.</p>\n'
    found = []
    for item in report.published:
        link = escape(item.source, quote=True)
        found.append(f'<p><a href="{link}">{_text(item.source)}</a>: {_text(item.how)}, ')
        found.append(f"{item.draft_tokens} draft tokens</p>\n")
        rows = ((data, f"{length:.2f}") for data, length in item.lengths.items())
        found.append(_table(("data set", "acceptance length#"), rows))
    return "".join(found)


def _runs(report: ServerBenchReport) -> str:
    head = (
        "server", "data set", "at once#", "requests#", "failed#", "seconds#", "tokens out#",
        "tokens/s#", "first token, ms#", "per token, ms#", "length#",
    )  # fmt: skip
    return _table(
        head,
        (
            (
                run.role,
                run.data,
                str(run.concurrency),
                str(run.requests),
                str(run.failed),
                f"{run.seconds:.1f}",
                f"{run.output_tokens:,}",
                f"{run.output_throughput:,.1f}" + ("" if run.foreign is None else " *"),
                f"{run.ttft_ms.median:.0f}",
                f"{run.tpot_ms.median:.1f}",
                "" if run.acceptance_length is None else f"{run.acceptance_length:.2f}",
            )
            for run in report.runs
        ),
    )
