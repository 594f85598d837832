"""patches/faults.toml: every pattern finds its own fault and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchset.errors import IntegrityFault
from patchset.faults import Fault, Span, load_faults

FILE = Path(__file__).resolve().parents[2] / "patches" / "faults.toml"
FAULTS = load_faults(FILE)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_pattern_finds_its_own_symptom_only(fault: Fault) -> None:
    found = [other.id for other in FAULTS if fault.seen_in(other.symptom)]
    assert found == ([fault.id] if fault.pattern else [])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_reason_for_no_cure_is_given_for_affected_releases_only(fault: Fault) -> None:
    assert all(fault.affects(version) for version in fault.uncured)


def test_span_includes_its_first_release_and_not_the_healed_one() -> None:
    span = Span(first="0.15.0", healed="0.18.0")
    verdicts = [span.covers(v) for v in ("0.14.9", "0.15.0", "0.17.1", "0.18.0", "0.100.0")]
    assert verdicts == [False, True, True, False, False]
    assert Span(first="0.29.0").covers("0.100.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[fault]]\nid = 'F1'", "fault.0.id"),
        ("not toml", "not valid TOML"),
        ("fault = []", "fault"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(IntegrityFault, match=words):
        load_faults(path)
    with pytest.raises(IntegrityFault, match="is missing"):
        load_faults(tmp_path / "none.toml")


def test_ids_are_distinct_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    text = FILE.read_text()
    path.write_text(text + text[text.index("[[fault]]") :])
    with pytest.raises(IntegrityFault, match="distinct and in order"):
        load_faults(path)
