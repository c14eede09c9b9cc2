"""Reports: golden files, the published schema, and names that were made to break them."""

from __future__ import annotations

import copy
import html
import io
import json
import os
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from markdown_it import MarkdownIt
from rich.console import Console

from parity import cli
from parity.ending import CLOSED_PIPE
from parity.mutation import outcomes
from parity.mutation.mutants import Mutant
from parity.mutation.outcomes import Outcome
from parity.reports import junit, markdown, terminal
from parity.reports.document import Document, document_of
from parity.reports.render import FORMATS, as_text
from parity.reports.terminal import title
from parity.runs import Run
from parity.verdict import Exit
from suites.meta.test_cli import unread

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
STATES = ("green", "red", "inconclusive", "empty")
FILES = {
    "html": "report.html",
    "json": "report.json",
    "junit": "junit.xml",
    "markdown": "comment.md",
    "summary": "summary.md",
}
SCHEMA = json.loads((ROOT / "docs/schema/report.schema.json").read_text())
# Each ends what its format began, or begins what it does not have.
FORGED = (
    "<script>alert(1)</script>", "</script><b>", "</code></summary></details>", "]]>", "--><!--",
    "| x | y |", "a\n| b | c |", "`` ` ```", "\n\n# title\n", "* item", "[x](http://e.org)", "\\|",
    "@somebody", "@org/team", "#12", "GH-12", "http://e.org", "www.e.org", "a@e.org", ":tada:",
    "\x1b[31mred\x1b]8;;http://e.org\x07", "\r\b\b\b", "\u202etxt.exe", "\x00", "\ud800", "&amp;",
    "${x}", "{{ x }}", "{% x %}", "'\"", "\u2028", "_*~x~*_", "^", "\t", "=== ", "!", "$x$",
)  # fmt: skip
HOSTILE = st.lists(st.one_of(st.sampled_from(FORGED), st.text(max_size=8)), min_size=1, max_size=4)


def report(state: str) -> Document:
    return document_of(Run(GOLDEN / state / "run"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("state", STATES)
def test_a_golden_report_is_rebuilt_byte_for_byte(state: str, name: str) -> None:
    """If a report was changed on purpose: `python -m suites.meta.golden.make`."""
    built = as_text(Run(GOLDEN / state / "run"), name)
    assert built.encode() == (GOLDEN / state / FILES[name]).read_bytes()


def test_every_format_has_golden_files() -> None:
    assert set(FILES) == set(FORMATS)


def violations(document: Document) -> list[str]:
    """Where a report departs from the schema."""
    found = Draft202012Validator(SCHEMA).iter_errors(document)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


@pytest.mark.parametrize("state", STATES)
def test_a_report_keeps_to_the_published_schema(state: str) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert violations(report(state)) == []


@pytest.mark.parametrize("field", ["run", "items", "exit_code", "coverage"])
def test_the_schema_sees_a_missing_field(field: str) -> None:
    document = report("red")
    del document[field]
    assert violations(document)


RED = report("red")


ISSUE = {
    "op": "rotate",
    "signature": "values | y",
    "reason": "being mended",
    "address": "issue 7",
    "expires": "2027-01-31",
    "state": "matched",
    "new": True,
}


def with_known_issue(document: Document) -> Document:
    """The red report with its wrong values known."""
    known = copy.deepcopy(document) | {"known_issues": [ISSUE]}
    (item,) = (i for i in known["items"] if i["op"] == "rotate" and i["exit_code"])
    item |= {"known": "being mended (issue 7)", "exit_code": 0}
    return known


def test_a_known_issue_is_shown_and_is_no_failure() -> None:
    document = with_known_issue(RED)
    assert violations(document) == []
    comment = markdown.comment(document)
    assert "Known issue, new with this change, counts until 2027" in comment
    assert "Known issue: <code>being mended (issue 7)</code>" in comment
    root = ET.fromstring(junit.suites(document))
    kinds = {case.tag for case in root.findall("testsuite[@name='rotate']/testcase/*")}
    assert kinds == {"properties", "skipped"}


def test_a_case_that_only_a_further_run_failed_is_no_pass(workspace: Path) -> None:
    """Its first run is judged as well: that failure comes before what is clean, and after worse."""
    folder = workspace / ".parity/runs/red"
    result = json.loads((folder / "result.json").read_text())
    blank = next(item for item in result["items"] if item["verdict"] == "REGRESSION")
    further = blank | {
        "verdict": "PRE_EXISTING",
        "family": "relation:tiles | y",
        "sentence": "Old.",
    }
    changed = blank | {"verdict": "CHANGED_WITHIN_BOUND", "family": "", "sentence": "Other bits."}
    dearer = blank | {"family": "cost |  | launches", "sentence": "Dearer."}
    for told, kind, first in (
        ([further, changed], "skipped", "Old."),
        ([changed, further], "skipped", "Old."),
        ([further, dearer], "failure", "Dearer."),
        ([changed], "", ""),
    ):
        items = [item | {"signature": item["family"], "cases": ["c"]} for item in told]
        (folder / "result.json").write_text(json.dumps(result | {"items": items}))
        document = document_of(Run(folder))
        (case,) = ET.fromstring(junit.suites(document)).findall(".//testcase[@name='c']")
        assert [(child.tag, child.get("message")) for child in case[1:]] == (
            [(kind, first)] if kind else []
        )
        texts = html.unescape(markdown.comment(document)), shown(folder)
        for text, item in product(texts, told):
            assert item["sentence"] in text
            assert item["verdict"] in text


def test_bugs_that_lived_are_in_the_report(workspace: Path) -> None:
    place = ("y = x - y", "x - y", "x + y", 1, 0, 5, 7, 7)
    mutant = Mutant("ops.py", "rotate", "sign", *place, "x - y")
    dead = replace(mutant, changed="y - x", replacement="y - x")
    ends = {
        mutant.id: Outcome("survived", reason="no case"),
        dead.id: Outcome("killed", seconds=1.0),
    }
    power = outcomes.document([mutant, dead], ends)
    folder = workspace / ".parity/runs/red"
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"power": power}))
    document = document_of(Run(folder))
    assert violations(document) == []
    (alive,) = document["power"]["survivors"]
    assert (alive["line"], alive["original"], alive["changed"]) == (7, "x - y", "x + y")
    comment = html.unescape(markdown.comment(document))
    assert "1 survived" in comment
    assert "sign in <code>ops.py:7 rotate</code>: <code>x - y</code> became <code>x + y" in comment
    assert shown(folder).endswith(
        f"""
SURVIVED {mutant.id} sign in ops.py:7 rotate (no case)
  x - y
  x + y

To look at one, make its change there and run `parity gate`: add the case, axis or test that \
shows it, or give the reason why none can in suites/equivalent_mutants.toml.

Power: 1 killed, 1 survived, 0 timeout, 0 equivalent: score 50.0 %; median 1.00 s from start to \
first failing case.
{result["sentence"]}
"""
    )


