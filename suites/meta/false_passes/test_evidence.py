"""Routes by which what a judge looks at is not what it seems: memory of others, a wrong oracle."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from parity.behaviour import EFFECTS, chosen
from parity.case import Case
from parity.effects import is_poison
from parity.record import Record
from parity.runner import run_case
from suites.meta.blend import SPEC, backward, forward, planted, reference, small_case

Tensor = torch.Tensor


def run(candidate: str, **contract: Any) -> Record:
    return run_case(
        replace(SPEC, candidate=f"{__name__}:{candidate}", **contract), small_case("float32")
    )


def found(record: Record) -> set[tuple[str, str]]:
    return {(finding.check, finding.tensor) for finding in record.findings}


def honest(x: Tensor, r: Tensor) -> Tensor:
    return planted()(x, r)


# --- whose memory


never_writes = planted(lambda x, r: torch.empty_like(x), lambda grad: (torch.empty_like(grad),) * 2)


def test_memory_that_held_the_right_answer_is_no_answer() -> None:
    """The honest op has just run and freed its results, where an allocator would look first."""
    assert run("honest").findings == ()
    assert {("written", "y"), ("written", "x.grad")} <= found(run("never_writes"))


class _Alone(torch.autograd.Function):
    """Where only x asks for a gradient, hands out memory that has just held it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor) -> Tensor:
        return forward(x, r)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        left, right = backward(grads[0])
        if not ctx.needs_input_grad[1]:
            del left
            left = torch.empty_like(grads[0])
        return left, right


def forgets_where_alone(x: Tensor, r: Tensor) -> Tensor:
    return _Alone.apply(x, r)


def _held_to(effect: str) -> Case:
    cases = (replace(small_case("float32"), seed=seed) for seed in count())
    return next(case for case in cases if chosen(SPEC, case) == effect)


def test_what_a_further_run_forgets_is_seen() -> None:
    spec, case = (
        replace(SPEC, candidate=f"{__name__}:forgets_where_alone"),
        _held_to("one_input_only"),
    )
    assert ("effect:one_input_only", "x.grad") in found(run_case(spec, case))
    assert run_case(replace(SPEC, candidate=f"{__name__}:honest"), case).findings == ()


FRESH: list[bool] = []


def _looks() -> None:
    FRESH.append(bool(is_poison(torch.empty(24)).all()))


def looks(x: Tensor, r: Tensor) -> Tensor:
    """The honest op, which notes whether memory it is given anew is poison."""
    _looks()
    return planted(backward=lambda grad: (_looks(), backward(grad))[1])(x, r)


@pytest.mark.parametrize("effect", sorted(set(EFFECTS) - {"positions_outside"}))
def test_memory_of_every_run_is_poisoned(effect: str) -> None:
    FRESH.clear()
    assert run_case(replace(SPEC, candidate=f"{__name__}:looks"), _held_to(effect)).findings == ()
    assert len(FRESH) > 2
    assert all(FRESH)


def _zeroes_what_it_is_given(x: Tensor, r: Tensor) -> Tensor:
    x.detach().zero_(), r.detach().zero_()
    return torch.zeros_like(x)


def _negates_in_the_shared_buffer(grad: Tensor) -> tuple[Tensor, Tensor]:
    return backward(grad.neg_())


zeroes_its_inputs = planted(_zeroes_what_it_is_given)
negates_its_gradient = planted(backward=_negates_in_the_shared_buffer)


def test_the_reference_reads_what_the_candidate_cannot_write() -> None:
    """On inputs that the candidate has zeroed, or gradients it has turned, both would agree."""
    assert {("values", "y"), ("inputs_unchanged", "x")} <= found(run("zeroes_its_inputs"))
    turned = found(run("negates_its_gradient"))
    assert {("values", "x.grad"), ("gradients_unchanged", "incoming gradient of y")} <= turned


# --- the oracle


def rounds_to_16_bits(
    x: Tensor, r: Tensor, *, compute_dtype: torch.dtype = torch.float32, magnitude: bool = False
) -> Tensor:
    """A reference that rounds as its kernel does, so that it sees nothing wrong in it."""
    y = reference(x, r, compute_dtype=compute_dtype, magnitude=magnitude)
    return y.bfloat16().to(y.dtype)


def stays_in_16_bits(x: Tensor, r: Tensor, **modes: Any) -> Tensor:
    return reference(x, r, **modes).bfloat16()


def zeroes_its_argument(x: Tensor, r: Tensor, **modes: Any) -> Tensor:
    y = reference(x, r, **modes)
    with torch.no_grad():
        r.zero_()
    return y


half_precise = planted(lambda x, r: forward(x, r).bfloat16().to(x.dtype))


@pytest.mark.parametrize("oracle", ["rounds_to_16_bits", "stays_in_16_bits", "zeroes_its_argument"])
def test_a_reference_that_cannot_be_an_oracle_is_refused(oracle: str) -> None:
    for candidate in ("half_precise", "honest"):
        with pytest.raises(ValueError, match="Expected the reference"):
            run(candidate, reference=f"{__name__}:{oracle}")
    assert ("values", "y") in found(run("half_precise"))
