"""Generated code: every planted regression is caught, every honest twin passes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from pebble import ProcessExpired

from parity import cli
from parity.arms import Arm
from parity.catalog import resolve
from parity.codegen import asking
from parity.codegen.cases import Call, calls
from parity.codegen.command import _exit_code, compile_arms
from parity.codegen.compare import Change, Pair, compare, exit_code, generated_code_identical
from parity.codegen.occupancy import ARCHS, resident_warps
from parity.codegen.ptx import count, normalise
from parity.codegen.row import FIGURES, row_of
from parity.codegen.worker import Compiler
from parity.spec import OpSpec
from parity.verdict import Exit

# --- PTX -----------------------------------------------------------------------------------------

PTX = """
.version 8.7
.target sm_90a
	// .globl	copy_kernel   // -- Begin function
.visible .entry copy_kernel(
	.param .u64 .ptr .global .align 1 copy_kernel_param_0,
	.param .u32 copy_kernel_param_1
)
.reqntid 128
{
	.reg .pred 	%p<2>;
	.loc	1 28 0                          // copy.py:28:0
$L__func_begin0:
	ld.param.b64 	%rd1, [copy_kernel_param_0];
$L__tmp0:
	.loc	1 30 4                          // copy.py:30:4
	// begin inline asm
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	// end inline asm
	@%p1 ld.global.L1::evict_last.b16 { %rs1 }, [ %rd2 + 0 ];
	cp.async.cg.shared.global [ %r9 + 0 ], [ %rd1 + 0 ], 0x10, %r8;
	fma.rn.f32 	%f3, %f1, %f2, %f3;
	{ .reg .b32 tmp; mul.f32 %f4, %f1, %f2; }
	bar.sync 	0;
	bar.warp.sync 	-1;
$L__BB0_1:
	@%p1 st.global.v2.b64 [ %rd3 + 0 ], { %rd4, %rd5 };
	@%p1 bra 	$L__BB0_1;
	ret;
$L__tmp1:
$L__func_end0:
}
	.file	1 "/somewhere/copy.py"
	.section	.debug_abbrev
	{
.b8 1                                   // Abbreviation Code
	}
	.section	.debug_macinfo	{	}
