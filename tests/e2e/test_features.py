"""Groups, limits, dependencies, persistent jobs and progress as users meet them: through Queue and WorkerPool."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliq import (
    InvalidJobError,
    Job,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    NewJob,
    Queue,
    QueueFullError,
    Retry,
    SerdeError,
    WorkerPool,
    current_job,
)
from reliq.retry import Backoff
from reliq.storage.base import Storage
from reliq.storage.redis.storage import RedisStorage
from reliq.storage.sql.file import FileStorage
from reliq.storage.sql.memory import MemoryStorage

PATIENCE = 10.0
AT_ONCE = Backoff(base=0.0, jitter=0.0)


@pytest.fixture(params=["memory", "file", "redis"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    storage: Storage
    if request.param == "memory":
        storage = MemoryStorage()
    elif request.param == "file":
        storage = FileStorage(tmp_path / "queue", durability="os")
    else:
        url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
        storage = RedisStorage(url, prefix=prefix)
    storage.fallback_ms = 60_000  # so that a missing ring shows
    yield storage
    storage.close()


class Log:
    """What handlers did, in order, and a way to wait for it."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._changed = threading.Condition()

    def add(self, entry: Any) -> None:
        with self._changed:
            self.entries.append(entry)
            self._changed.notify_all()

    def until(self, number: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.entries) >= number, PATIENCE), self.entries
            return list(self.entries)


# -- groups ---------------------------------------------------------------------------


def test_jobs_of_a_group_run_in_order_whatever_the_threads(storage: Storage) -> None:  # F003-02
    queue = Queue("orders", storage, backoff=AT_ONCE)
    log = Log()
    running: dict[str | None, int] = {}

    @queue.handler
    def run(job: Job) -> None:
        assert job.group is not None
        assert running.setdefault(job.group, 0) == 0, "two jobs of a group at once"
        running[job.group] += 1
        try:
            log.add((job.group, job.payload))
            if job.payload % 7 == 3 and job.attempts == 1:
                raise ValueError("once more")
        finally:
            running[job.group] -= 1

    queue.enqueue_many(NewJob(f"{group}-{n}", n, group=group) for n in range(30) for group in ("a", "b", "c"))
    with WorkerPool(queue, threads=8) as pool:
        assert pool.run_until_empty(PATIENCE)
    for group in ("a", "b", "c"):
        ran = [n for name, n in log.entries if name == group]
        assert ran == sorted(ran)
        assert set(ran) == set(range(30))
        assert len(ran) == 30 + 4  # the retried ones twice, in their place


def test_a_fifo_queue_needs_a_group_and_takes_equal_jobs_for_one(storage: Storage) -> None:  # F003-01, F003-03
    queue = Queue("orders.fifo", storage)
    with pytest.raises(InvalidJobError, match=r"'orders\.fifo' is a \.fifo queue: each of its jobs needs a group"):
        queue.enqueue("a", 1)
    first = queue.enqueue(None, {"sum": 10}, group="ada")
    assert (first.status, queue.enqueue(None, {"sum": 10}, group="ada")) == (
        "queued",
        (first.id, "duplicate", "queued", None),
    )
    assert queue.enqueue(None, {"sum": 10}, group="bob").status == "queued"
    assert queue.enqueue(None, {"sum": 11}, group="ada").status == "queued"
    [first_status, third_status] = [queue.get_status(id) for id in (first.id, queue.jobs("queued")[2].id)]
    assert first_status is not None
    assert third_status is not None
    assert first_status.group == "ada"
    assert first_status.sequence is not None
    assert third_status.sequence is not None
    # The window of 300 s begins with acceptance.
    with WorkerPool(queue_with_handler(queue), threads=2) as pool:
        assert pool.run_until_empty(PATIENCE)
    assert queue.enqueue(None, {"sum": 10}, group="ada").status == "completed"
    storage.skew_ms += 301_000
    assert queue.enqueue(None, {"sum": 10}, group="ada").status == "queued"


def queue_with_handler(queue: Queue) -> Queue:
    queue.handler(lambda job: job.payload)
    return queue


# -- limits ---------------------------------------------------------------------------


