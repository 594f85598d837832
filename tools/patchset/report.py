"""What each command says, as data: the schema of ``--json``.

Every report has ``schema``, ``result``, ``exit_code`` and ``message``; ``message`` is also the last
line that a person sees. A change that breaks a reader raises the number in the schema's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from patchset.errors import DoesNotApply, PatchsetError
from patchset.releases import Strict

if TYPE_CHECKING:
    from patchset import carry, index, matrix, upstream
    from patchset.operations import Outcome

PREFIX = "vllm-kimi-eagle3"

Result = Literal[
    "done",
    "nothing-to-do",
    "would-do",
    "state",
    "conflict",
    "error",
    "go",
    "warned",
    "stop",
    "partial",
]


class Report(Strict, frozen=True):
    """The part common to all commands."""

    schema: str
    result: Result
    exit_code: int
    message: str


class ErrorDetail(Strict, frozen=True):
    """An expected fault. ``path`` and ``line`` are set where a patch does not apply."""

    kind: str
    message: str
    next_step: str | None
    path: str | None = None
    line: int | None = None


class ErrorReport(Report, frozen=True):
    """Any command that failed; its schema is the command's own."""

    error: ErrorDetail


class FileReport(Strict, frozen=True):
    """One touched file: see ``patchset.verdict.FileVerdict``."""

    path: str
    state: str
    sha256: str | None
    expected: str | None
    problem: str | None


class PatchReport(Strict, frozen=True):
    """One patch: ``applied``, ``pending``, ``partial``, ``upstream`` or ``foreign``."""

    name: str
    state: str
    subject: str
    faults: list[str]


class TreeReport(Report, frozen=True):
    """``tools/apply.py``. ``digest`` is that of the patch set in the tree, ``series`` of ours.

    ``written`` and ``deleted`` are what was, or would be, changed in the package.
    """

    action: Literal["apply", "check", "status", "reverse"]
    tree: str
    kind: Literal["checkout", "source", "install", "wheel"]
    release: str
    state: str
    digest: str | None
    series: str
    explanation: str
    interrupted: bool
    repaired: str | None
    files: list[FileReport]
    patches: list[PatchReport]
    written: list[str]
    deleted: list[str]
    others: list[str]
    branch: str | None
    commits: list[str]
    wheel: str | None

    def lines(self) -> list[str]:
        """What a person sees above the last line."""
        lines = [f"{self.kind} {self.tree}, vLLM {self.release}"]
        if self.repaired:
            lines.append(f"repaired first: {self.repaired}")
        lines += [f"  not used: a further copy in {place}" for place in self.others]
        lines += [f"  {patch.state:9} {patch.name}" for patch in self.patches]
        if self.result == "would-do":
            lines += [f"  would write   {path}" for path in self.written]
            lines += [f"  would delete  {path}" for path in self.deleted]
        lines += [
            f"  {file.path}: {file.problem or file.state}"
            for file in self.files
            if self.action == "status" and self.state in ("partial", "foreign")
        ]
        return lines


class WheelReport(Report, frozen=True):
    """``tools/build_wheel.py``, and ``tools/apply.py`` on a wheel. ``size`` is in bytes."""

    wheel: str
    version: str
    sha256: str
    size: int
    digest: str
    source: str
    source_sha256: str
    patches: list[str]


class ImageReport(Report, frozen=True):
    """``tools/image.py``. ``engine`` is the program that built it."""

    release: str
    engine: str
    image: str
    base: str
    base_digest: str
    patch_set: str


class LockReport(Report, frozen=True):
    """``tools/lock.py``. ``linked`` are patches that became links to an equal one."""

    release: str
    lock: str
    digest: str
    patches: list[str]
    paths: list[str]
    linked: list[str]


class BenchLine(Strict, frozen=True):
    """One figure. ``seconds`` are the two times behind a ratio."""

    name: str
    what: str
    figure: float
    unit: str
    limit: str
    met: bool
    seconds: list[float]


