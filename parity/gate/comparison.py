"""A gate in progress: every case in both arms, and the further cases that a verdict needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..case import Case
from ..generate import sized
from ..isolation import Job, Worker, run_all
from ..judging import findings_of, hidden, judge
from ..record import Record
from ..runs import Run
from ..shrink import siblings
from ..spec import OpSpec
from ..traffic import traffic_judgements
from ..verdict import Judgement, Verdict
from .baseline import CERTAIN, Baseline
from .known import Known

Progress = Callable[[int, int], None]
SEEDS_ASKED = 100  # a check is drawn by one seed in twenty, so that 0.6 % of searches miss it


@dataclass
class Comparison:
    """A gate in progress: its arms' processes, what is planned, and the records so far.

    ``workers`` lacks base where a ``baseline`` stands for it; then nothing further can be asked of
    it.  ``doubts`` says of a case why its two records cannot be compared, and ``orphans`` are cases
    of a baseline that head's contracts do not know.
    """

    run: Run
    workers: dict[str, Worker]
    jobs: list[Job]
    known: Known = field(default_factory=Known)
    cache: Baseline | None = None
    baseline: Baseline | None = None
    records: dict[str, dict[str, Record]] = field(default_factory=lambda: {"base": {}, "head": {}})
    probes: list[tuple[Record, Record]] = field(default_factory=list)
    probed: dict[tuple[str, str], Record] = field(default_factory=dict)
    repeats: dict[tuple[str, str], list[Record]] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    orphans: dict[str, Case] = field(default_factory=dict)

    @property
    def cases(self) -> dict[str, Case]:
        """Every planned case, by its id."""
        return {case.id: case for _, case in self.jobs} | self.orphans

    @property
    def ops(self) -> dict[str, str]:
        """The op of every planned case."""
        return {case_id: case.op for case_id, case in self.cases.items()}

    @property
    def both_run(self) -> bool:
        """Whether further cases can be asked of both arms."""
        return set(self.workers) == {"base", "head"}

    def recall(self) -> None:
        """Take what is known: records of this run before it was stopped, and of base before it."""
        for arm, records in self.records.items():
            records.update((record.case_id, record) for record in self.run.recorded("records", arm))
            found = self.run.recorded("probes", arm)
            self.probed.update(((arm, record.case_id), record) for record in found)
            for record in self.run.recorded("repeats", arm):
                self.repeats.setdefault((arm, record.case_id), []).append(record)
        known = self.baseline or self.cache
        for spec, case in self.jobs if known else ():
            found_before = known.record(spec, case) if known else None
            if found_before and case.id not in self.records["base"]:
                self._keep(found_before)

    def perform(self, progress: Progress) -> None:
        """Run every planned case that has no record; records are kept as they arrive."""
        specs = {case.id: spec for spec, case in self.jobs}
        cases = self.cases
        work = [(worker, self._missing(arm)) for arm, worker in self.workers.items()]
        total, done = sum(len(jobs) for _, jobs in work), 0

        def after(record: Record) -> None:
            nonlocal done
            self._keep(record)
            if self.cache and record.arm == "base" and record.status in CERTAIN:
                self.cache.add(specs[record.case_id], cases[record.case_id], record)
            done += 1
            progress(done, total)

        run_all(work, self.run.save_case, after)

    def _missing(self, arm: str) -> list[Job]:
        known = {*self.records[arm], *self.doubts}
        return [(spec, case) for spec, case in self.jobs if case.id not in known]

    def _keep(self, record: Record) -> None:
        self.run.add(record)
        self.records[record.arm][record.case_id] = record

    def pair(self, spec: OpSpec, case: Case) -> tuple[Record, Record]:
        """Base's and head's record of one more case."""

        def after(record: Record) -> None:
            self.run.add_probe(record)
            self.probed[record.arm, record.case_id] = record

        unknown = [
            (w, [(spec, case)])
            for arm, w in self.workers.items()
            if (arm, case.id) not in self.probed
        ]
        run_all(unknown, self.run.save_case, after)
        return self.probed["base", case.id], self.probed["head", case.id]

    def repeat(self, case_id: str, runs: int) -> dict[str, list[Record]]:
        """By arm, the records of ``runs`` runs of a planned case, of fewer for a recorded base."""
        found = {arm: [self.records[arm][case_id]] for arm in self.records}
        for arm, records in found.items():
            records += self.repeats.setdefault((arm, case_id), [])
        job = next(job for job in self.jobs if job[1].id == case_id)
        missing = {arm: max(0, runs - len(found[arm])) for arm in self.workers}

        def after(record: Record) -> None:
            self.run.add_repeat(record)
            self.repeats[record.arm, case_id].append(record)
            found[record.arm].append(record)

        work = [(worker, [job] * missing[arm]) for arm, worker in self.workers.items()]
        run_all(work, self.run.save_case, after)
        return {arm: records[:runs] for arm, records in found.items()}

    def judgements(self) -> list[Judgement]:
        """The verdicts on every planned case."""
        ops = self.ops
        comparable = {case_id: op for case_id, op in ops.items() if case_id not in self.doubts}
        doubtful = [
            Judgement(Verdict.INCONCLUSIVE, ops[case_id], case_id, family=why, sentence=why)
            for case_id, why in self.doubts.items()
        ]
        judged = judge(comparable, self.records["base"], self.records["head"], self.probes)
        for name, spec in {spec.name: spec for spec, _ in self.jobs}.items():
            judged += traffic_judgements(name, sized(spec), *self.records.values())
        return doubtful + judged

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

    def unseen(self, item: Judgement) -> Judgement:
        """The judgement, or that nothing follows where the other arm never came to the check."""
        check = item.signature.partition(" | ")[0]
        base, head = (self.records[arm].get(item.case_id) for arm in ("base", "head"))
        if ":" not in check or base is None or head is None or not hidden(item, base, head):
            return item
        stuck = 0 if item.verdict == Verdict.REGRESSION else 1
        if (base, head)[stuck].status == "unsupported" or self._ran(check, item.op, stuck):
            return item
        arm = ("base", "head")[stuck]
        sentence = f"Not comparable, since {arm} came to this check in no case: {item.sentence}"
        return replace(item, verdict=Verdict.INCONCLUSIVE, sentence=sentence)

    def _ran(self, check: str, op: str, arm: int) -> bool:
        """Whether an arm ran a check on any case of an op."""
        planned = self.records[("base", "head")[arm]].values()
        records = (*planned, *(pair[arm] for pair in self.probes))
        return any(record.op == op and check in record.checks for record in records)

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
