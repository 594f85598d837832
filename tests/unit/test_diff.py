"""The applier against git, and what it must refuse."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchset.diff import parse_diff, split_lines
from patchset.errors import DoesNotApply, IntegrityFault, PatchsetError, Refused, UnsafePath
from unit.support import TALLY

HEAD = b"diff --git a/vllm/x.py b/vllm/x.py\nindex 1111111..2222222 100644\n"
NAMES = b"--- a/vllm/x.py\n+++ b/vllm/x.py\n"
ONE = HEAD + NAMES + b"@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"

lines = st.lists(
    st.sampled_from([b"a", b"b", b"c", b"", b" x", b"\tx", b"\xe9", b"cr\r", b"-- ", b"@@", b"\\"]),
    max_size=14,
)
content = st.builds(
    lambda parts, ended: b"\n".join(parts) + (b"\n" if parts and ended else b""),
    lines,
    st.booleans(),
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scratch")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "vllm").mkdir()
    return root


def git_diff(root: Path, old: bytes | None, new: bytes | None, context: int) -> bytes:
    """What git itself says is the difference; binary content is forced to be text."""
    path = root / "vllm" / "x.py"
    path.unlink(missing_ok=True)
    run = ["git", "-C", str(root)]
    if old is not None:
        path.write_bytes(old)
    subprocess.run([*run, "add", "-A"], check=True)
    path.unlink(missing_ok=True)
    if new is not None:
        path.write_bytes(new)
    subprocess.run([*run, "add", "-N", "."], check=True)
    diff = subprocess.run(
        [*run, "diff", "--text", "--no-renames", f"-U{context}"], check=True, capture_output=True
    ).stdout
    subprocess.run([*run, "rm", "-rfq", "--cached", "--ignore-unmatch", "."], check=True)
    return diff


@given(old=st.none() | content, new=st.none() | content, context=st.integers(1, 4))
def test_what_git_wrote_is_applied_and_reversed_exactly(
    scratch: Path, old: bytes | None, new: bytes | None, context: int
) -> None:
    TALLY["diffs compared with git"] += 1
    text = git_diff(scratch, old, new, context)
    if not text:
        return
    (diff,) = parse_diff(text, "t.patch")
    assert diff.apply(old) == new
    assert diff.reversed().apply(new) == old


@given(old=content, new=content, other=content)
def test_agrees_with_git_apply_on_any_file(
    scratch: Path, old: bytes, new: bytes, other: bytes
) -> None:
    TALLY["diffs compared with git"] += 1
    text = git_diff(scratch, old, new, 3)
    if not text:
        return
    (diff,) = parse_diff(text, "t.patch")
    path = scratch / "vllm" / "x.py"
    path.write_bytes(other)
    theirs = subprocess.run(
        ["git", "-C", str(scratch), "apply", "--whitespace=nowarn"],
        input=text,
        capture_output=True,
        check=False,
    )
    try:
        ours = diff.apply(other)
    except DoesNotApply:
        return  # git may still find another place for it, which is what we do not want
    assert theirs.returncode == 0, theirs.stderr
    found = path.read_bytes() if path.exists() else None
    assert ours == found


def test_an_offset_that_git_tolerates_is_refused() -> None:
    (diff,) = parse_diff(ONE, "t.patch")
    with pytest.raises(DoesNotApply) as fault:
        diff.apply(b"inserted\na\nb\nc\n")
    assert (fault.value.path, fault.value.line) == ("vllm/x.py", 1)
    assert "expected 'a', found 'inserted'" in str(fault.value)


def test_a_hunk_without_trailing_context_must_end_the_file() -> None:
    (diff,) = parse_diff(HEAD + NAMES + b"@@ -1,2 +1,3 @@\n a\n b\n+c\n", "t.patch")
    assert diff.apply(b"a\nb\n") == b"a\nb\nc\n"
    with pytest.raises(DoesNotApply):
        diff.apply(b"a\nb\nmore\n")


def test_lines_end_at_newlines_only() -> None:
    assert split_lines(b"a\rb\x0cc\x85d\ne") == [b"a\rb\x0cc\x85d\n", b"e"]
    assert split_lines(b"") == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "missing"),
        (b"", "expected 'a', found the end"),
        (b"a\nb\n", "end of the file"),
        (b"a\nb\nc", "expected 'c', found 'c'"),  # the last line has no end
    ],
)
def test_says_where_it_does_not_apply(content: bytes | None, reason: str) -> None:
    (diff,) = parse_diff(ONE, "t.patch")
    with pytest.raises(DoesNotApply, match=reason):
        diff.apply(content)


def test_adding_over_a_file_and_deleting_another_are_refused() -> None:
    added = b"diff --git a/vllm/x.py b/vllm/x.py\nnew file mode 100644\nindex 0000000..1111111\n"
    text = added + b"--- /dev/null\n+++ b/vllm/x.py\n@@ -0,0 +1 @@\n+a\n"
    (diff,) = parse_diff(text, "t.patch")
    assert diff.apply(None) == b"a\n"
    with pytest.raises(DoesNotApply, match="already exists"):
        diff.apply(b"")
    with pytest.raises(DoesNotApply):
        diff.reversed().apply(b"a\nb\n")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", IntegrityFault),
        (b"no diff here\n", IntegrityFault),
        (ONE.removesuffix(b"\n"), IntegrityFault),
        (ONE.replace(b" c\n", b""), IntegrityFault),
        (ONE + b"+stray\n", IntegrityFault),
        (ONE + b"stray text\n", PatchsetError),
        (ONE.replace(b"@@ -1,3 +1,3 @@", b"@@ -1,3 +1,4 @@"), IntegrityFault),
        (ONE.replace(b"@@ -1,3 +1,3 @@", b"@@ -1,3 +7,3 @@"), IntegrityFault),
        (ONE.replace(b"@@ -1,3 +1,3 @@", b"@@ nonsense @@"), PatchsetError),
        (ONE.replace(b"-b\n+B\n", b" b\n"), IntegrityFault),
        (ONE + ONE, IntegrityFault),
        (ONE.replace(b"100644", b"100755"), Refused),
        (ONE.replace(b"index", b"old mode 100644\nnew mode 100755\nindex"), Refused),
        (ONE.replace(b"index", b"similarity index 90%\nindex"), Refused),
        (ONE.replace(b" b/vllm/x.py", b" b/vllm/y.py"), PatchsetError),
        (HEAD + b"GIT binary patch\nliteral 0\n", PatchsetError),
        (HEAD + b"Binary files a/vllm/x.py and b/vllm/x.py differ\n", PatchsetError),
        (ONE.replace(b"/vllm/x.py", b"/vllm/../../x.py"), UnsafePath),
        (ONE.replace(b"/vllm/x.py", b"/../vllm/x.py"), UnsafePath),
        (ONE.replace(b"a/vllm/x.py", b"a//etc/x.py").replace(b"b/vllm", b"b//etc"), UnsafePath),
        (ONE.replace(b"/vllm/x.py", b"/vllm/.git/x.py"), UnsafePath),
        (ONE.replace(b"/vllm/x.py", b"/vllm/.GIT/x.py"), UnsafePath),
        (ONE.replace(b"/vllm/x.py", b"/vllm/a\\b.py"), UnsafePath),
        (ONE.replace(b"/vllm/x.py", b"/csrc/x.cu"), UnsafePath),
        (ONE.replace(b"/vllm/x.py", b"/vllm/_version.py"), UnsafePath),
        (ONE.replace(b"a/vllm/x.py", b'"a/vllm/x\\t.py"'), PatchsetError),
    ],
)
def test_refuses_what_a_patch_must_not_be(text: bytes, fault: type[PatchsetError]) -> None:
    with pytest.raises(fault):
        parse_diff(text, "t.patch")


@given(st.binary(max_size=400))
def test_noise_is_refused_not_believed(noise: bytes) -> None:
    TALLY["damaged series, patches and locks"] += 1
    with pytest.raises(PatchsetError):
        parse_diff(noise, "t.patch")


@given(st.integers(0, len(ONE) - 1), st.binary(max_size=3))
def test_a_damaged_patch_is_refused_or_means_what_it_says(at: int, junk: bytes) -> None:
    TALLY["damaged series, patches and locks"] += 1
    text = ONE[:at] + junk + ONE[at + 1 :]
    try:
        diffs = parse_diff(text, "t.patch")
        result = diffs[0].apply(b"a\nb\nc\n")
    except PatchsetError:
        return
    # It still is a diff: then the result must be explained by its own lines.
    added = {line[1:] + b"\n" for line in text.split(b"\n") if line[:1] == b"+"}
    assert result is not None
    new = [line for line in split_lines(result) if line not in (b"a\n", b"b\n", b"c\n")]
    assert all(line in added or line + b"\n" in added for line in new)


def test_difflib_agrees_with_the_reading_of_hunks() -> None:
    old = [f"line {n}\n" for n in range(50)]
    new = [*old[:5], "added\n", *old[5:20], *old[25:]]
    text = "".join(difflib.unified_diff(old, new, "a/vllm/x.py", "b/vllm/x.py"))
    (diff,) = parse_diff(HEAD + text.encode(), "t.patch")
    assert diff.apply("".join(old).encode()) == "".join(new).encode()
