"""compute-sanitizer over cases: errors of memory, races in shared memory, barriers that hang.

The cases run in one process without isolation (``python -m parity.tiers.sanitizer FILE [OPS]``),
since the tool watches a process and slows it down by far more than the deadline of a case allows.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# torch asks the driver about pointers that are none of its own, which memcheck would call an error.
TOOLS = {"memcheck": ["--report-api-errors", "no"], "racecheck": [], "synccheck": []}
FOUND = 86  # the exit code that the tool is told to give for its own findings
_ERROR = re.compile(
    r"^=+ (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)(\S.*)$", re.MULTILINE
)


class NotRun(Exception):
    """Why the tool could not look, in one sentence."""


def sanitize(cases: Path, ops: str | None) -> list[str]:
    """What each tool found, one sentence for each that found something.

    An error that one tool finds may end the process under the next, which is then told as well.

    Raises:
        NotRun: no such tool, or none found anything and one did not reach the end of the cases.
    """
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise NotRun(
            "NOT_RUN: expected compute-sanitizer on the PATH but found none; add the bin folder of "
            "a CUDA toolkit."
        )
    found, unfinished = [], []
    for tool in TOOLS:
        try:
            found += _run(program, tool, cases, ops)
        except NotRun as reason:
            unfinished.append(reason)
    if unfinished and not found:
        raise unfinished[0]
    return [*found, *map(str, unfinished)]


def _run(program: str, tool: str, cases: Path, ops: str | None) -> list[str]:
    command = [program, "--tool", tool, *TOOLS[tool], "--error-exitcode", str(FOUND)]
    command += [sys.executable, "-m", __name__, str(cases), *([ops] if ops else [])]
    # The caching allocator puts many tensors into one allocation, whose inside is all legal memory.
    own = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
    if ended.returncode == 0:
        return []
    if ended.returncode != FOUND:
        last = "".join(ended.stderr.strip().splitlines()[-1:])
        raise NotRun(f"NOT_RUN: {tool} ended with exit code {ended.returncode}: {last}")
    first = next(iter(_ERROR.findall(ended.stdout)), "an error without words")
    return [f"Expected {tool} to find nothing but it reports: {first}."]


def main(file: str, ops: str | None = None) -> None:
    """Run the cases of a file in this process; their verdicts are not this module's business."""
    from ..arms import project_root
    from ..provenance import mount

    mount(project_root())
    from ..interpreter import prepare

    prepare()
    from ..catalog import resolve
    from ..generate import refuse_illegal
    from ..runner import run_case
    from .case_file import read_cases

    specs = resolve(ops)
    for case, where in read_cases(Path(file)):
        refuse_illegal(specs, case, where)
        run_case(specs[case.op], case)


if __name__ == "__main__":
    main(*sys.argv[1:])
