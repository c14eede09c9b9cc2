"""Routes by which a search never comes to the data that shows a bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from parity.catalog import resolve
from parity.generate import plan
from parity.reference.out_of_place import fused_mla_rope_out_of_place
from parity.runner import run_case
from parity.spec import OpSpec

Tensor = torch.Tensor
SPEC = replace(
    resolve("parity")["fused_mla_rope_out_of_place"],
    candidate=f"{__name__}:honest",
    twin=f"{__name__}:honest",
    tiles={"tile": (None, 4)},
    refuses=(),
    validating=None,
    outside="unspecified",  # plain PyTorch raises
)


def honest(*, tile: int | None = None, **arguments: Any) -> Tensor:
    """Plain PyTorch; a search is the same for any candidate."""
    return fused_mla_rope_out_of_place(**arguments)


class _Backward(torch.autograd.Function):
    """The identity, whose backward puts a change of the incoming gradient before the honest one."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.change(grads[0]), None


def takes_gradients_for_ones(**arguments: Any) -> Tensor:
    return _Backward.apply(honest(**arguments), torch.ones_like)


def takes_halves_for_equal(**arguments: Any) -> Tensor:
    half = arguments["cos"].shape[-1] // 2
    doubled = {name: arguments[name][..., :half].repeat(1, 2) for name in ("cos", "sin")}
    return honest(**arguments | doubled)


def forgets_heads_past_a_power_of_two(**arguments: Any) -> Tensor:
    y = honest(**arguments)
    heads = y.shape[-2]
    kept = (torch.arange(heads, device=y.device) < 2 ** (heads.bit_length() - 1)).to(y.dtype)
    return y * kept[:, None]


def takes_a_pack_for_one_sequence(**arguments: Any) -> Tensor:
    offsets = arguments["cu_seqlens_q"]
    if offsets is None or arguments["position_ids"] is not None:
        return honest(**arguments)
    rows = torch.arange(len(arguments["t"]), device=offsets.device) % len(arguments["cos"])
    return honest(**arguments | {"position_ids": rows})


def rotates_batch_row_0_only(**arguments: Any) -> Tensor:
    y, t = honest(**arguments), arguments["t"]
    return y if t.dim() == 3 else torch.cat([y[:, :1], t[:, 1:]], dim=1)


def takes_every_rank_for_0(**arguments: Any) -> Tensor:
    return honest(**arguments | {"cp_rank": 0})


def leaves_half_to_another_tile(*, tile: int | None = None, **arguments: Any) -> Tensor:
    """As in an output that every tile has written while they were timed."""
    if tile is None:
        return honest(**arguments)
    y = honest(**arguments)
    half = torch.empty_like(y)
    half.flatten()[: y.numel() // 2] = y.flatten()[: y.numel() // 2]
    return half


BLIND_SPOTS = [
    takes_gradients_for_ones,
    takes_halves_for_equal,
    forgets_heads_past_a_power_of_two,
    takes_a_pack_for_one_sequence,
    rotates_batch_row_0_only,
    takes_every_rank_for_0,
    leaves_half_to_another_tile,
]


@pytest.mark.parametrize("bug", [item.__name__ for item in BLIND_SPOTS])
def test_a_bug_in_a_usual_blind_spot_is_met(bug: str) -> None:
    """Whatever the seed of the plan, and in a third of it."""
    spec = replace(SPEC, candidate=f"{__name__}:{bug}")
    for seed in range(2):
        assert any(run_case(spec, case).findings for case in plan(spec, 0, seed)[seed::3])


def test_its_honest_twin_passes() -> None:
    for case in plan(SPEC, 0, 0)[::3]:
        assert run_case(SPEC, case).findings == ()


@pytest.mark.parametrize("spec", resolve("parity").values(), ids=lambda spec: spec.name)
def test_every_plan_leaves_the_usual_shapes(spec: OpSpec) -> None:
    """Heads that are no power of two, several batch entries and sequences, every rank."""
    cases = plan(spec, 0, 0)
    heads = {case.axes["heads"] for case in cases}
    assert {n for n in heads if n & (n - 1)}
    assert {case.axes.get("batch") for case in cases} >= {1, 2}
    assert any(sum(length > 0 for length in case.lengths) > 2 for case in cases)
    assert {case.cp_rank for case in cases if case.cp_size == 4} == {0, 1, 2, 3}
