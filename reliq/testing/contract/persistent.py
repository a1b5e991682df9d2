"""Persistent jobs: they run again and again until somebody cancels them."""

from __future__ import annotations

import pytest

from ...lifecycle import State
from ...storage.base import STEADY_MS, Storage, Verb
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    INTERVAL,
    QUEUE,
    WORKER_TTL,
    assert_placed,
    cancel,
    jump,
    look,
    pass_time,
    put,
    settle,
    state_of,
    take,
    take_one,
    upkeep,
)

LONG = 20 * STEADY_MS


def _put(storage: Storage, *ids: str, max_attempts: int = 3) -> None:
    put(storage, *ids, is_persistent=True, max_attempts=max_attempts)


class PersistentContract(ContractBase):
    """Jobs without an end of their own."""

    def test_a_persistent_job_is_read_and_delivered_as_one(self, storage: Storage) -> None:
        _put(storage, "p")
        put(storage, "a")
        assert look(storage, "p").is_persistent
        assert not look(storage, "a").is_persistent
        assert [(take_one(storage).is_persistent) for _ in range(2)] == [True, False]

    def test_i27_a_retry_never_exhausts_a_persistent_job(self, storage: Storage) -> None:
        _put(storage, "p", max_attempts=2)
        seen = []
        for number in range(5):
            job = take_one(storage)
            seen.append((job.token, job.attempts))
            assert settle(storage, job, Verb.RETRY, error=b"error %d" % number) is State.QUEUED
        assert seen == [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2)]
        snapshot = look(storage, "p")
        assert (snapshot.attempts, snapshot.is_exhausted, snapshot.errors[-1][3]) == (1, False, b"error 4")
        assert settle(storage, take_one(storage), Verb.RETRY, error=b"e", delay_ms=5_000) is State.FAILING
        jump(storage, 6_000)
        assert take_one(storage).id == "p"

    @pytest.mark.parametrize("way", ["settle", "leave"])
    @pytest.mark.parametrize(("run_ms", "expected"), [(STEADY_MS - 10_000, 2), (STEADY_MS + 1, 0)])
    def test_a_steady_run_begins_the_attempts_anew(
        self, storage: Storage, way: str, run_ms: int, expected: int
    ) -> None:
        _put(storage, "p", max_attempts=3)
        settle(storage, take_one(storage), Verb.RETRY, error=b"e")
        job = take_one(storage, lease_ms=LONG)
        storage.skew_ms += run_ms
        if way == "settle":
            assert settle(storage, job, Verb.RETRY, error=b"e") is State.QUEUED
        else:
            assert storage.leave(QUEUE, ALICE.key) == 1
        assert look(storage, "p").attempts == expected
        assert take_one(storage).attempts == expected + 1

    def test_i17_a_recovery_never_exhausts_a_persistent_job(self, storage: Storage) -> None:
        upkeep(storage)
        _put(storage, "p", max_attempts=1)
        take_one(storage)
        assert pass_time(storage, WORKER_TTL + 2 * INTERVAL) == [("stalled", "p")]
        for _ in range(3):
            job = take_one(storage, BOB)
            assert job.attempts == 1
            storage.leave(QUEUE, BOB.key)
        assert_placed(storage, {"p": State.QUEUED})

    def test_a_persistent_job_is_claimed_alone(self, storage: Storage) -> None:
        put(storage, "a")
        _put(storage, "p", "q")
        put(storage, "b", "c")
        batches = []
        while jobs := take(storage, limit=10):
            batches.append([job.id for job in jobs])
        assert batches == [["a"], ["p"], ["q"], ["b", "c"]]

    def test_i36_a_cancel_ends_a_persistent_job(self, storage: Storage) -> None:
        _put(storage, "p", "q")
        assert cancel(storage, "q") == "cancelled"
        job = take_one(storage)
        assert cancel(storage, "p") == "processing"
        assert cancel(storage, "p", running=True) == "cancelling"
        assert settle(storage, job, Verb.RETRY, error=b"e") is State.ABSENT
        assert_placed(storage, {"p": State.ABSENT, "q": State.ABSENT})
        assert put(storage, "p")[0].status == "queued"
        assert not look(storage, "p").is_persistent

    def test_i36_a_cancelled_persistent_job_is_not_recovered(self, storage: Storage) -> None:
        _put(storage, "p")
        take_one(storage)
        cancel(storage, "p", running=True)
        storage.leave(QUEUE, ALICE.key)
        assert state_of(storage, "p") is State.ABSENT

    def test_a_release_of_a_persistent_job_gives_the_attempt_back(self, storage: Storage) -> None:
        _put(storage, "p")
        settle(storage, take_one(storage), Verb.RELEASE)
        assert look(storage, "p").attempts == 0

    def test_backlog_ignores_persistent_jobs(self, storage: Storage) -> None:
        put(storage, "a")
        _put(storage, "p", "q")
        assert storage.backlog(QUEUE) == 1
        jobs = [take_one(storage) for _ in range(3)]
        assert storage.backlog(QUEUE) == 1
        settle(storage, jobs[1], Verb.RETRY, error=b"e", delay_ms=5_000)
        storage.leave(QUEUE, ALICE.key)
        assert storage.backlog(QUEUE) == 1
        jump(storage, 6_000)
        assert storage.backlog(QUEUE) == 1
        assert storage.cancel(QUEUE, ["p", "a"]) == ["cancelled", "cancelled"]
        assert storage.backlog(QUEUE) == 0
        put(storage, "a")
        assert storage.backlog(QUEUE) == 1
        storage.purge(QUEUE)
        assert storage.backlog(QUEUE) == 0
        put(storage, "a")
        assert storage.backlog(QUEUE) == 1
