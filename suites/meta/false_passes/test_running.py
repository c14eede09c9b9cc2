"""Routes by which a failure that was found does not reach the exit code, or a test never runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from parity.catalog import resolve
from parity.pytest_plugin import PROFILES, CaseFailed, Session
from parity.record import read
from parity.runner import run_case
from parity.runs import Run
from parity.spec import OpSpec
from suites.meta.blend import SPEC, forward, planted, small_case
from suites.meta.test_imports import ROOT, Rule, plant, sources
from suites.meta.test_own_op import run

Tensor = torch.Tensor
Pair = tuple[str, str]

# --- a failure stays a failure

_RUNS = count()


def fails_once(x: Tensor, r: Tensor) -> Tensor:
    """Wrong in its first run and right in every other one, as a race is that strikes rarely."""
    wrong = next(_RUNS) == 0
    return planted(lambda x, r: forward(x, r) + wrong)(x, r)


def honest(x: Tensor, r: Tensor) -> Tensor:
    return planted()(x, r)


OPS = (replace(SPEC, candidate=f"{__name__}:fails_once"),)
HONEST = (replace(SPEC, candidate=f"{__name__}:honest"),)


def _session(folder: Path, ops: str) -> Session:
    folder.mkdir(exist_ok=True)
    return Session(folder, Run(folder / "run"), "main", f"{__name__}:{ops}", 0, PROFILES["dev"])


def test_what_fails_once_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for a smaller case runs it again, and finding it right then excuses nothing."""
    monkeypatch.setitem(globals(), "_RUNS", count())
    session = _session(tmp_path, "OPS")
    with pytest.raises(CaseFailed):
        session.check(small_case("float32"))
    first = next(iter(read(session.run.folder / "records-main.jsonl")))
    assert first.status == "failed"
    _session(tmp_path / "honest", "HONEST").check(small_case("float32"))


def wrong(x: Tensor, r: Tensor) -> Tensor:
    return planted(lambda x, r: forward(x, r) * 1.0625)(x, r)


def test_no_variable_of_ci_excuses_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [run_case(replace(SPEC, candidate=f"{__name__}:{name}"), small_case("float32"))
             for name in ("wrong", "honest")]  # fmt: skip
    for name in ("CI", "CI_ENV", "GITHUB_ACTIONS", "PARITY_STRICT", "PARITY_TOLERANCE"):
        monkeypatch.setenv(name, "0" if name == "PARITY_STRICT" else "1")
    under_ci = [run_case(replace(SPEC, candidate=f"{__name__}:{name}"), small_case("float32"))
                for name in ("wrong", "honest")]  # fmt: skip
    assert under_ci == plain
    assert [record.status for record in plain] == ["failed", "passed"]


PROJECT = {
    "two_ops.py": """
        from dataclasses import replace
        from parity import Input, OpSpec, Output

        def right(x): return x * 2
        def wrong(x): return x * 3
        def double(x, compute_dtype=None, magnitude=False): return x * 2

        RIGHT = OpSpec(
            name="right", candidate="two_ops:right", reference="two_ops:double",
            inputs=(Input("x", "rows dim"),), outputs=(Output("y"),), axes={"dim": (3,)},
            dtypes=("float32",), values=("normal",), gradients=("contiguous",),
        )
        OPS = (RIGHT, replace(RIGHT, name="wrong", candidate="two_ops:wrong"))
    """,
    "test_ops.py": """
        def test_planned(parity_case, parity_check):
            parity_check(parity_case)

        def test_that_forgets_to_check(parity_case, parity_check):
            assert parity_case.op
    """,
    "pyproject.toml": """
        [tool.parity]
        ops = "two_ops:OPS"
    """,
}


