"""One HTML page with everything in it: opens from a file, needs no network."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

from ..verdict import Exit
from .document import Document
from .plain import spelled
from .terminal import TIERS, WITHOUT_SENTENCE, entry_state, revision

FOLDER = Path(__file__).parent / "page"
PICTURES = 200  # findings with pictures: the most urgent ones
DIGESTS = {"arm", "commit", "harness", "packages"}
TONES = {Exit.OK: "good", Exit.REGRESSION: "bad"}


def page(document: Document) -> str:
    """The whole page; AttributeError where the document lacks what a report has.

    Jinja escapes what stands in the markup; the findings are JSON that a script puts into text
    nodes.  The policy of the page allows its own script and style only, should either ever fail.
    """
    import jinja2
    from markupsafe import Markup

    report = spelled(document)
    for row in report["cost"]:
        row["alike"] = row["base"] == row["head"]
    style = _asset("page.css")
    script = _asset("draw.js") + _asset("page.js")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    try:
        return environment.get_template("page.html").render(
            report=report,
            tone=TONES.get(report["exit_code"], "doubt"),
            tier=TIERS.get(report["environment"].get("tier"), "unknown"),
            items=list(_items(report)),
            share=_share,
            shown=_range,
            revision=revision,
            state=entry_state,
            environments=list(_environments(report["arms"])),
            functions=list(_functions(report["arms"])),
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
            "base-uri 'none'; form-action 'none'",
        )
    except jinja2.UndefinedError as error:
        raise AttributeError(str(error)) from error


def _asset(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _items(report: Document) -> Iterator[Document]:
    """The findings for the script; pictures make a page large, so only the first have them."""
    items = [item for item in report["items"] if item["verdict"] not in WITHOUT_SENTENCE]
    for index, item in enumerate(items):
        tone = TONES.get(item["exit_code"], "doubt")
        pictures = {} if index < PICTURES else {"maps": None, "ulps": None}
        yield item | {"tone": tone} | pictures


def _share(share: float | str) -> str:
    """Cut, not rounded: what keeps its bound must not read as 1."""
    if isinstance(share, str):
        return share
    return f"{math.floor(share * 1000) / 1000:.3f}" if share < 1 else f"{share:.3g}"


def _range(figures: list[float] | None) -> str:
    if figures is None:
        return "NOT_RUN"
    return " to ".join(
        f"{figure:,}" if isinstance(figure, int) else f"{figure:.4g}"
        for figure in dict.fromkeys(figures)
    )


def _environments(arms: Document) -> Iterator[tuple[str, str, str]]:
    """Everything that can change what an arm gives: name, base, head; digests are cut short."""
    base, head = (arms[name] | arms[name].get("fingerprint", {}) for name in ("base", "head"))
    names = dict.fromkeys([*base.get("fingerprint", {}), *head.get("fingerprint", {})])
    for name in ("commit", "root", *names):
        digest = slice(12 if name in DIGESTS else None)
        yield name, str(base.get(name, ""))[digest], str(head.get(name, ""))[digest]


def _functions(arms: Document) -> Iterator[tuple[str, bool]]:
    """Every Triton function of either arm, and whether its source differs."""
    base, head = (arms[name].get("functions", {}) for name in ("base", "head"))
    for name in sorted({*base, *head}):
        yield name, base.get(name) != head.get(name)
