"""What fits: weights on each card, KV cache per token, and the context and concurrency that remain.

Weights are counted from the tensors' headers, laid out as vLLM does (``deepseek_v2.py``,
``kimi_k25.py``, the drafter models). The KV cache is exact. What the engine takes besides is an
estimate, stated as :data:`CONTEXT`, :func:`activations` and :data:`GRAPHS`; docs/doctor.md compares
the outcome with published figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from advice.backends import chosen, possible, wants_fp8
from advice.cards import MIB, Cards, read_cards
from advice.checkpoint import Group
from advice.checks import Check, Level
from advice.together import Pair, serving_length, used_ids
from patchset.faults import Fault

GIB = 1 << 30
# Estimates, in bytes. CUDA context, NCCL and kernels' own buffers; CUDA graphs of one model, which
# vLLM takes off the KV cache from 0.20.0 on (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS).
CONTEXT = 1 * GIB
GRAPHS = 1 * GIB
# Beyond this share of what is wanted, the estimate is not trusted to say yes or no.
DOUBT = 0.15

# Tensors that every card of a tensor-parallel group holds whole: ReplicatedLinear and norms. The
# vision tower is one of them with --mm-encoder-tp-mode data.
_WHOLE = re.compile(
    r"(^|\.)(q_a_proj|kv_a_proj_with_mqa|fused_qkv_a_proj|gate|fc|fc_norm|norm\w*|\w*layernorm"
    r"|\w*_norm|d2t|t2d|vision_tower|vision_model|mm_projector|multi_modal_projector)\."
    r"|(^|\.)(d2t|t2d)$|e_score_correction_bias$"
)
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True)
class Need:
    """One line of the arithmetic: ``size`` in bytes on the fullest card, and how it comes about."""

    what: str
    size: int
    how: str


@dataclass(frozen=True)
class Budget:
    """What one card holds, in bytes, and what of it is left for the KV cache.

    ``per_token`` is what a token takes in the KV cache of a card; ``tokens`` how many it holds.
    """

    cards: Cards
    usable: int
    needs: tuple[Need, ...]
    per_token: int

    @property
    def left(self) -> int:
        """For the KV cache; below 0 if not even the rest fits."""
        return self.usable - sum(need.size for need in self.needs)

    @property
    def tokens(self) -> int:
        """Tokens of KV cache, all requests together."""
        return max(0, self.left) // self.per_token


def utilization(pair: Pair) -> float:
    """The share of a card's memory that vLLM may take: its default is 0.9, from 0.20.0 on 0.92."""
    given = pair.setup.gpu_memory_utilization
    return given or (0.92 if pair.rules.since("0.20.0") else 0.9)


def max_num_seqs(pair: Pair, cards: Cards) -> int:
    """Requests at once; by default 1024 on cards of 70 GiB or more (EngineArgs)."""
    return pair.setup.max_num_seqs or (1024 if cards.card.memory * MIB >= 70 * GIB else 256)


def batched_tokens(pair: Pair, cards: Cards) -> int:
    """Tokens of one step of the server, by default (EngineArgs.get_batch_defaults)."""
    memory = cards.card.memory * MIB
    if memory >= 160 * GIB and pair.rules.since("0.28.0"):
        return 16384
    return 8192 if memory >= 70 * GIB else 2048


