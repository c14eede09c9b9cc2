"""A history with one commit for each verdict, and the gate names each.

Every commit changes one op, so that the pair of first and last commit is for each op the pair of
commits before and after its change.
"""

from __future__ import annotations

import io
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from parity import cli
from parity.gate import generated
from parity.interpreter import prepare
from parity.judging import judge
from parity.replay import Recorded, find
from parity.replay import judge as judge_replay
from parity.reports import terminal
from parity.runs import Run, all_runs
from parity.verdict import Exit, Judgement, Verdict

CONTRACT = """
from parity import Input, OpSpec, Output

OP = OpSpec(
    name="{name}",
    candidate="kernels_of.{name}:op",
    reference="kernels_of.{name}:reference",
    inputs=(Input("x", "rows dim"),),
    outputs=(Output("y"),),
    axes={{"dim": {dims}}},
    dtypes={dtypes},
    values=("normal",),
    gradients=("contiguous",),
)
"""
KERNEL = """
import itertools
import torch
from parity import Unsupported
from kernels_of.mirror import mirrored

calls = itertools.count()

def unsupported():
    raise Unsupported("Not in this revision.")

def raises(text="No."):
    raise RuntimeError(text)

def squared(x, factor):
    square = x.double() * x.double()
    exact = square == square.float()  # a square of few bits must keep them
    return torch.where(exact, square, square * factor).float()

def reference(x, compute_dtype=None, magnitude=False):
    return {reference}

def op(x):
    return {body}
"""
MIRROR = """
import torch
import triton
import triton.language as tl

@triton.jit
def mirror_kernel(X, N: tl.constexpr, BARRIER: tl.constexpr):
    lane = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(X + lane)
    if BARRIER:
        tl.debug_barrier()
    tl.store(X + tl.program_id(0) * N + N - 1 - tl.arange(0, N), x)

class Mirror(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, barrier):
        y = x.clone()
        mirror_kernel[(x.shape[0],)](y, x.shape[1], barrier, num_warps=1)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad.flip(1), None

mirrored = Mirror.apply
"""
OPS = """
from importlib import import_module
from pathlib import Path

NAMES = sorted(file.stem for file in (Path(__file__).parent / "contracts_of").glob("[a-z]*.py"))
OPS = tuple(import_module(f"contracts_of.{name}").OP for name in NAMES)
"""
SQUARE = "x * x"
EXACT, LOUDER, SOFTER = (f"squared(x, 1 {factor})" for factor in ("+ 0", "+ 2**-24", "- 2**-24"))
# One warp holds a row, so that a GPU gives the right bits without the barrier, too.
MIRRORED, UNGUARDED = "mirrored(x, True)", "mirrored(x, False)"
LANES: dict[str, Any] = {"dims": "(32,)", "references": ("x.flip(1)", "x.flip(1)")}
# Every plan has cases of each dtype; which numbers of lanes it has is left to its draws.
BOTH, HALF = ("float32", "bfloat16"), "x.itemsize == 2"
WIDTH = "raises(f'No {x.numel()} elements.')"
ALTERNATING = f"{SOFTER} if next(calls) % 2 else {LOUDER}"


@dataclass(frozen=True)
class Op:
    """An op before and after its commit; None where it does not exist."""

    before: str | None
    after: str | None
    verdicts: set[Verdict]
    dims: str = "range(1, 9)"
    dtypes: tuple[tuple[str, ...], tuple[str, ...]] = (("float32",), ("float32",))
    references: tuple[str, str] = (SQUARE, SQUARE)


