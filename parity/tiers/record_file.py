"""A file of another machine's records."""

from __future__ import annotations

from pathlib import Path

from ..given import given_text
from ..record import Record, read


def read_records(path: Path) -> tuple[list[Record], str]:
    """The records of a file, and what to say of a last line that a killed process left unfinished.

    Raises:
        ValueError: in one sentence, for no file, no record, or something that is no record.
    """
    advice = "write one on the other machine with `parity run --output`."
    if not path.is_file():
        raise ValueError(f"Expected records at {path} but there is no such file; {advice}")
    cut = not given_text(path).endswith("\n")
    found = list(read(path))
    if not found:
        raise ValueError(f"Expected records in {path} but it holds no whole one; {advice}")
    if not cut:
        return found, ""
    return found, f"The last line of {path} is cut off; taken are the {len(found)} before it."
