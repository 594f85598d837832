"""A patch of ours as a branch of an upstream checkout, and which patches upstream has already.

``upstream/NNNN-slug/`` holds what goes with a patch there: ``pr.toml``, whole new files below
``tests/``, and ``*.patch`` against the newest pinned release for files that upstream has. The
branch is made in a working tree of its own and named in the end, so that the user's files, index
and HEAD stay as they are, and nothing half-made is left.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from patchset.carry import Carried, Files, carry_alone, in_place
from patchset.checkout import Checkout
from patchset.diff import FileDiff, parse_diff
from patchset.errors import IntegrityFault, Refused, UsageFault
from patchset.faults import Fault
from patchset.hooks import Lint, Linted
from patchset.paths import PACKAGE, check_path
from patchset.probes import BLIND, PROBES, Code, Unclear
from patchset.project import Project
from patchset.releases import Strict, parse_toml
from patchset.series import Patch, Read, Series
from patchset.transaction import exclusive

BESIDE: Final = ("tests", ".buildkite", "docs")
"""Where files that go with a patch may lie in vLLM's repository, besides the package."""
BRANCH: Final = "kimi-eagle3/"
PAGE: Final = "docs/upstream.md"
_OURS: Final = ("Fault", "Upstream", "Drop-when", "Signed-off-by")

