"""Tensors of a case and the plan of cases."""

import pytest
import torch

from parity.catalog import resolve
from parity.generate import SERVED, choices, coverage, plan
from parity.guards import tensor_bytes
from parity.spec import OpSpec

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
    """After the covering array, SERVED cases at a time have equal choices and lanes."""
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
    assert len({str(choices(run[0])) for run in runs}) == len(runs)
