"""Whether a drafter's weights are what its configuration says, and what one release can load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from advice.checks import Check, listed, some
from advice.drafter import COPIED_LATER, Drafter
from advice.rules import Rules
from advice.together import FIX, Pair, used_ids


def weight_checks(pair: Pair) -> Iterator[Check]:
    """Norms and their flags, tensors and their shapes, the vocabulary maps, quantization."""
    yield from _norms(pair)
    yield from _tensors(pair)
    yield from _maps(pair)
    yield from _quantization(pair)


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
    elif flag != fields.flag("norm_output"):
        yield Check(
            "pair.norms",
            "warn",
            what,
            f"{'fc_norm' if flag else 'norm_output'} is set without "
            f"{'norm_output' if flag else 'fc_norm'}; published EAGLE-3.1 drafters have both",
            "No tensor tells whether norm_output is meant: ask, and measure the acceptance length.",
        )
    elif asked:
        yield Check("pair.norms", "pass", what, _set_of(fields.values, COPIED_LATER))
    if not drafter.speculators and fields.flag("norm_before_residual"):
        yield Check(
            "pair.norms",
            "warn",
            "norm before residual",
            "norm_before_residual is set, which only the speculators library trains with",
            "No tensor tells whether it is meant: ask, and measure the acceptance length.",
        )
    before = fields.flag("norm_before_fc") or fields.part("eagle_config").flag("norm_before_fc")
    there = any(name.startswith("input_norm.") for name in drafter.loaded)
    if before and not rules.norm_before_fc(drafter):
        yield Check(
            "pair.norms",
            "stop" if there else "warn",
            "norm before fc",
            f"norm_before_fc is set, which {rules.name} does not know for this drafter"
            + ("" if there else "; but the checkpoint has no input_norm either"),
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


def _set_of(values: Mapping[str, Any], keys: tuple[str, ...]) -> str:
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
            if drafter.style == "llama" and drafter.fields.flag("attention_bias"):
                found[f"{attention}.o_proj.bias"] = (hidden,)
                if pair.rules.since("0.16.0"):
                    counts = (("q", heads), ("k", drafter.kv_heads), ("v", drafter.kv_heads))
                    found |= {f"{attention}.{name}_proj.bias": (n * size,) for name, n in counts}
            if drafter.model_type == "qwen3":
                found[f"{attention}.q_norm.weight"] = (size,)
                found[f"{attention}.k_norm.weight"] = (size,)
        inner = drafter.intermediate_size
        if drafter.style == "llama" and drafter.fields.flag("mlp_bias"):
            sizes = (("gate", inner), ("up", inner), ("down", hidden))
            found |= {f"{place}.mlp.{name}_proj.bias": (rows,) for name, rows in sizes}
        found[f"{place}.mlp.gate_proj.weight"] = (inner, hidden)
        found[f"{place}.mlp.up_proj.weight"] = (inner, hidden)
        found[f"{place}.mlp.down_proj.weight"] = (hidden, inner)
    found["norm.weight"] = (hidden,)
    if drafter.draft_vocab_size != drafter.vocab_size:
        found["lm_head.weight"] = (drafter.draft_vocab_size, hidden)
    return found


_PACKED = re.compile(r"\.(weight|weight_packed|qweight)$")


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
    # A quantized module has its weight under another name, or in several parts.
    present = {name.rpartition(".")[0] for name in loaded if _PACKED.search(name)}

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
            f"{len(missing)} missing: {some(names)}; {rules.name} {how}",
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
            f"{len(unknown)} unknown to this class: {some(unknown)}; {rules.name} "
            f"{'stops there' if refuses else 'leaves them out without a word'}",
            "Ask what they are for: a drafter that needs them is none that this release can run.",
        )
    if wrong := _misshapen(drafter, known):
        yield Check(
            "pair.shapes",
            "stop",
            what,
            f"{len(wrong)} of another shape than config.json says: {some(wrong)}",
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
    if name.startswith("fc.") and not drafter.uses_states:
        return True
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
            found.append(f"{entry[0]} {listed(entry[1].shape)}, not {listed(shape)}")
    return found


def _maps(pair: Pair) -> Iterator[Check]:
    """d2t and t2d, the maps between draft and target vocabulary."""
    drafter, rules = pair.drafter, pair.rules
    what = "draft vocabulary"
    reduced = drafter.draft_vocab_size != drafter.vocab_size
    d2t = drafter.tensors.get("d2t")
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
            f"d2t has shape {listed(d2t.shape)}, draft_vocab_size is {drafter.draft_vocab_size}",
            f"draft_vocab_size has to be the length of d2t and of lm_head. {FIX}",
        )
        return
    steps = drafter.steps
    if steps is None:
        yield Check(
            "pair.d2t",
            "warn",
            what,
            f"d2t is of type {d2t.dtype}, so what it holds was not judged",
            "Every trainer writes whole numbers there: measure the acceptance length.",
        )
        return
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
    held = drafter.held
    if held is not None and held != sorted(tokens):
        yield Check(
            "pair.d2t",
            "warn",
            what,
            f"d2t names {len(tokens)} tokens, t2d {len(held)}, and they are not the same; vLLM "
            "uses d2t",
            "One of the two belongs to another drafter: measure the acceptance length.",
        )
        return
    told = "d2t and t2d agree" if held is not None else "d2t stays in the vocabulary"
    yield Check("pair.d2t", "pass", what, f"{told}, {len(tokens)} tokens")


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
                f"{some(packed)} is of type {drafter.tensors[packed[0]].dtype}, but config.json "
                "names no quantization",
                "Its quantization_config is missing.",
            )
        return
    yield Check(
        "pair.quantization",
        "warn",
        what,
        f"the drafter is quantized ({drafter.quantization}) by itself: that its tensors are there "
        "was judged, not what is in them",
        "Measure the acceptance length against an unquantized drafter.",
    )
