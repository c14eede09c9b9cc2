"""The mutation engine: what each fault changes, which functions it may touch, what it reports."""

from __future__ import annotations

import ast
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from pebble import ProcessExpired

from parity import cli
from parity.catalog import resolve
from parity.gate import power
from parity.mutation import session, suite
from parity.mutation.configured import configured
from parity.mutation.equivalents import reviewed
from parity.mutation.mutants import FAULTS, Mutant, mutants, sample
from parity.mutation.outcomes import Journal, Outcome, document
from parity.mutation.reach import traced
from suites.meta import mutant_table
from suites.meta.catalogue.page import BUGS
from suites.meta.mutant_table import PLANTED

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "own_op"
PARSED = 100  # of 2,400 mutants, each class in turn; parsing all of them takes seven seconds
# fault: (a statement with such a place, what it becomes, a statement without one)
KERNEL = {
    "sin_for_cos": ("y = x * cos", "y = x * sin", "y = x * x"),
    "tables_exchanged": ("y = x * cos_left", "y = x * cos_right", "y = x * cos"),
    "wrong_half": ("y = x + R // 2", "y = x", "y = x + R"),
    "sign_flipped": ("y = x * cos - x * sin", "y = x * cos + x * sin", "y = x - 1"),
    "mask_dropped": (
        "y = tl.load(x, mask=live, other=0)",
        "y = tl.load(x)",
        "y = tl.load(x)",
    ),
    "mask_weakened": ("live = live & (x < R)", "live = x < R", "live = x < R"),
    "local_index": (
        "at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)",
        "at = tl.arange(0, ROWS)",
        "at = tl.arange(0, ROWS)",
    ),
    "bound_off_by_one": ("live = x < R", "live = x < R - 1", "live = x == R"),
    "wrong_stride": ("x += R * stride_s", "x += R * stride_h", "x += R"),
    "copy_skipped": ("tl.store(x, y, mask=live)", "pass", "tl.load(x)"),
    "accumulated_in_bf16": (
        "for _ in range(2): y += x",
        "for _ in range(2): y = (y + x).to(tl.bfloat16).to(tl.float32)",
        "y += x",
    ),
    "cast_dropped": ("y = x.to(y.dtype)", "y = x", "y = x"),
    "int64_dropped": ("y = x.to(tl.int64) * R", "y = x * R", "y = x.to(tl.int32) * R"),
    "barrier_removed": ("tl.debug_barrier()", "pass", "tl.device_print('x')"),
    "tile_dependent": ("live = x < R", "live = x < R - (ROWS > 4)", "live = x == R"),
    "search_comparison": (
        "while x < sequences: x += 1",
        "while x <= sequences: x += 1",
        "live = x == sequences",
    ),
    "cp_halves_exchanged": (
        "y = tl.where(live, cp_rank * x, x)",
        "y = tl.where(live, x, cp_rank * x)",
        "y = tl.where(live, x, 0)",
    ),
    "last_sequence_off": (
        "sequence = x; return sequence",
        "sequence = x; return sequence + (sequence == sequences - 1)",
        "return x",
    ),
    "pad_rows_unwritten": (
        "row = table_row(token, live, cu_seqlens, sequences)",
        "row = table_row(token, live, cu_seqlens, sequences); live = live & (token * cp_size < "
        f"(tl.load(cu_seqlens + sequences) if cu_seqlens is not None else {2**30}))",
        "row = table_row(token, live)",
    ),
    "flag_lost": ("y = -x if INVERSE else x", "y = -x if False else x", "y = -x"),
}  # fmt: skip
WRAPPER = {
    "contiguous_dropped": ("y = x.contiguous()", "y = x", "y = x"),
    "gradient_written": ("return x", "grad.neg_(); return x", "x = grad"),
    "guard_removed": (
        "if x: raise ValueError('no')",
        "pass",
        "if x: y = x",
    ),
    "guard_as_assert": (
        "if x > 1: raise ValueError('no')",
        "assert not x > 1",
        "if x: y = x",
    ),
    "wrong_saved_tensor": (
        "ctx.save_for_backward(x, y)",
        "ctx.save_for_backward(y, x)",
        "ctx.save_for_backward(x)",
    ),
    "wrong_ctx_attribute": (
        "ctx.one = x; ctx.two = y; z = ctx.one",
        "ctx.one = x; ctx.two = y; z = ctx.two",
        "ctx.one = x; z = ctx.one",
    ),
    "autograd_call_removed": ("ctx.mark_dirty(x)", "pass", "x.zero_()"),
    "flag_lost_in_backward": (
        "ctx.flags = flags",
        "ctx.flags = flags._replace(inverse=False)",
        "ctx.size = x",
    ),
    "comparison": ("y = x is None", "y = x is not None", "y = x"),
    "arithmetic": ("y = x // 2", "y = x * 2", "y = x"),
    "constant": ("y = 2", "y = 3", "y = x"),
    "boolean": ("y = x and True", "y = x or True", "y = x"),
    "argument_swap": ("y = f(x, 1)", "y = f(1, x)", "y = f(x, x)"),
}  # fmt: skip
PARAMETERS = (
    "x, y, cos, sin, cos_left, cos_right, live, token, R, ROWS, INVERSE, stride_s, stride_h, "
    "cu_seqlens, sequences, cp_rank, cp_size"
)


