"""What the code does without a mutant, and which of its lines each case executes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import click

from ..given import given_json
from ..isolation import DEADLINE, Job
from ..provenance import digest
from ..record import Record, write_json
from .hunt import Lab, Progress, slots
from .mutants import Mutant
from .reach import Reach, run_traced


@dataclass
class Baseline:
    """By case id: its record, and the lines it executes, by file below the root."""

    records: dict[str, Record] = field(default_factory=dict)
    reached: dict[str, Reach] = field(default_factory=dict)

    def covering(self, mutant: Mutant, jobs: list[Job]) -> tuple[list[Job], list[Job]]:
        """The cases that execute the statement of a mutant, the ops in turn: those that are held
        to a check which none before them is, and the others."""
        lines = set(range(mutant.first, mutant.last + 1))
        by_op: dict[str, list[Job]] = {}
        for spec, case in jobs:
            if lines & self.reached[case.id].get(mutant.file, set()):
                by_op.setdefault(spec.name, []).append((spec, case))
        turns = chain.from_iterable(zip_longest(*by_op.values()))
        seen: set[str] = set()
        early: list[Job] = []
        late: list[Job] = []
        for job in (job for job in turns if job is not None):
            checks = set(self.records[job[1].id].checks)
            (late if checks <= seen else early).append(job)
            seen |= checks
        return early, late

    def files(self, jobs: list[Job]) -> list[str]:
        """The files below the root that these cases execute."""
        return sorted({file for _, case in jobs for file in self.reached[case.id]})


def baseline(lab: Lab, jobs: list[Job], harness: str, kept: Path, progress: Progress) -> Baseline:
    """Run every case on the code as it is, or read that from ``kept`` if nothing has changed."""
    key = [harness, *(case.id for _, case in jobs)]
    found = _read(kept, key, lab)
    if found is None:
        found = _run(lab, jobs, progress)
        files = {file: digest((lab.code / file).read_bytes()) for file in found.files(jobs)}
        write_json(kept, {"key": key, "files": files} | _document(found))
    return found


def _run(lab: Lab, jobs: list[Job], progress: Progress) -> Baseline:
    found = Baseline()

    def run(part: list[Job]) -> None:
        with lab.worker(lab.code) as worker:
            for spec, case in part:
                call = (spec, case, "base", str(lab.code))
                future = worker.pool.schedule(run_traced, call, timeout=DEADLINE)
                if future.exception() is None:
                    found.records[case.id], found.reached[case.id] = future.result()
                else:  # lost or too slow even without a mutant: it can judge none
                    found.records[case.id] = worker.outcome(future, case)
                    found.reached[case.id] = {}
                progress(len(found.records), len(jobs))

    with ThreadPoolExecutor(slots()) as threads:
        list(threads.map(run, (jobs[i :: slots()] for i in range(slots()))))
    return found


def _document(found: Baseline) -> dict[str, Any]:
    reached = {
        case: {file: sorted(lines) for file, lines in files.items()}
        for case, files in found.reached.items()
    }
    return {"records": [r.to_dict() for r in found.records.values()], "reached": reached}


def _read(kept: Path, key: list[str], lab: Lab) -> Baseline | None:
    """What an earlier run left, if cases, harness and every file they executed are the same."""
    if not kept.is_file():
        return None
    try:
        return _kept(given_json(kept), key, lab)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        click.echo(
            f"Passed over {kept}, which is damaged ({error!r}): the cases run again and it is "
            "replaced.",
            err=True,
        )
        return None


def _kept(document: dict[str, Any], key: list[str], lab: Lab) -> Baseline | None:
    if document["key"] != key:
        return None
    for file, before in document["files"].items():
        if not (lab.code / file).is_file() or digest((lab.code / file).read_bytes()) != before:
            return None
    records = {r.case_id: r for r in map(Record.from_dict, document["records"])}
    reached = {
        case: {file: set(lines) for file, lines in files.items()}
        for case, files in document["reached"].items()
    }
    if not set(records) == set(reached) == set(key[1:]):
        raise ValueError("not every case has its record and its lines")
    return Baseline(records, reached)
