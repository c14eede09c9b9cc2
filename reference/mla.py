"""Multi-head latent attention of DeepSeek-V2 (arXiv 2405.04434, section 2.1), causal, SBHD."""

from typing import NamedTuple

from torch import Tensor

from .attention import NormalizedProjection, RopeOps, causal, product, project


class MLAWeights(NamedTuple):
    """M the model's width, N nope, R rope, V value lanes of each of H heads, L the latent's."""

    query: Tensor  # [M, H, N + R]
    latent: Tensor  # [M, L]
    shared_key: Tensor  # [M, R]
    key_value: Tensor  # [L, H, N + V]
    output: Tensor  # [H, V, M]


def mla(x: Tensor, weights: MLAWeights, cos: Tensor, sin: Tensor, ops: RopeOps) -> Tensor:
    """Self-attention with keys and values expanded from a latent, the key's rope part shared.

    Queries are normalized per head (arXiv 2010.04245).  ``ops`` is the switch: :data:`UNFUSED` or
    the fused functions of the same signatures.

    Args:
        x: ``[S, B, M]``.
        cos, sin: ``[P, R]`` or ``[P, 1, 1, R]``, P at least S.

    Returns:
        ``[S, B, M]`` in the dtype of ``x``.
    """
    rope_dim = weights.shared_key.shape[-1]
    nope_dim = weights.query.shape[-1] - rope_dim
    v_dim = weights.output.shape[1]
    query = NormalizedProjection.apply(x, weights.query)
    latent = project("sbm,ml->sbl", x, weights.latent)
    shared_key = project("sbm,mr->sbr", x, weights.shared_key).unsqueeze(2)
    key_value = project("sbl,lhd->sbhd", latent, weights.key_value)

    query = ops.rotate(query, cos, sin, nope_dim, rope_dim)
    key, value = ops.split(key_value, shared_key, cos, sin, rope_dim, nope_dim, v_dim)

    scores = product("sbhd,tbhd->bhst", query, key) * query.shape[-1] ** -0.5
    weight = causal(scores).softmax(dim=-1)
    heads = product("bhst,tbhv->sbhv", weight, value).to(x.dtype)
    return project("sbhv,hvm->sbm", heads, weights.output)
