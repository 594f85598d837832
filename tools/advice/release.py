"""Which of the known faults a combination meets in a release, and what cures each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from advice.checks import LEVELS, Check, Level
from advice.pair import pair_checks
from advice.rules import Rules, rules_of
from advice.together import Pair, intended_ids, senseless, serving_length, used_ids
from advice.weights import weight_checks
from patchset.errors import PatchsetError
from patchset.faults import Fault
from patchset.project import Project


@dataclass(frozen=True)
class Meeting:
    """When a combination meets a fault, and what that means.

    ``when`` says how the pair meets it, ``None`` if it does not. ``level`` is what the fault costs
    where nothing cures it. ``cure`` is what helps without a patch; ``flags`` and ``draft`` are the
    options for that, as in :class:`advice.checks.Check`.
    """

    when: Callable[[Pair], str | None]
    level: Level | Callable[[Pair], Level]
    cure: str | None = None
    flags: tuple[tuple[str, str], ...] = ()
    draft: tuple[tuple[str, str | int], ...] = ()


def _kimi(pair: Pair) -> str | None:
    types = {pair.target.model_type, pair.target.text_model_type}
    family = {"kimi_k25", "kimi_k2", "deepseek_v3", "deepseek_v2"}
    return f"the target is a {pair.target.architecture}" if types & family else None


def _kimi_wrapper(pair: Pair) -> str | None:
    return _kimi(pair) if pair.target.multimodal else None


def _mla(pair: Pair) -> str | None:
    mla = pair.drafter.style == "mla"
    return f"the drafter is a {pair.drafter.architecture}" if mla else None


def _ids(pair: Pair) -> str | None:
    """F15, as the release without the series would read the ids."""
    intended = intended_ids(pair.target, pair.drafter)
    stock = used_ids(pair.target, pair.drafter, Rules(pair.rules.version))
    if intended is None or (stock or pair.target.default_ids) == intended.inputs:
        return None
    given = tuple(pair.drafter.listed_ids)
    if senseless(pair.target, given, intended.inputs):
        return None  # no release could read it rightly: the pair's own check tells of it
    place = "the top level" if pair.drafter.top_ids else "eagle_config"
    return f"the drafter lists {pair.drafter.listed_ids} in {place}: {intended.why}"


def _ends(pair: Pair) -> str | None:
    used = used_ids(pair.target, pair.drafter, pair.rules) or ()
    ends = sorted({0, pair.target.layers} & set(used))
    return f"the drafter reads the input of layer {ends[0]}" if ends else None


def _stages(pair: Pair) -> str | None:
    return f"--pp {pair.setup.pp}" if pair.setup.pp > 1 else None


def _eagle31(pair: Pair) -> str | None:
    fields = pair.drafter.fields
    used = [key for key in ("fc_norm", "norm_output") if fields.values.get(key)]
    count = fields.values.get("num_aux_hidden_states")
    used += [f"num_aux_hidden_states {count}"] if count not in (None, 3) else []
    return f"the drafter uses {', '.join(used)}" if used else None


def _new_form(pair: Pair) -> str | None:
    config = pair.target.checkpoint.config
    new = "image_token_id" in config and "media_placeholder_token_id" not in config
    told = "the target's configuration is in transformers' new form, with image_token_id"
    return told if new and pair.target.multimodal else None


def _images(pair: Pair) -> str | None:
    return "the target takes images" if pair.target.multimodal else None


def _tools(pair: Pair) -> str | None:
    return "the kimi_k2 tool parser goes with this target" if pair.target.is_kimi else None


def _reasoning(pair: Pair) -> str | None:
    return "the target reasons" if pair.target.is_kimi else None


def _long(pair: Pair) -> str | None:
    context, length = pair.drafter.context, serving_length(pair)
    if context is None or context >= length:
        return None
    return f"{length} tokens are served, the drafter follows {context}"


def _loses_theta(pair: Pair) -> bool:
    """The part of F34 that depends on the configuration: rope_theta without rope_scaling."""
    fields = pair.drafter.fields
    scaled = "rope_scaling" in fields or "rope_parameters" in fields
    return "rope_theta" in fields and not scaled and not pair.rules.since("0.28.0")


def _mla_layer(pair: Pair) -> str | None:
    if pair.drafter.style != "mla":
        return None
    if _loses_theta(pair):
        return f"rope_theta {pair.drafter.fields.values['rope_theta']} without rope_scaling"
    return "the drafter is of the MLA style; nothing in its configuration is lost"


def _unfit(pair: Pair) -> str | None:
    bad = [check.id for check in weight_checks(pair) if check.level == "stop"]
    return f"{', '.join(sorted(set(bad)))} above" if bad else None


MEETINGS: dict[str, Meeting] = {
    "F01": Meeting(_kimi_wrapper, "stop"),
    "F02": Meeting(_kimi, "stop"),
    "F03": Meeting(_kimi, "stop"),
    "F08": Meeting(_mla, "stop"),
    "F15": Meeting(
        _ids,
        "stop",
        "Write the ids of the layers' inputs at the top level of the drafter's config.json: "
        "--fix DIR does it.",
    ),
    "F16": Meeting(_ends, "stop"),
    "F17": Meeting(
        _stages, "stop", "Use a larger --tp and no --pp, or vLLM 0.30.0 or later with the series."
    ),
    "F18": Meeting(_eagle31, "stop", "Use a drafter that is no EAGLE-3.1 one."),
    "F19": Meeting(
        _new_form,
        "note",
        "Only the V1 model runner meets it; leave VLLM_USE_V2_MODEL_RUNNER unset.",
    ),
    "F21": Meeting(
        _images,
        "warn",
        "Serve text only with --limit-mm-per-prompt '{\"vision_chunk\": 0}', or expect an engine "
        "that dies when a prompt's chunk ends just before an image.",
    ),
    "F22": Meeting(_tools, "warn", 'Have clients call tools with "stream": false.'),
    "F23": Meeting(
        _reasoning, "note", "Do not combine structured output and reasoning with a drafter."
    ),
    "F24": Meeting(_long, "warn", "Serve no more tokens than the drafter follows."),
    "F34": Meeting(
        _mla_layer,
        lambda pair: "warn" if _loses_theta(pair) else "note",
        "Measure the acceptance length.",
    ),
    "F35": Meeting(_unfit, "stop", "Use a checkpoint that is whole."),
    "F36": Meeting(
        _reasoning, "note", 'Have clients that want the whole reasoning ask with "stream": false.'
    ),
    "F37": Meeting(_tools, "note", "Leave --stream-interval at 1."),
}

# Judged with the cards: advice.backends and advice.memory.
WITH_CARDS = ("F05", "F06", "F09", "F10", "F11", "F12", "F13", "F14", "F26")
# Not a matter of target, drafter, release and cards: LoRA, an option that nobody asked for here,
# what is installed on other machines, and a fault whose cause is not established.
NOT_JUDGED = ("F25", "F30", "F33", "F38")


def release_checks(pair: Pair, faults: Sequence[Fault]) -> list[Check]:
    """The faults that this pair meets in its release, cured ones too, in the order of their ids."""
    checks = []
    for fault in faults:
        meeting = MEETINGS.get(fault.id)
        if meeting is not None and (check := judge(pair, fault, meeting)):
            checks.append(check)
    return checks


def judge(pair: Pair, fault: Fault, meeting: Meeting) -> Check | None:
    """What one fault means for the pair; ``None`` if it does not meet it."""
    rules = pair.rules
    if not fault.affects(rules.version) or (how := meeting.when(pair)) is None:
        return None
    patches = [name for cured, name in rules.cures if cured == fault.id]
    what = f"fault {fault.id}"
    if patches:
        note = fault.note(rules.version)
        named = f"patch {', '.join(n[:4] for n in patches)}"
        return Check(
            f"release.{fault.id}",
            "note" if note else "pass",
            what,
            # A note says what a patch leaves, and it may leave all: some only refuse in time.
            f"{fault.title} ({how}): " + (f"{named}: {note}" if note else f"cured by {named}"),
            fault=fault.id,
        )
    return Check(
        f"release.{fault.id}",
        meeting.level if isinstance(meeting.level, str) else meeting.level(pair),
        what,
        f"{fault.title} ({how})",
        meeting.cure or _newer(fault, rules),
        fault.id,
        meeting.flags,
        meeting.draft,
    )


def _newer(fault: Fault, rules: Rules) -> str:
    healed = [span.healed for span in fault.affected if span.covers(rules.version) and span.healed]
    later = f"vLLM {healed[0]} is without it" if healed else "No release up to 0.33.0 is without it"
    return f"{later}; no patch cures it here." if rules.patches else f"{later}, or use the series."


# Checks of the pair that another release may answer otherwise, besides those about a fault.
_BY_RELEASE = ("pair.class", "pair.model-type", "pair.norms", "pair.tensors-unknown", "pair.d2t")


def better_release(pair: Pair, faults: Sequence[Fault], project: Project) -> Check | None:
    """The nearest release whose series would make this combination fare better, if any.

    Compared are the pair's and the release's checks, not the cards'. A later release is preferred
    to an earlier one, and a near one to a far one.
    """
    now = [*pair_checks(pair), *release_checks(pair, faults)]
    # Reading all the series takes longer than everything else.
    bad = [check for check in now if check.level in ("warn", "stop")]
    if not any(check.fault or check.id in _BY_RELEASE for check in bad):
        return None
    versions = [pin.version for pin in project.releases.release]
    at = versions.index(pair.rules.version)
    best: tuple[tuple[int, int], str, list[Check]] | None = None
    # The release itself comes first: it may be judged as released, or half patched.
    for version in [*versions[at:], *reversed(versions[:at])]:
        try:
            rules = rules_of(project, version)
        except PatchsetError:
            continue  # a series that is not whole cannot be advised
        if not rules.patches:
            continue
        other = replace(pair, rules=rules)
        found = [*pair_checks(other), *release_checks(other, faults)]
        if best is None or _weight(found) < best[0]:
            best = (_weight(found), version, found)
    if best is None or best[0] >= _weight(now):
        return None
    left = sorted({check.fault or check.id for check in best[2] if check.level in ("warn", "stop")})
    return Check(
        "release.better",
        "note",
        "other releases",
        f"vLLM {best[1]} with the series would be better: "
        + (f"only {', '.join(left)} would be left" if left else "nothing would be left"),
        f"--release {best[1]} judges it in full.",
    )


def _weight(checks: list[Check]) -> tuple[int, int]:
    levels = [LEVELS.index(check.level) for check in checks]
    return max(levels, default=0), sum(level >= LEVELS.index("warn") for level in levels)
