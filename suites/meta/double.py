"""The op y = 2 x: a contract for plans that nothing runs, and the files of a project with it."""

from parity.spec import Input, OpSpec, Output

SPEC = OpSpec(
    name="double",
    candidate="nowhere:double",
    reference="nowhere:double",
    inputs=(Input("x", "rows dim"),),
    outputs=(Output("y"),),
    axes={"dim": range(1, 9)},
)
RIGHT = "def double(x):\n    return x * 2\n"
OPS = """
from parity import Input, OpSpec, Output

OPS = (
    OpSpec(
        name="double",
        candidate="own_kernel:double",
        reference="own_reference:double",
        inputs=(Input("x", "rows dim"),),
        outputs=(Output("y"),),
        axes={"dim": range(1, 9)},
        dtypes=("float32",),
        values=("normal",),
        gradients=("contiguous",),
    ),
)
"""
FILES = {
    "pyproject.toml": '[tool.parity]\nops = "own_ops:OPS"\n',
    "own_ops.py": OPS,
    "own_reference.py": ("def double(x, compute_dtype=None, magnitude=False):\n    return x * 2\n"),
    "own_kernel.py": RIGHT,
}
