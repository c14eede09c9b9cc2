"""The guards at their boundaries: the last call that is legal, and the first that is not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from parity.kernels.checks import (
    check_data,
    check_last_stride,
    check_no_overlap,
    check_positions,
    check_rotation,
    check_tables,
)
from parity.kernels.inplace import fused_mla_rope_inplace
from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.reference import kv_split as reference


def strided(*stride: int, size: tuple[int, ...]) -> Tensor:
    return torch.zeros(64).as_strided(size, stride)


def rows(*size: int) -> Tensor:
    """A tensor of many rows in little memory."""
    return torch.zeros(1).expand(size)


def tables(shape: tuple[int, ...]) -> None:
    check_tables(torch.zeros(shape), torch.zeros(shape), torch.zeros(2, 1, 1, 4), 4)


def split(op: Callable[..., object], tokens: int, heads: int) -> None:
    kv, shared, table = (torch.zeros(size) for size in ((tokens, heads, 5), (tokens, 1, 4), (3, 4)))
    op(kv, shared, table, table, 4, 2, 3, torch.tensor([0, tokens]))


def ranks(rank: int, size: int) -> None:
    check_positions(rows(2, 1, 4), 2, torch.tensor([0, 4]), None, None, rank, size, False)


# what is checked: (a legal call, an illegal one, what the sentence names)
BOUNDARIES: dict[str, tuple[Callable[[], object], Callable[[], object], str]] = {
    "axes": (
        lambda: check_data("t", torch.zeros(2, 1, 4)),
        lambda: check_data("t", torch.zeros(0, 4)),
        "as [S, B, H, D] or [T, H, D]",
    ),
    "five axes": (
        lambda: check_data("t", torch.zeros(2, 1, 1, 4)),
        lambda: check_data("t", torch.zeros(2, 1, 1, 1, 4)),
        "as [S, B, H, D] or [T, H, D]",
    ),
    "rows": (
        lambda: check_data("t", rows(2**30, 1, 4)),
        lambda: check_data("t", rows(2**30 + 1, 1, 1)),
        "at most 2**30 rows",
    ),
    "rows of several heads": (
        lambda: check_data("t", rows(2**29, 2, 0)),
        lambda: check_data("t", rows(2**29 + 1, 2, 1)),
        "at most 2**30 rows",
    ),
    "last stride": (
        lambda: check_last_stride("t", strided(8, 8, 2, size=(2, 2, 1))),
        lambda: check_last_stride("t", strided(8, 8, 2, size=(2, 1, 2))),
        "the last stride of t to be 1",
    ),
    "rotated lanes": (
        lambda: check_rotation(2, 2),
        lambda: check_rotation(0, 0),
        "an even emb_dim of at least 2",
    ),
    "heads of a sum": (
        lambda: split(fused_mla_rope_kv_split, 0, 1),
        lambda: split(fused_mla_rope_kv_split, 3, 0),  # nothing would fill its gradient
        "H > 0",
    ),
    "heads of a sum in the reference": (
        lambda: split(reference.fused_mla_rope_kv_split, 0, 1),
        lambda: split(reference.fused_mla_rope_kv_split, 3, 0),
        "H > 0",
    ),
    "table": (lambda: tables((2, 4)), lambda: tables((2, 1, 4)), "as [P, 4] or [P, 1, 1, 4]"),
    "table of four axes": (
        lambda: tables((2, 1, 1, 4)),
        lambda: tables((2, 1, 2, 4)),
        "as [P, 4] or [P, 1, 1, 4]",
    ),
    "table of a batch": (
        lambda: tables((3, 1, 1, 4)),
        lambda: tables((3, 2, 1, 4)),
        "as [P, 4] or [P, 1, 1, 4]",
    ),
    "no elements": (
        lambda: check_no_overlap("t", rows(0, 3, 4)),
        lambda: check_no_overlap("t", rows(1, 3, 4)),
        "no two elements of t in one place",
    ),
    "axes of one": (
        lambda: check_no_overlap("t", strided(4, 0, 1, size=(3, 1, 4))),
        lambda: check_no_overlap("t", strided(2, 4, 1, size=(3, 1, 4))),
        "no two elements of t in one place",
    ),
    "neighbours": (
        lambda: check_no_overlap("t", strided(4, 4, 1, size=(3, 1, 4))),
        lambda: check_no_overlap("t", strided(3, 4, 1, size=(3, 1, 4))),
        "no two elements of t in one place",
    ),
    "kind of emb_dim": (
        lambda: check_rotation(2, 2),
        lambda: check_rotation(2.0, 2),
        "emb_dim as an int but got 2.0",
    ),
    "kind of kept lanes": (
        lambda: check_rotation(2, 2, False, 2),
        lambda: check_rotation(2, 2, False, 2.0),
        "kept lanes as an int but got 2.0",
    ),
    "kind of cp_rank": (
        lambda: ranks(0, 1),
        lambda: ranks(False, 1),
        "cp_rank as an int",
    ),
    "kind of cp_size": (
        lambda: ranks(0, 1),
        lambda: ranks(0, True),
        "cp_size as an int",
    ),
    "last rank": (
        lambda: ranks(1, 2),
        lambda: ranks(2, 2),
        "0 <= cp_rank < cp_size",
    ),
}


@pytest.mark.parametrize("what", BOUNDARIES)
def test_a_boundary_lies_where_the_contract_says(what: str) -> None:
    accepted, refused, sentence = BOUNDARIES[what]
    accepted()
    with pytest.raises(ValueError, match="Expected") as error:
        refused()
    assert sentence in str(error.value)


def test_a_leaf_is_refused_before_it_is_written() -> None:
    """Autograd refuses one too, but afterwards."""
    leaf = torch.arange(8.0).view(2, 1, 1, 4).requires_grad_()
    table = torch.full((2, 2), 0.5)
    with pytest.raises(ValueError, match="it is a leaf"):
        fused_mla_rope_inplace(leaf, table, table, 2, 2)
    assert leaf.detach().equal(torch.arange(8.0).view(2, 1, 1, 4))