class BenchReport(Report, frozen=True):
    """``tools/bench.py``."""

    release: str
    figures: list[BenchLine]

    def lines(self) -> list[str]:
        """A table."""
        rows = [("figure", "of", "found", "wanted")]
        for item in self.figures:
            times = " / ".join(f"{value:.2f} s" for value in item.seconds)
            found = f"{item.figure:g} {item.unit}" + (f"  ({times})" if times else "")
            rows.append(
                (item.name, item.what, found, item.limit + ("" if item.met else "  MISSED"))
            )
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
        ]


class CarriedPatch(Strict, frozen=True):
    """One patch, or ``overlay``: see ``patchset.carry.Carried``."""

    name: str
    state: Literal["carried", "resolved", "dropped", "conflict", "waiting"]
    evidence: list[str]


class RebaseReport(Report, frozen=True):
    """``tools/rebase.py``. ``work`` is the folder with the files of an open conflict."""

    source: str
    target: str
    steps: list[CarriedPatch]
    work: str | None
    digest: str | None

    def lines(self) -> list[str]:
        """A line for each patch, and what there is to know about it."""
        lines = []
        for step in self.steps:
            lines.append(f"  {step.state:9} {step.name}")
            lines += [f"              {line}" for line in step.evidence]
        return lines


class StandingReport(Strict, frozen=True):
    """One patch against a source: see ``patchset.upstream.Standing``.

    ``probes`` are the answers by fault id; ``merges`` is whether git carries it by itself.
    """

    name: str
    subject: str
    state: Literal["contained", "not needed", "partly", "missing"]
    drop: bool
    merges: bool
    probes: dict[str, bool | None]
    evidence: list[str]


class UpstreamStatusReport(Report, frozen=True):
    """``tools/upstream.py status``. ``target`` is a release, or the commit's id."""

    release: str
    target: str
    patches: list[StandingReport]

    def lines(self) -> list[str]:
        """A table."""
        from rich.table import Table

        from patchset.matrix import printed

        table = Table(title=f"Patches of {self.release} against {self.target}")
        for name in ("patch", "there", "evidence", "to do"):
            table.add_column(name, overflow="fold")
        for item in self.patches:
            evidence = [harmless(line) for line in item.evidence[:4]]
            evidence += [f"and {len(item.evidence) - 4} more"] if len(item.evidence) > 4 else []
            todo = "drop" if item.drop else "prepare" if item.merges else "merge by hand"
            table.add_row(item.name.removesuffix(".patch"), item.state, "\n".join(evidence), todo)
        return printed(table)


class PrepareReport(Report, frozen=True):
    """``tools/upstream.py prepare``. ``onto`` and ``commit`` are ids, ``paths`` what changes.

    ``body`` is the file with the pull request's text, ``work`` the folder of an open conflict.
    """

    patch: str
    release: str
    onto: str
    branch: str
    commit: str | None
    standing: StandingReport
    steps: list[CarriedPatch]
    paths: list[str]
    hooks: dict[str, Literal["passed", "fixed", "failed"]]
    not_run: list[str]
    hook_output: str
    body: str | None
    work: str | None

    def lines(self) -> list[str]:
        """What became of the patch, its files and the checkout's hooks."""
        lines = [f"{self.patch} of vLLM {self.release}, onto {self.onto[:12]}"]
        if not self.steps:
            lines += [f"  {harmless(line)}" for line in self.standing.evidence]
        for step in self.steps:
            lines.append(f"  {step.state:9} {step.name}")
            lines += [f"            {harmless(line)}" for line in step.evidence]
        lines += [f"  changes   {path}" for path in self.paths]
        lines += [f"  {result:9} {name}" for name, result in self.hooks.items()]
        lines += [f"  not run   {name}" for name in self.not_run]
        if "failed" in self.hooks.values():
            lines += [harmless(self.hook_output)]
        return lines


class MatrixCell(Strict, frozen=True):
    """A fault in a release: see ``patchset.matrix.Cell``.

    ``probed`` is what the probe says of stock vLLM, ``left`` what of the patched one; ``None``:
    there is no probe, or it was not asked.
    """

    fault: str
    state: Literal["absent", "patched", "not cured", "open"]
    patches: list[str]
    note: str | None
    probed: bool | None
    left: bool | None


