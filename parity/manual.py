"""The page docs/cli.md, from the commands themselves: ``python -m parity.manual > docs/cli.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from .cli import cli

HEAD = """# The command line

Made by `python -m parity.manual > docs/cli.md`. Exit codes: 0 no regression, 1 regression, 2
interrupted, 3 fault of Parity, 4 wrong usage, 5 nothing compared, 10 inconclusive; what else they
mean for a command stands there. Errors are one sentence on stderr. When nobody reads the output any
more, as behind `| head`, a command ends at its next line with 141, and what ran until then is kept.
"""


def page() -> str:
    """The whole page in Markdown."""
    sections = ["\n".join(section(path, command)) for path, command in commands("parity", cli)]
    return "\n\n".join([HEAD.rstrip(), *sections]) + "\n"


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Every command below one, by its words, without the groups themselves."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in sorted(command.commands):
        yield from commands(f"{path} {name}", command.commands[name])


def section(path: str, command: click.Command) -> Iterator[str]:
    """Usage, purpose and options of one command."""
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {path}\n"
    yield f"`{path} {usage}`\n"
    yield _flowing(command.help or "")
    options = [param for param in command.params if isinstance(param, click.Option)]
    records = [option.get_help_record(context) for option in options]
    rows = [record for record in records if record]
    if rows:
        yield "\n| option | meaning |\n|---|---|"
        yield from (f"| `{_cell(option)}` | {_cell(meaning)} |" for option, meaning in rows)


def _flowing(text: str) -> str:
    """Paragraphs without the line breaks of the source."""
    paragraphs = text.replace("\b", "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    click.echo(page(), nl=False)
