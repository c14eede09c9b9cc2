"""Parity: does a fused kernel compute what its plain PyTorch reference computes?

The folders ``kernels/``, ``reference/`` and ``reports/`` beside this package are imported as
``parity.kernels``, ``parity.reference`` and ``parity.reports``, never by their bare names: a
top-level ``kernels`` would collide with the package of that name from Hugging Face.  A wheel maps
the folders when it is built; a checkout needs the two lines below.
"""

from pathlib import Path

from .case import Case
from .record import load
from .spec import Input, OpSpec, Output, Unsupported

_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "kernels").is_dir() and (_CHECKOUT / "pyproject.toml").is_file():
    __path__.append(str(_CHECKOUT))

__version__ = "0.1.0"
__all__ = ["Case", "Input", "OpSpec", "Output", "Unsupported", "load"]
