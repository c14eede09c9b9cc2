"""Triton kernels on a CPU: the whole grid at once, with the sequential engine as its oracle.

`parity.interpreter.prepare()` installs the engine; import this package after that call, since it
imports triton. `ENGINE.counts` says what ran batched, what was run again where programs parted,
and what fell back to one program after the other, with the reasons.
"""

from .engine import ENGINE, sequential
from .language import overflow_checked
from .tracing import trace

__all__ = ["ENGINE", "overflow_checked", "sequential", "trace"]
