"""JUnit XML: a test case for each case, and one for the verdict as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from ..verdict import Exit, Verdict
from .document import Document
from .plain import spelled

CLEAN = {
    Verdict.IDENTICAL,
    Verdict.GENERATED_CODE_IDENTICAL,
    Verdict.CHANGED_WITHIN_BOUND,
    Verdict.FIXED,
    Verdict.NEW_CAPABILITY,
}
KINDS = ("passed", "skipped", "error", "failure")  # from good to bad


def suites(document: Document) -> str:
    """A suite for each op.  A regression is a failure, a doubt an error, and what neither passed
    nor got worse is skipped; the case ``verdict`` fails unless the gate's exit code is 0."""
    report = spelled(document)
    root = ET.Element("testsuites", name=f"parity gate {report['run']}")
    groups = {"parity": [_verdict(report)]}
    for op in report["ops"]:
        groups[op] = [_case(op, *found) for found in _by_case(report["items"], op).items()]
    total: Counter[str] = Counter()
    for name, cases in groups.items():
        counts = Counter(child.tag for case in cases for child in case)
        suite = ET.SubElement(root, "testsuite", {"name": name} | _numbers(len(cases), counts))
        suite.extend(cases)
        total += counts
    root.attrib |= _numbers(sum(map(len, groups.values())), total)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _numbers(tests: int, counts: Counter[str]) -> dict[str, str]:
    numbers = {"tests": tests, "failures": counts["failure"], "errors": counts["error"]}
    return {name: str(n) for name, n in {**numbers, "skipped": counts["skipped"]}.items()}


def _by_case(items: Iterable[Document], op: str) -> dict[str, list[Document]]:
    """The items of each case, the worst first."""
    found: dict[str, list[Document]] = {}
    for item in items:
        for case in item["cases"] if item["op"] == op else ():
            found.setdefault(case, []).append(item)
    return {
        case: sorted(told, key=lambda item: -KINDS.index(_kind(item)))
        for case, told in found.items()
    }


def _kind(item: Document) -> str:
    if item["exit_code"] == Exit.REGRESSION:
        return "failure"
    if item["exit_code"] != Exit.OK:
        return "error"
    return "passed" if item["verdict"] in CLEAN else "skipped"


def _verdict(report: Document) -> ET.Element:
    element = ET.Element("testcase", classname="parity", name="verdict")
    _properties(element, [("exit_code", str(report["exit_code"])), ("outcome", report["outcome"])])
    if report["exit_code"] != Exit.OK:
        kind = "failure" if report["exit_code"] == Exit.REGRESSION else "error"
        ET.SubElement(element, kind, message=report["sentence"], type=report["outcome"])
    return element


def _case(op: str, case: str, items: list[Document]) -> ET.Element:
    element = ET.Element("testcase", classname=op, name=case)
    told = [("case_id", case)]
    for item in items:
        told += [("verdict", item["verdict"]), ("signature", item["signature"])]
    _properties(element, told)
    kind = _kind(items[0])
    if kind != "passed":
        child = ET.SubElement(element, kind, message=items[0]["sentence"])
        child.set("type", items[0]["verdict"])
        child.text = "\n".join(
            f"{item['verdict']}: {item['sentence']}\n{item['replay']}" for item in items
        )
    return element


def _properties(element: ET.Element, values: Iterable[tuple[str, str]]) -> None:
    properties = ET.SubElement(element, "properties")
    for name, value in values:
        ET.SubElement(properties, "property", name=name, value=value)
