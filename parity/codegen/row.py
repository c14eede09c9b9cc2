"""The rows of ``parity codegen``: one launch of one call on one architecture, as a JSON object."""

from __future__ import annotations

from typing import Any

from ..spec import OpSpec
from .cases import Call

SCHEMA_VERSION = 1

Row = dict[str, Any]

# What the binary needs and holds; null where it does not compile.
FIGURES = (
    "registers",  # of a thread
    "spills",  # bytes a thread writes to and reads back from local memory for want of registers
    "local_bytes",  # of a thread: stack frame and local arrays
    "shared_bytes",  # of a block
    "warps",  # of a block
    "resident_warps",  # on one multiprocessor
    "occupancy",  # share of the warps a multiprocessor can hold
    "load_bits",  # widest access to global memory by one thread, 0 if there is none
    "store_bits",
    "load_widths",  # how many accesses in the code have which width
    "store_widths",
    "barriers",  # in the code, of a block
    "fma",  # contracted multiply-adds in the code
    "instructions",  # of the PTX, by operation and type
    "code",  # digest of the normalised PTX and of what the assembler is told
)
# Which launch it is; null for a call that stopped before its next launch.
LAUNCH = (
    "launch",  # its number within the call
    "kernel",
    "config",  # of an autotuned kernel that has several
    "grid",
    "signature",  # type of each parameter and the divisor Triton may count on
    "constants",  # what is compiled in
    "host",  # digest of everything the call asked of Triton and torch
)


def row_of(spec: OpSpec, call: Call, arch: str, **known: Any) -> Row:
    """A row with every key; what is not ``known`` is null, ``error`` empty."""
    about = {
        "op": spec.name,
        "specialisation": call.specialisation,
        "tile": call.tile,
        "arch": arch,
        "case": call.case.id,
        "error": "",
    }
    return dict.fromkeys((*LAUNCH, *FIGURES)) | about | {"kernel": "", "config": ""} | known
