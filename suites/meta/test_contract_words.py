"""What is said of a contract that is wrong, or of an op that is out of scope: one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parity import Input, OpSpec, Output
from parity.generate import plan
from parity.record import Record
from parity.runner import run_case

OPS = """
import torch
from parity import Input, OpSpec, Output


def norm(x): return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
def mean(a, b): return (0.5 * (a.float() + b.float())).to(a.dtype)
def first(a, b): return (0.5 * a.float()).to(a.dtype)


def norm_reference(x, compute_dtype=None, magnitude=False):
    return norm(x.to(compute_dtype)).to(x.dtype)


def mean_reference(a, b, compute_dtype=None, magnitude=False):
    return (0.5 * (a.to(compute_dtype) + b.to(compute_dtype))).to(a.dtype)


def op(name, candidate, reference, inputs, **more):
    return OpSpec(
        name=name,
        candidate=f"small_ops:{candidate}",
        reference=f"small_ops:{reference}",
        inputs=tuple(Input(one, "tokens width") for one in inputs),
        outputs=(Output("y"),),
        axes={"width": (3, 40)},
        gradients=("contiguous",),
        **more,
    )

"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "small_ops.py").write_text(OPS)
    monkeypatch.syspath_prepend(tmp_path)
    return __import__("small_ops").op


def records(spec: OpSpec) -> list[Record]:
    return [run_case(spec, case) for case in plan(spec, 1, 0)]


def test_an_op_that_is_not_linear_is_told_to_be_out_of_scope(own: Any) -> None:
    with pytest.raises(ValueError, match="not linear in each of its data inputs") as told:
        records(own("norm", "norm", "norm_reference", "x"))
    assert ".;" not in str(told.value)
    assert told.value.__cause__ is None


def test_a_constant_coefficient_takes_the_number_of_terms(own: Any) -> None:
    with pytest.raises(ValueError, match=r"but got 0\.5: .* set OpSpec\.terms"):
        records(own("mean", "mean", "mean_reference", "ab"))
    right = own("mean", "mean", "mean_reference", "ab", terms=2)
    assert {record.status for record in records(right)} == {"passed"}
    wrong = own("mean", "first", "mean_reference", "ab", terms=2)
    assert "failed" in {record.status for record in records(wrong)}


@pytest.mark.parametrize("one_in", [1, 10**6])
def test_an_illegal_call_that_nobody_knows_is_a_fault_of_the_contract(
    own: Any, one_in: int
) -> None:
    """In every case, also where few make such a call."""
    refuses = {"refuses": ("slim_table",), "refuses_in": one_in}
    with pytest.raises(ValueError, match=r"among narrow_table, .* got 'slim_table'"):
        records(own("mean", "mean", "mean_reference", "ab", terms=2, **refuses))


def contract(**changed: Any) -> OpSpec:
    given: dict[str, Any] = {"name": "op", "candidate": "a.b:f", "reference": "a.b:f", "axes": {}}
    return OpSpec(**given | {"inputs": (Input("x", "rows"),), "outputs": (Output("y"),)} | changed)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"candidate": "a.b"}, "candidate of op 'op' as \"package.module:function\" but got 'a.b'"),
        ({"reference": ":f"}, "reference of op 'op' as \"package.module:function\""),
        ({"inputs": Input("x", "rows")}, "inputs of op 'op' as a tuple of Input"),
        ({"outputs": ("y",)}, "outputs of op 'op' as a tuple of Output"),
        ({"refuses_in": 0}, "refuses_in of op 'op' as a number of cases from 1 but got 0"),
    ],
)
def test_a_contract_with_a_slip_is_refused_where_it_is_made(
    changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        contract(**changed)
    assert contract().name == "op"


@pytest.mark.parametrize(
    "slip",
    [
        {"name": ""},
        {"axes": None},
        {"axes": {"width": ("3",)}},
        {"axes": {"width": (-1,)}},
        {"arguments": 3},
        {"layouts": ()},
        {"layouts": "thd"},
        {"cp_sizes": 2},
        {"cp_sizes": (0,)},
        {"refuses": "data_of_integers"},
        {"refuses_in": "3"},
        {"refuses_in": True},
        {"terms": 0},
        {"candidate": 3},
        {"sums": "y"},
    ],
)
def test_a_field_of_another_type_is_named(slip: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "name": "copy",
        "candidate": "small:copy",
        "reference": "small:copy",
        "inputs": (Input("x", "tokens width"),),
        "outputs": (Output("y"),),
        "axes": {"width": (1, 2)},
    }
    OpSpec(**right)
    with pytest.raises(ValueError, match=r"^Expected .* but got .*\.$"):
        OpSpec(**(right | slip))
