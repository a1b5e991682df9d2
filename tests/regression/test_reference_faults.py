"""Faults of the queue that this one follows: one test for each, by number, on every storage.

Each test says what used to happen; the reference failed every one of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reliq import (
    Backoff,
    Event,
    Job,
    JobCancelledError,
    LeaseLostError,
    Queue,
    RawSerde,
    Reaper,
    RedisStorage,
    ResultExpiredError,
    Storage,
    WorkerPool,
)
from reliq.lifecycle import State
from reliq.storage.base import Outcome, Verb, Worker

from ..faults.support import until

PATIENCE = 10.0
AT_ONCE = Backoff(base=0.0, jitter=0.0)
Open = Callable[[], Storage]


def _later(storage: Storage, seconds: float) -> None:
    storage.skew_ms += round(seconds * 1000)


def _reap(storage: Storage, seconds: float, queue: str = "q") -> None:
    """Let ``seconds`` pass on the storage's clock, with a reaper at work."""
    end = storage.skew_ms + round(seconds * 1000)
    while storage.skew_ms < end:
        _later(storage, 1.0)
        while storage.reap(queue, interval_ms=1000).more:
            pass


def _worker(name: str, ttl_ms: int = 15_000) -> Worker:
    return Worker(name, name, 1, ttl_ms)


def _state(q: Queue, id: str) -> str:
    status = q.get_status(id)
    return "absent" if status is None else status.state


def test_01_a_worker_that_dies_right_after_its_claim_strands_nothing(storage: Storage) -> None:
    """A job between the blocking move and the state write was lost for ever, and its id a duplicate."""
    q = Queue("q", storage)
    q.enqueue("job", "payload")
    assert len(storage.claim("q", _worker("dies"), 1, serial=1, lease_ms=30_000).jobs) == 1
    assert q.enqueue("job").status == "duplicate"
    _reap(storage, 17)
    [job] = q.claim()
    assert (job.id, job.payload, job.attempts) == ("job", "payload", 2)


def test_02_no_lost_message_and_no_outlived_registration_loses_a_job(storage: Storage) -> None:
    """The reaper scanned once and then trusted pub/sub; the registry expired under live workers."""
    q = Queue("q", storage)
    reaper_began = storage.reap("q", interval_ms=1000)
    assert not reaper_began.changes
    # Nobody is subscribed, nothing is published: the stalled job is found all the same, however late it comes.
    worker = _worker("w", ttl_ms=3_000)
    for number in range(3):
        q.enqueue(f"job-{number}")
        assert storage.claim("q", worker, 1, serial=number + 1, lease_ms=2_000).jobs
        _reap(storage, 6)
        assert q.counts()["queued"] == 1
        q.cancel(f"job-{number}")
    # A worker that goes on beating stays registered for longer than any ttl.
    for _ in range(10):
        storage.extend("q", worker, [], below=0, in_flight=[], lease_ms=2_000)
        _reap(storage, 2)
    assert [info.key for info in storage.workers("q")] == [worker.key]


def test_03_a_slow_workers_late_outcome_changes_nothing(storage: Storage) -> None:
    """A late failure overwrote completed; one job ran four times in 1.25 s."""
    q = Queue("q", storage)
    q.enqueue("job")
    slow = storage.claim("q", _worker("slow"), 1, serial=1, lease_ms=1_000).jobs[0]
    _reap(storage, 3)
    [fast] = q.claim()
    fast.complete("right")
    for verb in Verb:
        outcome = Outcome("job", slow.nonce, slow.token, verb, b'"wrong"', b"{}")
        [answer] = storage.settle("q", _worker("slow"), [outcome])
        assert answer.is_lost
    assert q.get_result("job") == "right"
    with contextlib.suppress(LeaseLostError):
        fast.fail("twice")
    assert _state(q, "job") == "completed"
    assert q.get_result("job") == "right"


def test_04_a_job_longer_than_its_lease_is_not_delivered_again_while_it_runs(storage: Storage) -> None:
    """Leases were never extended."""
    q = Queue("q", storage, visibility_timeout=0.6)
    runs: list[str] = []

    @q.handler
    def slow(job: Job) -> str:
        runs.append(job.id)
        time.sleep(1.6)
        return "done"

    with WorkerPool(q, threads=2):
        assert q.call("job", timeout=PATIENCE) == "done"
    assert runs == ["job"]


def test_05_stalls_count_as_attempts(storage: Storage) -> None:
    """A poison job with two attempts stalled six times, and would have gone on."""
    q = Queue("q", storage, max_attempts=2)
    q.enqueue("poison")
    for number in range(2):
        assert storage.claim("q", _worker(f"w{number}"), 1, serial=1, lease_ms=1_000).jobs
        _reap(storage, 4)
    assert storage.claim("q", _worker("w3"), 1, serial=1, lease_ms=1_000).jobs == []
    [dead] = q.dead_letters.list()
    assert dead.id == "poison"
    assert dead.attempts == 2


