"""Megatron-Core's fused MLA RoPE: every generation of its API as ops, each with its contract.

The import root of an arm (an unpacked release or a checkout) stands first on ``sys.path``; nothing
of Megatron is imported before the first call.  The contracts say what the released docstrings and
input checks promise, and no more:

* the query op and the in-place op rotate their argument in place, and return it;
* ``emb_dim`` is a multiple of 4 and half of it a power of two, as are ``k_dim`` and ``v_dim``;
* any number of heads: nothing in a docstring or check says that the tile must divide it;
* rows past the last sequence may hold anything, training masks them;
* tables are as wide as ``emb_dim``: narrower ones, read past their rows, must be refused;
* arithmetic happens in the promoted dtype of tensor and table, and the gradient of the shared key
  rounds its sum over heads to the storage dtype before it rotates;
* the backward of an in-place op rotates the gradient that autograd hands to it in place, as the
  docstring of its kernel says; no other op writes it.
"""

from __future__ import annotations

from typing import Any

from ..spec import Input, OpSpec, Output

CANDIDATE = "parity.adapters.megatron_candidate"
ROPE_DIMS = (8, 4, 16, 32, 64, 128)
POWERS = (8, 4, 2, 1, 16, 32, 64, 128)
HEADS = range(1, 65)
DIMS = range(129)
FLAGS = {"inverse": (False, True), "remove_interleaving": (False, True)}
COMMON: dict[str, Any] = {
    "layouts": ("sbhd", "thd"),
    "cp_sizes": (1, 2, 4),
    "tiles": {"BLOCK_H": (1, 2, 4, 8)},
    "pad_rows": "unspecified",
    "arithmetic": "promoted",
    "may_copy": True,  # 0.14.0 makes a strided incoming gradient contiguous, 0.13.1 refused some
}
# All docstrings but that of concat ask for tables of `emb_dim`; rotary_percent below 1 gives narrow
# ones.  No release refuses them: asked in every case, none would pass.
WIDE: dict[str, Any] = {"refuses": ("narrow_table",), "refuses_in": 8}
# All that `view(-1, heads, dim)` and a last stride of 1 accept; nothing else is promised.
ROWS = ("contiguous", "offset", "sliced")
ANY = ("contiguous", "offset", "sliced", "transposed", "strided_last")
TABLES = (
    Input("cos", "positions 1 1 rope_dim", kind="cos"),
    Input("sin", "positions 1 1 rope_dim", kind="sin"),
)
PITCHED_TABLES = (
    Input("cos", "positions 1 1 rope_dim", kind="cos", strides=ROWS),
    Input("sin", "positions 1 1 rope_dim", kind="sin", strides=ROWS),
)


def _rotation(
    name: str, reference: str, nope: str, tables: tuple[Input, ...], mutable: bool, **own: Any
) -> OpSpec:
    """The op that rotates one tensor; ``nope`` is its parameter for the lanes it leaves alone."""
    t = Input("t", "rows heads nope_dim+rope_dim", mutable=mutable, strides=ROWS)
    ids = (Input("position_ids", kind="position_ids"),) if "flags" in own else ()
    return OpSpec(
        name=name,
        candidate=f"{CANDIDATE}:{name}",
        reference=f"{reference}:{name}",
        inputs=(t, *tables, Input("cu_seqlens_q", kind="cu_seqlens"), *ids),
        outputs=(Output("rotated", alias="t" if mutable else None, gradient_mutable=mutable),),
        axes={"heads": HEADS, "nope_dim": DIMS, "rope_dim": ROPE_DIMS},
        arguments={nope: "nope_dim", "emb_dim": "rope_dim"},
        **COMMON,
        **WIDE,
        **own,
    )


def _key_value(name: str, reference: str, **own: Any) -> OpSpec:
    """The op that splits ``kv`` and appends the rotated shared key."""
    return OpSpec(
        name=name,
        candidate=f"{CANDIDATE}:{name}",
        reference=f"{reference}:{name}",
        inputs=(
            Input("kv", "rows heads k_dim+v_dim", strides=ROWS),
            Input("k_pos_emb", "rows 1 rope_dim", strides=ROWS),
            *TABLES,
            Input("cu_seqlens_kv", kind="cu_seqlens"),
        ),
        outputs=(Output("key"), Output("value")),
        axes={"heads": HEADS, "k_dim": POWERS, "v_dim": POWERS, "rope_dim": ROPE_DIMS},
        arguments={"emb_dim": "rope_dim", "k_dim": "k_dim", "v_dim": "v_dim"},
        rounded_sums=("k_pos_emb.grad",),
        **COMMON,
        **WIDE,
        **own,
    )


def _concat() -> OpSpec:
    name = "fused_mla_rope_concat"
    return OpSpec(
        name=name,
        candidate=f"{CANDIDATE}:{name}",
        reference="parity.reference.concat:fused_mla_rope_concat",
        inputs=(
            Input("nope", "rows heads nope_dim", strides=ANY),
            Input("rope", "rows heads rope_dim", strides=(*ANY, "expanded_heads")),
            *PITCHED_TABLES,
            Input("cu_seqlens", kind="cu_seqlens"),
        ),
        outputs=(Output("packed"),),
        axes={"heads": HEADS, "nope_dim": DIMS[1:], "rope_dim": (8, *range(4, 129, 4))},
        **COMMON,
    )


OPS = (
    _rotation(
        "fused_apply_mla_rope_for_q",
        "parity.reference.legacy",
        "qk_head_dim",
        TABLES,
        mutable=True,
    ),
    _key_value("fused_apply_mla_rope_for_kv", "parity.reference.legacy"),
    _rotation(
        "fused_mla_rope_inplace",
        "parity.reference.inplace",
        "nope_dim",
        PITCHED_TABLES,
        mutable=True,
        flags=FLAGS | {"rope_first": (False, True)},
        twin=f"{CANDIDATE}:fused_mla_rope_out_of_place",
    ),
    _rotation(
        "fused_mla_rope_out_of_place",
        "parity.reference.out_of_place",
        "nope_dim",
        PITCHED_TABLES,
        mutable=False,
        flags=FLAGS,
        twin=f"{CANDIDATE}:fused_mla_rope_inplace",
    ),
    _key_value(
        "fused_mla_rope_kv_split",
        "parity.reference.kv_split",
        flags={"remove_interleaving": (False, True)},
    ),
    _concat(),
)
