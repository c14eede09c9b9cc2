"""Comparisons of one tensor with another: structure, then non-finite pattern, then bits or bound.

Each returns None when it holds and a :class:`Mismatch` when it does not.  Arguments are
keyword-only, ``actual`` before ``expected``.  Refused with ValueError: a tensor compared with
memory of its own, and two shapes, of which the smaller would be broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .guards import bits


@dataclass(frozen=True)
class Mismatch:
    """Where and how much two tensors differ.

    ``where`` is a bool tensor of the elements that differ (empty if the structure does), ``worst``
    the index of the element to show, ``ratio`` how many limits it is off (infinite for bits).
    """

    error: str
    sentence: str
    where: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    worst: tuple[int, ...] = ()
    ratio: float = float("inf")


def structure(*, actual: torch.Tensor, expected: torch.Tensor, strides: bool) -> Mismatch | None:
    """Shape, dtype, device and, on request, strides: those of ``expected`` or, where it is a part
    of a larger tensor, those of a dense one."""
    for name in ("shape", "dtype", "device"):
        got, wanted = getattr(actual, name), getattr(expected, name)
        if got != wanted:
            return Mismatch(name, f"has {name} {_plain(got)} where {_plain(wanted)} was expected")
    if strides and _steps(actual) != _steps(expected):
        dense = torch.empty_like(expected, device="meta")
        if _steps(actual) != _steps(dense):
            return Mismatch(
                "strides", f"has strides {actual.stride()} where {expected.stride()} were expected"
            )
    return None


def _steps(tensor: torch.Tensor) -> list[int]:
    """The strides that say where an element is: those of axes with more than one."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for size, step in sizes if size > 1 and tensor.numel()]


def non_finite(*, actual: torch.Tensor, expected: torch.Tensor) -> Mismatch | None:
    """NaN, +inf and -inf in exactly the same places."""
    _refuse_incomparable(actual, expected)
    if bool((actual.isfinite() & expected.isfinite()).all()):
        return None
    differs = torch.zeros(actual.shape, dtype=torch.bool, device=actual.device)
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        differs |= kind(actual) != kind(expected)
    return _mismatch("non-finite", differs, actual, expected)


def same_bits(
    *,
    actual: torch.Tensor,
    expected: torch.Tensor,
    where: torch.Tensor | None = None,
    signed_zero: torch.Tensor | None = None,
) -> Mismatch | None:
    """The same bits wherever ``where`` holds; NaN equals NaN; +0 equals -0 except where
    ``signed_zero`` holds."""
    _refuse_incomparable(actual, expected)
    ours, theirs = bits(actual.contiguous()), bits(expected.contiguous())
    if torch.equal(ours, theirs):
        return None
    differs = ours != theirs
    differs &= ~(actual.isnan() & expected.isnan())
    zeros = (actual == 0) & (expected == 0)
    differs &= ~zeros if signed_zero is None else ~(zeros & ~signed_zero)
    if where is not None:
        differs &= where
    return _mismatch("bits", differs, actual, expected)


def used_share(
    *, actual: torch.Tensor, expected: torch.Tensor, limit: torch.Tensor
) -> torch.Tensor:
    """``|actual - expected| / limit`` in float64, same shape; NaN stays NaN.

    Elements whose expectation is not finite count as 0: :func:`non_finite` decides about them.
    """
    _refuse_incomparable(actual, expected)
    error = (actual.double() - expected).abs()
    share = torch.where(error == 0, 0.0, error / limit)
    return torch.where(expected.isfinite(), share, 0.0)


def within(*, actual: torch.Tensor, expected: torch.Tensor, limit: torch.Tensor) -> Mismatch | None:
    """``|actual - expected| <= limit`` for every element; a NaN difference is not accepted."""
    share = used_share(actual=actual, expected=expected, limit=limit)
    return beyond(share=share, actual=actual, expected=expected)


def beyond(*, share: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor) -> Mismatch | None:
    """The same for a share of the limit that is known."""
    return _mismatch("beyond bound", ~(share <= 1), actual, expected, share)


def _mismatch(
    error: str,
    differs: torch.Tensor,
    actual: torch.Tensor,
    expected: torch.Tensor,
    share: torch.Tensor | None = None,
) -> Mismatch | None:
    if not bool(differs.any()):
        return None
    score = differs.double() if share is None else share.nan_to_num(nan=torch.inf) * differs
    flat = int(score.flatten().argmax())
    worst = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), actual.shape))
    sentence = (
        f"got actual={float(actual[worst]):.9g}, expected={float(expected[worst]):.9g} "
        f"({int(differs.sum())} of {differs.numel()} elements differ)"
    )
    ratio = float("inf") if share is None else float(share[worst])
    return Mismatch(error, sentence, differs, worst, ratio)


def _refuse_incomparable(actual: torch.Tensor, expected: torch.Tensor) -> None:
    if actual.shape != expected.shape:
        raise ValueError(
            f"Expected two tensors of one shape but got {tuple(actual.shape)} and "
            f"{tuple(expected.shape)}; compare their structure first."
        )
    if actual.numel() and actual.data_ptr() == expected.data_ptr():
        raise ValueError(
            "Expected two tensors with memory of their own but got one memory twice; "
            "compare with a clone made before the candidate ran."
        )


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, torch.Size) else value