def shown(folder: Path) -> str:
    """A run on the terminal."""
    output = io.StringIO()
    result = json.loads((folder / "result.json").read_text())
    terminal.show_result(Console(file=output), result, str(folder))
    return output.getvalue()


def forge(document: Document, text: str) -> Document:
    """The red report with ``text`` wherever a test, a branch, or an error can put one."""
    forged = copy.deepcopy(document)
    for item in forged["items"]:
        for field in ("sentence", "signature", "minimal_summary", "op"):
            item[field] += text
    forged["ops"] = {op + text: counts for op, counts in forged["ops"].items()}
    forged["known_issues"] = [ISSUE | {"reason": text, "signature": text}]
    for arm in forged["arms"].values():
        arm |= {"kind": "repository", "ref": "main" + text, "commit": "0123456789ab"}
    for row in forged["headroom"]:
        row |= {"op": row["op"] + text, "tensor": row["tensor"] + text}
    return forged


def blocks(text: str) -> list[tuple[str, str]]:
    """What Markdown makes of a text: every token with its tag, and the tags of raw HTML."""
    tokens = MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(text)
    found = []
    for token in tokens:
        for part in (token, *(token.children or [])):
            tags = "".join(tag.partition(">")[0] for tag in part.content.split("<")[1:])
            found.append((part.type, tags if part.type.startswith("html") else part.tag))
    return found


@settings(max_examples=40)
@given(HOSTILE)
def test_a_forged_name_stays_in_its_cell_in_markdown(parts: list[str]) -> None:
    forged = markdown.summary(forge(RED, "x" + "".join(parts)))
    assert blocks(forged) == blocks(markdown.summary(forge(RED, "x")))
    assert all(c.isprintable() or c == "\n" for c in forged)
    assert not re.search(r"@|http:|www\.|`|\]\(|(?<!&)#\d", forged)


@settings(max_examples=40)
@given(HOSTILE)
def test_a_forged_name_stays_in_its_attribute_in_junit(parts: list[str]) -> None:
    trees = [ET.fromstring(junit.suites(forge(RED, text))) for text in ("".join(parts), "x")]
    forged, honest = (list(shape(tree)) for tree in trees)
    assert forged == honest


def shape(element: ET.Element) -> Iterator[tuple[str, tuple[str, ...]]]:
    for child in element.iter():
        yield child.tag, tuple(child.attrib)


