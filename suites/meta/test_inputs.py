"""Tensors of a case and the plan of cases."""

import hashlib
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from parity import guards, runner
from parity.behaviour import behaves, chosen
from parity.case import Case
from parity.catalog import resolve
from parity.generate import FAR, SERVED, choices, coverage, plan
from parity.guards import HOST, bits, tensor_bytes
from parity.inputs import Inputs, build_inputs
from parity.observe import Observation
from parity.reference.out_of_place import fused_mla_rope_out_of_place
from parity.rope_tables import Table
from parity.runner import run_case
from parity.spec import OpSpec
from parity.values import table_angles

STORAGE = torch.arange(24, dtype=torch.float16)


@pytest.mark.parametrize(
    ("shape", "stride", "wanted"),
    [
        ((1, 1, 1), (2, 2, 2), [0]),  # passes for contiguous, whatever its strides
        ((2, 3), (6, 2), [0, 2, 4, 6, 8, 10]),
        ((3, 2), (1, 3), [0, 3, 1, 4, 2, 5]),
        ((2, 2), (0, 1), [0, 1, 0, 1]),
        ((0, 4), (4, 1), []),
        ((), (), [0]),
    ],
)
def test_bytes_are_the_elements_in_row_major_order(
    shape: tuple[int, ...], stride: tuple[int, ...], wanted: list[int]
) -> None:
    tensor = STORAGE.as_strided(shape, stride).requires_grad_()
    assert tensor_bytes(tensor) == torch.tensor(wanted, dtype=torch.float16).numpy().tobytes()


@pytest.mark.parametrize("spec", resolve("parity").values(), ids=lambda spec: spec.name)
def test_one_compilation_serves_many_cases_of_a_long_plan(spec: OpSpec) -> None:
    """After the covering array, SERVED cases at a time have equal lanes and equal choices but for
    those that only the data depend on."""
    array = plan(spec, 0, 0)
    cases = plan(spec, len(array) + 3 * SERVED, 0)
    assert cases[: len(array)] == array
    assert len({case.id for case in cases}) == len(array) + 3 * SERVED
    covered, possible = coverage(spec, array)
    assert covered == possible
    more = cases[len(array) :]
    runs = [more[n : n + SERVED] for n in range(0, len(more), SERVED)]
    for run in runs:
        lanes = [{n: v for n, v in case.axes.items() if n.endswith("dim")} for case in run]
        fixed = [(case.layout, case.dtype, case.flags, case.tile) for case in run]
        assert lanes[1:] == lanes[:-1]
        assert fixed[1:] == fixed[:-1]
        assert len({(case.variants["values"], case.halves) for case in run}) > SERVED // 3
    assert len({str(choices(run[0])) for run in runs}) == len(runs)


# --- memory --------------------------------------------------------------------------------------

FAR_CASE = next(
    case
    for case in plan(resolve("parity")["fused_mla_rope_out_of_place"], 0, 0)
    if case.axes["spare_positions"] == FAR
    and (case.variants["cos"], case.variants["storage"]) == ("sliced", "apart")
)


def built(case: Case = FAR_CASE) -> Inputs:
    return build_inputs(resolve("parity")[case.op], case, HOST)


def test_a_further_run_starts_from_what_the_first_one_was_given() -> None:
    first = built()
    for item in first.tensors.values():
        item.buffer.zero_()
    again, wanted = first.afresh({}), built()
    for name, item in wanted.tensors.items():
        assert torch.equal(bits(again.tensors[name].buffer), bits(item.buffer))
        assert again.tensors[name].buffer.data_ptr() != first.tensors[name].buffer.data_ptr()
    assert first.digest() == wanted.digest()


@pytest.mark.parametrize("where", [None, "cos", "sin", "beside cos"])
def test_a_further_run_reads_only_tables_that_the_first_left_alone(where: str | None) -> None:
    first = built()
    if where == "beside cos":
        first.tensors["cos"].buffer[0] = 0
    elif where:
        first.tensors[where].tensor[-1, -1] += 1
    again = first.afresh(Observation(first).lent)
    shared = {n for n, item in again.tensors.items() if item.buffer is first.tensors[n].buffer}
    assert "t" not in shared
    assert ("cos" in shared, "sin" in shared) == (where in (None, "sin"), where != "sin")
    for name, item in built().tensors.items():
        assert torch.equal(bits(again.tensors[name].buffer), bits(item.buffer))


ROTATION = replace(
    resolve("parity")["fused_mla_rope_out_of_place"],
    candidate=f"{__name__}:writes_later",
    tiles={},
    refuses=(),
    validating=None,
    outside="unspecified",
    twin=None,
)
CALLS = count()


def writes_later(*, cos: Tensor, **rest: Any) -> Tensor:
    """Every call but the first writes into a row of the table that no position needs."""
    if next(CALLS):
        cos[-1] = 2
    return fused_mla_rope_out_of_place(cos=cos, **rest)


