"""Which attention backend serves a target on a card, and the faults that hang on it.

The facts are those of ``platforms/cuda.py`` (order) and ``v1/attention/backends/mla/*.py`` (compute
capabilities, KV cache types, block sizes) of the releases 0.15.0 to 0.33.0;
``tests/trees/test_backends.py`` compares them with the sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from advice.cards import Cards, read_cards
from advice.checks import Check
from advice.together import Pair
from patchset.faults import Fault

PIECEWISE = (("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}'),)
BFLOAT16 = (("--kv-cache-dtype", "bfloat16"),)


@dataclass(frozen=True)
class Backend:
    """A dense MLA backend. ``majors``: compute capabilities, ``None`` for all.

    ``fp8``: whether it takes an FP8 KV cache: no, also, or nothing else; ``fp8_since`` in which
    release. ``blocks`` are the block sizes in tokens that its kernels take; ``multiple``: also
    each multiple.
    """

    name: str
    majors: tuple[int, ...] | None
    fp8: Literal["no", "also", "only"]
    blocks: tuple[int, ...]
    multiple: bool = False
    fp8_since: str = "0.15.0"
    since: str = "0.15.0"

    def takes_fp8(self, version: str) -> bool:
        """Whether it has an FP8 KV cache in that release."""
        return self.fp8 != "no" and Version(version) >= Version(self.fp8_since)

    def reason_against(self, version: str, major: int, fp8: bool) -> str | None:
        """Why it cannot serve there, ``None`` if it can."""
        if Version(version) < Version(self.since):
            return f"is there from {self.since} on"
        if self.majors is not None and major not in self.majors:
            return f"needs compute capability {' or '.join(f'{m}.x' for m in self.majors)}"
        if fp8 and not self.takes_fp8(version):
            later = f" before {self.fp8_since}" if self.fp8 != "no" else ""
            return f"has no FP8 KV cache{later}"
        if not fp8 and self.fp8 == "only":
            return "takes an FP8 KV cache only"
        return None


# In the order in which vLLM tries them on compute capability 10.x.
BACKENDS = (
    Backend("FLASHINFER_MLA", (10,), "also", (32, 64)),
    Backend("TOKENSPEED_MLA", (10,), "only", (32, 64), since="0.21.0"),
    Backend("CUTLASS_MLA", (10,), "also", (128,)),
    Backend("FLASH_ATTN_MLA", (9,), "no", (16,), multiple=True),
    Backend("FLASHMLA", (9, 10), "also", (64,)),
    Backend("TRITON_MLA", None, "also", (16,), multiple=True, fp8_since="0.18.0"),
)
_BY_NAME = {backend.name: backend for backend in BACKENDS}


def possible(version: str, major: int, fp8: bool) -> list[Backend]:
    """The dense MLA backends that a release can use on a card, the one it chooses first."""
    return [item for item in BACKENDS if item.reason_against(version, major, fp8) is None]


def wants_fp8(pair: Pair) -> bool:
    """Whether the KV cache is FP8: asked for, or left to a checkpoint that asks for it."""
    given = (pair.setup.kv_cache_dtype or "auto").lower()
    return pair.target.fp8_cache if given == "auto" else given.startswith("fp8")


def chosen(pair: Pair, cards: Cards) -> Backend | None:
    """The backend that serves the target; ``None`` for one that is not known here, or for none."""
    if pair.target.latent is None:
        return None
    if given := pair.setup.attention_backend:
        return _BY_NAME.get(given.upper())
    found = possible(pair.rules.version, cards.card.major, wants_fp8(pair))
    return found[0] if found else None


def card_checks(pair: Pair, faults: Sequence[Fault]) -> list[Check]:
    """Everything that depends on the cards but memory; empty without ``--gpus``."""
    told = list(_spelling(pair))
    if pair.setup.gpus is None:
        return told
    cards = read_cards(pair.setup.gpus)
    judged = _Judged(pair, cards, {fault.id: fault for fault in faults})
    return [*told, *_number(pair, cards), *judged.backend(), *judged.faults()]


# Types of the KV cache that a release may have besides FP8 (CacheDType), and backends that serve a
# Llama-style drafter (platforms/cuda.py).
_CACHE_TYPES = (
    "auto",
    "bfloat16",
    "float16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
)
_DRAFT_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")


def _spelling(pair: Pair) -> Iterator[Check]:
    """Values of options that no release is known to take; vLLM refuses them at once."""
    setup = pair.setup
    known = {*_DRAFT_BACKENDS, *_BY_NAME}
    if setup.kv_cache_dtype is not None and setup.kv_cache_dtype not in _CACHE_TYPES:
        yield Check(
            "card.cache-type",
            "warn",
            "KV cache",
            f"--kv-cache-dtype {setup.kv_cache_dtype!r} is no type that is known here",
            f"Known are {', '.join(_CACHE_TYPES)}, in small letters.",
        )
    for option, name in (
        ("--attention-backend", setup.attention_backend if setup.gpus is None else None),
        ("--draft-attention-backend", setup.draft_attention_backend),
    ):
        if name is not None and name.upper() not in known:
            yield Check(
                "card.backend",
                "warn",
                "attention backend",
                f"{option} {name} is none that is known here",
                f"Known are {', '.join(sorted(known))}.",
            )


def _number(pair: Pair, cards: Cards) -> Iterator[Check]:
    setup, what = pair.setup, "number of cards"
    needed = setup.tp * setup.pp
    told = f"--tp {setup.tp} x --pp {setup.pp} takes {needed} of {cards}"
    if needed > cards.number:
        cure = f"At most {cards.number} in all: a smaller --tp, or more cards in --gpus."
        yield Check("card.number", "stop", what, told, cure)
    elif needed < cards.number:
        yield Check("card.number", "note", what, told + f", {cards.number - needed} stay idle")
    else:
        yield Check("card.number", "pass", what, told)


@dataclass(frozen=True)
class _Judged:
    pair: Pair
    cards: Cards
    known: dict[str, Fault]

    def backend(self) -> Iterator[Check]:
        """Which backend serves the target, and whether that works."""
        pair, card, what = self.pair, self.cards.card, "attention backend"
        version, fp8 = pair.rules.version, wants_fp8(pair)
        kind = "FP8" if fp8 else "16-bit"
        if pair.target.latent is None:
            return
        fits = possible(version, card.major, fp8)
        names = ", ".join(item.name for item in fits) or "none"
        where = f"{card.name} (compute capability {card.capability}), {kind} KV cache"
        given = pair.setup.attention_backend
        if given is None:
            if fits:
                yield Check("card.backend", "pass", what, f"{fits[0].name} on {where}")
            elif fp8:
                yield self._fault_or(
                    "F10",
                    Check(
                        "card.backend",
                        "stop",
                        what,
                        f"no MLA backend of vLLM {version} has an FP8 KV cache on {card.name}",
                        "Serve with --kv-cache-dtype bfloat16.",
                        flags=BFLOAT16,
                    ),
                )
            else:
                yield Check("card.backend", "stop", what, f"no MLA backend for {where}")
            return
        backend = _BY_NAME.get(given.upper())
        if backend is None:
            yield Check(
                "card.backend",
                "warn",
                what,
                f"{given} is not a dense MLA backend that is known here",
                f"For {where}: {names}.",
            )
        elif reason := backend.reason_against(version, card.major, fp8):
            check = Check(
                "card.backend",
                "stop",
                what,
                f"{backend.name} {reason}; wanted is {where}",
                f"Leave --attention-backend out, or use one of: {names}.",
            )
            only_fp8 = fp8 and backend.reason_against(version, card.major, False) is None
            yield self._fault_or("F10", check) if only_fp8 and card.major == 12 else check
        else:
            yield Check("card.backend", "pass", what, f"{backend.name} on {where}")

    def _fault_or(self, fault: str, check: Check) -> Check:
        """The check, with that fault where the release has it."""
        known = self.known.get(fault)
        if known is None or not known.affects(self.pair.rules.version):
            return check
        return Check(**{**check.__dict__, "fault": fault})

    def faults(self) -> Iterator[Check]:
        """The known faults that this card, backend and drafter meet."""
        pair, card = self.pair, self.cards.card
        setup, llama = pair.setup, pair.drafter.style == "llama"
        backend, fp8 = chosen(pair, self.cards), wants_fp8(pair)
        triton = backend is not None and backend.name == "TRITON_MLA"
        if llama and backend and setup.attention_backend is None and card.major == 10:
            yield from self._meets(
                "F05", "stop", f"a Llama-style drafter on {card.name}, no --attention-backend"
            )
        if llama and backend and setup.attention_backend and not setup.draft_attention_backend:
            own = pair.rules.since("0.30.0")
            yield from self._meets(
                "F06",
                "stop",
                f"--attention-backend {backend.name} and a Llama-style drafter",
                "Give the drafter a backend of its own." if own else None,
                draft=(("attention_backend", "FLASH_ATTN"),) if own else (),
            )
            if backend.name == "CUTLASS_MLA" and card.major == 10:
                yield Check(
                    "card.blocks",
                    "stop",
                    "KV block size",
                    "CUTLASS_MLA wants blocks of 128 tokens, which FLASHINFER, the drafter's own "
                    "choice, does not take: the two share no block size",
                    "Give the drafter FLASH_ATTN.",
                    draft=(("attention_backend", "FLASH_ATTN"),),
                )
        if triton and fp8 and card.shared_memory < 102400:
            yield from self._meets(
                "F09", "stop", f"TRITON_MLA with FP8 KV on {card.name}", _BFLOAT, BFLOAT16
            )
        if triton and setup.dcp == 1:
            yield from self._meets("F11", "stop", "TRITON_MLA with a drafter", _GRAPHS, PIECEWISE)
        if triton and setup.dcp > 1:
            told = f"TRITON_MLA with a drafter and --dcp {setup.dcp}"
            yield from self._meets("F11", "stop", told, _GRAPHS, PIECEWISE)
            yield from self._meets("F12", "stop", told, _GRAPHS, PIECEWISE)
        if fp8 and setup.dcp > 1 and pair.target.latent is not None:
            yield from self._meets(
                "F13", "stop", f"FP8 KV with --dcp {setup.dcp}", _BFLOAT, BFLOAT16
            )
        if card.link == "PCIe" and setup.tp > 2:
            yield from self._meets("F26", "note", f"{setup.tp} cards over PCIe")

    def _meets(
        self,
        fault: str,
        level: Literal["note", "stop"],
        how: str,
        cure: str | None = None,
        flags: tuple[tuple[str, str], ...] = (),
        draft: tuple[tuple[str, str | int], ...] = (),
    ) -> Iterator[Check]:
        known, rules = self.known.get(fault), self.pair.rules
        if known is None or not known.affects(rules.version):
            return
        what = f"fault {fault}"
        if patches := [name[:4] for cured, name in rules.cures if cured == fault]:
            reason = f"{known.title} ({how}): cured by patch {', '.join(patches)}"
            yield Check(f"card.{fault}", "pass", what, reason, fault=fault)
            return
        healed = next((s.healed for s in known.affected if s.covers(rules.version)), None)
        later = f"vLLM {healed} is without it." if healed else None
        note = known.note(rules.version)
        if not rules.patches and not note:  # in faults.toml, one without a note has a patch
            cure = f"{cure or later or ''} The series cures it.".strip()
        yield Check(
            f"card.{fault}",
            level,
            what,
            f"{known.title} ({how})",
            cure or later or note,
            fault,
            flags,
            draft,
        )


_BFLOAT = "Serve with --kv-cache-dtype bfloat16."
_GRAPHS = "Capture no full graphs: cudagraph_mode PIECEWISE."
