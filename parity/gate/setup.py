"""Before the first case: contracts, provenance, plan."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

from ..generate import plan
from ..git import Refused
from ..isolation import Worker
from ..provenance import Misplaced
from ..runs import Run
from ..verdict import Exit
from .comparison import Comparison


def prepare(run: Run, team: list[Worker], ops: str | None, count: int, seed: int) -> Comparison:
    """Read head's contracts, check what each arm imported, plan the cases; all of it in files.

    Raises:
        ValueError: unknown ops, or a root without the code they need.
        Refused: both arms have one and the same code, or an arm has code of another place.
    """
    header = {"kind": "gate", "ops": ops, "seed": seed}
    run.write("run", header | {"arms": {worker.arm.name: worker.arm.to_dict() for worker in team}})
    try:
        specs = team[-1].specs(ops)
        futures = {worker.arm: worker.describe(specs) for worker in team}
        arms = {arm.name: arm.to_dict() | future.result() for arm, future in futures.items()}
    except (Misplaced, RuntimeError) as error:
        raise Refused(str(error), Exit.FAULT) from error
    _refuse_one_file(arms)
    jobs = [(spec, case) for spec in specs for case in plan(spec, count, seed)]
    run.write("environment", _environment(arms))
    run.write("run", header | {"arms": arms, "cases": len(jobs)})
    return Comparison(run, team, jobs)


def _refuse_one_file(arms: dict[str, dict[str, Any]]) -> None:
    shared = sorted(set(arms["base"]["files"]) & set(arms["head"]["files"]))
    if shared:
        raise Refused(
            f"Nothing compared: both arms imported {shared[0]}; "
            "name two roots that hold their own copies.",
            Exit.NOTHING_COMPARED,
        )


def _environment(arms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Where and when; head's tier and versions are base's, both are children of this process."""
    described = [(arm.pop("tier"), arm.pop("versions")) for arm in arms.values()]
    tier, versions = described[-1]
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    machine = {"platform": platform.platform(), "cpus": os.cpu_count()}
    return {"tier": tier, "versions": versions, "started": started} | machine
