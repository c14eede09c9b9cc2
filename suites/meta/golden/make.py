"""Make the golden files again, after a report has changed: `python -m suites.meta.golden.make`.

With a folder, the runs are made anew first, by real gates there; its name is in their records:
`python -m suites.meta.golden.make /home/dev/attention`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from parity.record import write_json
from parity.reports.render import FORMATS, as_text
from parity.runs import Run

HERE = Path(__file__).parent
FILES = {
    "html": "report.html",
    "json": "report.json",
    "junit": "junit.xml",
    "markdown": "comment.md",
    "summary": "summary.md",
}
OPS = """
import os
from dataclasses import replace

import torch

from parity import Input, OpSpec, Output, Unsupported

SIGN = @SIGN@


def reference(x, cos, sin, compute_dtype=torch.float32, magnitude=False):
    nope, rope = x.to(compute_dtype).split([4, 8], dim=-1)
    cos, sin = (table[: len(x), None, None].to(compute_dtype) for table in (cos, sin))
    even, odd = rope[..., 0::2], rope[..., 1::2]
    minus = odd * sin[..., :4] * SIGN
    left = even * cos[..., :4] + (minus if magnitude else -minus)
    right = odd * cos[..., 4:] + even * sin[..., 4:]
    return torch.cat([nope, left, right], -1).to(x.dtype)


def right(x, cos, sin, BLOCK_H):
    return reference(x, cos, sin)


def partial_tile(x, cos, sin, BLOCK_H):
    y = reference(x, cos, sin)
    y.data[1:, :, x.shape[2] // BLOCK_H * BLOCK_H :, 4::2] += 0.25
    return y


def wide_rounding(x, cos, sin, BLOCK_H):
    return reference(x.double(), cos, sin, torch.float64).to(x.dtype)


def doubled_gradient(x, cos, sin, BLOCK_H):
    y = reference(x, cos, sin)
    y.register_hook(lambda gradient: 2 * gradient)
    return y


def unsupported(x, cos, sin, BLOCK_H):
    raise Unsupported("This revision has no such kernel.")


def aborts(x, cos, sin, BLOCK_H):
    os.abort()


def raises(x, cos, sin, BLOCK_H):
    raise RuntimeError("228 KiB | <b>shared</b> memory asked for by @somebody \\x1b[31mhere")


CONTRACT = OpSpec(
    name="op",
    candidate="ops:op",
    reference="ops:reference",
    inputs=(
        Input("x", "rows heads nope_dim+rope_dim"),
        Input("cos", "positions rope_dim", kind="cos"),
        Input("sin", "positions rope_dim", kind="sin"),
    ),
    outputs=(Output("y"),),
    axes={"heads": (3, 5), "nope_dim": (4,), "rope_dim": (8,)},
    layouts=("sbhd",),
    dtypes=("float32", "bfloat16"),
    table_dtypes=("float32",),
    halves=("different",),
    values=("normal",),
    gradients=("contiguous",),
    tiles={"BLOCK_H": (2, 4)},
)
FUNCTIONS = @FUNCTIONS@
OPS = tuple(replace(CONTRACT, name=name, candidate=f"ops:{name}") for name in FUNCTIONS)
globals().update({name: globals()[function] for name, function in FUNCTIONS.items()})
"""
# Of each op the function that base and head call.
FUNCTIONS = {
    "green": {"concat": ("right", "right"), "split": ("wide_rounding", "right")},
    "red": {
        "absorb": ("doubled_gradient", "right"),
        "concat": ("right", "right"),
        "gather": ("right", "unsupported"),
        "index": ("unsupported", "right"),
        "rotate": ("right", "partial_tile"),
        "scatter": ("raises", "raises"),
        "split": ("right", "aborts"),
    },
    "inconclusive": {"concat": ("right", "right")},
    "empty": {"gather": ("unsupported", "unsupported")},
}


def main(folder: str | None = None) -> None:
    """Render every state, after recording its run if there is a folder to do it in."""
    for state in FUNCTIONS:
        if folder is not None:
            record(state, Path(folder))
        for name in FORMATS:
            (HERE / state / FILES[name]).write_text(as_text(Run(HERE / state / "run"), name))


def record(state: str, folder: Path) -> None:
    """Run the gate on two folders of ops and keep what a report reads of it."""
    shutil.rmtree(folder, ignore_errors=True)
    for index, arm in enumerate(("base", "head")):
        functions = {name: pair[index] for name, pair in FUNCTIONS[state].items()}
        sign = -1 if (state, arm) == ("inconclusive", "head") else 1
        (folder / arm).mkdir(parents=True)
        text = OPS.replace("@FUNCTIONS@", repr(functions)).replace("@SIGN@", str(sign))
        (folder / arm / "ops.py").write_text(text)
    roots = ["--base-root", "base", "--head-root", "head", "--ops", "ops:OPS"]
    gate = [sys.executable, "-m", "parity", "gate", *roots, "--cases-per-op", "1"]
    subprocess.run(gate, cwd=folder, check=False)
    (made,) = (folder / ".parity" / "runs").iterdir()
    target = HERE / state / "run"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(made, target, ignore=shutil.ignore_patterns("*.log"))
    environment = json.loads((target / "environment.json").read_text())
    write_json(target / "environment.json", environment | {"platform": "Linux"})


if __name__ == "__main__":
    main(*sys.argv[1:])