"""


def test_instructions_are_counted_by_width_and_kind() -> None:
    found = count(PTX)
    assert found.loads == {128: 2, 16: 1}
    assert found.stores == {128: 1}
    assert (found.barriers, found.fma) == (1, 1)
    assert found.mix["mul.f32"] == 1
    assert found.mix["ret"] == 1


def test_counting_does_not_depend_on_normalising() -> None:
    assert count(normalise(PTX)) == count(PTX)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("copy_kernel", "copy_rows_kernel"),
        ("copy.py:28:0", "moved.py:99:1"),
        (".loc	1 28 0", ".loc	2 31 7"),
        ("/somewhere/", "/elsewhere/"),
        (".b8 1  ", ".b8 7  "),
        ("$L__tmp0:\n", ""),
    ],
)
def test_names_and_places_do_not_make_code_another(old: str, new: str) -> None:
    assert old in PTX
    assert normalise(PTX.replace(old, new)) == normalise(PTX)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0x10", "0x08"),
        ("fma.rn.f32", "mul.f32"),
        ("bar.sync", "bar.warp.sync"),
        (".reqntid 128", ".reqntid 256"),
        ("[ %rd3 + 0 ]", "[ %rd3 + 16 ]"),
        ("sm_90a", "sm_90"),
        ("\tret;\n", ""),
    ],
)
def test_every_instruction_counts(old: str, new: str) -> None:
    assert old in PTX
    assert normalise(PTX.replace(old, new)) != normalise(PTX)


# --- Occupancy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "resident"),
    [
        (32, 0, 4, 64),
        (33, 0, 4, 48),  # 40 registers a thread, 12 warps on each of four partitions
        (255, 0, 4, 8),
        (32, 0, 1, 32),  # no more than 32 blocks
        (32, 100 * 1024, 4, 8),  # two blocks share 228 KiB, 1 KiB of each is the system's
        (32, 228 * 1024, 4, 0),
    ],
)
def test_resident_warps(registers: int, shared: int, warps: int, resident: int) -> None:
    assert resident_warps(registers, shared, warps) == resident


# --- Representative calls ------------------------------------------------------------------------


def test_calls_hold_every_layout_tile_dtype_and_flag() -> None:
    spec = resolve("parity")["fused_mla_rope_inplace"]
    found = calls(spec)
    assert len({call.case.id for call in found}) == len(found)
    assert {(call.case.layout, call.tile) for call in found} == {
        (layout, f"tile={'default' if tile is None else tile}")
        for layout in spec.layouts
        for tile in spec.tiles["tile"]
    }
    assert {call.case.dtype for call in found} == set(spec.dtypes)
    for flag, values in spec.flags.items():
        assert {call.case.flags[flag] for call in found} == set(values)
    assert found[0].specialisation == "sbhd bfloat16"


# --- Comparing rows ------------------------------------------------------------------------------

SPEC = resolve("parity")["fused_mla_rope_inplace"]
CALL = calls(SPEC)[0]


def launch(number: int = 0, **own: Any) -> dict[str, Any]:
    """A launch whose every figure is at ease."""
    figures: dict[str, Any] = dict.fromkeys(FIGURES, 0) | {
        "registers": 32,
        "warps": 4,
        "resident_warps": 64,
        "load_widths": {"128": 4},
        "store_widths": {"128": 2},
        "instructions": {},
        "code": "one",
    }
    known = {"launch": number, "kernel": "copy_kernel", "grid": [16], "host": "same"}
    return row_of(SPEC, CALL, "sm_90", **figures | known | own)


def judge(base: dict[str, Any], head: dict[str, Any]) -> Pair:
    (pair,) = compare([base], [head])
    return pair


CHANGED = {"code": "another"}
REGRESSIONS = {
    "new spills": {"spills": 8},
    "added barrier": {"barriers": 1},
    "over an occupancy step: registers": {"registers": 40, "resident_warps": 48},
    "over an occupancy step: shared_bytes": {"shared_bytes": 49152, "resident_warps": 16},
    "lost vector width: load": {"load_widths": {"128": 3, "16": 8}},
    "lost vector width: store": {"store_widths": {"64": 4}},
    "lost vector width: load_widths 4x128 -> 4x64": {"load_widths": {"64": 4}, "warps": 8},
    "no longer compiles": {"error": "CompilationError: no", "code": None},
}
TWINS: dict[str, dict[str, Any]] = {
    "more registers on the same step": {"registers": 31},
    "a scalar more": {"load_widths": {"128": 4, "32": 1}},
    "fewer loads": {"load_widths": {"128": 2}},
    "wider": {"load_widths": {"256": 2}},
    "twice the warps, each thread half": {"load_widths": {"128": 2}, "warps": 8},
    "a smaller block by choice": {"warps": 1, "resident_warps": 32, "grid": [64]},
    "no barrier": {"barriers": 0},
}


@pytest.mark.parametrize("reason", REGRESSIONS)
def test_a_regression_is_told_with_its_reason(reason: str) -> None:
    pair = judge(launch(), launch(**CHANGED | REGRESSIONS[reason]))
    assert pair.verdict is Change.REGRESSION
    assert pair.reasons[0].startswith(reason)
    assert exit_code([pair]) == Exit.REGRESSION


@pytest.mark.parametrize("reason", [name for name in REGRESSIONS if "compiles" not in name])
def test_its_reverse_is_none(reason: str) -> None:
    pair = judge(launch(**CHANGED | REGRESSIONS[reason]), launch())
    assert pair.verdict is Change.CHANGED


@pytest.mark.parametrize("twin", TWINS)
def test_an_honest_change_is_no_regression(twin: str) -> None:
    pair = judge(launch(), launch(**CHANGED | TWINS[twin]))
    assert (pair.verdict, pair.reasons) == (Change.CHANGED, ())
    assert exit_code([pair]) == Exit.OK


def test_what_fails_in_both_arms_is_no_regression_and_no_proof() -> None:
    broken = launch(error="CompilationError: no", code=None)
    assert judge(broken, broken).verdict is Change.PRE_EXISTING
    assert judge(broken, launch()).verdict is Change.FIXED
    assert not generated_code_identical([broken], [broken])


def test_an_added_launch_is_a_regression_unless_base_got_no_further() -> None:
    stopped = row_of(SPEC, CALL, "sm_90", error="backward raises AssertionError")
    two = [launch(0), launch(1, kernel="more_kernel")]
    assert [pair.verdict for pair in compare([launch()], two)] == [
        Change.IDENTICAL,
        Change.REGRESSION,
    ]
    assert {pair.verdict for pair in compare([launch(), stopped], two)} == {
        Change.IDENTICAL,
        Change.NEW,
        Change.FIXED,
    }
    assert [pair.verdict for pair in compare(two, [launch()])] == [
        Change.IDENTICAL,
        Change.CHANGED,
    ]


def test_a_renamed_kernel_is_compared_and_a_lost_call_is_a_regression() -> None:
    renamed = launch(kernel="moved_kernel")
    assert judge(launch(), renamed).verdict is Change.IDENTICAL
    assert [pair.verdict for pair in compare([launch()], [])] == [Change.REGRESSION]
    assert [pair.verdict for pair in compare([], [launch()])] == [Change.NEW]
    assert exit_code(compare([], [launch()])) == Exit.NOTHING_COMPARED


def test_proof_takes_equal_code_launched_alike() -> None:
    same = [launch(0), launch(1)]
    assert generated_code_identical(same, [launch(0, kernel="renamed"), launch(1)])
    assert not generated_code_identical([], [])
    assert not generated_code_identical(same, same[:1])
    assert not generated_code_identical(same, [launch(0), launch(1, code="another")])
    assert not generated_code_identical(same, [launch(0), launch(1, host="other grid")])


# --- The whole way, on real kernels --------------------------------------------------------------

COMMON = """
import torch
import triton
import triton.language as tl

