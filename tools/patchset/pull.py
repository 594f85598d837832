"""The body of a pull request: the checkout's own template, filled with what is known and no more.

What a test or probe found is taken from reports that they wrote; where there is none it says "not
run". What only a person can say is left as a box to tick.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from patchset.faults import Fault
from patchset.hooks import CONFIG
from patchset.upstream import Proposal, Write, Written

TEMPLATE: Final = ".github/PULL_REQUEST_TEMPLATE.md"
TESTS: Final = "build/upstream-tests.json"
SUITE: Final = "build/test-all.md"
_REPOSITORY: Final = "vllm-project/vllm"
# Under which heading of a template each part goes; the first one that it has.
_HEADINGS: Final = {
    "overview": ("overview", "purpose"),
    "claims": ("claims", "overview", "purpose"),
    "plan": ("validation", "test plan"),
    "results": ("validation", "test result", "test results"),
    "details": ("details", "purpose"),
}
_BOX: Final = re.compile(r"^- \[ \] (AI assistance was used)", re.MULTILINE)
_COMMON: Final = {"for", "the", "and", "with", "that", "not", "from", "only", "into", "cannot"}


def writer(root: Path, faults: Sequence[Fault]) -> Write:
    """A function that writes the body, with the reports below ``root``."""
    return lambda written: body(written, faults, root)


def body(written: Written, faults: Sequence[Fault], root: Path) -> str:
    """The whole text, as Markdown."""
    proposal = written.proposal
    given = proposal.submission
    known = {fault.id: fault for fault in faults}
    links = list(dict.fromkeys([*(given.linked if given else []), *_upstream_links(proposal)]))
    overview = [given.purpose.strip() if given else f"{proposal.patch.subject}."]
    if links:
        overview += ["", "Related: " + ", ".join(links)]
    claims = list(given.claims) if given else []
    claims = claims or [
        f"Cures: {known[fault].title}" for fault in proposal.patch.faults if fault in known
    ]
    commands = given.test_command if given else []
    plan = ["```bash", *commands, "```"] if commands else ["No test goes with this change."]
    explained = proposal.message.partition("\n\n")[2].strip()
    parts = {
        "overview": overview,
        "claims": [f"- {claim}" for claim in claims],
        "plan": ["To reproduce:", "", *plan],
        "results": ["Results:", "", *_results(written, known, root)],
        "details": [explained, "", *_duplicates(proposal, links), "", *_people(written)],
    }
    content = written.read(TEMPLATE)
    template = "" if content is None else content.decode("utf-8", "replace")
    filled = fill(template, {name: "\n".join(lines) for name, lines in parts.items()})
    return _BOX.sub(r"- [x] \1", filled)


def fill(template: str, parts: dict[str, str]) -> str:
    """``template`` with each part under its heading, instead of the comment that stands there.

    A part whose heading the template has not gets one of its own, before everything else.
    """
    pieces = re.split(r"^(## .*\n)", template, flags=re.MULTILINE)
    texts: dict[str, list[str]] = {}
    own = []
    headings = [item[3:].strip().lower() for item in pieces[1::2]]
    for name, text in parts.items():
        place = next((item for item in _HEADINGS[name] if item in headings), None)
        if place is None:
            own.append(f"## {name.capitalize()}\n\n{text}\n\n")
        else:
            texts.setdefault(place, []).append(text)
    for at, heading in enumerate(headings):
        if heading in texts:
            # What follows a rule or a folded part belongs to the template as a whole.
            rest = re.search(r"^(---|<details>)", pieces[2 * at + 2], re.MULTILINE)
            tail = pieces[2 * at + 2][rest.start() :] if rest else ""
            pieces[2 * at + 2] = "\n" + "\n\n".join(texts[heading]) + "\n\n" + tail
    return "".join([*own, *pieces]).rstrip() + "\n"


def _results(written: Written, known: dict[str, Fault], root: Path) -> list[str]:
    """Tests, probes, linters, and our whole suite: each from a report, or "not run"."""
    proposal = written.proposal
    lines = [*_tests(proposal.slug, root / TESTS), ""]
    lines += ["Read from the source by a program, before and after this change:", ""]
    said = {True: "so", False: "not so", None: "cannot be told from the source"}
    lines += [
        f"- {known[fault].title}: {said[before]} at {written.onto[:12]}, "
        f"{said[written.after.get(fault)]} with this change"
        for fault, before in written.standing.found.items()
    ] or ["- not run: no such check for this change"]
    lines += ["", f"Hooks of `{CONFIG}`, on the changed files:", ""]
    hooks = written.linted.hooks
    kinds = {"passed": ("passed", "fixed"), "still find something": ("failed",)}
    groups = {word: [n for n, r in hooks.items() if r in kind] for word, kind in kinds.items()}
    groups["not run"] = list(written.linted.not_run)
    lines += [f"- {word}: {', '.join(names)}" for word, names in groups.items() if names]
    return [*lines, "", *_suite(proposal, root / SUITE)]


def _tests(slug: str, report: Path) -> list[str]:
    """A table of the runs of the patch's own tests."""
    try:
        data = json.loads(report.read_text(encoding="utf-8"))
        runs: list[dict[str, Any]] = [run for run in data["runs"] if run["patch"] == slug]
        rows = [
            f"| {run['release']} | `{run['command']}` | "
            f"{'with' if run['patched'] else 'without'} | {_count(run)} | {run['date']} |"
            for run in runs
        ]
        failures = [
            f"- {run['release']}, {'with' if run['patched'] else 'without'}: `{_one_line(text)}`"
            for run in runs
            for text in run.get("failures", [])
        ]
    except FileNotFoundError:
        rows = []
    except (OSError, ValueError, KeyError, TypeError) as fault:
        return [f"Tests: not run ({report.name} cannot be read: {type(fault).__name__} {fault})"]
    if not rows:
        return ["Tests: not run"]
    if sets := {str(run["patch_set"])[:12] for run in runs if run.get("patch_set")}:
        failures.append(
            f"- with: the whole series ({', '.join(sorted(sets))}), of which this is one"
        )
    head = ["| vLLM | command | change | result | date |", "|---|---|---|---|---|"]
    return [*head, *rows, *(["", *failures] if failures else [])]


