"""Files that a user names for results: refused before any work where they cannot be written."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from .record import json_text, write_text


class ExportFile(click.Path):
    """The type of an option that names such a file; ``dash`` allows - for standard output, and
    ``special`` a pipe or a device, which what is renamed into its place would destroy."""

    def __init__(self, *, dash: bool = False, special: bool = True) -> None:
        super().__init__(path_type=Path, allow_dash=dash)
        self.name = "file"
        self.special = special

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path; ValueError where no file could be written there."""
        path: Path = super().convert(value, param, ctx)  # type: ignore[assignment]  # path_type
        if not (self.allow_dash and str(path) == "-"):
            refuse_unwritable(path)
        if _is_special(path) and not self.special:
            raise ValueError(
                f"Expected a file at {path} but it is a pipe or a device; name another file."
            )
        return path


def refuse_unwritable(path: Path) -> None:
    """ValueError where no file could be written at ``path``; a missing folder can be made."""
    with _refusing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not _is_special(path):
            _write_below(path.parent, path.name)


def refuse_unwritable_folder(folder: Path, option: str) -> None:
    """The same for files in a folder, which ``option`` names."""
    with _refusing(f"in {folder}", f"name another folder with {option}"):
        _write_below(folder, "parity")


def _write_below(folder: Path, name: str) -> None:
    """Make a file and remove it again, in the folder or, if that is missing, in the next above."""
    absolute = folder.absolute()
    there = next(above for above in (absolute, *absolute.parents) if above.exists())
    with tempfile.NamedTemporaryFile(dir=there, prefix=f".{name}."):
        pass


def export_text(path: Path, text: str) -> None:
    """Write such a file whole or not at all; ValueError where that cannot be done."""
    with _refusing(path):
        if _is_special(path):  # a name for it can be had once only
            path.write_text(text, encoding="utf-8")
        else:
            write_text(path, text)


def export_json(path: Path, document: Any) -> None:
    """The same for a JSON document."""
    export_text(path, json_text(document))


def _is_special(path: Path) -> bool:
    """Whether it is a pipe or a device, in whose place no file may come."""
    return path.exists() and not path.is_file()


@contextmanager
def _refusing(where: str | Path, advice: str = "name another file") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"Expected to write {where} but the system says: {error.strerror}; {advice}."
        ) from error
