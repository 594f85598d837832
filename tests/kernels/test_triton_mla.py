"""Triton MLA, the only dense MLA backend of SM120: what each release compiles, declares, reserves
and computes, as released and with the series. No GPU is needed; `probe.py` says what stands in.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from kernels.conftest import FAST, ROOT, Kernels
from patchset.faults import Fault

SM120, SM100 = "RTX PRO 6000", "B200"
LIMITS = {SM120: 101376, SM100: 232448}  # bytes of shared memory that one block may have
CACHES = ("bfloat16", "fp8")
DRAFTS = 3
PAGE = 16  # tokens of a block of the KV cache, as in probe.py
# The README's recipe, the same with decode context parallelism, and vLLM's defaults on 96 GB cards
# with the whole context of Kimi-K2.5. (max_num_seqs, max_model_len, dcp); TP is 8.
SERVERS = {"recipe": (32, 65536, 1), "recipe, DCP 8": (32, 65536, 8), "defaults": (1024, 262144, 1)}

QUESTIONS: dict[tuple[Any, ...], dict[str, Any]] = {}
for card in LIMITS:
    for cache in CACHES:
        for heads in (8, 64):  # TP 8 without and with DCP 8
            QUESTIONS["compile", card, cache, heads] = {
                "what": "compile_kernels",
                "card": card,
                "cache": cache,
                "heads": heads,
                "seq_len": 4096,
            }
        QUESTIONS["compile", card, cache, 1] = {"what": "compile_mha", "card": card, "cache": cache}
for dcp in (1, 8):
    for drafts in (0, DRAFTS):
        QUESTIONS["capture", dcp, drafts] = {
            "what": "capture",
            "card": SM120,
            "drafts": drafts,
            "dcp": dcp,
        }
for name, (seqs, length, dcp) in SERVERS.items():
    QUESTIONS["workspace", name] = {
        "what": "workspace",
        "card": SM120,
        "max_num_seqs": seqs,
        "max_model_len": length,
        "drafts": DRAFTS,
        "tp": 8,
        "dcp": dcp,
    }

Answers = dict[tuple[Any, ...], Any]


def ask_all(kernels: Kernels) -> Answers:
    return dict(zip(QUESTIONS, kernels.ask(list(QUESTIONS.values())), strict=True))


@pytest.fixture(scope="module")
def as_released(stock: Kernels) -> Answers:
    return ask_all(stock)


@pytest.fixture(scope="module")
def with_series(patched: Kernels) -> Answers:
    return ask_all(patched)


def shared(answers: Answers, card: str, cache: str, heads: int) -> int:
    """Bytes of shared memory of the hungriest kernel of a decode."""
    kernels = answers["compile", card, cache, heads]
    assert isinstance(kernels, list), kernels
    assert [item["kernel"] for item in kernels] == [
        "_fwd_kernel_stage1" if heads == 1 else "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
    ]
    assert {item["capability"] for item in kernels} == {120 if card == SM120 else 100}
    return max(item["shared"] for item in kernels)


def test_shared_memory(
    stock: Kernels,
    as_released: Answers,
    with_series: Answers,
    fault: Callable[[str], Fault],
) -> None:
    """F09: only FP8 on SM120 does not fit, exactly in the releases named; patched, all fits."""
    for card, limit in LIMITS.items():
        for cache in CACHES:
            for heads in (1, 8, 64):
                before = shared(as_released, card, cache, heads)
                after = shared(with_series, card, cache, heads)
                wrong = (
                    fault("F09").affects(stock.version)
                    and (card, cache) == (SM120, "fp8")
                    and heads > 1
                )
                assert (before > limit) == wrong, (card, cache, heads, before)
                assert after <= limit, (card, cache, heads, after)
                if not wrong:
                    assert after == before, (card, cache, heads)


def test_what_is_captured(
    stock: Kernels,
    as_released: Answers,
    with_series: Answers,
    fault: Callable[[str], Fault],
) -> None:
    """F11, F12: the builder takes the batches that its declaration makes the runner capture."""
    version = stock.version
    for dcp in (1, 8):
        for drafts in (0, DRAFTS):
            wrong = drafts > 0 and (
                fault("F11").affects(version) or (dcp > 1 and fault("F12").affects(version))
            )
            before = as_released["capture", dcp, drafts]
            after = with_series["capture", dcp, drafts]
            if wrong:
                assert before["captured"].get("error", "").startswith("AssertionError"), before
                assert "max_query_len <= self.reorder_batch_threshold" in before["captured"]["line"]
            else:
                assert before["captured"] == {"decodes": 4, "prefills": 0}, before
                # F11's cure declares less without a drafter too: the declaration is a constant.
                assert after == before or fault("F11").affects(version)
            assert after["captured"] == {"decodes": 4, "prefills": 0}, (dcp, drafts, after)
            if fault("F12").affects(version):
                assert (after["declared"], after["threshold"]) == ("UNIFORM_BATCH", 1 + drafts)


def test_workspace(
    stock: Kernels,
    as_released: Answers,
    with_series: Answers,
    fault: Callable[[str], Fault],
) -> None:
    """F14: what is reserved no longer grows with the rows, and no batch asks for more."""
    for name, (_, _, dcp) in SERVERS.items():
        before, after = as_released["workspace", name], with_series["workspace", name]
        assert "error" not in after, after
        assert "error" not in before, before
        bound = 100e6 if dcp == 1 else 200e6
        assert max(after.values()) <= bound, (name, after)
        if after["reserved"]:
            assert after["largest"] <= after["reserved"]
        assert max(after.values()) <= max(before.values())
        if name == "defaults":
            wrong = fault("F14").affects(stock.version)
            assert (max(before.values()) > 6e9) == wrong, before
        if stock.version == FAST:
            told = " with the series and ".join(
                size(max(each.values())) for each in (after, before)
            )
            readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
            assert f"{told} without" in readme, name


def size(count: int) -> str:
    """Bytes as the README gives them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def shapes() -> list[dict[str, Any]]:
    """Random batches of decodes and verifications, with and without DCP."""
    draw = random.Random(20261129)
    found = []
    for cache, query_len, dcp, interleave in (
        ("float32", 1, 1, 1),
        ("float32", 4, 1, 1),
        ("fp8", 3, 1, 1),
        ("float32", 1, 4, 1),
        ("float32", 4, 4, 1),
        ("fp8", 3, 2, 1),
        ("float32", 2, 2, PAGE),
    ):
        # From the first tokens to several tiles. A rank may hold nothing for a row; only before
        # 0.25.0, whose merge makes NaN of that, a request has something on every rank.
        least = query_len if query_len > 1 or dcp == 1 else dcp * interleave
        found.append(
            {
                "what": "numbers",
                "card": SM120,
                "cache": cache,
                "heads": draw.choice((8, 16, 24)) if dcp == 1 else 16,
                "query_len": query_len,
                "seq_lens": [least, draw.randint(least + 1, 80)],
                "dcp": dcp,
                "interleave": interleave,
                "seed": draw.randrange(2**31),
            }
        )
    return found


def test_numbers(patched: Kernels, with_series: Answers) -> None:
    """The patched kernels, metadata and merge against softmax attention in float64."""
    # More rows a request than the builder takes are verified as a prefill, by other kernels.
    asked = [
        question
        for question in shapes()
        if question["query_len"]
        <= with_series["capture", 8 if question["dcp"] > 1 else 1, DRAFTS]["threshold"]
    ]
    assert asked
    for question, answer in zip(asked, patched.ask(asked, interpret=True), strict=True):
        assert answer["rows"] == len(question["seq_lens"]) * question["query_len"], answer
        assert answer["error"] < 1e-4, (question, answer)
        # One position more or less would have been seen.
        assert answer["shifted"] > 10 * answer["error"], (question, answer)
