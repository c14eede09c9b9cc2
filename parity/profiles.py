"""Profiles: how much a run searches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Planned cases per op at least, and how many others are drawn for it."""

    planned: int
    generated: int


PROFILES = {
    "dev": Profile(planned=0, generated=5),
    "ci": Profile(planned=0, generated=25),
    "nightly": Profile(planned=1000, generated=500),
}
