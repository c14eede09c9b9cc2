"""What became of a mutant, kept so that neither a kill nor a second run loses it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .generic import GENERIC_FAULTS
from .mutants import Mutant

SCHEMA_VERSION = 1
STATUSES = ("killed", "survived", "timeout", "equivalent")


@dataclass(frozen=True)
class Outcome:
    """One mutant's end.

    ``check`` and ``case`` say what noticed it (a hang counts as noticed), ``reason`` why it is
    equivalent or what stood in the way, ``cases`` how many cases ran and ``seconds`` how long that
    took from the start of the process.
    """

    status: str
    op: str = ""
    check: str = ""
    case: str = ""
    reason: str = ""
    cases: int = 0
    seconds: float = 0.0


class Journal:
    """Outcomes by key, one JSON line each; whatever changes an outcome is in its key.

    ``damaged`` are the numbers of lines cut off by a kill, or of another version: those mutants
    run again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Outcome] = {}
        self.damaged: list[int] = []
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                document = json.loads(line)
                key = document.pop("key")
                document.pop("mutant", None)
                self.found[key] = Outcome(**document)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.damaged.append(number)

    def add(self, key: str, mutant: str, outcome: Outcome) -> None:
        """Append and flush to the disk; the id of the mutant is for whoever reads the file."""
        self.found[key] = outcome
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            line = json.dumps({"key": key, "mutant": mutant} | asdict(outcome))
            file.write("\n" * _is_cut(self.path) + line + "\n")
            file.flush()
            os.fsync(file.fileno())


def _is_cut(path: Path) -> bool:
    """Whether a kill left the last line without its end."""
    content = path.read_bytes()[-1:]
    return content not in (b"", b"\n")


def document(found: Iterable[Mutant], ends: Mapping[str, Outcome]) -> dict[str, Any]:
    """What ``--json`` writes: counts, score, classes, and every mutant that has an end by its id;
    ``left`` is how many have none, since the run was interrupted."""
    found = list(found)
    pairs = [(mutant, ends[mutant.id]) for mutant in found if mutant.id in ends]
    killed = [outcome.seconds for _, outcome in pairs if outcome.status == "killed"]
    return {
        "schema_version": SCHEMA_VERSION,
        "counts": counts(pairs),
        "left": len(found) - len(pairs),
        "score": score(pairs),
        "classes": _classes(pairs),
        "median_seconds_to_first_failure": round(median(killed), 3) if killed else None,
        "mutants": [_row(mutant, outcome) for mutant, outcome in pairs],
    }


def counts(pairs: Iterable[tuple[Mutant, Outcome]]) -> dict[str, int]:
    """How many mutants ended in each way."""
    ends = [outcome.status for _, outcome in pairs]
    return {status: ends.count(status) for status in STATUSES}


def score(pairs: Iterable[tuple[Mutant, Outcome]]) -> float | None:
    """The share of the mutants that are not equivalent which was noticed; None without any."""
    found = counts(pairs)
    noticed = found["killed"] + found["timeout"]
    real = noticed + found["survived"]
    return round(noticed / real, 4) if real else None


def _classes(pairs: list[tuple[Mutant, Outcome]]) -> dict[str, dict[str, Any]]:
    classes = {}
    for name in sorted({mutant.fault for mutant, _ in pairs}):
        own = [pair for pair in pairs if pair[0].fault == name]
        kind = "generic" if name in GENERIC_FAULTS else "named"
        classes[name] = {"kind": kind, "score": score(own)} | counts(own)
    return classes


def _row(mutant: Mutant, outcome: Outcome) -> dict[str, Any]:
    place = {
        "id": mutant.id,
        "file": mutant.file,
        "function": mutant.function,
        "class": mutant.fault,
        "line": mutant.first,
        "original": mutant.original,
        "changed": mutant.changed,
    }
    return place | asdict(outcome)
