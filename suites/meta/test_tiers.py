"""``parity run``: the cases of a file, and two machines' records of them side by side."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from parity import cli
from parity.case import Case
from parity.ending import CLOSED_PIPE
from parity.record import Finding, Record, as_lines, read
from parity.tiers.case_file import read_cases
from parity.tiers.command import _alone
from parity.tiers.compare import compare, exit_code
from parity.verdict import Exit, Verdict
from suites.meta.double import FILES, RIGHT
from suites.meta.test_cli import unread

WRONG = "def double(x):\n    return x * 3 if x.shape[-1] == 5 else x * 2\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an op of its own and a file of three cases."""
    monkeypatch.chdir(tmp_path)
    documents = "\n".join(case.to_json() for case in CASES)
    for name, text in (FILES | {"cases.jsonl": documents}).items():
        (tmp_path / name).write_text(text)
    return tmp_path


VARIANTS = {"x": "contiguous", "y.grad": "contiguous", "values": "normal"}


CASES = [
    Case("double", "plain", "float32", {"dim": dim, "tokens": 4}, variants=VARIANTS)
    for dim in (3, 5, 8)
]
FIRST = CASES[0].to_json()


def run(*more: str) -> int:
    return cli.run(["run", "--cases", "cases.jsonl", *more])


def test_two_machines_agree_except_where_one_is_wrong_or_was_given_something_else(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--device", "cpu", "--output", "there.jsonl") == Exit.OK
    assert "3 passed" in capsys.readouterr().out
    first, *others = read(project / "there.jsonl")
    changed = [replace(first, inputs="0" * 64), *others]
    (project / "there.jsonl").write_text(as_lines(changed))
    (project / "own_kernel.py").write_text(WRONG)
    assert run("--against", "there.jsonl") == Exit.INCONCLUSIVE
    told = capsys.readouterr().out
    assert "INCONCLUSIVE double: The two machines were given different inputs" in told
    assert "TIERS_DISAGREE double: Right there, wrong here: Expected y" in told
    assert "IDENTICAL 1, INCONCLUSIVE 1, TIERS_DISAGREE 1" in told


PASSED = Record("c", "op", "head", "passed", checks=("runs", "value"), digests={"y": "1"})
WORSE = Finding("value", "y", "wrong", sentence="Expected 2 but got 3.")
FAILED = replace(PASSED, status="failed", findings=(WORSE,), digests={"y": "2"})
TRACED = replace(
    FAILED,
    checks=("runs", "memory"),
    findings=(Finding("memory", "x", "reads outside", sentence="Reads 1 past x."),),
)
UNSUPPORTED = Record("c", "op", "head", "unsupported", reason="No such flag.")
LOST = Record("c", "op", "head", "crashed", reason="SIGSEGV")
BROKEN = Record("c", "op", "head", "infrastructure", reason="no memory")
TRUTH = [
    (PASSED, PASSED, Verdict.IDENTICAL, Exit.OK),
    (PASSED, replace(PASSED, digests={"y": "3"}), Verdict.CHANGED_WITHIN_BOUND, Exit.OK),
    (PASSED, FAILED, Verdict.TIERS_DISAGREE, Exit.INCONCLUSIVE),
    (LOST, PASSED, Verdict.TIERS_DISAGREE, Exit.INCONCLUSIVE),
    (FAILED, FAILED, Verdict.PRE_EXISTING, Exit.REGRESSION),
    (PASSED, TRACED, Verdict.PRE_EXISTING, Exit.REGRESSION),  # no other tier traces memory
    (PASSED, UNSUPPORTED, Verdict.NOT_RUN, Exit.INCONCLUSIVE),
    (UNSUPPORTED, UNSUPPORTED, Verdict.UNSUPPORTED, Exit.NOTHING_COMPARED),
    (PASSED, BROKEN, Verdict.INFRASTRUCTURE, Exit.INCONCLUSIVE),
]


@pytest.mark.parametrize(("here", "there", "verdict", "code"), TRUTH)
def test_truth_table(here: Record, there: Record, verdict: Verdict, code: Exit) -> None:
    for one, other in ((here, there), (there, here)):
        (pair,) = compare([one], [other])
        assert pair.verdict is verdict
        assert exit_code([pair.verdict]) is code


def test_checks_that_were_not_made_are_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    gap = replace(PASSED, not_run={"reads": "untraced", "order": "untraced"})
    assert _alone([PASSED, gap], 2) == Exit.INCONCLUSIVE
    assert capsys.readouterr().out.splitlines() == [
        "NOT_RUN op, 1 cases: order, reads: untraced",
        "2 passed, some checks NOT_RUN",
    ]


@pytest.mark.parametrize(
    ("records", "planned", "code", "told"),
    [
        ([PASSED, BROKEN], 2, Exit.INCONCLUSIVE, ["op: no memory", "1 infrastructure, 1 passed"]),
        ([UNSUPPORTED], 1, Exit.NOTHING_COMPARED, ["op: No such flag.", "1 unsupported"]),
        ([FAILED], 1, Exit.REGRESSION, ["op: Expected 2 but got 3.", "1 failed"]),
        ([FAILED], 2, Exit.INTERRUPTED, ["op: Expected 2 but got 3.", "1 failed"]),
    ],
)
def test_how_a_run_without_another_ends(
    records: list[Record],
    planned: int,
    code: Exit,
    told: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _alone(records, planned) == code
    assert capsys.readouterr().out.splitlines() == [told[0], "  parity replay c", told[-1]]


def test_a_case_that_the_other_machine_did_not_run() -> None:
    (pair,) = compare([PASSED], [replace(PASSED, case_id="d")])
    assert pair.verdict is Verdict.NOT_RUN


def test_a_file_holds_cases_however_they_are_written(project: Path) -> None:
    cases = [item.case for item in read_cases(project / "cases.jsonl")]
    indented = "".join(json.dumps(case.to_dict(), indent=2) for case in [*cases, cases[0]])
    (project / "cases.json").write_text(indented)
    assert [item.case for item in read_cases(project / "cases.json")] == cases


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Expected at least one case"),
        ("{", "Expected JSON documents"),
        ("[1]", "cases.jsonl, line 1: Expected a case as a JSON object"),
        (f"{FIRST}\n\n{FIRST} {{}}", "cases.jsonl, line 3: Expected a case with schema_version"),
        (f"{FIRST}\n{FIRST.replace('4', '-4')}", "line 2: Expected whole numbers >= 0"),
        (f"{FIRST}\n{FIRST.replace(':3', ':9')}", "line 2: Expected dim in 1, 2, 3, 4,"),
        (FIRST.replace("double", "triple"), "line 1: Expected an op among double but got 'triple'"),
    ],
)
def test_what_is_no_case_of_the_contracts_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    (project / "cases.jsonl").write_text(text)
    assert run() == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line
    assert not [*project.glob(".parity/runs/*")]


