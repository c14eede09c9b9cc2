"""``parity race``: does a kernel give the same bits on every run, in any number of warps?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..exports import ExportFile, export_json
from ..verdict import Verdict, exit_code

if TYPE_CHECKING:
    import torch

    from ..inputs import Inputs
    from ..spec import OpSpec
    from .hunt import Outcome, Size

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """What to hunt: every combination of rope_dim, tile and number of warps."""

    ropes: tuple[int, ...]
    tiles: tuple[int, ...]
    warps: tuple[int, ...]
    repeats: int
    size: Size


@dataclass(frozen=True)
class Row:
    """One op, pass, rope_dim, tile and number of warps; ``reason`` says why there is no outcome."""

    op: str
    passing: str
    rope: int
    tile: dict[str, int | None]
    warps: int
    verdict: Verdict
    outcome: Outcome | None = None
    reason: str = ""


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole numbers above zero with commas between them."""
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise click.UsageError(
            f"Expected --{parameter.name} as whole numbers like 1,4,8 but got {value!r}."
        )
    return tuple(int(part) for part in parts)


@click.command()
@click.option("--ops", metavar="NAME", help='"package.module:OPS", "megatron" or "parity".')
@click.option("--root", type=click.Path(path_type=Path), help="Import the ops from this folder.")
@click.option("--only", default="", help="Only ops whose name contains this.")
@click.option("--rope", callback=_numbers, default="64,128,256", show_default=True)
@click.option("--tiles", callback=_numbers, default="1,2,4,16", show_default=True)
@click.option("--warps", callback=_numbers, default="1,4,8", show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=4096, show_default=True)
@click.option("--heads", type=click.IntRange(1), default=32, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=200, show_default=True)
@click.option("--json", "file", type=ExportFile(), help="Write the rows here too.")
def race(
    ops: str | None,
    root: Path | None,
    only: str,
    rope: tuple[int, ...],
    tiles: tuple[int, ...],
    warps: tuple[int, ...],
    tokens: int,
    heads: int,
    repeats: int,
    file: Path | None,
) -> int:
    """Run every kernel many times on this GPU, bit for bit against its run in one warp."""
    import torch

    from ..interpreter import prepare
    from .hunt import Size

    if not torch.cuda.is_available() or prepare() != "gpu":
        raise ValueError(
            "Expected a GPU to hunt races on but found none; the CPU tier of `parity gate` finds "
            "conflicting accesses without one."
        )
    specs, code = _contracts(ops, root, only)
    source = click.get_current_context().get_parameter_source("tiles")
    if source != ParameterSource.DEFAULT:
        refuse_lacking(specs, tiles)
    plan = Plan(rope, tiles, warps, repeats, Size(tokens, heads))
    rows = []
    for row in rows_of(specs, plan, torch.device("cuda")):
        rows.append(row)
        click.echo(line(row))
    click.echo(summary(rows))
    if file is not None:
        machine = {
            "gpu": torch.cuda.get_device_name(),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "triton": version("triton"),
        }
        found = {"plan": asdict(plan), "rows": [asdict(row) for row in rows]}
        document = {"schema_version": SCHEMA_VERSION, "machine": machine, "code": code} | found
        export_json(file, document)
    return exit_code(row.verdict for row in rows)


def _contracts(
    ops: str | None, root: Path | None, only: str
) -> tuple[list[OpSpec], dict[str, Any]]:
    """The contracts to hunt and which code is behind them."""
    from ..arms import project_root
    from ..catalog import resolve
    from ..provenance import Misplaced, describe, mount

    if root is not None and not root.is_dir():
        raise ValueError(f"Expected a folder at {root} but there is none; name an import root.")
    mount(root.resolve() if root else project_root())
    known = resolve(ops)
    specs = [spec for name, spec in known.items() if only in name]
    if not specs:
        raise ValueError(
            f"Expected --only to name an op among {', '.join(known)} but got {only!r}."
        )
    try:
        return specs, describe(specs, root or Path(Path.cwd().anchor))
    except Misplaced as error:
        raise ValueError(str(error)) from error