from parity import Input, OpSpec, Output, Unsupported


class Launch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kernel, block, grid, options):
        y = torch.empty_like(x)
        if block is not None:
            options = options | {"BLOCK": block}
        kernel[grid or (triton.cdiv(x.numel(), block),)](x, y, x.numel(), **options)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None, None, None


def call(x, kernel, block=1024, grid=None, **options):
    return Launch.apply(x, kernel, block, grid, options)


@triton.jit
def copy_kernel(X, Y, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + lane, tl.load(X + lane, mask=lane < n), mask=lane < n)


def tune(*blocks):
    configs = [triton.Config({"BLOCK": block}) for block in blocks]
    return triton.autotune(configs, key=["n"])(copy_kernel)


def tuned_call(x, kernel):
    return Launch.apply(x, kernel, None, (1,), {})


def op(name):
    return OpSpec(
        name=name,
        candidate=f"planted:{name}",
        reference=f"planted:{name}",
        inputs=(Input("x", "tokens width"),),
        outputs=(Output("y"),),
        axes={"width": (128,)},
        dtypes=("bfloat16",),
        gradients=("contiguous",),
    )
"""

BASE = """
def twin(x): return call(x, copy_kernel)
def scalar(x): return call(x, copy_kernel)
def width(x): return call(x, copy_kernel)
def barrier(x): return call(x, copy_kernel)
def spill(x): return call(x, copy_kernel, block=16384)
def step(x): return call(x, copy_kernel)
def broken(x): return call(x, copy_kernel)
def launches(x): return call(x, copy_kernel)
def grid(x): return call(x, copy_kernel)
def gone(x): return call(x, copy_kernel)
def tuned(x): return tuned_call(x, tune(256, 512))
def other(x): return [call(x, copy_kernel), call(x, copy_kernel)][0]
"""

HEAD = """
@triton.jit
def moved_kernel(X, Y, n, BLOCK: tl.constexpr):
    # The same under other names and in another place.
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)

    tl.store(Y + place, tl.load(X + place, mask=place < n), mask=place < n)


