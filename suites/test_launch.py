"""The compiled kernels that are kept: the right one for every call, with the right arguments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import parity
import parity.kernels

# In a process that does not interpret Triton, with a driver that notes launches: no GPU is needed.
PRELUDE = f"""
import parity, parity.kernels
parity.__path__[:] = {list(parity.__path__)}
parity.kernels.__path__ = {list(parity.kernels.__path__)}
import json
from types import SimpleNamespace
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from parity.catalog import resolve
from parity.codegen.capture import capture
from parity.codegen.cases import calls
from parity.kernels import launch
"""
KEYS = """
keys, seen = [], []
stock = launch.compiled_for

def noting(name, arguments, warps):
    keys.append((name, warps, arguments, stock(name, arguments, warps)))
    return keys[-1][-1]

launch.compiled_for = noting
spec = resolve("parity")["fused_mla_rope_out_of_place"]
few = ("sbhd bfloat16", "inverse=True", "t:offset", "heads=8")
for call in [call for call in calls(spec) if call.specialisation.endswith(few)]:
    recorder, _ = capture(spec, call, "sm_90")
    for item in recorder.launches:
        source = item.source
        told = (source.signature, source.constants, source.attrs, item.options)
        seen.append(repr((item.kernel, told)))

def ambiguous(short):
    found = {}
    for key, kernel in zip([short(*key) for key in keys], seen, strict=True):
        found.setdefault(repr(key), set()).add(kernel)
    return sum(len(kernels) > 1 for kernels in found.values())

def kinds(arguments):
    return [t if t is None else t.dtype for t in arguments.tensors]

ambiguities = {
    "kept": ambiguous(lambda name, warps, a, key: key),
    "without fixed": ambiguous(lambda name, warps, a, key: [k for k in key if k != a.fixed]),
    "without alignment": ambiguous(
        lambda name, warps, a, key: (name, warps, a.fixed, a.constants, kinds(a))),
    "without constants": ambiguous(
        lambda name, warps, a, key: [k for k in key if not isinstance(k, (bool, int))]),
}
launch.compiled_for = stock
"""
LAUNCHES = """
launched = []
driver.set_active(SimpleNamespace(
    get_current_device=lambda: 0, get_current_stream=lambda device: 0,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    launcher_cls=lambda *_: lambda *arguments: launched.append(arguments),
    utils=SimpleNamespace(
        load_binary=lambda *_: (0, 1, 32, 0, 1024),
        get_device_properties=lambda _: {"max_shared_mem": 232448}),
))
from parity.kernels.concat import fused_mla_rope_concat as concat
from parity.kernels.kv_split import fused_mla_rope_kv_split as split
from parity.kernels.out_of_place import fused_mla_rope_out_of_place as rotate
wide, rope, table = torch.ones(4, 1, 2, 16), torch.ones(4, 1, 2, 8), torch.ones(4, 8)
OPS = {
    "concat_kernel": lambda: concat(wide, rope, table, table),
    "kv_split_kernel": lambda: split(wide, rope[:, :, :1], table, table, 8, 10, 6),
    "rotate_kernel": lambda: rotate(wide, table, table, 8, 8),
}

def shown(value):
    return list(value.shape) if isinstance(value, torch.Tensor) else value

def once(op, watched):
    stock = launch.JITFunction.run
    if watched:
        launch.JITFunction.run = lambda self, *args, **kwargs: (
            passed.append(self.__name__), stock(self, *args, **kwargs))[1]
    OPS[op]()
    launch.JITFunction.run = stock
    grid, values = launched[-1][:3], launched[-1][9:]
    return repr((grid, [shown(value) for value in values]))

passed = []
told = {op: {once(op, False), once(op, False), once(op, True)} for op in OPS}
launches = {
    "same": [op for op, each in told.items() if len(each) == 1],
    "kept": [key[0] for key in launch._compiled], "passed": passed,
}
print(json.dumps([ambiguities, launches]))
"""


@pytest.fixture(scope="module")
def found() -> list[dict[str, object]]:
    """What the process says about keys and about launches."""
    path = os.pathsep.join([str(Path(parity.__file__).parent.parent), *filter(None, sys.path)])
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PRELUDE + KEYS + LAUNCHES]
    ended = subprocess.run(
        command, env=environment | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    told: list[dict[str, object]] = json.loads(ended.stdout.splitlines()[-1])
    return told


def test_equal_keys_mean_equal_kernels(found: list[dict[str, object]]) -> None:
    """Each part of the key is needed: without it one key stands for kernels that differ."""
    ambiguities = found[0]
    assert ambiguities["kept"] == 0
    assert all(count for name, count in ambiguities.items() if name != "kept"), ambiguities


def test_a_kept_kernel_gets_what_triton_would_give_it(found: list[dict[str, object]]) -> None:
    """And whoever replaces Triton's launch path, to watch or change launches, is not passed by."""
    every = ["concat_kernel", "kv_split_kernel", "rotate_kernel"]
    assert found[1] == {"same": every, "kept": every, "passed": every}
