"""Megatron-Core's ``apply_rotary_pos_emb``: one call, fused where the kernels can do all of it.

The dispatcher drops no flag.  What the fused kernel cannot do goes to :mod:`.unfused`, with one
warning per reason; what neither defines is refused.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .checks import check_positions
from .out_of_place import fused_mla_rope_out_of_place
from .unfused import pack_positions, rotate_unfused, take_rows

Path = Literal["fused", "unfused"]


@dataclass(frozen=True)
class RopeConfig:
    """The fields of Megatron-Core's ``TransformerConfig`` that decide how RoPE is applied.

    Any object with these attributes serves as well.
    """

    apply_rope_fusion: bool = False
    multi_latent_attention: bool = True
    rope_type: str = "yarn"
    rotary_interleaved: bool = False
    rotary_percent: float = 1.0


class Group(Protocol):
    """A context-parallel process group, of which only two numbers matter."""

    def rank(self) -> int: ...

    def size(self) -> int: ...


def should_use_fused_mla_rope(config: Any) -> tuple[Path, str]:
    """The path that ``config`` allows, and why, before any argument of a call is known.

    Raises:
        ValueError: a ``rope_type`` other than "rope" and "yarn".
    """
    if config.rope_type not in ("rope", "yarn"):
        raise ValueError(f"Expected rope_type 'rope' or 'yarn' but got {config.rope_type!r}.")
    if not config.apply_rope_fusion:
        return "unfused", "apply_rope_fusion=False"
    if not config.multi_latent_attention:
        return "unfused", "multi_latent_attention=False (the kernels rotate as MLA does)"
    if config.rotary_interleaved:
        return "unfused", "rotary_interleaved=True (the kernels take tables in halves)"
    return "fused", "apply_rope_fusion=True, and nothing in the configuration forbids it"


def apply_rotary_pos_emb(
    t: Tensor,
    freqs: Tensor,
    config: Any,
    cu_seqlens: Tensor | None = None,
    mscale: float = 1.0,
    cp_group: Group | None = None,
    mla_rotary_interleaved: bool | None = False,
    inverse: bool = False,
    mla_output_remove_interleaving: bool = False,
    max_seqlen: int | None = None,
    *,
    cp_rank: int = 0,
    cp_size: int = 1,
    whole_pack_table: bool = False,
) -> Tensor:
    """Rotate the leading ``R`` lanes of ``t`` by the angles ``freqs``; the others keep their bits.

    Both paths use the table ``cos(freqs) * mscale``, ``sin(freqs) * mscale``, computed in the dtype
    of ``freqs`` and rounded once to that of ``t``, rotate in fp32, round once, and where both apply
    they give the same bits.  Fused is one launch forward and one backward.

    Args:
        t: ``[S, B, H, D]`` (SBHD) or ``[T, H, D]`` (THD).
        freqs: angles ``[P, 1, 1, R]`` in float32 or float64, R even and at most D.  In SBHD row s
            is for position s, under context parallelism already sliced for this rank, and a batch
            axis ``[S, B, 1, R]`` gives every entry its own.  In THD row p is for position p of each
            sequence, or of the pack if ``whole_pack_table``: this is never guessed.
        config: a :class:`RopeConfig` or any object with its attributes.
        cu_seqlens: ``[N + 1]`` int32 or int64, THD only, counted over all ranks.
        mscale: factor of the table, YaRN's concentration.
        cp_group, or cp_rank and cp_size: which zigzag chunks of each sequence ``t`` holds.
        mla_rotary_interleaved: lanes (2i, 2i+1) turn together and leave in halves; None takes
            ``config.multi_latent_attention``.
        inverse: negate the sine.
        mla_output_remove_interleaving: leave at lanes (2i, 2i+1) again.
        max_seqlen: THD only: length of the longest sequence over all ranks, which the table must
            cover; without it a position outside the table gives NaN.
        whole_pack_table: THD only: the rows of ``freqs`` run over the whole pack.

    Returns:
        A new tensor like ``t``, contiguous.  Rows of no sequence turn as if at position 0.

    Raises:
        ValueError: arguments that do not fit each other, or that would have to be ignored.
    """
    if mla_rotary_interleaved is None:
        mla_rotary_interleaved = bool(config.multi_latent_attention)
    if cp_group is not None:
        if (cp_rank, cp_size) != (0, 1):
            raise ValueError(
                f"Expected cp_group or cp_size but got both; drop cp_rank={cp_rank}, "
                f"cp_size={cp_size}."
            )
        cp_rank, cp_size = cp_group.rank(), cp_group.size()
    _check_freqs(t, freqs, config.rotary_percent)
    length = freqs.shape[0]
    check_positions(t, length, cu_seqlens, None, None, cp_rank, cp_size, whole_pack_table)
    _check_max_seqlen(t, freqs, max_seqlen)
    if mla_output_remove_interleaving and not mla_rotary_interleaved:
        raise ValueError(
            "Expected mla_rotary_interleaved=True with mla_output_remove_interleaving=True but got "
            "False, which leaves nothing to remove."
        )
    path, reason = _choose(t, freqs, config, mla_rotary_interleaved)
    if path == "unfused" and config.apply_rope_fusion:
        _warn_once(reason)
    cos, sin = ((f(freqs.detach()) * mscale).to(t.dtype) for f in (torch.cos, torch.sin))
    if path == "unfused":
        if cu_seqlens is not None:
            rows = pack_positions(t.shape[0], cu_seqlens, cp_rank, cp_size, whole_pack_table)
            cos, sin = (take_rows(table.squeeze(1), rows) for table in (cos, sin))  # [T, 1, R]
        return rotate_unfused(
            t, cos[: len(t)], sin[: len(t)],
            rotary_interleaved=config.rotary_interleaved,
            mla_rotary_interleaved=mla_rotary_interleaved, inverse=inverse,
            remove_interleaving=mla_output_remove_interleaving,
        )  # fmt: skip
    width = freqs.shape[-1]
    return fused_mla_rope_out_of_place(
        t, cos, sin, t.shape[-1] - width, width, cu_seqlens, cp_rank, cp_size,
        inverse=inverse, remove_interleaving=mla_output_remove_interleaving, rope_first=True,
        whole_pack_table=whole_pack_table,
    )  # fmt: skip


def _choose(
    t: Tensor, freqs: Tensor, config: Any, mla_rotary_interleaved: bool
) -> tuple[Path, str]:
    """Path and reason for one call: the configuration first, then the arguments."""
    path, reason = should_use_fused_mla_rope(config)
    if path == "unfused":
        return path, reason
    if not mla_rotary_interleaved:
        return "unfused", "mla_rotary_interleaved=False (the kernels read pairs of lanes)"
    if freqs.shape[1] != 1:
        return "unfused", "freqs with a batch axis (the kernels take one table for all entries)"
    if t.dtype == torch.float64:
        return "unfused", "t in float64 (the kernels compute in float32)"
    if t.stride(-1) != 1:
        return "unfused", "t with a last stride other than 1 (call contiguous() first)"
    return path, reason


_warned: set[str] = set()


def _warn_once(reason: str) -> None:
    """The user asked for fusion and does not get it: say so, once per reason and process."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"apply_rope_fusion takes the unfused path for {reason}.", stacklevel=3)


