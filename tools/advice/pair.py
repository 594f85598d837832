"""Whether a drafter fits a target, as one release reads both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from advice.checks import Check, Level
from advice.drafter import COPIED_LATER, IDS, MTP_MODEL_TYPES, Drafter
from advice.rules import LENGTH, Rules
from advice.setup import Setup
from advice.target import Target

FIX = "--fix DIR writes a corrected copy of config.json."


@dataclass(frozen=True)
class Pair:
    """What is to be judged together."""

    target: Target
    drafter: Drafter
    setup: Setup
    rules: Rules


def pair_checks(pair: Pair) -> list[Check]:
    """Every check of the pair, in the order in which the engine would meet a mistake."""
    return [
        *_kind(pair),
        *_parallel(pair),
        *_context(pair),
        *_hidden(pair),
        *_vocabulary(pair),
        *_ids(pair),
        *_norms(pair),
        *_tensors(pair),
        *_maps(pair),
        *_quantization(pair),
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


@dataclass(frozen=True)
class Intended:
    """The layers whose inputs a drafter was trained on, as far as its files tell.

    ``certain`` for the two defaults of the trainers. Nothing in any other list says for sure which
    convention it follows, and only the drafter's acceptance length shows it.
    """

    inputs: tuple[int, ...]
    certain: bool
    why: str


def intended_ids(target: Target, drafter: Drafter) -> Intended | None:
    """Which convention the drafter's ids follow and why; ``None`` for a list that makes no sense.

    Id i is the input of layer i (EAGLE's reference, vLLM, speculators) or the output of layer i
    (SpecForge, TorchSpec, ModelOpt). Both defaults name the same three places.
    """
    listed = drafter.listed_ids
    inputs = target.default_ids
    outputs = tuple(i - 1 for i in inputs)
    if not listed:
        return Intended(inputs, True, f"no ids: the default, inputs of layers {_list(inputs)}")
    if not isinstance(listed, list) or not all(type(i) is int for i in listed):
        return None
    found = tuple(listed)
    if found == inputs:
        return Intended(
            inputs, True, f"{_list(found)} is the default of trainers that count inputs"
        )
    if found == outputs:
        return Intended(
            inputs,
            True,
            f"{_list(found)} is the default of trainers that count outputs of layers, which are "
            f"the inputs of {_list(inputs)}",
        )
    if not drafter.speculators and not drafter.top_ids and found[0] == 1:
        return Intended(
            tuple(i + 1 for i in found),
            False,
            f"{_list(found)} begins with 1, as only lists of trainers that count outputs do",
        )
    if drafter.speculators:
        return Intended(found, False, f"{_list(found)}: the speculators library counts inputs")
    return Intended(found, False, f"{_list(found)} is no trainer's default")


def used_ids(target: Target, drafter: Drafter, rules: Rules) -> tuple[int, ...] | None:
    """The layers whose inputs the release gives to the drafter; ``None`` for its default."""
    top = tuple(drafter.top_ids) if isinstance(drafter.top_ids, list) else ()
    nested = tuple(drafter.nested_ids) if isinstance(drafter.nested_ids, list) else ()
    if rules.nested_ids == "resolved":
        found = top or nested
        outputs = tuple(i - 1 for i in target.default_ids)
        if found and (found == outputs or (not top and found[0] == 1)):
            found = tuple(i + 1 for i in found)
        return found or None
    if rules.nested_ids == "verbatim":
        return top or nested or None
    return top or None


def _ids(pair: Pair) -> Iterator[Check]:
    target, drafter, rules = pair.target, pair.drafter, pair.rules
    what = "layer ids"
    if not drafter.uses_states:
        yield Check(
            "pair.ids",
            "warn",
            what,
            "use_aux_hidden_state is false: the drafter reads the last state only, as EAGLE-1 does",
            "Such drafters were never tried here.",
        )
        return
    listed = drafter.listed_ids
    intended = intended_ids(target, drafter)
    place = "at the top level" if drafter.top_ids else "in eagle_config"
    if intended is None:
        shown = repr(listed)
        yield Check(
            "pair.ids",
            "stop",
            what,
            f"{IDS} {place} should be a list of integers, it is {shown[:60]}",
            "Write the ids that the drafter was trained with into its config.json.",
            "F15",
        )
        return
    if listed and (problem := _senseless(target, tuple(listed), intended.inputs)):
        # The target hands the states over in layer order, whatever the list's order.
        harmless = problem == "order" and not rules.has(4)
        reasons = {
            "order": "are not in ascending order; the target gives its states in layer order",
            "twice": "name a layer twice, which gives one state only",
            "range": f"are not all between 0 and {target.layers}, the target's number of layers",
        }
        yield Check(
            "pair.ids",
            "warn" if harmless else "stop",
            what,
            f"the ids {_list(tuple(listed))} {place} {reasons[problem]}",
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
            f"{intended.why}; {rules.name} reads the inputs of {_list(used)}: {how}, and drafts "
            "would hardly ever be accepted",
            f"The ids have to be {_list(intended.inputs)} at the top level. {FIX}",
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
    told = f" ({_list(tuple(drafter.nested_ids))} in eagle_config)" if both else ""
    yield Check(
        "pair.ids",
        level,
        what,
        f"{intended.why}{told}; {rules.name} reads the inputs of layers {_list(used)}",
        cure,
    )


def _agree(drafter: Drafter) -> bool:
    """Whether the two lists name the same places, one in each convention."""
    try:
        return [i + 1 for i in drafter.nested_ids] == list(drafter.top_ids)
    except TypeError:
        return False


def _senseless(target: Target, listed: tuple[int, ...], inputs: tuple[int, ...]) -> str | None:
    if any(not 0 <= i <= target.layers for i in (*listed, *inputs)):
        return "range"
    if len(set(listed)) != len(listed):
        return "twice"
    return "order" if list(listed) != sorted(listed) else None


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


# --- norms and flags ------------------------------------------------------------------------------


def _norms(pair: Pair) -> Iterator[Check]:
    drafter, rules = pair.drafter, pair.rules
    what = "EAGLE-3.1"
    fields = drafter.fields
    flag = fields.flag("fc_norm")
    norms = sorted(name for name in drafter.loaded if name.startswith("fc_norm."))
    asked = flag or fields.flag("norm_output")
    fc = drafter.fc_inputs
    states = (fc // pair.target.hidden_size) if fc else len(pair.target.default_ids)
    if norms and not flag:
        yield Check(
            "pair.norms",
            "stop",
            what,
            f"the checkpoint has {len(norms)} tensors fc_norm, but its config.json does not set "
            "fc_norm",
            f'It has to say "fc_norm": true. {FIX}',
            "F18",
        )
    elif flag and len(norms) != states:
        yield Check(
            "pair.norms",
            "stop",
            what,
            f"fc_norm is set, and fc takes {states} states, but the checkpoint has {len(norms)} "
            "tensors fc_norm",
            "The checkpoint is incomplete, or fc_norm is not meant.",
        )
    elif asked and not rules.eagle31(drafter):
        yield Check(
            "pair.norms",
            "stop",
            what,
            f"the drafter uses {_set_of(fields.values, COPIED_LATER)}, which {rules.name} ignores",
            "The series has it; vLLM itself from 0.22.0 (Llama style) and 0.23.0 (MLA style).",
            "F18",
        )
    elif asked:
        yield Check("pair.norms", "pass", what, _set_of(fields.values, COPIED_LATER))
    before = fields.flag("norm_before_fc") or fields.part("eagle_config").flag("norm_before_fc")
    there = any(name.startswith("input_norm.") for name in drafter.loaded)
    if before and not rules.norm_before_fc(drafter):
        yield Check(
            "pair.norms",
            "stop",
            "norm before fc",
            f"norm_before_fc is set, which {rules.name} does not know for this drafter",
            "vLLM knows it from 0.18.0, for drafters of the Llama style.",
        )
    elif before != there:
        yield Check(
            "pair.norms",
            "stop",
            "norm before fc",
            f"norm_before_fc is {'set' if before else 'not set'}, and the checkpoint has "
            f"{'a' if there else 'no'} tensor input_norm",
            "Flag and tensor have to go together.",
        )


def _set_of(values: object, keys: tuple[str, ...]) -> str:
    assert hasattr(values, "get")
    return ", ".join(f"{key} {values.get(key)}" for key in keys if values.get(key))


# --- tensors --------------------------------------------------------------------------------------

# Skipped by every release: rotary tables of old checkpoints, and what vLLM takes the other way.
_IGNORED = re.compile(r"t2d|rotary_(pos_)?emb\.(inv_freq|cos_cached|sin_cached)|mask_hidden")
_SCALES = re.compile(r"\.(k|v|q|prob)_(scale|zero_point)$|_proj\.(k|v)_scale$")


def expected_shapes(pair: Pair, states: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the drafter has a place for and needs.

    ``states``: how many hidden states fc takes. Names as vLLM has them (``layers.0`` for
    ``midlayer``), shapes in elements as ``[out, in]``. Left out is what the target can lend.
    """
    drafter = pair.drafter
    hidden, heads = drafter.hidden_size, drafter.heads
    found: dict[str, tuple[int, ...]] = {}
    if drafter.uses_states:
        found["fc.weight"] = (hidden, states * drafter.target_hidden)
        if drafter.fields.flag("fc_norm"):
            found |= {f"fc_norm.{i}.weight": (drafter.target_hidden,) for i in range(states)}
    for layer in range(drafter.layers):
        place, inputs = f"layers.{layer}", (1 if layer else 2) * hidden
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{place}.{norm}.weight"] = (hidden,)
        if layer == 0:
            found[f"{place}.hidden_norm.weight"] = (hidden,)
        attention = f"{place}.self_attn"
        if (latent := drafter.latent) is not None and drafter.style == "mla":
            head = latent.qk_nope_head_dim + latent.qk_rope_head_dim
            if rank := latent.q_lora_rank:
                found[f"{attention}.q_a_proj.weight"] = (rank, inputs)
                found[f"{attention}.q_a_layernorm.weight"] = (rank,)
                found[f"{attention}.q_b_proj.weight"] = (heads * head, rank)
            else:
                found[f"{attention}.q_proj.weight"] = (heads * head, inputs)
            found[f"{attention}.kv_a_proj_with_mqa.weight"] = (latent.cached, inputs)
            found[f"{attention}.kv_a_layernorm.weight"] = (latent.kv_lora_rank,)
            rows = heads * (latent.qk_nope_head_dim + latent.v_head_dim)
            found[f"{attention}.kv_b_proj.weight"] = (rows, latent.kv_lora_rank)
            found[f"{attention}.o_proj.weight"] = (hidden, heads * latent.v_head_dim)
        else:
            size = drafter.head_dim
            found[f"{attention}.q_proj.weight"] = (heads * size, inputs)
            found[f"{attention}.k_proj.weight"] = (drafter.kv_heads * size, inputs)
            found[f"{attention}.v_proj.weight"] = (drafter.kv_heads * size, inputs)
            found[f"{attention}.o_proj.weight"] = (hidden, heads * size)
            if drafter.model_type == "qwen3":
                found[f"{attention}.q_norm.weight"] = (size,)
                found[f"{attention}.k_norm.weight"] = (size,)
        inner = drafter.intermediate_size
        found[f"{place}.mlp.gate_proj.weight"] = (inner, hidden)
        found[f"{place}.mlp.up_proj.weight"] = (inner, hidden)
        found[f"{place}.mlp.down_proj.weight"] = (hidden, inner)
    found["norm.weight"] = (hidden,)
    if drafter.draft_vocab_size != drafter.vocab_size:
        found["lm_head.weight"] = (drafter.draft_vocab_size, hidden)
    return found


def _tensors(pair: Pair) -> Iterator[Check]:
    target, drafter, rules = pair.target, pair.drafter, pair.rules
    what = "tensors"
    if not drafter.tensors:
        yield Check(
            "pair.tensors",
            "warn",
            what,
            "the drafter has no safetensors file, so its weights could not be judged",
            "Convert it to safetensors, or measure the acceptance length.",
        )
        return
    used = used_ids(target, drafter, rules)
    states = (drafter.fc_inputs or 0) // target.hidden_size or len(used or target.default_ids)
    wanted = expected_shapes(pair, states)
    loaded = drafter.loaded
    lent = {
        "embed_tokens.weight": (drafter.vocab_size, drafter.hidden_size),
        "lm_head.weight": (drafter.draft_vocab_size, drafter.hidden_size),
    }
    known = {**lent, **wanted}
    modules = {name.rpartition(".")[0] for name in known}
    present = {name.rpartition(".")[0] for name in loaded}

    def there(name: str) -> bool:
        return name in loaded or bool(drafter.quantization and name.rpartition(".")[0] in present)

    missing = [name for name in wanted if not there(name)]
    unknown = [
        original
        for name, (original, _) in loaded.items()
        if name not in known
        and not _may_be_there(name, drafter, rules)
        and not (drafter.quantization and name.rpartition(".")[0] in modules)
        and not _SCALES.search(name)
    ]
    layer = "midlayer" if any("midlayer." in name for name in drafter.tensors) else "layers.0"
    if missing:
        names = [name.replace("layers.0", layer) for name in missing]
        how = (
            "refuses it"
            if rules.checks_weights
            else "starts with whatever is in memory there, and drafts nothing of use"
        )
        prefixed = any(name.startswith("model.") for name in drafter.tensors)
        yield Check(
            "pair.tensors",
            "stop",
            what,
            f"{len(missing)} missing: {_some(names)}; {rules.name} {how}",
            "Its tensors have a prefix 'model.' that the format does not: rename them."
            if prefixed
            else "The checkpoint is incomplete, or of another form than its config.json says.",
        )
    if unknown:
        refuses = rules.refuses_unknown(drafter)
        yield Check(
            "pair.tensors-unknown",
            "stop" if refuses else "warn",
            what,
            f"{len(unknown)} unknown to this class: {_some(unknown)}; {rules.name} "
            f"{'stops there' if refuses else 'leaves them out without a word'}",
            "Ask what they are for: a drafter that needs them is none that this release can run.",
        )
    if wrong := _misshapen(drafter, known):
        yield Check(
            "pair.shapes",
            "stop",
            what,
            f"{len(wrong)} of another shape than config.json says: {_some(wrong)}",
            "config.json belongs to another checkpoint, or draft_vocab_size or a head size is "
            f"wrong. {FIX}",
        )
    if not (missing or unknown or wrong):
        shared = [name.partition(".")[0] for name in lent if name not in loaded]
        lending = f"; {' and '.join(shared)} from the target" if shared else ""
        yield Check("pair.tensors", "pass", what, f"all {len(loaded)} in place{lending}")


def _may_be_there(name: str, drafter: Drafter, rules: Rules) -> bool:
    if name in ("d2t", "t2d") or _IGNORED.search(name):
        return True
    if name.endswith(".bias") and drafter.fields.flag("attention_bias") and ".self_attn." in name:
        return True
    if name.endswith(".hidden_norm.weight") and drafter.style in ("llama", "mla"):
        return re.fullmatch(r"layers\.\d+\.hidden_norm\.weight", name) is not None
    if name.startswith("fc_norm."):  # told of with the flag that it goes with
        return True
    return name.startswith("input_norm.")


def _misshapen(drafter: Drafter, known: dict[str, tuple[int, ...]]) -> list[str]:
    found = []
    for name, shape in known.items():
        entry = drafter.loaded.get(name)
        if entry is None or name == "fc.weight":  # its width has a check of its own
            continue
        if drafter.quantization and entry[1].dtype not in ("BF16", "F16", "F32"):
            continue
        if entry[1].shape != shape:
            found.append(f"{entry[0]} {_list(entry[1].shape)}, not {_list(shape)}")
    return found


def _maps(pair: Pair) -> Iterator[Check]:
    """d2t and t2d, the maps between draft and target vocabulary."""
    drafter, rules = pair.drafter, pair.rules
    what = "draft vocabulary"
    reduced = drafter.draft_vocab_size != drafter.vocab_size
    d2t, t2d = drafter.tensors.get("d2t"), drafter.tensors.get("t2d")
    if d2t is None:
        if reduced and drafter.tensors:
            yield Check(
                "pair.d2t",
                "stop",
                what,
                f"{drafter.draft_vocab_size} of {drafter.vocab_size} tokens are drafted, but the "
                "checkpoint has no d2t that says which",
                "The checkpoint is incomplete; without the map every draft is another token.",
            )
        return
    if d2t.shape != (drafter.draft_vocab_size,):
        yield Check(
            "pair.d2t",
            "stop",
            what,
            f"d2t has shape {_list(d2t.shape)}, draft_vocab_size is {drafter.draft_vocab_size}",
            f"draft_vocab_size has to be the length of d2t and of lm_head. {FIX}",
        )
        return
    steps = drafter.checkpoint.values(d2t)
    tokens = [at + step for at, step in enumerate(steps)]
    if min(tokens, default=0) < 0 or max(tokens, default=0) >= drafter.vocab_size:
        yield Check(
            "pair.d2t",
            "stop",
            what,
            f"d2t leads to tokens from {min(tokens)} to {max(tokens)}, the vocabulary has "
            f"{drafter.vocab_size}",
            "d2t holds what to add to a draft id; this one seems to hold the ids themselves."
            if sorted(set(steps)) == steps and steps[0] >= 0 and steps[-1] < drafter.vocab_size
            else "The checkpoint is damaged.",
        )
        return
    if len(set(tokens)) != len(tokens):
        yield Check(
            "pair.d2t",
            "warn",
            what,
            f"d2t maps {len(tokens)} draft tokens to {len(set(tokens))} tokens only",
            "Measure the acceptance length: one of each pair is lost.",
        )
        return
    if not reduced and rules.since("0.30.0") and not rules.checks_weights:
        yield Check(
            "pair.d2t",
            "stop",
            what,
            f"d2t is there although the whole vocabulary is drafted; {rules.name} has no place "
            "for it then",
            "Remove d2t and t2d from the checkpoint.",
        )
        return
    if not reduced and any(steps):
        yield Check(
            "pair.d2t", "warn", what, "the whole vocabulary is drafted, yet d2t is not zero", None
        )
        return
    if reduced and not any(steps):
        yield Check(
            "pair.d2t",
            "warn",
            what,
            f"d2t is zero: the first {len(tokens)} tokens are drafted, which no trainer chooses",
            "Ask whether the map was lost in a conversion; measure the acceptance length.",
        )
        return
    if t2d is not None and t2d.shape == (drafter.vocab_size,):
        held = [token for token, flag in enumerate(drafter.checkpoint.values(t2d)) if flag]
        if held != sorted(tokens):
            yield Check(
                "pair.d2t",
                "warn",
                what,
                f"d2t names {len(tokens)} tokens, t2d {len(held)}, and they are not the same; vLLM "
                "uses d2t",
                "One of the two belongs to another drafter: measure the acceptance length.",
            )
            return
    told = "d2t and t2d agree" if t2d is not None else "d2t stays in the vocabulary"
    yield Check("pair.d2t", "pass", what, f"{told}, {len(tokens)} tokens")


# --- context, quantization, parallel sizes, stop tokens -------------------------------------------


def serving_length(pair: Pair) -> int:
    """The longest sequence, in tokens, that the server takes."""
    return pair.setup.max_model_len or pair.target.context


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
            "note",
            what,
            f"{reason}: a longer request goes on without drafts",
            shorter,
            "F24",
        )
    elif rules.since("0.33.0"):
        yield Check("pair.context", "note", what, reason, shorter)
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


