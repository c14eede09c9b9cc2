"""Files of cases: JSON documents one after another, one a line or not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..case import Case
from ..given import given_text

if TYPE_CHECKING:
    from ..spec import OpSpec


@dataclass(frozen=True)
class Listed:
    """A case and where somebody wrote it."""

    case: Case
    where: str

    def refuse_illegal(self, specs: Mapping[str, OpSpec]) -> None:
        """ValueError where no contract, or not that of its op, allows the case."""
        from ..generate import is_legal

        spec = specs.get(self.case.op)
        if spec is None:
            raise ValueError(
                f"{self.where}: Expected an op among {', '.join(specs)} but got {self.case.op!r}; "
                "name its contracts with --ops."
            )
        if reason := is_legal(spec, self.case):
            raise ValueError(f"{self.where}: {reason} Mend the case, or take it out.")


def read_cases(path: Path) -> list[Listed]:
    """The different cases of a file, in its order.

    Raises:
        ValueError: in one sentence, for no file, no case, or something that is no case.
    """
    try:
        text = given_text(path)
    except OSError as error:
        raise ValueError(
            f"Expected a file of cases at {path} but got {error.strerror}; put some together with "
            "`cat .parity/runs/<id>/cases/*.json`."
        ) from error
    found: dict[str, Listed] = {}
    for where, document in _documents(text, path):
        try:
            case = Case.from_dict(document)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        found.setdefault(case.id, Listed(case, where))
    if not found:
        raise ValueError(f"Expected at least one case in {path} but it holds none.")
    return list(found.values())


def _documents(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        line = text.count("\n", 0, at) + 1
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"Expected JSON documents in {path} but got {error}; write each case whole."
            ) from error
        yield f"{path}, line {line}", document
