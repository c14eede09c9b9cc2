"""Which cases a night runs, and the rows that its records come to.

Fixed cases are the same every night, so that two nights can be compared.  Fresh ones differ from
night to night and find what no earlier night looked at.  Remembered ones are the simplest case of
every failure the history knows: they tell whether it is still there.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from random import Random
from statistics import mean, median

from ..case import Case
from ..corpus import kept
from ..generate import draw, is_legal, plan
from ..judging import findings_of
from ..profiles import Profile
from ..record import Finding, Record
from ..shrink import weight
from ..spec import OpSpec
from ..triage.signature import normalised
from .night import Failure, Key, Measure, Missing, Night, Passed, Row, Total, rank

ANSWERS = ("passed", "failed", "crashed", "timeout")


@dataclass(frozen=True)
class Search:
    """The cases of a night, by op; ``lost`` are remembered ones that cannot run any more."""

    fixed: dict[str, list[Case]]
    fresh: dict[str, list[Case]]
    remembered: dict[Key, Case]
    lost: list[Missing]

    @property
    def cases(self) -> list[Case]:
        """Every case once: what failed before comes first, then the fixed ones."""
        groups = (self.remembered.values(), *self.fixed.values(), *self.fresh.values())
        return list({case.id: case for group in groups for case in group}.values())


def search(
    root: Path,
    specs: Sequence[OpSpec],
    profile: Profile,
    nights: Iterable[Night],
    draws: str,
) -> Search:
    """The cases of one night; ``draws`` is what the fresh ones follow from, and ``root`` the folder
    of the code under test, whose kept cases are held to its own contracts.

    Raises ValueError for a kept case that its contract no longer allows.
    """
    by_name = {spec.name: spec for spec in specs}
    fixed = {s.name: _unique([*kept(root, s), *plan(s, profile.planned, 0)]) for s in specs}
    fresh = {spec.name: _fresh(spec, profile.generated, draws) for spec in specs}
    remembered, lost = {}, []
    for key, case in _simplest(nights).items():
        spec = by_name.get(case.op)
        reason = is_legal(spec, case) if spec else "No contract has this name any more."
        if reason:
            lost.append(Missing(case.op, f"Case {case.id} of an earlier failure: {reason}", 1))
        else:
            remembered[key] = case
    return Search(fixed, fresh, remembered, lost)


def _unique(cases: Iterable[Case]) -> list[Case]:
    return list({case.id: case for case in cases}.values())


def _fresh(spec: OpSpec, count: int, draws: str) -> list[Case]:
    random = Random(f"{spec.name}/{draws}")
    return _unique(draw(spec, random) for _ in range(count))


def _simplest(nights: Iterable[Night]) -> dict[Key, Case]:
    found: dict[Key, Case] = {}
    for night in nights:
        for key, failure in night.failures().items():
            case = Case.from_dict(json.loads(failure.case))
            found[key] = min(found.get(key, case), case, key=weight)
    return found


def rows(
    search: Search, records: Mapping[str, Record], seconds: Mapping[str, float]
) -> Iterator[Row]:
    """What the history keeps of a night; ``records`` and ``seconds`` go by case id."""
    failures = _failures(search, records)
    for op, cases in search.fixed.items():
        yield _total(op, cases, records)
        pairs = [(case, records[case.id]) for case in cases if case.id in records]
        yield from _measures(op, pairs, seconds)
    yield from failures.values()
    for key, case in search.remembered.items():
        record = records.get(case.id)
        if key not in failures and record is not None and record.status in ANSWERS:
            yield Passed(*key)
    yield from search.lost
    yield from _missing(search, records)


def _total(op: str, cases: list[Case], records: Mapping[str, Record]) -> Total:
    statuses = Counter(records[case.id].status for case in cases if case.id in records)
    digest = hashlib.sha256("\n".join(sorted(case.id for case in cases)).encode()).hexdigest()
    ran = sum(statuses[status] for status in ANSWERS)
    return Total(op, len(cases), ran, statuses["unsupported"], digest[:12])


def _measures(
    op: str, pairs: list[tuple[Case, Record]], seconds: Mapping[str, float]
) -> Iterator[Measure]:
    """Over the fixed cases: mean headroom of every tensor and dtype, mean costs, median time.

    Another dtype has another bound, and one that its last rounding uses up would hide the others.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case, record in pairs:
        for name, share in record.headroom.items():
            if isfinite(share):
                found["headroom", f"{name} in {case.dtype}"].append(share)
        for name, count in record.cost.items():
            found["cost", name].append(count)
        if record.traffic:
            moved = (counts["loaded"] + counts["stored"] for counts in record.traffic.values())
            found["cost", "bytes moved"].append(sum(moved))
    for (of, name), values in found.items():
        yield Measure(op, of, name, mean(values))
    times = [seconds[record.case_id] for _, record in pairs if record.case_id in seconds]
    if times:
        yield Measure(op, "time", "seconds of a case", median(times))


def _failures(search: Search, records: Mapping[str, Record]) -> dict[Key, Failure]:
    shown: dict[Key, list[tuple[Case, Finding]]] = {}
    for case in search.cases:
        found = findings_of(records[case.id]) if case.id in records else ()
        for finding in {f.family: f for f in found}.values():
            shown.setdefault((case.op, finding.family), []).append((case, finding))
    fixed = {case.id for cases in search.fixed.values() for case in cases}
    return {key: _failure(key, pairs, fixed) for key, pairs in shown.items()}


def _failure(key: Key, pairs: list[tuple[Case, Finding]], fixed: set[str]) -> Failure:
    case, finding = min(pairs, key=lambda pair: weight(pair[0]))
    among = [found for other, found in pairs if other.id in fixed]
    band = max((found.band for found in among), key=rank, default="")
    about = {"signature": finding.signature, "sentence": finding.sentence}
    return Failure(*key, band, **about, case_id=case.id, case=case.to_json(), cases=len(among))


def _missing(search: Search, records: Mapping[str, Record]) -> Iterator[Missing]:
    """Cases without an answer, by op and reason; reasons that differ in numbers only are one."""
    alike: dict[tuple[str, str], list[str]] = {}
    for case in search.cases:
        for reason in _unanswered(records.get(case.id)):
            alike.setdefault((case.op, normalised(reason)), []).append(reason)
    for (op, _), reasons in alike.items():
        yield Missing(op, reasons[0], len(reasons))


def _unanswered(record: Record | None) -> list[str]:
    """Why a case, or a check of it, has no answer."""
    if record is None:
        return ["The night ended before its turn."]
    if record.status not in ANSWERS:
        return [f"{record.status}: {record.reason}"]
    return record.gaps()
