"""The page on false passes names tests that exist, and all those of this folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from suites.meta.test_imports import ROOT

ROUTES = 24
SUITES = ROOT / "suites"
META = SUITES / "meta"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)(?:\[(\w+)\])?`")


def rows(page: str) -> dict[int, list[list[tuple[str, str, str]]]]:
    """The tests in the last two columns of each row, by its number: file, function, parameter."""
    cells = [line.split("|")[1:-1] for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    return {int(row[0]): [TEST.findall(cell) for cell in row[-2:]] for row in cells}


def problem(file: str, function: str, parameter: str) -> str:
    """Why a test does not exist, or an empty string."""
    path = META / file if (META / file).is_file() else SUITES / file
    if not path.is_file():
        return f"no file {file}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if function not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
        return f"no test {function} in {file}"
    names = {getattr(node, "id", getattr(node, "value", None)) for node in ast.walk(tree)}
    names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return f"no parameter {parameter} in {file}" if parameter and parameter not in names else ""


def page() -> dict[int, list[list[tuple[str, str, str]]]]:
    return rows((ROOT / "docs" / "false-passes.md").read_text(encoding="utf-8"))


def test_every_route_has_a_planted_bug_and_an_honest_twin() -> None:
    table = page()
    assert list(table) == list(range(1, ROUTES + 1))
    assert all(planted and honest for planted, honest in table.values())


def test_every_test_that_is_named_exists() -> None:
    named = {test for row in page().values() for cell in row for test in cell}
    assert [text for text in (problem(*test) for test in sorted(named)) if text] == []


def test_every_test_of_this_folder_is_named() -> None:
    named = {test[:2] for row in page().values() for cell in row for test in cell}
    here = {
        (f"false_passes/{path.name}", node.name)
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if path.name != Path(__file__).name
    }
    assert here - named == set()


def test_a_test_that_is_gone_is_seen() -> None:
    found = rows(
        "| 3 | route | `test_cli.py` | `test_cli.py::test_gone` | `test_cli.py::test_b[c]` |"
    )
    assert found == {3: [[("test_cli.py", "test_gone", "")], [("test_cli.py", "test_b", "c")]]}
    assert problem("test_nowhere.py", "test_a", "") == "no file test_nowhere.py"
    assert problem("test_cli.py", "test_gone", "") == "no test test_gone in test_cli.py"
    assert problem("test_cli.py", "test_bad_input", "") == ""
    assert problem("test_cli.py", "test_bad_input", "no_such_name").startswith("no parameter")
