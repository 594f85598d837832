"""The lock of a series."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchset.errors import IntegrityFault
from patchset.lock import digest, load_lock
from patchset.project import Project
from unit.support import OVERLAY, PRISTINE, TALLY, VERSION, World


def test_knows_every_state_of_every_path(world: World) -> None:
    lock = world.project.lock(VERSION)
    assert list(lock.paths) == list(world.project.series(VERSION).paths)
    alpha = lock.paths["vllm/alpha.py"]
    assert alpha.before == digest(PRISTINE["vllm/alpha.py"])
    assert alpha.steps[0].step.startswith("0001-")
    assert alpha.after == alpha.steps[-1].sha256
    assert lock.expected("vllm/alpha.py", 0) == alpha.before
    assert lock.expected("vllm/alpha.py", 1) == alpha.steps[0].sha256
    assert lock.paths["vllm/gone.py"].after is None
    over = lock.paths["vllm/extra/over.py"]
    assert (over.before, over.after) == (None, digest(OVERLAY["vllm/extra/over.py"]))
    assert lock.expected("vllm/extra/over.py", 0) == over.after


def test_equals_what_git_makes(world: World) -> None:
    expected = world.expected()
    for path, entry in world.project.lock(VERSION).paths.items():
        assert entry.after == digest(expected.get(path))


def test_a_stale_lock_is_an_integrity_fault_that_names_the_part(world: World) -> None:
    path = world.patches / "0001-first-change.patch"
    path.write_bytes(path.read_bytes().replace(b"What breaks", b"What broke"))
    with pytest.raises(IntegrityFault, match=r"stale: patch: 0001-first-change\.patch"):
        Project(world.root).lock(VERSION)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "other/1"),
        ("digest", "0" * 63),
        ("digest", "0" * 64),
        ("release", "9.9.1"),
        ("extra", 1),
        ("paths", {}),
    ],
)
def test_a_wrong_lock_is_refused(world: World, key: str, value: object) -> None:
    path = world.patches / "series.lock"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, key: value}))
    with pytest.raises(IntegrityFault, match=r"series\.lock"):
        Project(world.root).lock(VERSION)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"step": "0001-', '"step": " 0001-'), ('"step": "overlay"', '"step": "0001"'), ("after", "")],
)
def test_a_lock_that_contradicts_itself_is_refused(world: World, old: str, new: str) -> None:
    path = world.patches / "series.lock"
    text = path.read_text()
    if old == "after":  # another checksum than that of the last step
        entry = json.loads(text)["paths"]["vllm/alpha.py"]
        text, old, new = text, f'"after": "{entry["after"]}"', f'"after": "{entry["before"]}"'
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(IntegrityFault, match="contradicts itself"):
        Project(world.root).lock(VERSION)


def test_a_missing_lock_says_how_to_write_it(world: World) -> None:
    (world.patches / "series.lock").unlink()
    with pytest.raises(IntegrityFault) as fault:
        world.project.lock(VERSION)
    assert "tools/lock.py" in str(fault.value.next_step)


@given(st.data())
def test_a_damaged_lock_loses_no_path(template: Path, data: st.DataObject) -> None:
    TALLY["damaged series, patches and locks"] += 1
    source = template / "patches" / f"v{VERSION}" / "series.lock"
    text = source.read_bytes()
    at = data.draw(st.integers(0, len(text) - 1))
    junk = data.draw(st.binary(max_size=4))
    damaged = template.parent / "damaged.lock"
    damaged.write_bytes(text[:at] + junk + text[at + 1 :])
    try:
        found = load_lock(damaged)
    except IntegrityFault:
        return
    # What still parses is a lock with another checksum or name, which check_lock and the
    # comparison with the tree then refuse; it is never a lock with a path missing.
    assert len(found.paths) == len(load_lock(source).paths)
