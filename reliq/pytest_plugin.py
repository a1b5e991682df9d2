"""The pytest plugin, loaded by pytest itself. Outside of ``reliq.testing``, whose assertions are still to be rewritten
when pytest loads plugins; a test that uses no fixture pays for none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from .job import JobStatus
    from .queue import Queue
    from .testing.clock import FakeClock
    from .testing.running import Ran


class ReliqWorker:
    """Runs the jobs of one queue in the test's thread."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def run_one(self) -> Ran | None:
        """As :func:`reliq.testing.run_one`."""
        from .testing.running import run_one

        return run_one(self._queue)

    def run_all(self, *, max_runs: int = 1000) -> list[Ran]:
        """As :func:`reliq.testing.run_all`."""
        from .testing.running import run_all

        return run_all(self._queue, max_runs=max_runs)


class MakeQueue(Protocol):
    """What ``make_reliq_queue`` is: makes a queue on the test's storage, with the options of ``Queue``."""

    def __call__(self, name: str = "default", **options: Any) -> Queue: ...


@pytest.fixture
def make_reliq_queue() -> Iterator[MakeQueue]:
    """``make_reliq_queue(name, **options)``: queues that share one memory storage, which ends with the test."""
    from .queue import Queue
    from .storage.sql.memory import MemoryStorage

    storage = MemoryStorage()
    queues: list[Queue] = []

    def make(name: str = "default", **options: Any) -> Queue:
        queues.append(Queue(name, storage, **options))
        return queues[-1]

    yield make
    for queue in queues:
        queue.close()
    storage.close()


@pytest.fixture
def reliq_queue(make_reliq_queue: MakeQueue) -> Queue:
    """A queue on a memory storage of the test's own."""
    return make_reliq_queue()


@pytest.fixture
def reliq_worker(reliq_queue: Queue) -> ReliqWorker:
    """Runs the jobs of ``reliq_queue`` in the test's thread: ``run_one()``, ``run_all()``."""
    return ReliqWorker(reliq_queue)


@pytest.fixture
def reliq_clock(reliq_queue: Queue) -> FakeClock:
    """The clock of ``reliq_queue``: ``advance(seconds)``."""
    from .testing.clock import FakeClock

    return FakeClock(reliq_queue)


@pytest.fixture
def assert_enqueued() -> Callable[..., JobStatus]:
    """:func:`reliq.testing.assert_enqueued`."""
    from .testing.asserts import assert_enqueued

    return assert_enqueued
