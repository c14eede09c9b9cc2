"""``parity run``: given cases on this machine, and what another machine says of them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exports import ExportFile, export_text
from ..git import Refused
from ..interrupts import deferred
from ..judging import findings_of
from ..verdict import Exit, Verdict

if TYPE_CHECKING:
    from ..isolation import Job, Worker
    from ..record import Record
    from ..runs import Run
    from ..spec import OpSpec
    from .case_file import Located
    from .compare import Pair


@click.command()
@click.option(
    "--cases", "file", type=click.Path(path_type=Path), help="Which [default: the planned ones]."
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="[default: a GPU if there is one]"
)
@click.option("--ops", metavar="NAME", help='"package.module:OPS", "megatron" or "parity".')
@click.option("--root", type=click.Path(path_type=Path), help="Import the kernels from here.")
@click.option("--output", type=ExportFile(), help="Write the records here too.")
@click.option("--against", type=click.Path(path_type=Path), help="Records of another machine.")
@click.option("--sanitize", is_flag=True, help="Run them under compute-sanitizer instead.")
def run(
    file: Path | None,
    device: str | None,
    ops: str | None,
    root: Path | None,
    output: Path | None,
    against: Path | None,
    sanitize: bool,
) -> int:
    """Run cases on the files as they are now, or on --root; with --against, compare two tiers.

    Exit codes: 0 all pass, 1 a case fails, 5 nothing could run, 10 the tiers disagree or something
    is missing.
    """
    from ..record import as_lines
    from .case_file import read_cases
    from .record_file import read_records

    cases = read_cases(file) if file else None
    if sanitize:
        if output or against or root or device == "cpu":
            raise click.UsageError(
                "Expected --sanitize with --cases and --ops alone but got more; it runs the "
                "project as it is on a GPU and writes no records."
            )
        return _sanitize(file, ops)
    there, cut = read_records(against) if against else (None, "")
    with deferred(), _tier(device), _worker(root) as (run, worker):
        jobs = _jobs(worker, ops, cases, device, run)
        here = _perform(run, worker, jobs)
    try:
        if output is not None:
            export_text(output, as_lines(here))
    finally:
        _say(f"Records: {run.folder}")
    if there is None:
        return _alone(here, len(jobs))
    from .compare import compare, exit_code

    pairs = compare(here, there)
    _show(pairs)
    _say(cut)
    return Exit.INTERRUPTED if len(here) < len(jobs) else exit_code(p.verdict for p in pairs)


@contextmanager
def _tier(device: str | None) -> Iterator[None]:
    """Have the processes that start meanwhile run on this tier."""
    before = os.environ.copy()
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    elif device == "cuda":
        os.environ.pop("TRITON_INTERPRET", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _worker(root: Path | None) -> Iterator[tuple[Run, Worker]]:
    """A new run and the process that runs the files of ``root``, or of the project as it is now."""
    from ..arms import import_root, project_root, working_tree, workspace
    from ..isolation import workers
    from ..runs import Run

    project = project_root()
    arm = working_tree(project) if root is None else import_root("head", root)
    private = workspace(project)
    run = Run.create(private)
    with workers([arm], private / "triton", run.folder) as (worker,):
        yield run, worker


def _jobs(
    worker: Worker, ops: str | None, listed: list[Located] | None, device: str | None, run: Run
) -> list[Job]:
    """Every case with its contract; which code and which tier it is, in the files of the run.

    Without cases, those that are planned for every op.
    """
    from ..generate import plan, refuse_illegal

    try:
        specs = {spec.name: spec for spec in worker.specs(ops).result()}
        for case, where in listed or ():
            refuse_illegal(specs, case, where)
        told = _described(worker, [*specs.values()])
        if device == "cuda" and told["tier"] != "gpu":
            raise Refused(
                "Expected a GPU for --device cuda but found none; leave it out, or run this on a "
                "machine with one."
            )
    except (Refused, ValueError):
        shutil.rmtree(run.folder)  # nothing ran, so there is nothing to keep
        raise
    if listed is None:
        cases = [case for spec in specs.values() for case in plan(spec, 0, 0)]
    else:
        cases = [item.case for item in listed]
    head = worker.arm.to_dict() | {name: told[name] for name in ("files", "functions")}
    run.write("environment", {name: told[name] for name in ("tier", "versions")})
    run.write("run", {"kind": "run", "ops": ops, "arms": {"head": head}, "cases": len(cases)})
    return [(specs[case.op], case) for case in cases]


def _described(worker: Worker, specs: list[OpSpec]) -> dict[str, Any]:
    from ..provenance import Misplaced

    try:
        return worker.describe(specs).result()
    except Misplaced as error:
        raise Refused(f"{error} Or name that place with --root.") from None


def _perform(run: Run, worker: Worker, jobs: list[Job]) -> list[Record]:
    """The records of what ran, also where Ctrl-C ended it early."""
    from ..isolation import run_all
    from ..progress import progress

    found: list[Record] = []

    def after(record: Record) -> None:
        run.add(record)
        found.append(record)
        show(len(found), len(jobs))

    try:
        with progress("Running cases") as show:
            run_all([(worker, jobs)], run.save_case, after)
    except KeyboardInterrupt:
        _say(f"Interrupted after {len(found)} of {len(jobs)} cases.")
    return found


def _alone(records: list[Record], planned: int) -> int:
    """Say what failed, and with which exit code to end."""
    for record in records:
        for finding in findings_of(record):
            _say(f"{record.op}: {finding.sentence}\n  parity replay {record.case_id}")
        if record.status in ("infrastructure", "unsupported"):
            _say(f"{record.op}: {record.reason}\n  parity replay {record.case_id}")
    gaps = Counter((record.op, gap) for record in records for gap in record.gaps())
    for (op, gap), count in gaps.items():
        _say(f"NOT_RUN {op}, {count} cases: {gap}")
    counts = Counter(record.status for record in records)
    told = [f"{count} {status}" for status, count in sorted(counts.items())]
    _say(", ".join([*told, "some checks NOT_RUN"] if gaps else told))
    if len(records) < planned:
        return Exit.INTERRUPTED
    if any(findings_of(record) for record in records):
        return Exit.REGRESSION
    if "infrastructure" in counts or gaps:
        return Exit.INCONCLUSIVE
    return Exit.OK if "passed" in counts else Exit.NOTHING_COMPARED


def _show(pairs: list[Pair]) -> None:
    for pair in pairs:
        if pair.sentence and pair.verdict is not Verdict.CHANGED_WITHIN_BOUND:
            _say(f"{pair.verdict} {pair.op}: {pair.sentence}\n  parity replay {pair.case_id}")
    counts = Counter(str(pair.verdict) for pair in pairs)
    _say(", ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items())))


def _sanitize(file: Path | None, ops: str | None) -> int:
    from .sanitizer import NotRun, sanitize

    if file is None:
        raise click.UsageError("Expected --cases with --sanitize, which is slow; name a few.")
    try:
        found = sanitize(file, ops)
    except NotRun as reason:
        raise Refused(str(reason), Exit.INCONCLUSIVE) from None
    for sentence in found or ["compute-sanitizer found nothing."]:
        _say(sentence)
    return Exit.REGRESSION if found else Exit.OK


def _say(text: str) -> None:
    from ..reports.plain import plain

    for line in text.splitlines():
        click.echo(plain(line))
