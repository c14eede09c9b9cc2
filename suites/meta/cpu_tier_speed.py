"""How fast the CPU tier is, beside the stock interpreter: `python suites/meta/cpu_tier_speed.py`.

Each engine runs in its own process, on one thread, and counts processor time, so that a busy
machine does not change the figures much.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ENGINES = ("stock", "batched")


def main() -> None:
    """Print both figures for every engine; with an engine's name, measure that one here."""
    if len(sys.argv) > 1:
        sys.stdout.write(measure(sys.argv[1]) + "\n")
        return
    root = str(Path(__file__).resolve().parents[2])
    settings = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    for engine in ENGINES:
        command = [sys.executable, __file__, engine]
        subprocess.run(command, env=os.environ | settings, check=True)


def measure(engine: str) -> str:
    """In-place rope, fp32, 128 + 64 lanes: small cases a second, and one large launch."""
    import torch

    from parity.interpreter import prepare

    if engine != "stock":
        prepare()
    torch.set_num_threads(1)
    from parity.kernels.inplace import fused_mla_rope_inplace

    cos, sin = torch.randn(2, 1024, 64)

    def case() -> None:
        leaf = torch.randn(12, 1, 4, 192, requires_grad=True)
        result = fused_mla_rope_inplace(leaf * 1, cos, sin, 128, 64)
        result.backward(torch.ones_like(result))

    def launch() -> None:
        fused_mla_rope_inplace(torch.randn(1024, 1, 32, 192), cos, sin, 128, 64)

    small, large = 1 / _seconds(case, 50), _seconds(launch, 1)
    return (
        f"{engine}: {small:.1f} cases a second forward + backward at 12 tokens x 4 heads, "
        f"{large * 1000:.0f} ms for one launch at 1024 tokens x 32 heads"
    )


def _seconds(run: Callable[[], None], times: int) -> float:
    """Processor seconds of one run: the best of so many, the first of all left out."""
    run()
    seconds = []
    for _ in range(times):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
