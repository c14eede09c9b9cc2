"""The launches that are kept: the right one for every call, with the right arguments."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import parity
import parity.kernels
from parity.kernels import launch
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.runner import device

PATHS = f"""
import parity, parity.kernels
parity.__path__[:] = {list(parity.__path__)}
parity.kernels.__path__ = {list(parity.kernels.__path__)}
"""
# In a process that does not interpret Triton, with a driver that notes launches: no GPU is needed.
# Its current device is -1, which is torch's number for main memory.
PRELUDE = """
import importlib.util
import json
import sys
from functools import wraps
from itertools import count
from types import SimpleNamespace
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from parity.codegen.capture import Recorder, recording
from parity.kernels import launch
from parity.kernels.concat import fused_mla_rope_concat as concat
from parity.kernels.kv_split import fused_mla_rope_kv_split as split
from parity.kernels.out_of_place import fused_mla_rope_out_of_place as rotate

launched, loaded = [], count(1)
driver.set_active(SimpleNamespace(
    get_current_device=lambda: -1, get_current_stream=lambda device: 0,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    launcher_cls=lambda *_: lambda *arguments: launched.append(arguments),
    utils=SimpleNamespace(
        load_binary=lambda *_: (0, next(loaded), 32, 0, 1024),
        get_device_properties=lambda _: {"max_shared_mem": 232448}),
))

def tensor(*shape, dtype=torch.bfloat16, pitch=0, offset=0):
    rows = torch.zeros(4096, dtype=dtype)[offset:].unfold(0, shape[-1], shape[-1] + pitch)
    return rows[: torch.Size(shape[:-1]).numel()].unflatten(0, shape[:-1])

def table(length=8, dtype=torch.float32, **layout):
    return tensor(length, 16, dtype=dtype, **layout)
"""
KEYS = """
def called(op, *tensors, **flags):
    recorder = Recorder()
    with recording(recorder):
        op(*tensors, **flags)
    (item,) = recorder.launches
    numbers = [value for value in item.arguments.values() if isinstance(value, int)]
    source = item.source
    contracted.add(item.options["enable_fp_fusion"])
    found.append(repr((
        item.kernel, item.grid, numbers, source.signature, source.constants, source.attrs,
        item.options)))

def noting(self, *tensors):
    noted.append((self, [t is None or t.data_ptr() % 16 == 0 for t in tensors]))
    stock(self, *tensors)

found, noted, contracted, stock = [], [], set(), launch.Launch.__call__
launch.Launch.__call__ = noting
usual, cos = tensor(4, 1, 2, 32), table()
for t, table_of_cos, flags in (
    (usual, cos, {}), (tensor(4, 1, 2, 32), table(), {}), (usual[:3], cos, {}),
    (usual, cos, {"inverse": True}), (usual, cos, {"tile": 4}), (usual, cos, {"rope_first": True}),
    (tensor(4, 1, 2, 32, dtype=torch.float16), cos, {}), (tensor(4, 2, 2, 32), cos, {}),
    (tensor(4, 1, 2, 32, pitch=3), cos, {}), (tensor(4, 1, 2, 32, offset=1), cos, {}),
    (usual, table(offset=1), {}), (usual, table(pitch=1), {}), (usual, table(9)[1:], {}),
):
    called(rotate, t, table_of_cos, cos, 16, 16, **flags)
    if table_of_cos is cos and "rope_first" not in flags:
        called(concat, t[..., :16], t[..., 16:], cos, cos, **flags)
launch.Launch.__call__ = stock
keys = {id(kept): key for key, kept in launch.launches.items()}
parts = [(keys[id(kept)], aligned) for kept, aligned in noted]

def ambiguous(part):
    of = {}
    for each, what in zip(parts, found, strict=True):
        of.setdefault(repr(part(*each)), set()).add(what)
    return sum(len(several) > 1 for several in of.values())

