"""The folder of a run, ``.parity/runs/<id>``, and how to find a case in one again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .case import Case
from .git import Refused
from .given import given_json
from .record import Record, append, mend, read, write_json
from .verdict import Exit

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Run:
    """One run: ``run.json`` first, then cases and records as they come, ``result.json`` last."""

    folder: Path

    @property
    def id(self) -> str:
        """The name of the folder; ids sort by time."""
        return self.folder.name

    @classmethod
    def create(cls, workspace: Path) -> Run:
        """A new, empty run."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        run = cls(workspace / "runs" / f"{stamp}-{secrets.token_hex(2)}")
        run.folder.mkdir(parents=True)
        run.open()
        return run

    def open(self) -> None:
        """Make its folder, unless another process that works for this run has made it."""
        (self.folder / "cases").mkdir(parents=True, exist_ok=True)

    @property
    def workspace(self) -> Path:
        """The folder ``.parity`` that holds this run."""
        return self.folder.parent.parent

    @property
    def lock_file(self) -> Path:
        """Locked for as long as the run is at work."""
        return self.folder / "lock"

    def save_case(self, case: Case) -> None:
        """Write a case before it runs, so that it can be replayed whatever becomes of it."""
        path = self.case_file(case.id)
        if not path.exists():
            self._refuse_if_removed()
            write_json(path, case.to_dict())

    def case_file(self, case_id: str) -> Path:
        """Where a case of this run is."""
        return self.folder / "cases" / f"{case_id}.json"

    def add(self, record: Record, by: str = "") -> None:
        """Add a record of a planned case; ``by`` is who writes where several do for one arm."""
        self._append(f"records-{by or record.arm}", record)

    def add_probe(self, record: Record, by: str = "") -> None:
        """Add a record of a case that shrinking tried; it is not one of the planned cases."""
        self._append(f"probes-{by or record.arm}", record)

    def add_repeat(self, record: Record) -> None:
        """Add a record of one more run of a planned case."""
        self._append(f"repeats-{record.arm}", record)

    def _append(self, file: str, record: Record) -> None:
        self._refuse_if_removed()
        append(self.folder / f"{file}.jsonl", record)

    def recorded(self, what: str, arm: str) -> list[Record]:
        """The ``records``, ``probes`` or ``repeats`` of an arm, less a line cut off by a crash."""
        path = self.folder / f"{what}-{arm}.jsonl"
        if not path.exists():
            return []
        mend(path)
        return list(read(path))

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Write ``<name>.json`` whole or not at all."""
        self._refuse_if_removed()
        write_json(self.folder / f"{name}.json", {"schema_version": SCHEMA_VERSION} | document)

    def document(self, name: str) -> dict[str, Any]:
        """The content of ``<name>.json``, or an empty one."""
        path = self.folder / f"{name}.json"
        return given_json(path) if path.is_file() else {}

    def _refuse_if_removed(self) -> None:
        if not self.folder.is_dir():
            raise self.removed()

    def removed(self) -> Refused:
        """What to raise where somebody has removed the folder of a run that is at work."""
        return Refused(
            f"Expected the folder {self.folder} of this run but somebody has removed it, and the "
            "records in it are lost; run it again.",
            Exit.INTERRUPTED,
        )

    def records(self) -> Iterator[Record]:
        """The records of planned cases, as they were written."""
        for file in sorted(self.folder.glob("records*.jsonl")):
            yield from read(file)

    def all_records(self) -> Iterator[Record]:
        """The records of planned cases, then those of shrinking, as they were written."""
        yield from self.records()
        for file in sorted(self.folder.glob("probes*.jsonl")):
            yield from read(file)


@contextmanager
def readable(run: Run) -> Iterator[None]:
    """ValueError, in one sentence, where a file of the run is not what this version writes."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        told = f"{error} is missing" if isinstance(error, KeyError) else f"got: {error}"
        raise ValueError(
            f"Expected files that this version of parity can read in {run.folder} but {told}; "
            "run `parity gate` again."
        ) from error


def all_runs(workspace: Path) -> Iterator[Run]:
    """The runs of a workspace, the newest first."""
    folders = sorted((workspace / "runs").glob("*/"), key=lambda item: item.stat().st_mtime)
    return (Run(folder) for folder in reversed(folders))