def test_limits_live_in_the_storage_and_who_differs_is_told(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    first = Queue("q", storage, rate_limit="100/m", max_length=5)
    first.enqueue("a", 1)
    assert first.limits == {"rate_limit": "100/m", "max_concurrency": None, "max_length": 5, "group_concurrency": 1}
    same = Queue("q", storage, max_length=5)
    other = Queue("q", storage, max_length=7)
    with caplog.at_level(logging.WARNING, "reliq"):
        same.enqueue("b", 1)
        assert not caplog.records
        other.enqueue("c", 1)
        other.enqueue("d", 1)
    [warning] = caplog.records
    assert "'max_length': 7" in warning.getMessage()
    assert first.limits["max_length"] == 5
    other.set_limits(max_length=None, max_concurrency=2)
    assert first.limits == {"rate_limit": "100/m", "max_concurrency": 2, "max_length": None, "group_concurrency": 1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate_limit": "100"}, "rate_limit must be 'N/s', 'N/m', 'N/h' or 'N/d'"),
        ({"rate_limit": "0/s"}, "rate_limit"),
        ({"rate_limit": 5}, "rate_limit.*got int"),
        ({"max_length": 0}, "max_length must be from 1"),
        ({"max_concurrency": True}, "max_concurrency must be an int"),
        ({"group_concurrency": -1}, "group_concurrency"),
    ],
)
def test_limits_that_make_no_sense_are_refused(storage: Storage, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJobError, match=says):
        Queue("q", storage, **options)
    with pytest.raises(InvalidJobError, match=says):
        Queue("q", storage).set_limits(**options)
    with pytest.raises(InvalidJobError, match=r"strictly in order"):
        Queue("q.fifo", storage).set_limits(group_concurrency=2)
    with pytest.raises(InvalidJobError, match=r"no limit 'speed'; there are: rate_limit"):
        Queue("q", storage).set_limits(speed=2)


def test_a_full_queue_refuses_and_writes_nothing(storage: Storage) -> None:
    queue = Queue("q", storage, max_length=3)
    queue.enqueue_many([("a", 1), ("b", 2)])
    with pytest.raises(QueueFullError, match="3"):
        queue.enqueue_many([("c", 3), ("d", 4)])
    assert queue.counts()["queued"] == 2
    assert queue.enqueue("a", 1).status == "duplicate"
    assert queue.enqueue("c", 3).status == "queued"
    with pytest.raises(QueueFullError, match="'q'"):
        queue.call("d", 4, timeout=5)


def test_max_concurrency_holds_over_pools_and_a_freed_slot_is_taken_at_once(storage: Storage) -> None:
    queue = Queue("q", storage, max_concurrency=3)
    lock = threading.Lock()
    now: list[str] = []
    most = 0

    @queue.handler
    def run(job: Job) -> None:
        nonlocal most
        with lock:
            now.append(job.id)
            most = max(most, len(now))
        job.signal.wait(0.003)
        with lock:
            now.remove(job.id)

    queue.enqueue_many((f"j{n}", n) for n in range(60))
    began = time.monotonic()
    with WorkerPool(queue, threads=8) as first, WorkerPool(queue, threads=8):
        assert first.run_until_empty(PATIENCE)
    assert most == 3
    assert time.monotonic() - began < 5  # nobody waited for a fallback


def test_a_rate_limit_lets_idle_pools_go_on_by_themselves(storage: Storage) -> None:
    queue = Queue("q", storage, rate_limit="50/s")
    log = Log()
    queue.handler(lambda job: log.add(time.monotonic()))
    queue.enqueue_many((f"j{n}", n) for n in range(30))
    with WorkerPool(queue, threads=4):
        times = log.until(30)
    assert 0.4 <= times[-1] - times[0] <= 2.0, "30 jobs at 50/s with a burst of 5"


def test_a_claim_by_hand_waits_for_the_rate_limit(storage: Storage) -> None:
    queue = Queue("q", storage, rate_limit="10/s")
    queue.enqueue_many((f"j{n}", n) for n in range(3))
    began = time.monotonic()
    jobs = [job for _ in range(3) for job in queue.claim(timeout=5)]
    assert [job.id for job in jobs] == ["j0", "j1", "j2"]
    assert 0.15 <= time.monotonic() - began < 2
    queue.close()


# -- dependencies ---------------------------------------------------------------------


