"""One failure has one signature: in every style of pytest, in every file format, on every run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.triage.command import read
from parity.triage.results import Outcome
from parity.triage.signature import failure, frames_of_stack, normalised

SUITE = {
    "rope.py": """
        def check(x):
            raise ValueError(f"Expected {x} rows at {id(x):#x} but got {x + 1}")
        def deep(x): return deeper(x)
        def deeper(x): return check(x)
        def wrap(x):
            try:
                check(x)
            except ValueError as error:
                raise RuntimeError("could not rotate") from error
        """,
    # What pytest-reportlog does, with pytest's own serialisation.
    "conftest.py": """
        import json, os
        def pytest_configure(config):
            global given, log
            given = config
            log = open(os.environ.get("REPORT_LOG", os.devnull), "w")
        def pytest_sessionstart(): write({"$report_type": "SessionStart"})
        def pytest_sessionfinish(): write({"exitstatus": 1, "$report_type": "SessionFinish"})
        def pytest_runtest_logreport(report): write_report(report)
        def pytest_collectreport(report): write_report(report)
        def write(entry):
            log.write(json.dumps(entry) + "\\n")
            log.flush()
        def write_report(report):
            if log.name != os.devnull:
                write(given.hook.pytest_report_to_serializable(config=given, report=report))
        """,
    "tests/helper.py": "def same(a, b):\n    assert a == b, 'not close'\n",
    "tests/test_a.py": """
        import unittest
        import pytest
        import rope
        from helper import same
        @pytest.mark.parametrize("n", [1, 22])
        def test_value(n): rope.check(n)
        def test_deep(): rope.deep(4)
        def test_chained(): rope.wrap(3)
        def test_helper(): same(1, 2)
        def test_other(): same(3, 4)
        def test_bare():
            x = [1, 2]
            assert x == []
        def test_passes(): pass
        @pytest.mark.skip(reason="no")
        def test_skipped(): pass
        @pytest.fixture
        def broken(): rope.check(7)
        def test_setup(broken): pass
        class TestUnit(unittest.TestCase):
            def test_equal(self): self.assertEqual(1, 2)
        """,
    "tests/test_broken.py": "import no_such_module\n",
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    for name, text in SUITE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        lines = text.lstrip("\n").splitlines()
        margin = len(lines[0]) - len(lines[0].lstrip())
        (folder / name).write_text("\n".join(line[margin:] for line in lines) + "\n")
    return folder


def signatures(suite: Path, *options: str) -> dict[str, set[str]]:
    """Signatures by the name of the test, from a real run of pytest."""
    written = suite / "result.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", f"--junitxml={written}", *options, "tests"]
    environment = os.environ | {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if "-n1" not in options:
        environment["REPORT_LOG"] = str(suite / "result.jsonl")
    subprocess.run(command, cwd=suite, env=environment, capture_output=True, check=False)
    results = read(written)
    assert results["tests.test_a.test_passes"].status == "passed"
    assert results["tests.test_a.test_skipped"].status == "skipped"
    if "-n1" not in options:
        logged = read(suite / "result.jsonl")
        assert {k: o.status for k, o in logged.items()} == {k: o.status for k, o in results.items()}
        assert {k: shown(o) for k, o in logged.items()} == {k: shown(o) for k, o in results.items()}
    return {
        outcome.id.rpartition("/")[2]: shown(outcome)
        for outcome in results.values()
        if outcome.status == "failed"
    }


def shown(outcome: Outcome) -> set[str]:
    return {failure.signature for failure in outcome.failures}


CHECKED = "ValueError: Expected N rows at ID but got N"
ASSERTED = "AssertionError: not close | tests/helper.py:same < in tests.test_a."


@pytest.mark.parametrize("options", [("--tb=auto",), ("--tb=short",), ("-p", "xdist", "-n1")])
def test_a_real_run(suite: Path, options: tuple[str, ...]) -> None:
    found = signatures(suite, *options)
    bare = found.pop("test_a.py::test_bare")
    assert all(one.startswith("AssertionError: assert [N, N] == []") for one in bare)
    assert found == {
        "test_a.py::test_value[1]": {f"{CHECKED} | rope.py:check"},
        "test_a.py::test_value[22]": {f"{CHECKED} | rope.py:check"},
        "test_a.py::test_deep": {f"{CHECKED} | rope.py:check"},
        "test_a.py::test_setup": {f"{CHECKED} | rope.py:check"},
        "test_a.py::test_chained": {"RuntimeError: could not rotate | rope.py:wrap"},
        "test_a.py::test_helper": {f"{ASSERTED}test_helper"},
        "test_a.py::test_other": {f"{ASSERTED}test_other"},
        "test_a.py::TestUnit::test_equal": {
            "AssertionError: N != N | in tests.test_a.TestUnit.test_equal"
        },
        "test_broken.py": {"ModuleNotFoundError: No module named 'no_such_module'"},
    }


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("rows 12 of 34, 5.5e-3 and -1", "rows N of N, N and N"),
        ("shape (3, 4, 5) and [1, 2]", "shape (N, N) and [N, N]"),
        ("<Tensor object at 0x7f00dead>", "<Tensor object at ID>"),
        ("commit 0a1b2c3d4e5f of 123e4567-e89b-12d3-a456-426614174000", "commit ID of ID"),
        ("no file /tmp/pytest-3/a/b.txt or tests/x/y.json", "no file PATH or PATH"),
        ("expected bf16 or float8_e4m3fn, got fp32 on cuda:3", "same"),
        ("rank3 lost layer_12", "rankN lost layer_N"),
        ("kept: and/or, a defaced facade", "same"),
        ("two\n  lines", "two lines"),
    ],
)
def test_messages_are_freed_of_what_differs(message: str, expected: str) -> None:
    if expected == "same":
        expected = message.replace("cuda:3", "cuda:N")
    assert normalised(message) == expected


def native(*frames: tuple[str, str], last: str) -> str:
    lines = [f'  File "{path}", line 3, in {name}\n    go()' for path, name in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, last])


TEST = ("/a/tests/test_a.py", "test_x")
LIBRARY = ("/usr/lib/python3.11/site-packages/torch/nn/functional.py", "linear")


def test_arms_in_other_folders_agree() -> None:
    texts = [native(TEST, (f"{arm}/rope.py", "go"), last="ValueError: no") for arm in ("/a", "/b")]
    one, other = (failure("tests/test_a.py::test_x", "", text).signature for text in texts)
    assert one == other == "ValueError: no | rope.py:go"


def test_a_librarys_error_is_placed_by_who_called_it() -> None:
    text = native(TEST, ("/a/rope.py", "go"), LIBRARY, last="RuntimeError: bad sizes 3 and 4")
    found = failure("tests/test_a.py::test_x", "RuntimeError: bad sizes 3 and 4", text)
    assert found.place == "rope.py:go < functional.py:linear"


def test_an_assertion_of_product_code_is_not_the_tests_own() -> None:
    text = native(TEST, ("/a/rope.py", "go"), last="AssertionError: odd")
    assert (
        failure("tests/test_a.py::test_x", "", text).signature == "AssertionError: odd | rope.py:go"
    )


def test_errors_of_another_process_are_told_apart() -> None:
    start = (
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with:\n"
    )
    messages = [start + native(TEST, last=f"ValueError: {word}") for word in ("rows", "columns")]
    one, other = (failure("tests/test_a.py::test_x", message, "").kind for message in messages)
    assert one != other
    assert "ValueError: rows" in one


def test_siblings_are_compared_without_their_parameters() -> None:
    one, other = (
        failure(f"tests/test_a.py::test_x[{layout}-fp32-8]", f"KeyError: '{layout}'", "")
        for layout in ("thd", "sbhd")
    )
    assert one.kind != other.kind
    assert one.sibling == other.sibling


@pytest.mark.parametrize(
    ("parameters", "said", "sibling"),
    [
        ("fp32-thd", "'thd'", "'N'"),
        ("fp32-thd", "'fp32-thd'", "'N'"),  # the longest word first
        ("x[1]-thd", "'x[1]'", "'N'"),
        ("ab-8", "ab", "N"),
        ("a-8", "a word", "a word"),  # one letter is in every sentence
    ],
)
def test_words_that_a_parameter_brings(parameters: str, said: str, sibling: str) -> None:
    found = failure(f"tests/test_a.py::test_x[{parameters}]", f"KeyError: {said}", "")
    assert found.sibling == f"KeyError: {sibling}"


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        ("test setup failure", "setup"),
        ("collection failure", "collect"),
        ('failed on teardown with "ValueError: rows"', "teardown"),
        ("ValueError: rows", "call"),
    ],
)
def test_the_phase_of_a_failure(said: str, phase: str) -> None:
    text = "E   ValueError: rows\n\nrope.py:3: ValueError"
    found = failure("tests/test_a.py::test_x", said, text)
    assert (found.kind, found.phase) == ("ValueError: rows", phase)


@pytest.mark.parametrize(
    ("message", "kind", "expected"),
    [
        ("a.b.RowError: odd", "a.b.RowError", "RowError: odd"),
        ("odd rows", "a.b.RowError", "RowError: odd rows"),
        ("Rows: odd", "ValueError", "ValueError: Rows: odd"),
        ("rows: odd", "", "rows: odd"),
        ("ValueError", "", "ValueError"),
    ],
)
def test_the_class_of_an_error(message: str, kind: str, expected: str) -> None:
    assert failure("t", message, "", kind=kind).kind == expected


def test_only_an_assertion_is_told_together_with_its_test() -> None:
    assert failure("t", "AssertionError: odd", "").place == "in t"
    text = native(TEST, last="ValueError: odd")
    assert failure("tests/test_a.py::test_x", "", text).place == ""


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (["def go():", ">   x", "E   odd", "", "lib/a.py:1: ValueError"], "lib/a.py:go"),
        (["def f():", "lib/a.py:2: ", "lib/b.py:1: ValueError"], "lib/b.py:<module>"),
        (["def f():", "_ _ _ _", "E   odd", "lib/b.py:1: ValueError"], "lib/b.py:<module>"),
    ],
)
def test_frames_of_the_long_style(lines: list[str], place: str) -> None:
    found = failure("tests/test_a.py::test_x", "", "\n".join(lines))
    assert found.place == place
    assert found.kind.startswith("ValueError: ")


def test_a_coloured_message_and_no_message_at_all() -> None:
    assert failure("t", "\x1b[31mValueError: no\x1b[0m", "").kind == "ValueError: no"
    assert failure("t", "", "\x1b[31mE   ValueError: no\x1b[0m").kind == "ValueError: no"
    assert failure("t", "", "").signature == "no message | in t"


INSIDE = "in tests.test_a.test_x"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/a/rope.py", "rope.py:go"),
        ("lib/rope.py", "lib/rope.py:go"),
        ("../../lib/rope.py", "lib/rope.py:go"),
        ("/a/tests/helper.py", f"helper.py:go < {INSIDE}"),
        ("/a/tests/b/rope.py", "rope.py:go"),  # of an absolute path only the last folder counts
        ("tests/a/b/helper.py", f"tests/a/b/helper.py:go < {INSIDE}"),
        ("a/unit_tests/helper.py", f"a/unit_tests/helper.py:go < {INSIDE}"),
        ("/a/conftest.py", f"conftest.py:go < {INSIDE}"),
        ("/a/rope_test.py", f"rope_test.py:go < {INSIDE}"),
        ("/b/test_b.py", f"test_b.py:go < {INSIDE}"),
        ("/b/test_a.py", INSIDE),
        ("tests/test_a.py", INSIDE),
        ("/b/tests.py", "tests.py:go"),
    ],
)
def test_where_an_assertion_failed(path: str, place: str) -> None:
    """Lines of the test itself are no place; test code elsewhere belongs to the test that ran."""
    text = native(TEST, (path, "go "), last="AssertionError: odd")
    assert failure("tests/test_a.py::test_x", "", text).place == place


def test_a_file_of_tests_by_another_name_is_the_tests_own_file() -> None:
    text = native(("suites/check.py", "go"), last="ValueError: odd")
    assert failure("suites/check.py::test_x", "", text).place == ""
    assert failure("suites/other.py::test_x", "", text).place == "suites/check.py:go"


@pytest.mark.parametrize(
    ("text", "kind", "exact"),
    [
        ("E   ValueError: one\nE   two\n\nrope.py:3: ", "ValueError: one", "ValueError: one two"),
        ("ValueError: one", "ValueError: one", "ValueError: one"),
        ("first\nValueError: one\n\n  indented\n", "ValueError: one", "ValueError: one"),
        ("  indented", "no message", ""),
    ],
)
def test_a_message_inside_a_traceback(text: str, kind: str, exact: str) -> None:
    found = failure("t", "", text)
    assert (found.kind, found.exact) == (kind, exact)


def test_a_bare_assertion_is_told_by_its_line() -> None:
    lines = ">       x = f()\n>       x = g(x)\n>       assert x == []\nE       assert [1] == []\n"
    found = failure("t", "", lines)
    assert found.kind == "AssertionError: assert [N] == [] in assert x == []"
    assert failure("t", "", "E       assert [1] == []\n").kind == "AssertionError: assert [N] == []"


def test_the_stack_of_the_main_thread_outermost_first() -> None:
    head = "thread 0x1 (most recent call first):\n"
    stack = (
        f'Thread {head}  File "/a/x.py", line 3 in other\n\nCurrent {head}'
        '  File "/a/b.py", line 3 in inner\n  File "/a/c.py", line 9 in outer\n'
    )
    assert frames_of_stack(stack) == [("/a/c.py", "outer"), ("/a/b.py", "inner")]
