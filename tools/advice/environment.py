"""Which vLLM an environment really has: released, patched, half patched, or another copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advice.checks import Check
from advice.rules import Rules, rules_of
from patchset.errors import UnknownRelease
from patchset.operations import inspect
from patchset.project import Project
from patchset.tree import open_tree


@dataclass(frozen=True)
class Environment:
    """What is installed there, by its rules, and the checks about it."""

    rules: Rules
    checks: tuple[Check, ...]


def look_at(place: Path, project: Project, release: str | None) -> Environment:
    """Judge the vLLM of an environment, a Python executable, a checkout or a source folder.

    ``release`` is what the user wants to serve with, ``None`` for whatever is there. Raises
    :class:`Refused` where there is no vLLM or one of a release that is not pinned.
    """
    what = "environment"
    with open_tree(place) as tree:
        try:
            outcome = inspect(tree, project)
        except UnknownRelease:
            if release is None:
                raise
            # A checkout that was never built does not tell; an install of another release does.
            outcome = inspect(tree, project, release)
        found, verdict = outcome.release.version, outcome.verdict
        where = f"{tree.root}"
        others = tuple(str(other) for other in tree.others)
    checks = []
    if release is not None and project.release(release).version != found:
        checks.append(
            Check(
                "environment.release",
                "stop",
                what,
                f"{where} has vLLM {found}, not {release}",
                f"Install {release} there, or judge {found}: leave out --release.",
            )
        )
    if others:
        checks.append(
            Check(
                "environment.copies",
                "warn",
                what,
                f"Python imports vLLM from {where}; there is another copy in {others[0]}, which "
                "is not used",
                "Uninstall the one that is not meant.",
            )
        )
    rules = rules_of(project, found)
    if verdict.state == "applied" and verdict.digest == outcome.series.digest:
        told = f"{where}: vLLM {found} with the series ({str(verdict.digest)[:12]})"
        checks.append(Check("environment.state", "pass", what, told))
        return Environment(rules, tuple(checks))
    if verdict.state == "pristine":
        told = f"{where}: vLLM {found} as released"
        cure = None
        if rules.patches:
            cure = f"python tools/apply.py {place} patches it; what follows is about it as it is."
        checks.append(
            Check("environment.state", "note" if rules.patches else "pass", what, told, cure)
        )
        return Environment(Rules(found), tuple(checks))
    # Half patched, another patch set, or edited: what is there counts, patch by patch.
    there = {item.name for item in verdict.patches if item.state in ("applied", "upstream")}
    kept = Rules(
        found,
        frozenset(int(name[:4]) for name in there),
        tuple((fault, name) for fault, name in rules.cures if name in there),
    )
    if verdict.state == "applied":
        checks.append(
            Check(
                "environment.state",
                "warn",
                what,
                f"{where}: vLLM {found} with another patch set ({str(verdict.digest)[:12]}): "
                f"{verdict.explanation}",
                "Take it off with --reverse and apply the present series.",
            )
        )
    else:
        checks.append(
            Check(
                "environment.state",
                "stop",
                what,
                f"{where}: vLLM {found} is {verdict.state}: {verdict.explanation}",
                f"python tools/apply.py {place} --status says more; start from unmodified files.",
            )
        )
    return Environment(kept, tuple(checks))
