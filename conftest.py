"""Loads the harness into every pytest run of this repository."""

pytest_plugins = ["parity.pytest_plugin"]
