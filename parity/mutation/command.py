"""``parity mutate``: does the case set notice bugs planted in the kernels?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ..exports import ExportFile, export_json
from ..options import refuse_idle


@click.command()
@click.option("--ops", metavar="NAME", help='"package.module:OPS", "megatron" or "parity".')
@click.option("--root", type=click.Path(path_type=Path), help="Import the kernels from here.")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="About N mutants of all.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which N.")
@click.option("--suite", type=click.Path(path_type=Path), help="Judge by this pytest file instead.")
@click.option("--json", "file", type=ExportFile(), help="Write the result here too.")
def mutate(
    ops: str | None,
    root: Path | None,
    sample: int | None,
    seed: int,
    suite: Path | None,
    file: Path | None,
) -> int:
    """Plant bugs in kernels and wrappers, one at a time, and see whether a case fails.

    Exit codes: 0 all noticed, 10 some survived, 5 no mutants, and those of `parity --help`.
    """
    from ..arms import import_root, project_root
    from ..reports import mutation, terminal
    from .configured import configured
    from .session import Request, conduct, exit_code

    if sample is None:
        refuse_idle("without --sample", "seed")
    if root is not None:
        import_root("head", root)  # refuses what is no folder
    if suite is not None and not suite.is_file():
        raise click.UsageError(f"Expected a pytest file at --suite {suite} but there is none.")
    project = project_root()
    request = Request(project, ops, root, sample, seed)
    if ops is None and root is None:
        request = replace(request, **configured(project))
    if suite is not None:
        request = replace(request, cases=False, suites=(suite,))
    document = conduct(request)
    if file is not None:
        export_json(file, document)
    mutation.show(terminal.console(), document)
    return int(exit_code(document))
