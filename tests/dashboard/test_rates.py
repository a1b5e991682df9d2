"""Rates: counted from events while somebody looks, and nothing is left when nobody does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from reliq import Queue, StorageUnavailableError
from reliq.dashboard import rates
from reliq.dashboard.rates import Rate, Rates

from .conftest import run_all


class Clock:
    """Monotonic seconds that a test moves."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.002)


def _listening(found: Rates, queue: Queue) -> bool:
    return found._meters[queue.name]._since is not None


def test_what_completed_and_failed_is_counted(queue: Queue) -> None:
    clock = Clock()
    found = Rates(clock)
    assert found.look(queue) is None, "nothing was heard yet"
    _until(lambda: _listening(found, queue))
    queue.enqueue_many([(f"j{n}", {"fail": "no"} if n % 4 == 0 else 1) for n in range(40)])
    run_all(queue)
    clock.now += 10

    def counted() -> Rate | None:
        rate = found.look(queue)
        return rate if rate is not None and sum(rate.history) == 30 and rate.failed else None

    _until(counted)
    rate = counted()
    assert rate is not None
    assert (rate.completed, rate.failed, rate.seconds) == (3.0, 1.0, 10.0)
    clock.now += 120
    rate = found.look(queue)
    assert rate is not None
    assert (rate.completed, rate.failed) == (0.0, 0.0), "that is over a minute ago"
    assert sum(rate.history) == 30, "but not five minutes"
    found.close()


def test_it_ends_when_nobody_looks(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_ROUND_SECONDS", 0.01)
    clock = Clock()
    found = Rates(clock)
    found.look(queue)
    _until(lambda: _listening(found, queue))
    clock.now += rates.IDLE_SECONDS - 1
    found.look(queue)
    clock.now += rates.IDLE_SECONDS - 1
    assert found.look(queue) is not None, "somebody looked in between"
    clock.now += rates.IDLE_SECONDS + 1
    _until(lambda: found._service is None)
    names = {"reliq-events", "reliq-dashboard-rates"}
    _until(lambda: names.isdisjoint(thread.name for thread in threading.enumerate()))
    assert found.look(queue) is None, "it begins anew"
    _until(lambda: _listening(found, queue))
    found.close()


def test_close_is_idempotent_and_not_for_ever(queue: Queue) -> None:
    found = Rates()
    found.close()
    for _ in range(2):
        found.look(queue)
        found.close()
        found.close()


def test_a_queue_that_cannot_be_heard_has_no_rate(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> Callable[[], None]:
        raise StorageUnavailableError("down")

    monkeypatch.setattr(queue.storage, "subscribe", refuse)
    found = Rates()
    found.look(queue)
    _until(lambda: caplog.records)
    assert found.look(queue) is None
    found.close()


def test_only_so_many_queues_are_heard(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_WATCHED", 1)
    found = Rates()
    found.look(queue)
    found.look(Queue("other", queue.storage))
    assert list(found._meters) == ["emails"]
    found.close()
