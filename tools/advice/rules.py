"""How one release reads a drafter, as released or with this repository's series.

Read in the sources of 0.15.0 to 0.33.0: ``model_executor/models/{llama,deepseek}_eagle3.py`` and
``registry.py``, ``config/speculative.py``, ``transformers_utils/configs/speculators/algos.py``,
``v1/worker/gpu_model_runner.py`` and ``v1/worker/gpu/spec_decode/eagle/eagle3_utils.py``. What the
series changes follows from the numbers of its patches, which mean the same in every release.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from packaging.version import Version

from advice.drafter import Drafter
from patchset.errors import IntegrityFault
from patchset.project import Project

# Patches by what they do to a drafter.
TARGETS, IMAGE_TOKEN, INTERFACE, LAYER_IDS, PIPELINE, BACKEND, MLA, EAGLE31 = range(1, 9)
IMAGES, LENGTH, WEIGHTS = 9, 10, 11

_LLAMA = frozenset(
    {
        "Eagle3LlamaForCausalLM",
        "LlamaForCausalLMEagle3",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
    }
)
_MLA = frozenset({"Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"})


@dataclass(frozen=True)
class Rules:
    """A release and the numbers of the patches in it. Their faults: ``cures``, id -> patch name."""

    version: str
    patches: frozenset[int] = frozenset()
    cures: tuple[tuple[str, str], ...] = ()

    def since(self, version: str) -> bool:
        """Whether this is that release or a later one."""
        return self._version >= Version(version)

    def has(self, patch: int) -> bool:
        """Whether the patch of that number is applied."""
        return patch in self.patches

    @cached_property
    def _version(self) -> Version:
        return Version(self.version)

    @property
    def name(self) -> str:
        """For messages."""
        return f"vLLM {self.version} with the series" if self.patches else f"vLLM {self.version}"

    @property
    def second_runner(self) -> bool:
        """Whether the V2 model runner serves by default."""
        return self.since("0.29.0")

    @property
    def architectures(self) -> frozenset[str]:
        """The drafter classes that are known."""
        found = _LLAMA
        if self.since("0.18.0") or self.has(MLA):
            found |= _MLA
        if self.since("0.20.0"):
            found |= {"Eagle3MiniMaxM2ForCausalLM"}
        if self.since("0.22.0"):
            found |= {"PEagleDraftModel", "PeagleLlamaForCausalLM"}
        if self.since("0.24.0"):
            found |= {"Eagle3Qwen3ForCausalLM", "PeagleQwen3ForCausalLM"}
        return found

    @property
    def nested_ids(self) -> Literal["resolved", "verbatim", "ignored"]:
        """What becomes of layer ids that stand in ``eagle_config``."""
        if self.has(LAYER_IDS):
            return "resolved"
        if self.since("0.22.0") and not self.second_runner:
            return "verbatim"
        return "ignored"

    def eagle31(self, drafter: Drafter) -> bool:
        """Whether fc_norm, norm_output and num_aux_hidden_states of that drafter are used."""
        if self.has(EAGLE31):
            return True
        if drafter.speculators:
            return self.since("0.25.0")
        return self.since("0.23.0" if drafter.style == "mla" else "0.22.0")

    def fc_states(self, drafter: Drafter, resolved: int | None) -> int:
        """How many hidden states fc is made for. ``resolved``: the ids after patch 0004."""
        given = drafter.fields.number("num_aux_hidden_states")
        if self.has(EAGLE31) or (self.has(LAYER_IDS) and self.since("0.22.0")):
            return given or resolved or 3
        if not self.since("0.22.0"):
            return 3
        if given and not drafter.speculators:
            return given
        nested = drafter.nested_ids
        return len(nested) if isinstance(nested, list) and nested else 3

    def norm_before_fc(self, drafter: Drafter) -> bool:
        """Whether a single norm before fc (``norm_before_fc``, ``input_norm``) is known."""
        if drafter.speculators and not self.since("0.19.0"):
            return False
        return drafter.style != "mla" and self.since("0.18.0")

    @property
    def checks_weights(self) -> bool:
        """Whether a checkpoint that does not fit is refused with its tensors named."""
        return self.has(WEIGHTS)

    def refuses_unknown(self, drafter: Drafter) -> bool:
        """Whether a tensor that the drafter has no place for stops the load."""
        return self.checks_weights or drafter.style != "mla" or self.since("0.25.0")


def rules_of(project: Project, version: str, *, stock: bool = False) -> Rules:
    """The rules of a pinned release; without a series, or with ``stock``, those as released."""
    release = project.release(version)
    if stock or not project.lock_path(release).is_file():
        return Rules(release.version)
    series = project.series(release.version)
    try:
        numbers = frozenset(int(patch.name[:4]) for patch in series.patches)
    except ValueError as fault:
        raise IntegrityFault(f"{release.directory}: a patch without a number: {fault}") from fault
    cures = [(fault, patch.name) for patch in series.patches for fault in patch.faults]
    return Rules(release.version, numbers, tuple(cures))