def kernel(statement: str) -> str:
    return f"@triton.jit\ndef op({PARAMETERS}):\n{indent(statement, '    ')}\n"


def wrapper(statement: str) -> str:
    """A helper of an autograd function, with a tuple of flags."""
    flags = "class Flags(NamedTuple):\n    inverse: bool\n    size: int\n"
    return f"{flags}def op(ctx, x, y, grad, flags: Flags):\n{indent(statement, '    ')}\n"


def planted(source: str, fault: str) -> list[str]:
    """The sources that one fault makes of ``op``, as Python spells them."""
    found = [m for m in mutants({"op.py": source.encode()}, ["op"]) if m.fault == fault]
    return [spelled(mutant.apply(source.encode()).decode()) for mutant in found]


def spelled(source: str) -> str:
    return ast.unparse(ast.parse(source))


PLACES = [(kernel, name, *row) for name, row in KERNEL.items()]
PLACES += [(wrapper, name, *row) for name, row in WRAPPER.items()]


@pytest.mark.parametrize(
    ("form", "fault", "statement", "changed", "other"), PLACES, ids=[row[1] for row in PLACES]
)
def test_a_fault_changes_its_place_and_no_other(
    form: Any, fault: str, statement: str, changed: str, other: str
) -> None:
    assert spelled(form(changed)) in planted(form(statement), fault)
    assert planted(form(other), fault) == []


FORMS = """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        return y.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, d):
        return d

@triton.autotune(configs=[], key=["n"], restore_value=["x"])
@triton.jit
def kernel(x):
    pass
"""


TUPLE = """
class Flags(NamedTuple):
    start: int
    end: int
    inverse: bool

def op(ctx, x, flags: Flags):
    ctx.flags = flags
    ctx.save_for_backward(*x)
    y = x.new_empty_strided(x.shape, x.stride())
    return x.new_empty(x.shape).repeat_interleave(2) + y
"""


def test_faults_of_a_tuple_on_ctx_and_of_new_memory() -> None:
    """Only fields of one kind are exchanged, and the name of a function is no flag."""
    found = {(m.fault, m.changed) for m in mutants({"f.py": TUPLE.encode()}, ["op"])}
    assert {changed for fault, changed in found if fault == "wrong_ctx_attribute"} == {
        "ctx.flags = flags._replace(start=flags.end)"
    }
    assert ("wrong_saved_tensor", "ctx.save_for_backward(*x[1::-1], *x[2:])") in found
    assert ("aliased", "x.reshape(x.shape)") in found
    assert ("aliased", "x.as_strided(x.shape, x.stride())") in found
    assert ("flag_lost_in_backward", "ctx.flags = flags._replace(inverse=False)") in found
    assert "flag_lost" not in {fault for fault, _ in found}


def test_faults_of_whole_functions() -> None:
    found = mutants({"f.py": FORMS.encode()}, ["F", "kernel"])
    changed = {(m.fault, m.changed) for m in found}
    assert ("aliased", "x") in changed
    assert ("aliased", "y") in changed
    assert ("once_differentiable_dropped", "lambda function: function") in changed
    assert ("gradient_written", "d.neg_(); return d") in changed
    assert ("restore_value_removed", "triton.autotune(configs=[], key=['n'])") in changed


def test_every_fault_is_tested() -> None:
    whole = {"aliased", "once_differentiable_dropped", "restore_value_removed"}
    assert set(KERNEL) | set(WRAPPER) | whole == set(FAULTS)


def of_our_kernels() -> tuple[dict[str, bytes], list[Mutant]]:
    specs = resolve("parity").values()
    entries = [*(spec.candidate for spec in specs), *configured(ROOT)["functions"]]
    names = [entry.partition(":")[2] for entry in entries]
    files = sorted((ROOT / "kernels").glob("*.py"))
    sources = {f"kernels/{path.name}": path.read_bytes() for path in files}
    return sources, mutants(sources, names)