def _suite(proposal: Proposal, report: Path) -> list[str]:
    """The rows of `make test-all` about the releases where evidence was taken."""
    given = proposal.submission
    releases = given.releases if given else [proposal.series.release]
    try:
        text = report.read_text(encoding="utf-8").splitlines()
    except OSError:
        text = []
    table = [line for line in text if line.startswith("|")]
    rows = [line for line in table[2:] if line.split("|")[1].strip() in releases]
    if not rows:
        return ["The whole series on the CPU build of the release, stand-in model: not run"]
    return [
        "The whole series on the CPU build of the release, stand-in model:",
        "",
        *table[:2],
        *rows,
    ]


def _count(run: dict[str, Any]) -> str:
    """``3 passed, 1 failed``."""
    words = ("passed", "failed", "skipped")
    return ", ".join(f"{run[word]} {word}" for word in words if run.get(word)) or "nothing ran"


def _duplicates(proposal: Proposal, links: Iterable[str]) -> list[str]:
    """What has to be looked at before a pull request is opened, by vLLM's AGENTS.md."""
    words = [
        word
        for word in re.findall(r"[\w.-]{3,}", re.sub(r"\[[^\]]*\]", "", proposal.title))
        if word.lower() not in _COMMON
    ]
    numbers = {link.rsplit("/", 1)[1]: "/pull/" in link for link in links}
    commands = []
    for number, is_pull in numbers.items():
        what = "pr" if is_pull else "issue"
        commands.append(f"gh {what} view {number} --repo {_REPOSITORY} --comments")
        commands.append(f'gh pr list --repo {_REPOSITORY} --state open --search "{number} in:body"')
    search = " ".join(words[:4])
    commands.append(f'gh pr list --repo {_REPOSITORY} --state open --search "{search}"')
    stated = [value for key, value in proposal.patch.trailers if key == "Upstream"]
    known = "; ".join(stated) or "nothing"
    return [
        f"Known of the same fault: {known}.",
        "",
        "- [ ] No open pull request does the same; looked for with:",
        "",
        "```bash",
        *commands,
        "```",
    ]


def _people(written: Written) -> list[str]:
    """What the submitter has to confirm."""
    return [
        "AI assistance was used for this change.",
        "",
        f"- [ ] I, {written.signer}, have reviewed every changed line, ran the commands above, and "
        "can defend the change.",
    ]


def _upstream_links(proposal: Proposal) -> list[str]:
    stated = " ".join(value for key, value in proposal.patch.trailers if key == "Upstream")
    return re.findall(r"https://github\.com/\S+?/(?:pull|issues)/\d+", stated)


def _one_line(text: object) -> str:
    return " ".join(str(text).replace("`", "'").split())[:200]
