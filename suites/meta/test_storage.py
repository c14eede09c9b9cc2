"""Arguments in one storage: bugs that no other memory shows, and their honest twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from parity.case import Case
from parity.catalog import resolve
from parity.effects import Allocations
from parity.generate import is_legal, plan
from parity.guards import HOST
from parity.inputs import Inputs, build_inputs
from parity.observe import Observation
from parity.reference.concat import fused_mla_rope_concat
from parity.relations.layouts import contiguous_is_strided
from parity.runner import run_case
from parity.shrink import summary
from parity.spec import STRIDES, Input, OpSpec, Output
from parity.storage import BETWEEN, Arrangement, arrangement
from suites.meta import blend

Tensor = torch.Tensor
SLICED = ("contiguous", "sliced")
BLEND = replace(
    blend.SPEC,
    inputs=(
        Input("x", "rows heads dim", strides=SLICED),
        Input("r", "rows heads dim", strides=SLICED),
    ),
    dtypes=("float32",),
)
IN_PLACE = replace(
    BLEND,
    inputs=(replace(BLEND.inputs[0], mutable=True), BLEND.inputs[1]),
    outputs=(Output("y", alias="x"),),
)
CONCAT = replace(
    resolve("parity")["fused_mla_rope_concat"],
    tiles={},
    refuses=(),
    validating=None,
    outside="unspecified",
)


# --- candidates ----------------------------------------------------------------------------------


def same_storage(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def converts_each_storage_once(x: Tensor, r: Tensor) -> Tensor:
    """A cache of converted tensors under the address of their storage."""
    wide: dict[int, Tensor] = {}
    x, r = (wide.setdefault(t.untyped_storage().data_ptr(), t.float()) for t in (x, r))
    return blend.honest(x, r)


def expects_one_projection(x: Tensor, r: Tensor) -> Tensor:
    """Takes two tensors of one storage for slices whose rows lie side by side."""
    if same_storage(x, r):
        r = r.as_strided(x.shape, x.stride(), x.storage_offset() + x.shape[-1])
    return blend.honest(x, r)


def _dense_halves(x: Tensor, r: Tensor) -> bool:
    return same_storage(x, r) and x.is_contiguous() and r.is_contiguous()


def _reads_behind_the_first(x: Tensor, r: Tensor) -> Tensor:
    """Takes two dense tensors of one storage for the halves of one tensor."""
    if _dense_halves(x, r):
        r = r.as_strided(r.shape, r.stride(), x.storage_offset() + x.numel())
    return blend.forward(x, r)


def _reads_where_it_lies(x: Tensor, r: Tensor) -> Tensor:
    if _dense_halves(x, r):
        r = r.as_strided(r.shape, r.stride(), r.storage_offset())
    return blend.forward(x, r)


begins_where_the_first_ends = blend.planted(_reads_behind_the_first)
begins_where_it_says = blend.planted(_reads_where_it_lies)


def refuses_one_storage(x: Tensor, r: Tensor) -> Tensor:
    if same_storage(x, r):
        raise ValueError("Expected x and r in memory of their own.")
    return blend.honest(x, r)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, both: bool) -> Tensor:
        value = blend.forward(x, r)
        if both and same_storage(x, r):
            r.data.copy_(value)
        x.data.copy_(value)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *blend.backward(grads[0]), None


def in_place(x: Tensor, r: Tensor) -> Tensor:
    return _InPlace.apply(x, r, False)


def in_place_over_the_projection(x: Tensor, r: Tensor) -> Tensor:
    """Where both are slices of one projection, one launch writes both."""
    return _InPlace.apply(x, r, True)


def concat(**arguments: Any) -> Tensor:
    return fused_mla_rope_concat(**arguments)


def takes_one_tensor_for_one_sequence(**arguments: Any) -> Tensor:
    """Compares offsets by identity and counts on from the first token where they are one tensor."""
    offsets = arguments["cu_seqlens"]
    if offsets is not None and arguments["cu_seqlens_padded"] is offsets:
        ends = torch.stack([offsets[0], offsets[-1]])
        arguments |= {"cu_seqlens": ends, "cu_seqlens_padded": None}
    return fused_mla_rope_concat(**arguments)


# --- what a case asks for ------------------------------------------------------------------------


def kv_split(storage: str, **variants: str) -> Inputs:
    spec = resolve("parity")["fused_mla_rope_kv_split"]
    case = next(c for c in plan(spec, 0, 0) if c.layout == "thd" and c.axes["heads"] > 1)
    variants = {**case.variants, "storage": storage, **variants}
    case = replace(case, seed=0, gaps=(0,) * len(case.lengths), variants=variants)
    assert is_legal(spec, case) == ""
    return build_inputs(spec, case, HOST)


def test_slices_of_one_projection_lie_side_by_side() -> None:
    inputs = kv_split("shared", kv="sliced", k_pos_emb="sliced", cos="sliced", sin="sliced")
    kv, k_pe, cos, sin = (inputs.tensors[n].tensor for n in ("kv", "k_pos_emb", "cos", "sin"))
    for one, other in ((kv, k_pe), (cos, sin)):
        assert same_storage(one, other)
        assert one.stride(0) == other.stride(0)
        row = one[0].numel()
        assert one.storage_offset() + row == other.storage_offset()
        assert one.stride(0) >= row + other[0].numel()
    assert not same_storage(kv, cos)


@pytest.mark.parametrize("strides", SLICED)
def test_seeds_take_every_order_and_distance(strides: str) -> None:
    case = blend.small_case("float32", storage="shared", x=strides, r=strides)
    seen = set()
    for seed in range(40):
        one = replace(case, seed=seed)
        tensors = build_inputs(BLEND, one, HOST).tensors
        x, r = (tensors[name].tensor for name in ("x", "r"))
        row = x.numel() if strides == "contiguous" else x.shape[-1]
        apart = r.storage_offset() - x.storage_offset()
        expected = arrangement(one)
        assert expected == Arrangement(apart < 0, abs(apart) - row)
        seen.add(expected)
    assert len(seen) == 2 * len(BETWEEN)
    assert arrangement(case) == Arrangement(last_first=False, between=0)
    assert arrangement(blend.small_case("float32", storage="apart")) is None


def test_a_case_in_few_words_says_how_its_storage_is_shared() -> None:
    case = blend.small_case("float32", storage="shared")
    assert summary(case).endswith(" storage=shared (in order, nothing between)")
    turned = next(
        replace(case, seed=seed)
        for seed in range(99)
        if arrangement(replace(case, seed=seed)) == Arrangement(last_first=True, between=8)
    )
    assert summary(turned).endswith(" storage=shared (last first, 8 between)")
    assert "storage" not in summary(blend.small_case("float32", storage="apart"))


@pytest.mark.parametrize("strides", ["contiguous", "offset", "sliced", "transposed"])
def test_the_numbers_are_the_same_wherever_they_lie(strides: str) -> None:
    apart, shared = (kv_split(s, kv=strides, cos="sliced") for s in ("apart", "shared"))
    again = shared.afresh({})
    for name, item in apart.tensors.items():
        for inputs in (shared, again):
            assert torch.equal(inputs.tensors[name].tensor, item.tensor)
    assert same_storage(again.tensors["kv"].tensor, again.tensors["k_pos_emb"].tensor)
    assert not same_storage(again.tensors["kv"].tensor, shared.tensors["kv"].tensor)


def test_equal_offsets_are_one_tensor() -> None:
    shared = kv_split("shared")
    tensors = shared.tensors
    assert tensors["cu_seqlens_kv"].tensor is tensors["cu_seqlens_padded"].tensor
    seen = Observation(shared)
    for lent, same in ((seen.lend(), False), (seen.lent, True)):
        again = shared.afresh(lent).tensors
        assert again["cu_seqlens_kv"].tensor is again["cu_seqlens_padded"].tensor
        assert (again["cu_seqlens_kv"].tensor is tensors["cu_seqlens_kv"].tensor) == same
        assert same_storage(again["cu_seqlens_kv"].tensor, tensors["cu_seqlens_kv"].tensor)
        assert not again["cu_seqlens_kv"].tensor._is_view()
    assert "cu_seqlens_padded" not in kv_split("apart").tensors


def test_a_write_is_laid_to_the_tensor_it_hit() -> None:
    inputs = kv_split("shared", kv="sliced", k_pos_emb="sliced")
    kv, k_pe = inputs.tensors["kv"], inputs.tensors["k_pos_emb"]
    k_pe.tensor.fill_(9)  # which no value is
    assert [len(part) for part in kv.changed()] == [0, 0]
    assert [len(part) for part in k_pe.changed()] == [k_pe.tensor.numel(), 0]
    kv.buffer[int(kv.image.inside("kv").nonzero()[0]) - 1] = 0
    assert [len(item.changed()[1]) for item in (kv, k_pe)] == [1, 1]


def test_an_owner_is_found_while_new_memory_is_watched() -> None:
    """New tensors of torch lie elsewhere in their storage then: a mask made of one was shifted, so
    that loads of one tensor were laid to its neighbour and called stray."""
    kv, k_pe = (kv_split("shared").tensors[name] for name in ("kv", "k_pos_emb"))
    with Allocations("forward", [], {}):
        assert kv.holds(kv.tensor.data_ptr())
        assert not k_pe.holds(kv.tensor.data_ptr())


def test_a_case_that_was_kept_before_has_storages_of_their_own() -> None:
    case = blend.small_case("float32")
    assert "storage" not in case.variants
    assert is_legal(BLEND, case) == ""
    tensors = build_inputs(BLEND, case, HOST).tensors
    assert not same_storage(tensors["x"].tensor, tensors["r"].tensor)


def test_one_tensor_has_nothing_to_share() -> None:
    alone = replace(BLEND, inputs=BLEND.inputs[:1])
    assert not alone.shares_storage
    assert all("storage" not in case.variants for case in plan(alone, 0, 0))


def test_the_relation_of_layouts_sees_one_storage_too() -> None:
    case = blend.small_case("float32", storage="apart")
    (other,) = contiguous_is_strided(BLEND, case)
    assert other.case.variants["storage"] == "shared"
    (back,) = contiguous_is_strided(BLEND, other.case)
    assert back.case == case


# --- what it finds -------------------------------------------------------------------------------


def failing(spec: OpSpec, name: str) -> tuple[list[Case], set[str]]:
    """The planned cases that fail, and the checks they fail.  A relation may bring a case whose
    tensors lie apart together."""
    spec = replace(spec, candidate=f"{__name__}:{name}", twin=None)
    records = [(case, run_case(spec, case)) for case in _some(spec)]
    found = [(c, f) for c, record in records for f in record.findings if ":" not in f.check]
    return [case for case, _ in found], {finding.check for _, finding in found}


def _some(spec: OpSpec) -> list[Case]:
    """All cases of the small op, and of the other one those in which one tensor makes two offsets,
    and as many others."""
    cases = plan(spec, 0, 0)
    if spec.name == "blend":
        return cases
    packed = [
        replace(c, gaps=(0,) * len(c.lengths), variants={**c.variants, "position_ids": "absent"})
        for c in cases
        if sum(length > 0 for length in c.lengths) > 1
    ]
    kinds = {s: [c for c in packed if c.variants["storage"] == s] for s in ("apart", "shared")}
    return [case for pair in zip(*kinds.values(), strict=False) for case in pair]


@pytest.mark.parametrize(
    ("spec", "bug", "check"),
    [
        (BLEND, "converts_each_storage_once", "values"),
        (BLEND, "expects_one_projection", "values"),
        (BLEND, "begins_where_the_first_ends", "values"),
        (BLEND, "refuses_one_storage", "runs"),
        (IN_PLACE, "in_place_over_the_projection", "inputs_unchanged"),
        (CONCAT, "takes_one_tensor_for_one_sequence", "runs"),
    ],
)
def test_a_bug_that_only_one_storage_shows(spec: OpSpec, bug: str, check: str) -> None:
    cases, checks = failing(spec, bug)
    assert cases
    assert {case.variants["storage"] for case in cases} == {"shared"}
    assert check in checks


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (BLEND, "honest"),
        (BLEND, "begins_where_it_says"),
        (IN_PLACE, "in_place"),
        (CONCAT, "concat"),
    ],
)
def test_the_honest_twins_pass(spec: OpSpec, name: str) -> None:
    assert failing(spec, name) == ([], set())


honest = blend.honest


def weighted(x: Tensor, w: Tensor, **modes: Any) -> Tensor:
    """One number of all of x and of a weight that its rows share."""
    wide = modes.get("compute_dtype", torch.float64)
    return (x.to(wide) * w.to(wide)).sum().to(x.dtype)


def test_every_memory_layout_of_tensors_with_few_axes() -> None:
    """A weight has one axis and the gradient none, so that some layouts are one and the same."""
    spec = OpSpec(
        name="weighted",
        candidate=f"{__name__}:weighted",
        reference=f"{__name__}:weighted",
        inputs=(Input("x", "rows width", strides=STRIDES), Input("w", "width", strides=STRIDES)),
        outputs=(Output("y"),),
        axes={"width": (3, 1)},
        gradients=STRIDES,
        dtypes=("float32",),
        values=("normal",),
    )
    assert [found for case in plan(spec, 0, 0) for found in run_case(spec, case).findings] == []