def test_every_class_has_a_mutant_of_ours_or_a_bug_in_the_catalogue() -> None:
    ours = {mutant.fault for mutant in of_our_kernels()[1]}
    assert set(FAULTS) - ours <= set(PLANTED) <= set(FAULTS)
    assert {bug for bugs in PLANTED.values() for bug in bugs} <= set(BUGS)


def test_the_table_of_scores() -> None:
    """Equivalent mutants do not count, a hang does, and the suite's column has what both ran."""
    places = (("a", "killed"), ("b", "survived"), ("c", "equivalent"), ("d", "timeout"))
    rows = [{"id": name, "class": "sign_flipped", "status": status} for name, status in places]
    table = mutant_table.table({"mutants": rows}, {"mutants": [rows[1]]}).splitlines()
    cells = "1 | 0 (0.0 %) | 0 (0.0 %) | 2 | 2 (100.0 %)"
    assert f"| `sign_flipped` | {cells} |  |" in table
    assert table[-1] == f"| all | {cells} |  |"


def test_mutants_of_our_kernels_are_python_and_all_different() -> None:
    sources, found = of_our_kernels()
    seen = {m.file: {ast.dump(ast.parse(sources[m.file]))} for m in found}
    assert len({mutant.id for mutant in found}) == len(found) > 1000
    for mutant in sample(found, PARSED, seed=0):
        tree = ast.dump(ast.parse(mutant.apply(sources[mutant.file])))
        assert tree not in seen[mutant.file], mutant
        seen[mutant.file].add(tree)


def test_an_id_survives_changes_elsewhere() -> None:
    before = kernel("y = 2\ny = x * cos").encode()
    after = b"# a comment\n" + kernel("y = 2\n\ny = 3\ny = x * cos").encode()
    ids = [{m.id for m in mutants({"op.py": s}, ["op"])} for s in (before, after)]
    assert ids[0] < ids[1]


def test_equal_places_of_one_function_have_their_own_ids() -> None:
    found = mutants({"op.py": kernel("y = 2\ny = 2").encode()}, ["op"])
    assert len(found) == len({mutant.id for mutant in found}) == 2


def test_reference_and_contract_in_the_same_file_are_left_alone() -> None:
    source = (EXAMPLE / "own_op.py").read_bytes()
    touched = {m.function for m in mutants({"own_op.py": source}, ["gated_difference"])}
    assert touched == {
        "gated_difference",
        "forward_kernel", "backward_kernel", "GatedDifference.forward", "GatedDifference.backward",
    }  # fmt: skip


def test_what_is_reached_is_found_by_import_and_not_by_a_method_of_the_same_name() -> None:
    sources = {
        "op.py": b"from helper import half\nimport tiles\n"
        b"def op(x):\n    return half(x.view(1)) + tiles.choose(x)\n",
        "helper.py": b"def half(x):\n    return x // 2\ndef unused(x):\n    return x + 1\n",
        "tiles.py": b"def choose(x):\n    return x * 2\ndef view(x):\n    return x - 1\n",
    }
    touched = {(m.file, m.function) for m in mutants(sources, ["op"])}
    assert touched == {("op.py", "op"), ("helper.py", "half"), ("tiles.py", "choose")}


def test_a_sample_holds_every_class_and_follows_from_its_seed() -> None:
    found = of_our_kernels()[1]
    classes = {mutant.fault for mutant in found}
    few = sample(found, len(classes), seed=1)
    assert {mutant.fault for mutant in few} == classes
    assert few == sample(found, len(classes), seed=1) != sample(found, len(classes), seed=2)


def test_a_journal_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    Journal(path).add("a", "1", Outcome("killed", check="values"))
    path.write_text(path.read_text() + '{"key": "b", "sta')
    journal = Journal(path)
    assert list(journal.found) == ["a"]
    journal.add("c", "2", Outcome("survived"))
    assert list(Journal(path).found) == ["a", "c"]


def test_the_score_leaves_equivalent_mutants_out_and_counts_a_hang() -> None:
    found = of_our_kernels()[1][:4]
    statuses = ("killed", "timeout", "survived", "equivalent")
    ends = {m.id: Outcome(status) for m, status in zip(found, statuses, strict=True)}
    assert document([*found, of_our_kernels()[1][4]], ends)["left"] == 1
    result = document(found, ends)
    assert result["counts"] == {"killed": 1, "survived": 1, "timeout": 1, "equivalent": 1}
    assert result["score"] == pytest.approx(2 / 3, abs=1e-4)


