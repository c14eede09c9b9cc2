"""What a traced launch did to memory that it should not, and how much it moved."""

from __future__ import annotations

from dataclasses import dataclass, field

from .memory import Array

# What happened, after "kernel, program"; {place} is the tensor's element and the source line.
SENTENCES = {
    "read_out_of_storage": "reads {place}: it lies outside",
    "write_out_of_storage": "writes {place}: it lies outside",
    "read_out_of_view": "reads {place}: the storage has it, the tensor has not",
    "write_out_of_view": "writes {place}: the storage has it, the tensor has not",
    "read_never_written": "reads {place}: nothing has written it",
    "left_unwritten": "leaves {place} unwritten",
    "write_write": "writes {place}: {other} writes it, too",
    "read_write": "reads {place}: {other} writes it",
    "write_read": "writes {place}: {other} reads it",
    "read_after_write": "reads {place}: another lane writes it at {other}, and no barrier makes "
    "the load wait",
    "write_after_read": "writes {place}: another lane reads it at {other}, and no barrier makes "
    "the store wait",
    "write_after_read_across_warps": "writes {place}: {other}",
}


@dataclass(frozen=True)
class Crossing:
    """Lanes of a program that store where other lanes of it read, with no barrier between.

    `readers` and `writers` `[n]` belong together: positions in tiles of the shapes `read_tile` and
    `write_tile`, at the source lines `read_line` and `write_line`.
    """

    read_line: str
    write_line: str
    read_tile: tuple[int, ...]
    write_tile: tuple[int, ...]
    readers: Array
    writers: Array


@dataclass(frozen=True)
class MemoryFinding:
    """One kind of fault at one source line, with the first element that shows it.

    `kind` is a key of `SENTENCES`; `line` is `file.py:12`; `place` an element of `tensor`, the
    kernel's parameter, or of `owner`, what its op calls that memory, where known; `program` its
    grid index; `count` the lanes that show it; `other` the program or line on the other side of a
    conflict.
    """

    kind: str
    kernel: str
    line: str
    tensor: str
    place: str
    program: tuple[int, ...]
    count: int
    other: str = ""
    owner: str = ""
    crossings: tuple[Crossing, ...] = field(default=(), repr=False, compare=False)

    @property
    def sentence(self) -> str:
        """For people: kernel, line, program, tensor and element."""
        tensor = f"{self.tensor} ({self.owner})" if self.owner else self.tensor
        place = f"{tensor} {self.place}" + (f" at {self.line}" if self.line else "")
        what = SENTENCES[self.kind].format(place=place, other=self.other)
        who = f"{self.kernel}, program {self.program}," if self.program else self.kernel
        return f"{who} {what}" + (f" ({self.count} such lanes)." if self.count > 1 else ".")


@dataclass(frozen=True)
class Traffic:
    """What one launch moved between memory and one tensor argument, of `owner` where known.

    `loads` and `stores` count operations, summed over programs; bytes count lanes that the mask
    lets through; `distinct` bytes count each address once.
    """

    kernel: str
    tensor: str
    programs: int
    loads: int = 0
    loaded: int = 0
    loaded_distinct: int = 0
    stores: int = 0
    stored: int = 0
    stored_distinct: int = 0
    owner: str = ""