Text = Annotated[str, Meta(min_length=1)]
Url = Annotated[str, Meta(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+/(pull|issues)/\d+\Z")]
State = Literal["contained", "not needed", "partly", "missing"]


class Submission(Strict, frozen=True, kw_only=True):
    """``pr.toml``: what a pull request with this patch says.

    ``title`` begins with tags in brackets, as vLLM's contributing guide wants it. ``releases`` are
    those in which evidence was taken. ``claims`` may be left out: the faults' titles serve.
    """

    title: Annotated[str, Meta(pattern=r"^(\[[^\]\n]+\])+ \S[^\n]*\Z", max_length=100)]
    purpose: Text
    test_command: Annotated[list[Text], Meta(min_length=1)]
    releases: list[Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+\Z")]]
    linked: list[Url]
    claims: list[Text] = msgspec.field(default_factory=list)


@dataclass(frozen=True)
class Proposal:
    """One patch of one release, and what goes with it upstream.

    ``new`` are whole files by path; ``diffs`` change files of the newest pinned release.
    """

    series: Series
    patch: Patch
    submission: Submission | None = None
    new: dict[str, bytes] = field(default_factory=dict)
    diffs: tuple[FileDiff, ...] = ()

    @property
    def slug(self) -> str:
        """``NNNN-slug``."""
        return self.patch.name.removesuffix(".patch")

    @property
    def neighbours(self) -> list[str]:
        """The numbers of the patches before it in the series that change one of its files."""
        before = self.series.patches[: self.series.patches.index(self.patch)]
        return [item.name[:4] for item in before if set(item.paths) & set(self.patch.paths)]

    @property
    def branch(self) -> str:
        """The branch's name unless the user chooses one."""
        return BRANCH + self.slug

    @property
    def title(self) -> str:
        """The pull request's title; without a ``pr.toml`` made of the patch's subject."""
        if self.submission:
            return self.submission.title
        area, colon, rest = self.patch.subject.partition(": ")
        if not colon:
            return f"[Misc] {area[:1].upper()}{area[1:]}"
        tag = " ".join(word[:1].upper() + word[1:] for word in area.split())
        return f"[Bugfix][{tag}] {rest[:1].upper()}{rest[1:]}"

    @property
    def message(self) -> str:
        """The commit message less the sign-off, which is the submitter's: no trailer of ours."""
        lines = self.patch.message.splitlines()
        kept = [line for line in lines if line.partition(":")[0] not in _OURS]
        return f"{self.title}\n\n" + "\n".join(kept).strip() + "\n"

    def beside(self, read_newest: Read) -> tuple[Files, Files] | None:
        """The files that go with the patch, before and after; ``None`` if there are none."""
        before: Files = dict.fromkeys(self.new)
        after: Files = dict(self.new)
        for diff in self.diffs:
            current = after[diff.path] if diff.path in after else read_newest(diff.path)
            before.setdefault(diff.path, current)
            after[diff.path] = diff.apply(current)
        return (before, after) if after else None


def find(project: Project, wanted: str, release: str | None = None) -> Proposal:
    """The patch that ``wanted`` names by number, slug or path.

    Of several releases with it the newest is meant. Raises :class:`UsageFault` if there is none.
    """
    name = Path(wanted).name.removesuffix(".patch")
    if "/" in wanted or wanted.endswith(".patch"):
        path = Path(wanted)
        path = path.parent.resolve() / path.name  # not the file: equal patches are links
        if path.parent.parent != project.root / "patches" or not path.is_file():
            raise UsageFault(f"{wanted}: is no patch file of {project.root / 'patches'}")
        release = path.parent.name.removeprefix("v")
    if name.isdigit():
        name = name.zfill(4)
    pins = [item for item in reversed(project.releases.versions) if project.has_series(item)]
    for version in [project.release(release).version] if release else pins:
        series = project.series(version)
        for patch in series.patches:
            slug = patch.name.removesuffix(".patch")
            if name in (slug, slug[:4], slug[5:]):
                return load_proposal(project.root, series, patch)
    where = f"the series of {release}" if release else "any series"
    raise UsageFault(
        f"{wanted}: there is no such patch in {where}",
        next_step="Name one by its number (0004), its slug or its file.",
    )


def load_proposal(root: Path, series: Series, patch: Patch) -> Proposal:
    """``patch`` with what ``upstream/NNNN-slug/`` below ``root`` has for it."""
    folder = root / "upstream" / patch.name.removesuffix(".patch")
    if not folder.is_dir():
        return Proposal(series, patch)
    listed = folder / "pr.toml"
    if not listed.is_file():
        raise IntegrityFault(f"{listed}: is missing")
    try:
        text = listed.read_text(encoding="utf-8")
    except UnicodeDecodeError as fault:
        raise IntegrityFault(f"{listed}: is not valid TOML: {fault}") from fault
    submission = parse_toml(text, Submission, str(listed))
    new: dict[str, bytes] = {}
    for path in sorted((folder / "tests").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(folder).as_posix()
            new[check_path(name, str(folder), BESIDE)] = path.read_bytes()
    diffs = [
        diff
        for path in sorted(folder.glob("*.patch"))
        for diff in parse_diff(path.read_bytes(), path.name, BESIDE)
    ]
    return Proposal(series, patch, submission, new, tuple(diffs))


def table(project: Project) -> str:
    """The patches of the newest release as Markdown, with what is linked and their tests."""
    newest = [item for item in project.releases.versions if project.has_series(item)][-1]
    series = project.series(newest)
    lines = ["| patch | title | cures | upstream | tests for upstream |", "|---|---|---|---|---|"]
    for patch in series.patches:
        proposal = load_proposal(project.root, series, patch)
        stated = "; ".join(value for key, value in patch.trailers if key == "Upstream")
        short = re.sub(r"https://github\.com/vllm-project/vllm/\w+/(\d+)", r"[#\1](\g<0>)", stated)
        files = {*proposal.new, *(diff.path for diff in proposal.diffs)}
        tests = ", ".join(f"`{path}`" for path in sorted(files)) or "to be written"
        cures = " ".join(patch.faults)
        lines.append(f"| {proposal.slug[:4]} | {proposal.title} | {cures} | {short} | {tests} |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Standing:
    """How far a source has what a patch does.

    ``contained``: merging changes nothing. ``not needed``: no probe finds any of its faults, so
    that it was cured otherwise, or never there. ``partly``: some of its hunks are in place, or some
    of its faults are not found. ``missing``: neither. ``found`` is what the probe of each fault
    says (``None``: it has none, or its answer is unclear). ``merges`` is whether git can carry the
    patch by itself.
    """

    patch: Patch
    state: State
    evidence: tuple[str, ...]
    found: dict[str, bool | None]
    merges: bool

    @property
    def drop(self) -> bool:
        """Whether the patch has nothing left to do there."""
        return self.state in ("contained", "not needed")


def standing(
    proposal: Proposal, faults: Sequence[Fault], target: str, read_source: Read, read: Read
) -> Standing:
    """Hold a patch against the source that ``read`` reads, by its lines and by its probes.

    ``read_source`` reads the pristine release of the patch, ``target`` names the other source.
    """
    patch = proposal.patch
    nowhere = Path(os.devnull)  # nothing was resolved by hand, and nothing shall be left
    steps, _ = carry_alone(
        proposal.series, patch.name, target, read_source, read, nowhere, dry_run=True
    )
    step = steps[0]
    found, said = probe(patch, faults, read)
    merges = step.state != "conflict"
    if step.state == "dropped":
        return Standing(patch, "contained", step.evidence, found, merges)
    if found and all(answer is False for answer in found.values()):
        return Standing(patch, "not needed", tuple(said), found, merges)
    hunks = [
        (f"{diff.path}: hunk {number}", there)
        for diff in patch.files
        for number, there in enumerate(in_place(diff, read(diff.path)), 1)
    ]
    there = [f"{name} is in place" for name, is_there in hunks if is_there]
    state: State = "partly" if there or False in found.values() else "missing"
    if not merges:
        said += list(step.evidence)
    return Standing(patch, state, (*there, *said), found, merges)


def probe(
    patch: Patch, faults: Sequence[Fault], read: Read
) -> tuple[dict[str, bool | None], list[str]]:
    """For each fault of ``patch`` what its probe says of a source, and that in sentences."""
    code = Code(read)
    found: dict[str, bool | None] = {}
    said = []
    for fault in faults:
        if fault.id not in patch.faults:
            continue
        found[fault.id] = None
        if fault.probe is None:
            said.append(f"{fault.id}: has no probe")
            continue
        try:
            found[fault.id] = PROBES[fault.probe](code)
        except Unclear as problem:
            said.append(f"{fault.id}: the probe {fault.probe}: {problem.message}")
        except Exception as problem:  # it runs code of a vLLM that nobody has looked at yet
            what = f"{type(problem).__name__}: {problem}"
            said.append(f"{fault.id}: the probe {fault.probe} cannot tell: {what}")
        else:
            finds = "finds it" if found[fault.id] else "does not find it"
            said.append(f"{fault.id}: the probe {fault.probe} {finds}")
    return found, said


class Repository(Checkout):
    """An upstream checkout. Nothing here changes its files, index or HEAD."""

    def commit_of(self, ref: str) -> str:
        """The full id of the commit that ``ref`` names."""
        found = self._try("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        # "^HEAD" passes for git, as "^" and an id.
        if found[0] or found[1].startswith("^"):
            raise Refused(
                f"{self.root}: has no commit {ref!r}",
                next_step="Fetch it, or name another with --onto.",
            )
        return found[1].strip()

    def vllm_at(self, ref: str) -> tuple[str, Read]:
        """The commit that ``ref`` names, and a function that reads its files; it must be vLLM's."""
        commit = self.commit_of(ref)
        read = self.reader(commit)
        if read(f"{PACKAGE}/__init__.py") is None:
            raise Refused(f"{self.root}: {ref} has no {PACKAGE}/, so it is no commit of vLLM")
        return commit, read

    def reader(self, commit: str) -> Read:
        """A function that reads one path of that commit."""
        return lambda path: self._committed(path, commit)

    def require_ready(self) -> str:
        """``Name <address>`` of who signs off; refuse a checkout with changes, or without these."""
        self.require_working_tree()
        if self._try("config", "--get", "--type=bool", "core.sparseCheckout")[1].strip() == "true":
            raise Refused(
                f"{self.root}: a sparse checkout, in which a patch cannot be committed whole",
                next_step="Run git sparse-checkout disable, or name another clone.",
            )
        if changed := self._git("status", "--porcelain", "--untracked-files=no").splitlines():
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            raise Refused(
                f"{self.root}: {changed[0][2:].strip()} has changes{more}",
                next_step="Commit or stash them.",
            )
        who = [self._try("config", "--get", key)[1].strip() for key in ("user.name", "user.email")]
        if not all(who):
            raise Refused(
                f"{self.root}: git knows no user.name and user.email, and the sign-off is yours",
                next_step="Set both with git config; they certify the DCO.",
            )
        return f"{who[0]} <{who[1]}>"

    @contextmanager
    def workplace(self, folder: Path, commit: str) -> Iterator[Repository]:
        """A working tree of its own at ``commit``; gone in the end, and what a killed run left.

        Raises :class:`Busy` while another run has one there.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(folder.parent, wait=0):
            self.remove_workplace(folder)
            try:
                words = ("add", "--quiet", "--force", "--detach", str(folder), commit)
                self._git("worktree", *words, env=_silent())
                yield Repository(folder)
            finally:
                self.remove_workplace(folder)

    def stage(self, paths: Sequence[str]) -> None:
        """Put the present contents of ``paths`` into the index."""
        self._git("add", "--all", "--force", "--", *paths)

    def sign_off(self, message: str, trailers: Sequence[str]) -> str:
        """Commit what is staged, signed off by whom git is set up for; returns the commit's id."""
        text = message + "".join(f"\n{line}" for line in trailers) + "\n"
        words = ("--quiet", "--signoff", "--cleanup=whitespace", "--file=-")
        self._git("commit", *words, data=text.encode(), env=_silent())
        return self._git("rev-parse", "HEAD")

    def changed(self, onto: str) -> tuple[str, ...]:
        """The paths in which HEAD differs from ``onto``."""
        found = self._git("diff-tree", "-r", "-z", "--name-only", onto, "HEAD")
        return tuple(sorted(path for path in found.split("\0") if path))

    def remove_workplace(self, folder: Path) -> None:
        """Remove that working tree, and git's note of it."""
        self._try("worktree", "remove", "--force", "--force", str(folder))
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Prepared:
    """What came of it.

    ``nothing``: it is there already, as ``standing`` says. ``conflict``: ``steps`` say what is to
    be decided, the files lie in ``work``. ``ready``: it can be made (a dry run). ``made``:
    ``branch`` stands at ``commit``. ``paths`` are the files that change. ``left`` are faults whose
    probe still finds them with the patch.
    """

    result: Literal["nothing", "conflict", "ready", "made"]
    onto: str
    branch: str
    standing: Standing
    steps: tuple[Carried, ...] = ()
    work: Path | None = None
    paths: tuple[str, ...] = ()
    commit: str | None = None
    linted: Linted = field(default_factory=Linted)
    left: tuple[str, ...] = ()
    body: Path | None = None


Write = Callable[["Written"], str]


@dataclass(frozen=True)
class Written:
    """What the pull request's body is made from.

    ``after`` is ``Standing.found`` with the patch; ``None`` also where the probe looks elsewhere
    than where the cure sits.
    """

    proposal: Proposal
    onto: str
    read: Read
    standing: Standing
    after: dict[str, bool | None]
    linted: Linted
    signer: str


def prepare(
    proposal: Proposal,
    repo: Repository,
    ref: str,
    *,
    faults: Sequence[Fault],
    read_source: Read,
    read_newest: Read,
    place: Path,
    lint: Lint,
    body: Write,
    branch: str | None = None,
    trailers: Sequence[str] = (),
    dry_run: bool = False,
) -> Prepared:
    """Make a branch on ``ref`` of ``repo`` with one commit: the patch, and what goes with it.

    ``read_newest`` reads the newest pinned release, with its tests. ``place`` is a folder outside
    the checkout for conflicts, the working tree and the pull request's ``body``. ``trailers`` go
    before the sign-off. Raises :class:`Refused` if the checkout is not as it has to be; nothing is
    changed then.
    """
    branch = branch or proposal.branch
    for line in trailers:
        if not line.isprintable():
            raise UsageFault(f"{line!r}: a trailer is one line of printable characters")
    repo.require_name(branch)
    signer = repo.require_ready()
    onto, read = repo.vllm_at(ref)
    repo.require_free(branch)
    now = standing(proposal, faults, onto[:12], read_source, read)
    if now.drop:
        return Prepared("nothing", onto, branch, now)
    work = place / "conflict"
    steps, files = carry_alone(
        proposal.series,
        proposal.patch.name,
        onto[:12],
        read_source,
        read,
        work,
        beside=proposal.beside(read_newest),
        dry_run=dry_run,
    )
    if any(step.state == "conflict" for step in steps):
        left = None if dry_run else work
        return Prepared("conflict", onto, branch, now, tuple(steps), left)
    changed = {path: text for path, text in files.items() if text != read(path)}
    paths = tuple(sorted(changed))
    if dry_run:
        return Prepared("ready", onto, branch, now, tuple(steps), paths=paths)
    with repo.workplace(place / "worktree", onto) as tree:
        for path in paths:
            file = tree.root.resolve() / path
            if file.is_symlink() or file.parent.resolve() != file.parent:
                raise Refused(f"{repo.root}: a symbolic link of {ref} is in the way of {path}")
        for path, content in changed.items():
            _write(tree.root / path, content)
        tree.stage(paths)
        linted = lint(tree.root, [path for path, text in sorted(changed.items()) if text])
        commit = tree.sign_off(proposal.message, trailers)
        paths = tree.changed(onto)
    made = repo.reader(commit)
    after, _ = probe(proposal.patch, faults, made)
    blind = {fault.id for fault in faults if fault.probe in BLIND}
    after = {fault: None if fault in blind else there for fault, there in after.items()}
    text = body(Written(proposal, onto, made, now, after, linted, signer))
    _write(place / "pr.md", text.encode())
    repo.create(branch, commit)
    shutil.rmtree(work, ignore_errors=True)
    return Prepared(
        "made",
        onto,
        branch,
        now,
        tuple(steps),
        None,
        paths,
        commit,
        linted,
        tuple(fault for fault, there in after.items() if there),
        place / "pr.md",
    )


def _silent() -> dict[str, str]:
    """The user's own hooks are for the user's own commits; what else the environment sets stays."""
    at = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    return {
        "GIT_CONFIG_COUNT": str(at + 1),
        f"GIT_CONFIG_KEY_{at}": "core.hooksPath",
        f"GIT_CONFIG_VALUE_{at}": os.devnull,
    }


def _write(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
