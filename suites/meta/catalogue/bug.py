"""A planted bug: a candidate, the contract and the case it is run on, and what must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

from parity.behaviour import EFFECTS, chosen
from parity.case import Case
from parity.catalog import resolve
from parity.generate import build, finite_axes
from parity.relations import derive, order
from parity.spec import OpSpec
from parity.verdict import Verdict

Candidate = Callable[..., Any]
_OURS = resolve("parity")


def ours(name: str) -> OpSpec:
    """A contract of this repository without its illegal calls, which only some bugs ask for."""
    return replace(_OURS[name], refuses=(), validating=None, twin=None)


ROTATE = ours("fused_mla_rope_out_of_place")
IN_PLACE = ours("fused_mla_rope_inplace")
SPLIT = ours("fused_mla_rope_kv_split")
CONCAT = ours("fused_mla_rope_concat")


@dataclass(frozen=True)
class Bug:
    """``check`` and ``tensor`` are those of the finding, or of the hazard, that must be among what
    is found; ``verdict`` is what the gate says where base runs the honest twin."""

    what: str
    candidate: str
    twin: str
    spec: OpSpec
    case: Case
    check: str
    tensor: str
    verdict: Verdict


BUGS: dict[str, Bug] = {}


def plant(
    spec: OpSpec,
    check: str,
    tensor: str,
    *,
    layout: str = "sbhd",
    twin: Candidate | None = None,
    verdict: Verdict = Verdict.REGRESSION,
    **choices: Any,
) -> Callable[[Candidate], Candidate]:
    """Enter a candidate into the catalogue; ``choices`` are fields of the case that differ from its
    simplest one.  The first line of its docstring is what the page says about it."""

    def enter(candidate: Candidate) -> Candidate:
        name = candidate.__name__
        BUGS[name] = Bug(
            what=str(candidate.__doc__).splitlines()[0],
            candidate=_path(candidate),
            twin=_path(twin) if twin else spec.candidate,
            spec=spec,
            case=_held_to(check, spec, _case(spec, layout, choices)),
            check=check,
            tensor=tensor,
            verdict=verdict,
        )
        return candidate

    return enter


def _path(function: Candidate) -> str:
    return f"{function.__module__}:{function.__name__}"


SIZES = {"heads": 3, "nope_dim": 5, "rope_dim": 8, "k_dim": 5, "v_dim": 2, "seq": 3, "batch": 2}


def _case(spec: OpSpec, layout: str, choices: dict[str, Any]) -> Case:
    """The simplest case of ``SIZES``, in which the fields ``choices`` are changed."""
    row = {name: values[0] for name, values in finite_axes(spec, layout).items()}
    plain = build(spec, layout, row, Random(0))
    sizes = {name: SIZES.get(name, value) for name, value in plain.axes.items()}
    if layout == "thd":
        plain = replace(plain, lengths=(3, 4), gaps=(0, 0))
    merged = {
        name: {**getattr(plain, name), **choices.pop(name, {})} for name in ("flags", "variants")
    }
    sizes |= choices.pop("axes", {})
    return replace(plain, axes=sizes, **merged, **choices)


def _held_to(check: str, spec: OpSpec, case: Case) -> Case:
    """The case with the first seed that chooses the check, where a seed chooses it."""
    kind, _, name = check.partition(":")
    seeded = (replace(case, seed=seed) for seed in count())
    if kind == "relation":
        assert derive(name, spec, case)
        return next(each for each in seeded if order(each.seed)[0] == name)
    if kind == "effect":
        assert EFFECTS[name].applies(spec, case)
        return next(each for each in seeded if chosen(spec, each) == name)
    return case


def as_published(bug: Bug) -> OpSpec:
    """The contract with the bug as its candidate; where it is about an illegal call of an op of
    ours, with all of that op's."""
    spec = replace(bug.spec, candidate=bug.candidate)
    ours = bug.twin == bug.spec.candidate
    return replace(spec, refuses=_OURS[spec.name].refuses) if spec.refuses and ours else spec
