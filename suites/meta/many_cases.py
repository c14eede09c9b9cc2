"""Many more cases of our kernels than the tests run: ``python -m suites.meta.many_cases 1 600``.

Every core plans and judges cases of every op, from that seed on and for so many seconds, on the GPU
if there is one.  Each plan prints how many cases it judged, each finding is printed with its case.
Exit code 1 if there was a finding.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from parity.interpreter import prepare
from parity.spec import OpSpec

CASES = 1000  # of one op and one seed


def main() -> None:
    """Share the seeds among the cores; print the totals."""
    seed, seconds = map(int, sys.argv[1:3])
    until = time.time() + seconds
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, get_context("spawn"), initializer=prepare) as pool:
        shares = [
            pool.submit(judged, range(seed + core, 2**31, cores), until) for core in range(cores)
        ]
        totals = [share.result() for share in shares]
    cases, found = (sum(column) for column in zip(*totals, strict=True))
    print(f"{cases} cases, {found} with findings")  # noqa: T201
    sys.exit(found > 0)


def judged(seeds: range, until: float) -> tuple[int, int]:
    """How many cases this process judged by then, and how many of them had findings."""
    from parity.catalog import resolve

    specs = [*resolve("parity").values()]
    turns = (
        (seed, specs[(seed + turn) % len(specs)]) for seed in seeds for turn in range(len(specs))
    )
    cases = found = 0
    for seed, spec in turns:
        more, wrong = _plan(spec, seed, until)
        cases, found = cases + more, found + wrong
        if time.time() > until:
            break
    return cases, found


def _plan(spec: OpSpec, seed: int, until: float) -> tuple[int, int]:
    from parity.generate import plan
    from parity.runner import run_case

    cases = found = 0
    for case in plan(spec, CASES, seed):
        if time.time() > until:
            break
        record = run_case(spec, case)
        cases += 1
        if record.findings or record.hazards:
            found += 1
            print(case.to_json(), *record.findings, *record.hazards, sep="\n")  # noqa: T201
    print(f"{spec.name}, seed {seed}: {cases} cases, {found} with findings", flush=True)  # noqa: T201
    return cases, found


if __name__ == "__main__":
    main()