def test_every_reviewed_equivalent_is_still_a_mutant() -> None:
    """A reason for a mutant that is gone would hide nothing today and anything tomorrow."""
    assert set(reviewed(ROOT)) <= {mutant.id for mutant in of_our_kernels()[1]}


@pytest.mark.parametrize(
    "text", ["reason = 1", "[[reason]]\nbecause = 'x'", "[[reason]]\nbecause = ''\nmutants = ['a']"]
)
def test_equivalents_without_a_reason_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "equivalent_mutants.toml").write_text(text)
    with pytest.raises(ValueError, match="Expected"):
        reviewed(tmp_path)


def below(x: int) -> int:
    y = x + 1
    return y if x else 0


def test_the_lines_that_a_case_executes_are_those_below_the_root() -> None:
    before, first = sys.gettrace(), below.__code__.co_firstlineno
    with traced(ROOT / "suites") as reach:
        below(1)
        hook: Any = sys.gettrace()
    assert sys.gettrace() is before
    assert reach == {"meta/test_mutate.py": {first, first + 1, first + 2}}
    # By hand, too: what Python itself calls in a trace no tool can measure.
    reach.clear()
    here = sys._getframe()
    step = hook(here, "call", None)
    assert step(here, "line", None) is step
    assert reach == {"meta/test_mutate.py": {here.f_lineno - 2, here.f_lineno - 1}}
    with traced(ROOT / "kernels") as reach:
        below(1)
        hook = sys.gettrace()
    assert hook(here, "call", None) is None
    assert reach == {}


@pytest.fixture
def own_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example of the documentation as a project, which is the current folder."""
    for name in ("own_op.py", "pyproject.toml"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def result_of(file: Path) -> Any:
    return json.loads(file.read_text())


SUITE = """
import torch
from own_op import gated_difference

def test_forward_only():
    x = torch.ones(4, 4)
    assert torch.equal(gated_difference(x, x, 2 * x), -x)
"""


def test_the_example_op_kills_its_mutants_and_a_weak_suite_does_not(own_op: Path) -> None:
    """Bugs planted in a user's own op are noticed; a suite that looks at one shape misses them."""
    (own_op / "weak.py").write_text(SUITE)
    command = ["mutate", "--sample", "6", "--seed", "3", "--json"]
    code = cli.run([*command, "ours.json"])
    ours = result_of(own_op / "ours.json")
    assert code == (10 if ours["counts"]["survived"] else 0)
    assert len(ours["mutants"]) == 6
    assert ours["counts"]["killed"] >= 4
    assert cli.run([*command, "weak.json", "--suite", "weak.py"]) == 10
    assert 0 < result_of(own_op / "weak.json")["counts"]["killed"] < ours["counts"]["killed"]
    assert cli.run([*command, "again.json"]) == code
    assert result_of(own_op / "again.json") == ours  # nothing ran a second time
    assert not list((own_op / ".parity").glob("trees-*"))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "def test_it():\n    assert False\n",
            "Expected s.py::test_it to pass without a",
        ),
        ("import pytest\n\ndef test_it():\n    pytest.skip('no')\n", "but all were skipped."),
    ],
)
def test_a_suite_that_can_tell_nothing_is_refused(
    own_op: Path, capsys: pytest.CaptureFixture[str], source: str, sentence: str
) -> None:
    (own_op / "s.py").write_text(source)
    assert cli.run(["mutate", "--sample", "1", "--suite", "s.py"]) == 4
    assert sentence in capsys.readouterr().err


def test_kept_cases_are_those_of_the_root(tmp_path: Path) -> None:
    """Another project may have an op of the same name and another contract."""
    spec = resolve("parity")["fused_apply_mla_rope_for_q"]
    requests = [session.Request(ROOT, None, root, None) for root in (None, tmp_path)]
    ours, theirs = (len(session._cases(request, spec)) for request in requests)
    assert ours > theirs > 0


def test_a_file_that_a_mutant_keeps_from_being_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import not_there\n")
    outcome = suite.run_tests((str(tmp_path / "test_broken.py"),), str(tmp_path))
    assert (outcome.status, outcome.check) == ("killed", "test_broken.py")
    assert "not_there" in outcome.reason


def test_the_first_line_of_a_failure_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_red.py").write_text("def test_it():\n    raise KeyError('x\\ny')\n")
    outcome = suite.run_tests((str(tmp_path / "test_red.py"),), str(tmp_path))
    assert (outcome.check, outcome.reason) == ("test_red.py::test_it", "KeyError: 'x\\ny'")


