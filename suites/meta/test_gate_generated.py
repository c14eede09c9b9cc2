"""A gate without a GPU sees what a change does to the generated code, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parity import cli
from parity.gate import generated
from parity.verdict import Exit

KERNEL = """
import torch
import triton
import triton.language as tl


class Launch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kernel, options):
        y = torch.empty_like(x)
        block = options.get("BLOCK", 1024)
        kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), **{"BLOCK": block, **options})
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad.clone(), None, None


@triton.jit
def copy_kernel(X, Y, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + lane, tl.load(X + lane, mask=lane < n), mask=lane < n)


@triton.jit(do_not_specialize=["n"])
def narrow_kernel(X, Y, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + lane, tl.load(X + lane, mask=lane < n), mask=lane < n)


@triton.jit
def barrier_kernel(X, Y, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + lane, mask=lane < n)
    tl.debug_barrier()
    tl.store(Y + lane, x, mask=lane < n)


def call(x, kernel, **options):
    return Launch.apply(x, kernel, options)


class Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, turn, turned_back):
        ctx.turn = turn and turned_back
        return x.flip(-1) if turn else x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.flip(-1) if ctx.turn else grad.clone(), None, None


"""
BASE = """
def twin(x): return call(x, copy_kernel)
def width(x): return call(x, copy_kernel)
def barrier(x): return call(x, copy_kernel)
def spill(x): return call(x, copy_kernel, BLOCK=16384)
def launches(x): return call(x, copy_kernel)
def turned(x, turn=False): return Turn.apply(call(x, copy_kernel), turn, True)
"""
HEAD = """
def twin(x): return call(x, copy_kernel)  # the same in other words
def width(x): return call(x, narrow_kernel)
def barrier(x): return call(x, barrier_kernel)
def spill(x): return call(x, copy_kernel, BLOCK=16384, maxnreg=32)
def launches(x): return call(call(x, copy_kernel), copy_kernel)
def turned(x, turn=False): return Turn.apply(call(x, copy_kernel), turn, False)
"""
CONTRACTS = """
from parity import Input, OpSpec, Output

OPS = tuple(
    OpSpec(
        name=name,
        candidate=f"own_kernel:{name}",
        reference="own_reference:copy",
        inputs=(Input("x", "tokens width"),),
        outputs=(Output("y"),),
        axes={"width": (128,)},
        dtypes=("bfloat16",),
        values=("normal",),
        gradients=("contiguous",),
        flags={"turn": (False, True)} if name == "turned" else {},
    )
    for name in ("twin", "width", "barrier", "spill", "launches", "turned")
)
"""
REFERENCE = """
def copy(x, compute_dtype=None, magnitude=False, turn=False):
    return x.flip(-1) if turn else x.clone()
"""


def arm(folder: Path, own: str) -> Path:
    folder.mkdir()
    (folder / "own_kernel.py").write_text(KERNEL + own)
    (folder / "own_contracts.py").write_text(CONTRACTS)
    (folder / "own_reference.py").write_text(REFERENCE)
    return folder


def gate(base: Path, head: Path) -> tuple[int, dict[str, Any]]:
    roots = ["--base-root", str(base), "--head-root", str(head), "--ops", "own_contracts:OPS"]
    code = cli.run(["gate", *roots, "--cases-per-op", "1"])
    newest = max(Path(".parity/runs").iterdir(), key=lambda run: run.stat().st_mtime)
    return code, json.loads((newest / "result.json").read_text())


def test_planted_changes_and_their_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(generated, "ARCHS", {"sm_90": 90})
    code, result = gate(arm(tmp_path / "base", BASE), arm(tmp_path / "head", HEAD))
    assert code == Exit.REGRESSION
    assert "and in the generated code" in result["sentence"]
    found = {(item["op"], item["verdict"], item["family"]) for item in result["items"]}
    about_code = {item for item in found if item[2].startswith(("code", "cost"))}
    # "turned" loses a flip that its usual call does not make, so that equal code proves nothing.
    assert {verdict for op, verdict, _ in found if op == "turned"} == {"IDENTICAL", "REGRESSION"}
    urgent = [item["verdict"] == "REGRESSION" for item in result["items"]]
    assert urgent == sorted(urgent, reverse=True)
    assert about_code == {
        ("twin", "GENERATED_CODE_IDENTICAL", "code"),
        ("width", "REGRESSION", "code | narrow_kernel | lost vector width"),
        ("barrier", "REGRESSION", "code | barrier_kernel | added barrier"),
        ("spill", "REGRESSION", "code | copy_kernel | new spills"),
        ("launches", "REGRESSION", "code | copy_kernel | added launch"),
        ("launches", "REGRESSION", "cost | forward launches"),
        ("launches", "REGRESSION", "cost | forward allocated"),
        ("launches", "REGRESSION", "cost | backward allocated"),
    }
    told = capsys.readouterr().out
    assert "parity codegen --base-root" in told
    rows = json.loads(next(Path(".parity/runs").glob("*/codegen.json")).read_text())
    assert {row["op"] for row in rows["rows"]} == set(result["ops"])
