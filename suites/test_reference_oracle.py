"""The reference is the oracle of everything else, so it has tests of its own.

None of them goes through the harness: they compare with mpmath, with complex numbers, with a plain
loop over Python floats, and with numbers derived by hand.
"""

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from parity.reference.concat import fused_mla_rope_concat
from parity.reference.inplace import fused_mla_rope_inplace
from parity.reference.kv_split import fused_mla_rope_kv_split
from parity.reference.legacy import fused_apply_mla_rope_for_kv, fused_apply_mla_rope_for_q
from parity.reference.out_of_place import fused_mla_rope_out_of_place
from parity.reference.positions import pack_rows

F64 = {"compute_dtype": torch.float64}
FLAGS = [(inverse, pairs) for inverse in (False, True) for pairs in (False, True)]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def bits(t: Tensor) -> Tensor:
    return t.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


# --- the rotation, three independent ways


def test_tables_and_rotation_agree_with_mpmath() -> None:
    """Angles position * 10000^(-2i/R), rotated with 50 digits."""
    positions, width = (0, 1, 77, 4095), 8
    x = random(len(positions), 1, width)
    with mpmath.workdps(50):
        angles = [
            [mpmath.mpf(p) * mpmath.power(10000, mpmath.mpf(-2 * i) / width) for i in range(4)] * 2
            for p in positions
        ]
        cos, sin = (
            torch.tensor([[float(f(a)) for a in row] for row in angles], dtype=torch.float64)
            for f in (mpmath.cos, mpmath.sin)
        )
        y = fused_mla_rope_inplace(
            x, cos, sin, 0, width, position_ids=torch.arange(len(positions)), **F64
        )
        for token, row in enumerate(angles):
            for i in range(width // 2):
                x1, x2 = (mpmath.mpf(x[token, 0, 2 * i + lane].item()) for lane in (0, 1))
                left = x1 * mpmath.cos(row[i]) - x2 * mpmath.sin(row[i])
                right = x2 * mpmath.cos(row[i]) + x1 * mpmath.sin(row[i])
                # table, product and sum round once each: 3 u of at most |x1| + |x2|
                limit = 3 * 2.0**-53 * (abs(x1) + abs(x2))
                assert abs(y[token, 0, i].item() - left) <= limit
                assert abs(y[token, 0, width // 2 + i].item() - right) <= limit


def test_equal_halves_are_complex_multiplication() -> None:
    x, angles = random(5, 2, 3, 10), random(5, 5, seed=1)
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))
    turned = torch.view_as_complex(x.unflatten(-1, (5, 2))) * torch.exp(1j * angles)[:, None, None]
    pairs = fused_mla_rope_inplace(x, cos, sin, 0, 10, remove_interleaving=True, **F64)
    halves = fused_mla_rope_inplace(x, cos, sin, 0, 10, **F64)
    # two products and a sum against the same with other roundings: 4 u of at most 2 max|x|
    limit = 4 * 2.0**-53 * 2 * x.abs().max()
    assert (pairs - torch.view_as_real(turned).flatten(-2)).abs().max() <= limit
    assert (halves - torch.cat([turned.real, turned.imag], dim=-1)).abs().max() <= limit


def loop_row(
    x: list[float], cos: list[float], sin: list[float], inverse: bool, pairs: bool
) -> list[float]:
    """One rotated row, lane by lane."""
    half = len(x) // 2
    y = [0.0] * len(x)
    for i in range(half):
        sign = -1.0 if inverse else 1.0
        left = x[2 * i] * cos[i] - x[2 * i + 1] * sign * sin[i]
        right = x[2 * i + 1] * cos[half + i] + x[2 * i] * sign * sin[half + i]
        y[2 * i if pairs else i] = left
        y[2 * i + 1 if pairs else half + i] = right
    return y


def loop_gradient(
    g: list[float], cos: list[float], sin: list[float], inverse: bool, pairs: bool
) -> list[float]:
    """A^T g, with column j of A read off by rotating the j-th unit vector."""
    columns = []
    for j in range(len(g)):
        unit = [float(j == lane) for lane in range(len(g))]
        columns.append(loop_row(unit, cos, sin, inverse, pairs))
    return [sum(a * b for a, b in zip(column, g, strict=True)) for column in columns]


@pytest.mark.parametrize(("inverse", "pairs"), FLAGS)
@pytest.mark.parametrize("rope_first", [False, True])
@pytest.mark.parametrize("layout", ["sbhd", "thd"])
def test_in_place_agrees_with_a_plain_loop(
    layout: str, rope_first: bool, inverse: bool, pairs: bool
) -> None:
    nope, width = 3, 6
    rows = (4, 2) if layout == "sbhd" else (4,)
    x = random(*rows, 2, nope + width).requires_grad_()
    g, cos, sin = random(*x.shape, seed=1), random(5, width, seed=2), random(5, width, seed=3)
    ids = None if layout == "sbhd" else torch.tensor([3, 0, 4, 3])
    flags = {"inverse": inverse, "remove_interleaving": pairs, "rope_first": rope_first}
    y = fused_mla_rope_out_of_place(x, cos, sin, nope, width, position_ids=ids, **flags, **F64)
    y.backward(g)
    at, keep = (0, width) if rope_first else (nope, 0)
    assert x.grad is not None
    for index in torch.cartesian_prod(*(torch.arange(n) for n in x.shape[:-1])).tolist():
        row = index[0] if ids is None else int(ids[index[0]])
        table = cos[row].tolist(), sin[row].tolist(), inverse, pairs
        where = tuple(index)
        for got, source, loop in ((y, x, loop_row), (x.grad, g, loop_gradient)):
            expected = loop(source[where][at : at + width].tolist(), *table)
            assert got[where][at : at + width].tolist() == expected
            assert bits(got[where][keep : keep + nope]).equal(
                bits(source[where][keep : keep + nope])
            )


def test_shared_key_agrees_with_a_plain_loop() -> None:
    heads, width, k_dim, v_dim = 5, 4, 3, 2
    kv, shared = random(3, heads, k_dim + v_dim).requires_grad_(), random(3, 1, width, seed=1)
    shared.requires_grad_()
    cos, sin = random(3, width, seed=2), random(3, width, seed=3)
    key, value = fused_mla_rope_kv_split(
        kv, shared, cos, sin, width, k_dim, v_dim, torch.tensor([0, 3]), **F64
    )
    g_key, g_value = random(*key.shape, seed=4), random(*value.shape, seed=5)
    torch.autograd.backward([key, value], [g_key, g_value])
    assert kv.grad is not None
    assert shared.grad is not None
    assert value.equal(kv[..., k_dim:])
    assert kv.grad.equal(torch.cat([g_key[..., :k_dim], g_value], dim=-1))
    for token in range(3):
        table = cos[token].tolist(), sin[token].tolist(), False, False
        rotated = loop_row(shared[token, 0].tolist(), *table)
        total = [0.0] * width
        for head in range(heads):
            assert key[token, head].tolist() == kv[token, head, :k_dim].tolist() + rotated
            lanes = g_key[token, head, k_dim:].tolist()
            total = [a + b for a, b in zip(total, lanes, strict=True)]
        assert shared.grad[token, 0].tolist() == loop_gradient(total, *table)


# --- numbers derived by hand: x = (1, 2) against cos = (10p+1, 10p+2), sin = (10p+3, 10p+4)


def numbered_tables(length: int) -> tuple[Tensor, Tensor]:
    p = 10.0 * torch.arange(length)[:, None]
    return p + torch.tensor([[1.0, 2.0]]), p + torch.tensor([[3.0, 4.0]])


def positions_of(tokens: int, cu_seqlens: list[int], length: int = 32, **flags: Any) -> list[int]:
    """Read the position of each row back from its values: left = -10p - 5, right = 30p + 8."""
    t = torch.tensor([1.0, 2.0]).expand(tokens, 1, 2)
    cos, sin = numbered_tables(length)
    y = fused_mla_rope_inplace(t, cos, sin, 0, 2, torch.tensor(cu_seqlens), **flags)[:, 0]
    p = (-y[:, 0] - 5) / 10
    assert y[:, 1].equal(30 * p + 8)
    return [int(value) for value in p]


def test_zigzag_by_hand() -> None:
    """Two sequences of 8 and 16: rank r holds chunks r and 2 * cp_size - 1 - r of each."""
    cu_seqlens = [0, 8, 24]
    expected = {
        (1, 0): [*range(8), *range(16)],
        (2, 0): [0, 1, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15],
        (2, 1): [2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10, 11],
        (4, 0): [0, 7, 0, 1, 14, 15],
        (4, 1): [1, 6, 2, 3, 12, 13],
        (4, 3): [3, 4, 6, 7, 8, 9],
    }
    for (size, rank), positions in expected.items():
        found = positions_of(24 // size, cu_seqlens, cp_size=size, cp_rank=rank)
        assert found == positions, (size, rank)


@pytest.mark.parametrize("cp_size", [2, 4, 8])
def test_ranks_together_hold_every_position_once(cp_size: int) -> None:
    length = 6 * cp_size
    held = [
        row
        for rank in range(cp_size)
        for row in pack_rows(6, [0, length], [0, length], rank, cp_size, False)
    ]
    assert sorted(held) == list(range(length))


def test_odd_and_empty_sequences_by_hand() -> None:
    assert positions_of(9, [0, 0, 3, 3, 4, 9, 9]) == [0, 1, 2, 0, 0, 1, 2, 3, 4]


def test_padding_by_hand() -> None:
    """Rows in a gap, past the end and of no sequence count as position 0."""
    padded = torch.tensor([0, 4, 9, 9])
    found = positions_of(11, [0, 3, 6, 6], cu_seqlens_padded=padded)
    assert found == [0, 1, 2, 0, 0, 1, 2, 0, 0, 0, 0]
    assert positions_of(2, [0]) == [0, 0]


def test_padding_and_zigzag_by_hand() -> None:
    """Two ranks, lengths 4 and 8 in room for 8 and 12: local rows 2 of 4 and 4 of 6."""
    flags = {"cu_seqlens_padded": torch.tensor([0, 8, 20]), "cp_size": 2}
    assert positions_of(10, [0, 4, 12], cp_rank=0, **flags) == [0, 3, 0, 0, 0, 1, 6, 7, 0, 0]
    assert positions_of(10, [0, 4, 12], cp_rank=1, **flags) == [1, 2, 0, 0, 2, 3, 4, 5, 0, 0]


def test_whole_pack_table_by_hand() -> None:
    """Table rows count from the start of the pack; padding still uses row 0."""
    padded = torch.tensor([0, 4, 8])
    flags = {"cu_seqlens_padded": padded, "whole_pack_table": True}
    assert positions_of(9, [0, 3, 6], **flags) == [0, 1, 2, 0, 3, 4, 5, 0, 0]
    flags = {"whole_pack_table": True, "cp_size": 2, "cp_rank": 1}
    assert positions_of(6, [0, 8, 12], **flags) == [2, 3, 4, 5, 9, 10]


def test_position_ids_replace_the_packing_by_hand() -> None:
    ids = torch.tensor([7, 0, 7, 31], dtype=torch.int32)
    for whole in (False, True):
        assert positions_of(4, [0, 2, 4], position_ids=ids, whole_pack_table=whole) == ids.tolist()


def test_inverse_and_layouts_by_hand() -> None:
    """One row, two pairs (1, 2) and (3, 4), cos (1, 2, 3, 4), sin (5, 6, 7, 8)."""
    t = torch.tensor([[[9.0, 1.0, 2.0, 3.0, 4.0]]])
    cos, sin = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[5.0, 6.0, 7.0, 8.0]])
    cu_seqlens = torch.tensor([0, 1])

    def rotated(**flags: bool) -> list[float]:
        return fused_mla_rope_inplace(t, cos, sin, 1, 4, cu_seqlens, **flags).flatten().tolist()

    # left: 1*1 - 2*5, 3*2 - 4*6; right: 2*3 + 1*7, 4*4 + 3*8
    assert rotated() == [9, -9, -18, 13, 40]
    assert rotated(remove_interleaving=True) == [9, -9, 13, -18, 40]
    # inverse left: 1*1 + 2*5, 3*2 + 4*6; right: 2*3 - 1*7, 4*4 - 3*8
    assert rotated(inverse=True) == [9, 11, 30, -1, -8]
    assert rotated(inverse=True, remove_interleaving=True) == [9, 11, -1, 30, -8]
    # rope_first: pairs (9, 1), (2, 3), then 4 is kept
    assert rotated(rope_first=True) == [9 - 5, 4 - 18, 3 + 63, 12 + 16, 4]


