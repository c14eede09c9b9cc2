"""Triage of a command: real repositories, real pytest processes, a dead rank, a hanging test."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.cli import run as parity
from parity.git import Refused
from parity.triage.results import Outcome
from parity.triage.run import Place, Ran, run

PYTEST = [sys.executable, "-m", "pytest", "-q"]
LONG = 300.0  # seconds that no run here comes near


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugins of this environment, which take longer to load than these tests to run."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path, files: dict[str, str]) -> str:
    write(folder, files)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "step")
    return git(folder, "rev-parse", "HEAD").strip()


BASE = {
    "src/rope/__init__.py": """
        def turn(x): return x + 1
        def table(rows):
            raise ValueError(f"no table of {rows} rows")
        """,
    "tests/test_a.py": """
        import rope
        def test_turn(): assert rope.turn(1) == 2
        def test_table(): rope.table(3)
        def test_late(): assert rope.late, "late"
        def test_removed(): pass
        """,
    "pyproject.toml": "[tool.pytest.ini_options]\n",
}
HEAD = {
    "src/rope/__init__.py": BASE["src/rope/__init__.py"].replace("x + 1", "x + 2")
    + "late = True\n",
    "tests/conftest.py": """
        import pytest
        @pytest.fixture
        def seven(): return 7
        """,
    "tests/test_a.py": BASE["tests/test_a.py"].replace("def test_removed(): pass", ""),
    "tests/test_new.py": """
        import rope
        def test_same_cause(seven): rope.table(seven)
        def test_sound(): assert rope.turn(5) == 6, "not turned"
        """,
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    commit(folder, BASE)
    return folder


def triage(repository: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    target = repository.parent / "verdicts.json"
    code = parity(["triage", "--repo", str(repository), "--json", str(target), *arguments])
    return code, json.loads(target.read_text()) if target.exists() else {}


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {item["id"].rpartition("::")[2]: item["verdict"] for item in found["failures"]}


def test_two_revisions(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repository, "switch", "--quiet", "--create", "change")
    commit(repository, HEAD)
    code, found = triage(repository, "--base", "main", "--head", "change", "--", *PYTEST, "tests")
    assert code == 1
    assert verdicts(found) == {
        "test_turn": "REGRESSION",
        "test_sound": "REGRESSION",  # it passes on base's code, which only a run can tell
        "test_removed": "NOT_RUN",
        "test_same_cause": "NEW_TEST_BASE_CAUSE",
        "test_table": "PRE_EXISTING",
        "test_late": "FIXED",
    }
    printed = capsys.readouterr().out
    assert "new, and passes on base's code" in printed
    assert "new, and fails alike on base's code" in printed
    assert git(repository, "status", "--porcelain") == ""
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_the_files_as_they_are_now(repository: Path) -> None:
    write(repository, {name: HEAD[name] for name in ("src/rope/__init__.py", "tests/test_new.py")})
    (repository / "tests/test_a.py").unlink()
    in_git = "def test_commit(): assert subprocess.run(['git', 'log']).returncode == 0\n"
    write(repository, {"tests/test_git.py": f"import subprocess\n{in_git}"})
    before = git(repository, "status", "--porcelain")
    code, found = triage(repository, "--", *PYTEST, "tests")
    assert code == 1
    assert verdicts(found) == {
        "test_sound": "REGRESSION",
        "test_turn": "NOT_RUN",
        "test_removed": "NOT_RUN",
        "test_same_cause": "REGRESSION",  # its fixture is missing, here as on base's code
        "test_table": "REMOVED",
        "test_late": "REMOVED",
    }
    assert git(repository, "status", "--porcelain") == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--", *PYTEST], 5, "both commit"),
        (["--base", "nowhere", "--", *PYTEST], 4, "git knows no 'nowhere'"),
        (["--base", "HEAD~1", "--", "no-such-program"], 4, "'no-such-program' does not"),
        (["--base", "HEAD~1", "--", "true"], 4, "no session started (exit code 0)"),
        (["--base", "HEAD~1", "--deadline", "0.2", "--", "sleep", "60"], 4, "within 0.2 seconds"),
        (["--base", "HEAD~1", "--", *PYTEST, "-k", "nothing"], 5, ""),
    ],
)
def test_what_cannot_be_compared(
    arguments: list[str],
    code: int,
    said: str,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commit(repository, {"note": ""})
    assert triage(repository, *arguments)[0] == code
    assert said in capsys.readouterr().err
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def place(tmp_path: Path, files: dict[str, str], name: str = "base") -> Place:
    checkout = tmp_path / "checkout"
    if not checkout.exists():
        checkout.mkdir()
        git(checkout, "init", "--quiet")
    tree = tmp_path / f"{name}-tree"
    write(tree, files)
    return Place(name, tree, tree, tmp_path / "run" / name, checkout)


def told(ran: Ran) -> dict[str, Outcome]:
    return {outcome.id.rpartition("::")[2]: outcome for outcome in ran.results.values()}


def statuses(ran: Ran) -> dict[str, str]:
    return {name: outcome.status for name, outcome in told(ran).items()}


DEATH = """
    import os
    def test_one(): pass
    def test_two(): os._exit(0)
    def test_three(): pass
    """


def test_a_process_that_dies_with_exit_code_0_is_no_pass(tmp_path: Path) -> None:
    ran = run(place(tmp_path, {"test_a.py": DEATH}), PYTEST, LONG)
    assert statuses(ran) == {"test_one": "passed", "test_two": "failed", "test_three": "not_run"}
    assert told(ran)["test_two"].failures[0].kind == "the process died in this test"


HANG = """
    import subprocess, sys, time
    def sleep(): time.sleep(600)
    def test_one(): pass
    def test_two():
        with open("child", "w") as file:
            file.write(str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))
        sleep()
    """


def test_a_hang_is_placed_and_nothing_outlives_it(tmp_path: Path) -> None:
    for deadline in (4, 16, 64):  # the first that lets pytest start on a busy machine
        where = place(tmp_path, {"test_a.py": HANG}, f"within-{deadline}")
        ran = run(where, PYTEST, deadline)
        if "test_two" in told(ran) and "sleep" in told(ran)["test_two"].failures[0].signature:
            break
    assert statuses(ran) == {"test_one": "passed", "test_two": "failed"}
    (failure,) = told(ran)["test_two"].failures
    assert failure.signature == "still running at the deadline in this test | test_a.py:sleep"
    child = Path("/proc", (where.tree / "child").read_text(), "stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


@pytest.mark.parametrize(
    ("conftest", "expected"),
    [
        ("import no_such_module", "the process died outside any test"),
        ("def pytest_collection_modifyitems(): 1 / 0", "pytest ended with exit status 3"),
        (
            "import atexit, os\natexit.register(os._exit, 9)",
            "the command ended with exit code 9 and no test explains it",
        ),
    ],
)
def test_what_breaks_outside_any_test(conftest: str, expected: str, tmp_path: Path) -> None:
    files = {"conftest.py": conftest, "test_a.py": "def test_a(): pass"}
    ran = run(place(tmp_path, files), PYTEST, LONG)
    assert told(ran)["(session)"].failures[0].kind == expected


def test_tests_after_the_first_failure_are_told(tmp_path: Path) -> None:
    files = {"test_a.py": "import no_x\n", "test_b.py": "def test_b(): 0 / 0\ndef test_c(): pass\n"}
    ran = run(place(tmp_path, files), [*PYTEST, "--maxfail=2"], LONG)
    assert statuses(ran) == {"test_a.py": "failed", "test_b": "failed", "test_c": "not_run"}


NESTED = """
    import subprocess, sys
    def test_outer(tmp_path):
        (tmp_path / "test_inner.py").write_text("def test_inner(): assert 0")
        assert subprocess.run([sys.executable, "-m", "pytest", str(tmp_path)]).returncode == 1
    """


def test_a_pytest_inside_a_test_is_not_reported(tmp_path: Path) -> None:
    assert statuses(run(place(tmp_path, {"test_a.py": NESTED}), PYTEST, LONG)) == {
        "test_outer": "passed"
    }


def test_workers_of_xdist_report_through_their_controller(tmp_path: Path) -> None:
    text = textwrap.dedent(DEATH) + "def test_four(): assert 0\ndef test_left_out(): assert 0\n"
    asked = [f"test_a.py::test_{name}" for name in ("one", "two", "three", "four")]
    where = place(tmp_path, {"test_a.py": text})
    ran = run(where, [*PYTEST, "-p", "xdist", "-n1"], LONG, asked)
    assert statuses(ran) == {
        "test_one": "passed",
        "test_two": "failed",
        "test_three": "passed",
        "test_four": "failed",
    }


def test_an_import_of_the_checkout_is_refused(tmp_path: Path) -> None:
    test = {"test_a.py": "import rope\ndef test_a(): pass\n"}
    where = place(tmp_path, test)
    commit(where.checkout, {"lib/rope.py": "x = 1\n"})
    path = f"import sys\nsys.path.insert(0, {str(where.checkout / 'lib')!r})\n"
    write(where.tree, {"conftest.py": path})
    with pytest.raises(Refused, match=r"imported .*checkout/lib/rope\.py"):
        run(where, PYTEST, LONG)
    own = place(
        tmp_path, test | {"rope.py": "x = 2\n", "conftest.py": path.replace("0,", "9,")}, "head"
    )
    assert statuses(run(own, PYTEST, LONG)) == {"test_a": "passed"}


def test_an_import_of_an_installed_copy_is_refused(tmp_path: Path) -> None:
    installed = tmp_path / "lib/site-packages"
    write(installed, {"rope/ops.py": "x = 1\n", "rope/utils.py": "y = 1\n"})
    conftest = f"import sys\nsys.path.insert(0, {str(installed)!r})\n"
    files = {"conftest.py": conftest, "test_a.py": "import rope.ops\ndef test_a(): pass\n"}
    changed = replace(place(tmp_path, files), changed=("python/rope/ops.py",))
    with pytest.raises(Refused, match=r"imported .*site-packages/rope/ops\.py"):
        run(changed, PYTEST, LONG)
    unchanged = replace(place(tmp_path, files, "head"), changed=("tests/utils.py", "ops.py"))
    assert statuses(run(unchanged, PYTEST, LONG)) == {"test_a": "passed"}


RANKS = """
    import os, signal
    import pytest
    import torch.distributed as dist
    @pytest.fixture(scope="session", autouse=True)
    def group():
        dist.init_process_group("gloo")
        yield
    def test_barrier(): dist.barrier()
    def test_one_rank(): assert dist.get_rank() == 0, "lost"
    def test_death():
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        import time; time.sleep(600)
    def test_after(): pass
    """


def test_a_dead_rank_is_named(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, "-m", "pytest", "-q"]
    started = time.monotonic()
    ran = run(place(tmp_path, {"test_a.py": RANKS}), command, LONG)
    assert time.monotonic() - started < LONG / 2
    assert statuses(ran) == {
        "test_barrier": "passed",
        "test_one_rank": "failed",
        "test_death": "failed",
        "test_after": "not_run",
    }
    assert told(ran)["test_one_rank"].failures[0].ranks == (1,)
    (death,) = told(ran)["test_death"].failures
    assert (death.kind, death.ranks) == ("the process died in this test", (1,))
