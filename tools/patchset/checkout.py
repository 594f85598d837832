"""A git checkout: one commit per patch, the same trees that ``git am`` would make."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Literal

from git import Repo
from git.exc import GitCommandError, GitCommandNotFound, GitError

from patchset.errors import EnvironmentFault, Refused
from patchset.lock import SeriesLock, digest
from patchset.series import MODE, OVERLAY, Patch, Series

# Set when these tools run inside a git hook; they would point git at the wrong repository.
_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")


class Checkout:
    """The repository at ``root``. Raises :class:`EnvironmentFault` when git cannot be run."""

    def __init__(self, root: Path) -> None:
        for name in _FOREIGN:
            if name in os.environ:
                raise EnvironmentFault(
                    f"{name} is set, so git would work elsewhere than in {root}",
                    next_step=f"Unset {name}.",
                )
        self.root = root
        try:
            self._repo = Repo(root)
        except GitCommandNotFound as fault:
            raise EnvironmentFault("git is not installed; --commit needs it") from fault
        except GitError as fault:
            raise Refused(f"{root}: is not a git checkout that git can open: {fault}") from fault

    def state(self, lock: SeriesLock, series: Series) -> Literal["pristine", "applied", "other"]:
        """What the present commit holds, whatever the working tree holds."""
        found = {path: digest(self._committed(path)) for path in lock.paths}
        if found == {path: lock.expected(path, series.upto) for path in lock.paths}:
            return "applied"
        if found == {path: entry.before for path, entry in lock.paths.items()}:
            return "pristine"
        return "other"

    def require_clean(self, lock: SeriesLock, branch: str) -> None:
        """Refuse what would get lost or mixed into the commits."""
        committed = {path: digest(self._committed(path)) for path in lock.paths}
        for path, entry in lock.paths.items():
            if committed[path] != entry.before:
                raise Refused(
                    f"{self.root}: {path} as committed is not as released",
                    next_step="Check out the tag of the release.",
                )
        if self._git("diff", "--cached", "--name-only"):
            raise Refused(
                f"{self.root}: has staged changes, which would get mixed into the commits",
                next_step="Commit or unstage them.",
            )
        if branch in [head.name for head in self._repo.heads]:
            raise Refused(
                f"{self.root}: the branch {branch} exists already",
                next_step=f"Choose another with --branch, or run: git branch -D {branch}",
            )

    def commit(self, series: Series) -> list[str]:
        """Make the commits without touching branch, index or working tree; returns their ids.

        The overlay files come first, in a commit of their own, by the first patch's author. The
        committer is whom git is set up for; where it knows nobody (a build machine), the author.
        """
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            parent = self._git("rev-parse", "HEAD")
            self._git("read-tree", "HEAD", env=index)
            commits: list[str] = []
            known = self._knows_committer()
            for step in series.forward(self._committed):
                for path, content in step.files.items():
                    if content is None:
                        self._git("update-index", "--force-remove", "--", path, env=index)
                        continue
                    blob = self._git("hash-object", "-w", "--stdin", "--no-filters", data=content)
                    entry = f"{MODE},{blob},{path}"
                    self._git("update-index", "--add", "--cacheinfo", entry, env=index)
                tree = self._git("write-tree", env=index)
                if step.name == OVERLAY:
                    _, author = self._mail(series.patches[0], Path(folder))
                    message = _overlay_message(series)
                else:
                    patch = next(item for item in series.patches if item.name == step.name)
                    message, author = self._mail(patch, Path(folder))
                if not known:
                    committer = {k.replace("AUTHOR", "COMMITTER"): v for k, v in author.items()}
                    author = author | committer
                command = ("commit-tree", tree, "-p", parent)
                parent = self._git(*command, data=message.encode(), env=author)
                commits.append(parent)
        return commits

    def switch(self, branch: str, commit: str, series: Series) -> None:
        """Point a new branch at ``commit`` and stand on it; the files are there already."""
        self._git("update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))
        self._git("symbolic-ref", "HEAD", f"refs/heads/{branch}")
        self._git("reset", "--quiet", commit, "--", *series.paths)

    def _mail(self, patch: Patch, folder: Path) -> tuple[str, dict[str, str]]:
        """Message and author as ``git am`` would read them: by git's own parser."""
        message, rest = folder / "message", folder / "rest"
        headers = self._git("mailinfo", str(message), str(rest), data=patch.content)
        found = dict(line.partition(": ")[::2] for line in headers.splitlines() if line)
        text = f"{found['Subject']}\n\n{message.read_text(encoding='utf-8')}"
        clean = self._git("stripspace", data=text.encode())
        return clean + "\n", {
            "GIT_AUTHOR_NAME": found["Author"],
            "GIT_AUTHOR_EMAIL": found["Email"],
            "GIT_AUTHOR_DATE": found["Date"],
        }

    def _knows_committer(self) -> bool:
        try:
            self._git("var", "GIT_COMMITTER_IDENT")
        except EnvironmentFault:
            return False
        return True

    def _committed(self, path: str) -> bytes | None:
        try:
            blob = self._repo.head.commit.tree / path
        except KeyError:
            return None
        except ValueError as fault:
            raise Refused(f"{self.root}: has no commit yet") from fault
        data: bytes = blob.data_stream.read()
        return data

    def _git(
        self,
        command: str,
        *words: str,
        data: bytes | None = None,
        env: dict[str, str] | None = None,
    ) -> str:
        stream = None if data is None else _stdin(data)
        try:
            answer = self._repo.git.execute(
                ["git", command, *words],
                istream=stream,
                env=env or {},
            )
        except GitCommandError as fault:
            reason = str(fault.stderr).strip().removeprefix("stderr: ").strip("' \n")
            raise EnvironmentFault(
                f"{self.root}: git {command} failed: {reason}",
                next_step="Set user.name and user.email if git asks for them.",
            ) from fault
        finally:
            if stream is not None:
                stream.close()
        return str(answer)


def _stdin(data: bytes) -> io.BufferedRandom:
    """A real file, as a child's standard input must be."""
    stream = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
    stream.write(data)
    stream.seek(0)
    return stream


def _overlay_message(series: Series) -> str:
    files = "\n".join(f"- {item.path}" for item in series.overlay)
    return f"Add the overlay files of {series.release}\n\n{files}\n"
