"""What `parity bench --harness` counts as time of the code under test."""

import pytest
import torch

from parity import observe
from parity.bench import harness
from parity.bench.harness import CALLED, Stopwatch


def test_only_the_outermost_call_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1.0, 3.5, 10.0, 11.0])
    monkeypatch.setattr(harness, "perf_counter", lambda: next(ticks))
    watch = Stopwatch()
    inner = watch.timed(lambda: 7)
    assert watch.timed(lambda: inner())() == 7
    assert watch.seconds == 2.5
    with pytest.raises(ZeroDivisionError):
        watch.timed(lambda: 1 / 0)()
    assert watch.seconds == 3.5


def test_candidates_references_and_backwards_are_watched_and_given_back() -> None:
    before = [getattr(module, name) for module, name in CALLED], torch.autograd.grad
    watch = Stopwatch()
    with watch.watching():
        found = observe.candidate_function("math:sqrt")
        assert found(4.0) == 2.0
        once = watch.seconds
        x = torch.ones(1, requires_grad=True)
        torch.autograd.grad(x * 2, x)
    assert 0 < once < watch.seconds
    assert ([getattr(module, name) for module, name in CALLED], torch.autograd.grad) == before
