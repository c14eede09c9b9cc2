"""Inputs of the consumers: small, seeded, with sizes that no tile divides."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from parity.adapters.megatron_candidate import (
    fused_apply_mla_rope_for_kv,
    fused_apply_mla_rope_for_q,
)
from parity.kernels.tables import Yarn, cos_sin
from parity.reference.absorbed_mla import absorbed_mla
from parity.reference.attention import RopeOps
from parity.reference.dsa_indexer import IndexerWeights, dsa_indexer
from parity.reference.mla import MLAWeights, mla
from parity.reference.sparse_attention import SparseWeights, sparse_attention
from parity.runner import device

SEQ, BATCH, MODEL, HEADS, NOPE, ROPE, VALUE, LATENT, TOP_K = 7, 2, 12, 3, 5, 4, 6, 8, 3


class Setup(NamedTuple):
    """A consumer on its inputs: call it with :class:`RopeOps`, differentiate by ``leaves``."""

    call: Callable[[RopeOps], Any]
    leaves: dict[str, Tensor]
    arguments: tuple[Any, ...]


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    """Weights that keep the scale of what they multiply."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return (values * shape[0] ** -0.5).to(device(), dtype)


def build(
    name: str, dtype: torch.dtype, seed: int = 0, nope: int = NOPE, value: int = VALUE
) -> Setup:
    """A consumer with inputs in ``dtype``; a foreign kernel may take powers of two only."""
    spec = Yarn(ROPE, scaling_factor=40.0)
    table_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    tables = cos_sin(spec, SEQ, dtype=table_dtype, device=device())
    x = (random((SEQ, BATCH, MODEL), seed, torch.float64) * SEQ**0.5).to(dtype)
    width = nope + ROPE
    weights: Any
    extra: tuple[Any, ...] = ()
    if name in ("mla", "absorbed_mla"):
        shapes = MLAWeights(
            (MODEL, HEADS, width), (MODEL, LATENT), (MODEL, ROPE), (LATENT, HEADS, nope + value),
            (HEADS, value, MODEL),
        )  # type: ignore[arg-type]  # fmt: skip
        function: Callable[..., Any] = {"mla": mla, "absorbed_mla": absorbed_mla}[name]
    elif name == "dsa_indexer":
        shapes = IndexerWeights((MODEL, HEADS, width), (MODEL, width), (MODEL, HEADS))  # type: ignore[arg-type,assignment]
        function, extra = dsa_indexer, (ROPE, TOP_K)
    else:
        shapes = SparseWeights((MODEL, HEADS, width), (MODEL, width), (HEADS, width, MODEL))  # type: ignore[arg-type,assignment]
        generator = torch.Generator().manual_seed(seed)
        scores = torch.rand(BATCH, SEQ, SEQ, generator=generator, device="cpu").tril().to(device())
        best, indices = scores.topk(TOP_K)
        function, extra = sparse_attention, (ROPE, indices.where(best > 0, -1))
    weights = type(shapes)(
        *(random(shape, seed + 1 + i, dtype) for i, shape in enumerate(shapes))  # type: ignore[arg-type]
    )
    leaves = {"x": x, **weights._asdict()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    return Setup(
        lambda ops: function(x, weights, *tables, ops, *extra),
        leaves,
        (x, weights, *tables, *extra),
    )


@pytest.fixture
def consumer() -> Callable[..., Setup]:
    return build


@pytest.fixture
def megatron(
    megatron_release: Callable[[str], Path],
    megatron_from: Callable[[Path], AbstractContextManager[None]],
) -> Iterator[RopeOps]:
    """The kernels of a published release; that of the query rotates its argument in place.

    It can neither invert nor rotate leading lanes.  Larger tiles than 1 write past the end where
    they do not divide the heads.
    """
    with megatron_from(megatron_release("0.14.0")):
        yield RopeOps(
            partial(fused_apply_mla_rope_for_q, BLOCK_H=1),
            partial(fused_apply_mla_rope_for_kv, BLOCK_H=1),
        )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A sum that threads share has as many orders as threads; and these are too small to share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def tensors_where_kernels_run() -> Iterator[None]:
    with device():
        yield
