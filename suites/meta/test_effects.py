"""Effects that take a further run: every rule catches a planted bug and passes its honest twin."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable

from parity import runner
from parity.behaviour import EFFECTS, behaves, chosen
from parity.case import Case
from parity.catalog import resolve
from parity.generate import plan
from parity.record import Finding, Record
from parity.spec import Input, OpSpec, Output
from suites.meta import blend

Tensor = torch.Tensor
SPEC = replace(blend.SPEC, candidate=f"{__name__}:honest")
WRITES_GRADIENTS = replace(SPEC, outputs=(Output("y", gradient_mutable=True),))
IN_PLACE = replace(
    SPEC,
    inputs=(Input("x", "rows heads dim", mutable=True), Input("r", "rows heads dim")),
    outputs=(Output("y", alias="x"),),
)


# --- candidates ----------------------------------------------------------------------------------


def _value(x: Tensor, r: Tensor) -> Tensor:
    return (0.75 * x.float() - 0.375 * r.float()).to(x.dtype)


def _gradients(grad: Tensor) -> tuple[Tensor, Tensor]:
    return 0.75 * grad, -0.375 * grad


class _Blend(torch.autograd.Function):
    """The honest op; a planted bug replaces its backward, which is given ``ctx`` too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, backward: Any) -> Tensor:
        ctx.step, ctx.calls = backward, 0
        return _value(x, r)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.calls += 1
        return *ctx.step(ctx, grads[0]), None


class _Once(_Blend):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *_gradients(grads[0]), None


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, mark: bool) -> Tensor:
        x.data.copy_(_value(x, r))  # as a Triton kernel: the version counter does not move
        if not mark:
            return x.view(x.shape)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *_gradients(grads[0]), None


def honest(x: Tensor, r: Tensor) -> Tensor:
    return _Blend.apply(x, r, lambda ctx, grad: _gradients(grad))


def honest_once(x: Tensor, r: Tensor) -> Tensor:
    return _Once.apply(x, r, None)


def marks_dirty(x: Tensor, r: Tensor) -> Tensor:
    return _InPlace.apply(x, r, True)


def marks_nothing(x: Tensor, r: Tensor) -> Tensor:
    return _InPlace.apply(x, r, False)


