"""A corrected copy of a drafter's config.json, where its files tell what it should say."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advice.checkpoint import Checkpoint, Folder
from advice.drafter import IDS, MTP_MODEL_TYPES, Drafter
from advice.target import Target
from advice.together import intended_ids
from patchset.errors import Refused, UsageFault


@dataclass(frozen=True)
class Fix:
    """The corrected configuration, and a sentence for each change."""

    config: dict[str, Any]
    changes: tuple[str, ...]


def corrected(target: Target, drafter: Drafter) -> Fix:
    """What the drafter's config.json should say, as far as its own files tell.

    Layer ids go to the top level as inputs of layers, which every release reads the same way.
    """
    config = json.loads(json.dumps(drafter.checkpoint.config))
    changes = []

    def put(key: str, value: Any, why: str) -> None:
        if config.get(key) != value:
            changes.append(f"{key}: {config.get(key)!r} -> {value!r}: {why}")
            config[key] = value

    if drafter.model_type in MTP_MODEL_TYPES and not drafter.speculators:
        put("model_type", "kimi_k2", "the name under which vLLM serves such drafters")
    intended = intended_ids(target, drafter)
    if intended is not None and drafter.listed_ids and drafter.uses_states:
        # An unsorted list is sorted: the target gives its states in layer order.
        inputs = sorted(set(intended.inputs))
        if all(0 <= i <= target.layers for i in inputs) and len(inputs) == len(intended.inputs):
            put(IDS, inputs, intended.why)
            if drafter.nested_ids not in (None, inputs) and not drafter.speculators:
                # Releases size fc by the nested list, so it stays, and says the same.
                config["eagle_config"][IDS] = inputs
                changes.append(f"eagle_config.{IDS}: the same")
            states = (drafter.fc_inputs or 0) // target.hidden_size
            if "num_aux_hidden_states" in config and states == len(inputs):
                put("num_aux_hidden_states", states, "what fc takes")
    norms = sum(name.startswith("fc_norm.") for name in drafter.loaded)
    if norms and norms * target.hidden_size == drafter.fc_inputs:
        put("fc_norm", True, f"the checkpoint has the {norms} norms")
    d2t, head = drafter.tensors.get("d2t"), drafter.tensors.get("lm_head.weight")
    if d2t is not None and head is not None and d2t.shape == head.shape[:1]:
        put("draft_vocab_size", d2t.shape[0], "the rows of lm_head and the length of d2t")
    return Fix(config, tuple(changes))


def write_fix(folder: Path, fix: Fix, drafter: Drafter) -> Checkpoint:
    """Write the configuration to the new folder, with links to the drafter's other files.

    Raises :class:`UsageFault` if there is something at ``folder`` already: nothing is overwritten.
    """
    if os.path.lexists(folder):
        raise UsageFault(
            f"{folder}: exists; --fix writes to a new folder", next_step="Name another one."
        )
    source = drafter.checkpoint.source
    if not fix.changes:
        raise Refused(
            f"{drafter.name}: nothing in its config.json is known to need a change",
            next_step="Leave out --fix.",
        )
    folder.mkdir(parents=True)
    if isinstance(source, Folder):
        for name in drafter.checkpoint.sizes:
            if name != "config.json":
                (folder / name).symlink_to(source.path.resolve() / name)
    text = json.dumps(fix.config, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    return Checkpoint(str(folder), Folder(folder))
