"""Autotuned kernels without a GPU: no honest one is accused, every configuration is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity import Input, OpSpec, Output
from parity.generate import plan
from parity.runner import run_case

TUNED = """
import triton
import triton.language as tl
import torch


def tuned(**options):
    configs = [triton.Config({"BLOCK": 32, "SHIFT": 0}), triton.Config({"BLOCK": 64, "SHIFT": 1})]
    return triton.autotune(configs, key=["count"], **options)


def kernel(x, y, count, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < count), at < count)


def wrong(x, y, count, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < count) * (1 + SHIFT), at < count)


def needs_gpu(configs, arguments, **options):
    triton.runtime.driver.active.get_current_device()
    return configs


KERNELS = {
    "honest": tuned()(triton.jit(kernel)),
    "one_wrong": tuned()(triton.jit(wrong)),
    "asks": tuned(prune_configs_by={"early_config_prune": needs_gpu})(triton.jit(kernel)),
}


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, name):
        y, count = torch.empty_like(x), x.numel()
        KERNELS[name][lambda chosen: (triton.cdiv(count, chosen["BLOCK"]),)](x, y, count)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone(), None


def honest(x): return Copy.apply(x, "honest")
def one_wrong(x): return Copy.apply(x, "one_wrong")
def asks(x): return Copy.apply(x, "asks")
def reference(x, compute_dtype=None, magnitude=False): return x.clone()
"""


def op(name: str) -> OpSpec:
    return OpSpec(
        name=name,
        candidate=f"tuned_by_time:{name}",
        reference="tuned_by_time:reference",
        inputs=(Input("x", "tokens width"),),
        outputs=(Output("y"),),
        axes={"width": (3, 40)},
        dtypes=("float32",),
        values=("normal",),
    )


@pytest.fixture(autouse=True)
def _tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tuned_by_time.py").write_text(TUNED)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "statuses"),
    [("honest", {"passed"}), ("one_wrong", {"passed", "failed"}), ("asks", {"unsupported"})],
)
def test_every_configuration_is_judged_and_none_is_timed(name: str, statuses: set[str]) -> None:
    spec = op(name)
    records = [run_case(spec, case) for case in plan(spec, 12, 0)]
    assert {record.status for record in records} == statuses
    again = [run_case(spec, case).status for case in plan(spec, 12, 0)]
    assert again == [record.status for record in records]
    if name == "asks":
        assert "asks Triton's driver for a GPU" in records[0].reason
