"""Drafters for the stand-in: configurations, tensor names and weights like the published ones.

Two styles: ``llama`` (multi-head attention, ``midlayer.*``) and ``mla``
(``Eagle3DeepseekV2ForCausalLM``, ``layers.0.*``). :func:`make_drafter` writes one with random
weights, or one trained on the spot to guess some of the stand-in's choices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from standin.target import NUM_WORDS, text_config, write_weights

if TYPE_CHECKING:
    from standin.reference import Drafter

Style = Literal["llama", "mla"]
Convention = Literal["before", "output"]

_LAYER = {"llama": "midlayer", "mla": "layers.0"}
_SHARED_WITH_TARGET = (
    "vocab_size",
    "hidden_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "attention_bias",
    "attention_dropout",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
_MLA_FIELDS = (
    "num_key_value_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_theta",
    "rope_scaling",
)


def default_ids(layers: int, convention: Convention = "before") -> tuple[int, int, int]:
    """The auxiliary layer ids of a drafter that names none, for a target of ``layers`` layers.

    ``before``: id i is the residual stream before layer i (vLLM); ``output``: the output of layer i
    (SpecForge, ModelOpt). Both name the same three places.
    """
    shift = 0 if convention == "before" else 1
    return (2 - shift, layers // 2 - shift, layers - 3 - shift)


def drafter_config(
    style: Style = "llama",
    *,
    ids: Sequence[int] | None = None,
    nested: bool = True,
    draft_vocab_size: int | None = None,
    eagle31: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """The ``config.json`` of a drafter for the stand-in.

    ``ids`` are written as given, into ``eagle_config`` when ``nested`` and else at the top level;
    None writes none. ``eagle31`` sets the three fields of EAGLE-3.1. ``overrides`` replace or add
    top-level fields.
    """
    target = text_config()
    config: dict[str, Any] = {name: target[name] for name in _SHARED_WITH_TARGET}
    config |= {
        "intermediate_size": target["intermediate_size"],
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": "float32",
    }
    if style == "llama":
        config |= {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_key_value_heads": 4,
            "head_dim": 128,
            "rope_theta": 1000000.0,
        }
    else:
        config |= {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": "kimi_k2",
            **{name: target[name] for name in _MLA_FIELDS},
        }
    if draft_vocab_size is not None:
        config["draft_vocab_size"] = draft_vocab_size
    if ids is not None:
        place = config.setdefault("eagle_config", {}) if nested else config
        place["eagle_aux_hidden_state_layer_ids"] = list(ids)
        if nested:
            place["use_aux_hidden_state"] = True
    if eagle31:
        count = 3 if ids is None else len(ids)
        config |= {"fc_norm": True, "norm_output": True, "num_aux_hidden_states": count}
    return config | overrides


def drafter_shapes(
    config: Mapping[str, Any],
    *,
    own_embedding: bool = False,
    own_head: bool = False,
    taps: int = 3,
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields name and shape of every floating-point tensor of a drafter, as published."""
    style: Style = "llama" if config["model_type"] == "llama" else "mla"
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    layer = _LAYER[style]
    attention = f"{layer}.self_attn"

    yield "fc.weight", (hidden, taps * hidden)
    if config.get("fc_norm"):
        for tap in range(taps):
            yield f"fc_norm.{tap}.weight", (hidden,)
    for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        yield f"{layer}.{norm}.weight", (hidden,)
    if style == "llama":
        size = config["head_dim"]
        for name, count in (("q", heads), ("k", config["num_key_value_heads"])):
            yield f"{attention}.{name}_proj.weight", (count * size, 2 * hidden)
        yield f"{attention}.v_proj.weight", (config["num_key_value_heads"] * size, 2 * hidden)
        yield f"{attention}.o_proj.weight", (hidden, heads * size)
    else:
        nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        q_rank, kv_rank, value = (config[k] for k in ("q_lora_rank", "kv_lora_rank", "v_head_dim"))
        yield f"{attention}.q_a_proj.weight", (q_rank, 2 * hidden)
        yield f"{attention}.q_a_layernorm.weight", (q_rank,)
        yield f"{attention}.q_b_proj.weight", (heads * (nope + rope), q_rank)
        yield f"{attention}.kv_a_proj_with_mqa.weight", (kv_rank + rope, 2 * hidden)
        yield f"{attention}.kv_a_layernorm.weight", (kv_rank,)
        yield f"{attention}.kv_b_proj.weight", (heads * (nope + value), kv_rank)
        yield f"{attention}.o_proj.weight", (hidden, heads * value)
    inner = config["intermediate_size"]
    yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
    yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
    yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
    yield "norm.weight", (hidden,)
    if own_embedding:
        yield "embed_tokens.weight", (config["vocab_size"], hidden)
    if own_head:
        rows = config.get("draft_vocab_size") or config["vocab_size"]
        yield "lm_head.weight", (rows, hidden)