class MatrixRelease(Strict, frozen=True):
    """One release. ``series``: ``applies`` (no fuzz, fresh lock), ``none`` or ``wrong``."""

    version: str
    series: Literal["applies", "none", "wrong"]
    faults: list[MatrixCell]


class MatrixReport(Report, frozen=True):
    """``tools/matrix.py``. ``wrong`` are the contradictions, one sentence each."""

    releases: list[MatrixRelease]
    wrong: list[str]

    def lines(self) -> list[str]:
        """A table with a line for each release, and the contradictions."""
        from rich.table import Table

        from patchset.matrix import printed

        table = Table(title="Faults of stock vLLM, by release")
        for name in ("release", "series", "patched", "not cured", "open", "probes"):
            table.add_column(name, overflow="fold")
        for release in self.releases:
            cells: dict[str, list[str]] = {}
            for cell in release.faults:
                cells.setdefault(cell.state, []).append(cell.fault)
            asked = sum(cell.probed is not None for cell in release.faults)
            table.add_row(
                release.version,
                release.series,
                *(" ".join(cells.get(state, [])) for state in ("patched", "not cured", "open")),
                f"{asked} of {len(release.faults)}",
            )
        return [*printed(table), *(f"WRONG {text}" for text in self.wrong)]


class TablesReport(Report, frozen=True):
    """``tools/matrix.py --write``. ``files`` are those that were changed."""

    files: list[str]


class NewPins(Strict, frozen=True):
    """A release of which ``files`` are not pinned; ``pins`` is their text for releases.toml.

    ``known``: the release itself is pinned, and only these files of it are not.
    """

    version: str
    files: list[str]
    pins: str
    known: bool


class NewReport(Report, frozen=True):
    """``tools/matrix.py --new``."""

    releases: list[NewPins]

    def lines(self) -> list[str]:
        """The pins, to be appended to the file."""
        lines = []
        for item in self.releases:
            lines += ["", f"# further files of the pinned {item.version}:"] if item.known else [""]
            lines += item.pins.splitlines()
        return lines


class FetchReport(Report, frozen=True):
    """``tools/fetch.py``."""

    release: str
    file: str
    path: str
    sha256: str


class CheckReport(Strict, frozen=True):
    """One question of the doctor: see ``advice.checks.Check``."""

    id: str
    level: Literal["pass", "note", "warn", "stop"]
    what: str
    reason: str
    cure: str | None
    fault: str | None


class NeedReport(Strict, frozen=True):
    """One line of the memory of a card, in bytes: see ``advice.memory.Need``."""

    what: str
    size: int
    how: str


class DoctorReport(Report, frozen=True):
    """``tools/doctor.py``: ``result`` is ``go``, ``warned`` or ``stop`` by the heaviest check.

    ``command`` are the words to run, empty where nothing can be run. ``fixed`` is the folder with
    the corrected config.json, ``changes`` what is different in it. ``memory`` is the arithmetic of
    one card, with what is left for the KV cache last; empty without cards.
    """

    release: str
    series: bool
    target: str
    drafter: str
    checks: list[CheckReport]
    command: list[str]
    fixed: str | None
    changes: list[str]
    memory: list[NeedReport]
    notes: list[str]

    def lines(self) -> list[str]:
        """A table, the changes made, and the command."""
        from io import StringIO
        from os import environ
        from shutil import get_terminal_size
        from sys import stdout

        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        colours = {"stop": "bold red", "warn": "yellow", "note": "cyan", "pass": "green"}
        table = Table(title=Text(harmless(f"{self.target} with {self.drafter}")))
        table.add_column("")
        table.add_column("about")
        table.add_column("found", overflow="fold", ratio=3)
        table.add_column("to do", overflow="fold", ratio=2)
        cured = [check for check in self.checks if check.fault and check.level == "pass"]
        rest = [check for check in self.checks if check not in cured]
        for check in sorted(rest, key=lambda check: list(colours).index(check.level)):
            level = Text(check.level, style=colours[check.level])
            # Not as markup: a name may hold brackets.
            words = (check.what, check.reason, check.cure or "")
            table.add_row(level, *(Text(harmless(word)) for word in words))
        if cured:
            told = ", ".join(str(check.fault) for check in cured)
            told = f"met in the stock release and cured by the series: {told}"
            table.add_row(Text("pass", style=colours["pass"]), "faults", told, "")
        seen = stdout is not None and stdout.isatty() and "NO_COLOR" not in environ
        width = max(80, get_terminal_size((110, 24)).columns)
        page = StringIO()
        Console(file=page, width=width, force_terminal=seen, highlight=False).print(table)
        lines = [line.rstrip() for line in page.getvalue().splitlines()]
        if self.fixed:
            lines += [f"written to {self.fixed}:", *(f"  {change}" for change in self.changes)]
        lines += self.notes
        if self.command:
            lines += ["", *shell_lines(self.command), ""]
        return lines


