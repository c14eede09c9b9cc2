"""Files of cases: JSON documents one after another, one a line or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..case import Case
from ..given import given_text


class Located(NamedTuple):
    """A case and its file and line, in words."""

    case: Case
    where: str


def read_cases(path: Path) -> list[Located]:
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
    found: dict[str, Located] = {}
    for where, document in _documents(text, path):
        try:
            case = Case.from_dict(document)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        found.setdefault(case.id, Located(case, where))
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