def test_a_table_that_a_further_run_wrote_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(
        case
        for case in plan(ROTATION, 0, 0)
        if case.layout == "sbhd" and case.axes["spare_positions"] == 3
    )
    monkeypatch.setitem(globals(), "CALLS", count())
    found = {(finding.check, finding.tensor) for finding in run_case(ROTATION, case).findings}
    assert ("inputs_unchanged", "cos") in found  # a rule of the case's own may find it, too
    honest = replace(ROTATION, candidate=ROTATION.reference)
    assert run_case(honest, case).findings == ()
    monkeypatch.setitem(globals(), "CALLS", count())
    inputs = tuple(replace(item, mutable=item.name == "cos") for item in ROTATION.inputs)
    assert run_case(replace(ROTATION, inputs=inputs), case).findings == ()


KEPT: dict[int, Tensor] = {}


def remembers_the_first(*, cos: Tensor, **rest: Any) -> Tensor:
    """Finds what it prepared by the id of a table, and knows the first table alone."""
    if not KEPT:
        KEPT[id(cos)] = cos
    return fused_mla_rope_out_of_place(cos=KEPT.get(id(cos), torch.zeros_like(cos)), **rest)


def prepares_with_gradients(*, cos: Any, **rest: Any) -> Tensor:
    """Leaves what inference needs too on the table, but in training only."""
    if torch.is_grad_enabled():
        cos.prepared = cos.clone()
    return fused_mla_rope_out_of_place(cos=cos.prepared, **rest)


def wears_its_table_out(*, cos: Any, **rest: Any) -> Tensor:
    """Counts calls on the table and is wrong from the second on."""
    cos.calls = getattr(cos, "calls", 0) + 1
    return fused_mla_rope_out_of_place(cos=cos / cos.calls, **rest)


def prepares_once(*, cos: Any, **rest: Any) -> Tensor:
    """What is kept on a table belongs to that table, and is made where it lacks."""
    if not hasattr(cos, "prepared"):
        cos.prepared = cos.clone()
    return fused_mla_rope_out_of_place(cos=cos.prepared, **rest)


@pytest.mark.parametrize(
    ("candidate", "effect"),
    [
        ("remembers_the_first", "without_gradients"),
        ("prepares_with_gradients", "without_gradients"),
        ("wears_its_table_out", "repeats"),
    ],
)
def test_what_is_kept_by_the_tensor_of_a_table_is_found(
    candidate: str, effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeats read the tables of the first run as the same tensors, other further runs as new."""
    monkeypatch.setattr(runner, "EXTRAS", (behaves,))
    monkeypatch.setitem(globals(), "KEPT", {})
    spec = replace(ROTATION, candidate=f"{__name__}:{candidate}")
    case = next(case for case in plan(ROTATION, 0, 0) if chosen(ROTATION, case) == effect)
    assert {finding.check for finding in run_case(spec, case).findings} == {f"effect:{effect}"}
    honest = replace(spec, candidate=f"{__name__}:prepares_once")
    assert run_case(honest, case).findings == ()


def test_a_far_table_is_what_its_formula_gives_between_nan() -> None:
    table = built().tensors["cos"]
    angles = table_angles(table.tensor.shape[0], table.tensor.shape[1], FAR_CASE.halves)
    wanted = torch.from_numpy(np.cos(angles)).to(table.tensor.dtype)
    assert torch.equal(table.tensor, wanted)
    assert bool(table.buffer[~table.image.inside("cos")].isnan().all())
    assert int(table.image.inside("cos").sum()) == wanted.numel()


def test_every_value_and_every_guard_of_a_far_table_counts() -> None:
    for inside in (True, False):
        inputs = built()
        table = inputs.tensors["cos"]
        hit = (table.image.inside("cos") == inside).nonzero().flatten()[-1]
        table.buffer[hit] = 0
        changed = table.changed()
        assert [len(part) for part in changed] == [inside, not inside]


def test_the_digest_of_inputs_sees_one_value_of_a_far_table() -> None:
    one, other = Table("cos", "equal", 4, torch.float32), Table("cos", "equal", 4, torch.bfloat16)
    assert one.digest(FAR) == hashlib.sha256(tensor_bytes(one.rows(FAR))).digest()
    assert len({one.digest(FAR), one.digest(FAR + 1), other.digest(FAR)}) == 3


@pytest.mark.parametrize("place", [(0, 0), (0, 6), (1, 9), (1, 10)])
def test_buffers_compared_in_pieces_differ_by_one_bit_anywhere(
    place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU where they are large; NaN is like itself and -0 unlike 0."""
    monkeypatch.setattr(guards, "LARGE", 4)
    ones = [torch.full((7,), float("nan")), torch.zeros(11, dtype=torch.bfloat16), torch.zeros(0)]
    others = [tensor.clone() for tensor in ones]
    assert guards._alike_in_pieces([*zip(ones, others, strict=True)])
    buffer, element = place
    others[buffer][element] = -0.0
    assert not guards._alike_in_pieces([*zip(ones, others, strict=True)])
