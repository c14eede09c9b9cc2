"""Run a recorded case again, in a process of its own, and say whether anything is different."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import git
from .arms import Arm, working_tree, workspace
from .case import Case
from .generate import refuse_illegal
from .git import Refused
from .isolation import Worker, workers
from .judging import findings_of
from .provenance import Misplaced, below_root, digest
from .record import Finding, Record
from .runs import Run, all_runs
from .shrink import weight
from .verdict import Exit, Verdict

# What takes two revisions, or several cases, to see.
COMPARED = {
    Verdict.CHANGED_WITHIN_BOUND,
    Verdict.DRIFT,
    Verdict.REGRESSION,
    Verdict.NONDETERMINISTIC,
    Verdict.INCONCLUSIVE,
    Verdict.HAZARD,
}


@dataclass(frozen=True)
class Recorded:
    """A case to run again: what it showed then, and where its code comes from.

    ``files`` are the digests of the code that ran then, by path below the root of the arm, and
    ``compared`` sentences on what that run saw by comparing, which no case shows alone.
    """

    case: Case
    ops: str | None
    arm: Arm
    before: Record | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    compared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Replayed:
    """``outcome`` is PASSED, FAILED or HAZARD (as recorded or differently), FIXED, UNSUPPORTED or
    ERROR; ``ran`` names the code that ran."""

    outcome: str
    sentences: tuple[str, ...]
    code: Exit
    ran: str = ""


def is_file(name: str) -> bool:
    """Whether it names a case file and no id of a case."""
    return Path(name).suffix == ".json"


def find(name: str, project: Path, run: str | None, ops: str | None) -> Recorded:
    """The case with this id in the newest run that has it, or the case in a file.

    ``ops`` names the contracts of a case in a file; a run has its own.

    Raises:
        Refused: no run has such a case.
        ValueError: the file holds no case.
    """
    if is_file(name):
        return Recorded(Case.from_file(Path(name)), ops, working_tree(project))
    for candidate in _runs(project, run):
        if candidate.case_file(name).is_file():
            return _recorded(candidate, name, project)
    where = f"run {run}" if run else "the runs of this folder"
    raise Refused(
        f"Expected a case {name!r} in {where} but found none; "
        "list the failing ones with `parity replay --list`."
    )


def _runs(project: Path, run: str | None) -> Iterator[Run]:
    found = all_runs(workspace(project))
    return (item for item in found if run in (None, item.id, str(item.folder)))


def _recorded(run: Run, case_id: str, project: Path) -> Recorded:
    described = run.document("run")
    case = Case.from_file(run.case_file(case_id))
    heads = [r for r in run.all_records() if (r.case_id, r.arm) == (case_id, "head")]
    before = heads[-1] if heads else None
    compared = tuple(_compared(run, case_id, before))
    head = described.get("arms", {}).get("head", {})
    files = below_root(head) if head else {}
    return Recorded(case, described.get("ops"), _arm(head, project), before, files, compared)


def _compared(run: Run, case_id: str, before: Record | None) -> Iterator[str]:
    """The gate's verdicts on this case that its record does not hold."""
    alone = {item.signature for item in (*findings_of(before), *before.hazards)} if before else ()
    for item in run.document("result").get("items", ()):
        here = item["minimal_case"] == case_id and item["signature"] not in alone
        if here and item["verdict"] in COMPARED:
            told = f"The gate said {item['verdict']} by comparing runs, which one alone cannot show"
            yield f"{told}: {item['sentence']}"


def _arm(head: dict[str, Any], project: Path) -> Arm:
    """Head's folder if the user gave one, else the project as it is now."""
    if head.get("kind") != "import_root":
        return working_tree(project)
    if not Path(head["root"]).is_dir():
        raise Refused(
            f"Expected the import root {head['root']} of the recorded run but it is gone; "
            "put it back, or run `parity gate` again."
        )
    return Arm("head", "import_root", head["root"])


def replay(recorded: Recorded, scratch: Path) -> Replayed:
    """Run the case as it ran before.

    Raises:
        ValueError: no such op, a root without its code, or a case that its contract forbids.
        Refused: the code was imported from another place.
    """
    with workers([recorded.arm], scratch / "triton", scratch) as (worker,):
        record, ran = _run(worker, recorded)
    found = judge(recorded.before, record)
    compared = recorded.compared if record.status == "passed" else ()
    return replace(found, sentences=(*found.sentences, *compared), ran=ran)


