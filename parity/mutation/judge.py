"""Judge mutants by the planned cases, with the verdicts of the gate."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Event

from ..isolation import Job
from ..judging import Families, classify, families
from ..provenance import digest
from ..record import Record
from ..verdict import EXIT_CODES, Exit
from .baseline import Baseline
from .hunt import Lab
from .mutants import Mutant
from .outcomes import Outcome
from .scratch import planted


@dataclass(frozen=True)
class Cases:
    """The judge that counts: the planned cases, by the verdicts of the gate.

    ``part`` is which of them: ``first`` those that differ most, ``others``, or ``all``.
    """

    lab: Lab
    sources: Mapping[str, bytes]
    harness: str
    jobs: list[Job]
    base: Baseline
    part: str = "all"

    @cached_property
    def seen(self) -> Families:
        """The failures that the code shows without a mutant."""
        return families(self.base.records.values())

    def key(self, mutant: Mutant) -> str:
        """A digest of all that decides: code, cases, harness."""
        first, others = self.base.covering(mutant, self.jobs)
        jobs = first + others
        code = [digest((self.lab.code / file).read_bytes()) for file in self.base.files(jobs)]
        cases = [case.id for _, case in jobs]
        parts = (self.part, mutant.id, self.harness, *code, *cases)
        return digest("\0".join(parts).encode())

    def prepare(self) -> None:
        """The cases have run on the code as it is."""

    def __call__(self, mutant: Mutant, stop: Event) -> Outcome:
        """Run the cases that execute the mutant until one fails."""
        first, others = self.base.covering(mutant, self.jobs)
        if not first:
            return Outcome("survived", reason="no case executes this line")
        jobs = {"first": first, "others": others, "all": first + others}[self.part]
        before = len(first) if self.part == "others" else 0
        content = mutant.apply(self.sources[mutant.file])
        doubt = ""
        with planted(self.lab.code, mutant.id, mutant.file, content) as root:
            started = time.monotonic()
            with self.lab.worker(root) as worker:
                for count, (spec, case) in enumerate(jobs, start=before + 1):
                    if stop.is_set():
                        raise InterruptedError
                    record = worker.outcome(worker.run(spec, case), case)
                    end = self._judged(record)
                    if end.status != "survived":
                        seconds = round(time.monotonic() - started, 3)
                        return replace(end, cases=count, seconds=seconds)
                    doubt = doubt or end.reason
        return Outcome("survived", reason=doubt, cases=before + len(jobs))

    def _judged(self, record: Record) -> Outcome:
        """What the gate says of a mutant's record, the code without it being base."""
        base = self.base.records[record.case_id]
        found = classify(record.op, record.case_id, base, record, self.seen, {})
        for item in found:
            if EXIT_CODES[item.verdict] == Exit.REGRESSION:
                status = "timeout" if record.status == "timeout" else "killed"
                check = item.signature.partition(" | ")[0] or "capability"
                return Outcome(status, record.op, check, record.case_id, item.sentence)
        known = {hazard.signature for hazard in base.hazards}
        for hazard in record.hazards:
            if hazard.signature not in known:
                return Outcome("killed", record.op, hazard.check, record.case_id, hazard.sentence)
        doubts = [item for item in found if EXIT_CODES[item.verdict] == Exit.INCONCLUSIVE]
        return Outcome("survived", reason=doubts[0].sentence if doubts else "")
