"""Bugs of autotuners, which run one call with every tile to see which is fastest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parity.kernels.inplace import fused_mla_rope_inplace
from parity.kernels.out_of_place import fused_mla_rope_out_of_place

from .bug import IN_PLACE, ROTATE, plant

TILES = (1, 4, 16)


def _tuned(arguments: dict[str, Any], restore: Any) -> Tensor:
    """Run every tile on the real tensor, as an autotuner does, and then the one that was best."""
    others = {name: value for name, value in arguments.items() if name not in ("t", "tile")}
    t = arguments["t"].detach()
    before = t.clone()
    for tile in TILES:
        fused_mla_rope_inplace(t=t, tile=tile, **others)
        restore(t, before)
    return fused_mla_rope_inplace(t=arguments["t"], tile=4, **others)


def restores_each_time(**arguments: Any) -> Tensor:
    """An autotuner that puts back what each tile has written."""
    return _tuned(arguments, lambda t, before: t.copy_(before))


@plant(IN_PLACE, "values", "output", twin=restores_each_time)
def rotates_while_it_tunes(**arguments: Any) -> Tensor:
    """Every tile is tried on the real argument, which the first call rotates that often."""
    return _tuned(arguments, lambda t, before: t)


@plant(IN_PLACE, "values", "output", twin=restores_each_time)
def zeroes_what_it_restores(**arguments: Any) -> Tensor:
    """One hook restores the argument and another one then sets it to zero."""
    return _tuned(arguments, lambda t, before: t.zero_())


class _Half(torch.autograd.Function):
    """The first half of the rows, in memory that an autotuner would have filled before."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        half = torch.empty_like(output)
        half[: len(output) // 2] = output[: len(output) // 2]
        return half

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


@plant(ROTATE, "written", "output", tile={"tile": 4})
def writes_half_in_one_tile(**arguments: Any) -> Tensor:
    """One tile writes half of the output, and the others wrote the rest while they were timed."""
    output = fused_mla_rope_out_of_place(**arguments)
    return _Half.apply(output) if arguments["tile"] == 4 else output
