"""Fields of a configuration file that somebody else wrote: read with their types checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchset.errors import IntegrityFault

# Beyond every size in a model's configuration, and still exact in all arithmetic here.
_LARGEST = 1 << 40
# No model here has as many layers; what is done for each of them stays quick.
LAYERS = 1000


@dataclass(frozen=True)
class Fields:
    """A JSON object. ``where`` names it in messages, e.g. ``drafter/config.json``.

    Each method raises :class:`IntegrityFault` when the field is there with another type.
    """

    values: Mapping[str, Any]
    where: str

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def number(self, key: str) -> int | None:
        """A whole number of 0 or more, ``None`` if the field is missing or null."""
        found = self.values.get(key)
        if found is None:
            return None
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _LARGEST:
            raise self._wrong(key, "a whole number")
        return found

    def size(self, key: str, most: int = _LARGEST) -> int:
        """A whole number above 0, and of at most ``most``, that has to be there."""
        found = self.number(key)
        if not found or found > most:
            upper = f" and at most {most}" if most < _LARGEST else ""
            raise self._wrong(key, f"a whole number above 0{upper}")
        return found

    def real(self, key: str) -> float | None:
        """A number."""
        found = self.values.get(key)
        if found is None:
            return None
        if not isinstance(found, int | float) or isinstance(found, bool) or abs(found) > _LARGEST:
            raise self._wrong(key, "a number")
        return float(found)

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value, ``default`` if the field is missing or null."""
        found = self.values.get(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self._wrong(key, "true or false")
        return found

    def text(self, key: str) -> str | None:
        """A string."""
        found = self.values.get(key)
        if found is not None and not isinstance(found, str):
            raise self._wrong(key, "a string")
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, empty if the field is missing or null."""
        found = self.values.get(key)
        if found is None:
            return ()
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self._wrong(key, "a list of strings")
        return tuple(found)

    def part(self, key: str) -> Fields:
        """A nested object, an empty one if the field is missing or null."""
        found = self.values.get(key)
        if found is None:
            found = {}
        if not isinstance(found, dict):
            raise self._wrong(key, "an object")
        return Fields(found, f"{self.where}: {key}")

    def numbers(self, key: str) -> frozenset[int]:
        """A whole number or a list of them."""
        found = self.values.get(key)
        listed = found if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in listed):
            raise self._wrong(key, "whole numbers")
        return frozenset(listed)

    def _wrong(self, key: str, wanted: str) -> IntegrityFault:
        found = repr(self.values.get(key))
        shown = found if len(found) <= 60 else found[:57] + "..."
        return IntegrityFault(f"{self.where}: {key} should be {wanted}, it is {shown}")


def context_length(fields: Fields) -> int | None:
    """The positions that vLLM takes from a text model's configuration, ``None`` if it names none.

    As ``_get_and_verify_max_len`` in vllm/config/model.py: YaRN counts from the original length,
    every other scaling but Llama 3's and LongRoPE's from the present one.
    """
    length = fields.number("max_position_embeddings")
    rope = fields.part("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    kind = rope.text("rope_type") or rope.text("type")
    factor = rope.real("factor")
    if factor is not None and factor <= 0:
        raise IntegrityFault(f"{rope.where}: the factor of its RoPE scaling has to be above 0")
    if length is None or factor is None or kind in ("su", "longrope", "llama3"):
        return length
    if kind == "yarn" or kind == "deepseek_yarn":
        length = rope.number("original_max_position_embeddings") or length
    return int(length * factor)