def test_the_failures_of_a_worker_reach_the_exit_code(tmp_path: Path) -> None:
    """Of two ops one is right, and a test compares neither; the process that exits runs nothing."""
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(dedent(text))
    ran = run(tmp_path, "pytest", "-p", "parity.pytest_plugin", "-n", "1")
    assert ran.returncode == 1, ran.stdout
    counts = re.search(r"= (\d+) failed, (\d+) passed in", ran.stdout)
    assert counts is not None, ran.stdout
    assert int(counts[1]) == 3 * int(counts[2]) > 0
    assert ran.stdout.count("Expected the test to hand a case to parity_check") >= 2
    assert re.search(rf"parity: \d+ cases: \d+ failed, {counts[2]} passed", ran.stdout)
    files = sorted(tmp_path.glob(".parity/runs/*/records-*.jsonl"))
    assert [file.name for file in files] == ["records-gw0.jsonl"]


UNWATCHED = {
    "ops.py": """
        from dataclasses import replace
        from suites.meta.test_memory_checks import SPEC

        unseen = replace(SPEC, name="unseen", candidate="suites.meta.test_memory_checks:unseen")
        OPS = (SPEC, unseen)
    """,
    "test_ops.py": """
        def test_planned(parity_case, parity_check):
            parity_check(parity_case)

        def test_that_fails(parity_case, parity_check):
            parity_check(parity_case)
            assert parity_case.op != "unseen"
    """,
}


def test_checks_that_were_not_made_are_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace of one of two right ops has gaps: its tests are skipped, unless they fail."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name, text in UNWATCHED.items():
        (tmp_path / name).write_text(dedent(text))
    given = ("-p", "parity.pytest_plugin", "-p", "no:xdist", "--parity-ops", "ops:OPS")
    ran = run(tmp_path, "pytest", *given, "-v", "-rs")
    ended = re.findall(r"::(\w+)\[(\w+)-\w+\] ([A-Z]+)", ran.stdout)
    assert set(ended) == {
        ("test_planned", "twice", "PASSED"),
        ("test_planned", "unseen", "SKIPPED"),
        ("test_that_fails", "twice", "PASSED"),
        ("test_that_fails", "unseen", "FAILED"),
    }, ran.stdout
    assert "NOT_RUN: hazard, order, reads, traffic: programs of twice_kernel ran" in ran.stdout


NO_OPS: tuple[OpSpec, ...] = ()
ONE_NAME_TWICE = OPS + HONEST


@pytest.mark.parametrize(("ops", "got"), [("NO_OPS", "none"), ("ONE_NAME_TWICE", "blend, blend")])
def test_ops_that_would_not_run_are_refused(ops: str, got: str) -> None:
    """pytest skips a test of no cases, and of two ops with one name the first would be lost."""
    with pytest.raises(ValueError, match=f"got {got}"):
        resolve(f"{__name__}:{ops}")
    assert list(resolve(f"{__name__}:HONEST")) == ["blend"]


# --- a test that runs, and can fail


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the last part of the name that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, getattr(node.func, "attr", getattr(node.func, "id", ""))


COMPARISONS = {
    "allclose", "isclose", "equal", "array_equal", "structure", "non_finite", "same_bits", "within",
}  # fmt: skip


def every_comparison_is_used(root: Path) -> list[str]:
    """A comparison as a statement of its own has a result that nobody reads."""
    return [
        f"{path}:{node.lineno} drops the result of {name}"
        for path, tree in sources(root, "parity", "suites")
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Expr)
        for node, name in calls(statement)
        if node is statement.value and name in COMPARISONS
    ]


JUDGES = (
    "autograd_rules", "behaviour", "bounds", "checks", "comparators", "evidence", "judging",
    "observe", "oracle", "record", "running", "saved", "second_order", "trial", "verdict",
)  # fmt: skip


def no_judge_reads_the_environment(root: Path) -> list[str]:
    """What decides about pass and fail is the same on every machine and under every CI."""
    places = [(f"{name}.py", name) for name in JUDGES] + [("relations", "")]
    return [
        f"{path}:{node.lineno} reads the environment"
        for path, tree in sources(root, "parity")
        if any(path.parts[1] == place for place, _ in places)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]


