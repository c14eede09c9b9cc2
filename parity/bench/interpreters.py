"""How fast the CPU tier is, beside the stock interpreter: each engine in a process of its own.

One thread and processor time, so that a busy machine does not change the figures much.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

ENGINES = ("stock", "batched", "traced")
ONE_THREAD = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Speed:
    """In-place rope in fp32, 128 + 64 lanes: small cases a second, seconds of a large launch.

    A case is forward and backward at 12 tokens x 4 heads, the launch is at 1024 tokens x 32 heads.
    """

    engine: str
    cases_per_second: float
    launch_seconds: float


def measured() -> list[Speed]:
    """Every engine, one after the other.

    Raises:
        RuntimeError: an engine did not run; what it printed is on standard error.
    """
    return [_in_a_process(engine) for engine in ENGINES]


def _in_a_process(engine: str) -> Speed:
    environment = os.environ | ONE_THREAD
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    ran = subprocess.run(
        [sys.executable, "-m", __name__, engine],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(
            f"Expected the {engine} interpreter to run but it ended with {ran.returncode}."
        )
    return Speed(**json.loads(ran.stdout))


def measure(engine: str) -> Speed:
    """One engine, in this process."""
    import torch

    from ..interpreter import prepare

    if engine != "stock":
        prepare()
    torch.set_num_threads(1)
    from ..catalog import OPS
    from ..oracle import resolve_function

    in_place = next(spec for spec in OPS if spec.outputs[0].alias)
    rotate = resolve_function(in_place.candidate)
    cos, sin = torch.randn(2, 1024, 64)

    def case() -> None:
        leaf = torch.randn(12, 1, 4, 192, requires_grad=True)
        result = rotate(leaf * 1, cos, sin, 128, 64)
        result.backward(torch.ones_like(result))

    def launch() -> None:
        rotate(torch.randn(1024, 1, 32, 192), cos, sin, 128, 64)

    watching = _watching(engine)
    return Speed(engine, 1 / _seconds(case, watching, 50), _seconds(launch, watching, 1))


def _watching(engine: str) -> Callable[[], Any]:
    if engine != "traced":
        return nullcontext
    from ..cpu_tier import trace

    return trace


def _seconds(run: Callable[[], None], watching: Callable[[], Any], times: int) -> float:
    """Processor seconds of one run: the best of so many, the first of all left out."""
    seconds = []
    for _ in range(times + 1):
        start = time.process_time()
        with watching():
            run()
        seconds.append(time.process_time() - start)
    return min(seconds[1:])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(measure(sys.argv[1]))))
