"""Faults that kernels of rotated heads are known for, as changes of a syntax tree.

A fault looks at one node and yields what could stand in its place, as a tree or a text.  It goes by
form and by the names of the field (``cos``, ``left``, ``stride``) and yields nothing elsewhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from .code import Scope

Fault = Callable[[Scope, ast.AST], Iterator[ast.AST | str]]
LOOPS = (ast.For, ast.While)
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
HALF = re.compile(r"\w+ // 2$|^half\w*$", re.IGNORECASE)
TILE = re.compile(r"ROWS|BLOCK\w*|TILE\w*")


def text(*nodes: ast.AST) -> str:
    """Source of nodes, with commas between them."""
    return ", ".join(ast.unparse(node) for node in nodes)


def called(node: ast.AST) -> str:
    """The last part of the name of the function that a node calls, or an empty string."""
    return text(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def without(call: ast.Call, *keywords: str) -> ast.Call:
    """A call that leaves some keyword arguments out."""
    return ast.Call(call.func, call.args, [k for k in call.keywords if k.arg not in keywords])


def renamed(scope: Scope, node: ast.AST, one: str, other: str) -> Iterator[str]:
    """A name that is read, with one part of it exchanged for another, where that is a name too."""
    match node:
        case ast.Name(name, ast.Load()):
            for old, new in ((one, other), (other, one)):
                exchanged = name.replace(old, new)
                if exchanged != name and exchanged in scope.names:
                    yield exchanged


def sin_for_cos(scope: Scope, node: ast.AST) -> Iterator[str]:
    """One table for the other."""
    yield from renamed(scope, node, "sin", "cos")
    yield from renamed(scope, node, "SIN", "COS")


def tables_exchanged(scope: Scope, node: ast.AST) -> Iterator[str]:
    """The left half for the right one, of a table or of a result."""
    yield from renamed(scope, node, "left", "right")


def wrong_half(scope: Scope, node: ast.AST) -> Iterator[ast.AST | str]:
    """The other member of a pair, or the first half where the second is meant."""
    yield from renamed(scope, node, "first", "second")
    yield from renamed(scope, node, "_1", "_2")
    match node:
        case ast.BinOp(left, ast.Add(), right):
            yield from (rest for half, rest in ((left, right), (right, left)) if _is_half(half))


def _is_half(node: ast.AST) -> bool:
    return HALF.search(text(node)) is not None


def sign_flipped(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """A sum of products with the sign of the second changed, or a negation lost."""
    match node:
        case ast.BinOp(ast.BinOp() as left, ast.Add(), ast.BinOp() as right):
            yield ast.BinOp(left, ast.Sub(), right)
        case ast.BinOp(ast.BinOp() as left, ast.Sub(), ast.BinOp() as right):
            yield ast.BinOp(left, ast.Add(), right)
        case ast.UnaryOp(ast.USub(), ast.expr() as operand) if not _is_number(operand):
            yield operand


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)


def mask_dropped(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """A load or a store of everything in the tile."""
    match node:
        case ast.Call(keywords=keywords) if "mask" in [item.arg for item in keywords]:
            yield without(node, "mask", "other")
        case ast.Call(func, [pointer, _]) if called(node) == "load":
            yield ast.Call(func, [pointer], [])
        case ast.Call(func, [pointer, value, _]) if called(node) == "store":
            yield ast.Call(func, [pointer, value], [])


def mask_weakened(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """One of two conditions lost."""
    match node:
        case ast.BinOp(left, ast.BitAnd(), right):
            yield from (left, right)


def local_index(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """The index within the tile where that in the whole tensor is meant."""
    match node:
        case ast.BinOp(left, ast.Add(), right):
            for index, rest in ((left, right), (right, left)):
                if "arange" in text(index) and "arange" not in text(rest):
                    yield index


def bound_off_by_one(scope: Scope, node: ast.AST) -> Iterator[ast.AST | str]:
    """A comparison, a loop or a grid that ends one early or one late."""
    match node:
        case ast.Compare(ops=[order]) if isinstance(order, ORDERS):
            yield from (f"{text(node)} {sign} 1" for sign in "-+")
        case ast.Call(func, [*before, end]) if called(node) in ("range", "static_range"):
            for sign in (ast.Sub(), ast.Add()):
                other = ast.BinOp(end, sign, ast.Constant(1))
                yield ast.Call(func, [*before, other], node.keywords)
        case ast.Call(_, [size, tile]) if called(node) == "cdiv":
            yield ast.BinOp(size, ast.FloorDiv(), tile)


def wrong_stride(scope: Scope, node: ast.AST) -> Iterator[ast.AST | str]:
    """The stride of another axis."""
    match node:
        case ast.Name(name, ast.Load()):
            strides = [parameter for parameter in scope.parameters if "stride" in parameter]
            if name in strides and len(strides) > 1:
                yield strides[(strides.index(name) + 1) % len(strides)]
        case ast.Call(func, [axis]) if called(node) == "stride":
            yield ast.Call(func, [ast.BinOp(axis, ast.Add(), ast.Constant(1))], [])


def copy_skipped(scope: Scope, node: ast.AST) -> Iterator[str]:
    """Lanes that are stored or moved are not."""
    match node:
        case ast.Expr(ast.Call() as call) if re.search("store|copy", called(call)):
            yield "pass"


def accumulated_in_bf16(scope: Scope, node: ast.AST) -> Iterator[str]:
    """A sum rounded after every term, or values that lose bits before they are used."""
    match node:
        case ast.AugAssign(target, ast.Add(), value) if scope.within(node, LOOPS):
            if "stride" not in text(value):
                total = f"{text(target)} + {text(value)}"
                yield f"{text(target)} = ({total}).to(tl.bfloat16).to(tl.float32)"
        case ast.Call(ast.Attribute(value, "to"), [ast.Attribute(_, "float32")]):
            yield f"({text(value)}).to(tl.bfloat16)"


def cast_dropped(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """A value that keeps the dtype it had."""
    match node:
        case ast.Call(ast.Attribute(value, "to"), [dtype]) if "int64" not in text(dtype):
            yield value


def int64_dropped(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """An offset in 32 bits."""
    match node:
        case ast.Call(ast.Attribute(value, "to"), [dtype]) if "int64" in text(dtype):
            yield value


def barrier_removed(scope: Scope, node: ast.AST) -> Iterator[str]:
    """Nothing between loads and stores of the same lanes."""
    match node:
        case ast.Expr(ast.Call() as call) if called(call) == "debug_barrier":
            yield "pass"


def restore_value_removed(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """An autotuner whose trials leave what they wrote."""
    kept = {"restore_value", "reset_to_zero"}
    match node:
        case ast.Call(keywords=keywords) if called(node) == "autotune":
            if kept & {item.arg for item in keywords}:
                yield without(node, *kept)


def tile_dependent(scope: Scope, node: ast.AST) -> Iterator[str]:
    """A bound that is one less for some tiles."""
    tiles = [name for name in scope.parameters if TILE.fullmatch(name)]
    match node:
        case ast.Compare(ops=[order]) if isinstance(order, ORDERS) and tiles:
            yield f"{text(node)} - ({tiles[0]} > 4)"


def by_name(*faults: Fault) -> dict[str, Fault]:
    """The faults by the names that reports use."""
    return {fault.__name__: fault for fault in faults}


KERNEL_FAULTS = by_name(
    mask_dropped, mask_weakened, local_index, copy_skipped, accumulated_in_bf16, barrier_removed,
    tile_dependent, int64_dropped,
)  # fmt: skip
ROTATION_FAULTS = by_name(
    sin_for_cos, tables_exchanged, wrong_half, sign_flipped, bound_off_by_one, wrong_stride,
    cast_dropped, restore_value_removed,
)  # fmt: skip