HISTORY = {
    "same": Op(SQUARE, f"{SQUARE}  # said otherwise", {Verdict.IDENTICAL}),
    "broken": Op(SQUARE, "x * x * 3", {Verdict.REGRESSION}),
    "mended": Op("x * x * 3", SQUARE, {Verdict.FIXED}),
    "wrong": Op("x * x * 3", "3 * x * x", {Verdict.PRE_EXISTING}),
    "smaller": Op(
        "x * x * 3", "x * x * (1 + 2**-20)", {Verdict.PRE_EXISTING_CHANGED, Verdict.FIXED}
    ),
    "added": Op("unsupported()", SQUARE, {Verdict.NEW_CAPABILITY}),
    "fresh": Op(None, SQUARE, {Verdict.NEW_CAPABILITY}),
    "removed": Op(SQUARE, "unsupported()", {Verdict.LOST_CAPABILITY}),
    "gone": Op(SQUARE, None, {Verdict.LOST_CAPABILITY}),
    "absent": Op("unsupported()", "unsupported( )", {Verdict.UNSUPPORTED}),
    "wider": Op(
        f"unsupported() if {HALF} else raises()",
        "raises()",
        {Verdict.PRE_EXISTING, Verdict.NEW_TEST_BASE_CAUSE},
        dtypes=(BOTH, BOTH),
    ),
    "narrower": Op(
        SQUARE,
        f"raises() if {HALF} else {SQUARE}",
        {Verdict.IDENTICAL, Verdict.REGRESSION},
        dtypes=(BOTH, ("float32",)),
    ),
    "louder": Op(EXACT, LOUDER, {Verdict.DRIFT}),
    "otherwise": Op(SOFTER, LOUDER, {Verdict.CHANGED_WITHIN_BOUND}),
    "fickle": Op(ALTERNATING, f"({ALTERNATING})", {Verdict.NONDETERMINISTIC, Verdict.IDENTICAL}),
    "racy": Op(
        SOFTER,
        ALTERNATING,
        {Verdict.REGRESSION, Verdict.NONDETERMINISTIC, Verdict.IDENTICAL},
    ),
    "restated": Op(SQUARE, SQUARE, {Verdict.INCONCLUSIVE}, references=(SQUARE, "x * x + x")),
    "unjudged": Op(SQUARE, SQUARE, {Verdict.INFRASTRUCTURE}, references=(SQUARE, WIDTH)),
    "reworded": Op(
        MIRRORED,
        f"{MIRRORED}  # said otherwise",
        {Verdict.IDENTICAL, Verdict.GENERATED_CODE_IDENTICAL},
        **LANES,
    ),
    "unguarded": Op(MIRRORED, UNGUARDED, {Verdict.IDENTICAL, Verdict.HAZARD}, **LANES),
    "excused": Op(SQUARE, "x * x * 3", {Verdict.REGRESSION}),
}
ELSEWHERE = {
    Verdict.NOT_RUN: "a gate that is stopped, and no pair of commits (test_gate.py)",
    Verdict.TIERS_DISAGREE: "one revision on two machines: parity run --against (test_tiers.py)",
}
KNOWN = """
[[issue]]
op = "{op}"
signature = "values | {tensor} | wrong values"
reason = "The formula is under discussion."
address = "https://example.org/1"
expires = 9999-12-31
"""
UNSEEN = set() if prepare() == "interpreter" else {Verdict.HAZARD}  # a GPU traces no access
ISSUES = (("excused", "y"), ("excused", "x.grad"), ("same", "y"))


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def write(project: Path, name: str, index: int) -> None:
    """The op as it is before (0) or after (1) its commit."""
    op = HISTORY[name]
    body = (op.before, op.after)[index]
    contract, kernel = (
        project / folder / f"{name}.py" for folder in ("contracts_of", "kernels_of")
    )
    if body is None:
        contract.unlink(missing_ok=True)
        kernel.unlink(missing_ok=True)
        return
    contract.write_text(CONTRACT.format(name=name, dims=op.dims, dtypes=op.dtypes[index]))
    kernel.write_text(KERNEL.format(body=body, reference=op.references[index]))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository; its first commit is tagged "first"."""
    folder = tmp_path_factory.mktemp("history")
    for name in ("contracts_of", "kernels_of"):
        (folder / name).mkdir()
    (folder / "all_ops.py").write_text(OPS)
    (folder / "kernels_of" / "mirror.py").write_text(MIRROR)
    table = '[tool.parity]\nops = "all_ops:OPS"\nknown_issues = "known.toml"\n'
    (folder / "pyproject.toml").write_text(table)
    (folder / "known.toml").write_text("")
    git(folder, "init", "-q", "-b", "main")
    for name in HISTORY:
        write(folder, name, 0)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    git(folder, "tag", "first")
    for name in HISTORY:
        write(folder, name, 1)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"change {name}")
    entries = (KNOWN.format(op=op, tensor=tensor) for op, tensor in ISSUES)
    (folder / "known.toml").write_text("".join(entries))
    git(folder, "commit", "-q", "-a", "-m", "known issues")
    return folder


def verdicts(items: list[dict[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for item in items:
        found.setdefault(item["op"], set()).add(item["verdict"])
    return found


@pytest.fixture(scope="module")
def run(project: Path) -> Run:
    """The gate from the first commit to the last; one architecture of three is enough here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generated, "ARCHS", {"sm_90": 90})
        patch.chdir(project)
        arguments = ["gate", "--base", "first", "--head", "main", "--cases-per-op", "20"]
        assert cli.run(arguments) == Exit.REGRESSION
    return next(all_runs(project / ".parity"))