def _check_freqs(t: Tensor, freqs: Tensor, rotary_percent: float) -> None:
    if t.dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        raise ValueError(f"Expected t in a floating-point dtype but got {t.dtype}.")
    if freqs.dtype not in (torch.float32, torch.float64) or freqs.device != t.device:
        raise ValueError(
            f"Expected freqs in float32 or float64 on {t.device} but got {freqs.dtype} on "
            f"{freqs.device}; 16 bits cannot hold the angles of later positions."
        )
    batch = t.shape[1] if t.dim() == 4 else 1
    if freqs.dim() != 4 or freqs.shape[2] != 1 or freqs.shape[1] not in (1, batch):
        raise ValueError(
            f"Expected freqs as [P, 1, 1, R], in SBHD also [S, B, 1, R], for t of shape "
            f"{tuple(t.shape)} but got {tuple(freqs.shape)}."
        )
    width, lanes = freqs.shape[-1], t.shape[-1]
    if width < 2 or width % 2 or width > lanes:
        raise ValueError(f"Expected an even number of 2 to {lanes} angles but got {width}.")
    if rotary_percent < 1 and width != int(lanes * rotary_percent):
        raise ValueError(
            f"Expected {int(lanes * rotary_percent)} angles for rotary_percent={rotary_percent} of "
            f"{lanes} lanes but got {width}; was the fraction taken twice, or not at all?"
        )
    if t.dim() == 4 and len(freqs) < len(t):
        raise ValueError(f"Expected freqs of at least {len(t)} positions but got {len(freqs)}.")


def _check_max_seqlen(t: Tensor, freqs: Tensor, max_seqlen: int | None) -> None:
    if max_seqlen is None:
        return
    if t.dim() == 4:
        raise ValueError(f"Expected no max_seqlen with an SBHD tensor but got {max_seqlen}.")
    if len(freqs) < max_seqlen:
        raise ValueError(
            f"Expected freqs of at least max_seqlen={max_seqlen} positions but got {len(freqs)}."
        )