RUN_ON_MUTANTS = Path("suites/meta/usual_suite.py")  # tests by the name of `parity mutate --suite`


def every_test_is_collected(root: Path) -> list[str]:
    """pytest looks for tests in files called ``test_*.py`` only."""
    return [
        f"{path} holds {node.name}, and no pytest ever collects it"
        for path, tree in sources(root, "suites")
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if not path.name.startswith("test_") and path != RUN_ON_MUTANTS
    ]


def no_test_ends_early(root: Path) -> list[str]:
    """A ``return`` for want of a GPU is a pass that asserted nothing; a skip says NOT_RUN."""
    return [
        f"{path}:{node.lineno} {test.name} returns"
        for path, tree in sources(root, "suites")
        for test in ast.walk(tree)
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
        for node in own_statements(test)
        if isinstance(node, ast.Return)
    ]


def own_statements(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def every_skip_says_not_run(root: Path) -> list[str]:
    """A skip without its reason, or an expected failure, hides that something was not compared."""
    violations = []
    for path, tree in sources(root, "suites"):
        for node, name in calls(tree):
            if name == "xfail":
                violations.append(f"{path}:{node.lineno} calls {name}")
            elif name in ("skip", "skipif", "importorskip"):
                reasons = [k.value for k in node.keywords if k.arg == "reason"] + node.args[:1]
                text = ast.unparse(reasons[0]) if reasons else ""
                if not re.match(r"f?['\"](NOT_RUN|UNSUPPORTED)", text):
                    violations.append(f"{path}:{node.lineno} skips because of {text or 'nothing'}")
    return violations


EARLY = "def test_x():\n    if not cuda:\n        return\n    assert 0\n"
INNER = "def test_x():\n    def f():\n        return 1\n    assert f()\n"
RULES: list[tuple[Rule, Pair, Pair]] = [
    (
        every_comparison_is_used,
        ("suites/test_a.py", "def test_a():\n    torch.allclose(x, y)\n"),
        ("suites/test_a.py", "def test_a():\n    assert torch.allclose(x, y)\n"),
    ),
    (
        no_judge_reads_the_environment,
        ("parity/checks.py", "import os\nLOOSE = os.environ.get('CI')\n"),
        ("parity/interpreter.py", "import os\nTIER = os.environ.get('TRITON_INTERPRET')\n"),
    ),
    (
        every_test_is_collected,
        ("suites/rope_checks.py", "def test_a():\n    assert 0\n"),
        ("suites/test_rope.py", "def test_a():\n    assert 0\n"),
    ),
    (no_test_ends_early, ("suites/test_a.py", EARLY), ("suites/test_a.py", INNER)),
    (
        every_skip_says_not_run,
        ("suites/test_a.py", "pytestmark = pytest.mark.skipif(cpu, reason='no GPU')\n"),
        ("suites/test_a.py", "pytestmark = pytest.mark.skipif(cpu, reason='NOT_RUN: no GPU')\n"),
    ),
    (
        every_skip_says_not_run,
        ("suites/test_a.py", "triton = pytest.importorskip('triton')\n"),
        ("suites/test_a.py", "pytest.skip(f'NOT_RUN: no {thing}')\n"),
    ),
]


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, _, _ in RULES))
def test_the_repository_obeys(rule: Rule) -> None:
    assert rule(ROOT) == []


@pytest.mark.parametrize(("rule", "bad", "good"), RULES)
def test_the_rule_sees_what_is_planted(rule: Rule, bad: Pair, good: Pair, tmp_path: Path) -> None:
    assert rule(plant(tmp_path / "bad", bad))
    assert rule(plant(tmp_path / "good", good)) == []


def test_ci_runs_every_suite() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'testpaths = ["suites"]' in settings
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