def _quantization(pair: Pair) -> Iterator[Check]:
    drafter = pair.drafter
    what = "draft quantization"
    if drafter.quantization is None:
        packed = sorted(
            name
            for name, tensor in drafter.tensors.items()
            if tensor.dtype not in ("BF16", "F16", "F32") and name not in ("d2t", "t2d")
        )
        if packed:
            yield Check(
                "pair.quantization",
                "stop",
                what,
                f"{_some(packed)} is of type {drafter.tensors[packed[0]].dtype}, but config.json "
                "names no quantization",
                "Its quantization_config is missing.",
            )
        return
    yield Check(
        "pair.quantization",
        "note",
        what,
        f"the drafter is quantized ({drafter.quantization}) by itself: that its tensors are there "
        "was judged, not what is in them",
        "Measure the acceptance length against an unquantized drafter.",
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
    if setup.pp > 1:
        bad = True
        yield stop(
            f"--pp {setup.pp}: pipeline stages do not pass on the hidden states that an EAGLE-3 "
            "drafter reads",
            f"Use --tp {cards} instead.",
            "F17",
        )
    if not bad:
        yield Check("pair.parallel", "pass", what, f"tp {setup.tp}, dcp {setup.dcp}: {cards} cards")


def _stop_tokens(pair: Pair) -> Iterator[Check]:
    from advice.fields import Fields

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
            f"{_list(tuple(sorted(configured)))}, which chat models do not end an answer with",
            "Take generation_config.json from the published checkpoint, or answers run on to the "
            "length limit.",
        )
    else:
        yield Check(
            "pair.eos",
            "pass",
            what,
            f"{_list(tuple(sorted(generated)))} from generation_config.json, "
            f"{_list(tuple(sorted(configured)))} from config.json",
        )