# --- what the harness takes from a reference


Call = Callable[..., Any]


def calls() -> dict[str, tuple[Call, dict[str, Tensor], tuple[int, ...]]]:
    """Each op with float64 data and the constants that follow cos and sin, D = 3 + 4."""
    t, nope, rope = random(4, 2, 7), random(4, 2, 3, seed=1), random(4, 2, 4, seed=2)
    kv, shared = random(4, 2, 5, seed=3), random(4, 1, 4, seed=4)
    return {
        "in place": (fused_mla_rope_inplace, {"t": t}, (3, 4)),
        "out of place": (fused_mla_rope_out_of_place, {"t": t}, (3, 4)),
        "concat": (fused_mla_rope_concat, {"nope": nope, "rope": rope}, ()),
        "kv split": (fused_mla_rope_kv_split, {"kv": kv, "k_pos_emb": shared}, (4, 3, 2)),
        "query": (fused_apply_mla_rope_for_q, {"t": t}, (3, 4)),
        "key": (fused_apply_mla_rope_for_kv, {"kv": kv, "k_pos_emb": shared}, (4, 3, 2)),
    }


def flags_of(name: str) -> list[dict[str, bool]]:
    if name in ("query", "key"):
        return [{}]
    if name == "kv split":
        return [{"remove_interleaving": pairs} for pairs in (False, True)]
    return [{"inverse": inverse, "remove_interleaving": pairs} for inverse, pairs in FLAGS]


