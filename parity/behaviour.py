"""Effects that take a further run to see.  Each case is held to one of them, chosen by its seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from . import autograd_rules as rules
from .case import Case
from .evidence import Evidence
from .observe import describe_error
from .outside import cuttable, positions_outside
from .record import Finding
from .registered import opcheck, registered
from .saved import saved_tensors
from .second_order import double_backward
from .spec import OpSpec, Unsupported


@dataclass(frozen=True)
class Effect:
    """A rule, the cases it says something about, and how many of 11 cases prefer it."""

    rule: Callable[[Evidence], Iterator[Finding]]
    applies: Callable[[OpSpec, Case], bool] = lambda spec, case: True
    share: int = 1


def _dense_gradients(spec: OpSpec, case: Case) -> bool:
    return "contiguous" in spec.gradients


def _dense_inputs(spec: OpSpec, case: Case) -> bool:
    return all("contiguous" in item.strides for item in spec.inputs if item.kind == "data")


def _several_inputs(spec: OpSpec, case: Case) -> bool:
    return sum(item.kind == "data" for item in spec.inputs) > 1


def _far_from_overflow(spec: OpSpec, case: Case) -> bool:
    """A second derivative may compute what the first need not, such as a sum of other terms."""
    return case.variants.get("values") not in ("huge", "nan_lane", "inf_lane")


EFFECTS: dict[str, Effect] = {
    "repeats": Effect(rules.repeats, share=2),
    "saved_tensors": Effect(saved_tensors),
    "second_consumer": Effect(rules.second_consumer, _dense_gradients),
    "retained_graph": Effect(rules.retained_graph),
    "double_backward": Effect(double_backward, _far_from_overflow),
    "leaves_and_views": Effect(rules.leaves_and_views, _dense_inputs),
    "one_input_only": Effect(rules.one_input_only, _several_inputs),
    "without_gradients": Effect(rules.without_gradients),
    "positions_outside": Effect(positions_outside, cuttable, share=2),
}


def behaves(evidence: Evidence) -> tuple[str, list[Finding]]:
    """Hold the case to its effect."""
    inputs = evidence.seen.inputs
    name = chosen(inputs.spec, inputs.case)
    effect = effects_of(inputs.spec)[name]
    check = f"effect:{name}"
    try:
        return check, list(effect.rule(evidence))
    except Unsupported:
        return "", []
    except Exception as error:  # noqa: BLE001  # the first run was clean, so this is the op's fault
        kind, frame = describe_error(error)
        sentence = f"Expected a further run for {check} to work but it raised {kind}."
        return check, [Finding(check, "further run", kind, frame=frame, sentence=sentence)]


def chosen(spec: OpSpec, case: Case) -> str:
    """The first effect that applies, in an order that depends on the case's seed only."""
    effects = effects_of(spec)
    shares = [effect.share for effect in effects.values()]
    drawn = Random(f"effect/{case.seed}").sample(list(effects), sum(shares), counts=shares)
    return next(name for name in drawn if effects[name].applies(spec, case))


def effects_of(spec: OpSpec) -> dict[str, Effect]:
    """The effects an op may be held to: an operator of torch has one more."""
    return EFFECTS | ({"opcheck": Effect(opcheck)} if registered(spec) else {})
