"""Every relation catches a bug that candidate and reference share, and passes the honest twin."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.case import Case
from parity.catalog import resolve
from parity.generate import plan
from parity.record import Record
from parity.reference.out_of_place import fused_mla_rope_out_of_place
from parity.reference.positions import pack_rows
from parity.relations import RELATIONS, derive, order
from parity.runner import run_case
from parity.shrink import Budget, shrink
from parity.spec import Input, OpSpec, Output, Unsupported

Tensor = torch.Tensor
SPEC = replace(
    resolve("parity")["fused_mla_rope_out_of_place"],
    candidate=f"{__name__}:honest",
    reference=f"{__name__}:honest",
    twin=f"{__name__}:honest",
    axes={"heads": (1, 2, 3), "nope_dim": (2, 4), "rope_dim": (4, 6)},
    values=("normal",),
    refuses=(),
    validating=None,
)


def honest(*, tile: int | None = None, **arguments: Any) -> Tensor:
    return fused_mla_rope_out_of_place(**arguments)


def _elsewhere(arguments: dict[str, Any]) -> Tensor:
    """The same at another position of the table."""
    moved = {name: arguments[name].roll(1, 0) for name in ("cos", "sin")}
    return honest(**arguments | moved)


def last_sequence_off_by_one(**arguments: Any) -> Tensor:
    offsets, ids = arguments["cu_seqlens_q"], arguments["position_ids"]
    if offsets is None or ids is not None:
        return honest(**arguments)
    starts = offsets.tolist()
    padded = arguments["cu_seqlens_padded"]
    places = starts if padded is None else padded.tolist()
    cp, whole = arguments["cp_size"], arguments["whole_pack_table"]
    tokens = len(arguments["t"])
    rows = torch.tensor(pack_rows(tokens, starts, places, arguments["cp_rank"], cp, whole))
    rows[places[-2] // cp : places[-1] // cp] += 1
    return honest(**arguments | {"position_ids": rows % len(arguments["cos"])})


def rows_meet_in_a_sum(**arguments: Any) -> Tensor:
    return honest(**arguments) + 0 * arguments["t"].sum(0)


def gradient_rows_meet_in_a_sum(**arguments: Any) -> Tensor:
    return _MeetingBackward.apply(honest(**arguments))


class _MeetingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor) -> Tensor:
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] + 0 * grads[0].sum(0)


def inverse_goes_forward(**arguments: Any) -> Tensor:
    return honest(**arguments | {"inverse": False})


def tables_exchanged(**arguments: Any) -> Tensor:
    return honest(**arguments | {"cos": arguments["sin"], "sin": arguments["cos"]})


def ranks_in_reverse(**arguments: Any) -> Tensor:
    size = arguments.get("cp_size", 1)
    return honest(**arguments | {"cp_rank": size - 1 - arguments.get("cp_rank", 0)})


def batch_moves_the_position(**arguments: Any) -> Tensor:
    if arguments["t"].dim() == 3:
        return honest(**arguments)
    first, *others = arguments["t"].split(1, dim=1)
    moved = [_elsewhere(arguments | {"t": entry}) for entry in others]
    return torch.cat([honest(**arguments | {"t": first}), *moved], dim=1)


def last_head_elsewhere(**arguments: Any) -> Tensor:
    t = arguments["t"]
    kept = honest(**arguments | {"t": t[..., :-1, :]})
    return torch.cat([kept, _elsewhere(arguments | {"t": t[..., -1:, :]})], dim=-2)


def strided_elsewhere(**arguments: Any) -> Tensor:
    return honest(**arguments) if arguments["t"].is_contiguous() else _elsewhere(arguments)


def strided_loses_the_sign_of_zero(**arguments: Any) -> Tensor:
    result = honest(**arguments)
    return result if arguments["t"].is_contiguous() else result + 0.0


def int64_elsewhere(**arguments: Any) -> Tensor:
    offsets = arguments["cu_seqlens_q"]
    wide = offsets is not None and offsets.dtype == torch.int64
    return _elsewhere(arguments) if wide else honest(**arguments)


def wide_tile_elsewhere(*, tile: int | None = None, **arguments: Any) -> Tensor:
    return _elsewhere(arguments) if tile == 16 else honest(**arguments)


def wide_tile_raises(*, tile: int | None = None, **arguments: Any) -> Tensor:
    if tile == 16:
        raise IndexError("row 17 of 12")
    return honest(**arguments)


def wide_tile_drops_the_gradient(*, tile: int | None = None, **arguments: Any) -> Tensor:
    if tile == 16:
        return _Forgetful.apply(honest(**arguments))
    return honest(**arguments)


class _Forgetful(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor) -> Tensor:
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        return None


def one_tile_only(*, tile: int | None = None, **arguments: Any) -> Tensor:
    if tile is not None:
        raise Unsupported("This revision has one tile.")
    return honest(**arguments)


def wide_tile_one_ulp_off(*, tile: int | None = None, **arguments: Any) -> Tensor:
    result = honest(**arguments)
    return _Nudged.apply(result, arguments["nope_dim"]) if tile == 16 else result


class _Nudged(torch.autograd.Function):
    """The next number in every rotated lane."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, nope_dim: int) -> Tensor:
        nudged = result.clone()
        nudged[..., nope_dim:] = torch.nextafter(result, torch.full_like(result, 1e9))[
            ..., nope_dim:
        ]
        return nudged

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


