"""Arms: the two sides of a comparison, each a folder from which the code under test is imported."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import git
from .git import Refused
from .locks import locked, taken
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
    """The folder for what parity writes, with its folder of runs; it tells git to ignore it.

    Refused where it cannot be.
    """
    folder = project / ".parity"
    ignore = folder / ".gitignore"
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise Refused(
            f"Expected to write in {folder} but the system says: {error.strerror}: "
            f"{error.filename}; make it a folder of yours, or move what is there away."
        ) from error
    return folder


def working_tree(project: Path) -> Arm:
    """The files of a project as they are now, not copied: for a replay."""
    return Arm("head", "repository", str(project), ref="working tree")


def import_root(name: str, folder: Path) -> Arm:
    """A folder as an arm; Refused where there is none."""
    if not folder.is_dir():
        raise Refused(
            f"Expected a folder to import {name} from at {folder} but there is none; "
            "check the path, or unpack a release there."
        )
    return Arm(name, "import_root", str(folder.resolve()))


def import_roots(base: Path | None, head: Path | None) -> tuple[Arm, Arm]:
    """Two folders as arms; Refused where one is missing or both are one."""
    if base is None or head is None:
        given = "--base-root" if head is None else "--head-root"
        raise Refused(f"Expected --base-root and --head-root together but got only {given}.")
    arms = import_root("base", base), import_root("head", head)
    if base.samefile(head):
        raise Refused(
            f"Nothing compared: --base-root and --head-root are both {base.resolve()}; "
            "name two different folders.",
            Exit.NOTHING_COMPARED,
        )
    return arms


def one_commit(commit: str) -> Refused:
    """What to raise where base and head are one commit, and no file differs from it."""
    return Refused(
        f"Nothing compared: base and head are both commit {commit[:12]}; change a file, or name "
        "another base, e.g. `--base HEAD~1`.",
        Exit.NOTHING_COMPARED,
    )


@contextmanager
def revisions(
    project: Path, base: str | None, head: str | None, repository: Path | None = None
) -> Iterator[tuple[Arm, Arm]]:
    """Two revisions of the repository that holds ``project``, checked out in a private folder.

    ``repository`` is another place to take them from.  Without ``head`` it is a snapshot of the
    working tree, without ``base`` the commit that head shares with the main branch.  Refs become
    full commit ids before anything else happens.  Asked for nothing and with nothing changed, both
    arms run one commit: that is what somebody sees who has just taken a change back.

    Raises:
        Refused: no git, no repository, an unknown ref, or two refs of one commit.
    """
    place = repository or project
    top = git.top_level(place)
    head_commit = git.commit(top, head or "HEAD", "head")
    base_commit = git.commit(top, base, "base") if base else git.merge_base(top, head_commit)
    workspace(project)  # before git is asked whether anything is untracked
    dirty = head is None and git.is_dirty(top)
    if (base or head) and base_commit == head_commit and not dirty:
        raise one_commit(head_commit)
    with private_folder(project) as trees, ExitStack() as stack:
        yield (
            stack.enter_context(_checkout("base", place, trees, base_commit, base or "merge-base")),
            stack.enter_context(_checkout("head", place, trees, head_commit, head, dirty)),
        )


@contextmanager
def revision(
    project: Path, ref: str | None, name: str = "head", repository: Path | None = None
) -> Iterator[Arm]:
    """One revision as an arm, or a snapshot of the working tree; raises as :func:`revisions`."""
    place = repository or project
    top = git.top_level(place)
    commit = git.commit(top, ref or "HEAD", name)
    workspace(project)
    dirty = ref is None and git.is_dirty(top)
    with private_folder(project) as trees, _checkout(name, place, trees, commit, ref, dirty) as arm:
        yield arm


@contextmanager
def _checkout(
    name: str, place: Path, trees: Path, commit: str, ref: str | None, dirty: bool = False
) -> Iterator[Arm]:
    """An arm at ``commit``; without ``ref`` it is the working tree as it is now."""
    top = git.top_level(place)
    files = git.worktree(top, commit, trees / name) if ref else git.snapshot(top, trees / name)
    with files:
        root = str(trees / name / place.resolve().relative_to(top))
        yield Arm(name, "repository", root, ref or "working tree", commit, dirty)


@contextmanager
def private_folder(project: Path) -> Iterator[Path]:
    """A folder for checkouts, removed in the end; what killed processes left is removed first.

    Its lock is held as long as this process lives, whatever ends it.
    """
    home = workspace(project)
    with locked(home / "checkouts.lock"):
        for left in home.glob("trees-*/"):
            if (lock := taken(left / "lock")) is not None:
                shutil.rmtree(left, ignore_errors=True)
                lock.close()
        trees = Path(tempfile.mkdtemp(prefix="trees-", dir=home))
        lock = taken(trees / "lock")
    try:
        yield trees
    finally:
        shutil.rmtree(trees, ignore_errors=True)
        if lock is not None:
            lock.close()