def test_06_stop_keeps_a_running_job_and_no_read_is_left_over(storage: Storage) -> None:
    """stop() deleted the processing list of a running job; a blocking read left over took the next one."""
    q = Queue("q", storage, max_attempts=1)
    started, go = threading.Event(), threading.Event()

    @q.handler
    def wait(job: Job) -> str:
        started.set()
        assert go.wait(PATIENCE)
        return job.id

    with WorkerPool(q, threads=2, reaper=False) as pool:
        q.enqueue("running")
        assert started.wait(PATIENCE)
        stopping = threading.Thread(target=pool.stop)
        stopping.start()
        until(lambda: pool._is_stopping)
        assert _state(q, "running") == "processing"
        go.set()
        stopping.join()
    assert q.get_result("running") == "running"
    q.enqueue("next")
    # Whoever was still blocked would take it within moments.
    assert _state(q, "next") == "queued"
    [job] = q.claim(timeout=2)
    assert job.id == "next"


def test_07_handing_back_is_one_step_and_two_reapers_make_no_two_copies(open_storage: Open) -> None:
    """requeue was two calls: a crash between them lost the job, two reapers made two copies."""
    storage, peer = open_storage(), open_storage()
    storage.reap("q", interval_ms=1000)  # so that the next one does not come after a long silence
    q = Queue("q", storage)
    q.enqueue_many((f"job-{n}", n) for n in range(50))
    for number in range(50):
        assert storage.claim("q", _worker(f"w{number}"), 1, serial=1, lease_ms=500).jobs
    for each in {storage, peer}:
        each.skew_ms += 1_500
    barrier = threading.Barrier(4)

    def reap(each: Storage) -> list[tuple[str, str]]:
        barrier.wait()
        return each.reap("q", interval_ms=1000).changes

    with ThreadPoolExecutor(4) as threads:
        changes = [change for found in threads.map(reap, [storage, peer, storage, peer]) for change in found]
    assert Counter(changes) == Counter(("stalled", f"job-{n}") for n in range(50))
    assert q.counts()["queued"] == 50
    assert sorted(job.payload for job in _claim_all(q)) == list(range(50))


def _claim_all(q: Queue) -> list[Any]:
    found: list[Any] = []
    while jobs := q.claim(100):
        found += jobs
    return found


def test_08_cancel_and_enqueue_of_one_id_run_the_new_job_only(storage: Storage) -> None:
    """Both ran, the cancelled old payload first; complete after cancel brought the job back."""
    q = Queue("q", storage)
    q.enqueue("job", "old")
    assert q.cancel("job").status == "cancelled"
    q.enqueue("job", "new")
    [job] = q.claim(10)
    assert job.payload == "new"
    assert q.claim(10) == []
    assert q.cancel("job", running=True).status == "cancelling"
    job.release()
    assert _state(q, "job") == "absent"
    with contextlib.suppress(LeaseLostError):
        job.complete("back again")
    assert _state(q, "job") == "absent"


def test_09_one_jobs_short_result_ttl_erases_nobody_elses_result(storage: Storage) -> None:
    """An expiry on a shared hash took everybody's results along."""
    q = Queue("q", storage)
    q.enqueue("short", result_ttl=1.0)
    q.enqueue("long", result_ttl=3600.0)
    for job in [*q.claim(), *q.claim()]:
        job.complete(job.id)
    _reap(storage, 5)
    assert q.get_result("short") is None
    assert q.get_result("long") == "long"
    assert q.update_result_ttl("long", 100.0) == "updated"
    _reap(storage, 5)
    assert q.get_result("long") == "long"


def test_10_every_end_reaches_every_waiter(storage: Storage) -> None:
    """A null result never arrived, cancel woke nobody, the second waiter was cut off by the first one's leaving, and a
    duplicate of a completed job whose result was gone waited for the whole timeout."""
    q = Queue("q", storage)
    missing = object()
    answers: dict[str, Any] = {}

    def wait(name: str, id: str, timeout: float) -> None:
        try:
            answers[name] = q.call(id, timeout=timeout)
        except Exception as error:
            answers[name] = error

    q.enqueue("none")
    q.enqueue("gone", priority=0)
    threads = [
        threading.Thread(target=wait, args=arguments)
        for arguments in [("impatient", "none", 0.15), ("patient", "none", PATIENCE), ("cancelled", "gone", PATIENCE)]
    ]
    for thread in threads:
        thread.start()
    threads[0].join()
    [job] = q.claim()
    job.complete(None)
    began = time.monotonic()
    q.cancel("gone")
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 3.0
    assert isinstance(answers["impatient"], TimeoutError)
    assert answers["patient"] is None
    assert isinstance(answers["cancelled"], JobCancelledError)
    assert q.get_result("none", missing) is None

    q.enqueue("expired", result_ttl=1.0, dedup_ttl=3600.0)
    q.claim()[0].complete(1)
    _later(storage, 5)
    began = time.monotonic()
    with pytest.raises(ResultExpiredError):
        q.call("expired", timeout=PATIENCE)
    assert time.monotonic() - began < 2.0


