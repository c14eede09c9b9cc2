"""What changed kernels compile to for GPUs that are not there, in the report of a gate.

Asked only where a file of the code under test changed and there are Triton functions in it; what
was compiled before, from the same content, is read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..codegen.occupancy import ARCHS
from ..provenance import below_root
from ..verdict import Verdict

if TYPE_CHECKING:
    from ..arms import Arm
    from ..codegen.compare import Pair
    from ..codegen.row import Row
    from ..runs import Run

Item = dict[str, Any]


def generated_code(run: Run, arms: tuple[Arm, ...], ops: str | None) -> list[Item]:
    """The items for ``result.json``, regressions first; the rows stay in ``codegen.json``.

    A lost occupancy step is in the rows but no regression here: which of two register counts is
    quicker only a GPU tells.  Empty where nothing was asked, or where base is a file.
    """
    if len(arms) < 2 or not _asked(arms, run.document("run")["arms"]):
        return []
    from ..codegen.cases import usual_calls
    from ..codegen.command import compile_arms, told
    from ..codegen.compare import compare
    from ..progress import progress

    with progress("Compiling") as show:
        rows, _ = compile_arms(list(arms), ops, list(ARCHS), run.workspace, show, usual_calls)
    pairs = compare(rows["base"], rows["head"])
    content = {"rows": rows["head"], "base_rows": rows["base"], "pairs": told(pairs)}
    run.write("codegen", content)
    again = _command(arms, ops)
    return [*_regressions(pairs, again), *_proofs(rows, again)]


def _asked(arms: Iterable[Arm], described: dict[str, Any]) -> bool:
    """Whether there is Triton code and some file of the code under test differs."""
    base, head = (below_root(described[arm.name]) for arm in arms)
    compiled = any(described[arm.name]["functions"] for arm in arms)
    return compiled and base != head


def _regressions(pairs: Iterable[Pair], again: str) -> Iterator[Item]:
    """One item for each op, kernel and reason, with every call and architecture that shows it."""
    groups: dict[tuple[str, str, str], list[tuple[Row, str]]] = {}
    for pair in pairs:
        for reason in pair.reasons:
            kind = reason.partition(":")[0]
            if kind != "over an occupancy step":
                key = (pair.row["op"], pair.row["kernel"], kind)
                groups.setdefault(key, []).append((pair.row, reason))
    for (op, kernel, kind), shown in groups.items():
        row, reason = shown[0]
        where = f"{row['specialisation']}, {row['tile']}"
        sentence = (
            f"Expected {kernel or 'the call'} to compile as well as in base but on {row['arch']} "
            f"({where}): {reason}."
        )
        rows = [row for row, _ in shown]
        yield _item(op, Verdict.REGRESSION, f"code | {kernel} | {kind}", sentence, rows, again)


def _proofs(rows: dict[str, list[Row]], again: str) -> Iterator[Item]:
    """One item for each op whose usual calls are the same, kernels and host."""
    from ..codegen.compare import generated_code_identical

    for op in dict.fromkeys(row["op"] for row in rows["head"]):
        base, head = ([row for row in rows[arm] if row["op"] == op] for arm in ("base", "head"))
        if generated_code_identical(base, head):
            sentence = (
                f"All {len(head)} launches of its usual calls have the same code in both arms, and "
                f"torch does the same around them: no number of these calls changes on "
                f"{', '.join(ARCHS)}."
            )
            yield _item(op, Verdict.GENERATED_CODE_IDENTICAL, "code", sentence, head, again)


def _item(
    op: str, verdict: Verdict, family: str, sentence: str, rows: list[Row], again: str
) -> Item:
    cases = list(dict.fromkeys(row["case"] for row in rows))
    return {
        "op": op,
        "verdict": str(verdict),
        "signature": family,
        "family": family,
        "sentence": sentence,
        "known": "",
        "evidence": "",
        "headroom": {},
        "cases": cases,
        "minimal_case": cases[0],
        "minimal_summary": rows[0]["specialisation"],
        "shrinking_exhausted": False,
        "replay": again,
    }


def _command(arms: Iterable[Arm], ops: str | None) -> str:
    """What shows the code of all calls, in every tile."""
    options = [
        f"--{arm.name}-root {arm.root}"
        if arm.kind == "import_root"
        else f"--{arm.name} {arm.commit[:12]}"
        for arm in arms
        if not arm.dirty
    ]
    return " ".join(["parity codegen", *options, *([f"--ops {ops}"] if ops else [])])