SHARED = [  # the same bug in candidate and reference: no oracle shows it
    ("thd_is_sbhd_each", "last_sequence_off_by_one"),
    ("permuted_sequences", "last_sequence_off_by_one"),
    ("inserted_empty_sequences", "last_sequence_off_by_one"),
    ("poisoned_neighbour", "rows_meet_in_a_sum"),
    ("poisoned_neighbour", "gradient_rows_meet_in_a_sum"),
    ("inverse_undoes", "inverse_goes_forward"),
    ("in_place_is_out_of_place", "tables_exchanged"),
    ("cp_ranks_reassemble", "ranks_in_reverse"),
    ("batch_split", "batch_moves_the_position"),
    ("head_split", "last_head_elsewhere"),
]
ALONE = [  # a bug of the candidate that this very case does not meet
    ("contiguous_is_strided", "strided_elsewhere"),
    ("contiguous_is_strided", "strided_loses_the_sign_of_zero"),
    ("int32_is_int64", "int64_elsewhere"),
    ("every_tile", "wide_tile_elsewhere"),
    ("every_tile", "wide_tile_drops_the_gradient"),
]


def _case(name: str) -> Case:
    """A planned case that is held to relation ``name``, in its simplest memory and dtypes."""
    seed = next(seed for seed in range(10_000) if order(seed)[0] == name)
    for case in plan(SPEC, 0, 0):
        variants = dict.fromkeys(case.variants, "contiguous")
        variants |= {"values": "normal", "storage": "apart"}
        if case.layout == "thd":
            variants |= {"cu_seqlens": "int32", "position_ids": "absent"}
        flags = {**case.flags, "inverse": True, "rope_first": False, "whole_pack_table": False}
        case = replace(
            case,
            dtype="float32",
            table_dtype="float32",
            flags={key: flags[key] for key in case.flags},
            axes={**case.axes, "spare_positions": 3},
            variants=variants,
            tile={"tile": None},
            seed=seed,
        )
        rows = case.axes.get("seq", case.lengths[-1] if len(case.lengths) > 2 else 0)
        if rows > 1 and case.axes["heads"] > 1 and derive(name, SPEC, case):
            return case
    raise LookupError(name)


def _run(relation: str, candidate: str, reference: str = "honest", **contract: Any) -> Record:
    names = {"candidate": f"{__name__}:{candidate}", "reference": f"{__name__}:{reference}"}
    return run_case(replace(SPEC, **names, **contract), _case(relation))


def _found(record: Record) -> set[str]:
    return {finding.check for finding in record.findings}


@pytest.mark.parametrize(("relation", "bug"), SHARED)
def test_a_bug_that_the_reference_shares_is_found(relation: str, bug: str) -> None:
    record = _run(relation, bug, bug)
    assert _found(record) == {f"relation:{relation}"}
    assert record.findings[0].error == "differs"
    assert f"relation:{relation}" in record.findings[0].sentence


