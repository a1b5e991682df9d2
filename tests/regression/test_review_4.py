"""What a review of groups, links, limits, schedules and deletion found, each by a way in which it went wrong."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import pytest

from reliq import Job, MemoryStorage, NewJob, Queue, Storage, WorkerPool
from reliq.storage.base import Doorbell
from reliq.worker import turnstile
from reliq.worker.batching import BatchSize
from reliq.worker.source import Source
from reliq.worker.turnstile import Turnstile

PATIENCE = 10.0


# -- where runners wait ---------------------------------------------------------------


class FakeBell(Doorbell):
    """Rings as it is told, and keeps how long it was waited for."""

    def __init__(self, rings: list[str | None]) -> None:
        self.rings = rings
        self.timeouts: list[float] = []

    def wait(self, timeout: float) -> str | None:
        self.timeouts.append(timeout)
        return self.rings.pop(0) if self.rings else None

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


def sources_of(storage: Storage, *names: str) -> list[Source]:
    return [Source(name, storage, 30_000, SimpleNamespace(), BatchSize(None)) for name in names]  # type: ignore[arg-type]


def test_a_token_that_comes_between_two_looks_is_not_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, bell = MemoryStorage(), FakeBell([])
    monkeypatch.setattr(storage, "doorbell", lambda *_: bell)
    [source] = sources_of(storage, "q")
    gate = Turnstile(storage, [source])
    assert gate.next() is source  # the first look
    # Time goes on between each two readings of the clock, as for a thread that waits for the interpreter's lock.
    ticks = itertools.count(1_000)
    monkeypatch.setattr(turnstile, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    gate.look_at_all()
    gate._unlooked.clear()
    gate._look_at = 1_000_000.0
    source.held_until = 1_001.5  # after the look at what is let go, before the wait
    assert gate.next() is source
    assert all(timeout < 2.0 for timeout in bell.timeouts)
    storage.close()


def test_a_ring_for_a_queue_that_was_just_removed_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    stays, goes = sources_of(storage, "stays", "goes")
    gate = Turnstile(storage, [stays, goes])

    class RingsLate(FakeBell):
        def wait(self, timeout: float) -> str | None:
            if self.rings:  # the ring was taken, and the queue is removed before its runner can look
                gate.change([stays])
            return super().wait(timeout)

    bells = [RingsLate(["goes"]), FakeBell([])]
    monkeypatch.setattr(storage, "doorbell", lambda *_: bells.pop(0))
    assert {gate.next(), gate.next()} == {stays, goes}
    # Somebody else may serve it: its runner claims, gives back, and so rings again.
    assert gate.next() is goes
    assert gate.next() is stays
    storage.close()


# -- a pool without queues ------------------------------------------------------------


@pytest.mark.parametrize("is_stopped_twice", [False, True])
def test_a_pool_whose_last_queue_was_removed_can_be_stopped(storage: Storage, is_stopped_twice: bool) -> None:
    queue = Queue("q", storage)
    queue.handler(lambda job: None)
    pool = WorkerPool(queue, threads=1)
    stopped: list[str] = []
    pool.on("stopped", lambda event: stopped.append(event.name))
    runs = threading.Thread(target=pool.run_forever)
    runs.start()
    queue.call("a", timeout=PATIENCE)
    pool.remove(queue)
    assert pool.is_running  # another queue may be added
    pool.stop()
    if is_stopped_twice:
        pool.stop()
    runs.join(PATIENCE)
    assert not runs.is_alive()
    assert not pool.is_running
    assert stopped == ["stopped"]


# -- many at once ---------------------------------------------------------------------


def test_linked_jobs_keep_their_order_where_it_is_one(storage: Storage) -> None:
    queue = Queue("orders", storage)
    ran: list[str] = []

    @queue.handler
    def run(job: Job) -> None:
        ran.append(job.id)

    queue.enqueue_many(
        [
            NewJob("a", group="g"),
            NewJob("b", group="g", after=["a"]),
            NewJob("c", group="g"),
            NewJob("d", group="g", after=["f"]),
            NewJob("e", group="g"),
            NewJob("f", group="g"),
        ]
    )
    with WorkerPool(queue, threads=2) as pool:
        assert pool.run_until_empty(PATIENCE)
    assert ran == ["a", "b", "c", "f", "d", "e"]


def test_of_linked_jobs_with_one_id_the_first_wins(storage: Storage) -> None:
    queue = Queue("orders", storage)
    jobs = [NewJob("a", 1, after=["b"]), NewJob("b", 2), NewJob("a", 3), NewJob("c", after=["a"])]
    answers = queue.enqueue_many(jobs)
    assert [answer.status for answer in answers] == ["queued", "queued", "duplicate", "queued"]
    assert [answer.state for answer in answers] == ["waiting", "queued", "waiting", "waiting"]
