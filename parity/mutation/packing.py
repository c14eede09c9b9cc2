"""Faults of packed sequences, context parallelism and flags."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .code import Scope
from .faults import LOOPS, ORDERS, by_name, called, text

FLAG = re.compile("inverse|interleav|rope_first|whole_pack", re.IGNORECASE)
MSCALE = re.compile("mscale", re.IGNORECASE)
COUNTS = ("sequences", "seq_num", "num_seqs", "num_sequences")
INDICES = ("sequence", "seq_idx", "seq_id")
BOUNDARY: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
}  # fmt: skip


def search_comparison(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """``<=`` for ``<``, or the reverse, in a loop: the sequence search."""
    match node:
        case ast.Compare(left, [order], right) if type(order) in BOUNDARY:
            if scope.is_kernel and scope.within(node, LOOPS):
                yield ast.Compare(left, [BOUNDARY[type(order)]], right)


def cp_halves_exchanged(scope: Scope, node: ast.AST) -> Iterator[ast.AST | str]:
    """The zigzag chunks of a rank the wrong way round."""
    match node:
        case ast.Call(func, [condition, one, other]) if called(node) == "where":
            if "cp_" in text(one, other):
                yield ast.Call(func, [condition, other, one], node.keywords)
        case ast.Name("cp_rank", ast.Load()) if scope.is_kernel and "cp_size" in scope.names:
            yield "cp_size - 1 - cp_rank"
        case ast.Compare(ops=[order]) if isinstance(order, ORDERS) and _chooses_chunk(scope, node):
            yield f"not ({text(node)})"


def _chooses_chunk(scope: Scope, test: ast.AST) -> bool:
    parent = scope.parents.get(test)
    if not isinstance(parent, ast.If) or parent.test is not test or not scope.is_kernel:
        return False
    return bool(parent.orelse) and "cp_" in text(*parent.body, *parent.orelse)


def last_sequence_off(scope: Scope, node: ast.AST) -> Iterator[str]:
    """Positions one too large in the last sequence of a pack."""
    counts = [name for name in COUNTS if name in scope.parameters]
    indices = [name for name in INDICES if name in scope.names]
    match node:
        case ast.Return(ast.expr() as value) if counts and indices and scope.is_kernel:
            yield f"return ({text(value)}) + ({indices[0]} == {counts[0]} - 1)"


def pad_rows_unwritten(scope: Scope, node: ast.AST) -> Iterator[str]:
    """Rows past the last sequence keep what their memory held."""
    match node:
        case ast.Assign(value=ast.Call(_, [ast.Name(), *_] as arguments)) if scope.is_kernel:
            names = [argument.id for argument in arguments if isinstance(argument, ast.Name)]
            ends = [name for name in names if name.startswith("cu_seqlens")]
            count = [name for name in names if name in COUNTS]
            if ends and count and "token" in names and "live" in names:
                last = f"tl.load({ends[0]} + {count[0]}) if {ends[0]} is not None else {2**30}"
                yield f"{text(node)}; live = live & (token * cp_size < ({last}))"


def flag_lost(scope: Scope, node: ast.AST) -> Iterator[str]:
    """A flag read as False, or a factor as 1."""
    match node:
        case ast.Name(name, ast.Load()) | ast.Attribute(_, name, ast.Load()):
            if FLAG.search(name) and not _guards(scope, node) and not _is_called(scope, node):
                yield "False"
            elif MSCALE.search(name):
                yield "1.0"


def flag_lost_in_backward(scope: Scope, node: ast.AST) -> Iterator[str]:
    """What forward keeps for backward lacks a flag."""
    match node:
        case ast.Assign([ast.Attribute(ast.Name("ctx"))], ast.Name(name)):
            for field, kind in scope.fields.get(scope.annotation(name), {}).items():
                if kind == "bool":
                    yield f"{text(*node.targets)} = {name}._replace({field}=False)"


def _guards(scope: Scope, node: ast.AST) -> bool:
    """Whether a node is in the condition of a refusal, which has faults of its own."""
    around = [item for item in scope.above(node) if isinstance(item, ast.If)]
    return bool(around) and any(isinstance(item, ast.Raise) for item in around[0].body)


def _is_called(scope: Scope, node: ast.AST) -> bool:
    """Whether a name is that of a function, as in ``repeat_interleave(x, 2)``."""
    parent = scope.parents.get(node)
    return isinstance(parent, ast.Call) and parent.func is node


PACKING_FAULTS = by_name(
        search_comparison, cp_halves_exchanged, last_sequence_off, pad_rows_unwritten, flag_lost,
        flag_lost_in_backward,
    )  # fmt: skip
