"""What a review of groups, links, limits, schedules and deletion found, each by a way in which it went wrong."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from reliq import Job, MemoryStorage, NewJob, Queue, Reaper, RedisStorage, Storage, WorkerPool
from reliq.lifecycle import State
from reliq.storage.base import MAX_BATCH, Doorbell, NewRecord, Outcome, Schedule, Verb, Worker
from reliq.storage.sql.connection import Row, Write
from reliq.storage.sql.storage import SqlStorage
from reliq.worker import turnstile
from reliq.worker.batching import BatchSize
from reliq.worker.source import Source
from reliq.worker.turnstile import Turnstile

from .conftest import Open

PATIENCE = 10.0
ALICE = Worker("alice", "01", 1, 15_000)
#: Due in a long time.
TICK = Schedule("tick", b"spec", 10**14)


@pytest.fixture
def redis_storage(redis_url: str, redis_prefix: str) -> Iterator[RedisStorage]:
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    yield storage
    storage.close()


def new(id: str) -> NewRecord:
    return NewRecord(id, os.urandom(8), b"\x01\x00\x00null", 3, 60_000, 60_000, 60_000)


def enqueue_and_claim(storage: Storage, prefix: str, number: int, serial: int) -> None:
    for at in range(0, number, MAX_BATCH):
        storage.enqueue("q", [new(f"{prefix}{n}") for n in range(at, min(number, at + MAX_BATCH))])
    taken = 0
    while taken < number:
        taken += len(storage.claim("q", ALICE, MAX_BATCH, serial=serial, lease_ms=60_000).jobs)
        serial += 1


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


def test_a_late_claim_on_a_removed_queue_takes_no_job(storage: Storage) -> None:
    stays, goes = Queue("stays", storage), Queue("goes", storage)
    for queue in (stays, goes):
        queue.handler(lambda job: None)
    with WorkerPool([stays, goes], threads=1) as pool:
        [crew] = pool._crews
        [source] = (source for source in crew.sources if source.name == "goes")
        pool.remove(goes)
        goes.enqueue("a", max_attempts=1)
        # Its lease would be found by the signing off, as that of a run that was lost.
        assert crew._runners[0]._claim(source) == (None, False)
        assert "goes" not in [worker.queue for worker in storage.workers()]
        status = goes.get_status("a")
        assert status is not None
        assert (status.state, status.attempts) == ("queued", 0)


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


# -- deletion -------------------------------------------------------------------------


def test_a_schedule_is_found_on_a_queue_that_another_process_deleted(open_storage: Open) -> None:
    storage, other = open_storage(), open_storage()
    assert storage.put_schedule("q", TICK)
    other.delete("q")
    assert other.queues() == []
    assert storage.put_schedule("q", TICK)
    # A reaper of the whole storage goes by the names.
    assert other.queues() == ["q"]


def test_a_deletion_is_not_held_up_by_jobs_that_came_since(redis_storage: RedisStorage) -> None:
    enqueue_and_claim(redis_storage, "old-", MAX_BATCH + 500, 1)
    assert redis_storage._run("delete", "q", 1, MAX_BATCH) == [MAX_BATCH + 500, b"0"]
    enqueue_and_claim(redis_storage, "new-", MAX_BATCH + 500, 10)
    # More leases of new jobs than one step looks at, and renewed they never end.
    assert redis_storage._run("delete", "q", 0, MAX_BATCH) == [0, b"1"]
    assert redis_storage.counts("q")[State.PROCESSING] == MAX_BATCH + 500
    assert not redis_storage.reap("q", interval_ms=1_000).more
    [worker] = redis_storage.workers("q")
    assert worker.processing == MAX_BATCH + 500


def test_a_schedule_that_is_put_during_a_deletion_stays(redis_storage: RedisStorage) -> None:
    enqueue_and_claim(redis_storage, "old-", MAX_BATCH + 500, 1)
    assert redis_storage._run("delete", "q", 1, MAX_BATCH) == [MAX_BATCH + 500, b"0"]
    assert redis_storage.put_schedule("q", TICK)
    assert redis_storage._run("delete", "q", 0, MAX_BATCH) == [0, b"1"]
    assert redis_storage.schedules("q") == [TICK]
    assert redis_storage.counts("q")[State.PROCESSING] == 0


def test_a_deletion_that_broke_off_is_carried_out_by_a_reaper_of_the_whole_storage(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(2):
        storage.enqueue("q", [new(f"{at}-{n}") for n in range(MAX_BATCH)])

    # The process dies after the first step.
    if isinstance(storage, RedisStorage):
        assert storage._run("delete", "q", 1, MAX_BATCH) == [2 * MAX_BATCH, b"0"]
    else:
        assert isinstance(storage, SqlStorage)
        write, steps = storage._database.write, itertools.count()

        def first_only(what: Write) -> list[list[Row]]:
            if next(steps):
                raise KeyboardInterrupt
            return write(what)

        with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
            broken.setattr(storage._database, "write", first_only)
            storage.delete("q")
    for _ in range(3):
        storage.skew_ms += 1_000
        Reaper(storage).run_once()
    if isinstance(storage, SqlStorage):
        assert storage._database.ask("SELECT count(*) FROM job", {}) == [(0,)]
        assert storage.queues() == []
    else:
        assert storage._client.link.execute("HLEN", f"{storage._tag('q')}:jobs")[0] == 0


def test_a_pool_that_outlives_its_queue_leaves_nothing_behind(
    redis_storage: RedisStorage, redis_url: str, redis_prefix: str
) -> None:
    import redis

    queue = Queue("q", redis_storage)
    queue.handler(lambda job: None)
    with WorkerPool(queue, threads=2):
        queue.call("a", timeout=PATIENCE)
        queue.delete()
        Reaper(queue).run_once()
    with redis.Redis.from_url(redis_url) as client:
        left = [key for key in client.scan_iter(match=f"*{redis_prefix}*", count=1_000) if client.pttl(key) < 0]
    assert left == []


# -- links ----------------------------------------------------------------------------


def test_a_failure_that_was_taken_back_fails_nobody_who_came_to_wait_since(storage: Storage) -> None:
    storage.enqueue("q", [new("a")])
    for at in range(2):
        storage.enqueue("q", [new(f"{at}-{n}")._replace(after=("a",)) for n in range(MAX_BATCH)])
    [job] = storage.claim("q", ALICE, 1, serial=1, lease_ms=60_000).jobs
    storage.settle("q", ALICE, [Outcome("a", job.nonce, job.token, Verb.FAIL, error=b"{}")])
    assert storage.revive("q", ["a"]) == ["a"]  # before all of its dependents have learned of the failure
    storage.enqueue("q", [new("x")._replace(after=("a",))])
    while storage.reap("q", interval_ms=1_000).more:
        pass
    assert storage.read("q", ["x"])[0].state is State.WAITING
    [job] = storage.claim("q", ALICE, 1, serial=2, lease_ms=60_000).jobs
    storage.settle("q", ALICE, [Outcome("a", job.nonce, job.token, Verb.COMPLETE, b"r")])
    while storage.reap("q", interval_ms=1_000).more:
        pass
    assert storage.read("q", ["x"])[0].state is State.QUEUED
    assert storage.counts("q")[State.WAITING] == 0