def test_a_job_runs_after_others_and_reaches_their_results(storage: Storage) -> None:
    queue = Queue("q", storage)
    log = Log()

    @queue.handler
    def run(job: Job) -> Any:
        log.add(job.id)
        return [job.result_of(id) for id in job.after] if job.after else job.payload

    # In any order; a fan-out and a fan-in.
    answers = queue.enqueue_many(
        [
            NewJob("join", None, after=["left", "right"]),
            NewJob("left", 1, after=["root"]),
            NewJob("right", 2, after=["root"]),
            NewJob("root", 0),
        ]
    )
    assert [(answer.id, answer.state) for answer in answers] == [
        ("join", "waiting"),
        ("left", "waiting"),
        ("right", "waiting"),
        ("root", "queued"),
    ]
    status = queue.get_status("join")
    assert status is not None
    assert status.after == ("left", "right")
    with WorkerPool(queue, threads=4):
        assert queue.wait("join", timeout=PATIENCE) == [[0], [0]]
    assert log.entries[0] == "root"
    assert log.entries[-1] == "join"


def test_what_can_never_run_fails_with_its_cause(storage: Storage) -> None:
    queue = Queue("q", storage)
    queue.enqueue("root", 0, delay=60)
    queue.enqueue("next", 0, after=["root"])
    queue.enqueue("last", 0, after=["next"])
    queue_with_handler(queue)
    with WorkerPool(queue, threads=1):
        queue.cancel("root")
        with pytest.raises(JobFailedError, match=r"DependencyError: job 'root', which it waits for, was cancelled"):
            queue.wait("next", timeout=PATIENCE)
        with pytest.raises(JobFailedError, match=r"DependencyError: job 'next', which it waits for, failed"):
            queue.wait("last", timeout=PATIENCE)
        with pytest.raises(JobFailedError, match=r"DependencyError: job 'nobody', which it waits for, is unknown"):
            queue.call("orphan", 0, after=["nobody"], timeout=PATIENCE)


def test_links_that_make_no_sense_are_refused_before_anything_is_written(storage: Storage) -> None:
    queue = Queue("q", storage)
    with pytest.raises(InvalidJobError, match=r"after must not go round in a circle, got 'a' -> 'b' -> 'a'|'b' -> 'a'"):
        queue.enqueue_many([NewJob("a", 1, after=["b"]), NewJob("b", 1, after=["a"])])
    with pytest.raises(InvalidJobError, match="after must not hold the job itself"):
        queue.enqueue("a", 1, after=["a"])
    with pytest.raises(InvalidJobError, match="after must be a list of ids, got str"):
        queue.enqueue("a", 1, after="b")
    with pytest.raises(InvalidJobError, match="after must hold each id once, got 'b' twice"):
        queue.enqueue("a", 1, after=["b", "b"])
    with pytest.raises(InvalidJobError, match="at most 1000 ids"):
        queue.enqueue("a", 1, after=[f"j{n}" for n in range(1001)])
    with pytest.raises(InvalidJobError, match="at most 65535 bytes together"):
        queue.enqueue("a", 1, after=[f"{n:0500}" for n in range(200)])
    many = [NewJob(f"j{n}", n, after=[f"j{n - 1}"] if n else None) for n in range(1001)]
    with pytest.raises(InvalidJobError, match="at most 1000 in one call, got 1001"):
        queue.enqueue_many(many)
    many = [NewJob(f"j{n}", n, after=[f"j{k}" for k in range(n)]) for n in range(150)]
    with pytest.raises(InvalidJobError, match="at most 10000 ids in all, got 11175"):
        queue.enqueue_many(many)
    assert not any(queue.counts().values())


# -- persistent jobs ------------------------------------------------------------------


def test_a_persistent_job_runs_again_and_again_until_it_is_cancelled(storage: Storage) -> None:  # F004-06
    queue = Queue("q", storage, backoff=AT_ONCE)
    log = Log()

    @queue.handler
    def run(job: Job) -> str:
        log.add((job.id, job.attempts))
        if len(log.entries) % 2:
            raise ValueError("again")
        return "again"

    queue.enqueue("ever", None, persistent=True)
    with WorkerPool(queue, threads=2) as pool:
        log.until(12)  # far more than max_attempts
        assert pool.run_until_empty(PATIENCE), "a persistent job does not count"
        status = queue.get_status("ever")
        assert status is not None
        assert status.persistent
        # It may be between two runs, where a cancel ends it at once.
        assert queue.cancel("ever", running=True).status in ("cancelled", "cancelling")
        with pytest.raises((JobCancelledError, JobNotFoundError)):
            queue.wait("ever", timeout=PATIENCE)