def test_11_ids_are_nothing_but_ids(storage: Storage, tmp_path: Path) -> None:
    """user:123 broke events, a:exp collided with another job's field, ../../x left the directory."""
    q = Queue("q", storage)
    ids = [
        "user:123",
        "a",
        "a:exp",
        "a:result",
        "../../x",
        "/etc/passwd",
        "{q}",
        "*",
        "?",
        "%s",
        "'; DROP",
        "a\\b",
        "é",
        "e\u0301",
    ]
    heard: list[tuple[str, str]] = []
    unsubscribe = q.subscribe(lambda event: heard.append((event.name, event.id)))
    before = set(tmp_path.rglob("*"))
    for id in ids:
        assert q.enqueue(id, id).status == "queued"
    assert [job.payload for job in (q.claim()[0] for _ in ids)] == ids
    until(lambda: {("queued", id) for id in ids} <= set(heard))
    unsubscribe()
    # Nothing appears outside of the storage's own directory.
    assert {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob("*")) - before} <= {"data"}
    assert not list(tmp_path.glob("*x"))


def test_12_binary_payloads_stay_as_they_are_and_undecodable_ones_end(storage: Storage) -> None:
    """Binary payloads were corrupted; an undecodable message stayed in processing for ever."""
    raw = Queue("q", storage, payload_serde=RawSerde(), result_serde=RawSerde())
    data = bytes(range(256)) + os.urandom(1000) + b"\r\n\0"
    raw.enqueue("bytes", data)
    [job] = raw.claim()
    assert job.payload == data
    job.complete(data)
    assert raw.get_result("bytes") == data
    raw.enqueue("not json", b"\xff{")
    ordinary = Queue("q", storage)
    ordinary.handler(lambda job: "unreachable")
    errors: list[Event] = []
    pool = WorkerPool(ordinary, threads=1)
    pool.on("error", errors.append)
    with pool:
        until(lambda: _state(raw, "not json") == "failed")
    assert [event.id for event in errors] == ["not json"]


