"""Target, drafter, options and release as one thing to judge, and how the release reads the ids."""

from __future__ import annotations

from dataclasses import dataclass

from advice.checks import listed
from advice.drafter import Drafter
from advice.rules import Rules
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
    given = drafter.listed_ids
    inputs = target.default_ids
    outputs = tuple(i - 1 for i in inputs)
    if not given:
        return Intended(inputs, True, f"no ids: the default, inputs of layers {listed(inputs)}")
    if not isinstance(given, list) or not all(type(i) is int for i in given):
        return None
    found = tuple(given)
    if found == inputs:
        return Intended(
            inputs, True, f"{listed(found)} is the default of trainers that count inputs"
        )
    if found == outputs:
        return Intended(
            inputs,
            True,
            f"{listed(found)} is the default of trainers that count outputs of layers, which are "
            f"the inputs of {listed(inputs)}",
        )
    if not drafter.speculators and not drafter.top_ids and found[0] == 1:
        return Intended(
            tuple(i + 1 for i in found),
            False,
            f"{listed(found)} begins with 1, as only lists of trainers that count outputs do",
        )
    if drafter.speculators:
        return Intended(found, False, f"{listed(found)}: the speculators library counts inputs")
    return Intended(found, False, f"{listed(found)} is no trainer's default")


def senseless(target: Target, given: tuple[int, ...], inputs: tuple[int, ...]) -> str | None:
    """Why no drafter can have been trained with these ids: ``range``, ``twice`` or ``order``.

    ``given`` as written, ``inputs`` as inputs of layers.
    """
    if any(not 0 <= i <= target.layers for i in (*given, *inputs)):
        return "range"
    if len(set(given)) != len(given):
        return "twice"
    return "order" if list(given) != sorted(given) else None


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


def serving_length(pair: Pair) -> int:
    """The longest sequence, in tokens, that the server takes."""
    return pair.setup.max_model_len or pair.target.context
