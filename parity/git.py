"""The few questions to git that an arm needs; nothing here touches the user's checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .verdict import Exit

MAIN_BRANCHES = ("main", "master", "origin/main", "origin/master")
# A hook that runs parity hands these on; they would point git at the user's own index.
_INHERITED = {"GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX", "GIT_COMMON_DIR"}


class Refused(Exception):
    """A comparison that cannot be made, in one sentence, and the exit code that says so."""

    def __init__(self, sentence: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(sentence)
        self.code = code


class GitError(Exception):
    """A git command that failed; the text is git's own last line."""


def git(folder: Path, *arguments: str) -> str:
    """The output of one git command in a folder.

    Raises:
        Refused: git is not installed.
        GitError: the command failed.
    """
    environment = {name: text for name, text in os.environ.items() if name not in _INHERITED}
    command = ["git", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Refused(
            "Expected git on PATH but found none; install git, or name two folders with "
            "--base-root and --head-root."
        ) from error
    if done.returncode:
        raise GitError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return done.stdout.strip("\n")


def top_level(folder: Path) -> Path:
    """The root of the checkout that holds a folder; Refused where there is none."""
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except GitError as error:
        raise Refused(
            f"Expected a git repository at {folder} but git says {str(error)!r}; run parity in a "
            "checkout, or name two folders with --base-root and --head-root."
        ) from error


def commit(folder: Path, ref: str, role: str) -> str:
    """The full id of the commit that a ref names; Refused where git knows none."""
    try:
        wanted = f"{ref}^{{commit}}"
        return git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", wanted)
    except GitError as error:
        if ref == "HEAD":
            raise Refused(
                f"Expected a commit in {folder} but its branch has none yet; commit once, then "
                "compare what you change."
            ) from error
        raise Refused(
            f"Expected --{role} to name a commit but git knows no {ref!r}; "
            f"{_deepen(folder) or 'list the branches with `git branch --all`'}."
        ) from error


def merge_base(folder: Path, head: str) -> str:
    """The newest commit that a head shares with the main branch; Refused where there is none."""
    for branch in MAIN_BRANCHES:
        try:
            git(folder, "rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}")
        except GitError:
            continue
        return _shared(folder, head, branch)
    raise Refused(
        f"Expected a main branch to compare with ({', '.join(MAIN_BRANCHES)}) but found none; "
        f"{_deepen(folder) or 'name the base with --base REF'}."
    )


def _shared(folder: Path, head: str, branch: str) -> str:
    try:
        return git(folder, "merge-base", head, branch)
    except GitError as error:
        raise Refused(
            f"Expected {head[:12]} and {branch} to share a commit but found none; "
            f"{_deepen(folder) or 'name the base with --base REF'}."
        ) from error


def _deepen(folder: Path) -> str:
    shallow = git(folder, "rev-parse", "--is-shallow-repository") == "true"
    return "this clone is shallow, so run `git fetch --unshallow` first" if shallow else ""


def is_dirty(folder: Path) -> bool:
    """Whether a checkout holds changes that no commit has, untracked files included."""
    return bool(git(folder, "status", "--porcelain"))


def commits_between(top: Path, first: str, last: str) -> list[str] | None:
    """The commits after one and up to another, the newest first, a line each; None where git does
    not know both."""
    try:
        listed = git(top, "log", "--no-decorate", "--format=%h %s", f"{first}..{last}", "--")
    except GitError:
        return None
    return listed.splitlines()


def suspects(top: Path, bad: str, good: list[str]) -> list[str]:
    """The commits that may be the first bad one, those first whose test would rule out most."""
    listed = git(top, "rev-list", "--bisect-all", bad, *(f"^{commit}" for commit in good), "--")
    return [line.split()[0] for line in listed.splitlines()]


@contextmanager
def worktree(top: Path, commit_id: str, tree: Path) -> Iterator[None]:
    """A detached checkout of one commit in a private folder, removed in the end.

    Submodules that the user's own checkout holds are checked out with it.
    """
    git(top, "worktree", "prune")  # entries of checkouts whose process was killed
    try:
        git(top, "worktree", "add", "--quiet", "--force", "--detach", str(tree), commit_id)
    except GitError as error:
        raise Refused(
            f"Expected a checkout of {commit_id[:12]} in {tree} but git says {str(error)!r}; "
            "free some disk space, or run `git worktree prune`.",
            Exit.FAULT,
        ) from error
    try:
        with ExitStack() as stack:
            for name, commit_of_it in _submodules(top, commit_id):
                stack.enter_context(worktree(top / name, commit_of_it, tree / name))
            yield
    finally:
        git(top, "worktree", "remove", "--force", "--force", str(tree))


def _submodules(top: Path, commit_id: str) -> Iterator[tuple[str, str]]:
    """Path and commit of every submodule of a commit that the user's checkout holds."""
    for line in git(top, "ls-tree", "-r", "-z", commit_id).split("\0"):
        described, _, name = line.partition("\t")
        if not described.startswith("160000 ") or not (top / name / ".git").exists():
            continue
        wanted = described.split()[2]
        try:
            git(top / name, "cat-file", "-e", f"{wanted}^{{commit}}")
        except GitError as error:
            raise Refused(
                f"Expected commit {wanted[:12]} of submodule {name} but its checkout lacks it; "
                f"run `git -C {name} fetch origin {wanted}` in {top}."
            ) from error
        yield name, wanted


@contextmanager
def snapshot(top: Path, tree: Path) -> Iterator[None]:
    """A copy of every file of a checkout that git tracks or would track, removed in the end."""
    try:
        _copy(top, tree)
        yield
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def _copy(top: Path, tree: Path) -> None:
    tree.mkdir(parents=True, exist_ok=True)
    listed = git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in sorted(set(listed.split("\0")) - {""}):
        source, target = top / name, tree / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        elif (source / ".git").exists():
            _copy(source, target)
