"""Run a candidate once and keep everything it did: outputs, gradients, effects on memory."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .effects import Allocation, Allocations
from .guards import NOWHERE, Changed, Guarded, Image, all_alike
from .inputs import Inputs, Lent, all_on_host, incoming_gradient
from .oracle import Tensors, by_output, data_names, differentiate
from .spec import Unsupported
from .watching import watched

if TYPE_CHECKING:
    from .cpu_tier.tracing import Trace

_LIBRARIES = ("/torch/", "/triton/", "/numpy/")
NO_GPU = "0 active drivers"  # how Triton's error begins where something asks for a GPU and none is
ASKS_FOR_GPU = (
    "The candidate asks Triton's driver for a GPU and this tier has none; run it on a GPU, or take "
    "what it asks for (a benchmark, the device's properties) from the contract's tiles."
)
_HARNESS = str(Path(__file__).parent) + "/"


@dataclass
class Observation:
    """What one run of a candidate did.

    ``results`` holds copies of the outputs, taken right after forward, and of the gradients.
    ``returned`` are the output tensors themselves, ``leaving`` the gradients as backward gave them.
    ``after_forward`` are copies of all buffers between the two, those of the inputs first, then
    those of the allocations.  ``error`` is the exception that ended the run.
    ``traces`` says by phase what kernels did to memory, on the CPU tier, and ``allocated`` how many
    bytes were taken.
    """

    inputs: Inputs
    results: Tensors = field(default_factory=dict)
    returned: Tensors = field(default_factory=dict)
    leaving: Tensors = field(default_factory=dict)
    gradients: dict[str, Guarded] = field(default_factory=dict)
    after_forward: list[torch.Tensor] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    allocated: dict[str, int] = field(default_factory=dict)
    traces: dict[str, Trace] = field(default_factory=dict)
    phase: str = "forward"
    error: Exception | None = None
    _changed: dict[Guarded, Changed] = field(default_factory=dict, repr=False)

    def changed(self, item: Guarded) -> Changed:
        """What the run changed in a buffer, to be asked when it is over.  Of memory that the run
        allocated only the guards are meant: the tensor in it is there to be written."""
        if item not in self._changed:
            self._changed[item] = self._unchanged.get(item) or item.changed()
        return self._changed[item]

    @cached_property
    def _unchanged(self) -> dict[Guarded, Changed]:
        """All buffers on the device but those that the op may write, if none of them changed: a GPU
        answers for all as fast as for one."""
        mutable = {item.name for item in self.inputs.spec.inputs if item.mutable}
        given = [*self.inputs.tensors.values(), *self.gradients.values()]
        fixed = [item for item in given if mutable.isdisjoint(item.image.places)]
        device = given[0].buffer.device
        made = [item for item in self.allocations if item.guarded.buffer.device == device]
        parts = [(i.before, i.buffer) for i in {id(i.buffer): i for i in fixed}.values()]
        parts += [pair for item in made for pair in item.guards()]
        if not parts or not all_alike(parts):
            return {}
        return dict.fromkeys((*fixed, *(item.guarded for item in made)), (NOWHERE, NOWHERE))

    @cached_property
    def lent(self) -> Lent:
        """The buffers of tables and packing that the op may not write, for further runs to read
        too: to copy what this run left as it was takes longer than the run."""
        own = {i.name for i in self.inputs.spec.inputs if i.kind == "data" or i.mutable}
        whole: dict[Image, dict[str, Guarded]] = {}
        for name, item in self.inputs.tensors.items():
            whole.setdefault(item.image, {})[name] = item
        return {
            image: items
            for image, items in whole.items()
            if own.isdisjoint(items) and not any(map(self._written, items.values()))
        }

    def lend(self) -> Lent:
        """The same buffers under new tensors: what an op keeps by the id of a tensor, or on it, it
        does not find there again."""
        firsts = {image: next(iter(items.values())) for image, items in self.lent.items()}
        return {image: image.within(item.buffer, item.device) for image, item in firsts.items()}

    def _written(self, item: Guarded) -> bool:
        return any(len(part) for part in self.changed(item))


class _Feed(torch.autograd.Function):
    """Hands out a tensor in memory of ours as a non-leaf, so that an op may write it in place."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, holder: list[torch.Tensor]) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # a missing gradient must not arrive as zeros
        return holder[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def feed(leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself as a non-leaf whose gradient is that of ``leaf``."""
    return _Feed.apply(leaf, [tensor])  # type: ignore[no-untyped-call,no-any-return]


def new_leaves(inputs: Inputs) -> Tensors:
    """A leaf for each data input, where its gradient arrives; the op is handed what :func:`feed`
    makes of it."""
    return {
        name: torch.empty_like(inputs.tensors[name].tensor, requires_grad=True)
        for name in data_names(inputs)
    }


def observe(inputs: Inputs, *, effects: bool = True) -> Observation:
    """Call the candidate forward and backward on fresh guarded inputs.

    Whatever the candidate raises is kept in the observation, except :class:`Unsupported`, which is
    also what becomes of Triton's error that there is no GPU to ask.  Without
    ``effects`` no copies of buffers are kept.
    """
    seen = Observation(inputs)
    try:
        leaves = _forward(inputs, seen, effects)
        seen.phase = "backward"
        _backward(inputs, seen, leaves)
    except Unsupported:
        raise
    except Exception as error:  # any exception is a finding, none is the harness's
        if str(error).startswith(NO_GPU):
            raise Unsupported(ASKS_FOR_GPU) from error
        seen.error = error
    return seen


def _forward(inputs: Inputs, seen: Observation, effects: bool) -> Tensors:
    """Run forward and return the leaves that gradients are asked for."""
    candidate = candidate_function(inputs.spec.candidate)
    leaves = new_leaves(inputs)
    fed = {name: feed(leaf, inputs.tensors[name].tensor) for name, leaf in leaves.items()}
    arguments = call_arguments(candidate, inputs, fed)
    with Allocations("forward", seen.allocations, seen.allocated), watched(seen, "forward"):
        result = candidate(**arguments)
    seen.returned = by_output(inputs, result)
    seen.results = all_on_host(seen.returned, inputs.device)
    if effects:
        made = [item.guarded for item in seen.allocations]
        seen.after_forward = [item.buffer.clone() for item in (*inputs.tensors.values(), *made)]
    return leaves


def _backward(inputs: Inputs, seen: Observation, leaves: Tensors) -> None:
    seen.gradients = {
        name: incoming_gradient(inputs, name, tensor.shape, tensor.dtype)
        for name, tensor in seen.returned.items()
    }
    sent = {name: item.tensor for name, item in seen.gradients.items()}
    with Allocations("backward", seen.allocations, seen.allocated), watched(seen, "backward"):
        found = differentiate(seen.returned, leaves, sent)
    seen.leaving = {f"{name}.grad": gradient for name, gradient in found.items()}
    seen.results |= all_on_host(seen.leaving, inputs.device)


def candidate_function(path: str) -> Callable[..., Any]:
    """The function under test; Unsupported where this revision has no such module or function.

    A module that exists but cannot be imported is broken, not absent, and raises what it raises.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        found = None
    if found is not None:
        return found  # type: ignore[no-any-return]
    raise Unsupported(f"This revision has no function {path!r}.")


def call_arguments(
    candidate: Callable[..., Any], inputs: Inputs, fed: Mapping[str, Any]
) -> dict[str, Any]:
    """Keyword arguments; what the candidate's signature lacks is dropped if it is the default."""
    case, spec = inputs.case, inputs.spec
    tensors = {
        item.name: fed.get(item.name) if item.kind == "data" else _tensor(inputs, item.name)
        for item in spec.inputs
    }
    arguments = {**tensors, **inputs.constants, **case.tile}
    parameters = _parameters(candidate)
    if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
        return arguments
    defaults: dict[str, Any] = {name: v[0] for name, v in spec.flags_of(case.layout).items()}
    defaults |= dict.fromkeys(tensors) | {"cp_rank": 0, "cp_size": 1}
    for name in [name for name in arguments if name not in parameters]:
        value = arguments.pop(name)
        if name not in defaults or not _equal(value, defaults[name]):
            raise Unsupported(f"{candidate.__name__} of this revision takes no argument {name!r}.")
    return arguments


@lru_cache(maxsize=64)
def _parameters(candidate: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(candidate).parameters


def _equal(value: object, default: object) -> bool:
    return value is default or (not isinstance(value, torch.Tensor) and value == default)


def _tensor(inputs: Inputs, name: str) -> torch.Tensor | None:
    return inputs.tensors[name].tensor if name in inputs.tensors else None


def describe_error(error: Exception) -> tuple[str, str]:
    """(exception class with its message freed of numbers and addresses, frame it came from)."""
    lines = _without_places(str(error)).strip().splitlines()
    message = re.sub(r"0x[0-9a-fA-F]+|\d+", "N", lines[0] if lines else "")[:160]
    name = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_foreign(frame.filename)] or list(frames)
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else ""
    return (f"{name}: {message}" if message else name), place


def own_place(error: Exception) -> str:
    """File and line of the last frame outside the harness and its libraries, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_foreign(frame.filename)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _without_places(message: str) -> str:
    """A message with files below the import path as seen from there: arms lie apart."""
    for folder in sorted({folder for folder in sys.path if folder}, key=len, reverse=True):
        message = message.replace(f"{folder.rstrip('/')}/", "")
    return message


def _is_foreign(filename: str) -> bool:
    inside = filename.removeprefix(_HARNESS)
    in_harness = inside != filename and not inside.startswith(("adapters/", "kernels/"))
    return in_harness or any(library in filename for library in _LIBRARIES)
