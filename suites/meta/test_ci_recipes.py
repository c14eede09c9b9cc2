"""The CI recipes of docs/ci/: their steps are run as they stand, in a repository of its own.

A step that needs the network or the platform is listed as NOT_RUN with its reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "docs" / "ci"
EXAMPLE = ROOT / "docs" / "examples" / "own_op"
WRONG = ("product - tl.load(update", "product + tl.load(update")
WRONG_IN_ONE_TILE = ("dgate, -dy,", "dgate, dy if ctx.block == 16 else -dy,")
# What a test cannot run, and why.
PLATFORM = {
    "Set up Parity": "it installs packages from an index",
    "Set up the report": "it installs packages from an index",
    "Post the comment": "it calls the API of GitHub",
}

Job = dict[str, Any]

if shutil.which("git") is None:
    pytest.skip("NOT_RUN: git is needed for a repository", allow_module_level=True)


def recipe(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((RECIPES / f"parity-{name}.yml").read_text())
    return found


JOBS: dict[str, Job] = {
    f"{path.stem}/{name}": job
    for path in sorted(RECIPES.glob("*.yml"))
    for name, job in yaml.safe_load(path.read_text())["jobs"].items()
}


class Runner:
    """Runs the steps of a job in a repository, with values for what the platform would fill in."""

    def __init__(self, folder: Path, values: dict[str, str]) -> None:
        self.folder, self.values = folder, values
        self.summary = folder.parent / "summary.md"
        programs = folder.parent / "bin"
        programs.mkdir(exist_ok=True)
        (programs / "parity").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m parity "$@"\n')
        (programs / "parity").chmod(0o755)
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
        self.environment = kept | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "RUNNER_OS": "Linux",
            "RUNNER_ARCH": "X64",
        }

    def job(self, found: dict[str, Any], name: str) -> dict[str, int]:
        """The exit code of every step that is run, by its name."""
        steps = [step for step in found["jobs"][name]["steps"] if "run" in step]
        run = [step for step in steps if step["name"] not in PLATFORM]
        return {step["name"]: self.step(step, found.get("env", {})) for step in run}

    def step(self, step: dict[str, Any], common: dict[str, str]) -> int:
        given = {
            name: self.filled(str(text)) for name, text in (common | step.get("env", {})).items()
        }
        return self.shell("bash", "-e", "-c", step["run"], **given)

    def filled(self, text: str) -> str:
        """An expression's value; KeyError for one that the test does not know."""
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: self.values[found[1]], text)

    def shell(self, *command: str, given: str = "", **environment: str) -> int:
        self.ran = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | environment,
            input=given,
            capture_output=True,
            text=True,
        )
        return self.ran.returncode


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run([*command, *words], check=True, capture_output=True, text=True).stdout


def commit(folder: Path, *change: str, module: str = "own_op.py") -> str:
    if change:
        text = (folder / module).read_text()
        assert text.count(change[0]) == 1
        (folder / module).write_text(text.replace(*change))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "step")
    return git(folder, "rev-parse", "HEAD").strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The documented example of a user's own op, in a repository with a remote."""
    shutil.copytree(EXAMPLE, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path, "init", "--quiet", "--bare", "remote.git")
    git(tmp_path / "own", "init", "--quiet", "--initial-branch", "main")
    git(tmp_path / "own", "remote", "add", "origin", str(tmp_path / "remote.git"))
    commit(tmp_path / "own")
    return tmp_path / "own"


def test_a_stacked_change_is_gated_against_the_branch_below_it(repository: Path) -> None:
    """The branch below is wrong, and this one does not touch what is wrong: it is not blamed."""
    git(repository, "switch", "--quiet", "--create", "below")
    below = commit(repository, *WRONG_IN_ONE_TILE)
    git(repository, "switch", "--quiet", "--create", "above")
    above = commit(repository, "import torch\n", "import torch  # a change\n")
    runner = Runner(
        repository,
        {
            "github.event.pull_request.base.sha": below,
            "github.event.pull_request.head.sha": above,
            "vars.PARITY_GATE_ARGS": "--cases-per-op 1",
            "vars.PARITY_CODEGEN_ARGS": "--arch sm_90",
        },
    )
    codes = runner.job(recipe("gate"), "gate")
    names = ("Look at the machine", "Gate", "Compare generated code", "Report")
    assert codes == dict.fromkeys(names, 0), runner.ran.stderr
    assert re.search(r"PRE_EXISTING \d+\)", unescape(runner.summary.read_text()))
    assert (repository / ".parity/runs/report.html").stat().st_size

    (repository / "artifact").symlink_to(".parity/runs")
    without_what_is_not_installed(runner, recipe("comment"))
    codes = runner.job(recipe("comment"), "comment")
    assert codes == {"Write the comment": 0}, runner.ran.stderr
    comment = (repository / "comment.md").read_text()
    assert comment.startswith("<!-- parity-gate -->\n")
    assert re.search(r"PRE_EXISTING \d+\)", unescape(comment))