def refuse_lacking(specs: Sequence[OpSpec], tiles: Sequence[int]) -> None:
    """ValueError where an op has tiles but lacks one that was asked for: it would not be hunted."""
    for spec in specs:
        known = sorted({value for values in spec.tiles.values() for value in values if value})
        if known and (lacking := sorted(set(tiles) - set(known))):
            raise ValueError(
                f"Expected --tiles among {', '.join(map(str, known))}, those of {spec.name}, but "
                f"got {', '.join(map(str, lacking))}; name others, or other ops with --only."
            )


def rows_of(specs: Sequence[OpSpec], plan: Plan, device: torch.device) -> Iterator[Row]:
    """One row for each setting, in the order in which they run."""
    from .hunt import PASSES, case_of, inputs_of

    for spec in specs:
        tiles = tiles_of(spec, plan)
        for rope in plan.ropes if "rope_dim" in spec.axes else plan.ropes[:1]:
            inputs = inputs_of(spec, case_of(spec, rope, plan.size, tiles[0]), device)
            for passing, tile, warps in product(PASSES, tiles, plan.warps):
                row = Row(spec.name, passing, rope, tile, warps, Verdict.NOT_RUN)
                yield _row(replace(inputs, case=replace(inputs.case, tile=tile)), plan, row)


def tiles_of(spec: OpSpec, plan: Plan) -> list[dict[str, int | None]]:
    """The planned tiles that the contract knows, else its first; an empty one where none exist."""
    chosen: list[list[int | None]] = [
        [value for value in values if value in plan.tiles] or list(values[:1])
        for values in spec.tiles.values()
    ]
    return [dict(zip(spec.tiles, tile, strict=True)) for tile in product(*chosen)]


def _row(inputs: Inputs, plan: Plan, row: Row) -> Row:
    from ..observe import describe_error
    from ..spec import Unsupported
    from .hunt import hunt

    try:
        outcome = hunt(inputs, row.passing, row.warps, plan.repeats)
    except Unsupported as limitation:
        return replace(row, verdict=Verdict.UNSUPPORTED, reason=str(limitation))
    except Exception as error:  # noqa: BLE001  # one setting that cannot run costs one row
        reason = " in ".join(part for part in describe_error(error) if part)
        return replace(row, verdict=Verdict.INFRASTRUCTURE, reason=reason)
    return replace(row, verdict=verdict_of(outcome), outcome=outcome)


def verdict_of(outcome: Outcome) -> Verdict:
    """A race changes from run to run; other bits that are always the same are another matter."""
    if outcome.unsteady:
        return Verdict.NONDETERMINISTIC
    return Verdict.INCONCLUSIVE if outcome.wrong else Verdict.IDENTICAL


def line(row: Row) -> str:
    """One row in words.

    Where none of n runs differed, at most 3/n of all runs do, with 95 % confidence (Hanley and
    Lippman-Hand, "If nothing goes wrong, is everything all right?", JAMA 249, 1983).
    """
    tile = "".join(f", {name} {value}" for name, value in row.tile.items())
    warps = "1 warp" if row.warps == 1 else f"{row.warps} warps"
    where = f"{row.op} {row.passing}, rope {row.rope}{tile}, {warps}"
    if row.outcome is None:
        return f"{row.verdict} {where}: {row.reason}"
    seen = row.outcome
    if row.verdict == Verdict.IDENTICAL:
        bound = min(1.0, 3 / seen.runs)
        said = f"0 of {seen.runs} runs differ from one warp (95 % confidence: at most {bound:.2%})"
    else:
        said = (
            f"{seen.wrong} of {seen.runs} runs ({seen.wrong / seen.runs:.1%}) differ from one "
            f"warp, {seen.unsteady} from the first run, in {seen.elements} elements, by up to "
            f"{seen.largest:.3g}"
        )
    return f"{row.verdict} {where}: {said}"


def summary(rows: Sequence[Row]) -> str:
    """How many settings there were and what became of them."""
    counts = {
        verdict: sum(row.verdict == verdict for row in rows)
        for verdict in sorted({row.verdict for row in rows})
    }
    shown = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
    return f"{len(rows)} settings: {shown}."