def test_the_gate_names_every_verdict(run: Run) -> None:
    found = verdicts(run.document("result")["items"])
    assert found == {name: op.verdicts - UNSEEN for name, op in HISTORY.items()}


def test_no_verdict_is_missing() -> None:
    """Every verdict there is belongs to a pair of commits, or no gate that ends can give it."""
    shown = {verdict for op in HISTORY.values() for verdict in op.verdicts}
    assert shown.isdisjoint(ELSEWHERE)
    assert shown | set(ELSEWHERE) == set(Verdict)


def test_known_issues_are_told_and_do_not_count(run: Run) -> None:
    result = run.document("result")
    known = {item["op"] for item in result["items"] if item["known"]}
    assert known == {"excused"}
    states = [(entry["op"], entry["state"], entry["new"]) for entry in result["known_issues"]]
    assert states == [
        ("excused", "matched", True),
        ("excused", "matched", True),
        ("same", "stale", True),
    ]
    bad = {i["op"] for i in result["items"] if i["verdict"] == "REGRESSION" and not i["known"]}
    assert bad == {"broken", "narrower", "racy"}


def test_a_fault_of_the_contract_is_one_finding_whatever_its_numbers(run: Run) -> None:
    records = [record for record in run.recorded("records", "head") if record.op == "unjudged"]
    assert len({record.reason for record in records}) > 1
    items = run.document("result")["items"]
    (item,) = [item for item in items if item["op"] == "unjudged"]
    assert set(item["cases"]) == {record.case_id for record in records}
    assert item["sentence"] in {record.reason for record in records}


def test_sentences_say_how_sure_they_are(run: Run) -> None:
    told = {(item["op"], item["verdict"]): item for item in run.document("result")["items"]}
    fickle = told["fickle", "NONDETERMINISTIC"]["sentence"]
    assert "of 5 runs (95% confidence: 48 % to 100 %) of head" in fickle
    louder = told["louder", "DRIFT"]
    assert "times the share of its bound that it used (median of 20 cases" in louder["sentence"]
    (before, after), *_ = louder["headroom"].values()
    assert before < 0.7 < after
    other = told["otherwise", "CHANGED_WITHIN_BOUND"]
    assert set(other["headroom"]) == {"y", "x.grad"}


def test_what_is_not_the_change_is_told_together_and_a_new_hazard_alone(run: Run) -> None:
    output = Console(file=io.StringIO(), highlight=False, width=terminal.WIDE)
    terminal.show_result(output, run.document("result"), str(run.folder))
    assert isinstance(output.file, io.StringIO)
    own, _, others = output.file.getvalue().partition("Not this change's")
    assert "PRE_EXISTING wrong, 20 cases: values, wrong values (x.grad, y)   parity" in others
    assert "REGRESSION broken, 20 cases\n" in own
    assert UNSEEN or "HAZARD unguarded, 20 cases\n  In head only, by analysis: " in own


def test_swapping_the_arms_swaps_regression_and_fixed(run: Run) -> None:
    """On the records of the real run, for cases that ran in both arms."""
    arms = [{r.case_id: r for r in run.recorded("records", arm)} for arm in ("base", "head")]
    both = {
        i: r.op for i, r in arms[0].items() if "unsupported" not in (r.status, arms[1][i].status)
    }
    there, back = (judge(both, *pair) for pair in (arms, arms[::-1]))
    for one, other in ((there, back), (back, there)):
        assert failures(one, Verdict.REGRESSION) == failures(other, Verdict.FIXED)
        assert failures(one, Verdict.REGRESSION)


def failures(judgements: list[Judgement], verdict: Verdict) -> set[tuple[str, str]]:
    """What fails in one arm only; a cost that fell has no verdict, since nothing was wrong."""
    found = {(item.case_id, item.signature) for item in judgements if item.verdict == verdict}
    return {(case_id, signature) for case_id, signature in found if signature[:4] != "cost"}


def test_a_replay_knows_what_one_run_cannot_show(project: Path, run: Run) -> None:
    items = {(item["op"], item["verdict"]): item for item in run.document("result")["items"]}

    def recorded(op: str, verdict: Verdict) -> Recorded:
        return find(items[op, verdict]["minimal_case"], project, run.id, None)

    told, *_ = recorded("louder", Verdict.DRIFT).compared
    assert told.startswith("The gate said DRIFT by comparing runs, which one alone cannot show: ")
    assert recorded("broken", Verdict.REGRESSION).compared == ()
    if not UNSEEN:
        hazard = recorded("unguarded", Verdict.HAZARD)
        assert hazard.compared == ()
        assert hazard.before is not None
        assert judge_replay(hazard.before, hazard.before).outcome == "HAZARD as recorded"