class FindingReport(Strict, frozen=True):
    """A fault in a log: see ``advice.logs.Finding``."""

    fault: str
    title: str
    line: int
    text: str
    fatal: bool
    cure: str


class LogReport(Report, frozen=True):
    """``tools/doctor.py --log``: ``result`` is ``stop`` when an error line shows a known fault,
    else ``state``.

    ``findings`` are in the order of the log; ``error`` is its first error, known or not.
    """

    log: str
    release: str | None
    local: str | None
    findings: list[FindingReport]
    error_line: int | None
    error: str | None

    def lines(self) -> list[str]:
        """The findings, and the first error where no finding stands at it."""
        lines = []
        for item in self.findings:
            kind = "error" if item.fatal else "hint"
            lines += [f"line {item.line}: {item.fault} ({kind}): {item.title}"]
            lines += [f"  {item.text[:300]}", f"  {item.cure}"]
        if self.error_line and not any(item.fatal for item in self.findings):
            lines += [f"line {self.error_line}: the first error, of no known fault:"]
            lines += [f"  {(self.error or '')[:300]}"]
        return lines


def harmless(text: str) -> str:
    """Text of somebody else's file for a terminal: its control characters shown, not sent."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def shell_lines(words: list[str]) -> list[str]:
    """One command for a shell, an option on each line."""
    from shlex import quote

    lines = [" ".join(map(quote, words[:3]))]
    for word in words[3:]:
        if word.startswith("--"):
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {quote(word)}"
    return lines


def schema(command: str) -> str:
    """The schema name of a command's reports."""
    return f"{PREFIX}/{command}/1"


def tree_report(outcome: Outcome) -> TreeReport:
    """The report of an operation on a tree."""
    verdict, series = outcome.verdict, outcome.series
    return TreeReport(
        schema=schema("apply"),
        result=outcome.result,
        exit_code=0,
        message=_sentence(outcome),
        action=outcome.action,
        tree=str(outcome.tree.root),
        kind=outcome.tree.kind,
        release=outcome.release.version,
        state=verdict.state,
        digest=verdict.digest,
        series=series.digest,
        explanation=verdict.explanation,
        interrupted=verdict.journal is not None,
        repaired=outcome.repaired,
        files=[
            FileReport(
                path=item.path,
                state=item.state,
                sha256=item.found,
                expected=item.expected,
                problem=item.problem,
            )
            for item in verdict.files
        ],
        patches=[
            PatchReport(
                name=item.name,
                state=item.state,
                subject=patch.subject,
                faults=list(patch.faults),
            )
            for item, patch in zip(verdict.patches, series.patches, strict=True)
        ],
        written=list(outcome.written),
        deleted=list(outcome.deleted),
        others=[str(place) for place in outcome.tree.others],
        branch=outcome.branch,
        commits=list(outcome.commits),
        wheel=str(outcome.wheel.path) if outcome.wheel else None,
    )


