"""Open reports in Chromium: pictures for the docs, and how long 10,000 findings take.

`python -m suites.meta.golden.browse`
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from parity.doctor import BROWSERS
from parity.reports import html
from parity.reports.document import document_of
from parity.runs import Run

HERE = Path(__file__).parent
PICTURES = HERE.parents[2] / "docs" / "pictures"
COUNT = 10_000


def main() -> None:
    """Write the pictures and print the milliseconds."""
    chromium = next(filter(None, map(shutil.which, BROWSERS)))
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, chromium_sandbox=False)
        red = document_of(Run(HERE / "red" / "run"))
        (rotate,) = (item for item in red["items"] if "rotated lanes" in item["signature"])
        picture(browser, "red", f"#f-{rotate['id']}", "light")
        picture(browser, "green", "", "dark")
        file = Path(folder) / "many.html"
        file.write_text(html.page(many(red)))
        times = sorted(opened(browser, file) for _ in range(5))
        size = file.stat().st_size / 2**20
        print(f"{COUNT} findings, {size:.1f} MiB: {times[2]:.0f} ms, median of 5")  # noqa: T201


def picture(browser: Browser, state: str, link: str, scheme: Any) -> None:
    """What somebody sees who opens the page, with some of what is below."""
    viewport: Any = {"width": 1180, "height": 940}
    page = browser.new_page(viewport=viewport, color_scheme=scheme)
    page.goto((HERE / state / "report.html").as_uri() + link)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=PICTURES / f"report-{state}.png")
    page.close()


def opened(browser: Browser, file: Path) -> float:
    """Milliseconds from the start of navigation until the list stands and the page is loaded."""
    page = browser.new_page()
    page.goto(file.as_uri(), wait_until="load")
    page.locator(".finding").first.wait_for()
    taken: float = page.evaluate("performance.now()")
    page.close()
    return taken


def many(red: dict[str, Any]) -> dict[str, Any]:
    """The red report with 10,000 findings."""
    found = [item for item in red["items"] if item["verdict"] != "IDENTICAL"]
    items = [
        found[n % len(found)] | {"id": f"{n:010x}", "op": f"op_{n % 23}"} for n in range(COUNT)
    ]
    return red | {"items": items}


if __name__ == "__main__":
    main()
