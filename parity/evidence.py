"""What a check looks at: what was seen, what was expected, and how far apart the two may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from .bounds import limit, must_keep_bits, ulp
from .comparators import structure, used_share
from .observe import Observation
from .oracle import Expectation, Tensors, keeps_sign
from .rows import by_row


@dataclass(frozen=True)
class Lanes:
    """All that value checks know of a result, each tensor of its shape.

    Where any value is right (``undecided``, None if nowhere), ``actual``, ``oracle`` and
    ``reference`` are zero.  ``step`` is an ulp of the dtype around the oracle, ``limit`` how far
    ``actual`` may be from ``oracle``, ``share`` what it uses of that.  ``exact`` are the lanes that
    must have the oracle's bits, ``sign_lost`` those of them that are a zero of another sign than is
    right.
    """

    actual: torch.Tensor
    oracle: torch.Tensor
    reference: torch.Tensor
    step: torch.Tensor
    limit: torch.Tensor
    share: torch.Tensor
    exact: torch.Tensor
    sign_lost: torch.Tensor
    undecided: torch.Tensor | None


@dataclass(frozen=True)
class Joined:
    """Results that are judged alike, one after the other in long tensors: many operations on short
    ones take longer than the kernels under test.  ``places`` says by name where each begins and
    ends."""

    lanes: Lanes
    places: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Evidence:
    """One run of a candidate.  ``specified`` marks the rows whose content the contract defines."""

    seen: Observation
    expected: Expectation
    specified: torch.Tensor | None
    _lanes: dict[str, Lanes] = field(default_factory=dict, repr=False)

    @cached_property
    def comparable(self) -> tuple[str, ...]:
        """Tensors that exist on both sides with one structure: all the others have a finding."""
        found = self.seen.results
        return tuple(
            name
            for name, wanted in self.expected.reference.items()
            if name in found and not structure(actual=found[name], expected=wanted, strides=False)
        )

    @cached_property
    def keeps_sign(self) -> Tensors:
        """Where a result keeps the sign of a zero, by name; asked for rarely, it takes a run."""
        return keeps_sign(self.seen.inputs, self.expected)

    @cached_property
    def joined(self) -> tuple[Joined, ...]:
        """All comparable results."""
        spec = self.seen.inputs.spec
        alike: dict[object, list[str]] = {}
        for name in self.comparable:
            kind = (self.seen.results[name].dtype, name in spec.sums, name in spec.rounded_sums)
            alike.setdefault(kind, []).append(name)
        return tuple(self._join(names) for names in alike.values())

    def lanes(self, name: str) -> Lanes:
        """Those of the comparable result ``name``."""
        if name not in self._lanes:
            joined = next(joined for joined in self.joined if name in joined.places)
            shape = self.seen.results[name].shape
            self._lanes[name] = _part(joined.lanes, *joined.places[name], shape)
        return self._lanes[name]

    def by_row(self, name: str) -> bool:
        """Whether a result has a part for each row."""
        return by_row(self.seen.inputs, name, self.expected.reference[name].shape)

    def rotated(self, name: str) -> torch.Tensor | None:
        """Which elements of a result are rotated, bool of its shape: those of several terms.  None
        for an op without tables."""
        return self.expected.terms[name] > 1 if self.seen.inputs.spec.has("cos") else None

    def settled(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, which has the shape of result ``name``, with zeros where any value is right:
        in rows that the contract leaves open, and where M is so near the largest number of the
        dtype that a correct kernel may or may not overflow."""
        return _settled(tensor, self.lanes(name).undecided)

    def _join(self, names: list[str]) -> Joined:
        spec, first = self.seen.inputs.spec, names[0]
        actual, reference, oracle, magnitude, terms = (
            _row(tensors, names)
            for tensors in (
                self.seen.results,
                self.expected.reference,
                self.expected.oracle,
                self.expected.magnitude,
                self.expected.terms,
            )
        )
        step = ulp(oracle, actual.dtype)
        bound = limit(
            spec,
            first,
            actual.dtype,
            self._table_dtype or actual.dtype,
            step=step,
            magnitude=magnitude,
            terms=terms,
        )
        where = _near_overflow(actual.dtype, oracle, magnitude, terms, bound)
        if self.specified is not None:
            unspecified = torch.cat([self._unspecified(name) for name in names])
            where = unspecified if where is None else where | unspecified
        places, end = {}, 0
        for name in names:
            start, end = end, end + self.seen.results[name].numel()
            places[name] = (start, end)
        actual, oracle, reference = (_settled(t, where) for t in (actual, oracle, reference))
        exact = must_keep_bits(actual.dtype, oracle=oracle, terms=terms)
        lanes = Lanes(
            actual,
            oracle,
            reference,
            step,
            limit=bound,
            share=used_share(actual=actual, expected=oracle, limit=bound),
            exact=exact,
            sign_lost=self._sign_lost(names, exact, actual, oracle),
            undecided=where,
        )
        return Joined(lanes, places)

    def _sign_lost(
        self, names: list[str], exact: torch.Tensor, actual: torch.Tensor, oracle: torch.Tensor
    ) -> torch.Tensor:
        """Where a copy of a zero has another sign than is right; a sum over heads is none, since it
        begins at +0, also over one head."""
        spec = self.seen.inputs.spec
        lost = exact & (actual == 0) & (oracle == 0) & (actual.signbit() != oracle.signbit())
        if names[0] in (*spec.sums, *spec.rounded_sums):
            return torch.zeros_like(lost)
        return lost & _row(self.keeps_sign, names) if bool(lost.any()) else lost

    @property
    def _table_dtype(self) -> torch.dtype | None:
        tensors = self.seen.inputs.tensors
        tables = (item.name for item in self.seen.inputs.spec.inputs if item.kind == "cos")
        return next((tensors[name].tensor.dtype for name in tables), None)

    def _unspecified(self, name: str) -> torch.Tensor:
        """Where the contract leaves the content of a result open, bool, 1-D."""
        shape = self.seen.results[name].shape
        if self.specified is None or not self.by_row(name):
            return torch.zeros(shape, dtype=torch.bool).flatten()
        return ~self.specified.view(-1, *[1] * (len(shape) - 1)).expand(shape).flatten()


def _row(tensors: Tensors, names: list[str]) -> torch.Tensor:
    return torch.cat([tensors[name].flatten() for name in names])


def _near_overflow(
    dtype: torch.dtype,
    oracle: torch.Tensor,
    magnitude: torch.Tensor,
    terms: torch.Tensor,
    bound: torch.Tensor,
) -> torch.Tensor | None:
    """Where a correct kernel may or may not overflow, None if nowhere."""
    near = magnitude + bound >= torch.finfo(dtype).max
    if not bool(near.any()):
        return None
    return near & magnitude.isfinite() & ~must_keep_bits(dtype, oracle=oracle, terms=terms)


def _settled(tensor: torch.Tensor, undecided: torch.Tensor | None) -> torch.Tensor:
    return tensor if undecided is None else tensor.masked_fill(undecided, 0)


def _part(lanes: Lanes, start: int, end: int, shape: torch.Size) -> Lanes:
    """The lanes of one result, in its shape."""

    def cut(row: torch.Tensor) -> torch.Tensor:
        return row[start:end].view(shape)

    return Lanes(
        cut(lanes.actual),
        cut(lanes.oracle),
        cut(lanes.reference),
        cut(lanes.step),
        cut(lanes.limit),
        cut(lanes.share),
        cut(lanes.exact),
        cut(lanes.sign_lost),
        None if lanes.undecided is None else cut(lanes.undecided),
    )