def test_a_machine_short_of_memory_kills_no_mutant() -> None:
    """What ends the tests counts as noticed if the mutant did it, and only then."""
    assert suite._lost(TimeoutError()).status == "timeout"
    assert suite._lost(ProcessExpired("lost", -signal.SIGSEGV)).reason == "SIGSEGV"
    for error in (ProcessExpired("lost", -signal.SIGKILL), ValueError("no tests")):
        assert suite._lost(error).status == "survived"


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


PLAIN = """
from parity import Input, OpSpec, Output

def op(x):
    return x

def reference(x, compute_dtype=None, magnitude=False):
    return x

OPS = (OpSpec(name="op", candidate="{module}:op", reference="{module}:reference",
    inputs=(Input("x", "rows width"),), outputs=(Output("y", alias="x"),),
    axes={{"width": range(1, 4)}}),)
"""


def test_what_no_case_executes_is_judged_by_the_suites_of_the_project(
    own_op: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an interruption, too, of which the result says how many mutants it left."""
    package = own_op / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plain.py").write_text(PLAIN.format(module="package.plain"))
    (package / "helper.py").write_text("def half(x):\n    return x // 2 if x else None\n")
    test = "from package.helper import half\n\ndef test_half():\n    assert half(6) == 3\n"
    (own_op / "test_half.py").write_text(test)
    (own_op / "pyproject.toml").write_text(
        '[tool.parity]\nops = "package.plain:OPS"\n[tool.parity.mutation]\n'
        'suites = ["test_half.py"]\nfunctions = ["package.helper:half"]\n'
    )
    with monkeypatch.context() as patch:
        patch.setattr(session, "hunt", _interrupted)
        assert cli.run(["mutate", "--json", "found.json"]) == 2
    assert result_of(own_op / "found.json")["left"] == 2
    assert "2 mutants are left" in capsys.readouterr().out
    assert cli.run(["mutate", "--json", "found.json"]) == 0
    found = result_of(own_op / "found.json")
    assert found["counts"] == {"killed": 2, "survived": 0, "timeout": 0, "equivalent": 0}
    assert {mutant["check"] for mutant in found["mutants"]} == {"test_half.py::test_half"}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("suites = 'x'", "lists of texts"),
        ("sweets = []", "lists of texts"),
        ("suites = ['gone.py']", "found none"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    own_op: Path, capsys: pytest.CaptureFixture[str], table: str, sentence: str
) -> None:
    (own_op / "pyproject.toml").write_text(f"[tool.parity.mutation]\n{table}\n")
    assert cli.run(["mutate"]) == 4
    assert sentence in capsys.readouterr().err


def test_a_folder_without_the_code_of_the_ops_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["mutate"]) == 4
    assert "name yours with --ops" in capsys.readouterr().err


def test_code_without_places_is_nothing_to_compare(
    own_op: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_op / "plain.py").write_text(PLAIN.format(module="plain"))
    assert cli.run(["mutate", "--ops", "plain:OPS"]) == 5
    assert "Nothing to mutate in the code of these ops." in capsys.readouterr().err


def test_a_gate_states_its_power(own_op: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that keeps all bits passes, unless a planted bug lives."""
    monkeypatch.setattr(power, "PLANTED", 6)
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@y")
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "op")):
        subprocess.run((*git, *words), check=True)
    source = own_op / "own_op.py"
    source.write_text(source.read_text().replace("d * tl.load(gate", "1 * d * tl.load(gate"))
    code = cli.run(["gate", "--power", "--cases-per-op", "1"])
    (file,) = (own_op / ".parity" / "runs").glob("*/result.json")
    counts = result_of(file)["power"]["counts"]
    assert sum(counts.values()) == 6
    assert counts["killed"] >= 4
    assert code == (10 if counts["survived"] else 0)


def test_a_survivor_makes_a_pass_inconclusive() -> None:
    passed = {"exit_code": 0, "sentence": "Verdict: no regression."}
    alive = {"mutants": [{"class": "sign_flipped", "status": "survived"}]}
    judged = power.judged(passed, alive)
    assert judged["exit_code"] == 10
    assert judged["sentence"].endswith("let bugs of these classes live: sign_flipped.")
    failed = passed | {"exit_code": 1}
    assert power.judged(failed, alive) == failed | {"power": alive}
    dead = {"mutants": [{"class": "sign_flipped", "status": "killed"}]}
    assert power.judged(passed, dead) == passed | {"power": dead}
