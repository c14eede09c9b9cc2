"""How many warps of a kernel fit on one multiprocessor, from registers, shared memory and warps.

The limits are the same for compute capability 9.0, 10.0 and 10.3 (CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability").
"""

from __future__ import annotations

ARCHS = {"sm_90": 90, "sm_100": 100, "sm_103": 103}  # name: what Triton calls it

MAX_WARPS = 64
MAX_SHARED = 227 * 1024  # bytes that one block may have
_MAX_BLOCKS = 32
_REGISTERS = 65536
_REGISTERS_AT_ONCE = 256  # a warp's registers are handed out in these units
_PARTITIONS = 4  # each with a quarter of the registers; a warp lives in one of them
_SHARED = 228 * 1024
_SHARED_OF_SYSTEM = 1024  # of every block
_SHARED_AT_ONCE = 128


def resident_warps(registers: int, shared_bytes: int, warps: int) -> int:
    """Warps on one multiprocessor for blocks of ``warps`` warps; at most ``MAX_WARPS``.

    ``registers`` are those of one thread, ``shared_bytes`` those of one block.
    """
    of_warp = _round_up(max(registers, 1) * 32, _REGISTERS_AT_ONCE)
    by_registers = _REGISTERS // _PARTITIONS // of_warp * _PARTITIONS // warps
    by_shared = _SHARED // _round_up(shared_bytes + _SHARED_OF_SYSTEM, _SHARED_AT_ONCE)
    return min(by_registers, by_shared, MAX_WARPS // warps, _MAX_BLOCKS) * warps


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
