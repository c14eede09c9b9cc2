"""What is timed: one op at one production shape, forward or backward, and the copy beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from ..catalog import resolve
from .timing import copies_needed

Call = Callable[[], Any]


@dataclass(frozen=True)
class Workload:
    """``tokens x heads x (nope + rope)`` in bf16; ``sequences`` packs them (0: SBHD).

    ``target`` is the largest allowed ratio to ``beside``: a copy of the same bytes, the same op in
    SBHD, or upstream's kernel.
    """

    op: str
    tokens: int
    heads: int
    nope: int
    rope: int
    sequences: int = 0
    value: int = 0
    target_forward: float = 1.06
    target_backward: float = 1.06
    beside: str = "copy"

    @property
    def name(self) -> str:
        """E.g. ``concat 4096x64x(512+64) THD 4``."""
        width = f"{self.nope}+{self.rope}" + (f", v {self.value}" if self.value else "")
        layout = f"THD {self.sequences}" if self.sequences else "SBHD"
        return f"{self.op} {self.tokens}x{self.heads}x({width}) {layout}"


WORKLOADS = (
    Workload("concat", 4096, 64, 512, 64),
    Workload("concat", 4096, 64, 512, 64, 4, 0, 1.05, 1.05, "SBHD"),
    Workload("concat", 4096, 64, 512, 64, 4096, 0, 1.05, 1.05, "SBHD"),
    Workload("concat", 32768, 16, 512, 64),
    Workload("concat", 4096, 128, 128, 64, 0, 0, 1.08, 1.08),
    Workload("concat", 4096, 1, 512, 64, 0, 0, 1.0, 1.0, "upstream"),
    Workload("out_of_place", 4096, 64, 512, 64),
    Workload("out_of_place", 4096, 128, 128, 64),
    Workload("kv_split", 4096, 128, 128, 64, 0, 128),
    Workload("kv_split", 4096, 128, 128, 64, 4, 128),
    Workload("inplace", 4096, 64, 512, 64, 0, 0, 1.10),
    Workload("inplace", 4096, 128, 128, 64, 0, 0, 1.10),
    Workload("inplace", 32768, 16, 512, 64, 0, 0, 1.10),
)
OURS = "parity.kernels"


@dataclass(frozen=True)
class Buffers:
    """One set of tensors of a workload."""

    data: tuple[torch.Tensor, ...]
    tables: tuple[torch.Tensor, torch.Tensor]
    cu_seqlens: torch.Tensor | None


def buffers(work: Workload, device: torch.device) -> Buffers:
    """Fresh random tensors of a workload, bf16."""
    rows = (work.tokens,) if work.sequences else (work.tokens, 1)
    widths = {
        "concat": ((work.heads, work.nope), (work.heads, work.rope)),
        "kv_split": ((work.heads, work.nope + work.value), (1, work.rope)),
    }.get(work.op, ((work.heads, work.nope + work.rope),))
    data = tuple(_random((*rows, *width), device) for width in widths)
    table = torch.randn(work.tokens, 1, 1, work.rope, device=device).clamp(-1, 1)
    cu_seqlens = None
    if work.sequences:
        step = work.tokens // work.sequences
        cu_seqlens = torch.arange(0, work.tokens + 1, step, dtype=torch.int32, device=device)
    return Buffers(data, (table, table.flip(0).contiguous()), cu_seqlens)


def rotated(work: Workload, device: torch.device) -> list[Buffers]:
    """As many sets of tensors as keep one call's data out of the cache of the next."""
    size = 4 * work.tokens * work.heads * (work.nope + work.rope + work.value)
    return [buffers(work, device) for _ in range(copies_needed(size))]


def _random(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device)


def forward(work: Workload, module: str, held: Buffers) -> Call:
    """One forward call of the op from ``module`` (ours or upstream's)."""
    function = _function(work.op, module)
    cos, sin = held.tables
    packing = {} if held.cu_seqlens is None else {_cu_name(work.op): held.cu_seqlens}
    if work.op == "concat":
        return lambda: function(*held.data, cos, sin, **packing)
    if work.op == "kv_split":
        return lambda: function(*held.data, cos, sin, work.rope, work.nope, work.value, **packing)
    return lambda: function(held.data[0], cos, sin, work.nope, work.rope, **packing)


def _cu_name(op: str) -> str:
    return {"concat": "cu_seqlens", "kv_split": "cu_seqlens_kv"}.get(op, "cu_seqlens_q")


def _function(op: str, module: str) -> Callable[..., Any]:
    paths = [spec.candidate for spec in resolve("parity").values()]
    where, _, name = next(path for path in paths if path.startswith(f"{OURS}.{op}:")).partition(":")
    return getattr(import_module(where if module == OURS else module), name)  # type: ignore[no-any-return]


def backward(work: Workload, module: str, held: Buffers) -> Call:
    """One backward call; forward runs once, before.

    Gradients are asked for at the op's own inputs, through their place in the graph: in place the
    input is no longer a tensor one could name.
    """
    fed = tuple(tensor.detach().requires_grad_() * 1 for tensor in held.data)
    edges = tuple(torch.autograd.graph.get_gradient_edge(tensor) for tensor in fed)
    result = forward(work, module, Buffers(fed, held.tables, held.cu_seqlens))()
    outputs = result if isinstance(result, tuple) else (result,)
    gradients = tuple(_random(tuple(output.shape), output.device) for output in outputs)
    return lambda: torch.autograd.grad(outputs, edges, gradients, retain_graph=True)


def with_backward(call: Call, leaves: tuple[torch.Tensor, ...]) -> Call:
    """A call and the gradients of its one output at ``leaves``."""
    gradient = torch.randn_like(call())
    return lambda: torch.autograd.grad(call(), leaves, gradient)


class _Idle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nope: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(nope)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return grad, grad


def idle_calls() -> tuple[Call, Call]:
    """Forward, and forward with backward, of a function of two tensors that launches nothing."""
    leaves = tuple(torch.zeros(64, device="cuda", requires_grad=True) for _ in range(2))

    def call() -> torch.Tensor:
        return _Idle.apply(*leaves)  # type: ignore[no-untyped-call,no-any-return]

    return call, with_backward(call, leaves)


def copy(work: Workload, *, is_backward: bool, device: torch.device) -> Call:
    """A device copy that moves the bytes the op must move, with its strides.

    In place forward moves just the rope lanes, in the strides they have; everything else reads and
    writes whole tensors.
    """
    if work.op == "inplace" and not is_backward:
        shape = (work.tokens, work.heads, work.nope + work.rope)
        target, source = (_random(shape, device)[..., work.nope :] for _ in range(2))
        return lambda: target.copy_(source)
    lanes = work.heads * (work.nope + work.rope)
    if work.op == "kv_split":  # reads kv and one shared key, writes a key of every head and value
        read = work.heads * (work.nope + work.value) + work.rope
        written = work.heads * (work.nope + work.rope + work.value)
        lanes = (read + written) // 2
    target, source = _random((work.tokens, lanes), device), _random((work.tokens, lanes), device)
    return lambda: target.copy_(source)


def judged(work: Workload) -> Iterator[tuple[bool, float]]:
    """(is it the backward, its target) of both passes."""
    yield False, work.target_forward
    yield True, work.target_backward