def without_what_is_not_installed(runner: Runner, found: dict[str, Any]) -> None:
    """Forbid every dependency that the set-up of a recipe does not name."""
    (named,) = [s["run"] for s in found["jobs"]["comment"]["steps"] if "pip" in s.get("run", "")]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    absent = {item.split(">=")[0] for item in wanted} - set(named.split())
    other = {"nvidia-ml-py": "pynvml", "pytest-xdist": "xdist"}
    modules = [other.get(name, name.replace("-", "_")) for name in absent]
    assert {"torch", "pandas"} <= set(modules)
    folder = runner.folder.parent / "bare"
    folder.mkdir()
    text = f"import sys\nsys.modules.update(dict.fromkeys({modules}))\n"
    (folder / "sitecustomize.py").write_text(text)
    runner.environment["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT}"


def test_the_comment_after_a_check_that_came_to_no_verdict(repository: Path) -> None:
    runner = Runner(repository, {})
    assert runner.job(recipe("comment"), "comment") == {"Write the comment": 0}, runner.ran.stderr
    assert "came to no verdict" in (repository / "comment.md").read_text()


def test_nights_are_kept_on_their_branch(repository: Path) -> None:
    """The first night has nothing to compare with, which is no failure of the job."""
    page = (ROOT / "docs" / "ci.md").read_text()
    (setup,) = re.findall(r"```\n(empty=.*?)```", page, re.S)
    runner = Runner(repository, {"vars.PARITY_NIGHTLY_ARGS": "--profile dev"})
    assert runner.shell("bash", "-e", "-c", setup, **AUTHOR) == 0, runner.ran.stderr
    git(repository, "clone", "--quiet", "-b", "parity-history", "../remote.git", ".parity/history")
    codes = runner.job(recipe("nightly"), "night")
    assert codes == {"Run the night": 0, "Report": 0}, runner.ran.stdout + runner.ran.stderr
    keeper = Runner(repository / ".parity/history", {})
    assert keeper.job(recipe("nightly"), "keep") == {"Keep page and history": 0}
    kept = git(repository.parent / "remote.git", "ls-tree", "--name-only", "parity-history")
    assert "README.md" in kept
    assert kept.count(".parquet") == 1


AUTHOR = {
    f"GIT_{who}_{what}": text
    for who in ("AUTHOR", "COMMITTER")
    for what, text in (("NAME", "a"), ("EMAIL", "a@example.com"))
}


# --- the hook


def pushed(repository: Path, *words: str) -> tuple[int, str]:
    """A real push through the hook."""
    runner = Runner(repository, {})
    hook = repository / ".git" / "hooks" / "pre-push"
    if not hook.exists():
        hook.symlink_to(RECIPES / "pre-push")
    code = runner.shell("git", "push", *words, PARITY_GATE_ARGS="--cases-per-op 1")
    return code, runner.ran.stdout + runner.ran.stderr


def test_the_hook_stops_a_wrong_sign_and_nothing_else(repository: Path) -> None:
    first = pushed(repository, "origin", "main")
    assert first[0] == 0, first
    git(repository, "switch", "--quiet", "--create", "change")
    commit(repository, *WRONG)
    code, said = pushed(repository, "origin", "change")
    assert code != 0
    assert "REGRESSION" in said
    assert "ended with 1 for refs/heads/change" in said
    assert pushed(repository, "--no-verify", "origin", "change")[0] == 0
    for words in (["--delete", "origin", "change"], ["origin", "HEAD:refs/tags/v1"]):
        code, said = pushed(repository, *words)
        assert code == 0
        assert "Verdict" not in said


# --- what the recipes may do


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_no_text_of_others_becomes_a_command(job: Job) -> None:
    """The platform pastes an expression into a script as it is, so that a branch's name is code."""
    for step in job["steps"]:
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_job_that_may_write_runs_no_code_of_the_change(job: Job) -> None:
    writes = "write" in job.get("permissions", {}).values()
    for step in job["steps"]:
        if "checkout" not in step.get("uses", ""):
            continue
        pinned = step["with"].get("repository") == "${{ vars.PARITY_REPOSITORY }}"
        history = step["with"].get("ref") == "parity-history"
        assert not writes or pinned or history
        assert history or step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_gives_no_more_than_reading(path: Path) -> None:
    assert set(yaml.safe_load(path.read_text())["permissions"].values()) <= {"read"}


@pytest.mark.parametrize("step", PLATFORM)
def test_what_only_the_platform_runs(step: str) -> None:
    named = [s.get("name") for job in JOBS.values() for s in job["steps"]]
    assert step in named
    pytest.skip(f"NOT_RUN: step {step!r}: {PLATFORM[step]}")
