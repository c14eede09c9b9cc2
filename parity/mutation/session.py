"""One run of ``parity mutate``, from the contracts to the document of its result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from ..arms import workspace
from ..case import Case
from ..corpus import kept
from ..gate.command import CASES_PER_OP
from ..generate import plan
from ..git import Refused
from ..isolation import Job
from ..process import START
from ..progress import progress
from ..provenance import Misplaced, digest
from ..spec import OpSpec
from ..verdict import Exit
from .baseline import Baseline, baseline
from .equivalents import reviewed
from .hunt import Judge, Lab, hunt
from .judge import Cases
from .mutants import Mutant, mutants, sample
from .outcomes import Journal, Outcome, document
from .scratch import copied


@dataclass(frozen=True)
class Request:
    """What is to be mutated and judged, how: ``files`` limits both to some below the root.

    ``suites`` are pytest files that judge: instead of the cases if ``cases`` is False, else what
    the cases let live.  ``functions`` ("module:name") are mutated beside the candidates.
    ``cases_per_op`` and ``case_seed`` are the plan, by default that of the gate.
    """

    project: Path
    ops: str | None
    root: Path | None
    sample: int | None
    seed: int = 0
    cases: bool = True
    suites: tuple[Path, ...] = ()
    functions: tuple[str, ...] = ()
    cases_per_op: int = CASES_PER_OP
    case_seed: int = 0
    files: frozenset[str] | None = None


def conduct(request: Request) -> dict[str, Any]:
    """Plant, run, and return the document of the result; outcomes of an earlier run are reused.

    Raises:
        ValueError: unknown ops, a root without their code, a broken file of equivalents.
        Refused: no mutants, or no case passes without one.
    """
    with _on_the_cpu_tier():
        return _conduct(request)


@contextmanager
def _on_the_cpu_tier() -> Iterator[None]:
    """Processes that begin within this context see no GPU, on every machine."""
    chosen = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    before = {name: os.environ.get(name) for name in chosen}
    os.environ |= chosen
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _conduct(request: Request) -> dict[str, Any]:
    equivalent = reviewed(request.project)
    folder = workspace(request.project)
    (folder / "mutation").mkdir(exist_ok=True)
    with copied(request.root or request.project, folder) as code:
        lab = Lab(code, folder / "triton" / "mutants", folder / "mutation" / "workers.log")
        subject = _subject(lab, request)
        entries = [*(spec.candidate for spec in subject.specs), *request.functions]
        names = [entry.partition(":")[2] for entry in entries]
        found = mutants(subject.sources, names)
        if request.files is not None:
            found = [mutant for mutant in found if mutant.file in request.files]
        if not found:
            raise Refused("Nothing to mutate in the code of these ops.", Exit.NOTHING_COMPARED)
        if request.sample:
            found = sample(found, request.sample, request.seed)
        real = [mutant for mutant in found if mutant.id not in equivalent]
        journal = Journal(folder / "mutation" / "outcomes.jsonl")
        ends = {m.id: Outcome("equivalent", reason=equivalent.get(m.id, "")) for m in found}
        if request.cases:
            jobs = [(spec, case) for spec in subject.specs for case in _cases(request, spec)]
            ends |= _by_cases(lab, subject, jobs, real, journal)
            if any(mutant.id not in ends for mutant in real):
                return document(found, ends)
            real = [mutant for mutant in real if ends[mutant.id].status == "survived"]
        if request.suites and real:
            for name, end in _by_suites(lab, subject, request.suites, real, journal).items():
                ends[name] = end if end.status != "survived" or not request.cases else ends[name]
    return document(found, ends)


def _cases(request: Request, spec: OpSpec) -> list[Case]:
    """The kept cases of an op, then those that the gate plans."""
    planned = plan(spec, request.cases_per_op, request.case_seed)
    both = [*kept(request.project, spec), *planned]
    return list({case.id: case for case in both}.values())


def exit_code(result: dict[str, Any]) -> Exit:
    """Survivors leave open whether a bug like them would be noticed."""
    if result["left"]:
        return Exit.INTERRUPTED
    return Exit.INCONCLUSIVE if result["counts"]["survived"] else Exit.OK


@dataclass(frozen=True)
class Subject:
    """What is mutated: contracts, sources by file, and a digest of the harness that judges."""

    specs: list[OpSpec]
    sources: dict[str, bytes]
    harness: str


def _subject(lab: Lab, request: Request) -> Subject:
    with lab.worker(lab.code) as worker:
        specs = worker.specs(request.ops).result()
        try:
            for entry in request.functions:
                worker.pool.schedule(imported, (entry.partition(":")[0],), timeout=START).result()
            described = worker.describe(specs).result()
        except Misplaced as error:
            raise Refused(
                f"Expected the code of the ops below {request.root or request.project} but it is "
                "elsewhere; name its folder with --root, or other ops with --ops."
            ) from error
        harness = worker.pool.schedule(harness_digest, (str(lab.code),), timeout=START).result()
    paths = [Path(name) for name in described["files"]]
    sources = {str(path.relative_to(lab.code)): path.read_bytes() for path in paths}
    return Subject(specs, sources, harness)


def imported(module: str) -> None:
    """Import a module in this process, which must be a worker."""
    import_module(module)


def harness_digest(root: str) -> str:
    """What is loaded in this process, which must be a worker, and is not under test."""
    files = {str(module.__file__) for module in list(sys.modules.values()) if _is_harness(module)}
    contents = [Path(file).read_bytes() for file in sorted(files) if not file.startswith(root)]
    return _digest(*(version(name) for name in ("torch", "triton")), *map(digest, contents))


def _is_harness(module: ModuleType) -> bool:
    inside = module.__name__.startswith("parity.") and "mutation" not in module.__name__
    return inside and getattr(module, "__file__", None) is not None


def _by_cases(
    lab: Lab, subject: Subject, jobs: list[Job], real: list[Mutant], journal: Journal
) -> dict[str, Outcome]:
    kept = journal.path.with_name("baseline.json")
    with progress("Running cases without a mutant") as report:
        base = baseline(lab, jobs, subject.harness, kept, report)
    if not any(record.status == "passed" for record in base.records.values()):
        raise Refused("Expected a case that passes without a mutant but none does.", Exit.FAULT)
    keys = {_key(lab, subject, mutant, base, jobs): mutant for mutant in real}
    return _hunt(Cases(lab, subject.sources, jobs, base), keys, journal)


def _key(lab: Lab, subject: Subject, mutant: Mutant, base: Baseline, jobs: list[Job]) -> str:
    """A digest of all that decides what becomes of a mutant: code, cases, harness."""
    covering = base.covering(mutant, jobs)
    code = [digest((lab.code / file).read_bytes()) for file in base.files(covering)]
    return _digest(mutant.id, subject.harness, *code, *(case.id for _, case in covering))


def _by_suites(
    lab: Lab, subject: Subject, paths: tuple[Path, ...], real: list[Mutant], journal: Journal
) -> dict[str, Outcome]:
    from .suite import Suite

    suite = Suite(lab, subject.sources, tuple(path.resolve() for path in paths))
    code = suite.digests()
    keys = {_digest(mutant.id, subject.harness, *code): mutant for mutant in real}
    if not set(keys) <= set(journal.found):
        suite.prepare()
    return _hunt(suite, keys, journal)


def _hunt(judge: Judge, keys: dict[str, Mutant], journal: Journal) -> dict[str, Outcome]:
    """Ends by the mutant's id, not of all if interrupted; what an earlier run left does not run."""
    waiting = {key: mutant for key, mutant in keys.items() if key not in journal.found}
    with suppress(KeyboardInterrupt), progress("Running mutants") as report:
        hunt(judge, waiting, journal, report)
    return {m.id: journal.found[key] for key, m in keys.items() if key in journal.found}


def _digest(*parts: str) -> str:
    return digest("\0".join(parts).encode())