def without(index):
    def part(key, aligned):
        layouts = [k for k in key if isinstance(k, tuple) and isinstance(k[0], torch.Size)]
        others = [k for k in key if k not in layouts]
        return others, [layout[:index] + layout[index + 1 :] for layout in layouts], aligned
    return part

ambiguities = {
    "whole": ambiguous(lambda key, aligned: (key, aligned)),
    "without alignment": ambiguous(lambda key, aligned: key),
    "without flags": ambiguous(
        lambda key, aligned: ([k for k in key if not hasattr(k, "_fields")], aligned)),
    **{f"without {name}": ambiguous(without(index))
       for index, name in enumerate(("shapes", "strides", "dtypes"))},
}
keeps = len(launch.launches) < len(found)
"""
LAUNCHES = """
wide, rope, cos, sin = tensor(40, 1, 2, 32), tensor(40, 1, 2, 16), table(40), table(40)
odd = table(40, offset=1)  # of the layout of cos, at no multiple of 16 bytes
names = {t.data_ptr(): name for name, t in globals().items() if isinstance(t, torch.Tensor)}
names[odd.data_ptr()] = "cos"
OPS = {
    "concat_kernel": lambda cos=cos: concat(wide, rope, cos, sin),
    "kv_split_kernel": lambda cos=cos: split(wide, rope[:, :, :1], cos, sin, 16, 16, 16),
    "rotate_kernel": lambda cos=cos: rotate(wide, cos, sin, 16, 16),
}

def shown(value):
    address = value.data_ptr() if isinstance(value, torch.Tensor) else value
    return address and names.get(address, "new")

def counting(self, *tensors):
    given[:] = [len(tensors)]
    return launching(self, *tensors)

def told(call, *tables):
    \"\"\"The last launch of a call, tensors by name, and whether it went through Triton.\"\"\"
    through.clear()
    call(*tables)
    grid, options, values = launched[-1][:3], launched[-1][5], launched[-1][9:]
    (count,) = given
    tensors, numbers = values[:count], values[count:]
    return repr((
        grid, options,
        [shown(value) or 0 for value in tensors], [int(value or 0) for value in numbers],
    )), bool(through)

def noting(self, *tensors):
    through.append(self)
    return stock(self, *tensors)

through, stock, run = [], launch.Launch._through_triton, launch.jit.JITFunction.run

@wraps(run)  # which makes it pass for Triton's own by name, module and documentation
def replaced(self, *args, **kwargs):
    return run(self, *args, **kwargs)

given, launching = [], launch.Launch.__call__
launch.Launch._through_triton, launch.Launch.__call__ = noting, counting
launch.launches.clear()
ways = {}
for op, call in OPS.items():
    launch.jit.JITFunction.run = replaced
    way = ways[op] = {"replaced from the first": told(call)}
    launch.jit.JITFunction.run = run
    way |= {"odd": told(call, odd), "first": told(call), "second": told(call)}
    way["odd again"] = told(call, odd)
    (kernel,) = {kept.kernel for kept in launch.launches.values() if kept.kernel.__name__ == op}
    launch.jit.JITFunction.run = replaced
    way["replaced"] = told(call)
    launch.jit.JITFunction.run = run
    for name in ("launch_enter_hook", "launch_exit_hook"):
        getattr(launch.knobs.runtime, name).add(replaced)
        way[name] = told(call)
        getattr(launch.knobs.runtime, name).remove(replaced)
    kernel.pre_run_hooks.append(lambda *args, **kwargs: None)
    way["pre_run_hook"] = told(call)
    kernel.pre_run_hooks.clear()
    driver.active.get_current_device = lambda: 0
    way["other device"] = told(call)
    driver.active.get_current_device = lambda: -1
    way["last"] = told(call)

file = sys.modules[concat.__module__].__file__
where = importlib.util.spec_from_file_location("parity.kernels.other", file)
other = importlib.util.module_from_spec(where)
where.loader.exec_module(other)
functions = []
for op in (concat, other.fused_mla_rope_concat) * 2:
    op(wide, rope, cos, sin)
    functions.append(launched[-1][4])
