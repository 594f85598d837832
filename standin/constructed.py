"""A target and drafters with weights set by hand, so that acceptance is all or nothing.

The target maps word x to word x+1, and layer j writes 1 into the residual stream at a place of its
own (*marker* j). A drafter's fc opens a gate only if every tap shows the marker of the layer before
it and not that of the layer after. With the gate open its MLP steps the word it reads off the taps
by one; with the gate shut it drafts a word that is never right. So the acceptance length of k
draft tokens is exactly 1+k when every tap is where the drafter expects it, and else exactly 1.

How a layer writes a constant without a bias: every embedding holds ``CONSTANT``, and the rest of
the residual stream has a known norm. So the value of the constant after RMSNorm is known, and one
MLP unit turns it into 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from standin.drafter import (
    Style,
    default_ids,
    drafter_config,
    drafter_shapes,
    random_drafter_tensors,
    vocabulary_maps,
)
from standin.target import (
    NUM_WORDS,
    VOCAB_SIZE,
    random_tensors,
    target_config,
    write_checkpoint,
    write_weights,
)

# Places in the residual stream of the target and (but for the markers) of the drafter. A token is
# written as two digits to the base 16, each by a 1 at its place.
_BASE = 16
_HIGH, _LOW = 0, VOCAB_SIZE // _BASE
_CONST = _LOW + _BASE
_GATE = _CONST + 1
_MARKERS = _CONST + 2
# A drafter with its own head keeps digits elsewhere, so that the target's head could not read them.
_OWN_SHIFT = 128

CONSTANT = 4.0
# Input of the one open MLP unit: large enough for SiLU to be the identity, its negative to be zero.
_OPEN = 30.0

_LAYERS = target_config()["text_config"]["num_hidden_layers"]
_HIDDEN = target_config()["text_config"]["hidden_size"]
_EPS = target_config()["text_config"]["rms_norm_eps"]


def successor(token: int) -> int:
    """The word that the constructed target puts after ``token``."""
    return (token + 1) % NUM_WORDS


def make_constructed_target(path: Path) -> Path:
    """Writes the constructed target to the directory ``path`` and returns it."""
    config = target_config()
    tensors = random_tensors(config)
    text = "language_model."
    for name, tensor in tensors.items():
        if not name.startswith(text):
            continue
        if "norm" in name:
            tensor.fill_(1.0)
        elif ".mlp." in name or "o_proj" in name:
            tensor.zero_()
    embedding = tensors[f"{text}model.embed_tokens.weight"].zero_()
    head = tensors[f"{text}lm_head.weight"].zero_()
    embedding += _digits(range(VOCAB_SIZE))
    embedding[:, _CONST] = CONSTANT
    head[[successor(x) for x in range(NUM_WORDS)]] = _digits(range(NUM_WORDS))
    for layer in range(_LAYERS):
        mlp = f"{text}model.layers.{layer}.mlp"
        if f"{mlp}.gate.weight" in tensors:
            mlp += ".shared_experts"
        to_one = _rms(layer) / CONSTANT
        tensors[f"{mlp}.gate_proj.weight"][0, _CONST] = _OPEN * to_one
        tensors[f"{mlp}.up_proj.weight"][0, _CONST] = to_one
        tensors[f"{mlp}.down_proj.weight"][_MARKERS + layer, 0] = 1 / _silu(_OPEN)
    return write_checkpoint(path, config, tensors)


def make_constructed_drafter(
    path: Path,
    style: Style = "llama",
    *,
    taps: Sequence[int] = default_ids(_LAYERS),
    ids: Sequence[int] | None = None,
    nested: bool = True,
    draft_ids: Sequence[int] | None = None,
    own_embedding: bool = False,
    own_head: bool = False,
    eagle31: bool = False,
    settings: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
    extra: Mapping[str, Sequence[int]] | None = None,
) -> Path:
    """Writes a drafter for the constructed target to the directory ``path`` and returns it.

    Its fc is made for ``taps`` (0..8, "before layer i"), its configuration names ``ids`` as in
    :func:`drafter_config`. ``draft_ids``: the words of a reduced draft vocabulary, which implies a
    head of its own. With ``own_head`` the target's head would not do; with ``own_embedding`` the
    drafter brings an embedding. ``eagle31``: with norms before fc, and a state that is fed back
    after the norm and would not work before it.

    To make a bad drafter of a good one: ``settings`` are written over its configuration in the end,
    tensors whose name begins with one of ``without`` are left out, and ``extra`` gives names and
    shapes of superfluous ones.
    """
    own_head = own_head or draft_ids is not None
    config = drafter_config(
        style,
        ids=ids,
        nested=nested,
        draft_vocab_size=None if draft_ids is None else len(set(draft_ids)),
        eagle31=eagle31,
    )
    shapes = drafter_shapes(config, own_embedding=own_embedding, own_head=own_head, taps=len(taps))
    tensors = random_drafter_tensors(dict(shapes))
    for name, tensor in tensors.items():
        if "norm" in name:
            tensor.fill_(1.0)
        elif ".mlp." in name or "o_proj" in name or name in ("fc.weight", "lm_head.weight"):
            tensor.zero_()

    shift = _OWN_SHIFT if own_head else 0
    _write_fc(tensors, taps, shift)
    _write_step(tensors, "midlayer" if style == "llama" else "layers.0", shift, eagle31)
    words = range(NUM_WORDS) if draft_ids is None else sorted(set(draft_ids))
    if own_head:
        before = [(word - 1) % NUM_WORDS for word in words]
        tensors["lm_head.weight"][: len(words)] = _digits(before, shift)
    if draft_ids is not None:
        tensors |= vocabulary_maps(draft_ids, VOCAB_SIZE)
    tensors = {n: t for n, t in tensors.items() if not n.startswith(tuple(without))}
    tensors |= {name: torch.zeros(*shape) for name, shape in (extra or {}).items()}
    return write_weights(path, {**config, **(settings or {})}, tensors)


def make_constructed_set(path: Path, drafters: Mapping[str, Mapping[str, Any]]) -> Path:
    """Writes the constructed target to ``path/target``, and a drafter to ``path/NAME`` for each
    entry of ``drafters``, whose value holds arguments of :func:`make_constructed_drafter`.
    """
    make_constructed_target(path / "target")
    for name, arguments in drafters.items():
        make_constructed_drafter(path / name, **arguments)
    return path


def _write_fc(tensors: dict[str, Tensor], taps: Sequence[int], shift: int) -> None:
    """fc: digits, the constant as 1, and the gate: 1/2 when all taps are right, else <= -1/2."""
    fc = tensors["fc.weight"]
    blocks = fc.view(_HIDDEN, len(taps), _HIDDEN)  # [state, tap, place in the tap]
    for place in range(_HIGH, _CONST):
        blocks[place + shift, -1, place] = 1.0
    blocks[_CONST, 0, _CONST] = 1 / CONSTANT
    blocks[_GATE, 0, _CONST] = (0.5 - len(taps)) / CONSTANT
    for i, tap in enumerate(taps):
        if tap == 0:  # no layer comes before: the constant stands for its marker
            blocks[_GATE, i, _CONST] += 1 / CONSTANT
        else:
            blocks[_GATE, i, _MARKERS + tap - 1] += 1.0
        if tap < _LAYERS:
            blocks[_GATE, i, _MARKERS + tap] -= 1.0
        if (norm := tensors.get(f"fc_norm.{i}.weight")) is not None:
            # A scale of its own for each tap, undone here: a missing or misplaced norm shows.
            norm.fill_(2.0 + i)
            blocks[:, i] *= _rms(tap) / (2.0 + i)


def _write_step(tensors: dict[str, Tensor], layer: str, shift: int, eagle31: bool) -> None:
    """MLP: unit x sees word x with the gate open and replaces its digits by those of x+1."""
    rms = ((2 + 1 + 0.5**2) / _HIDDEN + _EPS) ** 0.5  # two digits, the constant, the open gate
    gate, up, down = (tensors[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    words = torch.arange(NUM_WORDS)
    digits = _digits(range(NUM_WORDS), shift)
    # 1 + 1 for the digits, 4 * 1/2 for the gate, -3.5: 1/2 for the right unit, else <= -1/2.
    gate[words] = digits
    gate[words, _GATE] = 4.0
    gate[words, _CONST] = -3.5
    gate *= 2 * _OPEN * rms
    up[words, _CONST] = rms
    down[:, words] = (_digits([successor(x) for x in range(NUM_WORDS)], shift) - digits).T
    if eagle31:
        # Turn the constant's sign here and back in the norm: only the normed state can go on.
        down[_CONST, words] = -2.0
        tensors["norm.weight"].fill_(rms)[_CONST] = -rms
    down /= _silu(_OPEN)


def _digits(tokens: Sequence[int], shift: int = 0) -> Tensor:
    """The digits of ``tokens``, [count, hidden]."""
    ids = torch.tensor(tokens)
    rows = torch.arange(len(ids))
    digits = torch.zeros(len(ids), _HIDDEN)
    digits[rows, shift + _HIGH + ids // _BASE] = 1.0
    digits[rows, shift + _LOW + ids % _BASE] = 1.0
    return digits


def _rms(layer: int) -> float:
    """Root mean square of the target's residual stream before ``layer``, as RMSNorm takes it."""
    return float(((2 + CONSTANT**2 + layer) / _HIDDEN + _EPS) ** 0.5)


def _silu(value: float) -> float:
    return float(F.silu(torch.tensor(value, dtype=torch.float64)))