def test_a_case_to_replay_that_no_contract_allows(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "case.json").write_text(FIRST.replace(":3", ":9"))
    assert cli.run(["replay", "case.json"]) == Exit.USAGE
    assert ": Expected dim in 1, 2, 3, 4, 5, 6, 7, 8 but got 9. Mend" in capsys.readouterr().err


def test_records_that_a_killed_process_left_unfinished(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--output", "there.jsonl") == Exit.OK
    whole = (project / "there.jsonl").read_text()
    (project / "there.jsonl").write_text(whole[:-9])
    capsys.readouterr()
    assert run("--against", "there.jsonl") == Exit.INCONCLUSIVE
    *_, counts, said = capsys.readouterr().out.splitlines()
    assert counts == "IDENTICAL 2, NOT_RUN 1"
    assert said == "The last line of there.jsonl is cut off; taken are the 2 before it."
    for nothing in ("", whole[:9]):
        (project / "there.jsonl").write_text(nothing)
        assert run("--against", "there.jsonl") == Exit.USAGE
        assert "records in there.jsonl but it holds no whole one" in capsys.readouterr().err


def test_a_run_whose_output_nobody_reads_keeps_its_records(project: Path) -> None:
    arguments = ["run", "--cases", "cases.jsonl", "--output", "here.jsonl"]
    code, told = unread(project, *arguments)  # told is progress on a slow machine
    assert code == CLOSED_PIPE
    assert "Expected" not in told
    (kept,) = project.glob(".parity/runs/*/records-head.jsonl")
    assert [*read(kept)] == [*read(project / "here.jsonl")]
    assert len([*read(kept)]) == len(CASES)


def test_files_that_are_not_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["run", "--cases", "absent.jsonl"]) == Exit.USAGE
    assert "file of cases at absent.jsonl but got No such file" in capsys.readouterr().err
    assert run("--against", "absent.jsonl") == Exit.USAGE
    assert "Expected records at absent.jsonl but there is no" in capsys.readouterr().err


