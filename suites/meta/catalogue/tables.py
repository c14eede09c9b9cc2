"""Bugs in reading tables that have a row of their own for every batch entry."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from parity.reference.rotation import rotate as rotation
from parity.spec import Input, OpSpec, Output

from .bug import plant

OWN_ROWS = OpSpec(
    name="rope_by_row",
    candidate=f"{__name__}:rotated",
    reference=f"{__name__}:reference",
    inputs=(
        Input("t", "rows heads rope_dim"),
        Input("cos", "rows rope_dim", kind="cos"),
        Input("sin", "rows rope_dim", kind="sin"),
    ),
    outputs=(Output("output"),),
    axes={"heads": (1, 3), "rope_dim": (4, 8)},
    layouts=("sbhd",),
)


def reference(t: Tensor, cos: Tensor, sin: Tensor, **modes: Any) -> Tensor:
    """``t [S, B, H, R]`` by tables ``[S, B, R]``."""
    return rotation(t, cos[:, :, None], sin[:, :, None], **modes).to(t.dtype)


def rotated(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The op as its contract promises it."""
    return reference(t, cos, sin)


@plant(OWN_ROWS, "values", "output")
def reads_batch_row_0(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Every batch entry is rotated by the table of the first."""
    return rotated(t, cos[:, :1].expand_as(cos), sin[:, :1].expand_as(sin))


@plant(OWN_ROWS, "values", "output")
def slices_the_batch_for_the_sequence(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The table is cut along its batch axis; with a batch of 1 nobody sees it."""
    return rotated(t, *(table.transpose(0, 1).reshape(table.shape) for table in (cos, sin)))
