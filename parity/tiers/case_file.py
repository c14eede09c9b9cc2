"""Files of cases: JSON documents one after another, one a line or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..case import Case
from ..given import given_text


def read_cases(path: Path) -> list[Case]:
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
    found = {case.id: case for case in map(Case.from_dict, _documents(text, path))}
    if not found:
        raise ValueError(f"Expected at least one case in {path} but it holds none.")
    return list(found.values())


def _documents(text: str, path: Path) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"Expected JSON documents in {path} but got {error}; write each case whole."
            ) from error
        yield document