def weights(groups: Iterable[Group], layers: int, tp: int, pp: int) -> int:
    """Bytes of weights on the fullest card.

    ``layers`` are spread over ``pp`` stages as evenly as may be; what belongs to no layer is
    counted on every stage: the last one has the head, and for its drafter the embedding.
    """
    most = -(-layers // pp)
    total = 0
    by_layer: dict[int, int] = {}
    for group in groups:
        size = group.size * group.number
        if not _WHOLE.search(group.name):
            size = -(-size // tp)
        found = None if "vision" in group.name else _LAYER.search(group.name)
        if found:
            layer = int(found[1])
            by_layer[layer] = by_layer.get(layer, 0) + size
        else:
            total += size
    # The fullest stage holds the largest layers, at worst.
    return total + sum(sorted(by_layer.values(), reverse=True)[:most])


def kv_per_token(pair: Pair, *, drafting: bool = True) -> int:
    """Bytes that a token takes in the KV cache of one card, the drafter's included.

    MLA keeps ``kv_lora_rank + qk_rope_head_dim`` elements a layer, on every card of a
    tensor-parallel group, spread by decode context parallelism. Other attention keeps keys and
    values of its own heads. The drafter's cache is counted as not spread.
    """
    target, drafter, setup = pair.target, pair.drafter, pair.setup
    width = 1 if wants_fp8(pair) else 2
    layers = -(-target.layers // setup.pp)
    if target.latent is not None:
        own = -(-layers * target.latent.cached * width // setup.dcp)
    else:
        dim = target.text.number("head_dim") or target.hidden_size // target.heads
        own = layers * 2 * max(1, target.kv_heads // setup.tp) * dim * width
    if not drafting:
        return own
    if drafter.latent is not None:
        drafts = drafter.layers * drafter.latent.cached * width
    else:
        heads = max(1, drafter.kv_heads // setup.tp)
        drafts = drafter.layers * 2 * heads * drafter.head_dim * width
    return own + drafts


def activations(pair: Pair, cards: Cards) -> int:
    """Estimated bytes of the largest step: each token at each of its experts, and the logits.

    Two buffers of ``tokens x experts x hidden`` in 16 bits, as the fused expert kernels keep them,
    and two of ``requests x vocabulary`` in 32 bits, as the sampler does.
    """
    target = pair.target
    experts = target.text.number("num_experts_per_tok") or 1
    tokens = batched_tokens(pair, cards)
    hidden = 2 * tokens * experts * target.hidden_size * 2
    return hidden + 2 * max_num_seqs(pair, cards) * target.vocab_size * 4


def stage_inputs(pair: Pair, cards: Cards) -> int:
    """Bytes that a pipeline stage keeps for what the one before sends, in 16 bits.

    ``make_empty_intermediate_tensors`` for a full step: two states of each token, and those that
    the drafter reads. 0 without stages.
    """
    if pair.setup.pp == 1:
        return 0
    states = 2 + len(used_ids(pair.target, pair.drafter, pair.rules) or pair.target.default_ids)
    return states * batched_tokens(pair, cards) * pair.target.hidden_size * 2


def triton_workspace(pair: Pair, cards: Cards) -> int:
    """Bytes that Triton MLA reserves for its split results (``triton_mla.py`` of the release).

    ``rows x heads x splits x (kv_lora_rank + 1)`` in 32 bits. Splits: the power of two at or above
    ``max_model_len / 512``, at most two for each multiprocessor. Rows: one a request, from 0.31.0
    on ``1 + draft tokens``. Nothing is reserved before 0.25.0. Where a patch cures F14, nothing is
    counted: its bound is small.
    """
    latent, backend, sms = pair.target.latent, chosen(pair, cards), cards.card.sms
    if latent is None or backend is None or backend.name != "TRITON_MLA" or sms is None:
        return 0
    if not pair.rules.since("0.25.0") or any(fault == "F14" for fault, _ in pair.rules.cures):
        return 0
    rows = max_num_seqs(pair, cards)
    if pair.rules.since("0.31.0") and pair.setup.dcp == 1:
        rows *= 1 + pair.setup.num_speculative_tokens
    heads = pair.target.heads // pair.setup.tp * pair.setup.dcp
    ideal = 1 << max(0, max(1, serving_length(pair) // 512) - 1).bit_length()
    return rows * heads * min(ideal, 2 * sms) * (latent.kv_lora_rank + 1) * 4


def budget(pair: Pair, cards: Cards, *, drafting: bool = True) -> Budget:
    """The arithmetic for one card, for comparison also without the drafter."""
    setup, target, drafter = pair.setup, pair.target, pair.drafter
    share = utilization(pair)
    usable = int(cards.card.memory * MIB * share)
    latent = target.latent
    # MLA layers keep kv_b_proj a second time, split into the two matrices that decoding uses.
    again = 0
    if latent is not None:
        width = latent.qk_nope_head_dim + latent.v_head_dim
        layers = -(-target.layers // setup.pp)
        again = layers * latent.kv_lora_rank * target.heads * width * 2 // setup.tp
    needs = [
        Need(
            "target",
            weights(target.groups, target.layers, setup.tp, setup.pp) + again,
            f"tensors of {target.checkpoint.name}, over --tp {setup.tp}"
            + (f" and --pp {setup.pp}" if setup.pp > 1 else ""),
        ),
        Need(
            "activations",
            activations(pair, cards),
            f"estimate for {batched_tokens(pair, cards)} tokens a step and "
            f"{max_num_seqs(pair, cards)} requests",
        ),
        Need("CUDA, NCCL", CONTEXT, "estimate"),
    ]
    models = 1
    if drafting:
        models = 2
        drafts = [Group(n, t.dtype, t.shape, 1, t.size) for n, t in drafter.tensors.items()]
        size = weights(drafts, drafter.layers, setup.tp, 1)
        needs.append(Need("drafter", size, f"its tensors, over --tp {setup.tp}"))
    if received := stage_inputs(pair, cards):
        needs.append(Need("from the stage before", received, "as the release allocates it"))
    if pair.rules.since("0.20.0"):
        needs.append(Need("CUDA graphs", models * GRAPHS, f"estimate for {models} models"))
    if reserved := triton_workspace(pair, cards):
        needs.append(
            Need("Triton MLA workspace", reserved, "fault F14: as the release computes it")
        )
    return Budget(cards, usable, tuple(needs), kv_per_token(pair, drafting=drafting))


def memory_checks(pair: Pair, faults: Sequence[Fault]) -> list[Check]:
    """Whether it fits, and how much context; empty without ``--gpus`` or without weights."""
    if pair.setup.gpus is None or not pair.target.checkpoint.shards:
        return []
    found = budget(pair, read_cards(pair.setup.gpus))
    checks = []
    fits = _fits(pair, found)
    reserved = next((n.size for n in found.needs if n.what == "Triton MLA workspace"), 0)
    f14 = next((fault for fault in faults if fault.id == "F14"), None)
    if reserved > 2 * GIB and f14 is not None and f14.affects(pair.rules.version):
        few = (("--max-num-seqs", "32"),) if max_num_seqs(pair, found.cards) > 32 else ()
        checks.append(
            Check(
                "memory.F14",
                "stop" if found.left <= 0 else "warn",
                "fault F14",
                f"{f14.title}: {_gib(reserved)} a card here",
                "--max-num-seqs 32 leaves it small." if few else "Serve a shorter --max-model-len.",
                "F14",
                few,
            )
        )
        if found.left <= 0 < found.left + reserved:
            fits = replace(fits, flags=few)
    return [*checks, fits]


def _fits(pair: Pair, found: Budget) -> Check:
    length, share = serving_length(pair), utilization(pair)
    taken = ", ".join(f"{need.what} {_gib(need.size)}" for need in found.needs)
    card = f"{_gib(found.usable)} of each {found.cards.card.name} ({share:g}): {taken}"
    if found.left <= 0:
        return Check(
            "memory.weights",
            "stop",
            "memory",
            f"{card}; that is {_gib(-found.left)} too much",
            "More or larger cards, or a larger --gpu-memory-utilization.",
        )
    held = found.tokens
    fits = f"{_gib(found.left)} left hold about {_tokens(held)} tokens of KV cache"
    told = f"{card}; {fits} ({found.per_token} bytes each), {held / length:.2f} x {length}"
    level: Level = "pass"
    cure = None
    flags: tuple[tuple[str, str], ...] = ()
    if held < length:
        level = "stop" if held < (1 - DOUBT) * length else "warn"
        fp8 = not wants_fp8(pair) and possible(pair.rules.version, found.cards.card.major, True)
        others = ["an FP8 KV cache"] if fp8 else []
        others += ["--dcp"] if pair.drafter.latent is not None else []
        cure = f"Serve at most --max-model-len {_round_down(held)}"
        cure += f", or use {' or '.join(others)}." if others else "."
        flags = (("--max-model-len", str(_round_down(held))),)
    elif held < (1 + DOUBT) * length:
        level, cure = "warn", "This is within what the estimate can be wrong; expect a refusal."
    return Check("memory.context", level, "memory", told, cure, flags=flags)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _tokens(count: int) -> str:
    return f"{count:,}"


def _round_down(count: int) -> int:
    """To a multiple of 1024, so that the advice is a number that one types."""
    return max(1024, int(count * (1 - DOUBT)) // 1024 * 1024)
