"""What a pytest session says of its cases: each that ran counts once, whatever became of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from parity.case import Case
from parity.generate import coverage
from parity.profiles import PROFILES
from parity.pytest_plugin import CaseFailed, Session
from parity.pytest_summary import lines
from parity.record import Record, read
from parity.runs import Run
from parity.spec import OpSpec
from parity.strategies import cases
from suites.meta import blend
from suites.meta.test_own_op import run

Tensor = torch.Tensor
PROJECT = {
    "ops.py": """
        from dataclasses import replace
        from parity import Input, OpSpec, Output

        def double(x, compute_dtype=None, magnitude=False): return x * 2
        def right(x): return x * 2
        def wrong(x): return x * 3

        def narrow(x, compute_dtype=None, magnitude=False):
            raise TypeError(f"no width of {x.shape[1]}")

        RIGHT = OpSpec(
            name="right", candidate="ops:right", reference="ops:double",
            inputs=(Input("x", "rows dim"),), outputs=(Output("y"),), axes={"dim": range(2, 6)},
            dtypes=("float32",), values=("normal",), gradients=("contiguous", "sliced"),
        )
        OPS = (
            RIGHT,
            replace(RIGHT, name="wrong", candidate="ops:wrong"),
            replace(RIGHT, name="narrow", reference="ops:narrow"),
        )
    """,
    "test_ops.py": """
        def test_planned(parity_case, parity_check):
            parity_check(parity_case)

        def test_the_same_again(parity_case, parity_check):
            parity_check(parity_case)
    """,
    "pyproject.toml": """
        [tool.parity]
        ops = "ops:OPS"
    """,
}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_case_counts_once_and_what_was_shrunk_replays(tmp_path: Path, workers: str) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(dedent(text))
    ran = run(tmp_path, "pytest", "-p", "parity.pytest_plugin", "-n", workers, "-v")
    planned = dict(
        reversed(pair) for pair in re.findall(r"test_planned\[(\w+)-(\w+)\]", ran.stdout)
    )
    assert Counter(planned.values()) == {"right": 2, "wrong": 2, "narrow": 2}
    assert "parity: 6 cases: 2 failed, 2 infrastructure, 2 passed; " in ran.stdout
    smallest = set(re.findall(r"run it again: parity replay (\w+)", ran.stdout))
    assert len(smallest) == 1
    assert not smallest & set(planned)
    again = run(tmp_path, "parity", "replay", *smallest)
    assert "FAILED as recorded" in again.stdout, again.stdout + again.stderr


def wrong(x: Tensor, r: Tensor) -> Tensor:
    return blend.reference(x, r) * (1 if x.shape[1] == 3 else 2)


def breaks(x: Tensor, r: Tensor) -> Tensor:
    """Right where ``narrow`` raises, so that shrinking comes by cases that cannot be judged."""
    return blend.reference(x, r) * 2


def narrow(x: Tensor, r: Tensor, **modes: Any) -> Tensor:
    if x.shape[2] == 4:
        raise TypeError("no four lanes")
    return blend.reference(x, r, **modes)


def of(name: str, **changes: str) -> tuple[OpSpec, ...]:
    return (replace(blend.SPEC, candidate=f"{__name__}:{name}", **changes),)


WRONG, BREAKS = of("wrong"), of("breaks", reference=f"{__name__}:narrow")
HONEST = (blend.SPEC,)


def session(folder: Path, ops: str) -> Session:
    return Session(folder, Run(folder / "run"), "main", f"{__name__}:{ops}", 0, PROFILES["dev"])


def case(heads: int, dim: int) -> Case:
    axes = {"heads": heads, "dim": dim, "tokens": 2}
    return replace(blend.small_case("float32"), axes=axes)


def told(of: Session) -> list[str]:
    return [line.partition("; ")[0] for line in lines(of.run, of.specs)]


def test_a_shrunk_case_is_neither_counted_nor_covered(tmp_path: Path) -> None:
    found = session(tmp_path, "WRONG")
    with pytest.raises(CaseFailed) as raised:
        found.check(case(5, 7))
    seen, possible = coverage(WRONG[0], [case(5, 7)])
    covered = f"parity: blend covered {seen} of {possible} pairs of finite choices"
    assert told(found) == ["parity: 1 cases: 1 failed", covered]
    (smallest,) = read(found.run.folder / "probes-main.jsonl")
    assert smallest.case_id in str(raised.value)
    assert smallest.findings[0].sentence in str(raised.value)
    assert found.run.case_file(smallest.case_id).is_file()


def test_shrinking_passes_by_what_the_reference_refuses(tmp_path: Path) -> None:
    found = session(tmp_path, "BREAKS")
    with pytest.raises(CaseFailed, match=r"minimal case: .* dim=7"):
        found.check(case(3, 7))
    with pytest.raises(CaseFailed, match=r"it raised TypeError at .*: no four lanes"):
        found.check(case(3, 4))
    assert told(found)[0] == "parity: 2 cases: 1 failed, 1 infrastructure"


def test_a_case_that_failed_once_in_a_session_has_failed(tmp_path: Path) -> None:
    found = session(tmp_path, "HONEST")
    found.check(case(3, 4))
    failed = Record(case(3, 4).id, "blend", "head", "infrastructure", reason="no memory")
    for by, record in (("gw0", failed), ("gw1", replace(failed, status="unsupported"))):
        found.run.add(record, by=by)
    assert told(found) == ["parity: 1 cases: 1 infrastructure"]


def test_a_case_whose_process_was_lost_is_unfinished(tmp_path: Path) -> None:
    found = session(tmp_path, "HONEST")
    found.check(case(3, 4))
    found.run.save_case(case(5, 4))
    seen, possible = coverage(blend.SPEC, [case(3, 4)])
    covered = f"parity: blend covered {seen} of {possible} pairs of finite choices"
    assert told(found) == ["parity: 2 cases: 1 passed, 1 unfinished", covered]


def test_what_hypothesis_makes_small_is_not_counted(tmp_path: Path) -> None:
    found = session(tmp_path, "WRONG")

    @settings(database=None, derandomize=True, max_examples=20)
    @given(drawn=cases(WRONG[0]))
    def generated(drawn: Case) -> None:
        found.check(drawn)

    with pytest.raises(CaseFailed):
        generated()
    first = [record.status for record in read(found.run.folder / "records-main.jsonl")]
    assert first == ["passed"] * (len(first) - 1) + ["failed"]
    assert len(found.checked) > len(first)
    ran = Counter(first)
    shown = ", ".join(f"{ran[status]} {status}" for status in sorted(ran))
    assert told(found)[0] == f"parity: {len(first)} cases: {shown}"
