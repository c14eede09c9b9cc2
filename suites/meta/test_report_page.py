"""The HTML report in a real Chromium: it opens, filters, sorts, links, prints, is accessible."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.doctor import BROWSERS
from parity.reports import html
from parity.reports.document import Document, document_of
from parity.runs import Run

GOLDEN = Path(__file__).parent / "golden"
STATES = ("green", "red", "inconclusive", "empty")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
FORGED = (
    "<script>alert(1)</script>", "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>", "' onfocus='alert(1)",
    "javascript:alert(1)", "<!--", "-->", "]]>",
    "{{ 7 * 7 }}", "{% raw %}", "${alert(1)}", "&lt;", "</title>", "</style>", "</p>", "\x00",
    "\x1b[31m", "\u202e", "\u2028", "\ud800", "\n", "<a href=//e.org>", "__proto__", "constructor",
)  # fmt: skip

sync_api = pytest.importorskip("playwright.sync_api", reason="NOT_RUN: playwright is not installed")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="NOT_RUN: no Chromium; install one, e.g. apt-get install chromium"
)
Open = Callable[..., "Opened"]


def red() -> Document:
    return document_of(Run(GOLDEN / "red" / "run"))


def many(count: int) -> Document:
    """The red report with ``count`` findings of eleven ops, one in seven of them a regression."""
    document = red()
    urgent, fine = (
        next(item for item in document["items"] if item["verdict"] == verdict)
        for verdict in ("REGRESSION", "FIXED")
    )
    document["items"] = [
        (urgent if number % 7 == 0 else fine)
        | {"id": f"{number:010x}", "op": f"op_{number % 11:02}", "sentence": f"number {number}."}
        for number in range(count)
    ]
    return document


class Opened:
    """A page, and everything that went wrong in it."""

    def __init__(self, page: sync_api.Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss())
        page.on("request", self._requested)

    def _requested(self, request: sync_api.Request) -> None:
        if not request.url.startswith("file:") or request.resource_type != "document":
            self.complaints.append(request.url)

    def rows(self) -> list[str]:
        return [text.strip() for text in self.page.locator(".finding .told").all_inner_texts()]

    def status(self) -> str:
        return self.page.locator("#shown").inner_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        sandbox = os.geteuid() != 0  # Chromium refuses to start a sandbox as root
        yield playwright.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=sandbox)


@pytest.fixture
def show(browser: sync_api.Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a report from a file; in the end nothing may have gone wrong in it."""
    opened = []

    def open_(document: Document, link: str = "", **options: object) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(html.page(document), encoding="utf-8")
        found = Opened(browser.new_context(**options).new_page())
        opened.append(found)
        found.page.goto(f"{file.as_uri()}{link}")
        return found

    yield open_
    for found in opened:
        assert found.complaints == []
        found.page.context.close()


@needs_chromium
@pytest.mark.parametrize(
    ("state", "scheme"),
    [*((state, "light") for state in STATES), ("full", "light"), ("full", "dark")],
)
def test_it_opens_and_is_accessible(show: Open, state: str, scheme: str) -> None:
    """By the rules of axe-core: contrast, names, roles, order of headings, ..."""
    from axe_playwright_python.sync_playwright import Axe

    full = forge(red(), "x")  # with every section
    document = full if state == "full" else document_of(Run(GOLDEN / state / "run"))
    page = show(document, color_scheme=scheme).page
    assert page.locator("h1").inner_text() == document["outcome"].capitalize()
    first = page.locator(".finding summary").first
    if first.count():
        first.click()
        page.locator(".finding[open] .body").wait_for()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@needs_chromium
