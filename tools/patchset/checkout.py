"""A git checkout: one commit per patch, the same trees that ``git am`` would make."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Literal

from git import Repo
from git.exc import GitCommandError, GitCommandNotFound, GitError

from patchset.errors import EnvironmentFault, Refused, UsageFault
from patchset.lock import SeriesLock, digest
from patchset.series import MODE, OVERLAY, Patch, Series
from patchset.tree import require_trust

# Set when these tools run inside a git hook; they would point git at the wrong repository.
_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")

_AGAIN = "Remove the cause, then run the same command again to finish."
_IDENTITY = "Set user.name and user.email if git asks for them."


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
        place = os.path.abspath(root)  # a "~" in front would be taken for a home
        if os.path.expandvars(place) != place:
            raise Refused(
                f"{root}: the library that calls git takes the $ in it for a variable",
                next_step="Name the checkout by a path without $.",
            )
        try:
            self._repo = Repo(place)
            answer = self._try("rev-parse", "--verify", "HEAD^{commit}")
            require_trust(root, answer[2])
            if answer[0]:
                reason = answer[2].removeprefix("fatal: ")
                raise Refused(f"{root}: has no commit yet that git can read: {reason}")
            if len(answer[1].strip()) != 40:
                raise Refused(f"{root}: its object format is not SHA-1, as vLLM's repository has")
        except GitCommandNotFound as fault:
            raise EnvironmentFault("git cannot be run, and --commit needs it") from fault
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

    def require_name(self, branch: str) -> None:
        """Refuse what git takes for no name of a branch."""
        # Not with --branch: that would also take "@{-1}", which stands for another name.
        good = self._succeeds("check-ref-format", f"refs/heads/{branch}")
        if not good or branch.startswith("-") or branch == "HEAD":
            raise UsageFault(f"--branch {branch!r}: is not a name that git takes for a branch")

    def require_working_tree(self) -> None:
        """Refuse a bare repository."""
        if self._git("rev-parse", "--is-inside-work-tree") != "true":
            raise Refused(
                f"{self.root}: git takes it for no working tree",
                next_step="See: git config --show-origin --get-regexp 'core.(bare|worktree)'.",
            )

    def require_clean(self, lock: SeriesLock, branch: str | None) -> None:
        """Refuse what would get lost or mixed into the commits, or stop git in the middle."""
        self.require_working_tree()
        for name in ("index.lock", "HEAD.lock"):
            place = self.root / self._git("rev-parse", "--git-path", name)
            if place.exists():
                raise Refused(
                    f"{place}: exists, so another git process is at work, or was killed",
                    next_step="Wait for it to end, or remove that file.",
                )
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
        if branch is not None:  # else there already, and as it must be
            self.require_free(branch)

    def require_free(self, branch: str) -> None:
        """Refuse the name of a branch that exists, or that cannot be beside one that does."""
        for head in [head.name for head in self._repo.heads]:
            if f"{head}/".startswith(f"{branch}/") or branch.startswith(f"{head}/"):
                beside = "" if head == branch else f", beside which there can be no {branch}"
                raise Refused(
                    f"{self.root}: the branch {head} exists already{beside}",
                    next_step=f"Choose another with --branch, or run: git branch -D {head}",
                )

    def made(self, lock: SeriesLock, series: Series, branch: str) -> list[str]:
        """The commits of a run that ended before it stood on ``branch``; else none."""
        ref = f"refs/heads/{branch}"
        if not self._succeeds("rev-parse", "--verify", "--quiet", ref):
            return []
        commits = self._git("rev-list", "--reverse", f"HEAD..{ref}").split()
        others = self._git("diff-tree", "-r", "-z", "--name-only", "HEAD", ref).split("\0")
        if (
            len(commits) != _steps(series)
            or not self._succeeds("merge-base", "--is-ancestor", "HEAD", ref)
            or not set(others) <= {"", *lock.paths}
            or any(
                digest(self._committed(path, ref)) != lock.expected(path, series.upto)
                for path in lock.paths
            )
        ):
            return []
        return commits

    def has_stale_index(self, series: Series) -> bool:
        """Whether a run ended after it stood on the new branch, with the old commit's index."""
        command = ("diff-index", "--cached", "--quiet")
        before = f"HEAD~{_steps(series)}"
        return not self._succeeds(*command, "HEAD", "--", *series.paths) and self._succeeds(
            *command, before, "--", *series.paths
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
                parent = self._git(*command, data=message.encode(), env=author, step=_IDENTITY)
                commits.append(parent)
        return commits

    def create(self, branch: str, commit: str) -> None:
        """Point a new branch at ``commit``."""
        self._git("update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))

    def delete(self, branch: str, commit: str) -> None:
        """Take back what ``create`` did."""
        self._git("update-ref", "-d", f"refs/heads/{branch}", commit)

    def switch(self, branch: str, series: Series) -> None:
        """Stand on the branch; the files are there already."""
        self._git("symbolic-ref", "HEAD", f"refs/heads/{branch}", step=_AGAIN)
        self.refresh_index(series)

    def refresh_index(self, series: Series) -> None:
        """Let the index hold what the present commit does."""
        self._git("reset", "--quiet", "HEAD", "--", *series.paths, step=_AGAIN)

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

    def _committed(self, path: str, commit: str = "HEAD") -> bytes | None:
        try:
            blob = self._repo.commit(commit).tree / path
        except KeyError:
            return None
        data: bytes = blob.data_stream.read()
        return data

    def _git(
        self,
        command: str,
        *words: str,
        data: bytes | None = None,
        env: dict[str, str] | None = None,
        step: str | None = None,
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
                next_step=step,
            ) from fault
        finally:
            if stream is not None:
                stream.close()
        return str(answer)

    def _succeeds(self, command: str, *words: str) -> bool:
        return self._try(command, *words)[0] == 0

    def _try(self, command: str, *words: str) -> tuple[int, str, str]:
        """Exit status, output and complaint."""
        status, out, said = self._repo.git.execute(
            ["git", command, *words], with_extended_output=True, with_exceptions=False
        )
        return int(status), str(out), str(said)


def _steps(series: Series) -> int:
    """How many commits a series makes."""
    return len(series.patches) + bool(series.overlay)


def _stdin(data: bytes) -> io.BufferedRandom:
    """A real file, as a child's standard input must be."""
    stream = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
    stream.write(data)
    stream.seek(0)
    return stream


def _overlay_message(series: Series) -> str:
    files = "\n".join(f"- {item.path}" for item in series.overlay)
    return f"Add the overlay files of {series.release}\n\n{files}\n"
