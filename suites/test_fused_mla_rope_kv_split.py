"""`fused_mla_rope_kv_split` against its reference: planned cases, then a search."""

from collections.abc import Callable

import pytest
from hypothesis import given

from parity.case import Case
from parity.catalog import find
from parity.strategies import cases

pytestmark = pytest.mark.parity_op("fused_mla_rope_kv_split")


def test_planned(parity_case: Case, parity_check: Callable[[Case], None]) -> None:
    parity_check(parity_case)


@given(case=cases(find("fused_mla_rope_kv_split", "parity")))
def test_generated(case: Case, parity_check: Callable[[Case], None]) -> None:
    parity_check(case)
