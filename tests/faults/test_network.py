"""Answers that come late or never, forks, and many callers beside a working pool."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from reliq import Job, Queue, WorkerPool
from reliq.storage.base import Extended, Held, Worker
from reliq.storage.redis.scripts import script
from reliq.storage.redis.storage import RedisStorage

from .support import Bench, Program, Proxy, never, until

HEARTBEAT = 1.0


class Deaf(RedisStorage):
    """Control: heartbeats that leave something out."""

    says_in_flight = True
    asks_for_orphans = True
    renews = True

    def extend(
        self, queue: str, worker: Worker, held: Sequence[Held], *, below: int, in_flight: Sequence[int], lease_ms: int
    ) -> Extended:
        if not self.says_in_flight:
            in_flight = []
        if not self.asks_for_orphans:
            below = 0
        if not self.renews:
            held = []
        return super().extend(queue, worker, held, below=below, in_flight=in_flight, lease_ms=lease_ms)


class Counting:
    """A handler that counts its runs by id."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.runs: Counter[str] = Counter()
        self._seconds = seconds
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> str:
        with self._lock:
            self.runs[job.id] += 1
        time.sleep(self._seconds)
        return job.id


def _late_reply(bench: Bench, storage: Deaf, proxy: Proxy) -> tuple[Counter[str], int]:
    """The answer to a claim comes four heartbeats late. How often the job ran, and the number of its last claim."""
    handler = Counting()
    q = Queue("q", storage)
    q.handler(handler)
    with WorkerPool(q, threads=2, worker_ttl=15.0):
        assert q.call("warm", timeout=5) == "warm"
        proxy.catch(script("claim").sha.encode(), b"late-job")
        bench.queue.enqueue("late-job")
        assert proxy.caught.wait(10)
        # Within the time that a command may take, or it would be lost instead of late.
        given_back = not never(lambda: handler.runs["late-job"], 4 * HEARTBEAT)
        proxy.release()
        until(lambda: handler.runs["late-job"] == (2 if given_back else 1))
        assert bench.queue.wait("late-job", timeout=5) == "late-job"
    [snapshot] = bench.storage.read("q", ["late-job"])
    return handler.runs, snapshot.token


def test_i18_a_job_whose_claim_is_answered_late_is_not_handed_back(bench: Bench) -> None:
    with Proxy(bench.server.port) as proxy:
        storage = Deaf(proxy.url, prefix=bench.prefix)
        try:
            runs, token = _late_reply(bench, storage, proxy)
        finally:
            storage.close()
    assert runs["late-job"] == 1
    assert token == 1


def test_control_heartbeats_that_do_not_say_what_is_in_flight_hand_the_job_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(bench.server.port) as proxy:
        storage = Deaf(proxy.url, prefix=bench.prefix)
        storage.says_in_flight = False
        try:
            runs, token = _late_reply(bench, storage, proxy)
        finally:
            storage.close()
    assert runs["late-job"] == 2
    assert token == 2
    assert any("never arrived" in record.message for record in caplog.records if record.levelno == logging.WARNING)


def _lost_reply(bench: Bench, storage: Deaf, proxy: Proxy) -> float:
    """The answer to a claim is lost; how long until the job ran."""
    handler = Counting()
    q = Queue("q", storage)
    q.handler(handler)
    with WorkerPool(q, threads=1, worker_ttl=15.0):
        assert q.call("warm", timeout=5) == "warm"
        proxy.catch(script("claim").sha.encode(), b"lost-job", lose=True)
        bench.queue.enqueue("lost-job")
        assert proxy.caught.wait(10)
        began = time.monotonic()
        until(lambda: handler.runs["lost-job"], 2 * HEARTBEAT + 1.0, "the hand-back")
        took = time.monotonic() - began
        assert bench.queue.wait("lost-job", timeout=5) == "lost-job"
    assert handler.runs["lost-job"] == 1
    return took


def test_i18_a_job_whose_claims_answer_is_lost_is_handed_back_within_two_heartbeats(bench: Bench) -> None:
    with Proxy(bench.server.port) as proxy:
        storage = Deaf(proxy.url, prefix=bench.prefix)
        try:
            assert _lost_reply(bench, storage, proxy) < 2 * HEARTBEAT + 0.5
        finally:
            storage.close()
    status = bench.queue.get_status("lost-job")
    assert status is not None
    assert status.attempts == 1  # a hand-back does not count


def test_control_heartbeats_that_ask_for_no_orphans_strand_the_job(bench: Bench) -> None:
    with Proxy(bench.server.port) as proxy:
        storage = Deaf(proxy.url, prefix=bench.prefix)
        storage.asks_for_orphans = False
        try:
            with pytest.raises(AssertionError, match="the hand-back did not happen"):
                _lost_reply(bench, storage, proxy)
        finally:
            storage.close()


# -- forks ----------------------------------------------------------------------------


def _fork(bench: Bench, **config: Any) -> list[str]:
    config = {"url": bench.url, "prefix": bench.prefix, "queue": "q", "children": 3, "rounds": 400, **config}
    with Program("fork_after_use", **config) as program:
        troubles: list[str] = program.output(60)
    return troubles


def test_a_queue_that_was_used_before_a_fork_works_on_both_sides(bench: Bench) -> None:
    assert _fork(bench) == []
    assert bench.queue.counts()["queued"] == 4 * 400 + 1


def test_control_connections_shared_over_a_fork_mix_up_replies(bench: Bench) -> None:
    assert _fork(bench, share=True)


# -- many callers ---------------------------------------------------------------------


def _crowd(bench: Bench, storage: Deaf, callers: int = 200) -> tuple[Counter[str], dict[str, Any]]:
    """Callers in as many threads, waiting beside the pool that serves them over the same storage object.

    Every 25th job runs longer than its lease: only heartbeats that get through keep it.
    """
    handler = Counting(seconds=0.0)
    slow = Counting(seconds=2.5)
    q, long = Queue("q", storage, visibility_timeout=1.5), Queue("long", storage, visibility_timeout=1.5)
    q.handler(handler)
    long.handler(slow)
    answers: dict[str, Any] = {}
    ready = threading.Barrier(callers + 1)

    def call(queue: Queue, id: str) -> None:
        ready.wait()
        try:
            answers[id] = queue.call(id, timeout=30)
        except Exception as error:
            answers[id] = error

    threads = [
        threading.Thread(target=call, args=(long if n % 25 == 0 else q, f"job-{n}"), name=f"caller-{n}")
        for n in range(callers)
    ]
    for thread in threads:
        thread.start()
    q.pause()
    with WorkerPool([q, long], threads=8, worker_ttl=3.0):
        ready.wait()
        # They all wait at once before the first of the short ones is answered.
        until(lambda: q.counts()["queued"] == callers - callers // 25)
        q.resume()
        for thread in threads:
            thread.join(60)
    return handler.runs + slow.runs, answers


def test_200_callers_beside_a_pool_cost_no_lease(bench: Bench) -> None:
    storage = Deaf(bench.url, prefix=bench.prefix)
    try:
        runs, answers = _crowd(bench, storage)
    finally:
        storage.close()
    assert answers == {f"job-{n}": f"job-{n}" for n in range(200)}
    assert set(runs.values()) == {1}
    assert len(runs) == 200


def test_control_without_renewal_leases_are_lost_and_jobs_run_twice(bench: Bench) -> None:
    storage = Deaf(bench.url, prefix=bench.prefix)
    storage.renews = False
    storage.asks_for_orphans = False
    try:
        runs, _ = _crowd(bench, storage)
    finally:
        storage.close()
    assert max(runs.values()) > 1
