"""Writes outside of the tensor that a buffer holds, and in which phase they happened."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import torch

from .guards import Guarded
from .observe import Observation


def strays(seen: Observation) -> Iterator[tuple[str, str, Guarded, torch.Tensor]]:
    """Phase, name, buffer and changed elements of each buffer written outside of its tensor."""
    early = [*seen.inputs.tensors.items()]
    early += [("memory it allocated", a.guarded) for a in seen.allocations if a.phase == "forward"]
    for (name, item), between in zip_longest(early, seen.after_forward):
        if not len(seen.changed(item)[1]):
            continue
        middle = item.buffer if between is None else between
        for phase, outside in (
            ("forward", item.changed(until=middle)[1]),
            ("backward", item.changed(since=middle)[1]),
        ):
            if len(outside):
                yield phase, name, item, outside
    late = [(f"incoming gradient of {name}", item) for name, item in seen.gradients.items()]
    late += [("memory it allocated", a.guarded) for a in seen.allocations if a.phase == "backward"]
    for name, item in late:
        _, outside = seen.changed(item)
        if len(outside):
            yield "backward", name, item, outside
