"""Illegal calls: each is refused by the guard that it is meant for, so that its loss would show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from parity.broken_calls import BREAKS, Break
from parity.broken_values import BREAKS_OF_VALUES
from parity.case import Case
from parity.catalog import resolve
from parity.generate import plan
from parity.inputs import build_inputs
from parity.kernels.validation import validation
from parity.observe import candidate_function
from parity.runner import device, run_case
from parity.spec import Unsupported

PHRASES = {
    "narrow_table": "wide but it is",
    "wide_table": "wide but it is",
    "narrow_cos": "cos to be .* wide but it is",
    "narrow_sin": "sin to be .* wide but it is",
    "cos_in_another_dtype": "Expected cos in .* or the dtype of the data",
    "short_table": "Expected tables of at least",
    "table_of_integers": "or the dtype of the data",
    "one_table_in_another_dtype": "or the dtype of the data",
    "data_of_integers": "in float32, bfloat16 or float16",
    "data_without_heads": r"as \[S, B, H, D\]",
    "one_lane_too_few": "rotated lanes but the tensor has|an even emb_dim",
    "data_of_two_dtypes": "Expected (k_pos_emb|nope) in",
    "rows_of_two_lengths": "(leading sizes|k_pos_emb) .* got",
    "cu_seqlens_of_floats": "one row of int32 or int64",
    "cu_seqlens_in_two_dimensions": "one row of int32 or int64",
    "position_ids_too_few": "position_ids of length",
    "rank_beyond_its_group": "cp_rank < cp_size",
    "rotary_interleaved": "rotary_interleaved=False",
    "odd_rope_dim": "an even emb_dim",
    "negative_kept_lanes": "no negative number",
    "lanes_apart": "the last stride of (t|kv)",
    "first_lane_too_few": "Expected kv .* got",
    "overlapping_elements": "no two elements",
    "too_many_rows": r"at most 2\*\*30 rows",
    "table_lanes_apart": "the last stride of cos",
    "table_of_three_axes": r"cos as \[P",
    "table_with_a_batch": r"cos as \[P",
    "tables_of_two_lengths": "cos and sin alike",
    "tables_of_two_dtypes": "cos and sin alike",
    "packing_with_sbhd": "no packing",
    "neither_packing_nor_positions": "cu_seqlens or position_ids",
    "padded_offsets_too_few": "cu_seqlens_padded of length",
    "cu_seqlens_apart": "cu_seqlens contiguous",
    "cu_seqlens_empty": "its leading 0",
    "unknown_tile": "tile in",
}
PHRASES_OF_VALUES = {
    "offsets_not_from_zero": "from 0 but got",
    "offsets_that_fall": "to rise in steps",
    "length_that_ranks_cannot_share": "to rise in steps",
    "offsets_past_the_end": "tokens for this pack",
    "sequences_without_room": "room for every sequence",
    "table_too_short_for_the_pack": "below the table's length",
    "position_past_the_table": "below the table's length",
    "position_below_zero": "below the table's length",
}


@cache
def planned(op: str) -> list[Case]:
    return plan(resolve("parity")[op], 0, 0)


def calls(name: str, make: Break) -> Iterator[tuple[Any, dict[str, Any]]]:
    """One illegal call of this kind for every op whose contract names it."""
    for spec in resolve("parity").values():
        if name in BREAKS and name not in spec.refuses:
            continue
        for case in planned(spec.name):
            inputs = build_inputs(spec, case, device())
            given = {item.name: inputs.tensors.get(item.name) for item in spec.inputs}
            arguments = {key: item.tensor if item else None for key, item in given.items()}
            call = make(inputs, arguments | inputs.constants | dict(case.tile))
            if call is not None:
                yield candidate_function(spec.candidate), call
                break


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_call_meets_its_own_guard(name: str) -> None:
    made = list(calls(name, BREAKS[name]))
    assert made
    for candidate, call in made:
        with pytest.raises(ValueError, match=PHRASES[name]):
            candidate(**call)


@pytest.mark.parametrize("name", BREAKS_OF_VALUES)
def test_a_broken_value_is_refused_where_values_are_read(name: str) -> None:
    """In one op: all of them read values in one place."""
    candidate, call = next(calls(name, BREAKS_OF_VALUES[name]))
    with validation(), pytest.raises(ValueError, match=PHRASES_OF_VALUES[name]):
        candidate(**call)


@contextmanager
def unheard() -> Iterator[None]:
    """A switch that turns nothing on."""
    yield


@contextmanager
def fussy() -> Iterator[None]:
    """A switch under which legal values are refused, too."""
    raise ValueError("Expected another pack.")
    yield


@contextmanager
def missing() -> Iterator[None]:
    """A switch that this revision lacks."""
    raise Unsupported("This revision cannot read values.")
    yield


def test_a_switch_that_validates_nothing_or_too_much_is_found() -> None:
    """A case whose seed asks for an illegal value, and the same one with the real switch."""
    spec = resolve("parity")["fused_mla_rope_out_of_place"]
    switched = {
        name: replace(spec, validating=f"{__name__}:{name}")
        for name in ("unheard", "fussy", "missing")
    }
    packed = next(case for case in planned(spec.name) if case.layout == "thd" and case.cp_size == 2)
    for case in (replace(packed, seed=seed) for seed in range(40)):
        checks = [finding.check for finding in run_case(switched["unheard"], case).findings]
        if checks:
            break
    assert checks[0].removeprefix("refuses:") in BREAKS_OF_VALUES
    assert run_case(spec, case).status == "passed"
    refused, accepted = (
        run_case(switched["fussy"], case).findings,
        run_case(switched["missing"], case),
    )
    assert [(f.check, f.error) for f in refused] == [(checks[0], "it refused a legal call")]
    assert refused[0].sentence.endswith("but it raised ValueError: Expected another pack.")
    assert accepted.status == "passed"
    assert checks[0] not in accepted.checks
