"""The search for the first bad commit, on real histories whose commits say what they answer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from parity import git as git_module
from parity.git import Refused
from parity.history.bisect import Bisection
from parity.history.night import Failure
from parity.record import Finding, Record

FAILURE = Failure("op", "values | y | wrong values", "far off", "", "", "0" * 12, "{}", 1)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Told(Bisection):
    """Asks the commit's own message, which begins with its answer, instead of running a case."""

    def shows(self, commit: str) -> bool | None:
        self.tried += 1
        answer = git_module.git(self.project, "log", "-1", "--format=%s", commit).split()[0]
        return {"good": False, "bad": True, "lost": None}[answer]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    return tmp_path


def commits(repository: Path, *answers: str) -> list[str]:
    """One commit for each answer, the oldest first."""
    ids = []
    for number, answer in enumerate(answers):
        git(repository, "commit", "-q", "--allow-empty", "-m", f"{answer} {number}")
        ids.append(git(repository, "rev-parse", "HEAD"))
    return ids


def bisection(repository: Path) -> Told:
    return Told(repository, None, FAILURE, repository, lambda line: None)


@pytest.mark.parametrize("first", range(1, 12))
def test_the_first_bad_commit_of_a_line_is_found_by_halving(repository: Path, first: int) -> None:
    ids = commits(repository, *["good"] * first, *["bad"] * (12 - first))
    found = bisection(repository).first_bad(ids[0], ids[-1])
    assert found.commits == (ids[first],)
    assert found.tried <= 2 + 4


def test_commits_that_cannot_run_leave_all_that_it_may_be(repository: Path) -> None:
    ids = commits(repository, "good", "good", "lost", "lost", "bad", "bad")
    assert set(bisection(repository).first_bad(ids[0], ids[-1]).commits) == {*ids[2:5]}


def test_commits_that_cannot_run_elsewhere_do_not_matter(repository: Path) -> None:
    ids = commits(repository, "good", "lost", "good", "bad", "lost", "bad")
    assert bisection(repository).first_bad(ids[0], ids[-1]).commits == (ids[3],)


def test_a_bad_commit_of_a_merged_branch_is_found(repository: Path) -> None:
    (start,) = commits(repository, "good")
    git(repository, "switch", "-q", "-c", "side")
    *_, culprit, _ = commits(repository, "good", "bad", "bad")
    git(repository, "switch", "-q", "main")
    commits(repository, "good", "good")
    git(repository, "merge", "-q", "--no-ff", "-m", "bad merge", "side")
    last = git(repository, "rev-parse", "HEAD")
    assert bisection(repository).first_bad(start, last).commits == (culprit,)


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (("bad", "bad"), "name an older commit with --good"),
        (("good", "good"), "it may come and go"),
        (("lost", "bad"), "cannot run this case"),
    ],
)
def test_ends_that_do_not_answer_as_needed_are_refused(
    repository: Path, answers: tuple[str, ...], sentence: str
) -> None:
    first, last = commits(repository, *answers)
    with pytest.raises(Refused, match=sentence):
        bisection(repository).first_bad(first, last)


@pytest.mark.parametrize(
    ("status", "findings", "answer"),
    [
        ("passed", (), False),
        ("failed", (Finding("values", "y", "wrong values", band="bits"),), True),
        ("failed", (Finding("values", "z", "wrong values"),), False),
        ("failed", (Finding("runs", "forward", "raised"),), None),
        ("unsupported", (), None),
        ("infrastructure", (), None),
        ("crashed", (), None),
    ],
)
def test_what_a_record_answers(
    repository: Path, status: str, findings: tuple[Finding, ...], answer: bool | None
) -> None:
    checks = ("values",) if status in ("passed", "failed") else ()
    record = Record("0" * 12, "op", "head", status, findings=findings, checks=checks)
    assert bisection(repository)._answer(record) is answer
