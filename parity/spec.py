"""What an op promises: the contract that decides what counts as a failure.

Everything here is data.  Functions are named by dotted strings (``"package.module:function"``) and
resolved when a case runs, so that a contract can be read on a machine without torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

KINDS = ("data", "cos", "sin", "cu_seqlens", "cu_seqlens_padded", "position_ids")
LAYOUTS = ("plain", "sbhd", "bshd", "thd")
DTYPES = ("float32", "bfloat16", "float16")
STRIDES = (
    "contiguous", "offset", "sliced", "transposed", "strided_last", "expanded", "expanded_heads",
)  # fmt: skip
PAD_ROWS = ("as_position_0", "unspecified", "forbidden")
HALVES = ("different", "equal", "diagonal")
REGIMES = (
    "normal", "huge", "subnormal", "paired", "one_hot", "constant", "nan_lane", "inf_lane",
)  # fmt: skip
OUTSIDE = ("unspecified", "nan")
ARITHMETIC = ("fp32_once", "promoted")
_MAPPINGS = ("axes", "arguments", "flags", "thd_flags", "tiles")
_CHOICES = (
    "layouts", "dtypes", "table_dtypes", "halves", "values", "cp_sizes", "gradients",
)  # fmt: skip
_SEQUENCES = (*_CHOICES, "sums", "rounded_sums", "refuses")

_STORAGE_OF = {
    "data": "data", "cos": "tables", "sin": "tables", "cu_seqlens": "offsets",
    "cu_seqlens_padded": "offsets",
}  # fmt: skip


class Unsupported(Exception):
    """A candidate of this revision has no such capability; not a failure, and never a pass."""


@dataclass(frozen=True)
class Input:
    """One tensor argument of an op.

    ``shape`` is a row of axis names, e.g. ``"rows heads nope_dim+rope_dim"``: ``rows`` becomes
    ``seq batch`` (sbhd), ``batch seq`` (bshd) or ``tokens`` (thd, plain); ``positions`` is the
    length of the table; a digit is itself; ``+`` adds axes.

    ``kind`` says what the values are: ``data`` (random, has a gradient), ``cos`` / ``sin`` (a table
    ``[positions, rope_dim]``, or with a row of its own for each of ``rows``), or packing metadata,
    which only the thd layout passes.
    ``strides`` are the memory layouts the contract allows, simplest first.
    """

    name: str
    shape: str = ""
    kind: str = "data"
    mutable: bool = False
    strides: tuple[str, ...] = ("contiguous",)

    def __post_init__(self) -> None:
        _one_of(f"kind of input {self.name!r}", self.kind, KINDS)
        for variant in self.strides:
            _one_of(f"strides of input {self.name!r}", variant, STRIDES)


@dataclass(frozen=True)
class Output:
    """One tensor the op returns, in order.

    ``alias`` names the input whose memory it must share.  ``gradient_mutable`` says that the
    backward may write over this output's incoming gradient: only older in-place APIs promise so
    little, since a second consumer of that gradient then reads wrong numbers.
    """

    name: str
    alias: str | None = None
    gradient_mutable: bool = False


@dataclass(frozen=True)
class OpSpec:
    """The contract of one op.

    ``candidate`` is called with keyword arguments: every input by name, ``arguments`` (parameter
    name to axis name), the flags, the tile.  ``reference`` takes the same without the tile, plus
    ``compute_dtype`` (the dtype of every operation; the result is rounded once to the dtype of the
    inputs) and ``magnitude`` (True: add where the formula subtracts, so that on absolute inputs the
    result is the sum of the absolute terms).  From one reference the harness takes the expected
    value, the float64 oracle, the magnitude M and the number of terms of every lane.

    ``axes`` are the integer dimensions with every legal value, simplest first; ``flags`` and
    ``tiles`` the finite keyword arguments, default first; ``thd_flags`` exist in thd only.

    ``pad_rows`` says what rows of no sequence hold, ``outside`` what rows do whose position the
    tables do not have: ``nan`` in every rotated lane, or anything.

    ``arithmetic`` is ``fp32_once`` (fp32 inside, one rounding) or ``promoted`` (each operation in
    the promoted dtype of tensor and table).  ``bit_equal`` demands the reference's bits on top.
    ``sums`` names tensors that are sums over heads, ``rounded_sums`` those whose sum is rounded to
    storage before the last operations.
    ``terms`` is the largest number of terms of any lane; None counts them by running the reference
    on ones, which is right where every coefficient other than 1 comes from a tensor.  ``refuses``
    names the illegal calls (:mod:`parity.broken_calls`) that must raise ValueError, and
    ``validating`` a context manager ("module:name") within which illegal values must, too.  One of
    ``refuses_in`` cases makes such a call: with 1, a guard that is missing fails every case.
    ``may_copy`` says that the op may copy what it could read where it lies, so that the bytes it
    allocates are not compared between revisions.
    ``twin`` is a function of the same arguments that must give the same results, whatever memory it
    writes.
    """

    name: str
    candidate: str
    reference: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    axes: Mapping[str, Sequence[int]]
    arguments: Mapping[str, str] = field(default_factory=dict)
    layouts: tuple[str, ...] = ("plain",)
    dtypes: tuple[str, ...] = DTYPES
    table_dtypes: tuple[str, ...] = ("float32", "storage")
    halves: tuple[str, ...] = HALVES
    values: tuple[str, ...] = REGIMES
    flags: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    thd_flags: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    tiles: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    cp_sizes: tuple[int, ...] = (1,)
    gradients: tuple[str, ...] = ("contiguous", "sliced", "expanded")
    pad_rows: str = "as_position_0"
    outside: str = "unspecified"
    arithmetic: str = "fp32_once"
    bit_equal: bool = False
    sums: tuple[str, ...] = ()
    rounded_sums: tuple[str, ...] = ()
    terms: int | None = None
    refuses: tuple[str, ...] = ()
    refuses_in: int = 1
    validating: str | None = None
    may_copy: bool = False
    twin: str | None = None

    def __post_init__(self) -> None:
        self._check_types()
        self._check_names()
        _one_of(f"arithmetic of op {self.name!r}", self.arithmetic, ARITHMETIC)
        _one_of(f"pad_rows of op {self.name!r}", self.pad_rows, PAD_ROWS)
        _one_of(f"outside of op {self.name!r}", self.outside, OUTSIDE)
        for layout in self.layouts:
            _one_of(f"layout of op {self.name!r}", layout, LAYOUTS)
        for dtype in self.dtypes:
            _one_of(f"dtype of op {self.name!r}", dtype, DTYPES)
        self._check_axes()
        for halves in self.halves:
            _one_of(f"halves of op {self.name!r}", halves, HALVES)
        for dtype in self.table_dtypes:
            _one_of(f"table_dtypes of op {self.name!r}", dtype, (*DTYPES, "storage"))
        inputs = [item.name for item in self.inputs]
        for output in self.outputs:
            if output.alias is not None:
                _one_of(f"alias of output {output.name!r}", output.alias, inputs)
        for name in (*self.sums, *self.rounded_sums):
            known = [f"{item}.grad" for item in inputs] + [item.name for item in self.outputs]
            _one_of(f"sums of op {self.name!r}", name, known)
        for axis in self.arguments.values():
            _one_of(f"arguments of op {self.name!r}", axis, [*self.axes])
        for regime in self.values:
            _one_of(f"values of op {self.name!r}", regime, REGIMES)
        for variant in self.gradients:
            _one_of(f"gradients of op {self.name!r}", variant, STRIDES)

        _from_one(f"refuses_in of op {self.name!r} as a number of cases", self.refuses_in)
        if self.terms is not None:
            _from_one(f"terms of op {self.name!r} as a number", self.terms)
        for size in self.cp_sizes:
            _from_one(f"each of cp_sizes of op {self.name!r} as a number", size)

    def __hash__(self) -> int:
        """Equal contracts have one name; most of the fields are mappings, which have no hash."""
        return hash(self.name)

    def _check_types(self) -> None:
        """A word alone is a sequence of letters too, and must not be taken for several values."""
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"Expected the name of an op as a word but got {self.name!r}.")
        kinds: dict[type, tuple[str, ...]] = {Mapping: _MAPPINGS, Sequence: _SEQUENCES}
        for kind, names in kinds.items():
            for name in names:
                value = getattr(self, name)
                if not isinstance(value, kind) or isinstance(value, str):
                    raise ValueError(
                        f"Expected {name} of op {self.name!r} as a {kind.__name__.lower()} but got "
                        f"{value!r}."
                    )

    def _check_names(self) -> None:
        """Functions are named by module and name, inputs and outputs are tuples of them."""
        for name in ("candidate", "reference", "twin", "validating"):
            path = getattr(self, name)
            if path is not None and not re.fullmatch(r"[\w.]+:\w+", str(path)):
                raise ValueError(
                    f'Expected {name} of op {self.name!r} as "package.module:function" but got '
                    f"{path!r}."
                )
        for name, kind in (("inputs", Input), ("outputs", Output)):
            items = getattr(self, name)
            if not isinstance(items, tuple) or not all(isinstance(item, kind) for item in items):
                raise ValueError(
                    f"Expected {name} of op {self.name!r} as a tuple of {kind.__name__} but got "
                    f"{items!r}; write ({kind.__name__}(...),) with a comma for a single one."
                )

    def _check_axes(self) -> None:
        """Every axis has values, and every word of a shape is an axis."""
        if not self.outputs:
            raise ValueError(f"Expected at least one output of op {self.name!r} but got none.")
        values = {**self.axes, **self.flags, **self.thd_flags, **self.tiles}
        values |= {name: getattr(self, name) for name in _CHOICES}
        for name, choices in values.items():
            if not isinstance(choices, Sequence) or not len(choices):
                raise ValueError(
                    f"Expected a sequence of at least one value for {name!r} of op {self.name!r} "
                    f"but got {choices!r}."
                )
        for name, sizes in self.axes.items():
            if not all(isinstance(size, int) and size >= 0 for size in sizes):
                raise ValueError(
                    f"Expected sizes from 0 for axis {name!r} of op {self.name!r} but got "
                    f"{sizes!r}."
                )
        known = (*self.axes, "rows", "tokens", "seq", "batch", "positions")
        for item in self.inputs:
            for word in item.shape.replace("+", " ").split():
                if not word.isdigit():
                    _one_of(f"each axis in the shape of input {item.name!r}", word, known)

    def has(self, kind: str) -> bool:
        """Whether the op takes an input of this kind."""
        return any(item.kind == kind for item in self.inputs)

    @property
    def shares_storage(self) -> bool:
        """Whether two of the arguments can be slices of one storage, or one tensor."""
        kinds = [_STORAGE_OF.get(item.kind) for item in self.inputs]
        return any(kinds.count(kind) > 1 for kind in _STORAGE_OF.values())

    def flags_of(self, layout: str) -> dict[str, tuple[object, ...]]:
        """The flags a call in this layout may pass, with their values, default first."""
        return {**self.flags, **(self.thd_flags if layout == "thd" else {})}


def _from_one(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"Expected {what} from 1 but got {value!r}.")


def _one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"Expected {what} to be one of {', '.join(allowed)} but got {value!r}.")
