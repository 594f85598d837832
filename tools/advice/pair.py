"""Whether a drafter fits a target, as one release reads both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from advice.checks import Check, Level, listed
from advice.drafter import IDS, MTP_MODEL_TYPES, Drafter
from advice.fields import Fields
from advice.rules import LENGTH, PIPELINE
from advice.together import (
    FIX,
    Intended,
    Pair,
    intended_ids,
    senseless,
    serving_length,
    used_ids,
)
from advice.weights import weight_checks


def pair_checks(pair: Pair) -> list[Check]:
    """Every check of the pair, in the order in which the engine would meet a mistake."""
    return [
        *_kind(pair),
        *_parallel(pair),
        *_context(pair),
        *_hidden(pair),
        *_vocabulary(pair),
        *_ids(pair),
        *weight_checks(pair),
        *_stop_tokens(pair),
        *_made_for(pair),
    ]


# --- class and type -------------------------------------------------------------------------------


def _kind(pair: Pair) -> Iterator[Check]:
    drafter, rules = pair.drafter, pair.rules
    what = "drafter class"
    if drafter.model_type in MTP_MODEL_TYPES:
        yield Check(
            "pair.model-type",
            "stop",
            what,
            f"model_type {drafter.model_type!r} is read as a request for the target's own "
            "multi-token prediction, whatever the method says",
            f'It has to be "model_type": "kimi_k2". {FIX}',
        )
        return
    if drafter.architecture not in rules.architectures:
        fault = "F08" if drafter.style == "mla" else None
        yield Check(
            "pair.class",
            "stop",
            what,
            f"{rules.name} has no drafter class {drafter.architecture}",
            _later_for(pair) or "Use a drafter of the Llama or the DeepSeek-V3 style.",
            fault,
        )
        return
    if not drafter.model_type:
        yield Check(
            "pair.model-type",
            "stop",
            what,
            "config.json names no model_type, without which transformers reads no configuration",
            'Published drafters have "llama" or "kimi_k2".',
        )
        return
    if (act := drafter.fields.text("hidden_act")) not in (None, "silu"):
        yield Check(
            "pair.activation",
            "stop",
            what,
            f"hidden_act {act!r}: vLLM's drafters have silu only",
            "Use a drafter with silu, or correct its config.json if that is a mistake.",
        )
    if drafter.style == "mla" and drafter.model_type not in ("kimi_k2", "deepseek_v2"):
        yield Check(
            "pair.model-type",
            "warn",
            what,
            f"model_type {drafter.model_type!r} with class {drafter.architecture} was never tried",
            f'Published drafters of this style have "kimi_k2". {FIX}',
        )
        return
    if drafter.model_type == "kimi_k2" and not (rules.since("0.18.0") or rules.has(7)):
        yield Check("pair.model-type", "stop", what, "model_type 'kimi_k2' is unknown", None, "F08")
        return
    form = "speculators form, " if drafter.speculators else ""
    yield Check("pair.class", "pass", what, f"{form}{drafter.architecture}, {drafter.model_type}")


def _later_for(pair: Pair) -> str | None:
    if pair.drafter.style == "mla":
        return "The series has it, and vLLM itself from 0.18.0."
    if pair.drafter.architecture == "Eagle3Qwen3ForCausalLM":
        return "vLLM has it from 0.24.0."
    return None


# --- sizes ----------------------------------------------------------------------------------------


def _hidden(pair: Pair) -> Iterator[Check]:
    target, drafter = pair.target, pair.drafter
    what = "hidden size"
    if drafter.target_hidden != target.hidden_size:
        yield Check(
            "pair.hidden",
            "stop",
            what,
            f"the drafter is made for a target of hidden size {drafter.target_hidden}, the "
            f"target's is {target.hidden_size}",
            "This drafter belongs to another target.",
        )
    elif drafter.hidden_size != target.hidden_size and "embed_tokens.weight" not in drafter.loaded:
        yield Check(
            "pair.hidden",
            "stop",
            what,
            f"the drafter's own hidden size {drafter.hidden_size} is not the target's "
            f"{target.hidden_size}, and it has no embed_tokens to go with it",
            "The checkpoint is incomplete.",
        )
    else:
        yield Check("pair.hidden", "pass", what, f"{target.hidden_size} on both sides")


def _vocabulary(pair: Pair) -> Iterator[Check]:
    target, drafter = pair.target, pair.drafter
    what = "vocabulary"
    if drafter.vocab_size != target.vocab_size:
        yield Check(
            "pair.vocabulary",
            "stop",
            what,
            f"the drafter's vocab_size {drafter.vocab_size} is not the target's "
            f"{target.vocab_size}",
            "A reduced vocabulary goes into draft_vocab_size; vocab_size is the target's. "
            "Otherwise the drafter belongs to another target.",
        )
        return
    if drafter.draft_vocab_size > drafter.vocab_size:
        yield Check(
            "pair.vocabulary",
            "stop",
            what,
            f"draft_vocab_size {drafter.draft_vocab_size} is above vocab_size {drafter.vocab_size}",
            FIX,
        )
        return
    reduced = drafter.draft_vocab_size < drafter.vocab_size
    text = f"{target.vocab_size}" + (f", {drafter.draft_vocab_size} drafted" if reduced else "")
    yield Check("pair.vocabulary", "pass", what, text)


# --- layer ids ------------------------------------------------------------------------------------


def _ids(pair: Pair) -> Iterator[Check]:
    target, drafter, rules = pair.target, pair.drafter, pair.rules
    what = "layer ids"
    if not drafter.uses_states:
        yield Check(
            "pair.ids",
            "stop" if "fc.weight" in drafter.loaded else "warn",
            what,
            "use_aux_hidden_state is false: the drafter is given the target's last state only, as "
            "in EAGLE-1" + (", but it has an fc" if "fc.weight" in drafter.loaded else ""),
            "EAGLE-3 drafters have true there.",
        )
        return
    given = drafter.listed_ids
    intended = intended_ids(target, drafter)
    place = "at the top level" if drafter.top_ids else "in eagle_config"
    # Of a nested list such a release takes the length alone, and the default in its place.
    ignored = not drafter.top_ids and rules.nested_ids == "ignored" and isinstance(given, list)
    instead = f"; {rules.name} takes {listed(target.default_ids)} in any case" if ignored else ""
    if intended is None:
        shown = repr(given)
        yield Check(
            "pair.ids",
            "warn" if ignored else "stop",
            what,
            f"{IDS} {place} should be a list of integers, it is {shown[:60]}{instead}",
            "Write the ids that the drafter was trained with into its config.json.",
            "F15",
        )
        return
    if given and (problem := senseless(target, tuple(given), intended.inputs)):
        # The target hands the states over in layer order, whatever the list's order.
        harmless = ignored or (problem == "order" and not rules.has(4))
        reasons = {
            "order": "are not in ascending order; the target gives its states in layer order",
            "twice": "name a layer twice, which gives one state only",
            "range": f"are not all between 0 and {target.layers}, the target's number of layers",
        }
        yield Check(
            "pair.ids",
            "warn" if harmless else "stop",
            what,
            f"the ids {listed(given)} {place} {reasons[problem]}{instead}",
            "Ask for the ids that the drafter was trained with. " + FIX
            if problem == "order"
            else "Write the ids that the drafter was trained with into its config.json.",
            "F15",
        )
        return
    yield from _width(pair, intended)
    used = used_ids(target, drafter, rules) or target.default_ids
    if used != intended.inputs and not (not intended.certain and set(used) == set(intended.inputs)):
        how = "it ignores ids in eagle_config" if used == target.default_ids else "it takes them so"
        yield Check(
            "pair.ids",
            "stop",
            what,
            f"{intended.why}; {rules.name} reads the inputs of {listed(used)}: {how}, and drafts "
            "would hardly ever be accepted",
            f"The ids have to be {listed(intended.inputs)} at the top level. {FIX}",
            "F15",
        )
        return
    if trouble := _not_captured(pair, used):
        yield trouble
        return
    level: Level = "pass" if intended.certain else "warn"
    cure = (
        None
        if intended.certain
        else "Compare them with the drafter's card: written by a trainer that counts outputs, each "
        "would be one too low. Then measure the acceptance length."
    )
    both = drafter.top_ids and drafter.nested_ids and drafter.top_ids != drafter.nested_ids
    if both and level == "pass" and not _agree(drafter):
        level, cure = "warn", "Ask which of the two lists the drafter was trained with."
    told = f" ({str(drafter.nested_ids)[:80]} in eagle_config)" if both else ""
    yield Check(
        "pair.ids",
        level,
        what,
        f"{intended.why}{told}; {rules.name} reads the inputs of layers {listed(used)}",
        cure,
    )


def _agree(drafter: Drafter) -> bool:
    """Whether the two lists name the same places, one in each convention."""
    try:
        return [i + 1 for i in drafter.nested_ids] == list(drafter.top_ids)
    except TypeError:
        return False


def _not_captured(pair: Pair, used: tuple[int, ...]) -> Check | None:
    """F16: the two ends of the target, which releases forgot."""
    rules, last = pair.rules, pair.target.layers
    if rules.has(3) or not rules.since("0.18.0"):
        return None
    if 0 in used:
        reason = "layer 0 has no residual yet, and adding it ends in a TypeError"
    elif last in used and not rules.since("0.25.1"):
        reason = f"the output of the last layer (id {last}) is never captured"
    else:
        return None
    return Check(
        "pair.ids", "stop", "layer ids", f"{rules.name}: {reason}", "The series cures it.", "F16"
    )


def _width(pair: Pair, intended: Intended) -> Iterator[Check]:
    """fc takes as many states as there are ids."""
    target, drafter, rules = pair.target, pair.drafter, pair.rules
    what = "fc width"
    found = drafter.fc_inputs
    if found is None:
        if "fc.weight" in drafter.loaded or drafter.quantization:
            yield Check("pair.fc", "note", what, "fc is quantized: its width was not judged")
        return  # a missing fc is told of with the other tensors
    states, rest = divmod(found, target.hidden_size)
    used = used_ids(target, drafter, rules)
    made = rules.fc_states(drafter, len(used) if used else None)
    count = len(used or target.default_ids)
    if rest or states == 0:
        yield Check(
            "pair.fc",
            "stop",
            what,
            f"fc takes {found} inputs, which is no multiple of the target's hidden size "
            f"{target.hidden_size}",
            "This drafter belongs to another target.",
        )
    elif states != len(intended.inputs):
        yield Check(
            "pair.fc",
            "stop",
            what,
            f"fc takes {found} inputs, that is {states} hidden states, but the configuration names "
            f"{len(intended.inputs)} layers",
            "Write the ids that the drafter was trained with into its config.json.",
        )
    elif made != states or count != states:
        yield Check(
            "pair.fc",
            "stop",
            what,
            f"fc takes {states} hidden states; {rules.name} makes it for {made} and gives it "
            f"{count}",
            f"num_aux_hidden_states and the ids have to say {states}. {FIX}",
            "F15" if states == len(intended.inputs) else None,
        )
    else:
        yield Check("pair.fc", "pass", what, f"{found} = {states} × {target.hidden_size}")


# --- context, parallel sizes, stop tokens ---------------------------------------------------------


def _context(pair: Pair) -> Iterator[Check]:
    target, drafter, rules = pair.target, pair.drafter, pair.rules
    what = "context"
    length = serving_length(pair)
    if target.context and length > target.context:
        yield Check(
            "pair.context",
            "stop",
            what,
            f"--max-model-len {length} is beyond the target's {target.context} positions",
            f"At most --max-model-len {target.context}.",
        )
        return
    if drafter.context is None or drafter.context >= length:
        own = "any" if drafter.context is None else drafter.context
        yield Check("pair.context", "pass", what, f"{length} served, the drafter follows {own}")
        return
    reason = f"{length} tokens are served, the drafter follows {drafter.context} of them"
    shorter = f"--max-model-len {drafter.context} avoids it."
    if rules.has(LENGTH):
        yield Check(
            "pair.context",
            "warn",
            what,
            f"{reason}: a longer request goes on without drafts",
            shorter,
            "F24",
        )
    elif rules.since("0.33.0"):
        yield Check("pair.context", "warn", what, reason, shorter)
    elif rules.second_runner:
        yield Check(
            "pair.context",
            "stop",
            what,
            f"{reason}; beyond them {rules.name} reads past the drafter's position table",
            shorter,
            "F24",
        )
    else:
        yield Check(
            "pair.context",
            "warn",
            what,
            f"{reason}; one longer request stops drafting for its whole batch, without a word",
            f"{shorter} The series stops it for that request only.",
            "F24",
        )


def _parallel(pair: Pair) -> Iterator[Check]:
    target, drafter, setup = pair.target, pair.drafter, pair.setup
    what = "parallel sizes"
    cards = setup.tp * setup.pp
    bad = False

    def stop(reason: str, cure: str, fault: str | None = None) -> Check:
        return Check("pair.parallel", "stop", what, reason, cure, fault)

    for who, heads in (("target", target.heads), ("drafter", drafter.heads)):
        if heads % setup.tp:
            bad = True
            yield stop(
                f"the {who}'s {heads} attention heads do not divide by --tp {setup.tp}",
                f"Choose a divisor of {heads}.",
            )
    if drafter.style != "mla" and drafter.kv_heads % setup.tp and setup.tp % drafter.kv_heads:
        bad = True
        yield stop(
            f"the drafter's {drafter.kv_heads} KV heads neither divide by --tp {setup.tp} nor the "
            "other way round",
            "Choose another tensor parallel size.",
        )
    for who, size in (
        ("target's intermediate_size", target.text.number("intermediate_size")),
        ("target's moe_intermediate_size", target.text.number("moe_intermediate_size")),
        ("drafter's intermediate_size", drafter.intermediate_size),
    ):
        if size and size % setup.tp:
            bad = True
            yield stop(
                f"the {who} {size} does not divide by --tp {setup.tp}",
                "Choose another tensor parallel size.",
            )
    if setup.tp % setup.dcp:
        bad = True
        yield stop(
            f"--tp {setup.tp} does not divide by --dcp {setup.dcp}",
            "The decode context parallel size has to divide the tensor parallel size.",
        )
    elif setup.dcp > 1 and drafter.style != "mla":
        yield Check(
            "pair.dcp",
            "warn",
            what,
            f"--dcp {setup.dcp} splits each request's KV cache over cards; vLLM allows that for "
            "other attention than MLA only with fewer KV heads than cards, and asks nobody about "
            "the drafter's",
            "Use a drafter of the MLA style with --dcp.",
        )
    # Before 0.30.0 the patch of that number only refuses.
    if setup.pp > 1 and not (pair.rules.has(PIPELINE) and pair.rules.since("0.30.0")):
        bad = True
        yield stop(
            f"--pp {setup.pp}: pipeline stages do not pass on the hidden states that an EAGLE-3 "
            "drafter reads",
            f"Use --tp {cards} instead, or vLLM 0.30.0 or later with the series.",
            "F17",
        )
    if not bad:
        sizes = f"tp {setup.tp}, pp {setup.pp}, dcp {setup.dcp}"
        yield Check("pair.parallel", "pass", what, f"{sizes}: {cards} cards")


def _stop_tokens(pair: Pair) -> Iterator[Check]:
    target = pair.target
    what = "stop tokens"
    where = f"{target.checkpoint.source.place}/generation_config.json"
    generated = Fields(target.checkpoint.generation, where).numbers("eos_token_id")
    configured = target.text.numbers("eos_token_id") | target.fields.numbers("eos_token_id")
    if outside := sorted(i for i in generated | configured if i >= target.vocab_size):
        yield Check(
            "pair.eos",
            "warn",
            what,
            f"token {outside[0]} is beyond the vocabulary of {target.vocab_size}",
            "One of the two configuration files belongs to another model.",
        )
    elif not generated:
        yield Check(
            "pair.eos",
            "warn",
            what,
            f"there is no generation_config.json with an eos_token_id; config.json has "
            f"{listed(tuple(sorted(configured)))}, which chat models do not end an answer with",
            "Take generation_config.json from the published checkpoint, or answers run on to the "
            "length limit.",
        )
    else:
        yield Check(
            "pair.eos",
            "pass",
            what,
            f"{listed(tuple(sorted(generated)))} from generation_config.json, "
            f"{listed(tuple(sorted(configured)))} from config.json",
        )


# --- made for another target ----------------------------------------------------------------------

# Kimi-K2.5, kimi-k2.6-eagle3.1, Kimi-K25-eagle3, Kimi-K2-Instruct.
_FAMILY = re.compile(r"kimi[-_]?k(\d)(?:[.]?(\d))?(?!\d)", re.IGNORECASE)


def _family(names: Iterable[object]) -> str | None:
    for name in names:
        if found := _FAMILY.search(str(name or "")):
            return f"Kimi-K{'.'.join(part for part in found.groups() if part)}"
    return None


def _made_for(pair: Pair) -> Iterator[Check]:
    """Names tell where sizes do not: all Kimi-K2 targets have the same."""
    target, drafter = pair.target, pair.drafter
    what = "made for"
    said = drafter.checkpoint.config
    keys = ("target_model", "base_model", "_name_or_path")
    its = _family([drafter.verifier, *(said.get(key) for key in keys), drafter.name])
    ours = _family([target.name, target.checkpoint.config.get("_name_or_path")])
    if its is None or ours is None:
        yield Check(
            "pair.made-for",
            "note",
            what,
            "no name tells which target the drafter was trained for, and sizes cannot: those of "
            "all Kimi-K2 targets are the same",
            "Measure the acceptance length before you trust it.",
        )
    elif its != ours:
        yield Check(
            "pair.made-for",
            "warn",
            what,
            f"by its name the drafter was trained for {its}, the target is {ours}",
            "Expect fewer accepted drafts; use a drafter of this target if there is one.",
        )
    else:
        yield Check("pair.made-for", "pass", what, f"{its} by both names")
