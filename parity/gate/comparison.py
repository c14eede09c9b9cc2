"""A gate in progress: every case in both arms, and the further cases that a verdict needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..case import Case
from ..isolation import Job, Worker, run_all
from ..record import Record
from ..runs import Run
from ..shrink import siblings
from ..spec import OpSpec
from ..verdict import Judgement, Verdict, findings_of, hidden, judge

Progress = Callable[[int, int], None]
SEEDS_ASKED = 100  # a check is drawn by one seed in twenty, so that 0.6 % of searches miss it


@dataclass
class Comparison:
    """A gate in progress: its arms' processes, what is planned, and the records so far."""

    run: Run
    team: list[Worker]
    jobs: list[Job]
    records: dict[str, dict[str, Record]] = field(default_factory=lambda: {"base": {}, "head": {}})
    probes: list[tuple[Record, Record]] = field(default_factory=list)

    def perform(self, progress: Progress) -> None:
        """Run every planned case in both arms; records are kept as they arrive."""
        total = len(self.jobs) * len(self.team)

        def after(record: Record) -> None:
            self.run.add(record)
            self.records[record.arm][record.case_id] = record
            progress(sum(map(len, self.records.values())), total)

        run_all(self.team, self.jobs, self.run.save_case, after)

    def pair(self, spec: OpSpec, case: Case) -> tuple[Record, Record]:
        """Base's and head's record of one more case."""
        found: dict[str, Record] = {}

        def after(record: Record) -> None:
            self.run.add_probe(record)
            found[record.arm] = record

        run_all(self.team, [(spec, case)], self.run.save_case, after)
        return found["base"], found["head"]

    def judgements(self) -> list[Judgement]:
        """The verdicts on every planned case."""
        ops = {case.id: case.op for _, case in self.jobs}
        return judge(ops, self.records["base"], self.records["head"], self.probes)

    def ask_siblings(self) -> None:
        """Look whether an arm that got stuck in a case shows the other's failure in a sibling.

        Once for each op and family: without it, a change that lets cases run further would be
        blamed for whatever they meet there.
        """
        jobs = {case.id: (spec, case) for spec, case in self.jobs}
        asked = set()
        for item in self.judgements():
            base, head = (self.records[arm].get(item.case_id) for arm in ("base", "head"))
            if base is None or head is None or not hidden(item, base, head):
                continue
            question = (item.op, item.family, item.verdict)
            if question not in asked:
                asked.add(question)
                spec, case = jobs[item.case_id]
                self._probe(spec, case, item)

    def _probe(self, spec: OpSpec, case: Case, item: Judgement) -> None:
        """Run siblings until the arm that got stuck shows the failure.

        A check that calls the candidate again is drawn by the seed, so several seeds are asked.
        """
        stuck = 0 if item.verdict == Verdict.REGRESSION else 1
        seeds = range(SEEDS_ASKED) if ":" in item.family else range(1)
        for sibling in siblings(spec, case):
            for step in seeds:
                pair = self.pair(spec, replace(sibling, seed=(sibling.seed + step) % 2**16))
                self.probes.append(pair)
                if any(f.family == item.family for f in findings_of(pair[stuck])):
                    return
                if pair[stuck].status == "unsupported":
                    break
