"""The bytes between pipeline stages, and the table of them in docs/several-machines.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from advice.stages import boundaries, first_layers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "several-machines.md"
# Kimi-K2.5, and the layers that its drafters read.
LAYERS, HIDDEN, TAPS = 61, 7168, (2, 30, 58)
DECODE, PREFILL = 32 * (1 + 3), 8192  # tokens of a step


@pytest.mark.parametrize(
    ("layers", "stages", "first"),
    [
        (61, 1, [0]),
        (61, 2, [0, 31]),
        (61, 4, [0, 15, 30, 46]),  # 15, 15, 16, 15
        (62, 4, [0, 15, 31, 47]),  # 15, 16, 16, 15
        (8, 2, [0, 4]),
    ],
)
def test_layers_are_split_as_vllm_does(layers: int, stages: int, first: list[int]) -> None:
    assert first_layers(layers, stages) == first


def test_a_tap_crosses_every_boundary_behind_it() -> None:
    found = [(item.layer, item.states) for item in boundaries(8, 4, (0, 4, 8), 10)]
    assert found == [(2, 1), (4, 2), (6, 2)], "the input of layer 8 is the last stage's own"
    assert [item.extra for item in boundaries(8, 4, (0, 4, 8), 10, size=4)] == [40, 80, 80]


def test_the_table_of_the_page_is_what_comes_out() -> None:
    rows = []
    for stages in (2, 4):
        for at in boundaries(LAYERS, stages, TAPS, HIDDEN):
            whole = at.plain + at.extra
            rows.append(
                f"| {stages} | {at.layer} | {at.states} | {at.plain:,} + {at.extra:,} = {whole:,} "
                f"| {DECODE * at.plain / 1e6:.1f} → {DECODE * whole / 1e6:.1f} MB "
                f"| {PREFILL * at.plain / 1e6:.0f} → {PREFILL * whole / 1e6:.0f} MB |"
            )
    text = PAGE.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith(("| 2 |", "| 4 |"))] == rows