def rebase_report(
    outcome: carry.Outcome, source: str, target: str, *, dry_run: bool
) -> RebaseReport:
    """The report of carrying a series; a conflict is refused work, with exit code 3."""
    count, dropped = len(outcome.patches), [s.name for s in outcome.steps if s.state == "dropped"]
    result: Result = "would-do" if dry_run else "done"
    message = f"{count} patches of {source} carried to {target}"
    message += f", {len(dropped)} dropped as already there" if dropped else ""
    message += f"; equal ones are links now: {', '.join(outcome.linked)}" if outcome.linked else ""
    message += f"; but {target} has a series, which is never overwritten" if outcome.taken else ""
    if step := outcome.conflict:
        result = "conflict"
        message = f"{step.name} does not merge onto {target} by itself" + (
            f": edit the files in {outcome.work}/{step.name}, then give the same command again"
            if outcome.work
            else ""
        )
    elif not count:
        result, message = "nothing-to-do", f"{target} has the effect of every patch already"
    return RebaseReport(
        schema=schema("rebase"),
        result=result,
        exit_code=3 if outcome.conflict else 0,
        message=message,
        source=source,
        target=target,
        steps=[
            CarriedPatch(name=step.name, state=step.state, evidence=list(step.evidence))
            for step in outcome.steps
        ],
        work=str(outcome.work) if outcome.work else None,
        digest=outcome.series.digest if outcome.series else None,
    )


def standing_report(item: upstream.Standing) -> StandingReport:
    """The same as data."""
    return StandingReport(
        name=item.patch.name,
        subject=item.patch.subject,
        state=item.state,
        drop=item.drop,
        merges=item.merges,
        probes=item.found,
        evidence=list(item.evidence),
    )


def upstream_status_report(
    found: list[upstream.Standing], release: str, target: str
) -> UpstreamStatusReport:
    """The report of holding each patch of ``release`` against ``target``."""
    drop = [item.patch.name[:4] for item in found if item.drop]
    message = f"{len(found)} patches of {release}: {target} makes {len(drop)} needless"
    message += f"; to drop there: {', '.join(drop)}" if drop else ""
    return UpstreamStatusReport(
        schema=schema("upstream-status"),
        result="state",
        exit_code=0,
        message=message,
        release=release,
        target=target,
        patches=[standing_report(item) for item in found],
    )


def prepare_report(made: upstream.Prepared, proposal: upstream.Proposal) -> PrepareReport:
    """The report of preparing a patch; where a hook or probe finds something the code is 10."""
    results: dict[str, tuple[Result, int, str]] = {
        "nothing": ("nothing-to-do", 0, f"{made.onto[:12]} has no use for it"),
        "ready": ("would-do", 0, f"make the branch {made.branch} with one commit"),
        "made": (
            "done",
            0,
            f"the branch {made.branch}; read it and {made.body}, then push it yourself",
        ),
        "conflict": ("conflict", 3, f"{proposal.slug} does not merge by itself"),
    }
    result, code, message = results[made.result]
    if made.work:
        message += f": edit the files in {made.work}, then give the same command again"
    if made.result == "conflict" and proposal.neighbours:
        message += (
            f"; or give --onto a branch with {', '.join(proposal.neighbours)}, prepared first"
        )
    if made.left:
        result, code = "warned", 10
        message += f"; the probe still finds {', '.join(made.left)}"
    if made.linted.failed:
        result, code = "warned", 10
        message += f"; hooks that still find something: {', '.join(made.linted.failed)}"
    return PrepareReport(
        schema=schema("upstream-prepare"),
        result=result,
        exit_code=code,
        message=message,
        patch=proposal.slug,
        release=proposal.series.release,
        onto=made.onto,
        branch=made.branch,
        commit=made.commit,
        standing=standing_report(made.standing),
        steps=[
            CarriedPatch(name=step.name, state=step.state, evidence=list(step.evidence))
            for step in made.steps
        ],
        paths=list(made.paths),
        hooks=dict(made.linted.hooks),
        not_run=list(made.linted.not_run),
        hook_output=made.linted.output,
        body=str(made.body) if made.body else None,
        work=str(made.work) if made.work else None,
    )


