"""What was asked of a gate: two sides and a plan; kept with the run, so that it can go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..arms import Arm, import_root, import_roots, revision, revisions, workspace
from ..git import Refused
from ..runs import Run, all_runs, readable
from ..verdict import Exit


@dataclass(frozen=True)
class Request:
    """Refs, roots or a baseline file (as on the command line), and the plan of cases.

    ``power`` asks whether these cases would notice bugs planted in the files that changed.
    """

    base: str | None = None
    head: str | None = None
    base_root: Path | None = None
    head_root: Path | None = None
    repo: Path | None = None
    baseline: Path | None = None
    ops: str | None = None
    cases_per_op: int = 100
    seed: int = 0
    power: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; paths in full, since a later process may start elsewhere."""
        values = asdict(self)
        paths = {name: str(v.resolve()) for name, v in values.items() if isinstance(v, Path)}
        return values | paths

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Request:
        """The request that :meth:`to_dict` wrote, or one with defaults for what is missing."""
        names = {"base_root", "head_root", "repo", "baseline"}
        paths = {n: Path(v) for n, v in document.items() if n in names and v is not None}
        return cls(**document | paths)

    @contextmanager
    def arms(self, project: Path) -> Iterator[tuple[Arm, ...]]:
        """Base and head, or head alone where base is a file; checkouts are removed in the end."""
        self._refuse_contradictions()
        if self.baseline and self.head_root:
            yield (import_root("head", self.head_root),)
        elif self.baseline:
            with revision(project, self.head, repository=self.repo) as arm:
                yield (arm,)
        elif self.base_root or self.head_root:
            yield import_roots(self.base_root, self.head_root)
        else:
            with revisions(project, self.base, self.head, self.repo) as pair:
                yield pair

    def _refuse_contradictions(self) -> None:
        by_root = self.base_root or self.head_root
        if by_root and (self.base or self.head or self.repo):
            raise Refused(
                "Expected either --base, --head and --repo or --base-root and --head-root but got "
                "both kinds; leave one kind out."
            )
        if self.baseline and (self.base or self.base_root):
            raise Refused(
                "Expected one base but got --baseline and another; leave one of them out."
            )
        if self.repo and not self.repo.is_dir():
            raise Refused(f"Expected a folder at --repo {self.repo} but there is none.")


def unfinished(project: Path) -> tuple[Run, Request]:
    """The newest gate, if it was stopped before its end, and what it was asked for."""
    for run in all_runs(workspace(project)):
        described = run.document("run")
        if described.get("kind") == "gate" and "cases" in described:
            return run, _unfinished(run, described)
    raise Refused("Expected a gate to go on with but found none; run `parity gate`.")


def _unfinished(run: Run, described: dict[str, Any]) -> Request:
    if run.document("result").get("exit_code", Exit.INTERRUPTED) != Exit.INTERRUPTED:
        raise Refused(
            f"Expected a gate that was stopped but run {run.id} came to its end; run `parity gate`."
        )
    with readable(run):
        return Request.from_dict(described["request"])
