"""``parity bench``: the table of speeds."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from ..exports import ExportFile, export_json
from ..options import refuse_idle

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Row:
    """One workload and pass; times are medians in microseconds, ratios have no unit.

    ``target`` is for the ratio to ``beside``, None where that was not timed.
    """

    workload: str
    passing: str
    microseconds: float
    copy_microseconds: float
    ratio: float
    beside: str
    beside_ratio: float | None
    target: float
    met: bool | None
    upstream_microseconds: float | None
    device_events: int
    peak_bytes: int


@click.command()
@click.option("--upstream", type=click.Path(path_type=Path), help="Import root of Megatron-Core.")
@click.option("--base", metavar="REF", help="Compare with this revision.")
@click.option("--head", metavar="REF", help="The change [default: the files as they are now].")
@click.option(
    "--only",
    default="",
    help='Only timings whose name contains this, like "concat" or ", forward".',
)
@click.option("--harness", is_flag=True, help="Time the harness instead: cases a second.")
@click.option("--cpu-tier", is_flag=True, help="Time the interpreter, beside the stock one.")
@click.option("--json", "file", type=ExportFile(), help="Write the rows here too.")
def bench(
    upstream: Path | None,
    base: str | None,
    head: str | None,
    only: str,
    harness: bool,
    cpu_tier: bool,
    file: Path | None,
) -> int:
    """Time every kernel on this GPU, as a ratio to a device copy of the same bytes.

    With a base or a head, compare the two: their kernels are timed in turn, and exit code 1 says
    that head is slower by more than noise could make it.
    """
    import torch

    from ..arms import import_root
    from ..verdict import Exit
    from .stand import HOST, tasks

    _refuse_two_modes(
        {
            "--harness": harness,
            "--cpu-tier": cpu_tier,
            "--upstream": upstream,
            "--base or --head": base or head,
        }
    )
    if harness:
        refuse_idle("beside --harness", "only")
        return _bench_harness(file)
    if cpu_tier:
        refuse_idle("beside --cpu-tier", "only")
        return _bench_cpu_tier(file)
    names = tasks(only)
    if upstream is not None:
        sys.path.insert(0, import_root("megatron", upstream).root)
    if not torch.cuda.is_available():
        raise ValueError(
            "Expected a GPU to time kernels on but found none; use `parity codegen` without one."
        )
    if base or head:
        return _bench_revisions(base, head, only, file)
    rows = []
    if failed := list(not_at_parity()):
        raise ValueError(f"Expected kernels at parity but {failed[0]}; run `parity gate` first.")
    for row in measure(names, upstream is not None):
        rows.append(row)
        click.echo(_line(row))
    costs = host_costs(upstream is not None) if set(HOST) & set(names) else {}
    for name, cost in costs.items():
        click.echo(f"{name}: {cost:.1f} us of host time")
    if file is not None:
        document = {"rows": [asdict(row) for row in rows], "host_microseconds": costs}
        export_json(file, {"schema_version": SCHEMA_VERSION, "machine": _machine()} | document)
    return Exit.REGRESSION if any(row.met is False for row in rows) else Exit.OK


def _refuse_two_modes(given: Mapping[str, object]) -> None:
    chosen = [name for name, value in given.items() if value]
    if len(chosen) > 1:
        raise click.UsageError(
            f"Expected one of {', '.join(chosen)} but got all of them; time one."
        )


def _bench_revisions(base: str | None, head: str | None, only: str, file: Path | None) -> int:
    from .compare import compare, show

    rows, code = show(compare(base, head, only))
    if file is not None:
        document = {"comparisons": rows, "machine": _machine()}
        export_json(file, {"schema_version": SCHEMA_VERSION} | document)
    return code


def _bench_cpu_tier(file: Path | None) -> int:
    from ..verdict import Exit
    from .interpreters import measured

    speeds = measured()
    for speed in speeds:
        click.echo(
            f"{speed.engine}: {speed.cases_per_second:.1f} cases a second, forward and backward at "
            f"12 tokens x 4 heads; {speed.launch_seconds:.2f} s for a launch at 1024 tokens x 32 "
            "heads"
        )
    if file is not None:
        document = {"cpu_tier": [asdict(speed) for speed in speeds]}
        export_json(file, {"schema_version": SCHEMA_VERSION} | document)
    return Exit.OK


def _bench_harness(file: Path | None) -> int:
    from ..arms import project_root
    from ..interpreter import prepare
    from ..provenance import mount
    from ..verdict import Exit

    mount(project_root())
    prepare()
    from .harness import measure

    cost = measure()
    click.echo(
        f"{cost.cases_per_second:.1f} cases a second in one process on the {cost.tier} tier, "
        f"{cost.share:.0%} of the time spent by the harness itself; "
        f"{cost.repeated_per_second:.1f} with a repeat as the only further run ({cost.cases} cases)"
    )
    if file is not None:
        export_json(file, {"schema_version": SCHEMA_VERSION, "harness": asdict(cost)})
    return Exit.OK


def measure(names: Sequence[str], with_upstream: bool) -> Iterator[Row]:
    """A row for every workload and pass among the tasks ``names``."""
    import torch

    from .stand import task_of
    from .workloads import WORKLOADS, judged

    for work in WORKLOADS:
        for is_backward, target in judged(work):
            if task_of(work, is_backward) in names:
                with torch.cuda.stream(torch.cuda.Stream()):
                    yield _row(work, is_backward, target, with_upstream)


def _row(work: Any, is_backward: bool, target: float, with_upstream: bool) -> Row:
    from dataclasses import replace

    import torch

    from ..adapters.megatron_module import NAME as UPSTREAM
    from . import timing, workloads

    device = torch.device("cuda")
    make = workloads.backward if is_backward else workloads.forward
    held = workloads.rotated(work, device)
    calls = [make(work, workloads.OURS, each) for each in held]
    copies = [workloads.copy(work, is_backward=is_backward, device=device) for _ in held]
    sets = {"ours": calls, "copy": copies}
    if with_upstream:
        sets["upstream"] = [make(work, UPSTREAM, each) for each in held]
    if work.beside == "SBHD":
        plain = replace(work, sequences=0)
        sets["SBHD"] = [
            make(plain, workloads.OURS, each) for each in workloads.rotated(plain, device)
        ]
    times = timing.replayed(sets)
    ratios = {name: times["ours"] / time for name, time in times.items()}
    ratio = ratios.get(work.beside)
    return Row(
        work.name,
        "backward" if is_backward else "forward",
        times["ours"],
        times["copy"],
        ratios["copy"],
        work.beside,
        ratio,
        target,
        None if ratio is None else ratio <= target,
        times.get("upstream"),
        timing.device_events(calls[0]),
        timing.peak_bytes(calls[0]),
    )


def host_costs(with_upstream: bool) -> dict[str, float]:
    """Host microseconds of one eager call on tensors too small to keep the device busy.

    Of autograd alone, too: no op can take less than a function that does nothing.
    """
    from ..adapters.megatron_module import NAME as UPSTREAM
    from . import timing, workloads

    names = [workloads.OURS, *([UPSTREAM] if with_upstream else [])]
    pairs = {name: host_calls(name) for name in names}
    pairs["autograd alone"] = workloads.idle_calls()
    calls: dict[str, timing.Call] = {}
    for name, (forward, both) in pairs.items():
        calls |= {f"{name} forward": forward, f"{name} forward + backward": both}
    return timing.host_costs(calls)


def host_calls(module: str) -> tuple[Any, Any]:
    """A forward call, and one with its backward, of ``concat`` on 64 tokens and one head."""
    import torch

    from . import workloads

    work = workloads.Workload("concat", 64, 1, 512, 64)
    held = workloads.buffers(work, torch.device("cuda"))
    leaves = tuple(tensor.requires_grad_() for tensor in held.data)
    call = workloads.forward(work, module, held)
    return call, workloads.with_backward(call, leaves)


def not_at_parity() -> Iterator[str]:
    """Sentences of findings: a wrong kernel gets no figures."""
    from ..catalog import resolve
    from ..generate import plan
    from ..interpreter import prepare
    from ..runner import run_case

    prepare()
    for spec in resolve("parity").values():
        for case in plan(spec, 0, 0)[::30]:
            yield from (finding.sentence for finding in run_case(spec, case).findings)


def _line(row: Row) -> str:
    upstream = (
        ""
        if row.upstream_microseconds is None
        else (
            f", upstream {row.upstream_microseconds:.1f} us"
            f" ({row.upstream_microseconds / row.microseconds:.2f} times ours)"
        )
    )
    return (
        f"{row.workload} {row.passing}: {row.microseconds:.1f} us, copy "
        f"{row.copy_microseconds:.1f} us, ratio {row.ratio:.3f}{_judged(row)}{upstream}, "
        f"{row.device_events} device events, peak {row.peak_bytes / 2**20:.1f} MiB"
    )


def _judged(row: Row) -> str:
    if row.beside_ratio is None:
        return ""
    beside = "" if row.beside == "copy" else f", {row.beside_ratio:.3f} of {row.beside}"
    return f"{beside} ({'met' if row.met else 'MISSED'}: {row.target})"


def _machine() -> dict[str, str]:
    from importlib.metadata import version

    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": version("triton"),
    }