def vocabulary_maps(draft_ids: Sequence[int], vocab_size: int) -> dict[str, Tensor]:
    """The tensors ``d2t`` and ``t2d`` of a draft vocabulary that holds the target's ``draft_ids``.

    ``d2t`` [draft vocabulary] is what to add to a draft id to get the target's id; ``t2d``
    [vocabulary] says which of the target's ids the draft vocabulary holds.
    """
    ids = torch.tensor(sorted(set(draft_ids)))
    held = torch.zeros(vocab_size, dtype=torch.bool)
    held[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": held}


def random_drafter_tensors(
    shapes: Mapping[str, tuple[int, ...]], seed: int = 0
) -> dict[str, Tensor]:
    """Random weights for ``shapes``: unit-variance input gives unit-variance output."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:  # the scale of a norm
            tensors[name] = 1.0 + 0.1 * noise
        else:
            tensors[name] = noise / shape[1] ** 0.5
    return tensors


def make_drafter(
    path: Path,
    style: Style = "llama",
    *,
    trained: bool = False,
    target: Path | str | None = None,
    convention: Convention = "before",
    nested: bool = True,
    draft_vocab_size: int | None = None,
    eagle31: bool = False,
    seed: int = 0,
    **overrides: Any,
) -> Path:
    """Writes a drafter for the stand-in to the directory ``path`` and returns it.

    With random weights next to nothing it drafts is right. ``trained`` fits it to the text model of
    the checkpoint ``target`` (under a minute; about half of its first drafts are then right). It
    reads the default places; ``convention`` says how its configuration names them.
    ``draft_vocab_size`` gives it the words that the target chooses most often.
    Raises ValueError when ``trained`` is asked for without a target.
    """
    config = drafter_config(
        style,
        ids=default_ids(text_config()["num_hidden_layers"], convention),
        nested=nested,
        draft_vocab_size=draft_vocab_size,
        eagle31=eagle31,
        **overrides,
    )
    shapes = dict(drafter_shapes(config, own_head=draft_vocab_size is not None))
    tensors = random_drafter_tensors(shapes, seed)
    if trained:
        if target is None:
            raise ValueError("a drafter is trained on a target's text: name the target")
        tensors = _trained(config, tensors, Path(target), seed)
    elif draft_vocab_size is not None:
        tensors |= vocabulary_maps(range(draft_vocab_size), config["vocab_size"])
    return write_weights(path, config, tensors)


# Texts of random words to train on, tokens in each, texts in a batch, passes over all of them, and
# draft steps unrolled.
_TEXTS, _TOKENS, _BATCH, _PASSES, _STEPS = 192, 40, 8, 4, 3
_RATE = 3e-3


def _trained(
    config: dict[str, Any], tensors: dict[str, Tensor], path: Path, seed: int
) -> dict[str, Tensor]:
    """Fits a drafter that starts from ``tensors`` to the target in ``path``; returns its tensors.

    Learns the target's choice after any beginning of texts of random words; the stand-in's own
    greedy texts look much the same.
    """
    # Only training needs transformers.
    from standin.reference import Drafter, load_target, published_to_module, target_states

    torch.manual_seed(seed)
    torch.set_num_threads(1)  # see engine_environ in standin/engine.py
    target = load_target(path)
    texts = torch.randint(NUM_WORDS, (_TEXTS, _TOKENS))
    states, logits = target_states(target, texts)
    taps = [states[i] for i in default_ids(len(target.model.layers))]

    words = torch.arange(config["vocab_size"])
    maps: dict[str, Tensor] = {}
    if (size := config.get("draft_vocab_size")) is not None:
        chosen = logits.argmax(-1).flatten().tolist()
        frequent = [word for word, _ in Counter(chosen).most_common()]
        rest = sorted(set(range(NUM_WORDS)) - set(frequent))
        words = torch.tensor(sorted([*frequent, *rest][:size]))
        maps = vocabulary_maps(words.tolist(), config["vocab_size"])
    # What the target thinks of the draft vocabulary's words is what the drafter learns.
    goals = logits[..., words].softmax(-1)

    drafter = Drafter(config)
    _attend_to_self(tensors, config)
    names = {name: published_to_module(name) for name in tensors}
    drafter.load_state_dict({names[n]: t for n, t in tensors.items()}, strict=False)
    drafter.embed_tokens.weight.data = target.model.embed_tokens.weight.data
    drafter.lm_head.weight.data = target.lm_head.weight.data[words].clone()
    learned = {n: p for n, p in drafter.named_parameters() if n in names.values()}
    drafter.requires_grad_(False)
    for parameter in learned.values():
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(learned.values(), lr=_RATE)
    rounds = _PASSES * (_TEXTS // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=rounds)
    for _ in range(_PASSES):
        for batch in torch.randperm(_TEXTS).split(_BATCH):
            optimizer.zero_grad()
            loss = _loss(drafter, texts[batch], [tap[batch] for tap in taps], goals[batch])
            loss.backward()
            optimizer.step()
            schedule.step()
    state = drafter.state_dict()
    return {name: state[names[name]] for name in tensors} | maps


def _attend_to_self(tensors: dict[str, Tensor], config: Mapping[str, Any]) -> None:
    """Makes ``tensors`` start as a model of word pairs, from which training takes seconds.

    Queries and keys are the same projection of the embedding, so that each slot attends to itself,
    and values hand the embedding on to the residual stream. All else starts small.
    """
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    short = {name.rpartition("_proj")[0].rpartition(".")[2]: t for name, t in tensors.items()}
    for name in ("fc.weight", *(n for n in tensors if n.endswith("down_proj.weight"))):
        tensors[name] *= 0.1
    if config["model_type"] == "llama":
        short["q"][:, :hidden] *= 2**0.5
        short["q"][:, hidden:] = 0.0
        short["k"].copy_(short["q"])
        short["v"].mul_(0.05)[:hidden, :hidden].fill_diagonal_(1.0)
        short["o"].mul_(0.05)[:, :hidden].fill_diagonal_(1.0)
        return
    # The latent holds the query's own latent, then the embedding, whose parts the heads share.
    rank, nope, part = config["q_lora_rank"], config["qk_nope_head_dim"], hidden // heads
    latent = short["kv_a"]
    short["q_a"][:, :hidden] *= 2**0.5
    short["q_a"][:, hidden:] = 0.0
    latent *= 0.05
    latent[:rank] = short["q_a"]
    latent[rank : rank + hidden, :hidden].fill_diagonal_(1.0)
    queries = short["q_b"].view(heads, -1, rank)
    keys, values = (
        short["kv_b"]
        .mul_(0.05)
        .view(heads, -1, len(short["kv_b"][0]))
        .split([nope, config["v_head_dim"]], dim=1)
    )
    outputs = short["o"].mul_(0.05).view(hidden, heads, -1)
    queries[:, nope:] = 0.0  # no say for the rotated part
    keys[:, :, :rank] = queries[:, :nope]
    for head in range(heads):
        values[head, :part, rank + head * part :].fill_diagonal_(1.0)
        outputs[head * part :, head, :part].fill_diagonal_(1.0)


def _loss(drafter: Drafter, texts: Tensor, taps: Sequence[Tensor], goals: Tensor) -> Tensor:
    """Cross entropy of all draft steps, each fed what the step before it put out.

    ``texts`` [batch, time], ``taps`` each [batch, time, hidden], ``goals`` [batch, time, words].
    Slot t of step j stands for the draft j tokens after slot t-j, the last with a target's state.
    It attends to slots up to t-j of step 0, and to one slot of each step after, as in serving.
    """
    from transformers import DynamicCache

    ids, goals = texts[:, 1:], goals[:, 1:]
    slots = torch.arange(ids.shape[1])
    age = slots[:, None] - slots[None]  # [slot, slot attended to]
    hidden = drafter.combine([tap[:, :-1] for tap in taps])
    past = DynamicCache()
    loss = torch.zeros(())
    for step in range(_STEPS):
        seen = [age >= step, *(age == step - i for i in range(1, step + 1))]
        mask = torch.zeros(()).where(torch.cat(seen, dim=1), float("-inf"))[None, None]
        logits, feedback = drafter(ids, hidden, slots[None], mask, past)
        loss = loss + F.cross_entropy(logits[:, step:].flatten(0, 1), goals[:, step:].flatten(0, 1))
        hidden = F.pad(feedback[:, :-1], (0, 0, 1, 0))
    return loss
