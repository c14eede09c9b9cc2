"""Cases that once failed, kept as JSON files in the repository and run before all others.

They survive changes of a test, of a strategy and of Hypothesis, since a case names none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .case import Case
from .generate import is_legal
from .record import write_json
from .spec import OpSpec

FOLDER = Path("suites") / "corpus"


def keep(project: Path, case: Case) -> Path:
    """Write a case to the corpus of a project and return its file."""
    path = project / FOLDER / case.op / f"{case.id}.json"
    write_json(path, case.to_dict())
    return path


def kept(project: Path, spec: OpSpec) -> list[Case]:
    """The kept cases of an op, ordered by id.

    Raises ValueError for a file that is no case or that the contract no longer allows: a kept case
    that silently stopped running would protect nothing.
    """
    cases = []
    for path in _files(project, spec.name):
        case = Case.from_file(path)
        if reason := is_legal(spec, case):
            raise ValueError(f"{path}: {reason} Rewrite the case for the new contract.")
        cases.append(case)
    return cases


def stored(project: Path, op: str) -> Iterator[Case]:
    """The kept cases of an op in any revision, legal or not, without files that are no case."""
    for path in _files(project, op):
        with suppress(ValueError):
            yield Case.from_file(path)


def _files(project: Path, op: str) -> list[Path]:
    return sorted((project / FOLDER / op).glob("*.json"))
