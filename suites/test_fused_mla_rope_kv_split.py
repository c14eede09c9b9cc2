"""`fused_mla_rope_kv_split` against its reference: planned cases, then a search."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given

from parity.case import Case
from parity.catalog import find
from parity.oracle import resolve_function
from parity.strategies import cases

pytestmark = pytest.mark.parity_op("fused_mla_rope_kv_split")


def test_planned(parity_case: Case, parity_check: Callable[[Case], None]) -> None:
    parity_check(parity_case)


@given(case=cases(find("fused_mla_rope_kv_split", "parity")))
def test_generated(case: Case, parity_check: Callable[[Case], None]) -> None:
    parity_check(case)


@pytest.mark.parametrize("role", ["candidate", "reference"])
def test_no_heads_are_refused(role: str) -> None:
    """Nothing would fill the gradient that sums over them."""
    op = resolve_function(getattr(find("fused_mla_rope_kv_split", "parity"), role))
    kv, shared = torch.zeros(3, 0, 5), torch.ones(3, 1, 4)
    with pytest.raises(ValueError, match=r"H > 0.* but got \(3, 0, 5\)"):
        op(kv, shared, torch.ones(3, 4), torch.zeros(3, 4), 4, 2, 3)