def test_a_stop_gives_a_persistent_job_to_the_next_pool_at_once(storage: Storage) -> None:  # F004-06
    queue = Queue("q", storage)
    log = Log()

    @queue.handler
    def run(job: Job) -> None:
        log.add(job.worker_id)
        job.signal.wait(PATIENCE)  # returns when told to stop

    queue.enqueue("ever", None, persistent=True)
    first = WorkerPool(queue, threads=2, worker_id="first").start()
    log.until(1)
    second = WorkerPool(queue, threads=2, worker_id="second").start()
    first.stop()  # does not wait for what never ends
    assert log.until(2) == ["first", "second"]
    second.stop()
    status = queue.get_status("ever")
    assert status is not None
    assert (status.state, status.attempts) == ("queued", 0)


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 2}, {"time_limit": 1}, {"result_ttl": 1}, {"dedup_ttl": 1}, {"delay": 1}, {"group": "g"},
     {"after": ["x"]}],
)  # fmt: skip
def test_a_persistent_job_takes_no_option_that_speaks_of_its_end(storage: Storage, options: Any) -> None:
    [name] = options
    with pytest.raises(InvalidJobError, match=f"never ends by itself, so it takes no {name}"):
        Queue("q", storage).enqueue("a", None, persistent=True, **options)


def test_nobody_can_call_a_persistent_job(storage: Storage) -> None:
    with pytest.raises(InvalidJobError, match="nobody can wait for its result"):
        Queue("q", storage).call("a", None, persistent=True)


# -- queues that come and go ----------------------------------------------------------


def test_a_pool_serves_queues_that_come_and_go(storage: Storage) -> None:  # F004-01
    log = Log()
    queues = [Queue(name, storage) for name in ("a", "b")]
    for queue in queues:
        queue.handler(lambda job: log.add((job.queue, job.id)))
    a, b = queues
    with WorkerPool(a, threads=2) as pool:
        a.call("1", timeout=PATIENCE)
        b.enqueue("1")
        pool.add(b)
        assert log.until(2) == [("a", "1"), ("b", "1")]
        b.call("2", timeout=PATIENCE)
        with pytest.raises(InvalidJobError, match="'b' is in the pool already"):
            pool.add(b)
        pool.remove(a)
        assert [worker.queue for worker in storage.workers()] == ["b"]
        a.enqueue("2")
        b.call("3", timeout=PATIENCE)
        assert a.counts()["queued"] == 1
        pool.remove(b)  # the last one
        assert storage.workers() == []
        pool.add(a)
        assert a.wait("2", timeout=PATIENCE) is None
        with pytest.raises(InvalidJobError, match="'b' is not in the pool"):
            pool.remove(b)


def test_removing_a_queue_gives_its_work_back(storage: Storage) -> None:  # F004-01
    stays, goes = Queue("stays", storage), Queue("goes", storage)
    begun, log = threading.Event(), Log()

    @goes.handler
    def run(job: Job) -> None:
        begun.set()
        log.add(job.signal.wait(PATIENCE))
        job.check()

    stays.handler(lambda job: job.payload)
    goes.enqueue("long", None)
    with WorkerPool([stays, goes], threads=4) as pool:
        assert begun.wait(PATIENCE)
        pool.remove(goes, timeout=0)
        assert log.until(1) == [True]
        status = goes.get_status("long")
        assert status is not None
        assert (status.state, status.attempts) == ("queued", 0)
        assert stays.call("x", 5, timeout=PATIENCE) == 5


