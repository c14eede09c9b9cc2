"""The arms of a command: two revisions in private folders, and head's new tests on base's code."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from .. import git
from ..arms import one_commit, workspace
from ..git import Refused
from .results import Results
from .run import Place, Ran, run


@dataclass(frozen=True)
class Trees:
    """Two revisions, checked out, and where to put what a run of them leaves."""

    top: Path
    base: Path
    head: Path
    base_commit: str
    inside: Path
    folder: Path
    changed: tuple[str, ...]

    def place(self, name: str, tree: Path) -> Place:
        """Where a command runs in one of the trees."""
        folder = self.folder / name
        return Place(name, tree, tree / self.inside, folder, self.top, self.changed)


@contextmanager
def trees(repo: Path, base: str | None, head: str | None) -> Iterator[Trees]:
    """Base and head in private folders; without ``head`` the files as they are now.

    The folders lie outside the checkout, whose own pytest settings would else reach into an arm
    that has none.
    """
    if not repo.is_dir():
        raise Refused(f"Expected --repo to name a folder but there is none at {repo}.")
    top = git.top_level(repo)
    head_commit = git.commit(top, head or "HEAD", "head")
    base_commit = git.commit(top, base, "base") if base else git.merge_base(top, head_commit)
    if base_commit == head_commit and (head or not git.is_dirty(top)):
        raise one_commit(head_commit)
    folder = (
        workspace(top) / "triage" / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6}"
    )
    private = Path(tempfile.mkdtemp(prefix="parity-triage-")).resolve()
    try:
        with ExitStack() as stack:
            stack.enter_context(git.worktree(top, base_commit, private / "base"))
            stack.enter_context(git.worktree(top, head_commit, private / "head"))
            if head is None:
                _lay_over(top, private / "head")
            inside = repo.resolve().relative_to(top)
            pair = (private / "base", private / "head")
            revisions = [base_commit, *([head_commit] if head else [])]
            changed = git.git(top, "diff", "--name-only", "-z", *revisions).split("\0")
            yield Trees(top, *pair, base_commit, inside, folder, tuple(filter(None, changed)))
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _lay_over(top: Path, tree: Path) -> None:
    """Bring a checkout of HEAD to the files as they are now; git inside of it still works."""
    for name in git.git(tree, "ls-files", "-z").split("\0"):
        if (tree / name).is_symlink() or (tree / name).is_file():
            (tree / name).unlink()
    files = tree.with_name("files")
    with git.snapshot(top, files):
        shutil.copytree(files, tree, symlinks=True, dirs_exist_ok=True)


def perform(trees: Trees, command: list[str], deadline: float) -> tuple[Results, Results, Results]:
    """Outcomes of base, of head, and of head's new failing tests on base's code."""
    before = _run(trees.place("base", trees.base), command, deadline)
    after = _run(trees.place("head", trees.head), command, deadline)
    asked = [
        outcome.id
        for name, outcome in after.results.items()
        if outcome.status == "failed" and name not in before.results and "::" in outcome.id
    ]
    crossed = _cross(trees, command, deadline, after, asked) if asked else {}
    return before.results, after.results, crossed


def _cross(
    trees: Trees, command: list[str], deadline: float, after: Ran, asked: list[str]
) -> Results:
    """Run head's new failing tests on base's code; what cannot be imported there says nothing."""
    tree = trees.base.with_name("cross")
    with git.worktree(trees.top, trees.base_commit, tree):
        for root in {session.rootdir for session in after.sessions if session.rootdir}:
            _bring_tests(Path(root), trees.head, tree, {name.split("::")[0] for name in asked})
        try:
            crossed = _run(trees.place("cross", tree), command, deadline, asked)
        except Refused:
            return {}
    return {name: crossed.results[name] for name in crossed.results if name in after.results}


def _bring_tests(root: Path, head: Path, tree: Path, files: set[str]) -> None:
    """Copy test files, and the conftest.py files above them, from head's tree."""
    if not root.is_relative_to(head):
        return
    for file in files:
        path = (root / file).relative_to(head)
        above = [folder / "conftest.py" for folder in path.parents]
        for name in (path, *above):
            if (head / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(head / name, tree / name)


def _run(place: Place, command: list[str], deadline: float, only: list[str] | None = None) -> Ran:
    click.echo(f"Running the command on {place.name}; it prints into {place.log}", err=True)
    return run(place, command, deadline, only)