def run(
    name: str, data: dict[str, Tensor], cos: Tensor, sin: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    function, _, constants = calls()[name]
    packing = torch.tensor([0, 3])  # the fourth token belongs to no sequence
    result = function(*data.values(), cos, sin, *constants, packing, **options)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", calls())
def test_gradients_are_the_derivatives(name: str) -> None:
    cos, sin = random(3, 4, seed=8), random(3, 4, seed=9)
    data = {key: value.requires_grad_() for key, value in calls()[name][1].items()}
    for flags in flags_of(name):
        for magnitude in (False, True):

            def function(
                *tensors: Tensor, flags: dict[str, bool] = flags, magnitude: bool = magnitude
            ) -> tuple[Tensor, ...]:
                named = dict(zip(data, tensors, strict=True))
                return run(name, named, cos, sin, magnitude=magnitude, **flags, **F64)

            assert torch.autograd.gradcheck(function, tuple(data.values()))


@pytest.mark.parametrize("name", calls())
def test_counts_are_one_for_copies_and_two_for_rotated_lanes(name: str) -> None:
    """Ones through ones: each lane counts its terms; a shared key's gradient has two a head."""
    data = {key: torch.ones_like(value).requires_grad_() for key, value in calls()[name][1].items()}
    table = torch.ones(3, 4, dtype=torch.float64)
    for flags in flags_of(name):
        outputs = run(name, data, table, table, magnitude=True, **flags, **F64)
        packed = torch.tensor([1.0] * 3 + [2.0] * 4, dtype=torch.float64)
        assert outputs[0].equal(packed.expand(4, 2, 7))
        if len(outputs) == 2:
            assert outputs[1].equal(torch.ones(4, 2, 2, dtype=torch.float64))
        grads = torch.autograd.grad(outputs, tuple(data.values()), [o * 0 + 1 for o in outputs])
        expected = {"t": packed, "nope": packed[:3], "rope": packed[3:], "kv": packed[:1]}
        for key, grad in zip(data, grads, strict=True):
            want = torch.tensor(4.0).double() if key == "k_pos_emb" else expected[key]
            assert grad.equal(want.expand(grad.shape)), key


@pytest.mark.parametrize("name", calls())
def test_magnitude_is_the_sum_of_absolute_terms(name: str) -> None:
    """Where all terms have one sign, the magnitude is the value; elsewhere it is no smaller."""
    cos, sin = random(3, 4, seed=8), random(3, 4, seed=9)
    data = calls()[name][1]
    absolute = {key: value.abs() for key, value in data.items()}
    for flags in flags_of(name):
        values = run(name, data, cos, sin, **flags, **F64)
        sums = run(name, absolute, cos.abs(), sin.abs(), magnitude=True, **flags, **F64)
        opposed = run(name, absolute, cos.abs(), sin.abs(), **flags, **F64)
        turned = run(name, absolute, cos.abs(), -sin.abs(), **flags, **F64)
        for value, total, one, other in zip(values, sums, opposed, turned, strict=True):
            assert (value.abs() <= total).all()
            assert torch.maximum(one, other).equal(total)


@pytest.mark.parametrize("name", calls())
def test_arguments_stay_as_they_are(name: str) -> None:
    cos, sin = random(3, 4, seed=8), random(3, 4, seed=9)
    data = {key: value.requires_grad_() for key, value in calls()[name][1].items()}
    before = [t.detach().clone() for t in (*data.values(), cos, sin)]
    outputs = run(name, data, cos, sin, **F64)
    grads = [random(*output.shape, seed=7) for output in outputs]
    kept = [grad.clone() for grad in grads]
    torch.autograd.backward(outputs, grads)
    after = [*data.values(), cos, sin]
    assert all(bits(a.detach()).equal(bits(b)) for a, b in zip(after, before, strict=True))
    assert all(bits(a).equal(bits(b)) for a, b in zip(grads, kept, strict=True))
    assert not any(o.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
                   for o in outputs for a in after)  # fmt: skip


# --- rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", calls())
def test_one_rounding(name: str, dtype: torch.dtype) -> None:
    """Within 0.5 ulp + 2^-23 M + 2^-149 of the oracle: two fp32 products, a sum, one rounding."""
    cos, sin = random(3, 4, seed=8, dtype=torch.float32), random(3, 4, seed=9, dtype=torch.float32)
    data = {key: value.to(dtype) for key, value in calls()[name][1].items()}
    wide = {key: value.double() for key, value in data.items()}
    absolute = {key: value.abs() for key, value in wide.items()}
    for flags in flags_of(name):
        values = run(name, data, cos, sin, **flags)
        oracles = run(name, wide, cos.double(), sin.double(), **flags, **F64)
        tables = cos.double().abs(), sin.double().abs()
        sums = run(name, absolute, *tables, magnitude=True, **flags, **F64)
        for value, oracle, total in zip(values, oracles, sums, strict=True):
            assert value.dtype == dtype
            finfo = torch.finfo(dtype)
            exponent = torch.frexp(oracle.abs().clamp(min=finfo.smallest_normal)).exponent - 1
            ulp = torch.ldexp(torch.full_like(oracle, finfo.eps), exponent)
            limit = 0.5 * ulp + 2.0**-23 * total + 2.0**-149
            assert ((value.double() - oracle).abs() <= limit).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", calls())
def test_copied_lanes_keep_their_bits(name: str, dtype: torch.dtype) -> None:
    """Negative zeros, infinities and NaN too, forward and backward."""
    odd = torch.tensor([-0.0, float("inf"), float("nan")], dtype=dtype)
    cos, sin = torch.ones(3, 4), torch.ones(3, 4)
    data = {key: value.to(dtype) for key, value in calls()[name][1].items()}
    copied = {"t": slice(0, 3), "nope": slice(0, 3), "kv": slice(0, 3)}
    for key, lanes in copied.items():
        if key in data:
            data[key][..., lanes] = odd
    leaves = {key: value.requires_grad_() for key, value in data.items()}
    outputs = run(name, leaves, cos, sin)
    grads = [torch.zeros_like(output) for output in outputs]
    grads[0][..., :3] = odd.flip(0)
    found = dict(zip(leaves, torch.autograd.grad(outputs, [*leaves.values()], grads), strict=True))
    assert bits(outputs[0][..., :3]).equal(bits(odd.expand(4, 2, 3)))
    for key in copied.keys() & found.keys():
        assert bits(found[key][..., :3]).equal(bits(odd.flip(0).expand(4, 2, 3)))


@pytest.mark.parametrize(
    ("heads", "total"),
    [
        # 2^24 + 1 is 2^24 in fp32: downwards gives 2, in pairs 1
        ([2.0**24, 1.0, 1.0, -(2.0**24)], 0.0),
        # 256 + 1 is 256 in bfloat16: rounding every sum gives 256
        ([256.0, 1.0, 1.0], 258.0),
    ],
)
def test_shared_key_gradient_sums_heads_upwards_in_fp32(heads: list[float], total: float) -> None:
    grads = torch.tensor(heads, dtype=torch.bfloat16)[None, :, None].expand(1, len(heads), 2)
    kv = torch.zeros(1, len(heads), 0, dtype=torch.bfloat16)
    shared = torch.zeros(1, 1, 2, dtype=torch.bfloat16, requires_grad=True)
    cos, sin = torch.ones(1, 2), torch.zeros(1, 2)
    key, _ = fused_mla_rope_kv_split(kv, shared, cos, sin, 2, 0, 0, torch.tensor([0, 1]))
    (grad,) = torch.autograd.grad(key, shared, grads)
    assert grad.flatten().tolist() == [total, total]


# --- what it refuses


def query(**changes: Any) -> dict[str, Any]:
    arguments = {
        "t": torch.zeros(4, 2, 6), "cos": torch.zeros(4, 4), "sin": torch.zeros(4, 4),
        "nope_dim": 2, "emb_dim": 4, "cu_seqlens_q": torch.tensor([0, 4]),
    }  # fmt: skip
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cu_seqlens_q": torch.tensor([0, 3, 2, 4])}, "to rise in steps"),
        ({"cu_seqlens_q": torch.tensor([0, 6]), "cp_size": 2}, "divisible by 4"),
        ({"cu_seqlens_q": torch.tensor([1, 4])}, "from 0"),
        ({"cu_seqlens_q": torch.tensor([0, 5])}, "at least 5 tokens"),
        ({"cu_seqlens_q": torch.tensor([0.0, 4.0])}, "int32 or int64"),
        ({"cu_seqlens_q": None}, "got neither"),
        ({"cu_seqlens_padded": torch.tensor([0, 3])}, "room for 4 rows"),
        ({"cu_seqlens_padded": torch.tensor([0, 2, 4])}, "as long"),
        ({"cos": torch.zeros(3, 4)}, "table's length 3"),
        ({"cos": torch.zeros(4, 2)}, "rotary_percent"),
        ({"position_ids": torch.tensor([0, 1, 2, 4])}, "table's length 4"),
        ({"position_ids": torch.tensor([0, -1, 2, 3])}, "-1 to 3"),
        ({"position_ids": torch.tensor([0, 1])}, "4 position_ids"),
        ({"cp_rank": 1}, "cp_rank < cp_size"),
        ({"rotary_interleaved": True}, "rotary_interleaved=False"),
        ({"nope_dim": 1, "emb_dim": 5}, "even emb_dim"),
        ({"nope_dim": 6, "emb_dim": 0}, "even emb_dim"),
        ({"nope_dim": -2, "emb_dim": 8}, "kept lanes"),
        ({"nope_dim": 0}, "the tensor has 6"),
        ({"t": torch.zeros(4, 1, 2, 6)}, "no packing"),
        ({"t": torch.zeros(4, 6)}, "got shape"),
    ],
)
def test_refusals(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fused_mla_rope_inplace(**query(**changes))


def test_refusals_of_the_other_ops() -> None:
    cos = torch.zeros(4, 4)
    cu_seqlens = torch.tensor([0, 4])
    with pytest.raises(ValueError, match="equal leading sizes"):
        fused_mla_rope_concat(torch.zeros(4, 2, 3), torch.zeros(4, 1, 4), cos, cos, cu_seqlens)
    with pytest.raises(ValueError, match=r"k_pos_emb \[..., 1, 4\]"):
        fused_mla_rope_kv_split(
            torch.zeros(4, 2, 5), torch.zeros(4, 2, 4), cos, cos, 4, 3, 2, cu_seqlens
        )
    with pytest.raises(ValueError, match="whole_pack_table=False"):
        fused_mla_rope_concat(
            torch.zeros(4, 1, 2, 3), torch.zeros(4, 1, 2, 4), cos, cos, whole_pack_table=True
        )
    with pytest.raises(ValueError, match="table's length 4"):
        fused_mla_rope_concat(torch.zeros(5, 1, 2, 3), torch.zeros(5, 1, 2, 4), cos, cos)


def test_nothing_to_rotate_gives_nothing() -> None:
    cos = torch.zeros(0, 4)
    empty = fused_mla_rope_inplace(torch.zeros(0, 2, 6), cos, cos, 2, 4, torch.tensor([0]))
    assert empty.shape == (0, 2, 6)
    cos = torch.zeros(1, 4)
    assert fused_mla_rope_inplace(torch.zeros(0, 3, 2, 6), cos, cos, 2, 4).shape == (0, 3, 2, 6)
