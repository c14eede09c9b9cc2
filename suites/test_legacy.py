"""Megatron-Core's older names against their references: planned cases, then a search."""

from collections.abc import Callable

import pytest
from hypothesis import given

from parity.case import Case
from parity.catalog import find
from parity.strategies import cases

pytestmark = pytest.mark.parity_op("fused_apply_mla_rope_for_q", "fused_apply_mla_rope_for_kv")


def test_planned(parity_case: Case, parity_check: Callable[[Case], None]) -> None:
    parity_check(parity_case)


@given(case=cases(find("fused_apply_mla_rope_for_q", "parity")))
def test_generated_queries(case: Case, parity_check: Callable[[Case], None]) -> None:
    parity_check(case)


@given(case=cases(find("fused_apply_mla_rope_for_kv", "parity")))
def test_generated_keys(case: Case, parity_check: Callable[[Case], None]) -> None:
    parity_check(case)