def _run(worker: Worker, recorded: Recorded) -> tuple[Record, str]:
    case = recorded.case
    specs = {spec.name: spec for spec in worker.specs(recorded.ops).result()}
    refuse_illegal(specs, case, f"Case {case.id}")
    try:
        code = worker.files([specs[case.op]]).result()
    except Misplaced as error:
        raise Refused(str(error), Exit.FAULT) from error
    future = worker.run(specs[case.op], case)
    wait([future])
    return worker.outcome(future, case), _ran(recorded, code)


def _ran(recorded: Recorded, code: dict[str, Any]) -> str:
    """Which code ran, by root, commit and digest, and whether it is the code of then."""
    now = below_root({"root": recorded.arm.root} | code)
    total = digest("".join(f"{name} {now[name]}\n" for name in sorted(now)).encode())
    then = recorded.files
    changed = [name for name in sorted(now) if now[name] != then.get(name)] if then else []
    against = (
        f"; changed since: {', '.join(changed)}" if changed else "; as recorded" if then else ""
    )
    return f"Ran {recorded.arm.root}{_revision(recorded.arm)}, sources {total[:12]}{against}"


def _revision(arm: Arm) -> str:
    """The commit of a project; a folder that somebody gave may lie in any repository."""
    if arm.kind == "import_root":
        return ""
    try:
        top = git.top_level(Path(arm.root))
        commit = git.commit(top, "HEAD", "head")
    except Refused:
        return ""
    return f" at {commit[:12]}{' with uncommitted changes' if git.is_dirty(top) else ''}"


def judge(before: Record | None, now: Record) -> Replayed:
    """What a second run says, next to the first."""
    if now.status == "infrastructure":
        return Replayed("ERROR", (now.reason,), Exit.FAULT)
    if now.status == "unsupported":
        return Replayed("UNSUPPORTED", (now.reason,), Exit.NOTHING_COMPARED)
    gaps = tuple(f"NOT_RUN {gap}." for gap in now.gaps())
    shown = (item.sentence for item in (*findings_of(now), *now.hazards))
    sentences = (*shown, *gaps)
    if now.status == "passed":
        code = Exit.INCONCLUSIVE if gaps else Exit.OK
        return Replayed(_passed(before, now), sentences, code)
    alike = before is not None and _signatures(before) == _signatures(now)
    outcome = "FAILED as recorded" if alike else "FAILED differently" if before else "FAILED"
    return Replayed(outcome, sentences, Exit.REGRESSION)


def _passed(before: Record | None, now: Record) -> str:
    """The outcome of a case without failures; a hazard is none, and no clean pass either."""
    if before and findings_of(before):
        return "FIXED (passes now)"
    shown = [{item.signature for item in record.hazards} for record in (before or now, now)]
    if not shown[1]:
        return "FIXED (no hazard now)" if shown[0] else "PASSED"
    if before is None:
        return "HAZARD"
    return "HAZARD as recorded" if shown[0] == shown[1] else "HAZARD differently"


def _signatures(record: Record) -> set[str]:
    return {finding.signature for finding in findings_of(record)}


@dataclass(frozen=True)
class Failure:
    """What head's failures, or hazards, of one op and family have in common: the smallest case."""

    run: str
    op: str
    case_id: str
    sentence: str
    cases: int


def listing(project: Path, run: str | None) -> tuple[str, list[Failure]]:
    """Head's failures in a run, then its hazards; without ``run`` in the newest with any.

    Before them, which run that is.  Refused where there is no such run.
    """
    from .reports.terminal import title

    runs = list(_runs(project, run))
    if not runs:
        raise Refused(
            f"Expected {f'run {run}' if run else 'a run'} in {project / '.parity' / 'runs'} but "
            "there is none; run `parity gate`."
        )
    for newer, item in enumerate(runs):
        records = [record for record in item.all_records() if record.arm == "head"]
        failures = _listed(item, ((r, f, f.sentence) for r in records for f in findings_of(r)))
        hazards = ((r, f, f"HAZARD: {f.sentence}") for r in records for f in r.hazards)
        if found := [*failures, *_listed(item, hazards)]:
            others = f"; none in {newer} newer, the last of them {title(runs[0])}" if newer else ""
            return f"Failures and hazards of run {title(item)}{others}:", found
    older = f", nor in {len(runs) - 1} older ones" if runs[1:] else ""
    return f"No failure and no hazard in run {title(runs[0])}{older}.", []


def _listed(run: Run, shown: Iterable[tuple[Record, Finding, str]]) -> Iterator[Failure]:
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for record, finding, sentence in shown:
        groups.setdefault((record.op, finding.family), {})[record.case_id] = sentence
    for (op, _), cases in sorted(groups.items()):
        smallest = min(cases, key=lambda case_id: weight(Case.from_file(run.case_file(case_id))))
        yield Failure(run.id, op, smallest, cases[smallest], len(cases))
