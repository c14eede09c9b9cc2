"""The lightning indexer of DeepSeek sparse attention (DeepSeek-V3.2-Exp report, 2025), SBHD."""

from typing import NamedTuple

from torch import Tensor

from .attention import RopeOps, causal, product, project


class IndexerWeights(NamedTuple):
    """M the model's width, R rope and N nope lanes of each of H heads, in this order."""

    query: Tensor  # [M, H, R + N]
    key: Tensor  # [M, R + N]
    head: Tensor  # [M, H]


def dsa_indexer(
    x: Tensor,
    weights: IndexerWeights,
    cos: Tensor,
    sin: Tensor,
    ops: RopeOps,
    rope_dim: int,
    top_k: int,
) -> tuple[Tensor, Tensor]:
    """Which earlier tokens each token attends to: ``sum_h w_h relu(q_h . k)``, the ``top_k`` best.

    The rotated lanes come first (``rope_first``), unlike those of the attention it serves.

    Args:
        x: ``[S, B, M]``.
        cos, sin: ``[P, R]`` or ``[P, 1, 1, R]``, P at least S.

    Returns:
        Scores ``[B, S, S]`` (float32 or wider, minus infinity for later tokens) and indices
        ``[B, S, min(top_k, S)]``, -1 where a token has fewer predecessors.
    """
    nope_dim = weights.query.shape[-1] - rope_dim
    query = project("sbm,mhd->sbhd", x, weights.query)
    key = project("sbm,md->sbd", x, weights.key).unsqueeze(2)
    query = ops.rotate(query, cos, sin, nope_dim, rope_dim, rope_first=True)
    key = ops.rotate(key, cos, sin, nope_dim, rope_dim, rope_first=True)
    dots = product("sbhd,tbd->sbht", query, key.squeeze(2)).relu()
    head = project("sbm,mh->sbh", x, weights.head)
    scores = causal(product("sbh,sbht->bst", head.to(dots.dtype), dots))
    best, indices = scores.topk(min(top_k, scores.shape[-1]), dim=-1)
    return scores, indices.masked_fill(best.isneginf(), -1)
