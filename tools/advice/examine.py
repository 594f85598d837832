"""The whole examination: every check that can be made, and the command to run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from advice.backends import card_checks
from advice.cards import read_cards
from advice.checkpoint import open_checkpoint
from advice.checks import Check, Level, worst
from advice.drafter import read_drafter
from advice.fix import Fix, corrected, write_fix
from advice.memory import Budget, budget, memory_checks
from advice.pair import pair_checks
from advice.release import better_release, release_checks
from advice.rules import rules_of
from advice.serve import command
from advice.setup import Setup
from advice.target import Target, read_target
from advice.together import Pair
from patchset.errors import Refused
from patchset.faults import load_faults
from patchset.project import Project


@dataclass(frozen=True)
class Examination:
    """What was found. ``command`` are the words to run, empty where nothing can be run.

    ``fixed`` is the folder with the corrected configuration, if one was written, ``changes`` what
    is different in it; the checks are then about the corrected drafter.
    """

    pair: Pair
    checks: tuple[Check, ...]
    command: tuple[str, ...]
    fixed: Path | None = None
    changes: tuple[str, ...] = ()

    @property
    def budget(self) -> Budget | None:
        """The arithmetic of one card's memory, where cards and weights are known."""
        gpus, target = self.pair.setup.gpus, self.pair.target
        return budget(self.pair, read_cards(gpus)) if gpus and target.checkpoint.shards else None

    @property
    def verdict(self) -> Level:
        """The heaviest level."""
        return worst(self.checks)


def examine(
    project: Project,
    target: str,
    drafter: str,
    setup: Setup,
    *,
    environment: Path | None = None,
    fix: Path | None = None,
) -> Examination:
    """Look at everything. ``setup.release`` may be empty if ``environment`` tells the release."""
    checks: list[Check] = []
    release = setup.release or None
    if environment is not None:
        from advice.environment import look_at  # for that alone: it takes a while to import

        seen = look_at(environment, project, release)
        checks += seen.checks
        rules = seen.rules
    else:
        if release is None:
            raise Refused(
                "neither --release nor --env says which vLLM is meant",
                next_step=f"Add --release {project.releases.release[-1].version}, for example.",
            )
        rules = rules_of(project, release, stock=setup.stock)
    setup = replace(setup, release=rules.version, stock=not rules.patches)
    known = read_target(open_checkpoint(target))
    proposed = read_drafter(open_checkpoint(drafter))
    changes: tuple[str, ...] = ()
    if fix is not None:
        repair: Fix = corrected(known, proposed)
        written = write_fix(fix, repair, proposed)
        changes = repair.changes
        if len(written.sizes) > 1:  # with the weights beside it, it can be judged in turn
            proposed = read_drafter(written)
    pair = Pair(known, proposed, setup, rules)
    faults = load_faults(project.root / "patches" / "faults.toml")

    def judge(pair: Pair) -> list[Check]:
        return [
            *pair_checks(pair),
            *release_checks(pair, faults),
            *card_checks(pair, faults),
            *memory_checks(pair, faults),
        ]

    checks += target_checks(known)
    before = list(checks)  # what no option changes
    checks += judge(pair)
    words = tuple(command(pair, checks, lambda other: [*before, *judge(other)]))
    if environment is None and (better := better_release(pair, faults, project)):
        checks.append(better)
    return Examination(pair, tuple(checks), words, fix, changes)


def target_checks(target: Target) -> list[Check]:
    """Whether the target is one that this repository is about, and whether it is whole."""
    what = "target"
    checks = []
    kind = f"{target.architecture or 'no architecture'}, {target.layers} layers"
    if not target.architecture:
        checks.append(
            Check(
                "target.kind",
                "stop",
                what,
                "config.json names no architectures, so vLLM does not know what to build",
                "Complete the target's config.json.",
            )
        )
    elif target.is_kimi or target.text_model_type in ("kimi_k2", "deepseek_v3", "deepseek_v2"):
        checks.append(Check("target.kind", "pass", what, kind))
    else:
        checks.append(
            Check(
                "target.kind",
                "warn",
                what,
                f"{kind}: not a target of the Kimi-K2 or DeepSeek-V3 family, whose faults are "
                "the only ones known here",
                "Take what follows about faults as incomplete.",
            )
        )
    if not target.checkpoint.shards:
        checks.append(
            Check(
                "target.tensors",
                "warn",
                what,
                "the target has no safetensors file, so its weights could not be judged",
                "Complete the download, or name a folder with the weights.",
            )
        )
        return checks
    groups = target.groups
    experts = {group.name: group.number for group in groups if ".experts.*." in group.name}
    short = {name: n for name, n in experts.items() if n != target.experts}
    twice = [group.name for group in groups if group.number > 1 and group.name not in experts]
    total = sum(group.number * group.size for group in groups)
    count = sum(group.number for group in groups)
    layers = {name.partition(".layers.")[2].partition(".")[0] for name in (g.name for g in groups)}
    absent = [i for i in range(target.layers) if str(i) not in layers]
    if short or twice or absent:
        if absent:
            told = f"layer {absent[0]} has no tensors"
        elif short:
            name, number = next(iter(short.items()))
            told = f"{name} is there {number} times, for {target.experts} experts"
        else:
            told = f"two files hold {twice[0]}"
        checks.append(
            Check(
                "target.tensors",
                "stop",
                what,
                f"the weights are not whole: {told}",
                "Download the checkpoint again.",
            )
        )
    else:
        told = f"{count} tensors in {len(target.checkpoint.shards)} files, {total / 1e9:.1f} GB"
        checks.append(Check("target.tensors", "pass", what, told))
    return checks
