"""patches/faults.toml: every pattern finds its own fault and no other."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from patchset.errors import IntegrityFault
from patchset.faults import Fault, Span, load_faults
from patchset.probes import PROBES
from patchset.project import Project

FILE = Path(__file__).resolve().parents[2] / "patches" / "faults.toml"
FAULTS = load_faults(FILE)
VERSIONS = [release.version for release in Project.here().releases.release]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_pattern_finds_every_sample_of_its_own_fault(fault: Fault) -> None:
    missed = [sample for sample in fault.samples if not fault.seen_in(sample)]
    assert not missed
    assert fault.samples or fault.seen_in(fault.symptom), "the pattern has nothing that it finds"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_pattern_finds_no_other_fault_of_the_same_release(fault: Fault) -> None:
    for other in FAULTS:
        shared = [v for v in VERSIONS if fault.affects(v) and other.affects(v)]
        found = [text for text in (other.symptom, *other.samples) if fault.seen_in(text)]
        assert other is fault or not (shared and found), f"{other.id}, in {shared}"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_notes_are_on_affected_releases_only(fault: Fault) -> None:
    ends = [end for releases in fault.notes for end in releases.split("..")]
    assert all(fault.affects(version) for version in ends)


def test_span_includes_its_first_release_and_not_the_healed_one() -> None:
    span = Span(first="0.15.0", healed="0.18.0")
    verdicts = [span.covers(v) for v in ("0.14.9", "0.15.0", "0.17.1", "0.18.0", "0.100.0")]
    assert verdicts == [False, True, True, False, False]
    assert Span(first="0.29.0").covers("0.100.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[fault]]\nid = 'F1'", r"\$\.fault\[0\]\.id"),
        ("not toml", "not valid TOML"),
        ("fault = []", "length >= 1"),
        (f"fault = {'9' * 5000}", "not valid TOML"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(IntegrityFault, match=words):
        load_faults(path)
    with pytest.raises(IntegrityFault, match="is missing"):
        load_faults(tmp_path / "none.toml")


def test_a_pattern_of_too_large_a_number_is_named(tmp_path: Path) -> None:
    path, number = tmp_path / "faults.toml", "9" * 20
    text = re.sub(r'pattern = ".*"', f'pattern = "a{{{number}}}"', FILE.read_text(), count=1)
    path.write_text(text)
    with pytest.raises(IntegrityFault, match="pattern: not a regular expression"):
        load_faults(path)


def test_ids_are_distinct_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    text = FILE.read_text()
    path.write_text(text + text[text.index("[[fault]]") :])
    with pytest.raises(IntegrityFault, match="distinct and in order"):
        load_faults(path)


def test_a_note_is_for_one_release_or_several() -> None:
    fault = next(fault for fault in FAULTS if fault.id == "F03")
    fault = msgspec.structs.replace(fault, notes={"0.15.0..0.17.1": "many", "0.16.0": "one"})
    found = [fault.note(version) for version in ("0.15.0", "0.16.0", "0.17.1", "0.18.0")]
    assert found == ["many", "one", "many", None]


def test_a_fault_has_a_probe_or_says_by_what_it_is_known(tmp_path: Path) -> None:
    assert {fault.probe for fault in FAULTS if fault.probe} == set(PROBES), "each one once"
    path = tmp_path / "faults.toml"
    text = FILE.read_text()
    for change in ("", 'probe = "image_token_index"\nestablished = "otherwise"\n'):
        path.write_text(text.replace('probe = "image_token_index"\n', change))
        with pytest.raises(IntegrityFault, match="either a probe or"):
            load_faults(path)
