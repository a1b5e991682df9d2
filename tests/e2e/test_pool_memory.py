"""The worker pool on a storage in memory: what it promises, seen from outside."""

from __future__ import annotations

import logging
import os
import queue as std
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from reliq.errors import (
    InvalidJobError,
    JobCancelledError,
    JobFailedError,
    ReliqError,
    StorageUnavailableError,
)
from reliq.job import Event, Job
from reliq.queue import Queue
from reliq.retry import Backoff
from reliq.storage.base import Claim, Outcome, Settled, Worker
from reliq.storage.sql.memory import MemoryStorage
from reliq.worker.execution import Execution
from reliq.worker.pool import WorkerPool

PATIENCE = 10.0
AT_ONCE = Backoff(base=0.0, jitter=0.0)


class Flaky(MemoryStorage):
    """A storage that can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fallback_ms = 60_000  # so that a missing ring shows
        self.failures = 0  # of settle
        self.settles: list[list[Outcome]] = []
        self.claims = 0
        self.is_down = False

    def claim(self, queue: str, worker: Worker, limit: int, *, serial: int, lease_ms: int) -> Claim:
        self.claims += 1
        if self.is_down:
            raise StorageUnavailableError("down")
        return super().claim(queue, worker, limit, serial=serial, lease_ms=lease_ms)

    def settle(self, queue: str, worker: Worker, outcomes: Any) -> list[Settled]:
        self.settles.append(list(outcomes))
        if self.failures:
            self.failures -= 1
            raise StorageUnavailableError("down")
        return super().settle(queue, worker, outcomes)


@pytest.fixture
def storage() -> Iterator[Flaky]:
    made = Flaky()
    yield made
    made.close()


@pytest.fixture
def q(storage: Flaky) -> Queue:
    return Queue("q", storage, backoff=AT_ONCE)


class Log:
    """The events of a pool, and a way to wait for one."""

    def __init__(self, pool: WorkerPool) -> None:
        self._changed = threading.Condition()
        self.events: list[Event] = []
        pool.on("*", self._heard)

    def _heard(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def wait(self, name: str, count: int = 1) -> Event:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.named(name)) >= count, PATIENCE), (
                f"{count} x {name} never came: {self.events}"
            )
            return self.named(name)[count - 1]


class Blocker:
    """A handler that blocks until it is let go."""

    def __init__(self) -> None:
        self.started: std.Queue[Job] = std.Queue()
        self.go = threading.Event()

    def __call__(self, job: Job) -> str:
        self.started.put(job)
        assert self.go.wait(PATIENCE)
        return f"done {job.id}"


def test_it_runs_jobs_and_answers_calls(q: Queue) -> None:
    q.handler(lambda job: job.payload * 2)
    with WorkerPool(q, threads=2):
        assert q.call("a", 21) == 42
        assert q.call("a", 1) == 42  # cached
        with pytest.raises(JobFailedError, match="TypeError"):
            q.call("b", None, max_attempts=1)


def test_every_job_runs_once_whatever_the_batch(q: Queue) -> None:
    ran: list[str] = []
    q.handler(lambda job: ran.append(job.id))
    q.enqueue_many([(f"j{n}", n) for n in range(3000)])
    assert WorkerPool(q, threads=4).run_until_empty(PATIENCE * 3)
    assert sorted(ran) == sorted(f"j{n}" for n in range(3000))
    assert q.counts()["completed"] == 3000


def test_one_runner_keeps_the_order(q: Queue) -> None:
    ran: list[int] = []
    q.handler(lambda job: ran.append(job.payload))
    q.enqueue_many([(None, n) for n in range(500)])
    assert WorkerPool(q, threads=1).run_until_empty(PATIENCE)
    assert ran == list(range(500))


def test_two_pools_share_a_queue(q: Queue) -> None:
    ran: std.Queue[str] = std.Queue()
    both = threading.Barrier(2)

    def handler(job: Job) -> None:
        if job.id in ("first", "second"):
            both.wait(PATIENCE)  # met only when each pool has one
        ran.put(job.worker_id)

    q.handler(handler)
    with WorkerPool(q, 1, worker_id="one"), WorkerPool(q, 1, worker_id="two") as pool:
        q.enqueue("first")
        q.enqueue("second")
        assert {ran.get(timeout=PATIENCE), ran.get(timeout=PATIENCE)} == {"one", "two"}
        q.enqueue_many([(None, n) for n in range(200)])
        assert pool.run_until_empty(PATIENCE)
        assert ran.qsize() == 200


def test_several_queues_none_starves(storage: Flaky) -> None:
    busy, quiet = Queue("busy", storage), Queue("quiet", storage)
    served = threading.Event()
    refill = iter(range(1_000_000))

    @busy.handler
    def endless(_: Job) -> None:
        if not served.is_set():
            busy.enqueue_many([(f"b{next(refill)}", None), (f"b{next(refill)}", None)])

    quiet.handler(lambda _: served.set())
    busy.enqueue_many([(None, n) for n in range(50)])
    with WorkerPool([busy, quiet], threads=1) as pool:
        log = Log(pool)
        log.wait("completed", 20)
        quiet.enqueue("x")
        assert served.wait(PATIENCE)
        pool.stop(0)


def test_a_pool_needs_a_handler(q: Queue) -> None:
    with pytest.raises(InvalidJobError, match="no handler"):
        WorkerPool(q)


def test_a_handler_does_its_work_when_it_is_called(q: Queue) -> None:
    async def later(_: Job) -> None: ...

    def produce(_: Job) -> Iterator[int]:
        yield 1

    for odd in (later, produce):
        with pytest.raises(InvalidJobError, match=r"handler must be a plain function, no generator and not async, got"):
            q.handler(odd)
    with pytest.raises(InvalidJobError, match="handler must be a function, got int"):
        q.handler(3)  # type: ignore[arg-type]
    q.handler(print)


@pytest.mark.parametrize(
    "options",
    [{"threads": 0}, {"threads": True}, {"worker_ttl": 0}, {"worker_ttl": -1}, {"prefetch": 0}, {"worker_id": ""},
     {"after_execution": 3}],
)  # fmt: skip
def test_options_out_of_range_are_refused(q: Queue, options: dict[str, Any]) -> None:
    q.handler(print)
    with pytest.raises(InvalidJobError):
        WorkerPool(q, **options)


def test_a_queue_twice_is_refused(storage: Flaky) -> None:
    one, two = Queue("q", storage), Queue("q", storage)
    one.handler(print)
    two.handler(print)
    with pytest.raises(InvalidJobError, match="twice"):
        WorkerPool([one, two]).start()


def test_events_of_a_good_and_a_bad_job(q: Queue) -> None:  # F000-09
    def handler(job: Job) -> int:
        if job.payload == "bad":
            raise ValueError(job.attempts)
        return 7

    q.handler(handler)
    pool = WorkerPool(q, 1)
    log = Log(pool)
    with pool:
        q.enqueue("good")
        log.wait("completed")
        q.enqueue("bad", "bad", max_attempts=2)
        failed = log.wait("failed")
    assert [event.name for event in log.events] == [
        "started", "processing", "completed", "processing", "failing", "processing", "failed", "stopped",
    ]  # fmt: skip
    assert log.named("completed")[0].result == 7
    assert (failed.id, failed.queue, failed.attempts, str(failed.error)) == ("bad", "q", 2, "2")


def test_a_listener_that_raises_changes_nothing(q: Queue) -> None:  # PITFALLS A16
    ran: list[int] = []
    q.handler(lambda job: ran.append(job.attempts))
    pool = WorkerPool(q, 1)
    errors: list[BaseException] = [ValueError("listener"), SystemExit(1)]

    def broken(_: Event) -> None:
        if errors:
            raise errors.pop()

    pool.on("completed", broken)
    with pool:
        for id in ("a", "b", "c"):
            q.call(id, timeout=PATIENCE)
    assert ran == [1, 1, 1] and not errors
    assert q.counts()["completed"] == 3


def test_a_failed_attempt_warns_and_a_dead_letter_is_an_error(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @q.handler
    def handler(_: Job) -> None:
        raise ValueError("sour")

    with caplog.at_level(logging.INFO, "reliq"):
        q.enqueue("a", max_attempts=2)
        assert WorkerPool(q, 1).run_until_empty(PATIENCE)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    assert caplog.records[-1].exc_info and "sour" in caplog.text
    assert [letter.id for letter in q.dead_letters.list()] == ["a"]


def test_after_execution_may_change_the_outcome(q: Queue) -> None:
    q.handler(lambda job: job.payload)

    def after(job: Job, execution: Execution) -> None:
        if job.payload == "fail":
            execution.error = RuntimeError("hook says no")
        elif job.payload == "break":
            raise OSError("hook broke")
        else:
            execution.result = [execution.result, "seen"]

    with WorkerPool(q, 1, after_execution=after):
        assert q.call("a", 1) == [1, "seen"]
        assert q.call("b", "break") == "break"
        with pytest.raises(JobFailedError, match="hook says no"):
            q.call("c", "fail", max_attempts=1)


def test_an_undecodable_payload_is_a_dead_letter_and_stops_nobody(storage: Flaky) -> None:
    class Spoiled:
        def dumps(self, value: Any) -> bytes:
            return b"{broken"

        def loads(self, data: bytes) -> Any:
            raise AssertionError

    q = Queue("q", storage)
    q.handler(lambda job: job.payload)
    Queue("q", storage, payload_serde=Spoiled()).enqueue("bad")
    q.enqueue("good", 1)
    pool = WorkerPool(q, 1)
    log = Log(pool)
    assert pool.run_until_empty(PATIENCE)
    assert log.wait("error").id == "bad"
    assert q.get_result("good") == 1
    with pytest.raises(JobFailedError, match="cannot be decoded"):
        q.get_result("bad")


def test_a_storage_error_while_settling_does_not_run_the_job_again(
    storage: Flaky, q: Queue, caplog: pytest.LogCaptureFixture
) -> None:  # PITFALLS A16
    ran: list[str] = []
    q.handler(lambda job: ran.append(job.id))
    storage.failures = 3
    pool = WorkerPool(q, 2)
    log = Log(pool)
    with pool:
        q.call("a", timeout=PATIENCE)
        q.call("b", timeout=PATIENCE)
    assert sorted(ran) == ["a", "b"]
    assert len(log.named("error")) == 1  # once per outage
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    tokens = [(outcome.id, outcome.token) for outcomes in storage.settles for outcome in outcomes]
    assert tokens.count(("a", 1)) + tokens.count(("b", 1)) == len(tokens)


def test_a_storage_error_while_claiming_is_survived(storage: Flaky, q: Queue) -> None:
    q.handler(lambda job: job.payload)
    storage.is_down = True
    pool = WorkerPool(q, 3)
    log = Log(pool)
    with pool:
        q.enqueue("a", 1)
        log.wait("error")
        storage.is_down = False
        assert q.wait("a", PATIENCE) == 1


def learned(pool: WorkerPool, q: Queue, size: int) -> None:
    """As if the pool had learned that the queue is fast. The claim of its start must be over first."""
    q.call("warm", "fast", timeout=PATIENCE)
    pool._crews[0].sources[0].size.size = size


def test_unstarted_jobs_behind_a_slow_one_are_given_back_in_order(q: Queue) -> None:  # PITFALLS H, celery#6500
    blocker = Blocker()
    order: std.Queue[tuple[str, float]] = std.Queue()

    def handler(job: Job) -> None:
        if job.payload == "slow":
            blocker(job)
        else:
            order.put((job.id, time.monotonic()))

    q.handler(handler)
    with WorkerPool(q, 1, worker_id="a") as hoarder:
        learned(hoarder, q, 8)
        q.pause()
        q.enqueue("slow", "slow")
        q.enqueue_many([(f"j{n}", "fast") for n in range(7)])
        log = Log(hoarder)
        q.resume()
        blocker.started.get(timeout=PATIENCE)
        began = time.monotonic()
        log.wait("requeued", 7)
        assert time.monotonic() - began < 0.5  # 0.1 s, were this machine idle
        statuses = q.get_statuses([f"j{n}" for n in range(7)])
        assert all(status is not None and status.attempts == 0 for status in statuses.values())
        with WorkerPool(q, 1, worker_id="b"):
            assert order.get(timeout=PATIENCE)[0] == "warm"
            assert [order.get(timeout=PATIENCE)[0] for _ in range(7)] == [f"j{n}" for n in range(7)]
        blocker.go.set()


def test_an_outcome_does_not_wait_for_a_slow_neighbour(q: Queue) -> None:
    blocker = Blocker()
    q.handler(lambda job: blocker(job) if job.payload == "slow" else job.payload)
    with WorkerPool(q, 1) as pool:
        learned(pool, q, 8)
        q.pause()
        q.enqueue("fast", "fast")
        q.enqueue("slow", "slow")
        q.resume()
        blocker.started.get(timeout=PATIENCE)
        assert q.wait("fast", PATIENCE) == "fast"
        blocker.go.set()


def test_prefetch_one_turns_batches_off(storage: Flaky, q: Queue) -> None:
    q.handler(lambda job: job.payload)
    q.enqueue_many([(None, n) for n in range(50)])
    assert WorkerPool(q, 1, prefetch=1).run_until_empty(PATIENCE)
    assert all(len(outcomes) == 1 for outcomes in storage.settles)


def test_an_idle_worker_spends_one_claim_per_call(storage: Flaky, q: Queue) -> None:
    q.handler(lambda job: job.payload)
    with WorkerPool(q, 4):
        q.call("warm")
        before = storage.claims
        for n in range(20):
            q.call(f"c{n}", timeout=PATIENCE)
        assert storage.claims - before == 20
        assert len(storage.settles) == 21


def test_cancel_reaches_a_running_handler(q: Queue) -> None:  # F004-05, SPEC I36
    running = threading.Event()

    @q.handler
    def handler(job: Job) -> None:
        running.set()
        assert job.signal.wait(PATIENCE)
        job.check()

    pool = WorkerPool(q, 1)
    log = Log(pool)
    with pool:
        q.enqueue("a")
        assert running.wait(PATIENCE)
        assert q.cancel("a").status == "processing"
        assert q.cancel("a", running=True).status == "cancelling"
        with pytest.raises(JobCancelledError):
            q.wait("a", PATIENCE)
        log.wait("cancelled")
    assert q.get_status("a") is None


def test_a_time_limit_retries_the_job_and_replaces_the_thread(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    blocker = Blocker()
    seen: list[str | None] = []
    has_returned = threading.Event()

    def handler(job: Job) -> str:
        if job.id == "a" and job.attempts == 1:
            blocker(job)
            seen.append(job.signal.reason)
            has_returned.set()
        return f"attempt {job.attempts}"

    q.handler(handler)
    pool = WorkerPool(q, 1)
    log = Log(pool)
    with pool:
        began = time.monotonic()
        assert q.call("a", time_limit=0.05, timeout=PATIENCE) == "attempt 2"
        assert time.monotonic() - began < 5
        failing = log.wait("failing")
        assert isinstance(failing.error, TimeoutError)
        blocker.go.set()
        assert has_returned.wait(PATIENCE)
        assert q.call("b", timeout=PATIENCE) == "attempt 1"
        status = q.get_status("a")
        assert status is not None and status.state == "completed" and status.result == "attempt 2"
    assert seen[0] == "timeout"


def test_too_many_stuck_handlers_end_run_forever(q: Queue) -> None:
    blocker = Blocker()
    q.handler(blocker)
    pool = WorkerPool(q, 1)
    log = Log(pool)
    codes: list[Any] = []

    def run() -> None:
        try:
            pool.run_forever(stop_timeout=0)
        except SystemExit as error:
            codes.append(error.code)

    thread = threading.Thread(target=run)
    thread.start()
    for id in ("a", "b"):
        q.enqueue(id, time_limit=0.05, max_attempts=1)
    try:
        # The first stuck thread is replaced, the second is not any more.
        log.wait("error")
        thread.join(PATIENCE)
        assert codes == [1]
    finally:
        blocker.go.set()
        thread.join(PATIENCE)


def test_stop_waits_for_running_jobs(q: Queue) -> None:  # F000-19
    blocker = Blocker()
    q.handler(blocker)
    pool = WorkerPool(q, 1).start()
    q.enqueue("a")
    blocker.started.get(timeout=PATIENCE)
    stopper = threading.Thread(target=pool.stop)
    stopper.start()
    q.enqueue("b")
    blocker.go.set()
    stopper.join(PATIENCE)
    assert not stopper.is_alive()
    assert q.get_result("a") == "done a"
    status = q.get_status("b")
    assert status is not None and status.state == "queued"
    assert q.storage.workers() == []


def test_stop_gives_back_to_the_front_and_leaves_no_lease(q: Queue) -> None:  # F004-09, SPEC I51
    started: std.Queue[str] = std.Queue()
    stuck = threading.Event()

    def handler(job: Job) -> None:
        started.put(job.id)
        if job.payload == "polite":
            assert job.signal.wait(PATIENCE)
            assert job.signal.reason == "stopping"
            job.check()
        stuck.wait(PATIENCE)

    q.handler(handler)
    pool = WorkerPool(q, 2)
    log = Log(pool)
    pool.start()
    q.enqueue("polite", "polite")
    q.enqueue("stubborn", "stubborn")
    assert {started.get(timeout=PATIENCE), started.get(timeout=PATIENCE)} == {"polite", "stubborn"}
    q.enqueue("later")
    pool.stop(timeout=0)
    counts = q.counts()
    assert (counts["queued"], counts["processing"]) == (3, 0)
    assert q.storage.workers() == []
    for id in ("polite", "stubborn"):
        status = q.get_status(id)
        assert status is not None and (status.state, status.attempts) == ("queued", 0)
    assert [job.id for job in q.jobs("queued")][2] == "later"
    assert len(log.named("requeued")) == 2
    stuck.set()  # its late outcome is dropped
    status = q.get_status("stubborn")
    assert status is not None and status.state == "queued"


def test_stop_may_be_shortened_from_another_thread(q: Queue) -> None:
    blocker = Blocker()
    q.handler(blocker)
    pool = WorkerPool(q, 1).start()
    q.enqueue("a")
    blocker.started.get(timeout=PATIENCE)
    patient = threading.Thread(target=pool.stop)
    patient.start()
    pool.stop(timeout=0)
    patient.join(PATIENCE)
    assert not patient.is_alive()
    blocker.go.set()


def test_a_handler_may_stop_its_own_pool(q: Queue) -> None:
    pool: WorkerPool

    @q.handler
    def handler(_: Job) -> str:
        pool.stop()
        return "stopping"

    pool = WorkerPool(q, 2)
    stopped = Log(pool)
    pool.start()
    q.enqueue("a")
    stopped.wait("stopped")
    assert q.get_result("a") == "stopping"
    pool.stop()


def test_quiet_claims_nothing_more(q: Queue) -> None:
    q.handler(lambda job: job.payload)
    pool = WorkerPool(q, 3).start()
    q.call("a", timeout=PATIENCE)
    pool.quiet()
    q.enqueue("b")
    pool.stop()
    status = q.get_status("b")
    assert status is not None and (status.state, status.attempts) == ("queued", 0)


def test_stop_with_a_storage_that_is_down_ends(storage: Flaky, q: Queue) -> None:
    blocker = Blocker()
    q.handler(blocker)
    pool = WorkerPool(q, 1).start()
    q.enqueue("a")
    blocker.started.get(timeout=PATIENCE)
    storage.failures = 1_000_000
    began = time.monotonic()
    pool.stop(timeout=0)
    assert time.monotonic() - began < PATIENCE
    blocker.go.set()


def test_a_pool_starts_once(q: Queue) -> None:
    q.handler(print)
    with WorkerPool(q, 1) as pool, pytest.raises(InvalidJobError, match="started already"):
        pool.start()
    pool.stop()


def test_start_and_stop_at_any_moment(q: Queue) -> None:
    q.handler(lambda job: job.payload)
    for n in range(30):
        pool = WorkerPool(q, 3).start()
        q.enqueue(f"j{n}")
        pool.stop(timeout=PATIENCE if n % 2 else 0)
    assert q.counts()["processing"] == 0
    assert q.storage.workers() == []
    assert WorkerPool(q, 1).run_until_empty(PATIENCE)
    assert q.counts()["completed"] == 30


class TestRunUntilEmpty:
    def test_scheduled_and_paused_jobs_do_not_count(self, q: Queue) -> None:
        q.handler(lambda job: job.payload)
        q.enqueue("later", delay=3600)
        assert WorkerPool(q, 1).run_until_empty(PATIENCE)
        q.enqueue("now")
        q.pause()
        assert WorkerPool(q, 1).run_until_empty(PATIENCE)
        assert q.counts()["queued"] == 1

    def test_failing_jobs_count(self, q: Queue) -> None:
        ran: list[int] = []

        @q.handler
        def handler(job: Job) -> None:
            ran.append(job.attempts)
            if job.attempts < 2:
                raise ValueError

        q.enqueue("a", backoff=Backoff(base=0.2, jitter=0.0))
        assert WorkerPool(q, 1).run_until_empty(PATIENCE)
        assert ran == [1, 2]

    def test_false_at_the_timeout_and_it_stops_what_it_started(self, q: Queue) -> None:
        blocker = Blocker()
        q.handler(blocker)
        q.enqueue("a")
        pool = WorkerPool(q, 1)
        assert not pool.run_until_empty(0.05)
        assert not pool.is_running
        blocker.go.set()

    def test_false_when_stopped(self, q: Queue) -> None:
        blocker = Blocker()
        q.handler(blocker)
        with WorkerPool(q, 1) as pool:
            q.enqueue("a")
            blocker.started.get(timeout=PATIENCE)
            stopper = threading.Thread(target=pool.stop, args=(0,))
            stopper.start()
            assert not pool.run_until_empty(PATIENCE)
            stopper.join()
            blocker.go.set()


def test_jobs_of_a_dead_pool_are_recovered(storage: Flaky, q: Queue) -> None:  # F004-03, SPEC I32
    q.handler(lambda job: job.payload)
    q.enqueue("a", 1)
    dead = Worker("dead", "00000000", 1, 50)
    assert storage.claim("q", dead, 1, serial=1, lease_ms=50).jobs
    pool = WorkerPool(q, 1)
    log = Log(pool)
    with pool:
        assert q.wait("a", PATIENCE) == 1
        assert log.wait("stalled").id == "a"


def test_a_long_job_keeps_its_lease(storage: Flaky) -> None:  # PITFALLS A4
    q = Queue("q", storage, visibility_timeout=0.3)
    blocker = Blocker()
    q.handler(blocker)
    with WorkerPool(q, 2, worker_ttl=0.6):
        q.enqueue("a")
        job = blocker.started.get(timeout=PATIENCE)
        with pytest.raises(std.Empty):
            blocker.started.get(timeout=1.5)  # several leases: nobody else gets it
        assert not job.signal.is_set()
        blocker.go.set()
        assert q.wait("a", PATIENCE) == "done a"


def test_a_lost_lease_is_told_and_the_outcome_dropped(storage: Flaky) -> None:  # F004-04
    q = Queue("q", storage)
    reasons: std.Queue[str | None] = std.Queue()

    @q.handler
    def handler(job: Job) -> str:
        if job.attempts == 1 and job.payload:
            started.set()
            job.signal.wait(PATIENCE)
            reasons.put(job.signal.reason)
        return "late"

    started = threading.Event()
    pool = WorkerPool(q, 1)
    with pool:
        q.enqueue("a", True, max_attempts=1)
        assert started.wait(PATIENCE)
        storage.leave("q", pool.worker.key)  # as a supervisor does that took it for dead
        assert reasons.get(timeout=PATIENCE) == "lost"
    # The storage took it for a crash, and it was the last attempt; what the handler returned is not seen.
    status = q.get_status("a")
    assert status is not None and (status.state, status.result) == ("failed", None)


def test_an_orphan_is_given_back() -> None:  # SPEC I18
    class Deaf(Flaky):
        deaf = True

        def claim(self, *args: Any, **kwargs: Any) -> Claim:
            answer = super().claim(*args, **kwargs)
            if answer.jobs and self.deaf:
                self.deaf = False
                raise StorageUnavailableError("the answer was lost")
            return answer

    deaf = Deaf()
    q = Queue("q", deaf)
    q.handler(lambda job: job.attempts)
    with WorkerPool(q, 1):
        assert q.call("a", timeout=PATIENCE) == 1
    deaf.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_started_pool_refuses_to_be_used_in_a_fork(q: Queue) -> None:
    q.handler(print)
    with WorkerPool(q, 1) as pool:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                pool.stop()
            except ReliqError as error:
                code = 0 if "fork" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


SCRIPT = """
    import sys, threading
    from reliq.queue import Queue
    from reliq.storage.sql.memory import MemoryStorage
    from reliq.worker.pool import WorkerPool

    q = Queue("q", MemoryStorage())

    @q.handler
    def handler(job):
        print("running", flush=True)
        stopped = job.signal.wait(60 if sys.argv[1] == "twice" else 0.3)
        print("reason", job.signal.reason, flush=True)

    q.enqueue("a")
    pool = WorkerPool(q, 2)
    pool.run_forever(stop_timeout=60)
    print("end", q.get_status("a").state, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("how", "end"), [("once", ["reason None", "end completed"]), ("twice", ["reason stopping", "end completed"])]
)
def test_signals_once_is_graceful_twice_is_now(number: signal.Signals, how: str, end: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(number)
        if how == "twice":
            # Two signals of one kind that come together may arrive as one.
            other = signal.SIGINT if number is signal.SIGTERM else signal.SIGTERM
            process.send_signal(other)
        out, err = process.communicate(timeout=PATIENCE * 2)
    assert process.returncode == 0, err
    assert out.splitlines() == end


def test_run_forever_ends_with_a_stop_from_elsewhere(q: Queue) -> None:
    q.handler(print)
    pool = WorkerPool(q, 1)
    before = signal.getsignal(signal.SIGTERM)
    pool.on("started", lambda _: threading.Thread(target=pool.stop).start())
    pool.run_forever()
    assert signal.getsignal(signal.SIGTERM) is before
