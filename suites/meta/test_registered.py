"""opcheck where an op is registered with torch: a fake kernel that lies, and an honest twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from parity.behaviour import chosen
from parity.case import Case
from parity.generate import plan
from parity.record import Finding
from parity.runner import run_case
from parity.spec import Input, OpSpec, Output


def double(x: Tensor, *, compute_dtype: Any = None, magnitude: bool = False) -> Tensor:
    return x * 2


def _double(x: Tensor) -> Tensor:
    return x * 2


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    return grad * 2


honest = torch.library.custom_op("parity_meta::honest", _double, mutates_args=())
honest.register_fake(lambda x: torch.empty_like(x))
honest.register_autograd(_backward)
packet = torch.ops.parity_meta.honest

wrong_fake = torch.library.custom_op("parity_meta::wrong_fake", _double, mutates_args=())
wrong_fake.register_fake(lambda x: x.new_empty(x.shape[0]))
wrong_fake.register_autograd(_backward)

no_fake = torch.library.custom_op("parity_meta::no_fake", _double, mutates_args=())
no_fake.register_autograd(_backward)


def spec(name: str) -> OpSpec:
    return OpSpec(
        name="double",
        candidate=f"{__name__}:{name}",
        reference=f"{__name__}:double",
        inputs=(Input("x", "rows dim"),),
        outputs=(Output("y"),),
        axes={"dim": range(2, 9)},
        dtypes=("float32",),
        values=("normal",),
        gradients=("contiguous",),
        terms=1,
    )


def case_of(name: str) -> Case:
    """The first planned case that is held to opcheck."""
    contract = spec(name)
    return next(case for case in plan(contract, 40, 0) if chosen(contract, case) == "opcheck")


def findings(name: str) -> tuple[Finding, ...]:
    record = run_case(spec(name), case_of(name))
    assert "effect:opcheck" in record.checks
    return record.findings


@pytest.mark.parametrize("name", ["honest", "packet"])
def test_an_operator_that_is_what_it_says_passes(name: str) -> None:
    assert findings(name) == ()


@pytest.mark.parametrize("name", ["wrong_fake", "no_fake"])
def test_a_fake_kernel_that_lies_or_is_missing_is_found(name: str) -> None:
    found = {(item.check, item.tensor) for item in findings(name)}
    assert ("effect:opcheck", "test_faketensor") in found


def test_a_function_is_never_held_to_it() -> None:
    contract = spec("double")
    assert "opcheck" not in {chosen(contract, case) for case in plan(contract, 40, 0)}
