"""Every sentence of a night's report and of `parity history`, on results made by hand."""

from __future__ import annotations

import io
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from parity import cli
from parity.history import store
from parity.history.night import Measure, Passed
from parity.reports.nightly import markdown, show
from parity.verdict import Exit
from suites.meta.test_history import FAILS, GONE, NEW, failure, short

STRETCH = {
    "last": "n1",
    "last_commit": "a" * 40,
    "first": "n2",
    "first_commit": "b" * 40,
    "commits": ["b Break it"],
    "versions": ["torch 2", "torch 3"],
}
FAILURE = {
    "id": "12345678",
    "change": "NEW",
    "op": "op",
    "signature": "values | y",
    "cases": 1,
    "sentence": "Expected 1.",
    "shown": ".x",
    "case": "c" * 12,
    "since": STRETCH,
}
DRIFT = {
    "op": "op",
    "of": "headroom",
    "name": "y",
    "before": 0.5,
    "after": 0.6,
    "known": False,
    "since": STRETCH,
}
RESULT: dict[str, Any] = {
    "night": {"tier": "gpu", "versions": "torch 3", "commit": "b" * 40},
    "sentence": "Something is new.",
    "failures": [FAILURE],
    "drifts": [DRIFT],
    "not_run": [{"op": "op", "count": 2, "reason": "no GPU"}],
    "last_green": STRETCH,
    "other_cases": ["op", "two"],
    "compared_with": ["n0", "n1"],
    "clock": ["The clock went back."],
    "skipped": ["x.parquet is none."],
}
BETWEEN = "Between night n1 and night n2: 1 commit between."


def shown(**changes: Any) -> list[str]:
    output = Console(file=io.StringIO(), width=300)
    show(output, RESULT | changes)
    return output.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def test_the_whole_report_on_a_terminal() -> None:
    assert shown() == [
        "Tier: GPU (torch 3)",
        f"Commit: {'b' * 40}",
        "Last green night: n1 at aaaaaaaaaaaa, 1 commit between.",
        "Compared with 2 nights: n0, n1.",
        "Numbers begin anew, since the fixed cases are others than the night before: op, two.",
        "The clock went back.",
        "x.parquet is none.",
        "",
        "NEW 12345678 op: values | y",
        "  Expected 1.",
        "  Shown by 1 fixed case; last nights: .x (x failed, . did not, ? did not look)",
        f"  {BETWEEN}",
        "    b Break it",
        "    versions: torch 2 became torch 3",
        "  parity replay cccccccccccc",
        "  parity history 12345678 --bisect",
        "",
        "DRIFT op headroom of y: 0.5 to 0.6 (+20%)",
        f"  {BETWEEN}",
        "    b Break it",
        "    versions: torch 2 became torch 3",
        "",
        "NOT_RUN op, 2 cases: no GPU",
        "Something is new.",
    ]


def test_a_night_without_a_past() -> None:
    lines = shown(last_green=None, compared_with=[], failures=[], drifts=[], other_cases=[])
    assert "No earlier night of this machine is green." in lines
    assert "Compared with 0 nights: none." in lines
    assert not any(line.startswith("Numbers begin anew") for line in lines)
    assert "Compared with 1 night: n0." in shown(compared_with=["n0"])


@pytest.mark.parametrize(
    ("change", "told", "untold"),
    [
        ({"change": "KNOWN"}, [], [BETWEEN, "--bisect"]),
        ({"change": "FIXED", "since": None}, [], [BETWEEN, "--bisect"]),
        (
            {"change": "FOUND", "cases": 0, "since": None},
            [
                "  Shown by no fixed case; last nights: ",
                "  No earlier night ran a case that could show it, so it may be older",
                "  parity history 12345678 --bisect",
            ],
            [BETWEEN],
        ),
        ({"change": "SPREADING", "cases": 2}, ["  Shown by 2 fixed cases; last nights: "], []),
    ],
)
def test_what_is_said_of_a_failure(
    change: dict[str, Any], told: list[str], untold: list[str]
) -> None:
    lines = shown(failures=[FAILURE | change], drifts=[])
    for start in told:
        assert any(line.startswith(start) for line in lines)
    for part in untold:
        assert not any(part in line for line in lines)


def test_a_known_drift_and_one_from_nothing() -> None:
    known = DRIFT | {"known": True, "before": 0}
    assert "DRIFT op headroom of y: 0 to 0.6 (from nothing), known since an earlier night" in shown(
        drifts=[known]
    )


