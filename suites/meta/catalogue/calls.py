"""Bugs of the code that calls a kernel: dispatchers, wrappers, callers that hold the tables."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.verdict import Verdict

from .bug import ROTATE, SPLIT, Candidate, plant


def rotate(**arguments: Any) -> Tensor:
    """The honest kernel."""
    return fused_mla_rope_out_of_place(**arguments)


# --- flags and arguments that get lost


@plant(ROTATE, "values", "output", flags={"inverse": True})
def drops_inverse(**arguments: Any) -> Tensor:
    """The caller drops `inverse`, so that the forward rotation comes back."""
    return rotate(**arguments | {"inverse": False})


@plant(ROTATE, "values", "output", flags={"remove_interleaving": True})
def drops_remove_interleaving(**arguments: Any) -> Tensor:
    """The caller drops `remove_interleaving`, so that halves come back for pairs."""
    return rotate(**arguments | {"remove_interleaving": False})


@plant(ROTATE, "values", "output", flags={"rope_first": True})
def rotates_the_trailing_lanes(**arguments: Any) -> Tensor:
    """The rotated lanes come first, and the last ones are rotated."""
    return rotate(**arguments | {"rope_first": False})


@plant(
    ROTATE, "", "", layout="thd", flags={"whole_pack_table": True}, verdict=Verdict.LOST_CAPABILITY
)
def has_an_older_signature(
    t: Tensor,
    cos: Tensor,
    sin: Tensor,
    nope_dim: int,
    emb_dim: int,
    cu_seqlens_q: Tensor | None = None,
    cp_rank: int = 0,
    cp_size: int = 1,
    tile: int | None = None,
) -> Tensor:
    """A wrapper has the signature of an earlier kernel and cannot hand on what came later."""
    return rotate(t=t, cos=cos, sin=sin, nope_dim=nope_dim, emb_dim=emb_dim,
                  cu_seqlens_q=cu_seqlens_q, cp_rank=cp_rank, cp_size=cp_size)  # fmt: skip


# --- positions


def _of_packs(wrong: Candidate) -> Candidate:
    """The wrong function where sequences are packed and say their positions, elsewhere honest."""

    @wraps(wrong)
    def candidate(**arguments: Any) -> Tensor:
        packed = arguments["cu_seqlens_q"] is not None and arguments["position_ids"] is None
        return wrong(**arguments) if packed else rotate(**arguments)

    return candidate


def _of_ranks(wrong: Candidate) -> Candidate:
    """The wrong function where several ranks share a pack, elsewhere honest."""

    @wraps(wrong)
    def candidate(**arguments: Any) -> Tensor:
        return wrong(**arguments) if arguments.get("cp_size", 1) > 1 else rotate(**arguments)

    return _of_packs(candidate)


@plant(ROTATE, "values", "output", layout="thd", axes={"spare_positions": 3}, lengths=(4, 3))
@_of_packs
def guesses_what_the_table_counts(**arguments: Any) -> Tensor:
    """A table longer than the longest sequence is taken for one that runs over the pack."""
    longest = int(arguments["cu_seqlens_q"].diff().max())
    return rotate(**arguments | {"whole_pack_table": len(arguments["cos"]) >= longest + 3})


@plant(ROTATE, "values", "output", layout="thd")
@_of_packs
def counts_through_the_pack(**arguments: Any) -> Tensor:
    """A layer does not hand on `cu_seqlens`, so that positions do not begin anew."""
    rows = torch.arange(len(arguments["t"]), device=arguments["t"].device)
    return rotate(**arguments | {"position_ids": rows % len(arguments["cos"])})


@plant(ROTATE, "values", "output", layout="thd", lengths=(8, 4), cp_size=2, cp_rank=1)
@_of_ranks
def counts_within_the_rank(**arguments: Any) -> Tensor:
    """The positions of a rank are counted in its own rows, as in a table of the local length."""
    local = arguments["cu_seqlens_q"] // arguments["cp_size"]
    return rotate(**arguments | {"cu_seqlens_q": local, "cp_rank": 0, "cp_size": 1})


@plant(ROTATE, "values", "output", layout="thd", lengths=(16, 8), cp_size=4, cp_rank=3)
@_of_ranks
def keeps_the_group_of_the_start(**arguments: Any) -> Tensor:
    """The positions are those of the group at start-up, not of this micro-batch."""
    return rotate(**arguments | {"cp_rank": 1, "cp_size": 2})


@plant(ROTATE, "values", "output", layout="thd", lengths=(8, 4), cp_size=2, cp_rank=0)
@_of_ranks
def forgets_the_group(**arguments: Any) -> Tensor:
    """The group is not handed on, and `cu_seqlens` counts the rows of all ranks."""
    return rotate(**arguments | {"cp_rank": 0, "cp_size": 1})


@plant(ROTATE, "values", "output", layout="thd", lengths=(8, 12), cp_size=2, cp_rank=1)
@_of_ranks
def takes_a_pack_for_one_sequence(**arguments: Any) -> Tensor:
    """Right for one sequence a pack, which is all that its test had."""
    total = int(arguments["cu_seqlens_q"][-1])
    ends = arguments["cu_seqlens_q"][[0, -1]].contiguous()
    tables = {name: arguments[name].repeat(total, 1) for name in ("cos", "sin")}
    return rotate(**arguments | tables | {"cu_seqlens_q": ends, "cu_seqlens_padded": None})


@plant(ROTATE, "relation:poisoned_neighbour", "output", layout="thd")
def reads_its_neighbours(**arguments: Any) -> Tensor:
    """A row depends on what else is in the pack, if only where one is NaN."""
    output, total = rotate(**arguments), arguments["t"].detach().sum(0)
    return torch.where(total.isnan(), total, output)


@plant(ROTATE, "values", "output", layout="thd", variants={"cu_seqlens": "int64"})
@_of_packs
def reads_int64_as_int32(**arguments: Any) -> Tensor:
    """Offsets in int64 are read as int32, every second of which is 0."""
    offsets = arguments["cu_seqlens_q"]
    if offsets.dtype == torch.int64:
        offsets = offsets.view(torch.int32)[: len(offsets)].contiguous()
    return rotate(**arguments | {"cu_seqlens_q": offsets})


# --- tables


@plant(ROTATE, "values", "output", axes={"seq": 6})
def reuses_a_shorter_table(**arguments: Any) -> Tensor:
    """A cached table of four rows is used beyond its end."""
    tables = {n: arguments[n][:4].repeat(2, 1)[: len(arguments[n])] for n in ("cos", "sin")}
    return rotate(**arguments | tables)


@plant(ROTATE, "values", "output")
def builds_its_table_in_16_bits(**arguments: Any) -> Tensor:
    """The table goes through bfloat16, as under autocast, before it is handed on in fp32."""
    tables = {name: arguments[name].bfloat16().float() for name in ("cos", "sin")}
    return rotate(**arguments | tables)


@plant(replace(ROTATE, refuses=("short_table",)), "refuses:short_table", "forward", axes={"seq": 2})
def broadcasts_a_table_of_one_row(**arguments: Any) -> Tensor:
    """A slice of one table row is broadcast over all rows instead of being refused."""
    tables = {name: arguments[name] for name in ("cos", "sin")}
    if len(tables["cos"]) == 1:
        tables = {n: table.repeat(len(arguments["t"]), 1) for n, table in tables.items()}
    return rotate(**arguments | tables)


NARROW = replace(ROTATE, refuses=("narrow_table",))


@plant(NARROW, "refuses:narrow_table", "forward")
def asserts_the_width(**arguments: Any) -> Tensor:
    """The guard against a narrow table is an assert, which `python -O` removes."""
    assert arguments["cos"].shape[-1] == arguments["emb_dim"]
    return rotate(**arguments)


LENGTHS = replace(SPLIT, refuses=("rows_of_two_lengths",))


@plant(LENGTHS, "refuses:rows_of_two_lengths", "forward")
def takes_the_rows_of_one_for_both(**arguments: Any) -> tuple[Tensor, Tensor]:
    """Rows are counted in one tensor and read in two, of which the other is shorter."""
    shared, rows = arguments["k_pos_emb"], len(arguments["kv"])
    if len(shared) < rows:
        shared = torch.cat([shared, shared[-1:]])
    return fused_mla_rope_kv_split(**arguments | {"k_pos_emb": shared})


@plant(ROTATE, "values", "output", axes={"heads": 17})
def is_wrong_for_many_heads(**arguments: Any) -> Tensor:
    """A path that only many heads take gives each of them the result of another."""
    output = rotate(**arguments)
    return output.roll(1, dims=-2) if output.shape[-2] > 16 else output
