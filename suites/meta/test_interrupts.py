"""A request to stop is noted and acted on where that is safe; a second one is not kept waiting."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from parity.interrupts import check, deferred, result


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_waits_for_a_safe_place_and_is_met_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with deferred():
        check()
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            check()
        check()
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            result(Future[None]())
    assert signal.getsignal(number) is before


def test_a_second_request_does_not_wait() -> None:
    with deferred():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_request_of_before_is_forgotten() -> None:
    with deferred():
        os.kill(os.getpid(), signal.SIGINT)
    with deferred():
        check()


def test_a_thread_leaves_the_signals_to_the_main_one() -> None:
    before = signal.getsignal(signal.SIGINT)

    def inside() -> object:
        with deferred():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(inside).result() is before
