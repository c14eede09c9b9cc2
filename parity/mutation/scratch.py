"""Copies of the code under test: one as it is, and one for each mutant, which shares its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import git
from ..arms import private_folder

NOT_CODE = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".parity", ".*_cache")


@contextmanager
def copied(root: Path, project: Path) -> Iterator[Path]:
    """The files of ``root`` in a private folder of the project, removed in the end.

    In a git checkout they are what git tracks or would track.
    """
    with private_folder(project) as private:
        if _is_checkout(root):
            with git.snapshot(root, private / "code"):
                yield private / "code"
        else:
            shutil.copytree(root, private / "code", ignore=NOT_CODE, symlinks=True)
            yield private / "code"


def _is_checkout(root: Path) -> bool:
    try:
        return git.top_level(root) == root.resolve()
    except git.Refused:
        return False


@contextmanager
def planted(code: Path, name: str, file: str, content: bytes) -> Iterator[Path]:
    """A folder like ``code`` in which one file has other content, removed in the end."""
    folder = code.parent / name
    try:
        shutil.copytree(code, folder, ignore=NOT_CODE, symlinks=True, copy_function=os.link)
        (folder / file).unlink()  # the link, not the file that the others share
        (folder / file).write_bytes(content)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
