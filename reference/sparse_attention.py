"""Attention over chosen tokens whose backward needs its own output, SBHD.

Keys and values are one latent of rotated lanes, shared by the heads; the inverse rotation turns the
output back, which leaves the distance between query and value in it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .attention import RopeOps, product, project


class SparseWeights(NamedTuple):
    """M the model's width, D nope and rope lanes of each of H heads."""

    query: Tensor  # [M, H, D]
    latent: Tensor  # [M, D]
    output: Tensor  # [H, D, M]


def sparse_attention(
    x: Tensor,
    weights: SparseWeights,
    cos: Tensor,
    sin: Tensor,
    ops: RopeOps,
    rope_dim: int,
    indices: Tensor,
) -> Tensor:
    """Self-attention over the tokens that ``indices`` ``[B, S, K]`` names, -1 for none.

    Rotated lanes are written where they were read (``remove_interleaving``), so that the inverse
    finds its pairs.

    Args:
        x: ``[S, B, M]``.
        cos, sin: ``[P, R]`` or ``[P, 1, 1, R]``, P at least S.

    Returns:
        ``[S, B, M]`` in the dtype of ``x``.
    """
    nope_dim = weights.query.shape[-1] - rope_dim
    table = (cos, sin, nope_dim, rope_dim)
    query = project("sbm,mhd->sbhd", x, weights.query)
    latent = project("sbm,md->sbd", x, weights.latent).unsqueeze(2)
    query = ops.rotate(query, *table, remove_interleaving=True)
    latent = ops.rotate(latent, *table, remove_interleaving=True)
    heads = _SparseAttention.apply(query, latent.squeeze(2), indices)
    heads = ops.rotate(heads, *table, inverse=True, remove_interleaving=True)
    return project("sbhd,hdm->sbm", heads, weights.output)


class _SparseAttention(torch.autograd.Function):
    """``O = P V`` with ``P = softmax(Q K^T / sqrt(D))`` over the chosen tokens, K and V the latent.

    The backward follows FlashAttention (arXiv 2205.14135): ``dS = P (dP - rowsum(dO O))`` takes the
    row sum from the saved output, so whoever overwrites the output spoils every gradient.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, latent: Tensor, indices: Tensor) -> Tensor:
        scores = product("sbhd,tbd->bhst", query, latent) * query.shape[-1] ** -0.5
        weight = scores.masked_fill(~chosen(indices, len(query)), float("-inf")).softmax(dim=-1)
        output = product("bhst,tbd->sbhd", weight, latent).to(query.dtype)
        ctx.save_for_backward(query, latent, weight, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        query, latent, weight, output = ctx.saved_tensors
        grad = grads[0]
        row = product("sbhd,sbhd->bhs", grad, output).unsqueeze(-1)
        dscores = weight * (product("sbhd,tbd->bhst", grad, latent) - row)
        dscores = dscores * query.shape[-1] ** -0.5
        dquery = product("bhst,tbd->sbhd", dscores, latent)
        dlatent = product("bhst,sbhd->tbd", weight, grad)
        dlatent = dlatent + product("bhst,sbhd->tbd", dscores, query)
        return dquery.to(query.dtype), dlatent.to(latent.dtype), None


def chosen(indices: Tensor, length: int) -> Tensor:
    """Whether a query attends to a token, bool ``[B, 1, S, length]``; -1 chooses none."""
    spare = indices.where(indices >= 0, length)
    mask = torch.zeros(*indices.shape[:2], length + 1, dtype=torch.bool, device=indices.device)
    return mask.scatter(-1, spare, True)[:, None, :, :length]
