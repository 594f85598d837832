"""What EAGLE-3 sends from one pipeline stage to the next, from numbers alone.

A target of so many layers is split as vLLM does it, and every boundary carries the hidden states,
the residual and the auxiliary states that the drafter on the last stage wants and that are known by
then (vLLM 0.30.0 to 0.33.0 with patch 0005-pipeline-parallel; Llama's models in stock vLLM do the
same).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Boundary:
    """The way into one stage.

    ``layer``: that stage's first one, counted from 0. ``states``: how many auxiliary states cross.
    ``plain`` and ``extra``: bytes for each token of a step, without auxiliary states, and theirs.
    """

    layer: int
    states: int
    plain: int
    extra: int


def first_layers(layers: int, stages: int) -> list[int]:
    """The first layer of each stage: ``get_pp_indices`` in vllm/distributed/utils.py.

    What does not divide evenly goes one each to the stages before the last one, from behind.
    ``VLLM_PP_LAYER_PARTITION`` would overrule it.
    """
    sizes = [layers // stages] * stages
    for stage in range(2, layers % stages + 2):
        sizes[-stage] += 1
    return [sum(sizes[:stage]) for stage in range(stages)]


def boundaries(
    layers: int, stages: int, taps: Collection[int], hidden: int, size: int = 2
) -> list[Boundary]:
    """What crosses into each stage but the first.

    ``taps`` are ids of layers whose input the drafter reads; ``hidden`` is the width of a hidden
    state, ``size`` the bytes of one of its numbers (2 for bfloat16). The input of a stage's own
    first layer is among what crosses. The workers of one tensor parallel group send a part of each
    tensor each, so these bytes cross once, whatever the tensor parallel size.
    """
    found = []
    for layer in first_layers(layers, stages)[1:]:
        states = sum(tap <= layer for tap in taps)
        found.append(Boundary(layer, states, 2 * hidden * size, states * hidden * size))
    return found
