"""Hypothesis strategies: the open axes of a contract as a search that Hypothesis steers."""

from __future__ import annotations

from hypothesis import strategies as st

from .case import Case
from .generate import draw
from .spec import OpSpec


def cases(spec: OpSpec) -> st.SearchStrategy[Case]:
    """Legal cases of an op, by the same code that makes a plan."""
    randoms = st.randoms(use_true_random=False, note_method_calls=False)
    return randoms.map(lambda random: draw(spec, random))
