"""Illegal values of offsets and positions, which an op sees only where it may read them.

As in :mod:`parity.broken_calls`; each is wrong in one way, so that the loss of its guard shows.
"""

from __future__ import annotations

from .broken_calls import Arguments, Break
from .inputs import Inputs

PLENTY = 4096  # rows of a table that no generated position passes


def _offsets(inputs: Inputs, arguments: Arguments, kind: str = "cu_seqlens") -> str | None:
    """The parameter of this kind where the call is packed by offsets alone."""
    given = {i.kind: i.name for i in inputs.spec.inputs if arguments.get(i.name) is not None}
    return None if "position_ids" in given else given.get(kind)


def _unit(inputs: Inputs) -> int:
    """What every length must be divisible by."""
    return 1 if inputs.case.cp_size == 1 else 2 * inputs.case.cp_size


def _with(arguments: Arguments, name: str, index: int, value: int) -> Arguments:
    """One element of an integer tensor replaced."""
    changed = arguments[name].clone()
    changed[index] = value
    return arguments | {name: changed}


def _tables(inputs: Inputs, arguments: Arguments, rows: int) -> Arguments:
    """Tables of ones with this many rows."""
    names = [item.name for item in inputs.spec.inputs if item.kind in ("cos", "sin")]
    return {n: arguments[n].new_ones(rows, *arguments[n].shape[1:]) for n in names}


def _not_from_zero(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """The first sequence begins late, in lengths that are legal otherwise."""
    name, unit = _offsets(inputs, arguments), _unit(inputs)
    if name is None or arguments[name][1] < unit:
        return None
    return _with(arguments, name, 0, unit)


def _falling(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """The last sequence ends before it begins."""
    name, unit = _offsets(inputs, arguments), _unit(inputs)
    if name is None or len(arguments[name]) < 3 or arguments[name][-2] < unit:
        return None
    return _with(arguments, name, -1, int(arguments[name][-2]) - unit)


def _unshared_length(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """A length that the ranks cannot share."""
    name, unit = _offsets(inputs, arguments), _unit(inputs)
    if name is None or unit == 1 or arguments[name][-1] - arguments[name][-2] < unit:
        return None
    return _with(arguments, name, -1, int(arguments[name][-1]) - 1)


def _past_the_end(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """Rows that the tensor does not have."""
    padded = _offsets(inputs, arguments, "cu_seqlens_padded")
    name = padded or _offsets(inputs, arguments)
    if name is None:
        return None
    more = _unit(inputs) * (inputs.case.tail + 1)
    broken = _with(arguments, name, -1, int(arguments[name][-1]) + more)
    return broken | _tables(inputs, arguments, PLENTY)


def _without_room(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """Sequences longer than the rows between their beginnings."""
    offsets = _offsets(inputs, arguments)
    padded = _offsets(inputs, arguments, "cu_seqlens_padded")
    if offsets is None or padded is None or not any(inputs.case.gaps):
        return None
    exchanged = {offsets: arguments[padded], padded: arguments[offsets]}
    return arguments | exchanged | _tables(inputs, arguments, PLENTY)


def _too_short_a_table(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """One row fewer than the last position of the pack needs."""
    if _offsets(inputs, arguments) is None or inputs.case.cp_size > 1:
        return None
    starts = arguments[str(_offsets(inputs, arguments))]
    whole = inputs.case.flags.get("whole_pack_table", False)
    needed = starts[-1] if whole else (starts[1:] - starts[:-1]).max()
    return arguments | _tables(inputs, arguments, int(needed) - 1)


def _position(value: int | None) -> Break:
    """A position that no row of the tables has; None is the first past their end."""

    def broken(inputs: Inputs, arguments: Arguments) -> Arguments | None:
        names = [item.name for item in inputs.spec.inputs if item.kind == "position_ids"]
        if not names or arguments.get(names[0]) is None:
            return None
        return _with(arguments, names[0], -1, inputs.axes["positions"] if value is None else value)

    return broken


BREAKS_OF_VALUES: dict[str, Break] = {
    "offsets_not_from_zero": _not_from_zero,
    "offsets_that_fall": _falling,
    "length_that_ranks_cannot_share": _unshared_length,
    "offsets_past_the_end": _past_the_end,
    "sequences_without_room": _without_room,
    "table_too_short_for_the_pack": _too_short_a_table,
    "position_past_the_table": _position(None),
    "position_below_zero": _position(-1),
}