@pytest.mark.parametrize("state", STATES)
def test_junit_is_green_exactly_when_the_gate_is(state: str) -> None:
    document = report(state)
    root = ET.fromstring(junit.suites(document))
    bad = int(root.attrib["failures"]) + int(root.attrib["errors"])
    assert (bad == 0) == (document["exit_code"] == Exit.OK)
    assert int(root.attrib["tests"]) == len(list(root.iter("testcase"))) == document["cases"] + 1
    for kind in ("failure", "error", "skipped"):
        named = {"failure": "failures", "error": "errors", "skipped": "skipped"}[kind]
        assert int(root.attrib[named]) == len(list(root.iter(kind)))


def test_junit_has_verdict_signature_and_case() -> None:
    root = ET.fromstring(junit.suites(report("red")))
    (failing,) = root.findall("testsuite[@name='rotate']/testcase/failure/..")[:1]
    found = [(item.attrib["name"], item.attrib["value"]) for item in failing.iter("property")]
    assert found[0] == ("case_id", failing.attrib["name"])
    assert ("verdict", "REGRESSION") in found
    assert any(name == "signature" and "rotated lanes" in value for name, value in found)


def many(count: int, text: str = "") -> Document:
    document = report("red")
    (item,) = [i for i in document["items"] if i["op"] == "rotate" and i["exit_code"]]
    document["items"] = [
        item | {"id": f"{n:010x}", "sentence": f"{n} {text}"} for n in range(count)
    ]
    return document


@pytest.mark.parametrize("text", ["plain", "|@" * 5_000, "ü" * 5_000])
def test_markdown_keeps_to_the_limits_and_says_what_it_cut(text: str) -> None:
    comment, summary = (
        render(many(3_000, text)) for render in (markdown.comment, markdown.summary)
    )
    assert len(comment) <= len(comment.encode()) <= 65_000
    assert len(summary.encode()) <= 2**20
    shown = comment.count("<details>")
    assert 0 < shown < 3_000
    assert f"{3_000 - shown} more findings did not fit" in comment
    assert comment.count("</details>") == shown


