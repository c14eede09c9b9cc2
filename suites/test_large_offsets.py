"""Offsets past 2^31 elements: every op on tensors whose rows lie far apart in a huge buffer.

Strides stay below 2^31, so that Triton takes them as 32-bit numbers, and only their product with an
index passes it, as in long sequences.  The buffer is a sparse file: memory is committed where it is
touched.  Tensors begin in its middle, so that an offset that wraps to a negative one reads zeros
and not somebody else's memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from parity.catalog import resolve
from parity.comparators import same_bits
from parity.cpu_tier.engine import Engine
from parity.inputs import shape_of
from parity.observe import candidate_function
from parity.runner import device
from parity.spec import OpSpec

SPECS = resolve("parity")
HALF = 2**31 + 2**16  # elements on either side of the middle
SIZES = {
    "heads": 3, "nope_dim": 5, "rope_dim": 4, "k_dim": 3, "v_dim": 3, "seq": 3, "batch": 3,
    "positions": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def buffer(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """The half of the buffer above its middle, bfloat16; zeros lie below."""
    if device().type == "cuda":
        return torch.zeros(2 * HALF, dtype=torch.bfloat16, device=device())[HALF:]
    sparse = tmp_path_factory.mktemp("offsets") / "sparse"
    mapped = torch.from_file(str(sparse), shared=True, size=2 * HALF, dtype=torch.bfloat16)
    sparse.unlink()
    return mapped[HALF:]


def far_apart(buffer: Tensor, values: Tensor, axis: int) -> Tensor:
    """A copy of ``values`` whose last element along ``axis`` is past 2^31 from the first."""
    stride = list(torch.empty(values.shape).stride())
    stride[axis] = 2**31 // (values.shape[axis] - 1) + 64
    return buffer.as_strided(values.shape, stride, HALF).copy_(values)


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(torch.bfloat16).to(device())


def arguments(spec: OpSpec, place: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
    """A legal SBHD call with each tensor as ``place`` lays it out; data as results of an op."""
    call: dict[str, Any] = {name: SIZES[axis] for name, axis in spec.arguments.items()}
    for seed, item in enumerate(spec.inputs):
        if item.shape:
            values = random(*shape_of(item.shape, "sbhd", SIZES), seed=seed)
            call[item.name] = place(item.name, values)
    return call


def run(spec: OpSpec, place: Callable[[str, Tensor], Tensor]) -> list[Tensor]:
    """Outputs of one call."""
    with torch.no_grad():
        result = candidate_function(spec.candidate)(**arguments(spec, place))
    return [t.clone() for t in (result if isinstance(result, tuple) else (result,))]


def axes_of(spec: OpSpec, name: str) -> list[int]:
    """The axes of a tensor whose stride the contract leaves open, with more than two elements."""
    item = next(item for item in spec.inputs if item.name == name)
    shape = shape_of(item.shape, "sbhd", SIZES)
    lanes = [3] if "strided_last" in item.strides else []
    rows = [0] if item.kind != "data" else [0, 1, 2]
    return [axis for axis in (*rows, *lanes) if shape[axis] > 2]


CASES = [
    (op, item.name, axis)
    for op, spec in SPECS.items()
    for item in spec.inputs
    if item.shape
    for axis in axes_of(spec, item.name)
]


@pytest.mark.parametrize(("op", "name", "axis"), CASES)
def test_a_far_input_is_a_near_input(buffer: Tensor, op: str, name: str, axis: int) -> None:
    """In place, the far tensor is the output as well."""
    spec = SPECS[op]
    near = run(spec, lambda _, values: values)
    far = run(spec, lambda n, values: far_apart(buffer, values, axis) if n == name else values)
    for got, wanted in zip(far, near, strict=True):
        assert same_bits(actual=got.contiguous(), expected=wanted) is None


@pytest.mark.parametrize("name", ["cos", "sin"])
@pytest.mark.parametrize(("by", "values"), [("cu_seqlens_q", [0, 3]), ("position_ids", [0, 1, 2])])
def test_a_far_table_of_a_pack_is_a_near_table(
    buffer: Tensor, by: str, values: list[int], name: str
) -> None:
    """Its rows are found by numbers in int32, in code that all ops share."""
    spec = SPECS["fused_mla_rope_out_of_place"]
    call = arguments(spec, lambda _, values: values)
    call |= {"t": call["t"][:, 0], by: torch.tensor(values, dtype=torch.int32, device=device())}
    far = {name: far_apart(buffer, call[name], 0)}
    near, found = (candidate_function(spec.candidate)(**call | more) for more in ({}, far))
    assert same_bits(actual=found, expected=near) is None


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    ("op", "output"), [(op, i) for op, spec in SPECS.items() for i in range(len(spec.outputs))]
)
def test_a_far_gradient_is_a_near_gradient(buffer: Tensor, op: str, output: int, axis: int) -> None:
    spec = SPECS[op]
    names = [item.name for item in spec.inputs if item.kind == "data"]
    leaves = arguments(spec, lambda n, t: t.requires_grad_() if n in names else t)
    fed = leaves | {name: leaves[name] * 1 for name in names}  # in place refuses leaves
    result = candidate_function(spec.candidate)(**fed)
    outputs = result if isinstance(result, tuple) else (result,)
    near = [random(*t.shape, seed=9 + i) for i, t in enumerate(outputs)]
    far = [far_apart(buffer, g, axis) if i == output else g for i, g in enumerate(near)]
    found = [
        torch.autograd.grad(outputs, [leaves[n] for n in names], grads, retain_graph=True)
        for grads in (near, far)
    ]
    for wanted, got in zip(*found, strict=True):
        assert same_bits(actual=got, expected=wanted) is None


@pytest.fixture
def last_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU tier run only the last program of a launch, and that of its first half, which is
    where kv_split sums."""
    stock = Engine._batch

    def batch(engine: Engine, kernel: Any, call: dict[str, Any], programs: Any) -> None:
        count = interpreter_builder.grid_dim[0]
        kept = programs[np.isin(programs[:, 0] + 1, (count, count // 2))]
        if len(kept):
            stock(engine, kernel, call, kept)

    monkeypatch.setattr(Engine, "_batch", batch)


def of_equal_rows(spec: OpSpec, batch: int) -> list[Tensor]:
    """The last row of outputs and gradients, all rows alike and 2^15 lanes wide."""
    lanes = {name: 2**15 for name in SIZES if name.endswith("dim")}
    sizes = {"heads": 1, "seq": 2, "positions": 2, "batch": batch} | lanes
    call: dict[str, Any] = {name: sizes[axis] for name, axis in spec.arguments.items()}
    for seed, item in enumerate(spec.inputs):
        if item.shape:
            shape = shape_of(item.shape, "sbhd", sizes)
            values = random(*(1,) * (len(shape) - 1), shape[-1], seed=seed)
            call[item.name] = values.expand(shape).requires_grad_(item.kind == "data")
    outputs = candidate_function(spec.candidate)(**call)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = [random(1, 1, 1, t.shape[-1], seed=9 + i) for i, t in enumerate(outputs)]
    leaves = [call[item.name] for item in spec.inputs if item.kind == "data"]
    sent = [grad.expand(t.shape) for grad, t in zip(grads, outputs, strict=True)]
    found = torch.autograd.grad(outputs, leaves, sent)
    return [t[-1, -1, -1].detach().clone() for t in (*outputs, *found)]


@pytest.mark.usefixtures("last_programs")
@pytest.mark.parametrize("op", [op for op, spec in SPECS.items() if not spec.inputs[0].mutable])
def test_the_last_row_of_a_far_output_is_that_of_a_near_one(op: str) -> None:
    """Results are contiguous: only their size takes a row past 2^31.  Few pages are touched."""
    far, near = (of_equal_rows(SPECS[op], batch) for batch in (2**15 + 1, 1))
    for got, wanted in zip(far, near, strict=True):
        assert same_bits(actual=got, expected=wanted) is None


@pytest.mark.usefixtures("last_programs")
@pytest.mark.parametrize(("tokens", "dtype"), [(2**20, torch.int64), (2**19 - 2, torch.int32)])
def test_the_last_token_of_a_rank_finds_its_sequence(tokens: int, dtype: torch.dtype) -> None:
    """Offsets count over all 2^12 ranks: up to 2^32, or as far as int32 holds.  The position lies
    outside the table, so the row is NaN; a token of no sequence would have position 0."""
    t, table = random(1, 1, 2, seed=0).expand(tokens, 1, 2), random(4, 2, seed=1)
    cu_seqlens = torch.tensor([0, tokens * 2**12], dtype=dtype, device=device())
    found = candidate_function(SPECS["fused_mla_rope_out_of_place"].candidate)(
        t, table, table, 0, 2, cu_seqlens, cp_size=2**12, tile=32
    )
    assert bool(found[-1].isnan().all())


def test_every_op_has_far_rows_batches_and_heads() -> None:
    for op, spec in SPECS.items():
        data = spec.inputs[0].name
        assert {axis for name, of, axis in CASES if (name, of) == (op, data)} >= {0, 1, 2}


@triton.jit
def copy_kernel(src, dst, stride, WIDE: tl.constexpr):
    """One element of a row a program."""
    row = tl.program_id(0)
    offset = row.to(tl.int64) * stride if WIDE else row * stride
    tl.store(dst + row, tl.load(src + offset))


@pytest.mark.parametrize("wide", [True, False])
def test_an_offset_in_32_bits_is_seen(buffer: Tensor, wide: bool) -> None:
    """The planted bug copies a zero from below the middle, its honest twin the third row."""
    far = far_apart(buffer, torch.ones(3, 1, dtype=torch.bfloat16), 0)
    copied = torch.full((3,), 7.0, dtype=torch.bfloat16, device=device())
    copy_kernel[(3,)](far, copied, far.stride(0), WIDE=wide)
    assert copied.tolist() == [1, 1, 1 if wide else 0]
