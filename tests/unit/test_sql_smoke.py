"""One walk through every transition of the SQL storages, in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from reliq.errors import StorageError
from reliq.lifecycle import State
from reliq.storage.base import Claimed, NewRecord, Outcome, Verb, Worker
from reliq.storage.sql.memory import MemoryStorage

ALICE = Worker("alice", "1")


@pytest.fixture
def storage() -> Iterator[MemoryStorage]:
    storage = MemoryStorage()
    storage.fallback_ms = 60_000
    yield storage
    storage.close()


def put(storage: MemoryStorage, *ids: str, delay_ms: int = 0, priority: int = 0, max_attempts: int = 3) -> None:
    storage.enqueue(
        "q",
        [
            NewRecord(id, os.urandom(8), b"m-" + id.encode(), max_attempts, 5_000, 5_000, 5_000, priority, delay_ms)
            for id in ids
        ],
    )


def take(storage: MemoryStorage, limit: int = 1) -> list[Claimed]:
    return storage.claim("q", ALICE, limit, serial=1, lease_ms=10_000).jobs


def end(storage: MemoryStorage, job: Claimed, verb: Verb = Verb.COMPLETE, **options: int | bytes) -> State | None:
    outcome = Outcome(job.id, job.nonce, job.token, verb, **options)  # type: ignore[arg-type]
    return storage.settle("q", ALICE, [outcome])[0].state


def test_a_job_from_enqueue_to_expiry(storage: MemoryStorage) -> None:
    storage.reap("q", interval_ms=1_000)
    put(storage, "low", "high", priority=0)
    put(storage, "top", priority=9)
    assert [job.id for job in take(storage, 2)] == ["top", "low"]
    [high] = take(storage)
    assert high.message == b"m-high"
    assert end(storage, high, result=b"done") is State.COMPLETED
    assert end(storage, high, result=b"again") is State.COMPLETED
    assert storage.read("q", ["high"])[0].result == b"done"
    storage.skew_ms += 5_001
    assert ("expired", "high") in storage.reap("q", interval_ms=1_000).changes
    assert storage.read("q", ["high"])[0].cause == "expired"


def test_a_lost_worker_gives_its_jobs_back_to_the_front(storage: MemoryStorage) -> None:
    storage.reap("q", interval_ms=1_000)
    put(storage, "a", "b", "c")
    assert len(take(storage, 2)) == 2
    for _ in range(20):
        storage.skew_ms += 1_000
        storage.reap("q", interval_ms=1_000)
    # a and b are claimed alone from now on
    assert [[job.id for job in take(storage, 3)] for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_cancel_wakes_a_waiter(storage: MemoryStorage) -> None:
    put(storage, "a")
    ends: list[State] = []

    def wait() -> None:
        snapshot = storage.wait("q", "a", timeout=30)
        assert snapshot is not None
        ends.append(snapshot.state)

    thread = threading.Thread(target=wait)
    thread.start()
    while not storage._wakeups.waited():
        pass
    assert storage.cancel("q", ["a"]) == ["cancelled"]
    thread.join(5)
    assert ends == [State.ABSENT]


def test_purge_spares_what_runs(storage: MemoryStorage) -> None:
    put(storage, "running")
    [job] = take(storage)
    put(storage, "a", "b", "later", delay_ms=0)
    assert storage.purge("q") == 3
    assert storage.read("q", ["a"])[0].cause == "purged"
    assert sum(storage.counts("q").values()) == 1
    put(storage, "a")
    while storage.reap("q", interval_ms=1_000).more:
        pass
    assert storage._database.run("SELECT count(*) FROM job", {}) == [(2,)]
    assert end(storage, job) is State.COMPLETED
    assert storage.read("q", ["running"])[0].state is State.COMPLETED


def test_dead_letters_come_back_or_go(storage: MemoryStorage) -> None:
    put(storage, "a", "b", max_attempts=1)
    for job in take(storage, 2):
        assert end(storage, job, Verb.RETRY, error=b"{}") is State.FAILED
    assert storage.revive("q", ["a", "x"]) == ["a"]
    assert storage.discard("q", ["a", "b"]) == ["b"]
    assert take(storage)[0].token == 2


def test_memory_is_refused_in_a_fork(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    put(storage, "a")
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(StorageError, match="parent process"):
        storage.counts("q")


def test_a_closed_storage_says_so(storage: MemoryStorage) -> None:
    storage.close()
    storage.close()
    with pytest.raises(StorageError, match="closed"):
        storage.counts("q")
