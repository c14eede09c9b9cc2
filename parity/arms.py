"""Arms: the two sides of a comparison, each a folder from which the code under test is imported."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import git
from .git import Refused
from .verdict import Exit


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    ``root`` is the folder that stands first on the import path.  ``repository`` arms come from a
    commit (or from the working tree, then ``dirty`` says whether it differs from ``commit``);
    ``import_root`` arms are folders given by the user.
    """

    name: str
    kind: str
    root: str
    ref: str = ""
    commit: str = ""
    dirty: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def project_root() -> Path:
    """The nearest folder, from the current one upwards, that holds a pyproject.toml."""
    here = Path.cwd().resolve()
    holders = (folder for folder in (here, *here.parents) if (folder / "pyproject.toml").is_file())
    return next(holders, here)


def workspace(project: Path) -> Path:
    """The folder for what parity writes; it tells git to ignore it."""
    folder = project / ".parity"
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder


def working_tree(project: Path) -> Arm:
    """The files of a project as they are now, not copied: for a replay."""
    return Arm("head", "repository", str(project), ref="working tree")


@contextmanager
def revision(project: Path, ref: str) -> Iterator[Arm]:
    """One commit of the repository that holds ``project``, checked out in a private folder.

    Raises:
        Refused: no git, no repository, or an unknown ref.
    """
    top = git.top_level(project)
    commit = git.commit(top, ref, "ref")
    trees = Path(tempfile.mkdtemp(prefix="trees-", dir=workspace(project)))
    root = trees / "head" / project.resolve().relative_to(top)
    try:
        with git.worktree(top, commit, trees / "head"):
            yield Arm("head", "repository", str(root), ref, commit)
    finally:
        shutil.rmtree(trees, ignore_errors=True)


def import_roots(base: Path | None, head: Path | None) -> tuple[Arm, Arm]:
    """Two folders as arms; Refused where one is missing or both are one."""
    if base is None or head is None:
        given = "--base-root" if head is None else "--head-root"
        raise Refused(f"Expected --base-root and --head-root together but got only {given}.")
    for option, folder in (("--base-root", base), ("--head-root", head)):
        if not folder.is_dir():
            raise Refused(
                f"Expected a folder at {option} {folder} but there is none; "
                "check the path, or unpack a release there."
            )
    if base.samefile(head):
        raise Refused(
            f"Nothing compared: --base-root and --head-root are both {base.resolve()}; "
            "name two different folders.",
            Exit.NOTHING_COMPARED,
        )
    return (
        Arm("base", "import_root", str(base.resolve())),
        Arm("head", "import_root", str(head.resolve())),
    )


@contextmanager
def revisions(project: Path, base: str | None, head: str | None) -> Iterator[tuple[Arm, Arm]]:
    """Two revisions of the repository that holds ``project``, checked out in a private folder.

    Without ``head`` it is a snapshot of the working tree, without ``base`` the commit that head
    shares with the main branch.  Refs become full commit ids before anything else happens.  Asked
    for nothing and with nothing changed, both arms run one commit: that is what somebody sees who
    has just taken a change back.

    Raises:
        Refused: no git, no repository, an unknown ref, or two refs of one commit.
    """
    top = git.top_level(project)
    head_commit = git.commit(top, head or "HEAD", "head")
    base_commit = git.commit(top, base, "base") if base else git.merge_base(top, head_commit)
    private = workspace(project)  # before git is asked whether anything is untracked
    dirty = head is None and git.is_dirty(top)
    if (base or head) and base_commit == head_commit and not dirty:
        raise Refused(
            f"Nothing compared: base and head are both commit {head_commit[:12]}; "
            "change a file, or name another base, e.g. `parity gate --base HEAD~1`.",
            Exit.NOTHING_COMPARED,
        )
    inside = project.resolve().relative_to(top)
    trees = Path(tempfile.mkdtemp(prefix="trees-", dir=private))
    base_tree, head_tree = trees / "base", trees / "head"
    base_root, head_root = str(base_tree / inside), str(head_tree / inside)
    base_ref, head_ref = base or "merge-base", head or "working tree"
    files = git.worktree(top, head_commit, head_tree) if head else git.snapshot(top, head_tree)
    try:
        with git.worktree(top, base_commit, base_tree), files:
            yield (
                Arm("base", "repository", base_root, base_ref, base_commit),
                Arm("head", "repository", head_root, head_ref, head_commit, dirty),
            )
    finally:
        shutil.rmtree(trees, ignore_errors=True)
