"""Results that lie in one memory: whoever writes one in place changes the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch

from .observe import Observation
from .record import Finding


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have a byte of memory in common; disjoint views of one buffer do not."""
    storage = one.untyped_storage()
    same = storage.data_ptr() == other.untyped_storage().data_ptr()
    if not same or not one.numel() or not other.numel():
        return False
    mark = torch.zeros(storage.nbytes(), dtype=torch.bool)
    _bytes(mark, one).fill_(True)
    return bool(_bytes(mark, other).any())


def _bytes(memory: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in a byte map of its storage."""
    width = tensor.element_size()
    stride = [step * width for step in tensor.stride()]
    return memory.as_strided([*tensor.size(), width], [*stride, 1], tensor.storage_offset() * width)


def shared_outputs(seen: Observation) -> Iterator[Finding]:
    """No two outputs have memory in common, unless the contract gives both that of one input."""
    alias = {item.name: item.alias for item in seen.inputs.spec.outputs}
    for (first, one), (second, other) in combinations(seen.returned.items(), 2):
        promised = alias[first] is not None and alias[first] == alias[second]
        if not promised and overlap(one, other):
            yield Finding(
                "aliasing",
                second,
                f"shares {first}",
                sentence=f"Expected {first} and {second} in memory of their own but they overlap.",
            )


def shared_gradients(seen: Observation) -> Iterator[Finding]:
    """Hazards: gradients that overlap each other or an incoming gradient that is not for writing.

    Autograd copies where it would write such a gradient itself, so nothing is wrong as yet; a hook
    or an optimizer that writes it changes the other.
    """
    kept = {item.name for item in seen.inputs.spec.outputs if not item.gradient_mutable}
    arriving = {
        f"the incoming gradient of {name}": item.tensor
        for name, item in seen.gradients.items()
        if name in kept
    }
    for (first, one), (second, other) in combinations((arriving | seen.leaving).items(), 2):
        if second in seen.leaving and overlap(one, other):
            yield Finding(
                "aliasing",
                second,
                f"shares {first}",
                sentence=f"{second} overlaps {first}: whoever writes one changes the other.",
            )
