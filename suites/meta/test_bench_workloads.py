"""What `parity bench` times is the op itself, beside a copy of as many bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from parity import cli
from parity.bench import interpreters
from parity.bench.command import Row, _line
from parity.bench.interpreters import _in_a_process
from parity.bench.timing import L2_BYTES, copies_needed
from parity.bench.workloads import (
    OURS,
    WORKLOADS,
    Workload,
    backward,
    buffers,
    copy,
    forward,
    judged,
    rotated,
)
from parity.verdict import Exit

CPU = torch.device("cpu")
SMALL = [
    Workload(op, 8, 2, 16, 8, sequences=sequences, value=16 * (op == "kv_split"))
    for op in ("concat", "inplace", "out_of_place", "kv_split")
    for sequences in (0, 2)
]


def results(call: object) -> tuple[torch.Tensor, ...]:
    found = call()  # type: ignore[operator]
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("work", SMALL, ids=lambda work: work.name)
def test_a_timed_call_is_a_call_of_the_op(work: Workload) -> None:
    held = buffers(work, CPU)
    before = [tensor.clone() for tensor in held.data]
    outputs = results(forward(work, OURS, held))
    assert tuple(outputs[0].shape[-2:]) == (work.heads, work.nope + work.rope)
    assert all(output.isfinite().all() for output in outputs)
    changed = [not torch.equal(*pair) for pair in zip(held.data, before, strict=True)]
    assert changed == [work.op == "inplace"] + [False] * (len(before) - 1)
    gradients = results(backward(work, OURS, buffers(work, CPU)))
    assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in before]


@pytest.mark.parametrize("sequences", [2, 4])
def test_a_pack_starts_each_sequence_at_the_first_row_of_the_tables(sequences: int) -> None:
    work = Workload("concat", 8, 2, 16, 8, sequences=sequences)
    held = buffers(work, CPU)
    length = work.tokens // sequences
    (packed,) = results(forward(work, OURS, held))
    alone = Workload("concat", length, 2, 16, 8)
    for start in range(0, work.tokens, length):
        rows = tuple(tensor[start : start + length].unsqueeze(1) for tensor in held.data)
        tables = tuple(table[:length] for table in held.tables)
        (one,) = results(forward(alone, OURS, type(held)(rows, tables, None)))
        assert torch.equal(packed[start : start + length], one[:, 0])


@pytest.mark.parametrize("work", SMALL[::2], ids=lambda work: work.name)
def test_the_copy_moves_the_bytes_that_the_op_must_move(work: Workload) -> None:
    held = buffers(work, CPU)
    moved = sum(x.numel() for x in (*held.data, *results(forward(work, OURS, held))))
    (copied,) = results(copy(work, is_backward=True, device=CPU))
    assert 2 * copied.numel() == moved
    (copied,) = results(copy(work, is_backward=False, device=CPU))
    if work.op == "inplace":
        assert copied.shape == (work.tokens, work.heads, work.rope)
        assert copied.stride() == (work.heads * 24, 24, 1)
    else:
        assert 2 * copied.numel() == moved


def test_buffers_are_rotated_past_the_cache() -> None:
    assert [copies_needed(size) for size in (0, 4 * L2_BYTES, 4 * L2_BYTES - 1)] == [16, 2, 2]
    assert copies_needed(L2_BYTES) == 4
    assert copies_needed(L2_BYTES - 1) == 5
    assert len(rotated(SMALL[0], CPU)) == 16
    first, second, *_ = rotated(SMALL[0], CPU)
    assert first.data[0].data_ptr() != second.data[0].data_ptr()


def test_names_and_targets() -> None:
    assert SMALL[1].name == "concat 8x2x(16+8) THD 2"
    assert SMALL[6].name == "kv_split 8x2x(16+8, v 16) SBHD"
    assert list(judged(WORKLOADS[0])) == [(False, 1.06), (True, 1.06)]
    assert list(judged(replace(SMALL[0], target_forward=1.1))) == [(False, 1.1), (True, 1.06)]


ROW = Row("concat", "forward", 10.0, 8.0, 1.25, "copy", 1.25, 1.3, True, None, 1, 3 * 2**20)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "ratio 1.250 (met: 1.3), 1 device events, peak 3.0 MiB"),
        ({"target": 1.2, "met": False}, "ratio 1.250 (MISSED: 1.2), 1 device"),
        (
            {"beside": "SBHD", "beside_ratio": 1.02, "target": 1.05},
            "ratio 1.250, 1.020 of SBHD (met: 1.05), 1 device",
        ),
        ({"beside": "upstream", "beside_ratio": None, "met": None}, "ratio 1.250, 1 device"),
        (
            {"upstream_microseconds": 15.0},
            "1.250 (met: 1.3), upstream 15.0 us (1.50 times ours), 1 device",
        ),
    ],
)
def test_a_row_in_words(changes: dict[str, object], told: str) -> None:
    line = _line(Row(**(vars(ROW) | changes)))  # type: ignore[arg-type]
    assert line.startswith("concat forward: 10.0 us, copy 8.0 us, ratio")
    assert told in line


def test_an_interpreter_is_timed_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interpreters, "ENGINES", ("traced",))  # one of three, each takes seconds
    file = tmp_path / "speeds.json"
    assert cli.run(["bench", "--cpu-tier", "--json", str(file)]) == Exit.OK
    (speed,) = json.loads(file.read_text())["cpu_tier"]
    assert speed["engine"] == "traced"
    assert min(speed["cases_per_second"], speed["launch_seconds"]) > 0
    told = f"traced: {speed['cases_per_second']:.1f} cases a second, forward and backward at 12"
    assert capsys.readouterr().out.startswith(told)


def test_an_interpreter_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RuntimeError, match="Expected the stock interpreter to run but it ended"):
        _in_a_process("stock")