def test_without_cases_the_planned_ones_run_on_the_code_of_a_root(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project / "release"
    root.mkdir()
    for file in project.glob("own_*.py"):
        file.rename(root / file.name)
    assert cli.run(["run", "--root", str(root), "--device", "cpu"]) == Exit.OK
    assert "passed" in capsys.readouterr().out
    assert cli.run(["run", "--root", "nowhere"]) == Exit.USAGE
    assert "Expected a folder" in capsys.readouterr().err
    assert cli.run(["run", "--sanitize"]) == Exit.USAGE
    assert "name a few" in capsys.readouterr().err


def test_without_a_gpu_or_the_tool_nothing_is_claimed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PATH", "")
    assert run("--device", "cuda") == Exit.USAGE
    assert "Expected a GPU for --device cuda" in capsys.readouterr().err
    assert run("--sanitize", "--output", "x.jsonl") == Exit.USAGE
    assert "Expected --sanitize with --cases and --ops alone" in capsys.readouterr().err
    assert run("--sanitize") == Exit.INCONCLUSIVE
    assert "NOT_RUN: expected compute-sanitizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("memcheck", "code", "told"),
    [
        (86, Exit.REGRESSION, ["Expected memcheck to find nothing", "NOT_RUN: racecheck ended"]),
        (0, Exit.INCONCLUSIVE, ["NOT_RUN: racecheck ended with exit code 1"]),
    ],
)
def test_what_one_tool_found_outweighs_another_that_did_not_finish(
    memcheck: int,
    code: Exit,
    told: list[str],
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that reads far outside ends racecheck as well, after memcheck has named it."""
    tool = project / "compute-sanitizer"
    ends = f"memcheck) exit {memcheck};; racecheck) exit 1;; esac"
    tool.write_text(f'#!/bin/sh\ncase "$2" in {ends}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(project), prepend=os.pathsep)
    assert run("--sanitize") == code
    shown = capsys.readouterr()
    assert all(sentence in shown.out + shown.err for sentence in told)


RUNS_MEMCHECK = """#!/bin/sh
tool=$2
while [ "$1" != --error-exitcode ]; do shift; done
shift 2
[ $tool != memcheck ] || exec "$@"
"""


def test_under_the_tool_every_case_runs(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the tool, which runs what it is given as the real one does."""
    (project / "own_kernel.py").write_text(
        "def double(x):\n    print(x.shape[-1], file=open('called', 'a'))\n    return x * 2\n"
    )
    tool = project / "compute-sanitizer"
    tool.write_text(RUNS_MEMCHECK)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(project), prepend=os.pathsep)
    assert run("--ops", "own_ops:OPS", "--sanitize") == Exit.OK
    assert capsys.readouterr().out == "compute-sanitizer found nothing.\n"
    assert {*(project / "called").read_text().split()} == {"3", "5", "8"}


INTERRUPTS = """
import os, signal, time

def double(x):
    if x.shape[-1] == 5:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)
    return x * 2
"""


def test_an_interrupted_run_keeps_what_it_has(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "own_kernel.py").write_text(INTERRUPTS)
    assert run("--output", "here.jsonl") == Exit.INTERRUPTED
    told = capsys.readouterr().out
    assert told.startswith("Interrupted after 1 of 3 cases.\nRecords: ")
    assert told.endswith("1 passed\n")
    assert [record.status for record in read(project / "here.jsonl")] == ["passed"]


def test_kernels_of_another_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = project / "other"
    other.mkdir()
    for name in ("own_ops.py", "own_reference.py"):
        (other / name).write_text((project / name).read_text())
    (other / "own_kernel.py").write_text(WRONG)
    assert run() == Exit.OK
    assert run("--root", "other") == Exit.REGRESSION
    assert run("--root", "nowhere") == Exit.USAGE
    assert "Expected a folder to import head from at nowhere" in capsys.readouterr().err


def test_kernels_that_come_from_somewhere_else_are_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "own_kernel.py").unlink()
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own_kernel.py").write_text(RIGHT)
    monkeypatch.syspath_prepend(elsewhere)
    assert run() == Exit.USAGE
    assert "Or name that place with --root." in capsys.readouterr().err