def test_filters_search_and_order(show: Open) -> None:
    opened = show(many(30))
    page = opened.page
    assert opened.status() == "30 of 30 findings"
    page.get_by_role("button", name="REGRESSION").click()
    assert opened.rows() == [f"number {n}." for n in range(0, 30, 7)]
    page.get_by_label("Op", exact=True).select_option("op_07")
    assert opened.rows() == ["number 7."]
    page.get_by_role("button", name="REGRESSION").click()
    assert opened.rows() == ["number 7.", "number 18.", "number 29."]
    page.get_by_label("Op", exact=True).select_option("")
    page.get_by_label("Search").fill("NUMBER 12.")
    assert opened.rows() == ["number 12."]
    assert opened.status() == "1 of 30 findings"
    page.get_by_label("Search").fill("")
    page.get_by_label("Sort by").select_option("op")
    assert opened.rows()[:4] == [f"number {n}." for n in (0, 11, 22, 1)]


@needs_chromium
def test_a_link_lands_on_its_finding_and_leads_to_it_again(show: Open) -> None:
    opened = show(many(500), link="#f-00000001c7")
    page = opened.page
    assert opened.rows()[0] == "number 455."
    assert page.locator("[open] > #f-00000001c7").count() == 1
    assert page.evaluate("document.activeElement.id") == "f-00000001c7"
    page.locator("#f-0000000000").click()
    page.locator("#f-0000000000 + .body").get_by_text("to this finding").click()
    assert page.url.endswith("#f-0000000000")
    # the browser tells the page of its new address after the click
    page.locator(".finding .told").first.filter(has_text="number 0.").wait_for()
    assert opened.rows()[0] == "number 0."
    page.get_by_role("link", name="Headroom").click()
    assert page.locator("#headroom").evaluate("e => e.getBoundingClientRect().top") < 200


@needs_chromium
def test_it_is_used_without_a_mouse(show: Open) -> None:
    page = show(many(3)).page
    page.get_by_label("Search").focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.finding > summary')"):
            break
    page.keyboard.press("Enter")
    assert page.locator(".finding[open]").count() == 1


@needs_chromium
def test_the_replay_command_is_copied(show: Open) -> None:
    document = red()
    opened = show(document, permissions=["clipboard-read", "clipboard-write"])
    opened.page.locator(".finding > summary").first.click()
    opened.page.get_by_role("button", name="Copy").first.click()
    opened.page.get_by_role("button", name="Copied").wait_for()
    copied = opened.page.evaluate("navigator.clipboard.readText()")
    assert copied == document["items"][0]["replay"]


@needs_chromium
def test_pictures_are_drawn_from_what_was_recorded(show: Open) -> None:
    document = red()
    (item,) = [i for i in document["items"] if "rotated lanes" in i["signature"]]
    item["maps"]["y"]["head"]["tile"] = 2
    page = show(document, link=f"#f-{item['id']}").page
    by_lane, by_head = page.locator(".finding[open] svg:has(.frame):has(.cell)").all()
    assert (by_lane.get_attribute("aria-label") or "").startswith(
        "y in head: where it is wrong, 9 tokens down, 12 lanes across; 3 sequences; rotated lanes 4"
    )
    assert "3 heads across" in (by_head.get_attribute("aria-label") or "")
    edges = {"sequence": (2, 2), "rotated": (1, 0), "half": (1, 0), "tile": (0, 1)}
    for kind, wanted in edges.items():
        found = [drawn.locator(f".edge.{kind}").count() for drawn in (by_lane, by_head)]
        assert (kind, *found) == (kind, *wanted)
    assert page.locator("[data-bar] .over").count() == 1  # the one output that is wrong in head


@needs_chromium
def test_the_picture_of_a_result_without_rows_has_no_tokens(show: Open) -> None:
    document = red()
    (item,) = [i for i in document["items"] if "rotated lanes" in i["signature"]]
    found = item["maps"]["y"]["head"]
    found |= {"shape": [1, *found["shape"][1:]], "sequences": []}
    found |= {name: found[name][-1:] for name in ("by_lane", "by_head")}
    page = show(document, link=f"#f-{item['id']}").page
    by_lane, by_head = page.locator(".finding[open] svg:has(.frame):has(.cell)").all()
    assert (by_lane.get_attribute("aria-label") or "").startswith(
        "y in head: where it is wrong, 12 lanes across; rotated lanes 4"
    )
    assert "where it is wrong, 3 heads across" in (by_head.get_attribute("aria-label") or "")