def _planted(backward: Callable[[Any, Tensor], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, r: _Blend.apply(x, r, backward)


def _reuses_memory(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Takes a gradient that fills its memory for its own; those of the harness never do."""
    right = -0.375 * grad
    if grad.untyped_storage().nbytes() == grad.numel() * grad.element_size():
        return grad.data.mul_(0.75), right
    return 0.75 * grad, right


def _uses_up(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    return _gradients(grad / ctx.calls)


def _refuses_a_second(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    if ctx.calls > 1:
        raise RuntimeError("Expected one backward; its buffers are used up.")
    return _gradients(grad)


def _halves_the_graph(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    return _gradients(0.5 * (grad + grad.detach()))


def _needs_both(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    left, right = _gradients(grad)
    return left if ctx.needs_input_grad[1] else -left, right


def _writes_its_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    right = -0.375 * grad
    return grad.data.mul_(0.75), right


writes_its_gradient = _planted(_writes_its_gradient)
reuses_memory = _planted(_reuses_memory)
uses_up = _planted(_uses_up)
refuses_a_second = _planted(_refuses_a_second)
drops_the_graph = _planted(lambda ctx, grad: (0.75 * grad, -0.375 * grad.detach()))
halves_the_graph = _planted(_halves_the_graph)
needs_both = _planted(_needs_both)


def refuses_leaves(x: Tensor, r: Tensor) -> Tensor:
    if x.is_leaf:
        raise ValueError("Expected no leaf.")
    return honest(x, r)


def refuses_views(x: Tensor, r: Tensor) -> Tensor:
    if x._is_view():
        raise RuntimeError("Expected no view.")
    return honest(x, r)


_TURN = count()


def every_other_ulp(x: Tensor, r: Tensor) -> Tensor:
    """Within the bound on every run, and other bits than on the run before."""
    y = honest(x, r)
    with torch.no_grad():
        return y if next(_TURN) % 2 else y.copy_(torch.nextafter(y, torch.full_like(y, 1e9)))


_BUFFERS: dict[torch.Size, Tensor] = {}


class _OneBuffer(_Blend):
    """Every call of one shape returns the same memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, backward: Any) -> Tensor:
        ctx.step, ctx.calls = backward, 0
        if x.shape not in _BUFFERS:
            _BUFFERS[x.shape] = torch.empty_like(x)
        return _BUFFERS[x.shape].copy_(_value(x, r)).detach()


def keeps_one_buffer(x: Tensor, r: Tensor) -> Tensor:
    if next(_TURN) == 0:
        _BUFFERS.clear()
    return _OneBuffer.apply(x, r, lambda ctx, grad: _gradients(grad))


def hurries_in_inference(x: Tensor, r: Tensor) -> Tensor:
    return honest(x, r) if torch.is_grad_enabled() else 0.75 * x - (0.375 * r).bfloat16()


def rotates_in_place_in_inference(x: Tensor, r: Tensor) -> Tensor:
    return honest(x, r) if torch.is_grad_enabled() else x.copy_(_value(x, r))


# --- the rules -----------------------------------------------------------------------------------

PLANTED = [
    (IN_PLACE, "marks_nothing", "saved_tensors", "saved by the op before", "changed by forward"),
    (IN_PLACE, "marks_nothing", "leaves_and_views", "leaf", "accepted"),
    (IN_PLACE, "marks_nothing", "leaves_and_views", "chunk", "accepted"),
    (SPEC, "refuses_leaves", "leaves_and_views", "leaf", "refused"),
    (SPEC, "refuses_views", "leaves_and_views", "chunk", "refused"),
    (SPEC, "reuses_memory", "second_consumer", "gradient beside y", "overwritten"),
    (
        WRITES_GRADIENTS,
        "writes_its_gradient",
        "second_consumer",
        "gradient beside y",
        "overwritten",
    ),
    (SPEC, "uses_up", "retained_graph", "x.grad", "second backward differs"),
    (SPEC, "drops_the_graph", "double_backward", "r.grad", "graph dropped"),
    (SPEC, "halves_the_graph", "double_backward", "y", "double backward wrong"),
    (SPEC, "needs_both", "one_input_only", "x.grad", "differs"),
    (SPEC, "every_other_ulp", "repeats", "y", "nondeterministic"),
    (SPEC, "keeps_one_buffer", "repeats", "y", "overwritten"),
    (SPEC, "hurries_in_inference", "without_gradients", "y", "differs"),
    (SPEC, "rotates_in_place_in_inference", "without_gradients", "x", "written"),
]
APPLIES = [n for n, e in EFFECTS.items() if e.applies(SPEC, blend.small_case("float32"))]
HONEST = [(SPEC, "honest"), (SPEC, "honest_once"), (IN_PLACE, "marks_dirty")]


def _case(spec: OpSpec, effect: str) -> Case:
    """The first seed whose case is held to ``effect``."""
    blank = blend.small_case("float32")
    cases = (replace(blank, seed=seed) for seed in count())
    return next(case for case in cases if chosen(spec, case) == effect)


def _run(spec: OpSpec, candidate: str, effect: str) -> Record:
    record = runner.run_case(
        replace(spec, candidate=f"{__name__}:{candidate}"), _case(spec, effect)
    )
    assert f"effect:{effect}" in record.checks
    return record


def _kinds(findings: tuple[Finding, ...]) -> set[tuple[str, str, str]]:
    return {(finding.check, finding.tensor, finding.error) for finding in findings}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other check runs the candidate again, so that a bug that counts runs is predictable."""
    monkeypatch.setattr(runner, "EXTRAS", (behaves,))
    monkeypatch.setitem(globals(), "_TURN", count())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("spec", "candidate", "effect", "tensor", "error"), PLANTED)
def test_a_planted_bug_is_found_by_its_rule(
    spec: OpSpec, candidate: str, effect: str, tensor: str, error: str
) -> None:
    findings = _run(spec, candidate, effect).findings
    assert (f"effect:{effect}", tensor, error) in _kinds(findings)
    assert {finding.check for finding in findings} == {f"effect:{effect}"}


@pytest.mark.parametrize("effect", APPLIES)
@pytest.mark.parametrize(("spec", "candidate"), HONEST)
def test_an_honest_op_passes_every_rule(spec: OpSpec, candidate: str, effect: str) -> None:
    assert _run(spec, candidate, effect).findings == ()


def test_a_second_backward_may_be_refused() -> None:
    assert _run(SPEC, "refuses_a_second", "retained_graph").findings == ()


def test_a_mutation_names_who_saved_and_who_wrote() -> None:
    (finding,) = _run(IN_PLACE, "marks_nothing", "saved_tensors").findings
    assert "what the op before saved" in finding.sentence
    assert "forward of _InPlaceBackward changed" in finding.sentence


@pytest.mark.usefixtures("alone")
def test_a_further_run_that_raises_is_a_finding() -> None:
    record = _run(SPEC, "raises_later", "repeats")
    assert [(f.tensor, f.error) for f in record.findings] == [("further run", "KeyError: 'gone'")]


def raises_later(x: Tensor, r: Tensor) -> Tensor:
    if next(_TURN):
        raise KeyError("gone")
    return honest(x, r)


def test_the_plan_of_every_op_exercises_every_effect() -> None:
    for spec in resolve("parity").values():
        several = sum(item.kind == "data" for item in spec.inputs) > 1
        wanted = set(EFFECTS) - (set() if several else {"one_input_only"})
        wanted -= set() if spec.has("position_ids") else {"positions_outside"}
        assert {chosen(spec, case) for case in plan(spec, 0, 0)} == wanted, spec.name


def test_each_effect_is_chosen_as_often_as_its_share_says() -> None:
    seeds = [replace(_case(SPEC, "repeats"), seed=seed) for seed in range(2000)]
    picks = [chosen(SPEC, case) for case in seeds]
    for name in APPLIES:
        # five standard deviations of 2000 draws at 2/9 are below 100
        assert abs(picks.count(name) - 2000 * EFFECTS[name].share / 9) < 100, name


def test_the_same_seed_chooses_the_same_effect_when_a_case_shrinks() -> None:
    case = _case(SPEC, "second_consumer")
    assert chosen(SPEC, replace(case, axes={"heads": 3, "dim": 4, "tokens": 1})) == (
        "second_consumer"
    )
