"""One machine with a GPU is both tiers: the same cases there and in the interpreter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from parity import cli
from parity.catalog import resolve
from parity.generate import plan
from parity.runner import device
from parity.verdict import Exit

pytestmark = pytest.mark.skipif(device().type != "cuda", reason="NOT_RUN: this needs a GPU")

OWN = """
import torch
import triton
import triton.language as tl

from parity import Input, OpSpec, Output


@triton.jit
def copy_kernel(X, Y, n, BLOCK: tl.constexpr, SLIP: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + lane, tl.load(X + lane, mask=lane < n + SLIP, other=0.0), mask=lane < n)


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        n = x.numel()
        copy_kernel[(triton.cdiv(n + SLIP, 256),)](x, y, n, BLOCK=256, SLIP=SLIP)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad.clone()


def candidate(x):
    return Copy.apply(x)


def reference(x, compute_dtype=None, magnitude=False):
    return x.clone()


OPS = (
    OpSpec(
        name="copy",
        candidate="own:candidate",
        reference="own:reference",
        inputs=(Input("x", "tokens width"),),
        outputs=(Output("y"),),
        axes={"width": (128,)},
        dtypes=("float32",),
        values=("normal",),
        gradients=("contiguous",),
    ),
)
"""


def test_our_kernels_have_the_same_bits_on_both_tiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [case for spec in resolve("parity").values() for case in plan(spec, 0, 0)[::40]]
    (tmp_path / "cases.jsonl").write_text("\n".join(case.to_json() for case in chosen))
    monkeypatch.chdir(tmp_path)
    root = str(Path(__file__).parents[2])  # where our kernels lie
    command = ["run", "--cases", "cases.jsonl", "--ops", "parity", "--root", root]
    assert cli.run([*command, "--device", "cpu", "--output", "cpu.jsonl"]) == Exit.OK
    capsys.readouterr()
    assert cli.run([*command, "--device", "cuda", "--against", "cpu.jsonl"]) == Exit.OK
    assert "IDENTICAL" in capsys.readouterr().out


@pytest.mark.skipif(
    shutil.which("compute-sanitizer") is None, reason="NOT_RUN: this needs compute-sanitizer"
)
@pytest.mark.parametrize(("slip", "code"), [(0, Exit.OK), (1 << 22, Exit.REGRESSION)])
def test_the_sanitizer_sees_a_read_far_outside_and_passes_its_twin(
    slip: int, code: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(f"SLIP = {slip}\n{OWN}")
    (tmp_path / "pyproject.toml").write_text('[tool.parity]\nops = "own:OPS"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    case = plan(resolve("own:OPS")["copy"], 0, 0)[0]
    (tmp_path / "case.json").write_text(case.to_json())
    assert cli.run(["run", "--cases", "case.json", "--sanitize"]) == code
