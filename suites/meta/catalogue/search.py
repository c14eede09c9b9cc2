"""Does the ordinary search find the planted bugs?  ``python -m suites.meta.catalogue.search``.

Runs each bug on the cases that every session plans for its op, until one shows it, and each honest
twin on all of them; writes ``search.json`` beside this file, from which the page takes its figures.
Some minutes on one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from parity.case import Case
from parity.interpreter import prepare
from parity.spec import OpSpec


def main() -> None:
    """Print each bug as it is found, then write the file."""
    prepare()
    from parity.record import write_json

    from .page import FILE

    found = dict(_found())
    for candidate, problem in _twins():
        raise SystemExit(f"Expected the twin {candidate} to pass its plan but got {problem}")
    write_json(FILE, found)


def _found() -> Iterator[tuple[str, dict[str, object]]]:
    """By name of a bug, the number of the planned case that shows it, of how many, and as what."""
    from parity.generate import plan

    from .bug import as_published
    from .page import BUGS

    for name, bug in BUGS.items():
        spec = as_published(bug)
        cases = plan(spec, 0, 0)
        number, as_what = next(_shown(spec, cases), (0, ""))
        if not number:
            raise SystemExit(f"Expected one of {len(cases)} planned cases to show {name}.")
        print(f"{name}: case {number} of {len(cases)}, {as_what}", flush=True)  # noqa: T201
        yield name, {"case": number, "planned": len(cases), "as": as_what}


def _shown(spec: OpSpec, cases: list[Case]) -> Iterator[tuple[int, str]]:
    """The number of each case that shows something, from 1 on, and the check that does."""
    from parity.runner import run_case

    from . import backward

    for number, case in enumerate(cases, 1):
        backward._RUN = count()
        record = run_case(spec, case)
        checks = [item.check for item in (*record.findings, *record.hazards)]
        if checks or record.status == "unsupported":
            yield number, checks[0] if checks else record.status


def _twins() -> Iterator[tuple[str, object]]:
    """Honest twins that fail a planned case, with the finding."""
    from parity.generate import plan
    from parity.runner import run_case

    from .page import BUGS

    twins = {(bug.twin, bug.spec.name): bug.spec for bug in BUGS.values()}
    for (candidate, _), spec in twins.items():
        honest = replace(spec, candidate=candidate)
        for case in plan(honest, 0, 0):
            record = run_case(honest, case)
            if record.findings or record.hazards:
                yield candidate, (*record.findings, *record.hazards)[0]


if __name__ == "__main__":
    main()