@triton.jit
def scaled_kernel(X, Y, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + lane, tl.load(X + lane, mask=lane < n) * tl.load(X + 5), mask=lane < n)


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


@triton.jit
def broken_kernel(X, Y, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 0, "a planted fault")


def twin(x): return call(x, moved_kernel)
def scalar(x): return call(x, scaled_kernel)
def width(x): return call(x, narrow_kernel)
def barrier(x): return call(x, barrier_kernel)
def spill(x): return call(x, copy_kernel, block=16384, maxnreg=32)
def step(x): return call(x, copy_kernel, block=8192)
def broken(x): return call(x, broken_kernel)
def launches(x): return call(call(x, copy_kernel), copy_kernel)
def grid(x): return call(x, copy_kernel, grid=(7,))
def gone(x): raise Unsupported("This revision has no such thing.")
def tuned(x): return tuned_call(x, tune(256, 512, 1024))
def other(x): return [call(x, copy_kernel), call(x, copy_kernel)][1]
"""
OPS = """
OPS = tuple(map(op, (
    "twin", "scalar", "width", "barrier", "spill", "step", "broken", "launches", "grid",
    "gone", "tuned", "other",
)))
"""


def arm(folder: Path, name: str, own: str) -> Arm:
    root = folder / name
    root.mkdir()
    (root / "planted.py").write_text(COMMON + own + OPS, encoding="utf-8")
    return Arm(name, "import_root", str(root))


def silent(done: int, total: int) -> None:
    """Show no progress."""


def test_planted_changes_of_real_kernels(tmp_path: Path) -> None:
    base, head = arm(tmp_path, "base", BASE), arm(tmp_path, "head", HEAD)
    rows, idle = compile_arms([base, head], "planted:OPS", ["sm_90"], tmp_path, silent)
    assert idle == {"base": 0, "head": 1}  # "gone"

    (copied,) = [row for row in rows["base"] if row["op"] == "twin"]
    assert copied["signature"] == {"X": "*bf16 16", "Y": "*bf16 16", "n": "i32 16"}
    assert (copied["load_bits"], copied["store_bits"], copied["spills"]) == (128, 128, 0)

    told: dict[str, list[tuple[str, str]]] = {}
    for pair in compare(rows["base"], rows["head"]):
        reason = pair.reasons[0].split(":")[0] if pair.reasons else ""
        told.setdefault(pair.row["op"], []).append((str(pair.verdict), reason))
    identical = ("GENERATED_CODE_IDENTICAL", "")
    assert told == {
        "twin": [identical],
        "scalar": [("CHANGED", "")],
        "width": [("REGRESSION", "lost vector width")],
        "barrier": [("REGRESSION", "added barrier")],
        "spill": [("REGRESSION", "new spills")],
        "step": [("REGRESSION", "over an occupancy step")],
        "broken": [("REGRESSION", "no longer compiles")],
        "launches": [identical, ("REGRESSION", "added launch")],
        "grid": [identical],
        "gone": [("REGRESSION", "head launches nothing for this call")],
        "tuned": [identical, identical, ("CHANGED", "")],  # one configuration more
        "other": [identical, identical],
    }

    def proved(op: str) -> bool:
        picked = ([row for row in rows[arm] if row["op"] == op] for arm in ("base", "head"))
        return generated_code_identical(*picked)

    assert proved("twin")
    # Not "grid" or "other" either, which returns another tensor: the code is not all.
    assert not any(map(proved, set(told) - {"twin"}))

    # What was compiled once is read back, by content.
    for entry in (tmp_path / "cache" / "codegen").glob("*.json"):
        known = json.loads(entry.read_text()) | {"registers": 99}
        entry.write_text(json.dumps(known))
    again, _ = compile_arms([head], "planted:OPS", ["sm_90"], tmp_path, silent)
    assert {row["registers"] for row in again["head"] if not row["error"]} == {99}


# --- The command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--arch", "sm_75"], Exit.USAGE, "Expected --arch among sm_90, sm_100, sm_103"),
        (["--arch", ","], Exit.USAGE, "Expected --arch among"),
        (["--base", "a", "--head-root", "b"], Exit.USAGE, "leave one kind out"),
        (["--head-root", "nowhere"], Exit.USAGE, "to import head from at nowhere"),
        (["--base-root", "."], Exit.USAGE, "together"),
        (["--base-root", ".", "--head-root", "."], Exit.NOTHING_COMPARED, "Nothing compared"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str],
    code: Exit,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["codegen", *arguments]) == code
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ProcessExpired("lost", -signal.SIGSEGV), "crashes with SIGSEGV"),
        (TimeoutError(), "takes over 300 s"),
    ],
)
def test_a_call_that_ends_its_compiler_is_a_row_that_does_not_compile(
    error: Exception, told: str
) -> None:
    spec = resolve("parity")["fused_mla_rope_concat"]
    call, *_ = calls(spec)
    ended: Future[list[dict[str, Any]]] = Future()
    ended.set_exception(error)
    compiler = Compiler(Arm("head", "import_root", "."), None)  # type: ignore[arg-type]
    (row,) = compiler.outcome(ended, spec, call, "sm_90")
    assert (row["error"], row["op"], row["arch"]) == (told, spec.name, "sm_90")
    assert _exit_code([row | {"error": ""}]) == Exit.OK
    assert _exit_code([row | {"error": ""}, row]) == Exit.REGRESSION
    assert _exit_code([]) == Exit.NOTHING_COMPARED


def test_a_compiling_process_that_is_lost_is_told_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "python"
    lost.write_text("#!/bin/sh\nread greeting\n")
    lost.chmod(0o755)
    asked = asking.Compiler()
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", str(lost))
        assert asked.ask({"module": "any"}) == {
            "error": "the compiling process was lost, or took too long"
        }
    found = asked.ask({"module": "no_such_module", "file": "none.py"})
    assert "error" in found
    assert "lost" not in found["error"]


# --- On a GPU ------------------------------------------------------------------------------------


def loaded_on_gpu(spec: OpSpec, call: Call) -> list[Any]:
    """The kernels that a real launch of a call loads, in order."""
    import torch
    from triton.runtime.jit import JITFunction

    from parity.inputs import build_inputs
    from parity.observe import observe

    loaded: list[Any] = []
    run = JITFunction.run

    def keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        loaded.append(run(self, *args, **kwargs))
        return loaded[-1]

    JITFunction.run = keep
    try:
        seen = observe(build_inputs(spec, call.case, torch.device("cuda")))
    finally:
        JITFunction.run = run
    assert seen.error is None
    return loaded


def blocks_on_gpu(kernel: Any) -> int:
    """What the driver says: blocks of a loaded kernel that fit on one multiprocessor."""
    blocks = ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(blocks),
        ctypes.c_void_p(kernel.function),
        ctypes.c_int(32 * kernel.metadata.num_warps),
        ctypes.c_size_t(kernel.metadata.shared),
    )
    assert status == 0
    return blocks.value


def local_architecture() -> str:
    """The architecture of this machine's GPU, or nothing where kernels are interpreted."""
    import torch

    if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
        return ""
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


@pytest.mark.parametrize("op", list(resolve("parity")))
def test_what_is_predicted_is_what_a_gpu_loads(op: str, tmp_path: Path) -> None:
    arch = local_architecture()
    if arch not in ARCHS:
        pytest.skip("NOT_RUN: needs a GPU of sm_90, sm_100 or sm_103")
    from parity.codegen.capture import capture
    from parity.codegen.measure import code_digest, measure

    spec = resolve("parity")[op]
    for call in calls(spec)[::5]:
        recorder, stopped = capture(spec, call, arch)
        assert not stopped
        for launch, kernel in zip(recorder.launches, loaded_on_gpu(spec, call), strict=True):
            figures = measure(launch, tmp_path)
            assert figures["code"] == code_digest(
                kernel.asm["ptx"], kernel.metadata.shared, launch.options
            )
            assert figures["registers"] == kernel.n_regs
            assert figures["local_bytes"] == 4 * kernel.n_spills
            assert figures["resident_warps"] == blocks_on_gpu(kernel) * figures["warps"]
