"""How the tensors of a case lie in a storage that they share."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from .case import Case

STORAGES = ("apart", "shared")  # what lies in one storage: all data, the tables, equal offsets
BETWEEN = (0, 1, 8)  # elements from the end of one tensor to the next


class Arrangement(NamedTuple):
    """Which tensor comes first, the last or the first of the signature, and how many elements of
    nobody lie between two of them."""

    last_first: bool = False
    between: int = 0

    def __str__(self) -> str:
        order = "last first" if self.last_first else "in order"
        return f"{order}, {self.between or 'nothing'} between"


def arrangement(case: Case) -> Arrangement | None:
    """Drawn by the seed of the case, so that nobody can rely on one order or distance; for seed 0
    the simplest.  None where tensors have storages of their own."""
    if case.variants.get("storage") != "shared":
        return None
    if not case.seed:
        return Arrangement()
    random = Random(f"storage/{case.seed}")
    return Arrangement(random.random() < 0.5, random.choice(BETWEEN))
