"""Counted cost: an added launch and added memory are seen without a GPU; other code is no harm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from parity.catalog import resolve
from parity.cost import dearer, given_way
from parity.generate import plan
from parity.judging import classify
from parity.kernels.out_of_place import fused_mla_rope_out_of_place as op
from parity.record import Record
from parity.reference.out_of_place import fused_mla_rope_out_of_place as reference
from parity.runner import device, run_case
from parity.verdict import Exit, Verdict, exit_code

SPEC = resolve("parity")["fused_mla_rope_out_of_place"]
CASE = next(case for case in plan(SPEC, 0, 0) if case.layout == "sbhd")
pytestmark = pytest.mark.skipif(
    device().type != "cpu", reason="NOT_RUN: launches are counted on the CPU tier"
)


def same(**arguments: Any) -> Tensor:
    """The honest twin: another function, the same cost."""
    return op(**arguments)


def twice(**arguments: Any) -> Tensor:
    op(**arguments)
    return op(**arguments)


def copied(t: Tensor, **arguments: Any) -> Tensor:
    return op(t.clone(), **arguments)


def record(name: str, **contract: bool) -> Record:
    found = run_case(replace(SPEC, candidate=f"{__name__}:{name}", **contract), CASE)
    assert found.status == "passed", found.findings
    return found


def test_what_an_op_costs() -> None:
    """One launch each way; outputs and gradients are all that is allocated."""
    rows = CASE.axes["seq"] * CASE.axes["batch"] * CASE.axes["heads"]
    lanes = CASE.axes["nope_dim"] + CASE.axes["rope_dim"]
    size = rows * lanes * {"float32": 4}.get(CASE.dtype, 2)
    cost = record("same").cost
    assert (cost["forward launches"], cost["backward launches"]) == (1, 1)
    assert cost["forward allocated"] == size


def test_an_added_launch_and_a_copy_are_regressions_and_other_code_is_none() -> None:
    base = record("same")
    assert dict(dearer(base.cost, record("same").cost)) == {}
    extra = dearer(base.cost, record("twice").cost)
    assert [name for name, _ in extra] == ["forward allocated", "forward launches"]
    head = record("copied")
    judged = classify(SPEC.name, CASE.id, base, head, {}, {})
    assert [item.verdict for item in judged] == [Verdict.IDENTICAL, Verdict.REGRESSION]
    assert judged[1].sentence.startswith("Expected at most")
    assert "bytes allocated in forward, as in base, but head has" in judged[1].sentence
    assert exit_code(item.verdict for item in judged) is Exit.REGRESSION
    cheaper = classify(SPEC.name, CASE.id, head, base, {}, {})
    assert [item.verdict for item in cheaper] == [Verdict.IDENTICAL]


def gives_way(tile: int | None = None, **arguments: Any) -> Tensor:
    """The right values from plain PyTorch, as when a dispatcher falls back in silence."""
    return reference(**arguments)


def test_a_kernel_that_gave_way_was_not_compared() -> None:
    judged = classify(SPEC.name, CASE.id, record("same"), record("gives_way"), {}, {})
    assert [item.verdict for item in judged] == [Verdict.IDENTICAL, Verdict.INCONCLUSIVE]
    assert "no kernel of head was compared" in judged[1].sentence
    for base in ("same", "gives_way"):
        judged = classify(SPEC.name, CASE.id, record(base), record(base), {}, {})
        assert [item.verdict for item in judged] == [Verdict.IDENTICAL]
    assert not given_way({"forward launches": 1}, {"forward allocated": 8})


def test_a_count_that_one_arm_lacks_is_not_compared() -> None:
    assert list(dearer({}, {"forward launches": 1})) == []
    assert list(dearer({"forward launches": 1}, {})) == []


def test_a_copy_that_the_contract_allows_is_none() -> None:
    base, copy, launch = (record(n, may_copy=True).cost for n in ("same", "copied", "twice"))
    assert dict(dearer(base, copy)) == {}
    assert set(dict(dearer(base, launch))) == {"forward launches"}
