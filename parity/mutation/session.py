"""One run of ``parity mutate``, from the contracts to the document of its result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from ..arms import workspace
from ..case import Case
from ..corpus import kept
from ..gate.command import CASES_PER_OP
from ..generate import plan
from ..git import Refused
from ..process import START
from ..progress import progress
from ..provenance import Misplaced, digest
from ..spec import OpSpec
from ..verdict import Exit
from .baseline import baseline
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
    with copied(request.root or request.project, request.project) as code:
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
        journal = _journal(folder / "mutation" / "outcomes.jsonl")
        ends = {name: Outcome("equivalent", reason=why) for name, why in equivalent.items()}
        for judge in _judges(lab, subject, request, journal):
            judged = _hunt(judge, real, journal)
            ends |= judged
            if len(judged) < len(real):  # interrupted: what only earlier judges saw has no end
                left = {mutant.id for mutant in real} - set(judged)
                return document(found, {n: end for n, end in ends.items() if n not in left})
            real = [mutant for mutant in real if judged[mutant.id].status == "survived"]
    return document(found, ends)


def _journal(path: Path) -> Journal:
    found = Journal(path)
    if found.damaged:
        lines = ", ".join(map(str, found.damaged))
        click.echo(
            f"Passed over what is damaged in {path}, line {lines}: those mutants run again; "
            "delete it to hear no more of it.",
            err=True,
        )
    return found


def _judges(lab: Lab, subject: Subject, request: Request, journal: Journal) -> Iterator[Judge]:
    """Who judges what those before let live: the cases first that differ most, and the others last,
    since a mutant that only a suite notices would run them all in vain."""
    if not request.cases:
        yield _suite(lab, subject, request)
        return
    cases = _by_cases(lab, subject, request, journal)
    if not request.suites:
        yield cases
        return
    yield replace(cases, part="first")
    yield _suite(lab, subject, request)
    yield replace(cases, part="others")


def _cases(request: Request, spec: OpSpec) -> list[Case]:
    """The cases that the code under test keeps of an op, then those that the gate plans."""
    planned = plan(spec, request.cases_per_op, request.case_seed)
    both = [*kept(request.root or request.project, spec), *planned]
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
    versions = [version(name) for name in ("torch", "triton")]
    return digest("\0".join([*versions, *map(digest, contents)]).encode())


def _is_harness(module: ModuleType) -> bool:
    inside = module.__name__.startswith("parity.") and "mutation" not in module.__name__
    return inside and getattr(module, "__file__", None) is not None


def _by_cases(lab: Lab, subject: Subject, request: Request, journal: Journal) -> Cases:
    """The judge that runs cases; without a mutant they have run, or did so before.

    Raises:
        Refused: no case passes without a mutant.
    """
    jobs = [(spec, case) for spec in subject.specs for case in _cases(request, spec)]
    kept = journal.path.with_name("baseline.json")
    with progress("Running cases without a mutant") as report:
        base = baseline(lab, jobs, subject.harness, kept, report)
    if not any(record.status == "passed" for record in base.records.values()):
        raise Refused("Expected a case that passes without a mutant but none does.", Exit.FAULT)
    return Cases(lab, subject.sources, subject.harness, jobs, base)


def _suite(lab: Lab, subject: Subject, request: Request) -> Judge:
    from .suite import Suite

    paths = tuple(path.resolve() for path in request.suites)
    return Suite(lab, subject.sources, subject.harness, paths)


def _hunt(judge: Judge, real: list[Mutant], journal: Journal) -> dict[str, Outcome]:
    """Ends by the mutant's id, not of all if interrupted; what an earlier run left does not run."""
    keys = {judge.key(mutant): mutant for mutant in real}
    waiting = {key: mutant for key, mutant in keys.items() if key not in journal.found}
    if waiting:
        judge.prepare()
    with suppress(KeyboardInterrupt), progress("Running mutants") as report:
        hunt(judge, waiting, journal, report)
    return {m.id: journal.found[key] for key, m in keys.items() if key in journal.found}
