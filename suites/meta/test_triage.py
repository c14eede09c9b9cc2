"""Triage of result files: a reconstructed pair, planted regressions, and files of every kind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import pytest

from parity.cli import run

ROPE = "megatron/core/rope.py"
SAME = "Expected a table of 64 rows but got 32 at 0x7f3a12 in /tmp/run-4/tables"


@dataclass(frozen=True)
class Test:
    """A testcase element; ``error`` is the class, message, file and function of a failure."""

    __test__ = False

    name: str
    error: tuple[str, str, str, str] | None = None
    word: str = "failure"

    def xml(self, line: int) -> str:
        attributes = f'classname="tests.unit.test_rope.TestRope" name={quoteattr(self.name)}'
        if self.word == "skipped":
            return f'<testcase {attributes}><skipped type="pytest.skip" message="no"/></testcase>'
        if self.error is None:
            return f'<testcase {attributes} time="0.1"/>'
        kind, said, file, where = self.error
        text = (
            f"self = <test_rope.TestRope object at 0x7f{line:x}>\n\n"
            f"    def {self.name.partition('[')[0]}(self):\n>       apply(x)\n\n"
            f"tests/unit/test_rope.py:{line}: \n"
            f"_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _\n\n"
            f"    def {where}(x):\n>       raise {kind}(...)\nE       {kind}: {said}\n\n"
            f"{file}:{line + 7}: {kind}"
        )
        message = quoteattr(f"{kind}: {said}")
        return (
            f"<testcase {attributes}><{self.word} message={message}>{escape(text)}</{self.word}>"
            "</testcase>"
        )


def junit(path: Path, tests: list[Test], shift: int = 0) -> Path:
    cases = "".join(test.xml(index + shift) for index, test in enumerate(tests, 10))
    path.write_text(f'<testsuites><testsuite name="pytest">{cases}</testsuite></testsuites>')
    return path


def common(number: int) -> tuple[str, str, str, str]:
    """The one ValueError that 80 tests share; values differ from test to test."""
    return ("ValueError", SAME.replace("32", str(number)), ROPE, "check_rows")


def port() -> tuple[list[Test], list[Test]]:
    """A public port as it was: 175 passed and 93 failed on base, 212 and 106 on the change."""
    shared = [Test(f"test_shared[{n}]", common(n)) for n in range(80)]
    others = [
        Test(f"test_other_{n}", ("RuntimeError", f"backend {'abcdefghijk'[n]} is off", ROPE, "go"))
        for n in range(8)
    ]
    siblings = [
        Test(f"test_layout[{layout}-8]", ("KeyError", f"{layout}: no such layout", ROPE, "look"))
        for layout in ("thd", "sbhd", "bshd")
    ]
    fixed = [Test(f"test_fixed_{n}", ("TypeError", "missing argument", ROPE, "call")) for n in "ab"]
    passed = [Test(f"test_old_{n}") for n in range(175)]
    new = [Test(f"test_new_{n}", common(1000 + n)) for n in range(14)]
    new += [Test("test_layout[packed-8]", ("KeyError", "packed: no such layout", ROPE, "look"))]
    base = shared + others + siblings + fixed + passed
    head = shared + others + siblings + [Test(test.name) for test in fixed] + passed + new
    return base, head + [Test(f"test_added_{n}") for n in range(35)]


def triage(tmp_path: Path, base: list[Test], head: list[Test]) -> tuple[int, dict]:
    target = tmp_path / "verdicts.json"
    one, two = junit(tmp_path / "base.xml", base), junit(tmp_path / "head.xml", head, 900)
    code = run(["triage", str(one), str(two), "--json", str(target)])
    return code, json.loads(target.read_text())


def by_verdict(found: dict, verdict: str) -> dict[str, str]:
    """Evidence by the name of the test."""
    return {
        item["id"].rpartition("::")[2]: item["evidence"]
        for item in found["failures"]
        if item["verdict"] == verdict
    }


def test_the_port_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = port()
    failing = [sum(test.error is not None for test in arm) for arm in (base, head)]
    assert (failing, len(base), len(head)) == ([93, 106], 175 + 93, 212 + 106)
    code, found = triage(tmp_path, base, head)
    assert (code, found["schema_version"]) == (0, 1)
    assert found["counts"] == {
        "PRE_EXISTING": 91,
        "NEW_TEST_BASE_CAUSE": 15,
        "FIXED": 2,
        "REGRESSION": 0,
    }
    assert set(found) == {"schema_version", "counts", "failures"}
    assert all(set(i) == {"id", "verdict", "signature", "evidence"} for i in found["failures"])
    failed_on_base = {f"tests/unit/test_rope.py::TestRope::{t.name}" for t in base if t.error}
    evidence = by_verdict(found, "NEW_TEST_BASE_CAUSE")
    assert set(evidence.values()) <= failed_on_base
    assert "test_layout[" in evidence["test_layout[packed-8]"]
    assert set(by_verdict(found, "FIXED")) == {"test_fixed_a", "test_fixed_b"}
    printed = capsys.readouterr().out
    assert "| Test | Base | This change |" in printed
    assert "(80 on base, 94 on this change)" in printed
    assert "none of 106 failures is caused by this change" in printed


def fail(name: str, **changes: str) -> Test:
    """A failure as the 80 have it, with some of class, message, file and function changed."""
    parts = dict(zip(("kind", "said", "file", "where"), common(7), strict=True)) | changes
    return Test(name, (parts["kind"], parts["said"], parts["file"], parts["where"]))


PLANTED = {
    "passed on base, all else equal": fail("test_old_3"),
    "passed on base, own message": fail("test_old_3", said="Expected contiguous memory"),
    "new, own message": fail("test_planted", said="Expected contiguous memory"),
    "new, own function": fail("test_planted", where="check_columns"),
    "new, own file": fail("test_planted", file="megatron/core/yarn.py"),
    "new, own class": fail("test_planted", kind="IndexError"),
    "failed on base for another reason": fail("test_other_3", said="Expected a CUDA tensor"),
    "sibling with its own message": fail("test_layout[new-8]", kind="KeyError", said="sin_left"),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_planted_regression_is_found(planted: Test, tmp_path: Path) -> None:
    base, head = port()
    head = [test for test in head if test.name != planted.name] + [planted]
    code, found = triage(tmp_path, base, head)
    assert code == 1
    assert list(by_verdict(found, "REGRESSION")) == [planted.name]


OLD = [
    Test("test_a"),
    Test("test_b", common(1)),
    Test("test_p[one]"),
    Test("test_s", word="skipped"),
]


def replaced(*tests: Test, drop: str = "") -> list[Test]:
    names = {test.name for test in tests} | {drop}
    return [test for test in OLD if test.name not in names] + list(tests)


@pytest.mark.parametrize(
    ("head", "verdict", "name", "code"),
    [
        (replaced(Test("test_b")), "FIXED", "test_b", 0),
        (replaced(Test("test_a", word="skipped")), "SKIPPED_IN_HEAD", "test_a", 10),
        (replaced(Test("test_b", word="skipped")), "SKIPPED_IN_HEAD", "test_b", 10),
        (replaced(Test("test_s")), "SKIPPED_IN_BASE", "test_s", 0),
        (replaced(fail("test_s", said="no device")), "REGRESSION", "test_s", 1),
        (replaced(fail("test_s")), "NEW_TEST_BASE_CAUSE", "test_s", 0),
        (replaced(drop="test_a"), "NOT_RUN", "test_a", 10),
        (replaced(drop="test_b"), "REMOVED", "test_b", 0),
        (replaced(Test("test_p[uno]"), drop="test_p[one]"), "RENAMED_PARAMETERS", "test_p[one]", 0),
        (replaced(fail("test_p[uno]"), drop="test_p[one]"), "REGRESSION", "test_p[uno]", 1),
        (replaced(fail("test_b", file="megatron/moved.py")), "PRE_EXISTING_CHANGED", "test_b", 0),
        (replaced(Test("test_c"), drop="no"), None, "", 0),
    ],
)
def test_one_change(
    head: list[Test], verdict: str | None, name: str, code: int, tmp_path: Path
) -> None:
    got, found = triage(tmp_path, OLD, head)
    told = {i["id"].rpartition("::")[2]: i["verdict"] for i in found["failures"]}
    assert got == code
    assert told.get(name) == verdict
    if verdict is None:
        assert found["counts"] == {"PRE_EXISTING": 1} | dict.fromkeys(
            ("NEW_TEST_BASE_CAUSE", "FIXED", "REGRESSION"), 0
        )
    else:
        assert found["counts"][verdict] == 1


@pytest.mark.parametrize(("base", "head"), [(OLD, []), ([], OLD), ([], [])])
def test_zero_tests_are_no_pass(base: list[Test], head: list[Test], tmp_path: Path) -> None:
    code, found = triage(tmp_path, base, head)
    assert code == 5
    assert found["counts"]["ZERO_TESTS"] == (base == []) + (head == [])
    assert found["counts"]["REGRESSION"] == 0


def test_ranks_of_a_folder_come_together(tmp_path: Path) -> None:
    for arm, second in (("base", Test("test_a")), ("head", fail("test_a"))):
        (tmp_path / arm).mkdir()
        junit(tmp_path / arm / "rank0.xml", [Test("test_a")])
        junit(tmp_path / arm / "rank1.xml", [second])
    assert run(["triage", str(tmp_path / "base"), str(tmp_path / "head")]) == 1
    assert run(["triage", str(tmp_path / "base"), str(tmp_path / "base")]) == 0


def test_a_duplicate_that_fails_is_not_hidden_by_one_that_passes(tmp_path: Path) -> None:
    code, found = triage(
        tmp_path, [Test("test_a")], [Test("test_a"), fail("test_a"), Test("test_a")]
    )
    assert (code, found["counts"]["REGRESSION"]) == (1, 1)


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><testsuites>&b;</testsuites>'
BAD = {
    "empty": ("", "it is empty"),
    "truncated": ("<testsuites><testsuite><testcase name=", "line 1, column"),
    "control character": ("<testsuites><testsuite>\x01</testsuite></testsuites>", "line 1"),
    "entities": (BOMB, "a document type 'x'"),
    "outside entity": ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuites/>', "document type"),
    "another document": ("<html></html>", "a root element 'html'"),
    "text": ("175 passed, 93 failed", "it is neither"),
    "another log": ('{"event": "start"}\n', "no $report_type"),
    "broken log": ('{"$report_type": "SessionStart"}\nnonsense\n', "line 2 is none"),
    "no report": ('{"$report_type": "WarningMessage"}\n', "no session and no report"),
    "odd report": ('{"$report_type": "TestReport"}\n', "a TestReport"),
    "odd status": ('{"$report_type": "SessionFinish", "exitstatus": "well"}\n', "misuses"),
    "odd rank": ('{"$report_type": "SessionStart", "rank": [1]}\n', "misuses"),
    "odd traceback": (
        '{"$report_type": "TestReport", "nodeid": "a", "when": "call", "outcome": "failed", '
        '"longrepr": {"reprcrash": null}}\n',
        "lacks or misuses",
    ),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_in_a_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = junit(tmp_path / "good.xml", OLD), tmp_path / "bad.xml"
    bad.write_text(text)
    assert run(["triage", str(good), str(bad)]) == 4
    error = capsys.readouterr().err
    assert error.startswith("Expected")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["one.xml"],
        ["one.xml", "two.xml", "three.xml"],
        ["one.xml", "two.xml", "--", "pytest"],
        ["--"],
        ["one.xml", "two.xml", "--base", "main"],
        ["missing.xml", "missing.xml"],
        ["--repo", "missing", "--", "pytest"],
        ["--deadline", "0", "--", "pytest"],
    ],
)
def test_wrong_usage_is_refused_in_a_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["triage", *arguments]) == 4
    assert capsys.readouterr().err.count("\n") == 1


def test_a_target_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(junit(tmp_path / "one.xml", OLD))
    assert run(["triage", file, file, "--json", f"{file}/below"]) == 4
    assert "Expected to write" in capsys.readouterr().err


def test_a_large_file_is_read_as_a_stream(tmp_path: Path) -> None:
    import tracemalloc

    from parity.triage.junit import KEPT, read_junit

    long = Test("test_long", ("ValueError", "no", ROPE, "check")).xml(3)
    filler = "x" * (1 << 20) + "\n"
    path = tmp_path / "large.xml"
    with path.open("w") as file:
        file.write("<testsuites><testsuite><system-out>")
        file.writelines([filler] * 24)
        file.write("</system-out>")
        file.write(long.replace("self = ", filler * 8, 1))
        file.write("</testsuite></testsuites>")
    tracemalloc.start()
    (outcome,) = read_junit(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.failures[0].signature == f"ValueError: no | {ROPE}:check"
    assert peak < 8 * KEPT


@pytest.mark.parametrize(
    "name",
    [
        "test_x[a\\|b]",
        "test_x[a|b`c]",
        "test_x[<b>&amp;]",
        "test_x[\\x00-é]",
        "test_x[a::b/c.py-[d]]",
    ],
)
def test_odd_parameters_stay_in_their_cell(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = triage(tmp_path, [Test("test_a")], [Test("test_a"), fail(name)])
    (planted,) = found["failures"]
    assert (code, planted["verdict"]) == (1, "REGRESSION")
    assert planted["id"] == f"tests/unit/test_rope.py::TestRope::{name}"
    row = next(line for line in capsys.readouterr().out.splitlines() if "REGRESSION**" in line)
    assert row.replace("\\|", "").count("|") == 4


def test_what_does_not_fit_into_a_comment_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [
        fail(f"test_known[{'x' * 300}{n}]", said=chr(97 + n % 26) * (n + 9)) for n in range(400)
    ]
    code, _ = triage(tmp_path, [*many, Test("test_a")], [*many, fail("test_a", said="planted")])
    printed = capsys.readouterr().out
    assert code == 1
    assert len(printed) < 65_536
    assert "planted" in printed
    assert "more rows, in the file of `--json`" in printed
