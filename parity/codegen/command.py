"""``parity codegen``: compile every kernel for chips nobody here has, and compare two revisions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exports import ExportFile, export_json
from ..git import Refused
from ..interrupts import POLL, check
from ..verdict import Exit
from .occupancy import ARCHS

if TYPE_CHECKING:
    from ..arms import Arm
    from ..spec import OpSpec
    from .cases import Call
    from .compare import Pair
    from .row import Row
    from .worker import Compiler

WORKERS = 2  # compiling processes, for all arms together

Progress = Callable[[int, int], None]
Job = tuple["Compiler", "OpSpec", "Call", str]


@click.command()
@click.option("--base", metavar="REF", help="Compare with this revision.")
@click.option("--head", metavar="REF", help="The change [default: the files as they are now].")
@click.option("--base-root", type=click.Path(path_type=Path), help="Import base from this folder.")
@click.option("--head-root", type=click.Path(path_type=Path), help="Import head from this folder.")
@click.option("--ops", metavar="NAME", help='"package.module:OPS", "megatron" or "parity".')
@click.option("--arch", default=",".join(ARCHS), show_default=True, help="Architectures.")
@click.option("--json", "file", type=ExportFile(), help="Write every row here.")
def codegen(
    base: str | None,
    head: str | None,
    base_root: Path | None,
    head_root: Path | None,
    ops: str | None,
    arch: str,
    file: Path | None,
) -> int:
    """Compile every kernel, tile and kind of call, without a GPU, and say what the code costs.

    With a base, compare: equal PTX is GENERATED_CODE_IDENTICAL; new spills, lost vector width, an
    added barrier or launch, a lost occupancy step and a kernel that no longer compiles exit with 1.
    """
    from ..arms import project_root, workspace
    from ..progress import progress
    from ..reports import codegen as report
    from ..reports import terminal

    archs = _architectures(arch)
    private = workspace(project_root())
    with _arms(base, head, base_root, head_root) as arms, progress("Compiling") as show:
        rows, idle = compile_arms(arms, ops, archs, private, show)
    output = terminal.console()
    if "base" not in rows:
        report.show_rows(output, rows["head"])
        report.show_idle(output, idle)
        _write(file, {"rows": rows["head"]})
        return _exit_code(rows["head"])
    from .compare import compare, exit_code

    pairs = compare(rows["base"], rows["head"])
    report.show_pairs(output, [pair.to_dict() for pair in pairs])
    report.show_idle(output, idle)
    _write(file, {"rows": rows["head"], "base_rows": rows["base"], "pairs": told(pairs)})
    return exit_code(pairs)


def compile_arms(
    arms: list[Arm],
    ops: str | None,
    archs: list[str],
    private: Path,
    show: Progress,
    choose: Callable[[OpSpec], list[Call]] | None = None,
) -> tuple[dict[str, list[Row]], dict[str, int]]:
    """The rows of every arm, by its name, for calls of head's contracts: all representative ones,
    or those that ``choose`` names.

    ``private`` is the folder for what parity writes.  Rows come in the order of the calls.  The
    second result counts the calls that have no row, because an arm does not support them or
    launches no Triton kernel.

    Raises:
        ValueError: unknown ops, or a root without the code they need.
        Refused: two arms have one and the same code, or an arm has code of another place.
    """
    from .cases import calls
    from .worker import compilers

    with (
        tempfile.TemporaryDirectory(prefix="codegen-", dir=private) as scratch,
        compilers(arms, WORKERS, Path(scratch)) as team,
    ):
        specs = team[-1].specs(ops)
        if len(team) > 1:
            _refuse_one_file(team, specs)
        jobs = [
            (compiler, spec, call, arch)
            for spec in specs
            for call in (choose or calls)(spec)
            for arch in archs
            for compiler in team
        ]
        found = _perform(jobs, private / "cache" / "codegen", show)
    rows: dict[str, list[Row]] = {arm.name: [] for arm in arms}
    idle = {arm.name: 0 for arm in arms}
    for (compiler, *_), result in zip(jobs, found, strict=True):
        rows[compiler.arm.name] += result
        idle[compiler.arm.name] += not result
    return rows, idle


def _perform(jobs: list[Job], cache: Path, show: Progress) -> list[list[Row]]:
    """The rows of every job, in their order."""
    futures: dict[Future[list[Row]], int] = {}
    for index, (compiler, spec, call, arch) in enumerate(jobs):
        futures[compiler.rows(spec, call, arch, cache)] = index
    waiting = set(futures)
    while waiting:
        check()
        _, waiting = wait(waiting, timeout=POLL, return_when=FIRST_COMPLETED)
        show(len(jobs) - len(waiting), len(jobs))
    return [jobs[index][0].outcome(future, *jobs[index][1:]) for future, index in futures.items()]


def _refuse_one_file(team: list[Compiler], specs: list[OpSpec]) -> None:
    from ..provenance import Misplaced

    try:
        base, head = (set(future.result()) for future in [item.files(specs) for item in team])
    except (Misplaced, RuntimeError) as error:
        raise Refused(str(error), Exit.FAULT) from error
    for shared in sorted(base & head):
        raise Refused(
            f"Nothing compared: both arms imported {shared}; "
            "name two roots that hold their own copies.",
            Exit.NOTHING_COMPARED,
        )


@contextmanager
def _arms(
    base: str | None, head: str | None, base_root: Path | None, head_root: Path | None
) -> Iterator[list[Arm]]:
    """Base and head, or head alone where nothing names a base."""
    from ..arms import import_root, import_roots, project_root, revisions, working_tree

    by_root = base_root is not None or head_root is not None
    if by_root and (base or head):
        raise click.UsageError(
            "Expected either --base and --head or --base-root and --head-root but got both kinds; "
            "leave one kind out."
        )
    if base_root is not None:
        yield list(import_roots(base_root, head_root))
    elif head_root is not None:
        yield [import_root("head", head_root)]
    elif base or head:
        with revisions(project_root(), base, head) as pair:
            yield list(pair)
    else:
        yield [working_tree(project_root())]


def _architectures(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names or [text]:
        if name not in ARCHS:
            raise click.UsageError(
                f"Expected --arch among {', '.join(ARCHS)} but got {name!r}; "
                "separate several by commas."
            )
    return names


def _exit_code(rows: list[Row]) -> Exit:
    """Of one arm alone: what does not compile is a failure, no rows at all no result."""
    if not rows:
        return Exit.NOTHING_COMPARED
    return Exit.REGRESSION if any(row["error"] for row in rows) else Exit.OK


def told(pairs: list[Pair]) -> list[dict[str, Any]]:
    """The pairs for the file: verdicts and the places of their rows, which stand there once."""
    return [
        {"verdict": str(pair.verdict), "reasons": [*pair.reasons], "notes": [*pair.notes]}
        | {name: pair.row[name] for name in ("op", "kernel", "tile", "specialisation", "arch")}
        for pair in pairs
    ]


def _write(file: Path | None, document: dict[str, Any]) -> None:
    from .row import SCHEMA_VERSION

    if file is not None:
        export_json(file, {"schema_version": SCHEMA_VERSION} | document)