def test_13_of_concurrent_enqueues_of_one_id_exactly_one_is_accepted(open_storage: Open) -> None:
    """Dedup was check, then write: 10 of 10 were accepted."""
    queues = [Queue("q", open_storage()) for _ in range(2)]
    threads = 10
    for turn in range(10):
        barrier = threading.Barrier(threads)

        def enqueue(number: int, turn: int = turn, barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            return queues[number % 2].enqueue(f"job-{turn}", number).status

        with ThreadPoolExecutor(threads) as executor:
            answers = Counter(executor.map(enqueue, range(threads)))
        assert answers == {"queued": 1, "duplicate": threads - 1}
    assert queues[0].counts()["queued"] == 10


def test_14_a_server_that_forgot_its_scripts_goes_unnoticed_and_keys_share_a_hash_tag(
    redis_url: str, redis_prefix: str
) -> None:
    """NOSCRIPT after a restart or SCRIPT FLUSH failed every call; without hash tags there was no Cluster."""
    import redis

    storage = RedisStorage(redis_url, prefix=redis_prefix)
    client: Any = redis.Redis.from_url(redis_url)
    q = Queue("q", storage)
    steps: list[Callable[[], Any]] = [
        lambda: q.enqueue("a", priority=4),
        lambda: q.enqueue("b", delay=50.0),
        lambda: q.claim()[0].complete("a"),
        lambda: q.get_status("a"),
        lambda: q.cancel("b"),
        lambda: storage.reap("q", interval_ms=1),
        lambda: q.counts(),
        lambda: q.purge(),
    ]
    try:
        for step in steps:
            client.script_flush()
            step()
        tag = f"{{{redis_prefix}:q}}".encode()
        for key in client.scan_iter(match=f"*{redis_prefix}*"):
            assert key.startswith(tag) or key == f"{redis_prefix}:queues".encode()
        assert client.script_exists("0" * 40) == [False]
    finally:
        client.close()
        storage.close()


def test_15_an_idle_queue_does_not_delay_another_one(storage: Storage) -> None:
    """All queues shared one blocking connection: an idle queue delayed another's calls by 4.9-5.0 s."""
    idle, busy = Queue("idle", storage), Queue("busy", storage)
    for q in (idle, busy):
        q.handler(lambda job: job.payload)
    with WorkerPool([idle, busy], threads=2):
        busy.call("warm", 0, timeout=PATIENCE)
        began = time.monotonic()
        for number in range(20):
            assert busy.call(f"job-{number}", number, timeout=PATIENCE) == number
        assert time.monotonic() - began < 2.0
        assert idle.call("first", 1, timeout=PATIENCE) == 1


@pytest.mark.parametrize("name", ["completed", "*"])
def test_16_an_exception_in_a_listener_leaves_the_job_alone(storage: Storage, name: str) -> None:
    """It re-ran the job three times and failed it."""
    q = Queue("q", storage, backoff=AT_ONCE)
    runs: list[str] = []

    @q.handler
    def once(job: Job) -> str:
        runs.append(job.id)
        return "done"

    def broken(event: Event) -> None:
        raise RuntimeError("listener")

    pool = WorkerPool(q, threads=1)
    pool.on(name, broken)
    q.on("*", broken)
    with pool:
        unsubscribe = q.subscribe(broken)
        assert q.call("job", timeout=PATIENCE) == "done"
        assert q.call("next", timeout=PATIENCE) == "done"
        unsubscribe()
    assert runs == ["job", "next"]
    assert _state(q, "job") == "completed"


def test_16_a_storage_error_while_completing_runs_nothing_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reliq import StorageUnavailableError

    q = Queue("q", storage, backoff=AT_ONCE)
    runs: list[str] = []
    q.handler(lambda job: runs.append(job.id))
    real, failures = storage.settle, [3]

    def settle(*arguments: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise StorageUnavailableError("away")
        return real(*arguments)

    monkeypatch.setattr(storage, "settle", settle)
    with WorkerPool(q, threads=1):
        assert q.call("job", timeout=PATIENCE) is None
    assert runs == ["job"]
    assert failures == [0]


def test_17_a_retry_waits_and_goes_to_the_back(storage: Storage) -> None:
    """It came at once and at the head: a failing job blocked its queue."""
    q = Queue("q", storage, backoff=Backoff(base=10.0, jitter=0.0))
    q.enqueue_many([("bad", None), ("good", None)])
    [bad] = q.claim()
    assert bad.retry() == "failing"
    [good] = q.claim()
    assert good.id == "good"
    assert q.claim() == []
    _reap(storage, 11)
    q.enqueue("later")
    [bad] = q.claim()
    assert (bad.id, bad.attempts) == ("bad", 2)
    assert bad.retry(delay=0) == "queued"
    assert [q.claim()[0].id, q.claim()[0].id] == ["later", "bad"]


def test_18_cost_does_not_grow_and_nothing_stays_behind(storage: Storage) -> None:
    """13 round trips per call, whole lists read to retry one job, a hash that grew for ever.

    The round trips are counted in the cost sheet; here: records go, and one dead letter is retried among many.
    """
    q = Queue("q", storage, result_ttl=5.0, dead_ttl=500.0)
    q.enqueue_many((f"job-{n}", n) for n in range(1_000))
    for job in _claim_all(q):
        if job.payload % 2:
            job.complete()
        else:
            job.fail("no")
    assert (q.counts()["completed"], q.counts()["failed"]) == (500, 500)
    assert q.dead_letters.retry("job-500")
    assert [job.id for job in q.claim(10)] == ["job-500"]
    _reap(storage, 10)
    assert q.counts()["completed"] == 0
    assert _state(q, "job-1") == "absent"
    _reap(storage, 500)
    counts = {state: count for state, count in q.counts().items() if count}
    assert sum(counts.values()) == 1  # the one that was claimed, lost by now


def test_19_the_status_tells_when_the_job_was_made_and_how_often_it_ran(storage: Storage) -> None:
    """createdAt was the time of the last transition, attempts always 0."""
    q = Queue("q", storage, backoff=AT_ONCE)
    q.enqueue("job")
    first = q.get_status("job")
    assert first is not None
    assert first.attempts == 0
    for attempt in range(1, 3):
        _later(storage, 10)
        [job] = q.claim()
        assert job.attempts == attempt
        assert job.created_at == first.created_at
        job.retry(delay=0)
    _later(storage, 10)
    q.claim()[0].complete()
    last = q.get_status("job")
    assert last is not None
    assert last.created_at == first.created_at
    assert last.updated_at >= first.updated_at + 29
    assert last.attempts == 3
    assert [error.attempt for error in last.errors] == [1, 2]
    assert State(last.state) is State.COMPLETED
    assert last.payload is None


def test_the_helper_that_lets_time_pass_recovers_only_what_is_due(storage: Storage) -> None:
    """Control: a lease that has not run out stays."""
    q = Queue("q", storage)
    q.enqueue("job")
    assert storage.claim("q", _worker("w", ttl_ms=60_000), 1, serial=1, lease_ms=60_000).jobs
    _reap(storage, 17)
    assert _state(q, "job") == "processing"
    assert Reaper(q).run_once() == 0
