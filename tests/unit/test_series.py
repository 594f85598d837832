"""Loading a series: what is read, and what makes it invalid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from patchset.errors import IntegrityFault, PatchsetError, Refused, UnknownRelease, UsageFault
from patchset.project import Project
from unit.support import OVERLAY, PRISTINE, VERSION, World


def test_reads_patches_overlay_and_trailers(world: World) -> None:
    series = world.project.series(VERSION)
    assert series.patches[0].subject == "first change"
    assert series.patches[1].subject.startswith("second change, with an ünusual subject that is")
    assert series.patches[1].faults == ("F05", "F06")
    assert ("Drop-when", "9.9.1") in series.patches[0].trailers
    assert series.patches[0].author == "Ann Author <ann@example.invalid>"
    assert [item.path for item in series.overlay] == list(OVERLAY)
    assert "vllm/sub/deep/new.py" in series.paths


def test_the_digest_depends_on_every_byte_and_on_the_order(world: World) -> None:
    before = world.project.series(VERSION).digest
    assert Project(world.root).series(VERSION).digest == before
    overlay = world.root / "overlay" / f"v{VERSION}" / "vllm" / "extra" / "over.py"
    overlay.write_bytes(b"other\n")
    changed = Project(world.root).series(VERSION).digest
    assert changed != before
    assert Project(world.root).series(VERSION, upto=2).digest not in (before, changed)


def _edit(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / name
        path.write_text(change(path.read_text(encoding="latin-1")), encoding="latin-1")

    return edit


def _rename(folder: Path) -> None:
    first = sorted(folder.glob("0001*"))[0]
    first.rename(folder / "0009-renamed.patch")


def _link(folder: Path) -> None:
    first = sorted(folder.glob("0001*"))[0]
    target = folder.parent / "elsewhere"
    first.rename(target)
    first.symlink_to(target)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_edit("series", lambda text: ""), "lists no patch"),
        (_edit("series", lambda text: "# only a comment\n"), "lists no patch"),
        (_edit("series", lambda text: text + "0004-missing.patch\n"), "not a file"),
        (_edit("series", lambda text: text + text), "more than once"),
        (_edit("series", lambda text: text.rsplit("\n", 2)[0] + "\n"), "does not list"),
        (_edit("series", lambda text: text + "../../x.patch\n"), "NNNN-slug"),
        (_edit("series", lambda text: "\n".join(text.splitlines()[::-1])), "order"),
        (_rename, "not a file"),
        (_link, "which is a link to"),
        (lambda folder: (folder / "series").unlink(), "is missing"),
        (_edit("0001-first-change.patch", lambda text: text.replace("\n", "\r\n")), "CRLF"),
        (_edit("0001-first-change.patch", lambda text: text.split("diff")[0]), "no 'diff"),
        (_edit("0001-first-change.patch", lambda text: text.replace("From: ", "X: ")), "From"),
        (
            _edit("0001-first-change.patch", lambda text: text.replace("first", "=?nope?q?a?=")),
            "Subject: line cannot be decoded",
        ),
        (
            _edit("0001-first-change.patch", lambda text: text.replace("alpha.py", "_version.py")),
            "written by the build",
        ),
    ],
)
def test_a_broken_series_is_refused(
    world: World, damage: Callable[[Path], None], reason: str
) -> None:
    damage(world.patches)
    with pytest.raises(PatchsetError, match=reason):
        world.project.series(VERSION)


_PLAIN_DIFF = """\
--- a/vllm/sub/__init__.py
+++ b/vllm/sub/__init__.py
@@ -0,0 +1 @@
+evil = 1
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("---\n vllm", f"---\n{_PLAIN_DIFF}\n vllm"),
        ("\nWhat breaks", f"\n{_PLAIN_DIFF}\nWhat breaks"),
        ("\nWhat breaks", f"\nIndex: vllm/sub/__init__.py\n{_PLAIN_DIFF}\nWhat breaks"),
        ("\nWhat breaks", "\ndiff -u a b\nWhat breaks"),
        ("\nWhat breaks", "\nFrom x Mon Sep 17 00:00:00 2001\nFrom: y <y@z>\n\nWhat breaks"),
        ("Subject: ", "Content-Transfer-Encoding: base64\nSubject: "),
        ("Subject: ", "content-transfer-encoding:quoted-printable\nSubject: "),
        (
            "Subject: ",
            "Content-Transfer-Encoding: 8bit\nContent-Transfer-Encoding: base64\nSubject: ",
        ),
        ("Subject: ", "Content-Type: text/plain;\n format=flowed\nSubject: "),
        ("Subject: ", "Content-Type: multipart/mixed; boundary=x\nSubject: "),
    ],
)
def test_what_git_am_would_read_in_another_way_is_refused(world: World, old: str, new: str) -> None:
    _edit("0001-first-change.patch", lambda text: text.replace(old, new, 1))(world.patches)
    with pytest.raises(Refused, match=r"0001-first-change\.patch: ('git am'|is encoded)"):
        world.project.series(VERSION)


@pytest.mark.parametrize("encoding", ["8bit", "7bit"])
def test_what_git_format_patch_writes_is_read(world: World, encoding: str) -> None:
    more = "MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\n"
    more += f"Content-Transfer-Encoding: {encoding}\nSubject: "
    change = _edit("0001-first-change.patch", lambda text: text.replace("Subject: ", more, 1))
    change(world.patches)
    assert world.project.series(VERSION).patches[0].subject == "first change"


def test_a_patch_must_not_touch_an_overlay_file(world: World) -> None:
    copy = world.root / "overlay" / f"v{VERSION}" / "vllm" / "alpha.py"
    copy.write_bytes(b"")
    with pytest.raises(IntegrityFault, match="overlay"):
        world.project.series(VERSION)


def test_overlay_holds_regular_files_inside_the_package_only(world: World) -> None:
    folder = world.root / "overlay" / f"v{VERSION}"
    (folder / "vllm" / "__pycache__").mkdir()
    (folder / "vllm" / "__pycache__" / "x.pyc").write_bytes(b"")
    assert len(world.project.series(VERSION).overlay) == 1
    (folder / "vllm" / "link.py").symlink_to("/etc/passwd")
    with pytest.raises(IntegrityFault, match="regular files"):
        Project(world.root).series(VERSION)
    (folder / "vllm" / "link.py").unlink()
    (folder / "setup.py").write_bytes(b"")
    with pytest.raises(Refused, match="outside vllm/"):
        Project(world.root).series(VERSION)


def test_forward_and_backward_are_inverse(world: World) -> None:
    series = world.project.series(VERSION)
    state: dict[str, bytes | None] = dict(PRISTINE)
    for step in series.forward(state.get):
        state.update(step.files)
    assert state["vllm/gone.py"] is None
    assert state["vllm/extra/over.py"] == OVERLAY["vllm/extra/over.py"]
    for step in series.backward(state.get):
        state.update(step.files)
    assert {key: value for key, value in state.items() if value is not None} == PRISTINE


def test_cut_keeps_the_overlay_and_the_first_patches(world: World) -> None:
    cut = world.project.series(VERSION, upto=1)
    assert (len(cut.patches), len(cut.overlay), cut.upto) == (1, 1, 1)
    for wrong in (-1, 4):
        with pytest.raises(UsageFault):
            world.project.series(VERSION, upto=wrong)


def test_an_unknown_release_names_the_known_ones(world: World) -> None:
    with pytest.raises(UnknownRelease, match=VERSION):
        world.project.release("1.2.3")
