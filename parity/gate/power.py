"""The power of a gate: would its cases notice bugs planted in the files that changed?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..git import Refused
from ..mutation.session import Request as Planting
from ..mutation.session import conduct
from ..provenance import below_root
from ..verdict import Exit
from .request import Request

PLANTED = 40  # one of each class that the changed files have a place for, and some more


def with_power(
    project: Path, request: Request, arms: Mapping[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    """The result of a gate with ``power``; a survivor makes a pass inconclusive.

    ``arms`` are base and head of ``run.json``.  With no file changed nothing is planted.
    """
    changed = _changed(arms["base"], arms["head"])
    if not changed or result["exit_code"] not in (Exit.OK, Exit.REGRESSION):
        return result | {"power": None}
    planting = Planting(
        project, request.ops, Path(arms["head"]["root"]), PLANTED, request.seed,
        cases_per_op=request.cases_per_op, case_seed=request.seed, files=changed,
    )  # fmt: skip
    try:
        power = conduct(planting)
    except Refused as refused:
        if refused.code != Exit.NOTHING_COMPARED:
            raise
        return result | {"power": None}
    if power["left"]:
        raise Refused("Interrupted while bugs were planted.", Exit.INTERRUPTED)
    return judged(result, power)


def judged(result: dict[str, Any], power: dict[str, Any]) -> dict[str, Any]:
    """The result with what became of the planted bugs."""
    alive = sorted({m["class"] for m in power["mutants"] if m["status"] == "survived"})
    if not alive or result["exit_code"] != Exit.OK:
        return result | {"power": power}
    sentence = (
        f"Verdict: inconclusive, no regression was seen but the cases let bugs of these classes "
        f"live: {', '.join(alive)}."
    )
    return result | {"power": power, "exit_code": int(Exit.INCONCLUSIVE), "sentence": sentence}


def _changed(base: Mapping[str, Any], head: Mapping[str, Any]) -> frozenset[str]:
    """Files under test, below the root, that head has and base has not or has otherwise."""
    before, after = below_root(base), below_root(head)
    return frozenset(file for file, digest in after.items() if before.get(file) != digest)