def test_a_table_of_many_ops_is_cut_too() -> None:
    document = report("red")
    document["ops"] = {f"op_{n}": {"IDENTICAL": 1} for n in range(5_000)}
    comment = markdown.comment(document)
    assert len(comment.encode()) <= 65_000
    assert "more rows of this table did not fit" in comment
    assert comment.count("<details>") == sum(i["verdict"] != "IDENTICAL" for i in document["items"])


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the four golden runs; the red one is the newest with a result."""
    monkeypatch.chdir(tmp_path)
    for state in ("green", "red"):
        shutil.copytree(GOLDEN / state / "run", tmp_path / ".parity/runs" / state)
    return tmp_path


def test_the_command_writes_each_format(workspace: Path) -> None:
    words = [word for name, file in FILES.items() for word in (f"--{name}", file)]
    assert cli.run(["report", "red", *words]) == Exit.OK
    for file in FILES.values():
        assert (workspace / file).read_bytes() == (GOLDEN / "red" / file).read_bytes()


def test_without_a_format_it_goes_to_the_terminal(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["report", str(GOLDEN / "red" / "run")]) == Exit.OK
    output = capsys.readouterr().out
    assert "Verdict: regression in" in output
    assert "\x1b" not in output
    assert cli.run(["report", "green", "--junit", "-"]) == Exit.OK
    assert ET.fromstring(capsys.readouterr().out.encode()).tag == "testsuites"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("", "there is none: the run was killed"),
        ("{", "Expected a JSON object in"),
        ('{"items": [], "exit_code": 0}', "run `parity gate` again"),
    ],
)
def test_a_run_without_a_usable_result_is_refused(
    workspace: Path, capsys: pytest.CaptureFixture[str], damage: str, sentence: str
) -> None:
    file = workspace / ".parity/runs/red/result.json"
    file.write_text(damage) if damage else file.unlink()
    assert cli.run(["report", "red", "--json", "out.json"]) == Exit.USAGE
    assert sentence in capsys.readouterr().err
    assert not (workspace / "out.json").exists()


@pytest.mark.parametrize("name", ["run", "environment"])
@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"versions": 1}'])
def test_a_damaged_file_of_a_run_is_named(
    workspace: Path, capsys: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    (workspace / ".parity/runs/red" / f"{name}.json").write_text(damage)
    assert cli.run(["report", "red"]) == Exit.USAGE
    assert ".parity/runs/red" in capsys.readouterr().err.splitlines()[-1]


def test_it_says_which_gate_is_shown_and_which_newer_one_did_not_end(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = workspace / ".parity" / "runs"
    shutil.copytree(runs / "red", runs / "killed")
    (runs / "killed" / "result.json").unlink()
    for age, name in enumerate(("green", "red", "killed")):
        os.utime(runs / name, (age, age))
    assert cli.run(["report", "--json", "-"]) == Exit.OK
    told = "(gate of 2026-11-30T15:30:50+0000, head /home/dev/attention/head)"
    assert capsys.readouterr().err.splitlines() == [
        f"Run red {told}",
        f"Not the newer killed {told}, which was stopped before its end or still runs.",
    ]
    assert cli.run(["report", "green", "--json", "-"]) == Exit.OK
    assert capsys.readouterr().err.startswith("Run green (gate of 2026-")


def test_a_report_that_nobody_reads_ends_quietly(workspace: Path) -> None:
    code, told = unread(workspace, "report", "red")
    assert (code, told[:8]) == (CLOSED_PIPE, "Run red ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("words", [["nowhere"], ["red", "--json", ".parity"]])
def test_wrong_usage_is_one_sentence(
    workspace: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert cli.run(["report", *words]) == Exit.USAGE
    error = capsys.readouterr().err
    assert error.startswith("Expected ")
    assert error.count("\n") == 1


def test_the_picture_is_of_the_widest_case() -> None:
    (item,) = [i for i in RED["items"] if i["op"] == "rotate" and i["exit_code"]]
    records = [record for record in Run(GOLDEN / "red" / "run").all_records() if record.maps]
    shapes = {r.case_id: r.maps["y"]["shape"] for r in records if r.case_id in item["cases"]}
    assert item["maps"]["y"]["head"]["shape"] == shapes[item["pictured"]]
    assert prod(shapes[item["pictured"]]) == max(map(prod, shapes.values()))
    assert item["pictured"] != item["minimal_case"]


def test_costs_of_both_arms_stand_side_by_side(workspace: Path) -> None:
    row = {"op": "rotate", "kernel": "k", "arch": "sm_90", "error": "", "spills": 0, "barriers": 0}
    row |= {"registers": 40, "shared_bytes": 0, "load_bits": 128, "store_bits": 128}
    code: dict[str, Any] = {"base_rows": [row], "rows": [row, row | {"registers": 255}]}
    folder = workspace / ".parity/runs/red"
    (folder / "codegen.json").write_text(json.dumps(code))
    alone = {"workload": "concat", "passing": "forward", "microseconds": 8.0, "ratio": 1.25}
    timed = {"task": "split forward", "base": 10.0, "head": 12.5}
    (folder / "bench.json").write_text(json.dumps({"rows": [alone, timed]}))
    records = (folder / "records-head.jsonl").read_text().splitlines()
    case = json.loads(records[0]) | {"traffic": {"x": {"loaded": 64, "stored": 0}}}
    for arm in ("base", "head"):
        file = folder / f"records-{arm}.jsonl"
        others = [line for line in file.read_text().splitlines() if case["case_id"] not in line]
        file.write_text("".join(f"{line}\n" for line in [*others, json.dumps(case | {"arm": arm})]))
    document = document_of(Run(folder))
    assert violations(document) == []
    found = {
        (row["place"], row["figure"]): (row["base"], row["head"])
        for row in document["cost"]
        if row["op"] in (case["op"], "rotate", "")
    }
    assert found["k on sm_90", "registers"] == ([40, 40], [40, 255])
    assert found["sum over 1 case", "bytes loaded"] == ([64, 64], [64, 64])
    assert found["concat forward", "time over that of a copy"] == (None, [1.25, 1.25])
    assert found["split forward", "microseconds"] == ([10.0, 10.0], [12.5, 12.5])


@pytest.mark.parametrize("file", ["run", "result", "environment"])
def test_a_file_of_another_shape_is_told_in_a_sentence(workspace: Path, file: str) -> None:
    """Never a traceback: each field of each file as each kind of value, in every format."""
    run = Run(workspace / ".parity/runs/red")
    path = run.folder / f"{file}.json"
    whole = json.loads(path.read_text())
    told: set[str] = set()
    for field, value in product(whole, ([], {}, 1, None, [1], {"a": 1})):
        path.write_text(json.dumps(whole | {field: value}))
        for render in (*(partial(as_text, run, name) for name in FORMATS), partial(title, run)):
            try:
                render()
            except ValueError as error:
                told.add(str(error))
    unreadable = f"Expected files that this version of parity can read in {run.folder} but "
    assert any(sentence.startswith(unreadable) for sentence in told)


def test_a_report_of_a_run_of_another_shape_is_refused(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = workspace / ".parity/runs/red/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"arms": []}))
    for arguments in ([], ["--html", "page.html"], [str(path.parent)]):
        assert cli.run(["report", *arguments]) == Exit.USAGE
        assert "Expected files that this version of parity can read" in capsys.readouterr().err