def matrix_report(facts: matrix.Matrix, found: list[matrix.Examined]) -> MatrixReport:
    """The report of holding the facts against the sources; a contradiction has exit code 4."""
    wrong = [text for item in found for text in item.wrong]
    releases = [
        MatrixRelease(
            version=item.version,
            series=item.series,
            faults=[
                MatrixCell(
                    fault=fault.id,
                    state=(cell := facts.cell(fault, item.version)).state,
                    patches=list(cell.patches),
                    note=cell.note,
                    probed=item.found[fault.id],
                    left=item.left.get(fault.id),
                )
                for fault in facts.faults
            ],
        )
        for item in found
    ]
    have = sum(item.series == "applies" for item in found)
    plural = "s" if len(found) != 1 else ""
    message = (
        f"{len(found)} release{plural}, {have} with a series that applies, "
        f"{len(facts.faults)} faults"
    )
    return MatrixReport(
        schema=schema("matrix"),
        result="error" if wrong else "done",
        exit_code=4 if wrong else 0,
        message=message + (f": {len(wrong)} contradictions" if wrong else ", no contradiction"),
        releases=releases,
        wrong=wrong,
    )


def new_report(found: list[index.NewRelease]) -> NewReport:
    """The report of asking the index for releases that are not pinned."""
    new = [item.version for item in found if not item.known]
    more = [item.version for item in found if item.known]
    said = [f"not pinned yet: {', '.join(new)}"] if new else []
    said += [f"further files of {', '.join(more)}"] if more else []
    said += ["put these lines into patches/releases.toml"]
    said += [f"then: make rebase FROM=… TO={new[-1]}"] if new else []
    return NewReport(
        schema=schema("matrix"),
        result="done" if found else "nothing-to-do",
        exit_code=0,
        message="; ".join(said) if found else "all that the package index has is pinned",
        releases=[
            NewPins(version=item.version, files=list(item.files), pins=item.pins, known=item.known)
            for item in found
        ],
    )


def tables_report(files: list[str]) -> TablesReport:
    """The report of writing the tables."""
    return TablesReport(
        schema=schema("matrix"),
        result="done" if files else "nothing-to-do",
        exit_code=0,
        message=f"written: {', '.join(files)}" if files else "the tables are as they should be",
        files=files,
    )


def _sentence(outcome: Outcome) -> str:
    verdict, action, where = outcome.verdict, outcome.action, outcome.tree.root
    count = len(outcome.series.patches)
    touched = len(outcome.written) + len(outcome.deleted)
    if action == "status":
        what = f" ({verdict.digest})" if verdict.digest else ""
        return f"{verdict.state}{what}: {verdict.explanation}"
    if outcome.wheel:
        return f"{outcome.wheel.path} (sha256 {outcome.wheel.sha256})"
    if outcome.result == "would-do":
        verb = "reverse" if action == "reverse" else "apply"
        return f"{count} patches to {where}: {verb} would change {touched} files"
    if outcome.result == "nothing-to-do":
        return f"{where} is {verdict.state}" + (f" ({verdict.digest})" if verdict.digest else "")
    if action == "reverse":
        return f"{where} is as released again, {touched} files restored"
    text = f"{count} patches applied to {where}, {touched} files changed, digest {verdict.digest}"
    return text + (
        f", {len(outcome.commits)} commits on {outcome.branch}" if outcome.branch else ""
    )


def error_report(command: str, fault: PatchsetError) -> ErrorReport:
    """The report for an expected fault."""
    place = (fault.path, fault.line) if isinstance(fault, DoesNotApply) else (None, None)
    return ErrorReport(
        schema=schema(command),
        result="error",
        exit_code=fault.exit_code,
        message=fault.message,
        error=ErrorDetail(
            kind=fault.kind,
            message=fault.message,
            next_step=fault.next_step,
            path=place[0],
            line=place[1],
        ),
    )
