"""What a pytest session says of its cases at its end, from what all of its workers left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from .case import Case
from .generate import coverage
from .record import Record
from .runs import Run
from .spec import OpSpec


def lines(run: Run, specs: Mapping[str, OpSpec]) -> Iterator[str]:
    """How many cases ended how, which checks were NOT_RUN, and which choices were covered.

    A case counts once, however many tests ran it, and what shrinking tried does not.
    """
    records = _by_case(run)
    counts = Counter(record.status for record in records.values())
    counts += Counter(unfinished=len(_unfinished(run)))
    shown = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    yield f"parity: {counts.total()} cases: {shown}; {run.folder}"
    gaps = Counter((record.op, gap) for record in records.values() for gap in record.gaps())
    for (name, gap), count in sorted(gaps.items()):
        yield f"parity: NOT_RUN {name}, {count} cases: {gap}"
    for name, cases in sorted(_judged(run, records).items()):
        seen, possible = coverage(specs[name], cases)
        yield f"parity: {name} covered {seen} of {possible} pairs of finite choices"


def _by_case(run: Run) -> dict[str, Record]:
    """The record of each case; one that failed in any test has failed."""
    found: dict[str, Record] = {}
    for record in run.records():
        if record.case_id not in found or found[record.case_id].status == "passed":
            found[record.case_id] = record
    return found


def _unfinished(run: Run) -> set[str]:
    """The cases without a record: their process was lost or stopped, or Parity has failed."""
    saved = {path.stem for path in run.folder.glob("cases/*.json")}
    return saved - {record.case_id for record in run.all_records()}


def _judged(run: Run, records: Mapping[str, Record]) -> dict[str, list[Case]]:
    """The cases that were compared, by op."""
    cases: dict[str, list[Case]] = {}
    for record in records.values():
        if record.status in ("passed", "failed"):
            cases.setdefault(record.op, []).append(Case.from_file(run.case_file(record.case_id)))
    return cases
