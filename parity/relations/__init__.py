"""Metamorphic relations: results of a case that follow from results of another one.

They need no oracle, so they also see a fault that candidate and reference share.  Each run of a
case holds one relation, chosen by the seed of the case, which shrinking keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ..case import Case
from ..evidence import Evidence
from ..record import Finding
from ..spec import OpSpec, Unsupported
from .derived import Derived, holds
from .inverse import inverse_undoes, undoes
from .layouts import (
    batch_split,
    contiguous_is_strided,
    every_tile,
    head_split,
    in_place_is_out_of_place,
    int32_is_int64,
)
from .packs import (
    cp_ranks_reassemble,
    inserted_empty_sequences,
    permuted_sequences,
    poisoned_neighbour,
    thd_is_sbhd_each,
)


@dataclass(frozen=True)
class Relation:
    """What to derive from a case (nothing where the relation says nothing about it).

    ``phrase`` ends a sentence "to be the same ...".  ``share`` makes up for relations that few
    cases can show: a case prefers one of share 4 to one of share 1 four times out of five.
    """

    derive: Callable[[OpSpec, Case], list[Derived]]
    phrase: str
    share: int = 1
    check: Callable[[str, str, Evidence, list[Derived]], list[Finding]] = holds


RELATIONS: dict[str, Relation] = {
    relation.derive.__name__: relation
    for relation in (
        Relation(thd_is_sbhd_each, "when its sequence is alone, as SBHD", share=12),
        Relation(permuted_sequences, "with the sequences in reverse order", share=6),
        Relation(inserted_empty_sequences, "with empty sequences between the others", share=4),
        Relation(poisoned_neighbour, "with NaN in rows that it does not belong to", share=6),
        Relation(inverse_undoes, "from forward and inverse", share=5, check=undoes),
        Relation(in_place_is_out_of_place, "from the op's twin"),
        Relation(cp_ranks_reassemble, "when one rank holds the whole pack", share=8),
        Relation(batch_split, "when the batch is split", share=3),
        Relation(head_split, "when the heads are split"),
        Relation(contiguous_is_strided, "in other memory layouts"),
        Relation(int32_is_int64, "with offsets and positions of the other dtype", share=4),
        Relation(every_tile, "with every other tile"),
    )
}


def relates(evidence: Evidence) -> tuple[str, list[Finding]]:
    """Hold the case to the first relation of its order that applies and is supported."""
    inputs = evidence.seen.inputs
    for name in order(inputs.case.seed):
        derived = derive(name, inputs.spec, inputs.case)
        if derived and all(case.fits(evidence.seen) for case in derived):
            check, relation = f"relation:{name}", RELATIONS[name]
            try:
                return check, relation.check(check, relation.phrase, evidence, derived)
            except Unsupported:
                continue
    return "", []


def derive(name: str, spec: OpSpec, case: Case) -> list[Derived]:
    """The cases that relation ``name`` compares with ``case``; none where it does not apply."""
    derived = RELATIONS[name].derive(spec, case)
    return derived if all(item.legal() for item in derived) else []


def order(seed: int) -> list[str]:
    """Every relation once, in an order that depends on the seed of the case only."""
    shares = [relation.share for relation in RELATIONS.values()]
    drawn = Random(seed).sample(list(RELATIONS), sum(shares), counts=shares)
    return list(dict.fromkeys(drawn))
