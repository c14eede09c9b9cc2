"""The command line: one sentence and the right exit code for bad input, plain text everywhere."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from parity import cli
from parity.bench import sweep
from parity.case import Case
from parity.ending import CLOSED_PIPE
from parity.exports import ExportFile, export_json, refuse_unwritable
from parity.git import Refused
from parity.manual import commands
from parity.progress import progress
from parity.record import Finding, Record
from parity.replay import judge
from parity.reports import render, terminal
from parity.runs import Run
from parity.verdict import Exit

CASE = Case("double", "plain", "float32", {"dim": 1, "tokens": 1})
NASTY = "[red]\x1b[2J\u202edeels\r"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, and no project lies around it."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gate", "--foo"], "No such option '--foo'"),
        (["gate", "--cases-per-op", "0"], "0 is not in the range"),
        (["gate", "--base-root", "a"], "together but got only --base-root"),
        (["gate", "--base", "x", "--head-root", "a"], "got both kinds"),
        (["gate", "--base-root", "no", "--head-root", "no"], "to import base from at no"),
        (["gate", "--repo", "no"], "Expected a folder at --repo no but there is none"),
        (["gate"], "Expected a git repository"),
        (["replay"], "Expected the id of a case but got none"),
        (["replay", "0123456789ab"], "Expected a case '0123456789ab' in the runs"),
        (["replay", "--run", "x", "0123456789ab"], "in run x but found none"),
        (["replay", "../../pyproject"], "Expected a case"),
        (["replay", "absent.json"], "Expected a case file at absent.json"),
        (["replay", "broken.json"], "Expected JSON in broken.json"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_bad_input(
    here: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "broken.json").write_text("{")
    assert cli.run(arguments) == Exit.USAGE
    output = capsys.readouterr()
    assert sentence in output.err
    assert len(output.err.strip().splitlines()) == 1
    assert output.out == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("bench --harness --only x", "no --only beside --harness"),
        ("bench --cpu-tier --only x", "no --only beside --cpu-tier"),
        ("bench --base x --upstream y", "one of --upstream, --base or --head"),
        ("replay --list x", "no CASE beside --list"),
        ("replay --list --ops x", "no --ops beside --list"),
        ("replay 0123456789ab --ops x", "no --ops beside the id of a case"),
        ("replay x.json --run y", "no --run beside a case file"),
        ("history --bisect", "no --bisect without FAILURE"),
        ("history --good x", "no --good without --bisect"),
        ("history x --good y", "no --good without --bisect"),
        ("mutate --seed 0", "no --seed without --sample"),
        ("triage a b --repo .", "no --repo beside two result files"),
        ("triage a b --deadline 3600", "no --deadline beside two result files"),
        ("triage a b --base x", "two result files, or `-- COMMAND`"),
        ("dumps a b --column mask=x --column mask=y", "one --column mask but got x and y"),
        ("report --html x --json x", "a file for each format but got x for --html and --json"),
        ("gate --resume --seed 0", "--resume alone"),
        ("codegen --base x --head-root y", "either --base and --head or --base-root"),
        ("baseline save x --root a --repo b", "either --root or a revision"),
        ("run --sanitize --root x", "--sanitize with --cases and --ops alone"),
    ],
)
def test_no_option_is_silently_ignored(
    here: Path, words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that would change nothing is refused, also where its value is the default."""
    (here / "a").mkdir()
    assert cli.run(words.split()) == Exit.USAGE
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert f"Expected {sentence}" in line
    assert output.out == ""


WRITES = [
    (path.split()[1:], param)
    for path, command in commands("parity", cli.cli)
    for param in command.params
    if isinstance(param.type, ExportFile)
]


@pytest.mark.parametrize("target", ["folder", "pyproject.toml/rows.json", "n" * 300])
@pytest.mark.parametrize(("words", "param"), WRITES)
def test_a_file_that_cannot_be_written_is_refused_before_anything_else(
    here: Path,
    words: list[str],
    param: click.Parameter,
    target: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "folder").mkdir()
    option = [] if isinstance(param, click.Argument) else param.opts[:1]
    assert cli.run([*words, *option, target]) == Exit.USAGE
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert line.startswith(f"Expected to write {target} but the system says: ")
    assert output.out == ""
    assert not (here / ".parity").exists()


