"""Options that would change nothing are refused, so that nobody believes they did."""

from __future__ import annotations

import click
from click.core import ParameterSource


def refuse_idle(where: str, *names: str) -> None:
    """Refuse parameters, by name, of the command that runs, which uses none of them ``where``.

    Raises:
        click.UsageError: one of them was given.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in names and context.get_parameter_source(name) != ParameterSource.DEFAULT:
            given = parameter.opts[0] if isinstance(parameter, click.Option) else name.upper()
            raise click.UsageError(
                f"Expected no {given} {where}, where it changes nothing, but got one; leave it out."
            )