@needs_chromium
def test_ten_thousand_findings_are_drawn_a_few_at_a_time(show: Open) -> None:
    """Why it opens in less than two seconds: docs/reports.md has the time."""
    opened = show(many(10_000))
    elements = "document.querySelectorAll('*').length"
    assert opened.status() == "10,000 of 10,000 findings"
    assert len(opened.rows()) < 200
    assert opened.page.evaluate(elements) < 3_000
    before = len(opened.rows())
    opened.page.locator("#more").scroll_into_view_if_needed()
    opened.page.locator(".finding").nth(before).wait_for(state="attached")
    opened.page.get_by_label("Search").fill("number 9999.")
    assert opened.rows() == ["number 9999."]


@needs_chromium
def test_on_paper_every_finding_is_there(show: Open) -> None:
    opened = show(many(150), color_scheme="dark")
    assert opened.page.pdf().startswith(b"%PDF")
    assert len(opened.rows()) == 150
    opened.page.emulate_media(media="print")
    assert not opened.page.get_by_label("Search").is_visible()
    ink = opened.page.locator("#ops h2").evaluate("e => getComputedStyle(e).color")
    assert ink == "rgb(28, 33, 40)"  # dark, whatever the screen is like


@needs_chromium
def test_without_scripts_the_verdict_is_there(show: Open) -> None:
    page = show(red(), java_script_enabled=False).page
    assert page.locator("h1").inner_text() == "Regression"
    assert page.get_by_text("The findings need JavaScript").is_visible()


def forge(document: Document, text: str) -> Document:
    """``text`` wherever a test, a branch, an error, a path or a machine can put one."""
    forged = copy.deepcopy(document)
    for item in forged["items"]:
        for field in ("sentence", "signature", "minimal_summary", "op", "evidence", "replay"):
            item[field] += text
        item["maps"] = {tensor + text: found for tensor, found in item["maps"].items()}
        item["ulps"] = {tensor + text: found for tensor, found in item["ulps"].items()}
    for name in ("ops", "coverage"):
        forged[name] = {op + text: found for op, found in forged[name].items()}
    entry = dict.fromkeys(("op", "signature", "reason", "address", "expires"), text)
    forged["known_issues"] = [entry | {"state": "matched", "new": False}]
    survivor = dict.fromkeys(("id", "class", "file", "function", "original", "changed"), text)
    survivor |= {"line": 7, "reason": text}
    forged["power"] = {"sentence": text, "survivors": [survivor]}
    for arm in forged["arms"].values():
        arm |= {"ref": "main" + text, "root": "/srv" + text, "functions": {"k" + text: "0"}}
    for row in forged["headroom"]:
        row |= {"op": row["op"] + text, "tensor": row["tensor"] + text}
    forged["environment"]["platform"] += text
    return forged


@needs_chromium
def test_forged_names_run_nothing_and_change_no_element(show: Open) -> None:
    counted = []
    for text in ("x", "".join(FORGED)):
        page = show(forge(red(), text)).page
        rows = page.locator(".finding > summary").all()
        for row in rows:
            row.click()
        page.locator(".finding > .body").nth(len(rows) - 1).wait_for()
        counted.append(page.evaluate("[...document.querySelectorAll('*')].map(e => e.tagName)"))
    assert counted[0] == counted[1]


class Tags(HTMLParser):
    """Every tag with the names of its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}",))


RED = red()
HONEST = Tags(html.page(forge(RED, "x"))).found


@settings(max_examples=25)
@given(st.lists(st.one_of(st.sampled_from(FORGED), st.text(max_size=8)), min_size=1, max_size=4))
def test_a_forged_name_stays_text(parts: list[str]) -> None:
    page = html.page(forge(RED, "x" + "".join(parts)))
    assert Tags(page).found == HONEST
    assert all(c.isprintable() or c == "\n" for c in page)
