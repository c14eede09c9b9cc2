"""The comparison of two dumps on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..reports.plain import plain
from ..reports.terminal import console
from .verdict import kl, many, place

SHOWN = 10


def show(result: dict[str, Any]) -> None:
    """Print arms, first divergences, differences by place, worst tokens, and the verdict."""
    output = console()
    for name, arm in result["arms"].items():
        _line(output, _arm(name, arm))
    _divergences(output, result["rollouts"])
    if result["reward"]:
        _line(output, _reward(result["reward"]))
    for column, found in result["logprobs"].items():
        if found["tokens"]:
            _logprob(output, column, found)
    _line(output)
    for limit in result["limits"]:
        _line(output, _limit(limit))
    for reason in result["reasons"]:
        _line(output, reason, "red" if result["exit_code"] == 1 else "yellow")
    _line(output, result["markdown"], "bold")


def _arm(name: str, arm: dict[str, Any]) -> str:
    mismatch = arm["old_to_train"]
    apart = ""
    if mismatch["max"] is not None:
        apart = f"; old to train: KL {kl(mismatch['kl'])}, max |d| {mismatch['max']:.3g}"
    return (
        f"{name}: {arm['path']}, {many(arm['files'], 'file')}, {many(arm['rows'], 'token')} "
        f"({arm['masked']:,} masked) in {many(arm['samples'], 'sample')}{apart}"
    )


def _divergences(output: Console, rollouts: dict[str, Any]) -> None:
    if not rollouts["diverged_samples"]:
        return
    _line(output)
    _line(output, f"First divergence by sample, {rollouts['diverged_samples']:,} in all:")
    for row in rollouts["first_by_sample"][:SHOWN]:
        _line(output, f"  {place(row, str)}: {row['base_token']} -> {row['head_token']}")


def _reward(reward: dict[str, Any]) -> str:
    largest = "" if reward["max"] is None else f", max |d| {reward['max']:.3g}"
    return (
        f"reward: differs in {reward['differ']:,} of {many(reward['samples'], 'sample')} "
        f"with the same tokens{largest}"
    )


def _logprob(output: Console, column: str, found: dict[str, Any]) -> None:
    _line(output)
    _line(output, f"{column}: KL(base to head) {kl(found['kl'])}", "bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tokens at", no_wrap=True)
    for heading in ("tokens", "equal", "mean |d|", "median", "99 %", "99.9 %", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    _row(table, "all", found)
    for name, buckets in (("position", found["by_position"]), ("length", found["by_length"])):
        for bucket in buckets:
            _row(table, f"{name} {bucket['from']:,} to {bucket['to']:,}", bucket)
    output.print(table)
    for row in found["worst"]:
        if row["difference"]:
            _line(output, f"  {place(row, str)}: {row['base']:.9g} -> {row['head']:.9g}")


def _row(table: Table, title: str, spread: dict[str, Any]) -> None:
    share = f"{100 * spread['equal'] / spread['tokens']:.1f} %"
    numbers = (spread[name] for name in ("mean", "median", "p99", "p999", "max"))
    cells = (title, f"{spread['tokens']:,}", share, *(f"{number:.2g}" for number in numbers))
    table.add_row(*(Text(cell) for cell in cells))


def _limit(limit: dict[str, Any]) -> str:
    return (
        f"limit: |d {limit['column']}| above {limit['above']:g} at {limit['beyond']:,} of "
        f"{many(limit['compared'], 'token')}, at most {limit['share']:g} of them may"
    )


def _line(output: Console, text: str = "", style: str = "") -> None:
    output.print(Text(plain(text), style), soft_wrap=True)
