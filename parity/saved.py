"""What a backward saved must still be there when it is read: a ledger of saved tensors.

Autograd notices a change of a saved tensor by its version counter, which a Triton kernel does not
move.  The ledger keeps a copy of what was saved and compares bits when it is read.  A change that
the counter shows is no fault: autograd refuses such a backward by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .evidence import Evidence
from .guards import bits
from .record import Finding
from .trial import again, gradients, run

CHECK = "effect:saved_tensors"


@dataclass
class Entry:
    """One tensor somebody saved: a copy of it, its version, and the phase that changed it."""

    saver: str
    tensor: torch.Tensor
    copy: torch.Tensor
    version: int
    phase: str = ""

    def differing(self) -> int:
        """How many elements have other bits than when they were saved."""
        now, then = bits(self.tensor.detach().contiguous()), bits(self.copy)
        return int((now != then).sum())


@dataclass
class Ledger:
    """Everything saved while :meth:`recording`, and what was wrong with it when it was read."""

    saver: str
    phase: str = "forward"
    grad_fn: str = ""
    entries: list[Entry] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def recording(self) -> Any:
        """Context in which every tensor that is saved for a backward goes through the ledger.

        Under these hooks autograd does not look at version counters itself.
        """
        return torch.autograd.graph.saved_tensors_hooks(self._save, self._read)

    def close(self, phase: str) -> None:
        """End a phase: what differs now and did not before was changed in it."""
        for entry in self.entries:
            if not entry.phase and entry.differing():
                entry.phase = self.phase
        self.phase = phase

    def _save(self, tensor: torch.Tensor) -> Entry:
        copy = tensor.detach().contiguous().clone()
        entry = Entry(self.saver, tensor, copy, tensor._version)
        self.entries.append(entry)
        return entry

    def _read(self, entry: Entry) -> torch.Tensor:
        count = entry.differing()
        if count and entry.tensor._version == entry.version:
            phase = entry.phase or self.phase
            self.findings.append(
                Finding(
                    CHECK,
                    f"saved by {entry.saver}",
                    f"changed by {phase}",
                    sentence=f"Expected what {entry.saver} saved for its backward to stay as it "
                    f"was but {phase} of {self.grad_fn} changed {count} of its elements and did "
                    "not tell autograd, so that a gradient is silently wrong; mark_dirty tells it.",
                )
            )
        return entry.tensor


class SavesItsOutput(torch.autograd.Function):
    """Stands before the op and needs its own output for its backward, as ``exp`` does."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, holder: list[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(holder[0])
        return holder[0]

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        ctx.saved_tensors  # noqa: B018  # reading is what is tested
        return incoming[0], None


def saved_tensors(evidence: Evidence) -> Iterator[Finding]:
    """Neither the op nor what stands before it reads a saved tensor that changed unnoticed."""
    ledger = Ledger("the op before")

    def feed(leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        fed: torch.Tensor = SavesItsOutput.apply(leaf, [tensor])  # type: ignore[no-untyped-call]
        return fed

    with ledger.recording():
        trial = run(again(evidence), feed, before_call=lambda: setattr(ledger, "saver", "the op"))
    ledger.grad_fn = next(str(out.grad_fn.name()) for out in trial.outputs.values() if out.grad_fn)
    ledger.close("backward")
    gradients(trial)
    yield from ledger.findings
