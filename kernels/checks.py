"""What the public functions demand of their arguments, each in one sentence."""

import torch
from torch import Tensor

from .positions import Positions, search_steps
from .validation import check_values

MAX_ROWS = 2**30  # row numbers are int32 in the kernels, offsets int64
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int32, torch.int64)


def check_data(name: str, t: Tensor, like: Tensor | None = None) -> None:
    """Layout, dtype and device of a data tensor; ``like`` is the one it must agree with."""
    if t.dim() not in (3, 4):
        raise ValueError(
            f"Expected {name} as [S, B, H, D] or [T, H, D] but got shape {tuple(t.shape)}."
        )
    if t.dtype not in _DTYPES:
        raise ValueError(f"Expected {name} in float32, bfloat16 or float16 but got {t.dtype}.")
    if like is not None and (t.dtype != like.dtype or t.device != like.device):
        raise ValueError(
            f"Expected {name} in {like.dtype} on {like.device} but got {t.dtype} on {t.device}."
        )
    if t.numel() // max(t.shape[-1], 1) > MAX_ROWS:
        raise ValueError(f"Expected at most 2**30 rows but {name} has shape {tuple(t.shape)}.")


def check_last_stride(name: str, t: Tensor) -> None:
    """Lanes side by side in memory."""
    if t.shape[-1] > 1 and t.stride(-1) != 1:
        raise ValueError(
            f"Expected the last stride of {name} to be 1 but got strides {t.stride()}; call "
            "contiguous() first."
        )


def check_rotation(emb_dim: int, width: int, rotary_interleaved: bool = False, *kept: int) -> None:
    """What can be rotated; ``width`` is how many lanes ``emb_dim`` must be, ``kept`` are copied."""
    if rotary_interleaved:
        raise ValueError(
            "Expected rotary_interleaved=False but got True; use the unfused path for tables that "
            "repeat each angle per pair."
        )
    _check_whole("emb_dim", emb_dim)
    for lanes in kept:
        _check_whole("each number of kept lanes", lanes)
    if emb_dim < 2 or emb_dim % 2:
        raise ValueError(f"Expected an even emb_dim of at least 2 but got emb_dim={emb_dim}.")
    if any(lanes < 0 for lanes in kept):
        raise ValueError(f"Expected no negative number of kept lanes but got {kept}.")
    if width != emb_dim:
        raise ValueError(f"Expected emb_dim={emb_dim} rotated lanes but the tensor has {width}.")


def check_tables(cos: Tensor, sin: Tensor, t: Tensor, emb_dim: int) -> None:
    """Shape, dtype, device and strides; the length only where no value on the device says it."""
    for name, table in (("cos", cos), ("sin", sin)):
        shape = table.shape
        if len(shape) not in (2, 4) or (len(shape) == 4 and shape[1:3] != (1, 1)):
            raise ValueError(
                f"Expected {name} as [P, {emb_dim}] or [P, 1, 1, {emb_dim}] but got {tuple(shape)}."
            )
        if shape[-1] != emb_dim:
            raise ValueError(
                f"Expected {name} to be {emb_dim} wide but it is {shape[-1]}; a table for "
                "rotary_percent below 1 is narrower and cannot be used here."
            )
        if table.dtype not in (torch.float32, t.dtype) or table.device != t.device:
            raise ValueError(
                f"Expected {name} in {torch.float32} or the dtype of the data, {t.dtype}, on "
                f"{t.device} but got {table.dtype} on {table.device}."
            )
        if table.stride(-1) != 1:
            raise ValueError(
                f"Expected the last stride of {name} to be 1 but got strides {table.stride()}."
            )
    if cos.shape[0] != sin.shape[0] or cos.dtype != sin.dtype:
        raise ValueError(
            f"Expected cos and sin alike but got {cos.dtype} {tuple(cos.shape)} and {sin.dtype} "
            f"{tuple(sin.shape)}."
        )
    if t.dim() == 4 and cos.shape[0] < t.shape[0]:
        raise ValueError(
            f"Expected tables of at least {t.shape[0]} positions but got {cos.shape[0]}."
        )


def check_positions(
    t: Tensor,
    length: int,
    cu_seqlens: Tensor | None,
    cu_seqlens_padded: Tensor | None,
    position_ids: Tensor | None,
    cp_rank: int,
    cp_size: int,
    whole_pack_table: bool,
) -> Positions:
    """The packing of ``t`` as the kernels take it, for tables of ``length`` rows.

    No value on the device is read, except inside :func:`.validation.validation`.

    Raises:
        ValueError: packing with an SBHD tensor, none with a THD one, or tensors of another kind.
    """
    _check_whole("cp_rank", cp_rank)
    _check_whole("cp_size", cp_size)
    if not 0 <= cp_rank < cp_size:
        raise ValueError(f"Expected 0 <= cp_rank < cp_size but got {cp_rank} of {cp_size}.")
    if t.dim() == 4:
        packed = cu_seqlens is not None or cu_seqlens_padded is not None
        if packed or position_ids is not None or whole_pack_table:
            raise ValueError(f"Expected no packing with an SBHD tensor of shape {tuple(t.shape)}.")
        return Positions(None, None, None, 0, 0, 0, t.shape[1], 1, False)
    if cu_seqlens is not None:
        _check_integers("cu_seqlens", cu_seqlens, None, t)
    if cu_seqlens is not None and cu_seqlens_padded is not None:
        _check_integers("cu_seqlens_padded", cu_seqlens_padded, cu_seqlens.shape[0], t)
    if position_ids is not None:
        _check_integers("position_ids", position_ids, t.shape[0], t)
        positions = Positions(None, None, position_ids, 0, 0, 0, 1, 1, False)
    elif cu_seqlens is not None:
        sequences = cu_seqlens.shape[0] - 1
        positions = Positions(
            cu_seqlens, cu_seqlens_padded, None, sequences, search_steps(sequences),
            cp_rank, 1, cp_size, whole_pack_table,
        )  # fmt: skip
    else:
        raise ValueError("Expected cu_seqlens or position_ids with a THD tensor but got neither.")
    check_values(t, positions, length)
    return positions


def _check_whole(name: str, number: object) -> None:
    """No 2.0 or True: their launch would be kept for 2 and 1, which are equal, and break those."""
    if type(number) is not int:
        raise ValueError(f"Expected {name} as an int but got {number!r}; convert it.")


def _check_integers(name: str, values: Tensor, length: int | None, t: Tensor) -> None:
    if values.dim() != 1 or values.dtype not in _INTEGERS or values.device != t.device:
        raise ValueError(
            f"Expected {name} as one row of int32 or int64 on {t.device} but got {values.dtype} "
            f"of shape {tuple(values.shape)} on {values.device}."
        )
    if values.shape[0] == 0 and length is None:
        raise ValueError(f"Expected {name} to hold at least its leading 0 but it is empty.")
    if length is not None and values.shape[0] != length:
        raise ValueError(f"Expected {name} of length {length} but got {values.shape[0]}.")
    if not values.is_contiguous():
        raise ValueError(f"Expected {name} contiguous but got stride {values.stride()}.")


def check_no_overlap(name: str, t: Tensor) -> None:
    """Every element at its own address, as a tensor that is rotated in place must have."""
    if t.numel() == 0:
        return
    reach = 0
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise ValueError(
                f"Expected no two elements of {name} in one place but got shape {tuple(t.shape)} "
                f"with strides {t.stride()}; use fused_mla_rope_out_of_place."
            )
        reach += (size - 1) * stride