# --- made for another target ----------------------------------------------------------------------

_FAMILY = re.compile(r"kimi-?k(\d(?:\.\d)?)(-code|-thinking)?", re.IGNORECASE)


def _made_for(pair: Pair) -> Iterator[Check]:
    """Names tell where sizes do not: all Kimi-K2 targets have the same."""
    target, drafter = pair.target, pair.drafter
    what = "made for"
    fields = drafter.checkpoint.config
    named = [
        drafter.verifier,
        *(str(fields.get(key) or "") for key in ("target_model", "base_model", "_name_or_path")),
        drafter.name,
    ]
    there = [
        target.name,
        *(str(target.checkpoint.config.get(key) or "") for key in ("_name_or_path",)),
    ]
    its = next((m for name in named if name and (m := _FAMILY.search(name))), None)
    ours = next((m for name in there if name and (m := _FAMILY.search(name))), None)
    if its is None or ours is None:
        yield Check(
            "pair.made-for",
            "note",
            what,
            "no name tells which target the drafter was trained for, and sizes cannot: those of "
            "all Kimi-K2 targets are the same",
            "Measure the acceptance length before you trust it.",
        )
    elif its[1] != ours[1]:
        yield Check(
            "pair.made-for",
            "warn",
            what,
            f"by its name the drafter was trained for Kimi-K{its[1]}, the target is "
            f"Kimi-K{ours[1]}",
            "Expect fewer accepted drafts; use a drafter of this target if there is one.",
        )
    else:
        yield Check("pair.made-for", "pass", what, f"Kimi-K{its[1]} by both names")


def _list(values: tuple[int, ...]) -> str:
    return "[" + ", ".join(str(value) for value in values) + "]"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
