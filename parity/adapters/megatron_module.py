"""Find Megatron-Core on ``sys.path``, open its guards, pin its tile, call its functions."""

from __future__ import annotations

import importlib
import inspect
import warnings
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..spec import Unsupported

if TYPE_CHECKING:
    from triton.runtime.autotuner import Autotuner

NAME = "megatron.core.fusions.fused_mla_yarn_rope_apply"


@cache
def fused_module() -> ModuleType:
    """The module with the kernels, from the first import root that holds Megatron-Core.

    Raises:
        ValueError: no import root holds it, the release is too old, or it cannot run here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optional packages that the fused functions do not need
        try:
            module = importlib.import_module(NAME)
        except ModuleNotFoundError as error:
            raise ValueError(_missing(error.name or "")) from error
    if not module.HAVE_TRITON:
        raise ValueError(
            f"Expected Megatron-Core at {module.__file__} to use Triton but it replaced Triton "
            "with a mock; install the triton of constraints.txt."
        )
    # Releases up to 0.15 refuse their fused functions unless experiments are switched on.
    config = importlib.import_module("megatron.core.config")
    if hasattr(config, "set_experimental_flag"):
        config.set_experimental_flag(True)
    return module


def _missing(name: str) -> str:
    if name == NAME:
        core = importlib.import_module("megatron.core")
        return (
            f"Expected fused MLA RoPE ({NAME}) in megatron-core {core.__version__} but this "
            "release has none; name a root that holds 0.13.0 or newer."
        )
    if NAME.startswith(name):
        return (
            f"Expected Megatron-Core on the import path but found no {name}; name a folder that "
            "holds `megatron/core`, a checkout or an unpacked wheel, as the arm's root."
        )
    return f"Expected every import of Megatron-Core to work but {name} is missing; install {name}."


def call(name: str, tile: int, required: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call one function with all its kernels at one tile.

    ``required`` goes by position, as Megatron's own callers pass it: one revision made the legacy
    names aliases of functions whose parameters have other names.

    Raises:
        Unsupported: this revision has no such function, parameter or tile.
    """
    module = fused_module()
    function = getattr(module, name, None)
    if function is None:
        raise Unsupported(f"This revision of Megatron-Core has no {name}.")
    known = inspect.signature(function).parameters
    for option, value in options.items():
        if option not in known and not _is_default(option, value):
            raise Unsupported(f"{name} of this revision has no parameter {option}.")
    for kernel, configs in _autotuned().items():
        _pin(kernel, configs, tile)
    return function(*required, **{key: options[key] for key in options if key in known})


def _is_default(option: str, value: Any) -> bool:
    """Whether a call that leaves the option out means the same."""
    if option == "cp_rank":
        return True  # without cp_size it means nothing
    return value == 1 if option == "cp_size" else value is None or value is False


@cache
def _autotuned() -> dict[Autotuner, tuple[Any, ...]]:
    """Every autotuned kernel, found by type because revisions rename them, with its configs."""
    from triton.runtime.autotuner import Autotuner

    values = vars(fused_module()).values()
    return {value: tuple(value.configs) for value in values if isinstance(value, Autotuner)}


def _pin(kernel: Autotuner, configs: tuple[Any, ...], tile: int) -> None:
    """Leave one config: the autotuner measures times, which takes a GPU and hides a wrong tile."""
    chosen = [config for config in configs if config.kwargs.get("BLOCK_H") == tile]
    if not chosen:
        raise Unsupported(f"A kernel of this revision has no config with BLOCK_H={tile}.")
    kernel.configs = chosen[:1]
    kernel.cache.clear()