@pytest.mark.parametrize(("relation", "bug"), ALONE)
def test_a_bug_that_the_case_does_not_meet_is_found(relation: str, bug: str) -> None:
    assert _found(_run(relation, bug)) == {f"relation:{relation}"}


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_honest_op_is_held_to_the_relation_and_passes(relation: str) -> None:
    for bit_equal in (True, False):
        record = _run(relation, "honest", bit_equal=bit_equal)
        assert (record.status, record.findings) == ("passed", ())
        promised = bit_equal or relation != "every_tile"  # which is about bits and nothing else
        assert (f"relation:{relation}" in record.checks) == promised


def test_each_relation_has_a_planted_bug() -> None:
    assert {relation for relation, _ in SHARED + ALONE} == set(RELATIONS)


def test_a_derived_run_that_raises_is_a_finding_of_the_relation() -> None:
    (finding,) = _run("every_tile", "wide_tile_raises").findings
    assert (finding.check, finding.tensor) == ("relation:every_tile", "forward")
    assert finding.error == "IndexError: row N of N"


def test_what_a_derived_run_does_not_support_is_not_counted_as_checked() -> None:
    record = _run("every_tile", "one_tile_only")
    assert record.status == "passed"
    held = [name for name in record.checks if name.startswith("relation:")]
    assert len(held) == 1
    assert held != ["relation:every_tile"]


def test_other_bits_within_the_bounds_are_a_finding_only_where_bits_are_promised() -> None:
    assert _found(_run("every_tile", "wide_tile_one_ulp_off")) == {"relation:every_tile"}
    assert _run("every_tile", "wide_tile_one_ulp_off", bit_equal=False).findings == ()
    held = _run("every_tile", "wide_tile_elsewhere", bit_equal=False).checks
    assert "relation:every_tile" not in held


def test_the_order_depends_on_the_seed_only_and_holds_every_relation_once() -> None:
    assert order(17) == order(17)
    assert {tuple(sorted(order(seed))) for seed in range(50)} == {tuple(sorted(RELATIONS))}
    assert {order(seed)[0] for seed in range(500)} == set(RELATIONS)


def total(*, x: Tensor, **modes: Any) -> Tensor:
    return x.to(modes.get("compute_dtype", torch.float32)).sum(dim=(0, 1, 2)).to(x.dtype)


def test_an_output_without_the_axes_of_a_relation_is_not_held_to_it() -> None:
    name = f"{__name__}:total"
    spec = OpSpec(
        name="total",
        candidate=name,
        reference=name,
        inputs=(Input("x", "rows heads dim"),),
        outputs=(Output("y"),),
        axes={"heads": (1, 2), "dim": (4, 8)},
        layouts=("sbhd",),
    )
    for case in plan(spec, 0, 0):
        record = run_case(spec, replace(case, axes={**case.axes, "heads": 2, "batch": 2}))
        assert record.findings == ()
        assert not {"relation:batch_split", "relation:head_split"} & set(record.checks)


def summed_rows(*, x: Tensor, **modes: Any) -> Tensor:
    return x.to(modes.get("compute_dtype", torch.float32)).flatten(0, -3).sum(0).to(x.dtype)


def summed_heads(*, x: Tensor, **modes: Any) -> Tensor:
    return x.to(modes.get("compute_dtype", torch.float32)).sum(-2).to(x.dtype)