@pytest.mark.parametrize("folder", [".parity/history", "pyproject.toml/nights", "n" * 300])
def test_a_history_that_cannot_be_written_is_refused_by_its_own_name(
    here: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / ".parity").mkdir()
    (here / ".parity" / "history").touch()
    given = [] if folder == ".parity/history" else ["--history", folder]
    assert cli.run(["nightly", *given]) == Exit.USAGE
    named = folder if given else here / folder
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Expected to write in {named} but the system says: ")
    assert line.endswith("; name another folder with --history.")
    assert not list((here / ".parity" / "runs").iterdir())


def test_every_option_that_names_a_file_to_write_is_looked_at() -> None:
    found = {" ".join([*words, param.opts[0]]) for words, param in WRITES}
    named = {f"report --{name}" for name in render.FORMATS}
    named |= {f"{name} --json" for name in ("bench", "codegen", "doctor", "dumps", "mutate")}
    named |= {"port --json", "race --json", "triage --json", "run --output", "baseline save file"}
    assert found == named


@pytest.mark.parametrize(
    "words",
    ["run", "gate --base-root a --head-root b", "baseline save x --root a", "gate --resume",
     "replay x", "replay --list", "report", "codegen", "mutate", "history", "nightly"],
)  # fmt: skip
@pytest.mark.parametrize("place", [".parity", ".parity/runs"])
def test_a_file_in_the_place_of_a_folder_of_ours(
    here: Path, words: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (here / name).mkdir()
    (here / place).parent.mkdir(exist_ok=True)
    (here / place).touch()
    assert cli.run(words.split()) == Exit.USAGE
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert line.startswith(f"Expected to write in {here / '.parity'} but the system says: ")
    assert output.out == ""


def test_a_run_whose_folder_was_removed_takes_no_record(here: Path) -> None:
    run = Run.create(here / ".parity")
    run.save_case(CASE)
    run.add(record(WRONG))
    shutil.rmtree(here / ".parity" / "runs")
    for write in (run.add, run.add_probe, run.add_repeat):
        with pytest.raises(Refused, match="somebody has removed it, and the records") as refused:
            write(record(WRONG))
        assert refused.value.code == Exit.INTERRUPTED
    with pytest.raises(Refused, match="somebody has removed it"):
        run.save_case(CASE)
    assert not run.folder.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [([], "Expected one file for the figures"), (["folder"], "Expected to write folder but the")],
)
def test_the_sweep_looks_at_its_file_first(
    here: Path, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "folder").mkdir()
    monkeypatch.setattr(sys, "argv", ["sweep", *arguments])
    with pytest.raises((SystemExit, ValueError), match=sentence):
        sweep.main()


