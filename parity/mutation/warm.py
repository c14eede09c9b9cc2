"""What every mutant's process needs, imported before it is forked; no code under test."""

from __future__ import annotations

import importlib

from ..interpreter import prepare

prepare()
# What the first case would import: torch.compiler.disable alone takes a second.
for name in ("torch._dynamo", "parity.runner", "parity.catalog", "parity.provenance"):
    importlib.import_module(name)