@pytest.mark.parametrize(
    ("commits", "told"),
    [
        (None, "git does not know the commits aaaaaaaaaaaa..bbbbbbbbbbbb here."),
        ([], "no commits between."),
        ([f"c{n}" for n in range(12)], "12 commits between."),
    ],
)
def test_a_stretch_of_commits(commits: list[str] | None, told: str) -> None:
    stretch = STRETCH | {"commits": commits, "versions": ["same", "same"]}
    lines = shown(failures=[], drifts=[DRIFT | {"since": stretch}])
    start = lines.index(f"  Between night n1 and night n2: {told}")
    listed = [f"    {commit}" for commit in (commits or [])[:10]]
    more = ["    and 2 more"] if len(commits or []) > 10 else []
    assert lines[start + 1 : -2] == [*listed, *more, ""]


def test_the_whole_report_as_markdown() -> None:
    known = FAILURE | {"change": "KNOWN", "id": "87654321"}
    told = markdown(RESULT | {"failures": [FAILURE, known]}).split("\n\n")
    assert told[0] == "**Something is new.**"
    assert told[1].startswith("- Tier: GPU (torch 3)\n- Commit: ")
    assert told[2].splitlines() == [
        "| | Failure | Cases | Nights | What |",
        "|---|---|---:|---|---|",
        r"| NEW | `op: values \| y` | 1 | `.x` | `Expected 1.` |",
        r"| KNOWN | `op: values \| y` | 1 | `.x` | `Expected 1.` |",
    ]
    assert told[3] == "NEW `12345678`"
    assert told[4].startswith(f"- `{BETWEEN}`\n")
    assert told[5] == "DRIFT `op headroom of y: 0.5 to 0.6 (+20%)`"
    assert told[-1] == "- `NOT_RUN op, 2 cases: no GPU`\n"
    quiet = markdown(RESULT | {"failures": [], "drifts": [], "not_run": []})
    assert "| Failure |" not in quiet


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words of a command that reads six nights: a failure that is new, one that flickers."""
    monkeypatch.chdir(tmp_path)
    other = ("op0", "values | z | wrong values")
    steady = (*FAILS, failure(other, 1))
    kept = [GONE, GONE, steady, (*FAILS, Passed(*other)), steady, steady]
    for each in short(*((f"c{min(n, 2)}", rows) for n, rows in enumerate(kept))):
        store.write(tmp_path / "nights", replace(each, ops="ops:OPS"))
    return ["history", "--history", str(tmp_path / "nights")]


def test_history_tells_every_failure(nights: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(nights) == Exit.OK
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("one, gpu, ops:OPS: 6 nights, 2026-01-01T02:00:00+00:00 to 2026-01-06")
    (line,) = [line for line in rest if NEW[1] in line]
    assert line.endswith("first in night n002, shown by 4, still there")


def test_history_tells_what_drifts_and_what_it_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = [Measure("op0", "cost", "forward launches", count) for count in (2.0, 3.0)]
    for each in short(*(("c", (cost,)) for cost in costs)):
        store.write(tmp_path, each)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    assert cli.run(["history", "--history", str(tmp_path)]) == Exit.OK
    passed_over, _, drift = capsys.readouterr().out.splitlines()
    assert passed_over.startswith("cut.parquet was passed over: it is damaged (")
    assert drift == "  DRIFT op0 cost of forward launches: 2 to 3 since night n001"


def test_history_cannot_name_what_came_before_the_first_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    for each in short(("c", FAILS)):
        store.write(tmp_path / ".parity" / "history", each)
    assert cli.run(["history", "| y |", "--bisect"]) == Exit.USAGE
    told = capsys.readouterr()
    assert "No earlier night ran a case that could show it, so it may be older." in told.out
    assert told.err.startswith("Expected a commit that passes but no night knows one; name it with")


@pytest.mark.parametrize(("words", "count"), [("nothing like it", "none"), ("values", "2")])
def test_words_that_name_no_failure_or_two(
    nights: list[str], words: str, count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*nights, words]) == Exit.USAGE
    first, *listed = capsys.readouterr().err.splitlines()
    assert first.endswith(f"names but the history has {count}; name one of:")
    assert [line[11:] for line in listed] == [
        "op0: values | y | wrong values", "op0: values | z | wrong values"
    ]  # fmt: skip


def test_history_tells_when_a_failure_appeared_and_refuses_to_bisect_one_that_flickers(
    nights: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*nights, "| y |"]) == Exit.OK
    told = capsys.readouterr().out
    assert "On one: first in night n002 (2026-01-03T02:00:00+00:00) at c2" in told
    assert "Between night n001 and night n002: git does not know the commits c1..c2 here." in told
    assert "Shown by 4 nights, the last of them n005." in told
    assert cli.run([*nights, "| z |", "--bisect"]) == Exit.INCONCLUSIVE
    assert "comes and goes" in capsys.readouterr().err
