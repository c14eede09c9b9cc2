"""Which cases run, in both arms and under whose contract: those of head and those of base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..corpus import stored
from ..generate import is_legal, plan
from ..isolation import Job
from ..spec import OpSpec


def crossed(
    base: Sequence[OpSpec],
    head: Sequence[OpSpec],
    roots: tuple[Path | None, Path],
    count: int,
    seed: int,
) -> list[Job]:
    """The kept and planned cases of both arms, each once.

    Head's contract judges what it allows.  A case that only base's contract allows is judged by
    that one, in both arms: what base promised and head no longer does is a change, too.  ``roots``
    are the folders of base (None where it is a file) and of head, which hold the kept cases.
    """
    contracts = {spec.name: spec for spec in head}
    changed = [spec for spec in base if spec not in head]
    jobs: dict[str, Job] = {}
    for spec, case in (*_cases(head, roots, count, seed), *_cases(changed, roots[:1], count, seed)):
        current = contracts.get(case.op)
        judged_by = spec if current is None or is_legal(current, case) else current
        if not is_legal(judged_by, case):
            jobs.setdefault(case.id, (judged_by, case))
    return list(jobs.values())


def _cases(
    contracts: Sequence[OpSpec], roots: Sequence[Path | None], count: int, seed: int
) -> Iterator[Job]:
    """Kept cases first: they failed before."""
    for spec in contracts:
        kept = [case for root in roots if root for case in stored(root, spec.name)]
        yield from ((spec, case) for case in (*kept, *plan(spec, count, seed)))