def test_an_export_makes_its_folder_and_leaves_pipes_and_devices_in_place(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path / "new" / "good.json")
    assert not (tmp_path / "new").exists()
    export_json(tmp_path / "new" / "good.json", [1])
    assert json.loads((tmp_path / "new" / "good.json").read_text()) == [1]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refuse_unwritable(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        export_json(pipe, [2])
        assert json.loads(read.result()) == [2]
    assert pipe.is_fifo()
    with pytest.raises(ValueError, match=r"^Expected to write .*good.json/x but the system says: "):
        export_json(tmp_path / "new" / "good.json" / "x", [1])


@pytest.mark.parametrize("ops", ["nonsense", "json:dumps", "not_a_module:OPS"])
def test_unknown_ops(here: Path, ops: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "a").mkdir()
    (here / "b").mkdir()
    arguments = ["gate", "--base-root", "a", "--head-root", "b", "--ops", ops]
    assert cli.run(arguments) == Exit.USAGE
    assert ops in capsys.readouterr().err


def test_no_triton(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (here / name / "triton").mkdir(parents=True)
        planted = "raise ModuleNotFoundError('planted', name='triton')"
        (here / name / "triton" / "__init__.py").write_text(planted)
    assert cli.run(["gate", "--base-root", "a", "--head-root", "b"]) == Exit.USAGE
    assert "Expected triton to be installed but it is not" in capsys.readouterr().err


def test_a_fault_is_never_a_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("parity.arms.project_root", broken)
    assert cli.run(["gate"]) == Exit.FAULT
    assert "Fault of parity itself" in capsys.readouterr().err


def test_what_is_gone_from_our_folder_is_no_fault_of_ours(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("parity.arms.project_root", (here / ".parity" / "cache" / "x").read_text)
    assert cli.run(["gate"]) == Exit.INTERRUPTED
    (line,) = capsys.readouterr().err.splitlines()
    assert "cache/x as it was but the system says: No such file" in line
    monkeypatch.setattr("parity.arms.project_root", (here / "x").read_text)
    assert cli.run(["gate"]) == Exit.FAULT


def test_help_needs_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; from parity import cli; from parity.reports import terminal; "
        "assert cli.run(['--help']) == 0; assert cli.run(['gate', '--help']) == 0; "
        "print(sorted({'torch', 'triton', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    source = str(Path(cli.__file__).parent.parent)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_m_parity() -> None:
    source = str(Path(cli.__file__).parent.parent)
    code = f"import sys, runpy; sys.path.insert(0, {source!r}); sys.argv = ['parity', 'nonsense']; "
    command = [sys.executable, "-c", code + "runpy.run_module('parity', run_name='__main__')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert "No such command" in done.stderr


def unread(folder: Path, *arguments: str, stream: str = "stdout") -> tuple[int, str]:
    """Exit code of a command whose stdout or stderr nobody reads, and what it says in the other."""
    command = [sys.executable, "-m", "parity", *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    with (folder / "other.txt").open("w+") as file:
        streams: Any = {stream: subprocess.PIPE, other: file}
        process = subprocess.Popen(command, cwd=folder, env=environment, **streams)
        getattr(process, stream).close()
        code = process.wait()
        file.seek(0)
        return code, file.read()


def test_a_pipe_that_nobody_reads_ends_a_command_quietly(here: Path) -> None:
    """As `parity ... | head` does; the tests of run and report have the cases with results."""
    assert unread(here, "--help") == (CLOSED_PIPE, "")
    assert unread(here, "nonsense", stream="stderr") == (CLOSED_PIPE, "")
    assert unread(here, "nonsense")[0] == Exit.USAGE


def test_a_full_disk_is_no_fault_of_ours(here: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "parity", "--help"]
        streams: Any = {"stdout": full, "stderr": subprocess.PIPE}
        ran = subprocess.run(command, cwd=here, env=environment, check=False, **streams)
    assert ran.returncode == Exit.INTERRUPTED
    assert ran.stderr.decode().startswith("Expected room for what is written but the system says: ")
    assert ran.stderr.count(b"\n") == 1


def record(
    *findings: Finding, status: str = "", arm: str = "head", hazards: tuple[Finding, ...] = ()
) -> Record:
    status = status or ("failed" if findings else "passed")
    checks = ("values",) if status in ("passed", "failed") else ()
    return Record(CASE.id, CASE.op, arm, status, findings, checks, reason="r", hazards=hazards)


WRONG = Finding("values", "y", "wrong", sentence="Wrong.")
OTHER = Finding("values", "y", "other", sentence="Other.")


@pytest.mark.parametrize(
    ("before", "now", "outcome", "code"),
    [
        (record(WRONG), record(WRONG), "FAILED as recorded", Exit.REGRESSION),
        (record(WRONG), record(OTHER), "FAILED differently", Exit.REGRESSION),
        (record(), record(WRONG), "FAILED differently", Exit.REGRESSION),
        (None, record(WRONG), "FAILED", Exit.REGRESSION),
        (record(WRONG), record(), "FIXED (passes now)", Exit.OK),
        (record(), record(), "PASSED", Exit.OK),
        (record(status="crashed"), record(status="crashed"), "FAILED as recorded", Exit.REGRESSION),
        (record(status="crashed"), record(), "FIXED (passes now)", Exit.OK),
        (record(hazards=(WRONG,)), record(hazards=(WRONG,)), "HAZARD as recorded", Exit.OK),
        (record(hazards=(WRONG,)), record(hazards=(OTHER,)), "HAZARD differently", Exit.OK),
        (record(hazards=(WRONG,)), record(), "FIXED (no hazard now)", Exit.OK),
        (record(), record(hazards=(WRONG,)), "HAZARD differently", Exit.OK),
        (record(WRONG), record(hazards=(WRONG,)), "FIXED (passes now)", Exit.OK),
        (None, record(hazards=(WRONG,)), "HAZARD", Exit.OK),
        (None, record(), "PASSED", Exit.OK),
        (None, replace(record(), not_run={"reads": "r"}), "PASSED", Exit.INCONCLUSIVE),
        (record(WRONG), record(status="unsupported"), "UNSUPPORTED", Exit.NOTHING_COMPARED),
        (record(WRONG), record(status="infrastructure"), "ERROR", Exit.FAULT),
    ],
)
def test_what_a_replay_says(before: Record | None, now: Record, outcome: str, code: Exit) -> None:
    found = judge(before, now)
    assert (found.outcome, found.code) == (outcome, code)


def test_a_replay_tells_the_hazards_of_a_case_that_fails_too() -> None:
    found = judge(None, record(WRONG, hazards=(OTHER,)))
    assert (found.outcome, found.sentences) == ("FAILED", ("Wrong.", "Other."))


def test_the_list_of_failures(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["replay", "--list"]) == Exit.USAGE
    assert "Expected a run in" in capsys.readouterr().err
    run = Run.create(here / ".parity")
    run.save_case(CASE)
    run.add(record(WRONG))
    run.add(record(OTHER, arm="base"))
    run.add(record(hazards=(OTHER,)))
    assert cli.run(["replay", "--list"]) == Exit.OK
    listed = [f"{CASE.id}  {run.id}  double: {told}" for told in ("Wrong.", "HAZARD: Other.")]
    output = capsys.readouterr()
    assert output.out.splitlines() == listed
    assert output.err == f"Failures and hazards of run {run.id} (run):\n"


def test_the_list_says_which_run_it_is_of(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = {"head": {"kind": "repository", "ref": "main", "commit": "0" * 40, "dirty": False}}
    runs = [Run(here / ".parity" / "runs" / name) for name in ("a", "b", "c")]
    for age, run in enumerate(runs):
        run.open()
        run.write("run", {"kind": "gate", "arms": arms})
        run.write("environment", {"started": "2026-11-30T15:30:50+0000"})
        os.utime(run.folder, (age, age))
    assert cli.run(["replay", "--list"]) == Exit.OK
    told = "(gate of 2026-11-30T15:30:50+0000, head main at 000000000000)"
    output = capsys.readouterr()
    assert output.err == f"No failure and no hazard in run c {told}, nor in 2 older ones.\n"
    runs[0].save_case(CASE)
    runs[0].add(record(WRONG))
    os.utime(runs[0].folder, (0, 0))
    assert cli.run(["replay", "--list"]) == Exit.OK
    first = f"Failures and hazards of run a {told}; none in 2 newer, the last of them c {told}:\n"
    assert capsys.readouterr().err == first
    assert cli.run(["replay", "--list", "--run", "d"]) == Exit.USAGE
    assert "Expected run d in" in capsys.readouterr().err


def test_a_record_cut_off_by_a_crash_does_not_hide_the_others(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(here / ".parity")
    run.save_case(CASE)
    run.add(record(WRONG))
    with (run.folder / "records-head.jsonl").open("a") as file:
        file.write('{"case_id": "cut o')
    assert cli.run(["replay", "--list"]) == Exit.OK
    assert CASE.id in capsys.readouterr().out


def test_a_root_that_is_gone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(here / ".parity")
    run.save_case(CASE)
    run.write("run", {"arms": {"head": {"kind": "import_root", "root": str(here / "gone")}}})
    assert cli.run(["replay", CASE.id]) == Exit.USAGE
    assert "but it is gone" in capsys.readouterr().err


RESULT = {
    "ops": {NASTY: {"REGRESSION": 1, "IDENTICAL": 2}},
    "items": [
        {
            "op": NASTY,
            "verdict": "REGRESSION",
            "family": "values | y | wrong values",
            "sentence": f"Wrong {NASTY}.",
            "evidence": "",
            "headroom": {"y": [0.5, 0.75]},
            "cases": [CASE.id],
            "shrinking_exhausted": True,
            "minimal_summary": "plain float32 dim=1 tokens=1",
            "replay": f"parity replay {CASE.id}",
        },
        *(
            {
                "op": NASTY,
                "verdict": "PRE_EXISTING",
                "family": f"values | {tensor} | wrong values",
                "sentence": f"Old {NASTY}.",
                "evidence": "c",
                "cases": cases,
                "replay": "parity replay x",
            }
            for tensor, cases in (("y", ["a"]), (NASTY, ["a", "b"]))
        ),
    ],
    "sentence": "Verdict: regression in 1 of 3 cases.",
}


def shown(output: Console) -> str:
    arm = {"kind": "repository", "ref": NASTY, "commit": "0" * 40, "dirty": True, "root": ""}
    run = {"arms": {"base": arm, "head": arm}, "cases": 3, "seed": 0}
    environment = {"tier": "interpreter", "versions": {"torch": "2", "python": "3"}}
    terminal.show_header(output, run, environment)
    terminal.show_result(output, RESULT, ".parity/runs/x")
    assert isinstance(output.file, io.StringIO)
    return output.file.getvalue()


def test_names_and_messages_are_shown_as_plain_text() -> None:
    text = shown(Console(file=io.StringIO(), highlight=False, width=terminal.WIDE))
    assert "\x1b" not in text
    assert "\r" not in text
    assert "\u202e" not in text
    assert r"Wrong [red]\x1b[2J\u202edeels\r." in text
    assert (
        r"PRE_EXISTING [red]\x1b[2J\u202edeels\r, 2 cases: values, wrong values (y, [red]" in text
    )
    assert r"Old [red]\x1b[2J\u202edeels\r. Base fails alike in case c." in text
    assert "y: 0.5 of its bound used before, 0.75 now" in text
    assert "Shrinking stopped at its budget" in text
    assert f"parity replay {CASE.id}   # plain float32 dim=1 tokens=1" in text
    assert "with uncommitted changes" in text


def test_colour_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;31m" in shown(Console(file=io.StringIO(), force_terminal=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in shown(Console(file=io.StringIO(), force_terminal=True))


def test_progress_without_a_terminal_is_a_rare_plain_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 5.0, 11.0, 12.0])
    monkeypatch.setattr("parity.progress.time.monotonic", lambda: next(clock))
    with progress("Running cases") as report:
        for done in (1, 2, 3):
            report(done, 3)
    assert capsys.readouterr().err == "Running cases: 2 of 3, 11 s\n"


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    terminal = Console(file=written, force_terminal=True, width=100)
    monkeypatch.setattr("parity.progress.Console", lambda **_: terminal)
    with progress("Running cases") as report:
        report(2, 3)
    assert "Running cases" in written.getvalue()
    assert "2/3" in written.getvalue()


def test_run_documents_have_a_schema_version(here: Path) -> None:
    run = Run.create(here / ".parity")
    run.write("result", {"a": 1})
    assert json.loads((run.folder / "result.json").read_text()) == {"schema_version": 1, "a": 1}


def test_an_exit_in_code_under_test_does_not_choose_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``sys.exit(0)`` while contracts are imported would otherwise read as no regression."""

    def ended(*_: object, **__: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(cli.cli, "main", ended)
    assert cli.run(["gate"]) == Exit.FAULT
    assert "sys.exit(0)" in capsys.readouterr().err
