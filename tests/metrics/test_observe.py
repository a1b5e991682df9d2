"""`WorkerPool.observe`: every run that has ended is told of once, by how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest

from reliq import Job, MemoryStorage, Queue, Retry, WorkerPool
from reliq.hooks import Run
from reliq.worker.heartbeat import Heartbeat

LIMIT_SECONDS = 10.0


@pytest.fixture
def q() -> Iterator[Queue]:
    with closing(MemoryStorage()) as storage, Queue("q", storage) as queue:
        yield queue


def observe(pool: WorkerPool) -> tuple[list[str], Callable[[], None]]:
    outcomes: list[str] = []

    def told(queue: str, runs: Sequence[Run]) -> None:
        assert queue == "q"
        assert all(run.seconds >= 0 for run in runs)
        outcomes.extend(run.outcome for run in runs)

    return outcomes, pool.observe(told)


def test_each_attempt_is_a_run(q: Queue) -> None:
    @q.handler
    def run(job: Job) -> None:
        if job.attempts < job.payload:
            raise Retry(delay=0)

    pool = WorkerPool(q, threads=1)
    outcomes, _ = observe(pool)
    q.enqueue("good", 1)
    q.enqueue("better", 3)
    q.enqueue("bad", 9, max_attempts=2)
    assert pool.run_until_empty(LIMIT_SECONDS)
    assert sorted(outcomes) == ["completed", "completed", "failed", "failing", "failing", "failing"]


def test_runs_that_others_end(q: Queue) -> None:
    entered = threading.Semaphore(0)

    @q.handler
    def run(job: Job) -> None:
        entered.release()
        assert job.signal.wait(LIMIT_SECONDS)
        job.check()

    pool = WorkerPool(q, threads=1).start()
    outcomes, _ = observe(pool)
    q.enqueue("cancelled")
    assert entered.acquire(timeout=LIMIT_SECONDS)
    assert q.cancel("cancelled", running=True).status == "cancelling"
    q.enqueue("requeued")
    assert entered.acquire(timeout=LIMIT_SECONDS)
    pool.stop(0)
    assert outcomes == ["cancelled", "requeued"]
    assert q.counts()["queued"] == 1


def test_a_run_whose_lease_is_gone_is_lost(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    # It would hear of the loss first: then there is no outcome to tell.
    monkeypatch.setattr(Heartbeat, "step", lambda self: None)
    q.handler(lambda job: q.delete())
    pool = WorkerPool(q, threads=1)
    outcomes, _ = observe(pool)
    q.enqueue("gone")
    assert pool.run_until_empty(LIMIT_SECONDS)
    assert outcomes == ["lost"]


def test_what_never_ran_is_no_run(q: Queue) -> None:
    entered, leave = threading.Event(), threading.Event()

    @q.handler
    def run(job: Job) -> None:
        entered.set()
        assert leave.wait(LIMIT_SECONDS)

    pool = WorkerPool(q, threads=1, prefetch=10)
    outcomes, _ = observe(pool)
    q.enqueue_many([(f"j{n}", None) for n in range(5)])
    pool.start()
    assert entered.wait(LIMIT_SECONDS)
    pool.quiet()
    leave.set()
    pool.stop()
    assert outcomes == ["completed"] * q.counts()["completed"]
    assert q.counts()["completed"] < 5


def test_an_observer_that_raises_changes_nothing_and_one_can_be_taken_away(
    q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    q.handler(lambda job: None)

    def broken(queue: str, runs: Sequence[Run]) -> None:
        raise SystemExit("not a runner's end")

    pool = WorkerPool(q, threads=1)
    pool.observe(broken)
    outcomes, off = observe(pool)
    with pool:
        q.enqueue("a")
        assert pool.run_until_empty(LIMIT_SECONDS)
        off()
        off()
        q.enqueue("b")
        assert pool.run_until_empty(LIMIT_SECONDS)
    assert outcomes == ["completed"]
    assert q.counts()["completed"] == 2
    assert "an observer of queue 'q' raised" in caplog.text
