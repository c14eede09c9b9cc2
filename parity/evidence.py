"""What a check looks at: what was seen, what was expected, and how far apart the two may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from .bounds import limit, must_keep_bits
from .comparators import structure
from .observe import Observation
from .oracle import Expectation


@dataclass(frozen=True)
class Evidence:
    """One run of a candidate.  ``specified`` marks the rows whose content the contract defines."""

    seen: Observation
    expected: Expectation
    specified: torch.Tensor | None
    _known: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict, repr=False)

    def comparable(self) -> Iterator[str]:
        """Tensors that exist on both sides with one structure: all the others have a finding."""
        for name, wanted in self.expected.reference.items():
            actual = self.seen.results.get(name)
            if actual is not None and not structure(actual=actual, expected=wanted, strides=False):
                yield name

    def _has_rows(self, name: str) -> bool:
        """Whether the first axis of a result is the rows: of every output, of most gradients."""
        shapes = {f"{item.name}.grad": item.shape for item in self.seen.inputs.spec.inputs}
        return shapes.get(name, "rows").startswith("rows")

    def settled(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, which has the shape of result ``name``, with zeros where any value is right:
        in rows that the contract leaves open, and where M is so near the largest number of the
        dtype that a correct kernel may or may not overflow."""
        keep = self._once("keep", name, self._settled)
        return torch.where(keep, tensor, torch.zeros_like(tensor))

    def bound(self, name: str) -> torch.Tensor:
        """How far result ``name`` may be from its oracle, float64, its shape."""
        return self._once("bound", name, self._bound)

    def _once(self, what: str, name: str, find: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """Every check and every further run asks again."""
        if (what, name) not in self._known:
            self._known[what, name] = find(name)
        return self._known[what, name]

    def _settled(self, name: str) -> torch.Tensor:
        magnitude, dtype = self.expected.magnitude[name], self.expected.reference[name].dtype
        reach = magnitude + self.bound(name)
        copied = must_keep_bits(
            dtype, oracle=self.expected.oracle[name], terms=self.expected.terms[name]
        )
        keep = ~(magnitude.isfinite() & (reach >= torch.finfo(dtype).max)) | copied
        if self.specified is not None and self._has_rows(name):
            keep = keep & self.specified.view(-1, *[1] * (magnitude.dim() - 1))
        return keep

    def _bound(self, name: str) -> torch.Tensor:
        spec, given = self.seen.inputs.spec, self.seen.inputs.tensors
        dtype = self.seen.results[name].dtype
        tables = [given[item.name].tensor.dtype for item in spec.inputs if item.kind == "cos"]
        return limit(
            spec,
            name,
            dtype,
            tables[0] if tables else dtype,
            oracle=self.expected.oracle[name],
            magnitude=self.expected.magnitude[name],
            terms=self.expected.terms[name],
        )
