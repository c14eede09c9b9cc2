"""Which values of its axes an op was run with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .case import Case
from .generate import choices, coverage, finite_axes
from .spec import OpSpec


def covered(spec: OpSpec, cases: Iterable[Case]) -> dict[str, Any]:
    """``pairs`` of finite choices (that ran, that could), and for each of the finite ``axes``
    the number of cases with each value the contract allows, as ``[value, cases]``."""
    ran = list(cases)
    counts: dict[str, dict[Any, int]] = {"layout": dict.fromkeys(spec.layouts, 0)}
    for layout in spec.layouts:
        for axis, values in finite_axes(spec, layout).items():
            counts.setdefault(axis, {}).update(dict.fromkeys(values, 0))
    for case in ran:
        for axis, value in {"layout": case.layout, **choices(case)}.items():
            counted = counts.setdefault(axis, {})
            counted[value] = counted.get(value, 0) + 1
    axes = {
        axis: [[value, count] for value, count in found.items()] for axis, found in counts.items()
    }
    return {"pairs": list(coverage(spec, ran)), "axes": axes}
