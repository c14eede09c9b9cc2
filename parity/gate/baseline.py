"""A baseline: the recorded results of one arm, which stand for running it again.

One file of lines: a header that says what the results depend on, then one for each case, and last,
in a finished file, how many they are.  Every line begins with the SHA-256 of its JSON text, so that
nothing damaged is believed.
``.parity/cache/base`` keeps such files for bases that ran before; `parity baseline save` writes one
to take elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..case import Case
from ..record import Record
from ..spec import OpSpec
from .fingerprint import contract

SCHEMA_VERSION = 2
KEPT = 20  # files of the cache; older ones are of bases that nobody compares with any more
CERTAIN = ("passed", "failed", "unsupported")  # a lost or slow process may have had other reasons


@dataclass
class Baseline:
    """Records by case id, each with its case and the digest of the contract that judged it."""

    path: Path
    header: dict[str, Any]
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    damaged: tuple[int, ...] = ()  # numbers of lines whose records are lost
    whole: bool = False  # it ends with the number of its records, as a finished file does

    def record(self, spec: OpSpec, case: Case) -> Record | None:
        """The record of a case under this very contract, or None."""
        entry = self.entries.get(case.id)
        if entry is None or entry["contract"] != contract(spec):
            return None
        return replace(Record.from_dict(entry["record"]), arm="base")

    def add(self, spec: OpSpec, case: Case, record: Record) -> None:
        """Add a record, in one write, so that two gates may add to one file."""
        entry = {"contract": contract(spec), "case": case.to_dict(), "record": record.to_dict()}
        self.entries[case.id] = entry
        with self.path.open("ab", buffering=0) as file:
            file.write(_line(entry))

    def move(self, path: Path) -> None:
        """Say in a last line how many records there are, and give the file its name, all of it on
        the disk: cut at the end of a line it would be damaged in none."""
        with self.path.open("ab", buffering=0) as file:
            file.write(_line({"records": len(self.entries)}))
            os.fsync(file.fileno())
        self.path.replace(path)


def create(path: Path, header: dict[str, Any]) -> Baseline:
    """A new file without records; an older one of that name is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(_line({"schema_version": SCHEMA_VERSION} | header))
    temporary.replace(path)
    return Baseline(path, header)


def read(path: Path) -> Baseline:
    """A baseline less its damaged lines; raises ValueError if it has no header to trust."""
    try:
        first, *lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ValueError(
            f"Expected a baseline at {path} but got {error.strerror}; "
            "record one with `parity baseline save FILE`."
        ) from error
    header = _content(first)
    if header is None or header.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"Expected a baseline with schema_version {SCHEMA_VERSION} in {path} but its first "
            "line is none; record it again with `parity baseline save FILE`."
        )
    contents = {number: _content(line) for number, line in enumerate(lines, start=2) if line}
    found = [content for content in contents.values() if content and "record" in content]
    entries = {entry["record"]["case_id"]: entry for entry in found}
    damaged = tuple(number for number, content in contents.items() if content is None)
    whole = [*contents.values()][-1:] == [{"records": len(entries)}]
    return Baseline(path, header, entries, damaged, whole)


def saved(path: Path) -> Baseline:
    """A file of `parity baseline save`; raises ValueError unless all of it is as it was written."""
    found = read(path)
    if not {"plan", "arm"} <= set(found.header):
        raise ValueError(
            f"Expected a file of `parity baseline save` at {path} but it is one of the cache; "
            "name another."
        )
    if found.damaged:
        raise ValueError(
            f"Expected {path} as `parity baseline save` wrote it but its line "
            f"{', '.join(map(str, found.damaged))} is damaged; copy it again, or record it again."
        )
    if not found.whole:
        raise ValueError(
            f"Expected {path} as `parity baseline save` wrote it, with the number of its records "
            "in its last line, but its end is cut off; copy it again, or record it again."
        )
    return found


def cache(workspace: Path, fingerprint: dict[str, str]) -> Baseline:
    """What earlier gates recorded of an arm with this fingerprint."""
    folder = workspace / "cache" / "base"
    header = {"fingerprint": fingerprint}
    path = folder / f"{hashlib.sha256(_text(header)).hexdigest()[:24]}.jsonl"
    try:
        found = read(path)
    except ValueError:
        found = create(path, header)
    path.touch()
    for old in sorted(folder.glob("*.jsonl"), key=lambda item: item.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
    return found if found.header["fingerprint"] == fingerprint else create(path, header)


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _line(content: dict[str, Any]) -> bytes:
    text = _text(content)
    return hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n"


def _content(line: bytes) -> dict[str, Any] | None:
    """What a line says, or None where it is damaged."""
    digest, _, text = line.partition(b" ")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    found: dict[str, Any] = json.loads(text)
    return found
