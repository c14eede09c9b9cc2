"""The comparators say what differs, how much of it, and which element to show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan

import pytest
import torch

from parity.comparators import non_finite, same_bits, structure, used_share, within

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_structure_names_what_differs_first() -> None:
    for actual, error, sentence in (
        (torch.zeros(2, 3, dtype=torch.float64), "shape", "has shape (2, 3) where (2, 2)"),
        (X.double(), "dtype", "has dtype torch.float64 where torch.float32"),
        (X.to("meta"), "device", "has device meta where cpu"),
    ):
        found = structure(actual=actual, expected=X, strides=False)
        assert found is not None
        assert (found.error, found.sentence) == (error, f"{sentence} was expected")
        assert (found.where.tolist(), found.worst, found.ratio) == ([], (), inf)
    assert structure(actual=X.clone(), expected=X, strides=True) is None


def test_strides_are_compared_on_request_and_where_there_are_elements() -> None:
    turned = X.t().contiguous().t()
    assert structure(actual=turned, expected=X, strides=False) is None
    found = structure(actual=turned, expected=X, strides=True)
    assert found is not None
    assert found.error == "strides"
    assert found.sentence == "has strides (1, 2) where (2, 1) were expected"
    empty = torch.zeros(2, 0)
    assert structure(actual=empty.t().contiguous().t(), expected=empty, strides=True) is None


def test_strides_that_lead_nowhere_are_no_difference() -> None:
    """An axis with one element has a stride that nobody follows."""
    one_wide = torch.zeros(2, 3, 1)
    other = one_wide.as_strided((2, 3, 1), (3, 1, 7))
    assert structure(actual=other, expected=one_wide, strides=True) is None
    turned = torch.zeros(3, 2).t().unsqueeze(-1)
    assert structure(actual=turned, expected=one_wide, strides=True) is not None


def test_a_part_of_a_larger_tensor_may_have_its_strides_or_those_of_a_dense_one() -> None:
    part = torch.zeros(3, 4)[:, :2]
    for steps in ((4, 1), (2, 1)):
        actual = torch.empty_strided((3, 2), steps)
        assert structure(actual=actual, expected=part, strides=True) is None
    for steps in ((1, 3), (6, 1), (8, 2)):
        found = structure(actual=torch.empty_strided((3, 2), steps), expected=part, strides=True)
        assert found is not None
        assert found.sentence == f"has strides {steps} where (4, 1) were expected"
    found = structure(actual=part, expected=torch.zeros(3, 2), strides=True)
    assert found is not None
    assert found.error == "strides"


@pytest.mark.parametrize("one", [nan, inf, -inf])
@pytest.mark.parametrize("other", [nan, inf, -inf, 0.0])
def test_each_kind_that_is_not_finite_agrees_with_itself_only(one: float, other: float) -> None:
    actual, expected = torch.tensor([0.0, one]), torch.tensor([0.0, other])
    found = non_finite(actual=actual, expected=expected)
    assert (found is None) == (str(one) == str(other))
    if found:
        assert (found.error, found.where.tolist()) == ("non-finite", [False, True])
        assert (found.worst, found.ratio) == ((1,), inf)


def test_bits() -> None:
    actual = torch.tensor([[1.0, nan, 0.0], [-0.0, 5.0, 7.0]])
    expected = torch.tensor([[1.0, nan, -0.0], [0.0, 6.0, 8.0]])
    found = same_bits(actual=actual, expected=expected)
    assert found is not None
    assert found.where.tolist() == [[False, False, False], [False, True, True]]
    assert (found.error, found.worst, found.ratio) == ("bits", (1, 1), inf)
    assert found.sentence == "got actual=5, expected=6 (2 of 6 elements differ)"


@pytest.mark.parametrize("other", [nan, 0.0, -0.0])
def test_neither_nan_nor_zero_is_a_wildcard(other: float) -> None:
    one, wild = torch.tensor([1.0]), torch.tensor([other])
    assert same_bits(actual=one, expected=wild) is not None
    assert same_bits(actual=wild, expected=one) is not None


def test_the_sign_of_zero_counts_where_it_is_asked_for() -> None:
    actual, expected = torch.tensor([0.0, -0.0, 1.0]), torch.tensor([-0.0, 0.0, 1.0])
    assert same_bits(actual=actual, expected=expected) is None
    signed = torch.tensor([False, True, True])
    found = same_bits(actual=actual, expected=expected, signed_zero=signed)
    assert found is not None
    assert found.where.tolist() == [False, True, False]
    assert same_bits(actual=actual, expected=expected, signed_zero=signed, where=~signed) is None


def test_bits_of_other_layouts_are_compared_by_element() -> None:
    turned = X.t().contiguous().t()
    assert same_bits(actual=turned, expected=X) is None
    assert same_bits(actual=X, expected=turned) is None


def test_a_share_of_the_limit() -> None:
    actual = torch.tensor([1.5, 2.0, nan, 1.0, inf, 3.0])
    expected = torch.tensor([1.0, 2.0, 1.0, nan, inf, 1.0], dtype=torch.float64)
    limit = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 0.5], dtype=torch.float64)
    share = used_share(actual=actual, expected=expected, limit=limit)
    assert share.dtype == torch.float64
    assert share[[0, 1, 3, 4, 5]].tolist() == [0.5, 0.0, 0.0, 0.0, 4.0]
    assert share[2].isnan()


def test_a_limit_that_is_just_kept_is_kept() -> None:
    expected = torch.tensor([1.0, 1.0], dtype=torch.float64)
    actual = torch.tensor([1.25, 0.75])
    assert within(actual=actual, expected=expected, limit=torch.tensor([0.25, 0.25])) is None
    found = within(actual=actual, expected=expected, limit=torch.tensor([0.25, 0.125]))
    assert found is not None
    assert (found.error, found.where.tolist()) == ("beyond bound", [False, True])
    assert (found.worst, found.ratio) == ((1,), 2.0)
    assert found.sentence == "got actual=0.75, expected=1 (1 of 2 elements differ)"


def test_the_element_to_show_is_the_one_furthest_off() -> None:
    expected = torch.zeros(2, 3, dtype=torch.float64)
    actual = torch.tensor([[0.0, 2.0, -8.0], [4.0, 0.5, 1.0]])
    found = within(actual=actual, expected=expected, limit=torch.ones(2, 3))
    assert found is not None
    assert (found.worst, found.ratio) == ((0, 2), 8.0)
    actual[1, 2] = nan  # further off than any number
    found = within(actual=actual, expected=expected, limit=torch.ones(2, 3))
    assert found is not None
    assert found.worst == (1, 2)


def test_what_cannot_be_compared_is_refused_in_a_sentence() -> None:
    row = torch.zeros(2)
    compare: Callable[..., object]
    for compare in (non_finite, same_bits, partial(within, limit=X)):
        with pytest.raises(ValueError, match="compare their structure first") as refused:
            compare(actual=row, expected=X)
        assert str(refused.value).startswith(
            "Expected two tensors of one shape but got (2,) and (2, 2); "
        )
        with pytest.raises(ValueError, match="memory") as refused:
            compare(actual=X, expected=X)
        assert str(refused.value) == (
            "Expected two tensors with memory of their own but got one memory twice; "
            "compare with a clone made before the candidate ran."
        )
    empty = torch.zeros(0)
    assert same_bits(actual=empty, expected=empty) is None