for dtype in (torch.int32, torch.int64):  # must compile: the search runs interpreted elsewhere
    rotate(wide[:, 0], cos, sin, 16, 16, torch.tensor([0, 16, 40], dtype=dtype))
print(json.dumps([ambiguities, keeps, ways, functions, list(contracted)]))
"""


@pytest.fixture(scope="module")
def told() -> list[Any]:
    """What the process says about keys and about launches."""
    path = os.pathsep.join([str(Path(parity.__file__).parent.parent), *filter(None, sys.path)])
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PATHS + PRELUDE + KEYS + LAUNCHES]
    ended = subprocess.run(
        command, env=environment | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    found: list[Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_equal_keys_mean_equal_launches(told: list[Any]) -> None:
    """Each part of the key is needed: without it one key stands for launches that differ."""
    ambiguities, keeps, *_ = told
    assert keeps
    assert ambiguities.pop("whole") == 0
    assert all(ambiguities.values()), ambiguities


def test_a_kept_kernel_gets_what_triton_would_give_it(told: list[Any]) -> None:
    """And whoever watches or replaces Triton's launch path is not passed by."""
    ways = told[2]
    assert list(ways) == ["concat_kernel", "kv_split_kernel", "rotate_kernel"]
    for way in ways.values():
        assert len({launch for launch, _ in way.values()}) == 1, way
        assert [name for name, (_, through_triton) in way.items() if not through_triton] == [
            "second", "last"
        ]  # fmt: skip


def test_no_kernel_is_contracted(told: list[Any]) -> None:
    """The bits of a fused multiply-add differ by tile and by architecture."""
    assert told[4] == [False]


def test_two_kernels_of_one_name_are_kept_apart(told: list[Any]) -> None:
    """As two revisions have them, in one process, with equal tensors and flags."""
    first, second, *again = told[3]
    assert first != second
    assert again == [first, second]


@pytest.mark.parametrize(
    "flags",
    [{"cp_size": 2, "cp_rank": 1}, {"cp_size": 2, "cp_rank": 0, "tile": 1}],
    ids=["a rank of 1", "a tile of 1"],
)
@pytest.mark.parametrize("kind", [float, bool])
def test_no_launch_is_kept_for_numbers_of_another_kind(
    flags: dict[str, int], kind: Callable[[int], object]
) -> None:
    """1.0 and True equal 1: their launch would be the one of all further calls, and it fails."""
    t, table = (torch.ones(size, device=device()) for size in ((4, 1, 2), (8, 2)))
    cu_seqlens = torch.tensor([0, 8], device=device())
    launch.launches.clear()
    odd: dict[str, Any] = {name: kind(n) if n == 1 else n for name, n in flags.items()}
    with pytest.raises(ValueError, match=r"but got .*(1\.0|True)"):
        fused_mla_rope_out_of_place(t, table, table, 0, 2, cu_seqlens, **odd)
    assert not launch.launches
    fused_mla_rope_out_of_place(t, table, table, 0, 2, cu_seqlens, **flags)


def test_a_tensor_without_memory_is_never_launched_on() -> None:
    """It would pass for one at address 0, which no check of a layout sees."""
    t, table = (torch.ones(size, device="meta") for size in ((4, 1, 1, 2), (4, 2)))
    with pytest.raises(TypeError, match="Expected tensors with memory"):
        fused_mla_rope_out_of_place(t, table, table, 0, 2)


def test_no_more_launches_are_kept_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs may differ at every step of a training, and what is kept must not grow with them."""
    monkeypatch.setattr(launch, "KEPT", 2)
    launch.launches.clear()
    table = torch.ones(9, 2, device=device())
    for length in (1, 2, 3, 4, 5, 5):
        fused_mla_rope_out_of_place(
            torch.ones(length, 1, 1, 2, device=device()), table, table, 0, 2
        )
        assert 0 < len(launch.launches) <= 2
