"""The signal of a running job."""

from __future__ import annotations

import threading

import pytest

from reliq.errors import JobStoppedError
from reliq.job import Job, Signal


def test_the_first_reason_stands() -> None:
    signal = Signal()
    assert not signal.is_set() and signal.reason is None
    assert signal.set("timeout")
    assert not signal.set("stopping")
    assert signal.is_set() and signal.reason == "timeout" and signal.wait(0)


def test_wait_ends_by_itself() -> None:
    assert not Signal().wait(0.001)


def test_wait_ends_with_a_set_whatever_comes_first() -> None:
    for _ in range(200):
        signal = Signal()
        waiters = [threading.Thread(target=signal.wait, args=(10,)) for _ in range(2)]
        for waiter in waiters:
            waiter.start()
        signal.set("stopping")
        for waiter in waiters:
            waiter.join(5)
            assert not waiter.is_alive()


def test_check_raises_the_reason() -> None:
    job = Job("a", None, 1, 3, 0.0, "q", {}, "w", Signal())
    job.check()
    job.signal.set("lost")
    with pytest.raises(JobStoppedError) as caught:
        job.check()
    assert caught.value.reason == "lost"
