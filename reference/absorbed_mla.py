"""MLA with the expansion of keys and values absorbed into queries and outputs, causal, SBHD.

The same function of the same weights as :func:`.mla.mla` (DeepSeek-V2, arXiv 2405.04434, section
2.1.2): attention runs on the latent, which all heads share, instead of on expanded keys and values.
"""

from torch import Tensor

from .attention import NormalizedProjection, RopeOps, causal, product, project
from .mla import MLAWeights


def absorbed_mla(x: Tensor, weights: MLAWeights, cos: Tensor, sin: Tensor, ops: RopeOps) -> Tensor:
    """Self-attention on the latent; arguments and result as :func:`.mla.mla`.

    The rope lanes are rotated as slices of the query, and the shared key as a single head.
    """
    rope_dim = weights.shared_key.shape[-1]
    nope_dim = weights.query.shape[-1] - rope_dim
    expand_key, expand_value = weights.key_value.split(
        [nope_dim, weights.output.shape[1]], dim=-1
    )  # [L, H, N], [L, H, V]
    query = NormalizedProjection.apply(x, weights.query)
    latent = project("sbm,ml->sbl", x, weights.latent)
    shared_key = project("sbm,mr->sbr", x, weights.shared_key).unsqueeze(2)

    nope, rope = query.split([nope_dim, rope_dim], dim=-1)
    rope = ops.rotate(rope, cos, sin, 0, rope_dim)
    shared_key = ops.rotate(shared_key, cos, sin, 0, rope_dim)
    absorbed = project("sbhn,lhn->sbhl", nope, expand_key)

    scores = product("sbhl,tbl->bhst", absorbed, latent)
    scores = scores + product("sbhr,tbr->bhst", rope, shared_key.squeeze(2))
    weight = causal(scores * query.shape[-1] ** -0.5).softmax(dim=-1)
    mixed = product("bhst,tbl->sbhl", weight, latent).to(x.dtype)
    heads = project("sbhl,lhv->sbhv", mixed, expand_value)
    return project("sbhv,hvm->sbm", heads, weights.output)