@pytest.mark.parametrize(
    ("function", "layout", "sizes", "relation"),
    [
        ("summed_rows", "thd", {"heads": 3, "dim": 4}, "permuted_sequences"),
        ("summed_rows", "thd", {"heads": 3, "dim": 4}, "poisoned_neighbour"),
        ("summed_rows", "sbhd", {"heads": 2, "dim": 4, "seq": 2, "batch": 4}, "batch_split"),
        ("summed_heads", "plain", {"heads": 4, "dim": 4, "tokens": 2}, "head_split"),
    ],
)
def test_sizes_that_are_equal_by_chance_are_no_axes(
    function: str, layout: str, sizes: dict[str, int], relation: str
) -> None:
    name = f"{__name__}:{function}"
    spec = OpSpec(
        name="summed",
        candidate=name,
        reference=name,
        inputs=(Input("x", "rows heads dim"),),
        outputs=(Output("y"),),
        axes={"heads": (1, 2, 3, 4), "dim": (4,)},
        layouts=(layout,),
        values=("normal",),
        sums=("y",),
    )
    seed = next(seed for seed in range(500) if order(seed)[0] == relation)
    packing = {"lengths": (1, 2), "gaps": (0, 0), "tail": 0} if layout == "thd" else {}
    record = run_case(spec, replace(plan(spec, 0, 0)[0], axes=sizes, seed=seed, **packing))
    assert record.findings == ()
    assert f"relation:{relation}" not in record.checks


def doubled(*, x: Tensor, **modes: Any) -> Tensor:
    return (x.to(modes.get("compute_dtype", torch.float32)) * 2).to(x.dtype)


@pytest.mark.parametrize(
    ("shape", "layout", "relation"),
    [
        ("tokens heads dim", "thd", "permuted_sequences"),
        ("seq batch heads dim", "sbhd", "batch_split"),
        ("batch seq heads dim", "bshd", "batch_split"),
        ("batch seq heads dim", "bshd", "head_split"),
    ],
)
def test_rows_may_be_named_by_the_axes_they_are(shape: str, layout: str, relation: str) -> None:
    name = f"{__name__}:doubled"
    spec = OpSpec(
        name="doubled",
        candidate=name,
        reference=name,
        inputs=(Input("x", shape),),
        outputs=(Output("y"),),
        axes={"heads": (1, 2), "dim": (4,)},
        layouts=(layout,),
        values=("normal",),
        terms=2,
    )
    seed = next(seed for seed in range(500) if order(seed)[0] == relation)
    packing = {"lengths": (1, 2), "gaps": (0, 0)} if layout == "thd" else {}
    case = replace(plan(spec, 0, 0)[0], seed=seed, **packing)
    axes = {"heads": 2, **({} if packing else {"batch": 2})}
    record = run_case(spec, replace(case, axes={**case.axes, **axes}))
    assert record.findings == ()
    assert f"relation:{relation}" in record.checks


def test_shrinking_keeps_the_relation() -> None:
    bug = f"{__name__}:last_sequence_off_by_one"
    spec = replace(SPEC, candidate=bug, reference=bug)

    def still_fails(case: Case) -> bool:
        return _found(run_case(spec, case)) == {"relation:permuted_sequences"}

    smallest = shrink(spec, _case("permuted_sequences"), still_fails, Budget(runs=60))
    assert still_fails(smallest)
    assert len(smallest.lengths) == 2
    assert smallest.axes["heads"] == 1


def test_the_page_describes_every_relation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "relations.md").read_text(encoding="utf-8")
    described = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert described == {f"relation:{name}" for name in RELATIONS}


@pytest.mark.parametrize("spec", resolve("parity").values(), ids=lambda spec: spec.name)
def test_the_plan_holds_some_case_to_every_relation_that_applies(spec: OpSpec) -> None:
    """If a changed contract leaves one out, give it a larger share."""
    first, possible = Counter[str](), set()
    for case in plan(spec, 0, 0):
        names = [name for name in order(case.seed) if derive(name, spec, case)]
        possible |= set(names)
        first.update(names[:1])
    assert possible - set(first) == set()
    assert len(possible) >= len(RELATIONS) - 2


@pytest.mark.parametrize("spec", resolve("parity").values(), ids=lambda spec: spec.name)
def test_a_reference_as_its_own_candidate_passes(spec: OpSpec) -> None:
    own = replace(
        spec,
        candidate=spec.reference,
        twin=spec.twin and spec.reference,
        inputs=tuple(replace(item, mutable=False) for item in spec.inputs),
        outputs=tuple(replace(item, alias=None) for item in spec.outputs),
        tiles={},
        refuses=(),
    )
    for case in plan(own, 0, 0)[::9]:
        record = run_case(own, case)
        assert record.findings == ()
        assert any(name.startswith("relation:") for name in record.checks)
