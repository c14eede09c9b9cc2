"""The ops this repository guards, and how an op name finds its contract."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from .given import settings
from .spec import Input, OpSpec, Output

_TABLE = "positions rope_dim"
_TABLES = (
    Input("cos", _TABLE, kind="cos", strides=("contiguous", "sliced")),
    Input("sin", _TABLE, kind="sin", strides=("contiguous", "sliced")),
)
_ROWS = ("contiguous", "offset", "sliced", "transposed")  # lanes side by side
_HEADS = (*range(1, 9), 11, 16, 17, 31, 64, 130)
_ROPE_DIMS = (2, 4, 6, 8, 16, 20, 64, 128)
_COPIED_DIMS = (0, 1, 2, 5, 8, 16, 33, 128)

_REFUSES = (
    "narrow_table", "wide_table", "short_table", "table_of_integers", "one_table_in_another_dtype",
    "data_of_integers", "data_without_heads", "one_lane_too_few", "cu_seqlens_of_floats",
    "cu_seqlens_in_two_dimensions", "rank_beyond_its_group", "odd_rope_dim", "too_many_rows",
    "table_lanes_apart", "table_of_three_axes", "table_with_a_batch", "tables_of_two_lengths",
    "tables_of_two_dtypes", "packing_with_sbhd", "neither_packing_nor_positions",
    "cu_seqlens_apart", "cu_seqlens_empty", "unknown_tile", "narrow_cos", "narrow_sin",
    "cos_in_another_dtype",
)  # fmt: skip
_WRITTEN = ("overlapping_elements",)  # of an op that writes its argument
_COMMON: dict[str, Any] = {
    "layouts": ("sbhd", "thd"),
    "tiles": {"tile": (None, 1, 2, 4, 8, 16, 32)},
    "cp_sizes": (1, 2, 4, 8),
    "gradients": ("contiguous", "sliced", "transposed", "expanded", "expanded_heads"),
    "outside": "nan",
    "bit_equal": True,
    "validating": "parity.kernels.validation:validation",
}
_PADDED = Input("cu_seqlens_padded", kind="cu_seqlens_padded")
_POSITION_IDS = Input("position_ids", kind="position_ids")
_WHOLE_PACK: dict[str, tuple[object, ...]] = {"whole_pack_table": (False, True)}
_INVERSE: dict[str, tuple[object, ...]] = {"inverse": (False, True)}
_PAIRS: dict[str, tuple[object, ...]] = {"remove_interleaving": (False, True)}


_TWINS = {
    "inplace": "parity.kernels.out_of_place:fused_mla_rope_out_of_place",
    "out_of_place": "parity.kernels.inplace:fused_mla_rope_inplace",
}


def _rotation(name: str, module: str, strides: tuple[str, ...], mutable: bool) -> OpSpec:
    """One tensor, rotated in place (``mutable``) or into a new one."""
    return OpSpec(
        name=name,
        candidate=f"parity.kernels.{module}:{name}",
        reference=f"parity.reference.{module}:{name}",
        inputs=(
            Input("t", "rows heads nope_dim+rope_dim", mutable=mutable, strides=strides),
            *_TABLES,
            Input("cu_seqlens_q", kind="cu_seqlens"),
            _PADDED,
            _POSITION_IDS,
        ),
        outputs=(Output("output", alias="t" if mutable else None),),
        axes={"heads": _HEADS, "nope_dim": _COPIED_DIMS, "rope_dim": _ROPE_DIMS},
        arguments={"nope_dim": "nope_dim", "emb_dim": "rope_dim"},
        flags={**_INVERSE, **_PAIRS, "rope_first": (False, True)},
        thd_flags=_WHOLE_PACK,
        refuses=(
            *_REFUSES,
            "position_ids_too_few",
            "rotary_interleaved",
            "lanes_apart",
            "negative_kept_lanes",
            "padded_offsets_too_few",
            *_WRITTEN[:mutable],
        ),
        twin=_TWINS[module],
        **_COMMON,
    )


def _key_value(name: str, module: str, more: tuple[Input, ...] = (), **own: Any) -> OpSpec:
    """``kv`` split into key and value, the shared key rotated and given to every head."""
    return OpSpec(
        name=name,
        candidate=f"parity.kernels.{module}:{name}",
        reference=f"parity.reference.{module}:{name}",
        inputs=(
            Input("kv", "rows heads k_dim+v_dim", strides=(*_ROWS, "expanded_heads")),
            Input("k_pos_emb", "rows 1 rope_dim", strides=_ROWS),
            *_TABLES,
            Input("cu_seqlens_kv", kind="cu_seqlens"),
            *more,
        ),
        outputs=(Output("key"), Output("value")),
        axes={
            "heads": _HEADS, "k_dim": _COPIED_DIMS, "v_dim": _COPIED_DIMS, "rope_dim": _ROPE_DIMS,
        },
        arguments={"emb_dim": "rope_dim", "k_dim": "k_dim", "v_dim": "v_dim"},
        sums=("k_pos_emb.grad",),
        refuses=(
            *_REFUSES, "data_of_two_dtypes", "rows_of_two_lengths", "rotary_interleaved",
            "lanes_apart", "first_lane_too_few",
        ),
        **_COMMON,
        **own,
    )  # fmt: skip


_ANY = ("contiguous", "sliced", "transposed", "strided_last", "expanded_heads")

OPS: tuple[OpSpec, ...] = (
    _rotation("fused_mla_rope_inplace", "inplace", _ROWS, mutable=True),
    _rotation(
        "fused_mla_rope_out_of_place", "out_of_place", (*_ROWS, "expanded_heads"), mutable=False
    ),
    _key_value(
        "fused_mla_rope_kv_split", "kv_split", (_PADDED,), flags=_PAIRS, thd_flags=_WHOLE_PACK
    ),
    OpSpec(
        name="fused_mla_rope_concat",
        candidate="parity.kernels.concat:fused_mla_rope_concat",
        reference="parity.reference.concat:fused_mla_rope_concat",
        inputs=(
            Input("nope", "rows heads nope_dim", strides=_ANY),
            Input("rope", "rows heads rope_dim", strides=_ANY),
            *_TABLES,
            Input("cu_seqlens", kind="cu_seqlens"),
            _PADDED,
            _POSITION_IDS,
        ),
        outputs=(Output("output"),),
        axes={"heads": _HEADS, "nope_dim": _COPIED_DIMS, "rope_dim": _ROPE_DIMS},
        flags={**_INVERSE, **_PAIRS},
        thd_flags=_WHOLE_PACK,
        refuses=(*_REFUSES, "position_ids_too_few", "data_of_two_dtypes", "rows_of_two_lengths"),
        **_COMMON,
    ),
    OpSpec(
        name="fused_apply_mla_rope_for_q",
        candidate="parity.kernels.legacy:fused_apply_mla_rope_for_q",
        reference="parity.reference.legacy:fused_apply_mla_rope_for_q",
        inputs=(
            Input("t", "rows heads nope_dim+rope_dim", mutable=True, strides=_ROWS),
            *_TABLES,
            Input("cu_seqlens_q", kind="cu_seqlens"),
        ),
        outputs=(Output("output", alias="t"),),
        axes={"heads": _HEADS, "nope_dim": _COPIED_DIMS, "rope_dim": _ROPE_DIMS},
        arguments={"qk_head_dim": "nope_dim", "emb_dim": "rope_dim"},
        refuses=(*_REFUSES, "rotary_interleaved", "lanes_apart", *_WRITTEN),
        **_COMMON,
    ),
    _key_value("fused_apply_mla_rope_for_kv", "legacy"),
)

_NAMED = {"parity": "parity.catalog:OPS", "megatron": "parity.adapters.megatron:OPS"}


def configured(folder: Path) -> str | None:
    """The ``ops`` entry of ``[tool.parity]`` in the pyproject.toml of a folder, if there is one."""
    ops = settings(folder).get("ops")
    if ops is not None and not isinstance(ops, str):
        raise ValueError(
            f'Expected [tool.parity] ops = "package.module:OPS" in {folder / "pyproject.toml"} but '
            f"got {ops!r}."
        )
    return ops


def is_of_others(ops: str | None, own: str | None) -> bool:
    """Whether ``ops`` names contracts that Parity brings along and a project whose contracts are
    ``own`` (None: this catalog) does not call its own: its kept cases are none of theirs."""
    asked, called = (_NAMED.get(name, name) for name in (ops or own or "parity", own or "parity"))
    return asked in _NAMED.values() and asked != called


def resolve(ops: str | None = None) -> dict[str, OpSpec]:
    """The contracts named by ``ops``, by op name.

    ``ops`` is ``"package.module:OPS"``, ``"megatron"``, ``"parity"`` (this catalog) or None: the
    ``[tool.parity] ops`` of the current folder, else this catalog.  Raises ValueError, in one
    sentence, for a name that leads to no contracts.
    """
    name = ops or configured(Path.cwd()) or "parity"
    module, _, attribute = _NAMED.get(name, name).partition(":")
    if not attribute:
        raise ValueError(
            f'Expected ops as "package.module:OPS", "megatron" or "parity" but got {name!r}.'
        )
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # importing code of others may raise anything
        raise ValueError(
            f"Expected a tuple of OpSpec at {name!r} but got {type(error).__name__}: {error}; "
            "check the spelling, that its folder is on PYTHONPATH and that it can be imported."
        ) from error
    if not isinstance(found, tuple) or not all(isinstance(item, OpSpec) for item in found):
        raise ValueError(f"Expected a tuple of OpSpec at {name!r} but got {type(found).__name__}.")
    if not found or len({spec.name for spec in found}) < len(found):
        names = ", ".join(spec.name for spec in found) or "none"
        raise ValueError(f"Expected ops of different names at {name!r}, at least one, got {names}.")
    return {spec.name: spec for spec in found}


def find(name: str, ops: str | None = None) -> OpSpec:
    """The contract of one op; raises ValueError naming the ops that exist."""
    specs = resolve(ops)
    if name not in specs:
        raise ValueError(f"Expected an op among {', '.join(specs)} but got {name!r}.")
    return specs[name]