@pytest.mark.parametrize("is_last", [True, False])
def test_a_stop_ends_a_removal_that_waits(storage: Storage, is_last: bool) -> None:
    goes, stays = Queue("goes", storage), Queue("stays", storage)
    begun = threading.Event()

    @goes.handler
    def run(job: Job) -> None:
        begun.set()
        job.signal.wait(PATIENCE)
        job.check()

    stays.handler(lambda job: None)
    goes.enqueue("long", None)
    pool = WorkerPool([goes] if is_last else [goes, stays], threads=2).start()
    assert begun.wait(PATIENCE)
    removal = threading.Thread(target=pool.remove, args=(goes,))
    removal.start()
    began = time.monotonic()
    pool.stop(timeout=0)
    removal.join(PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    assert goes.counts()["queued"] == 1
    assert storage.workers() == []


def test_a_handler_cannot_remove_its_own_queue(storage: Storage) -> None:
    queue = Queue("q", storage)
    pools: list[WorkerPool] = []

    @queue.handler
    def run(job: Job) -> str:
        with pytest.raises(InvalidJobError, match="from another thread"):
            pools[0].remove(queue)
        return "refused"

    pools.append(WorkerPool(queue, threads=1))
    with pools[0]:
        assert queue.call("a", timeout=PATIENCE) == "refused"


# -- context, progress, upkeep --------------------------------------------------------


def test_the_running_job_is_known_and_its_headers_are_carried_on(storage: Storage) -> None:  # F003-05, F003-08
    queue, other = Queue("q", storage), Queue("other", storage)
    assert current_job() is None

    @queue.handler
    def run(job: Job) -> None:
        assert current_job() is job
        other.enqueue("plain", 1)
        other.enqueue_many([NewJob("own", 1, headers={"trace": "2", "more": "3"})])

    queue.enqueue("a", 1, headers={"trace": "1", "user-id": "ada"})
    with WorkerPool(queue, threads=1):
        queue.wait("a", timeout=PATIENCE)
    statuses = other.get_statuses(["plain", "own"])
    assert {id: dict(status.headers) for id, status in statuses.items() if status} == {
        "plain": {"trace": "1", "user-id": "ada"},
        "own": {"trace": "2", "user-id": "ada", "more": "3"},
    }
    assert current_job() is None


def test_progress_is_seen_in_status_and_events(storage: Storage) -> None:  # F003-11
    queue = Queue("q", storage)
    events = Log()
    unsubscribe = queue.subscribe(lambda event: events.add(event.name) if event.name == "progress" else None)
    halfway, go_on = threading.Event(), threading.Event()

    @queue.handler
    def run(job: Job) -> None:
        assert job.progress({"done": 1, "of": 2})
        with pytest.raises(SerdeError, match="progress of 'a'"):
            job.progress(object())
        with pytest.raises(InvalidJobError, match="at most 8192 bytes"):
            job.progress("x" * 9_000)
        halfway.set()
        go_on.wait(PATIENCE)

    queue.enqueue("a", 1)
    with WorkerPool(queue, threads=1):
        assert halfway.wait(PATIENCE)
        status = queue.get_status("a")
        assert status is not None
        assert status.progress == {"done": 1, "of": 2}
        go_on.set()
        queue.wait("a", timeout=PATIENCE)
    assert events.until(1) == ["progress"]
    unsubscribe()


def test_equal_jobs_are_cancelled_wherever_they_are(storage: Storage) -> None:  # F004-05
    queue = Queue("q", storage, backoff=Backoff(base=60))
    begun = threading.Event()

    @queue.handler
    def run(job: Job) -> None:
        if job.id == "failing":
            raise Retry(delay=60)
        begun.set()
        job.signal.wait(PATIENCE)
        job.check()

    queue.enqueue("failing", {"n": 1})
    with WorkerPool(queue, threads=1):
        queue.enqueue("running", {"n": 1})
        assert begun.wait(PATIENCE)
        queue.enqueue("later", {"n": 1}, delay=60)
        queue.enqueue("waiting", {"n": 1}, after=["running"])
        queue.enqueue("queued", {"n": 1})
        queue.enqueue("other", {"n": 2}, delay=60)
        results = {result.id: result.status for result in queue.cancel_matching({"n": 1})}
        assert results == {
            "failing": "cancelled",
            "running": "cancelling",
            "later": "cancelled",
            "waiting": "cancelled",
            "queued": "cancelled",
        }
        with pytest.raises((JobCancelledError, JobNotFoundError)):
            queue.wait("running", timeout=PATIENCE)
    assert [job.id for job in queue.jobs()] == ["other"]


def test_a_deleted_queue_is_gone_and_its_handlers_are_told(storage: Storage) -> None:  # F004-10
    queue = Queue("q", storage)
    begun, told = threading.Event(), Log()

    @queue.handler
    def run(job: Job) -> None:
        begun.set()
        job.signal.wait(PATIENCE)
        told.add(job.signal.reason)

    queue.enqueue_many((f"j{n}", n) for n in range(5))
    with WorkerPool(queue, threads=1, prefetch=1):
        assert begun.wait(PATIENCE)
        assert queue.delete() == 5
        assert storage.queues() == []
        assert not any(queue.counts().values())
        assert told.until(1) == ["lost"]
    assert queue.enqueue("j0", 0).status == "queued"
    assert storage.queues() == ["q"]


def test_a_storage_hands_out_its_queues(storage: Storage) -> None:  # F003-08
    queue = storage.queue("q", max_attempts=7)
    assert queue.storage is storage
    assert queue.options.max_attempts == 7
