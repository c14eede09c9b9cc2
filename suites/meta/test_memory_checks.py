"""What kernels do to memory ends in the record of a case: planted faults, and honest twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from parity.interpreter import prepare

TIER = prepare()

import triton  # noqa: E402  the tier is chosen before triton is imported
import triton.language as tl  # noqa: E402

from parity.generate import plan  # noqa: E402
from parity.judging import judge  # noqa: E402
from parity.record import Finding, Record  # noqa: E402
from parity.runner import run_case  # noqa: E402
from parity.spec import Input, OpSpec, Output  # noqa: E402
from parity.verdict import Exit, Verdict, exit_code  # noqa: E402

pytestmark = pytest.mark.skipif(
    TIER == "gpu", reason="NOT_RUN: triton compiles for the GPU here, the interpreter is not used"
)
Tensor = torch.Tensor
SPEC = OpSpec(
    name="twice",
    candidate=f"{__name__}:honest",
    reference=f"{__name__}:reference",
    inputs=(Input("x", "rows heads dim", strides=("contiguous", "sliced")),),
    outputs=(Output("y"),),
    axes={"heads": (3,), "dim": (5,)},
    terms=1,
    gradients=("contiguous",),
    dtypes=("float32",),
    values=("normal",),
)


def reference(
    x: Tensor, *, compute_dtype: torch.dtype = torch.float32, magnitude: bool = False
) -> Tensor:
    """y = 2 x."""
    return (2 * x.to(compute_dtype)).to(x.dtype)


@triton.jit
def twice_kernel(X, Y, row, count: tl.constexpr, N: tl.constexpr, FAULT: tl.constexpr):
    """One row of `count` lanes for each program."""
    program, lane = tl.program_id(0), tl.arange(0, N)
    inside = lane < count
    if FAULT == "unseen":  # reads, too, and counts, which only the stock interpreter can
        inside = inside & (tl.sum(tl.histogram(lane, N)) == N)
    strays = FAULT == "reads" or FAULT == "unseen" or FAULT == "keeps"
    x = tl.load(X + program * row + lane, mask=inside | strays, other=0.0)
    if FAULT == "keeps":
        behind = program + 1 == tl.num_programs(0)
        x += tl.sum(tl.where(inside | (behind == 0), 0.0, x))
    if FAULT == "order":
        tl.store(Y + (program + 1) % tl.num_programs(0) * count + lane, x, mask=inside)
    if FAULT == "writes the same":  # nothing changes, but the memory is another's
        past = Y + program * count + N + lane
        tl.store(past, tl.load(past))
    if FAULT == "far":
        tl.store(Y + 2**40, 1.0)
    if FAULT == "meets":
        tl.store(Y + program * 0 + lane, 2.0 * tl.load(X + lane), mask=inside)
    if FAULT == "never written":
        x += tl.load(Y + program * count + lane, mask=inside) * 0.0 == 5.0
    if FAULT == "forgets":
        inside = inside & (lane != 2)
    tl.store(Y + program * count + lane, 2.0 * x, mask=inside)


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: str) -> Tensor:
        return _launch(x, fault)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _launch(gradients[0], ""), None


def _launch(x: Tensor, fault: str) -> Tensor:
    if fault in ("copy", "keeps"):
        x, fault = x.clone(), "reads" if fault == "copy" else fault
    y = torch.empty(x.shape)
    count = x.shape[-1]
    rows = x.flatten(0, -2)
    twice_kernel[(len(rows),)](rows, y, rows.stride(0), count, N=8, FAULT=fault)
    return y


def honest(x: Tensor) -> Tensor:
    return _Twice.apply(x, "")


def _planted(fault: str) -> Callable[[Tensor], Tensor]:
    return lambda x: _Twice.apply(x, fault)


reads, unseen, writes_the_same, order, meets, forgets, never_written = map(
    _planted, ("reads", "unseen", "writes the same", "order", "meets", "forgets", "never written")
)


def reads_a_copy(x: Tensor) -> Tensor:
    return _Twice.apply(x, "copy")


def keeps_what_lies_behind_a_copy(x: Tensor) -> Tensor:
    return _Twice.apply(x, "keeps")


def strays_if_called_illegally(x: Tensor) -> Tensor:
    return _Twice.apply(x, "" if x.is_floating_point() else "far")


def record(
    candidate: str, strides: str = "contiguous", arm: str = "head", spec: OpSpec = SPEC
) -> Record:
    spec = replace(spec, candidate=f"{__name__}:{candidate}")
    case = plan(spec, 0, 0)[0]
    axes = {**case.axes, "tokens": 4}
    return run_case(
        spec, replace(case, axes=axes, variants={**case.variants, "x": strides}, seed=5), arm
    )


def found(seen: Record) -> set[tuple[str, str]]:
    return {(finding.check, finding.tensor) for finding in seen.findings}


def test_the_honest_op_is_watched_and_clean() -> None:
    seen = record("honest")
    assert (seen.status, seen.hazards) == ("passed", ())
    assert {"reads", "order"} <= set(seen.checks)


def test_a_read_past_the_end_is_a_failure_although_its_value_is_thrown_away() -> None:
    seen = record("reads")
    assert found(seen) == {("reads", "data in forward")}
    (finding,) = seen.findings
    assert "twice_kernel, program (11, 0, 0), reads X (x) element 60 of 60" in finding.sentence
    assert "test_memory_checks.py:" in finding.sentence
    assert "twice_kernel" not in finding.signature  # a renamed kernel is not a new failure


def test_a_copy_of_the_data_does_not_make_a_known_fault_a_new_one() -> None:
    """One revision reads past its argument, the other past a copy that it made first."""
    base, head = record("reads", arm="base"), record("reads_a_copy")
    assert "(memory it allocated)" in head.findings[0].sentence
    verdicts = judge({head.case_id: "twice"}, {head.case_id: base}, {head.case_id: head})
    assert {item.verdict for item in verdicts} == {Verdict.PRE_EXISTING}


def test_a_read_past_memory_of_the_op_gives_what_lies_there() -> None:
    """Not 0, which would hide that the value is used."""
    seen = record("keeps_what_lies_behind_a_copy")
    assert ("reads", "data in forward") in found(seen)
    assert "values" in {check for check, _ in found(seen)}


def test_an_illegal_call_that_strays_does_not_end_the_process() -> None:
    asked = replace(SPEC, refuses=("data_of_integers",))
    seen = record("strays_if_called_illegally", spec=asked)
    assert [(f.check, f.error) for f in seen.findings] == [
        ("refuses:data_of_integers", "it returned a result")
    ]


def test_a_read_between_the_rows_of_a_view_is_a_hazard() -> None:
    seen = record("reads", "sliced")
    assert {item.error for item in seen.hazards} == {"read_out_of_view"}


def test_a_write_outside_counts_although_it_changes_nothing() -> None:
    assert ("guards", "forward") in found(record("writes_the_same"))


def test_an_order_of_programs_that_changes_bits() -> None:
    assert ("order", "y") in found(record("order"))


def test_programs_that_meet_and_agree_are_a_hazard() -> None:
    seen = record("meets")
    assert seen.status == "passed"
    assert {item.error for item in seen.hazards} == {"write_write"}


def test_a_read_of_memory_that_nothing_wrote_is_a_hazard() -> None:
    seen = record("never_written")
    assert [item.error for item in seen.hazards] == ["read_never_written"]


def test_what_is_left_unwritten_names_the_kernel() -> None:
    seen = record("forgets")
    sentence = next(item.sentence for item in seen.findings if item.check == "written")
    assert "twice_kernel leaves Y [0, 0, 2] unwritten" in sentence


def test_a_hazard_is_told_beside_the_verdict_and_does_not_change_the_exit_code() -> None:
    base, head = record("honest", arm="base"), record("meets")
    verdicts = judge({head.case_id: "twice"}, {head.case_id: base}, {head.case_id: head})
    assert {item.verdict for item in verdicts} == {Verdict.IDENTICAL, Verdict.HAZARD}
    assert "In head only, by analysis" in verdicts[-1].sentence
    assert verdicts[-1].family.endswith("| write_write | head only")
    raised = replace(
        base, status="failed", findings=(Finding("runs", "backward", "E"),), hazards=()
    )
    *_, hazard = judge({head.case_id: "twice"}, {head.case_id: raised}, {head.case_id: head})
    assert hazard.family.endswith("| write_write")
    assert "In head, while base raised before, by analysis" in hazard.sentence
    assert exit_code(item.verdict for item in verdicts) == Exit.OK
    assert exit_code({Verdict.HAZARD, Verdict.PRE_EXISTING}) == Exit.INCONCLUSIVE
    assert Record.from_dict(head.to_dict()) == head


def test_a_trace_with_gaps_is_no_pass_of_the_checks_that_need_it() -> None:
    """Without the gap the same read is a failure."""
    base, head = record("honest", arm="base"), record("unseen")
    assert (head.status, base.not_run) == ("passed", {})
    assert set(head.not_run) == {"reads", "order", "hazard", "traffic"}
    assert not set(head.not_run) & set(head.checks)
    verdicts = judge({head.case_id: "twice"}, {head.case_id: base}, {head.case_id: head})
    assert [item.verdict for item in verdicts] == [Verdict.IDENTICAL, Verdict.NOT_RUN]
    assert verdicts[-1].signature == "hazard, order, reads, traffic | not run"
    untraced = "twice_kernel ran untraced, through Triton's stock interpreter (histogram)."
    assert untraced in verdicts[-1].sentence
    assert exit_code(item.verdict for item in verdicts) == Exit.INCONCLUSIVE
    assert Record.from_dict(head.to_dict()).gaps() == head.gaps()
    better = judge({head.case_id: "twice"}, {head.case_id: head}, {head.case_id: base})
    assert {item.verdict for item in better} == {Verdict.IDENTICAL}
