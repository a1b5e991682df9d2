"""I45, I46 and the length of a queue: what a queue's storage holds all its users to."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from ...errors import QueueFullError
from ...lifecycle import State
from ...storage.base import NO_LIMITS, Claimed, Limits, Storage, Verb, Worker
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    DAY,
    INTERVAL,
    OTHER,
    QUEUE,
    WORKER_TTL,
    assert_placed,
    assert_rings,
    cancel,
    claim,
    counted,
    jump,
    pass_time,
    picture,
    put,
    put_and_take,
    record,
    run,
    settle,
    silence,
    state_of,
    take,
    take_one,
    together,
    upkeep,
)

HOUR = 3_600_000
ONE = Limits(max_concurrency=1)

End = Callable[[Storage, Claimed], object]


def _cancel_running(storage: Storage, job: Claimed) -> None:
    cancel(storage, job.id, running=True)
    assert settle(storage, job, Verb.RELEASE) is State.ABSENT


def _stall(storage: Storage, job: Claimed) -> None:
    pass_time(storage, WORKER_TTL + 2 * INTERVAL)


#: Whatever ends a lease.
ENDS: dict[str, End] = {
    "complete": lambda s, job: settle(s, job),
    "fail": lambda s, job: settle(s, job, Verb.FAIL, error=b"e"),
    "retry": lambda s, job: settle(s, job, Verb.RETRY, error=b"e"),
    "retry-with-delay": lambda s, job: settle(s, job, Verb.RETRY, error=b"e", delay_ms=60_000),
    "release": lambda s, job: settle(s, job, Verb.RELEASE),
    "cancel-running": _cancel_running,
    "leave": lambda s, job: s.leave(QUEUE, ALICE.key),
    "stall": _stall,
}


def _held_by(storage: Storage, limits: Limits) -> None:
    """One job runs and the next is held by ``limits``."""
    storage.set_limits(QUEUE, limits)
    put(storage, "running", "next")
    take_one(storage)
    assert take(storage) == []


def is_refused(storage: Storage, *ids: str) -> bool:
    """Whether the queue is too full for a batch."""
    try:
        put(storage, *ids)
    except QueueFullError:
        return True
    return False


class LimitContract(ContractBase):
    """Rates, slots and lengths."""

    # -- settings ---------------------------------------------------------------------

    def test_limits_are_shared_and_each_queues_own(self, storage: Storage, peer: Storage) -> None:
        limits = Limits(7, 60_000, 3, 1_000, 2)
        assert storage.limits(QUEUE) == NO_LIMITS
        assert storage.set_limits(QUEUE, limits) == limits
        assert peer.limits(QUEUE) == limits
        assert peer.limits(OTHER) == NO_LIMITS
        assert peer.set_limits(QUEUE, Limits(max_length=5)) == Limits(max_length=5)
        assert storage.limits(QUEUE) == Limits(max_length=5)
        put(peer, *(f"job-{n}" for n in range(5)))
        with pytest.raises(QueueFullError):
            put(storage, "job-5")

    def test_only_new_limits_leave_those_that_are_set(self, storage: Storage, peer: Storage) -> None:
        first = Limits(max_concurrency=2)
        assert storage.set_limits(QUEUE, first, only_new=True) == first
        assert peer.set_limits(QUEUE, Limits(max_concurrency=9), only_new=True) == first
        assert peer.limits(QUEUE) == first

    def test_limits_stay_when_the_queue_is_purged(self, storage: Storage) -> None:
        storage.set_limits(QUEUE, ONE)
        put(storage, "a")
        storage.purge(QUEUE)
        assert storage.limits(QUEUE) == ONE

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (ONE, Limits(max_concurrency=2)),
            (ONE, NO_LIMITS),
            (Limits(rate=1, rate_ms=DAY), Limits(rate=1_000)),
            (Limits(rate=1, rate_ms=DAY), NO_LIMITS),
        ],
    )
    def test_i33_a_limit_that_is_raised_or_lifted_rings(
        self, storage: Storage, peer: Storage, before: Limits, after: Limits
    ) -> None:
        _held_by(storage, before)
        assert_rings(storage, peer, lambda: storage.set_limits(QUEUE, after), "work")
        storage.skew_ms += 1_000
        peer.skew_ms = storage.skew_ms
        assert take_one(peer).id == "next"

    @pytest.mark.parametrize("limits", [ONE, Limits(rate=1, rate_ms=DAY)])
    def test_a_held_queue_rings_nobody_over_and_over(self, storage: Storage, limits: Limits) -> None:
        bell = storage.doorbell([QUEUE], "work")
        _held_by(storage, limits)
        silence(bell)
        for _ in range(3):
            answer = claim(storage, BOB, 5)
            assert (answer.jobs, answer.more) == ([], False)
        assert bell.wait(0.05) is None
        bell.close()

    @pytest.mark.parametrize("limits", [Limits(max_concurrency=9), Limits(rate=1_000)])
    def test_a_limited_claim_takes_one(self, storage: Storage, limits: Limits) -> None:
        storage.set_limits(QUEUE, limits)
        put(storage, *"abc")
        answer = claim(storage, limit=10)
        assert ([job.id for job in answer.jobs], answer.more) == (["a"], True)

    @pytest.mark.parametrize("limits", [NO_LIMITS, Limits(max_length=3, group_concurrency=2)])
    def test_an_unlimited_claim_takes_many(self, storage: Storage, limits: Limits) -> None:
        storage.set_limits(QUEUE, limits)
        put(storage, *"abc")
        assert len(take(storage, limit=10)) == 3

    # -- rate -------------------------------------------------------------------------

    def test_i46_a_claim_beyond_the_rate_waits_for_its_token(self, storage: Storage, peer: Storage) -> None:
        storage.set_limits(QUEUE, Limits(rate=3, rate_ms=30_000))
        put(storage, *"abcd")
        assert take_one(storage).id == "a"
        answer = claim(peer, BOB)
        assert (answer.jobs, answer.more) == ([], False)
        assert answer.wait_ms is not None
        assert 5_000 < answer.wait_ms <= 10_000
        peer.skew_ms = storage.skew_ms = 5_000
        answer = claim(storage)
        assert answer.jobs == []
        assert answer.wait_ms is not None
        assert 0 < answer.wait_ms <= 5_000
        peer.skew_ms = storage.skew_ms = 10_000
        assert take_one(peer).id == "b"
        assert take(storage) == []

    @pytest.mark.parametrize(("rate", "rate_ms"), [(1, 1_000), (3, 1_000), (7, 60_000), (1, HOUR), (40, 7)])
    def test_i46_wait_ms_tells_when_the_next_token_is_there(self, storage: Storage, rate: int, rate_ms: int) -> None:
        storage.set_limits(QUEUE, Limits(rate=rate, rate_ms=rate_ms))
        put(storage, *(f"job-{n:03}" for n in range(200)))
        held = 0
        for _ in range(60):
            answer = claim(storage)
            if not answer.jobs:
                assert answer.wait_ms is not None
                assert 1 <= answer.wait_ms <= rate_ms // rate + 1
                held += 1
                storage.skew_ms += answer.wait_ms
                assert len(take(storage)) == 1
            if held == 4:
                break

    def test_i46_an_idle_time_earns_no_more_than_the_burst(self, storage: Storage) -> None:
        storage.set_limits(QUEUE, Limits(rate=100))  # ten tokens in BURST_MS, one more each 10 ms
        put(storage, *(f"job-{n:03}" for n in range(60)))
        for _ in range(2):
            storage.skew_ms += HOUR
            began = time.monotonic()
            taken = 0
            while taken < 30 and take(storage):
                taken += 1
            assert 10 <= taken <= 11 + (time.monotonic() - began) * 100

    def test_i46_a_slow_rate_earns_one_token(self, storage: Storage) -> None:
        storage.set_limits(QUEUE, Limits(rate=60, rate_ms=HOUR))
        put(storage, *(f"job-{n}" for n in range(9)))
        for _ in range(3):
            assert take_one(storage)
            assert take(storage) == []
            storage.skew_ms += 10 * HOUR

    def test_i46_the_rate_holds_over_time(self, storage: Storage) -> None:
        storage.set_limits(QUEUE, Limits(rate=4, rate_ms=40_000))
        put(storage, *(f"job-{n:02}" for n in range(30)))
        taken = 0
        for _ in range(25):  # looking more often earns nothing, nor does half a token get lost
            taken += len(take(storage))
            storage.skew_ms += 5_000
        assert taken == 13

    def test_i46_the_rate_holds_across_all_workers(self, storage: Storage, peer: Storage) -> None:
        storage.set_limits(QUEUE, Limits(rate=1, rate_ms=HOUR))
        put(storage, *(f"job-{n}" for n in range(8)))
        workers = [partial(take, (storage, peer)[n % 2], Worker(f"w{n}", "00"), 2) for n in range(6)]
        assert sum(len(jobs) for jobs in together(workers)) == 1

    def test_i46_a_claim_of_nothing_takes_no_token(self, storage: Storage) -> None:
        storage.set_limits(QUEUE, Limits(rate=1, rate_ms=HOUR))
        for _ in range(3):
            answer = claim(storage)
            assert (answer.jobs, answer.more, answer.wait_ms) == ([], False, None)
        put_and_take(storage, "a")

    def test_i46_every_claim_of_a_job_takes_a_token(self, storage: Storage) -> None:
        storage.set_limits(QUEUE, Limits(rate=1, rate_ms=HOUR))
        put(storage, "a")
        run(storage, Verb.RETRY, error=b"e")
        assert take(storage) == []
        storage.skew_ms += HOUR
        run(storage, Verb.RELEASE)
        assert take(storage) == []

    # -- slots ------------------------------------------------------------------------

    def test_i45_no_more_jobs_than_max_concurrency_hold_leases(self, storage: Storage, peer: Storage) -> None:
        storage.set_limits(QUEUE, Limits(max_concurrency=3))
        put(storage, *(f"job-{n:02}" for n in range(20)))
        workers = [partial(take, (storage, peer)[n % 2], Worker(f"w{n}", "00"), 5) for n in range(8)]
        assert sum(len(jobs) for jobs in together(workers)) == 3
        answer = claim(storage)
        assert (answer.jobs, answer.more, answer.wait_ms) == ([], False, None)
        assert counted(storage) == {State.PROCESSING: 3, State.QUEUED: 17}

    @pytest.mark.parametrize("end", ENDS)
    def test_i45_the_end_of_a_lease_frees_its_slot_and_rings(self, storage: Storage, peer: Storage, end: str) -> None:
        upkeep(storage)
        _held_by(storage, ONE)
        snapshot = storage.read(QUEUE, ["running"])[0]
        job = Claimed("running", snapshot.nonce, snapshot.token, 1, 3, 0, 0, False, b"")
        assert_rings(storage, peer, lambda: ENDS[end](storage, job), "work")
        assert len(take(peer, BOB, 5)) == 1
        assert take(peer, BOB, 5) == []

    def test_i45_an_expired_lease_is_still_a_slot(self, storage: Storage) -> None:
        _held_by(storage, ONE)
        storage.skew_ms += 10 * HOUR
        assert take(storage, BOB) == []
        upkeep(storage)
        storage.leave(QUEUE, ALICE.key)
        assert len(take(storage, BOB)) == 1

    def test_i45_a_lowered_limit_holds_until_enough_have_ended(self, storage: Storage) -> None:
        put(storage, *"abcde")
        jobs = [take_one(storage) for _ in range(3)]
        storage.set_limits(QUEUE, ONE)
        for job in jobs[:2]:
            settle(storage, job)
            assert take(storage) == []
        settle(storage, jobs[2])
        assert take_one(storage).id == "d"
        assert take(storage) == []

    def test_i45_slots_of_two_queues_are_their_own(self, storage: Storage) -> None:
        storage.set_limits(QUEUE, ONE)
        storage.set_limits(OTHER, ONE)
        for queue in (QUEUE, OTHER):
            put(storage, "a", "b", queue=queue)
            assert take_one(storage, queue=queue).id == "a"
            assert take(storage, queue=queue) == []

    def test_i45_a_held_queue_hands_out_when_purged_and_filled_again(self, storage: Storage) -> None:
        """A slot is the lease itself: what a purge leaves running still has it, and nothing else."""
        _held_by(storage, ONE)
        assert storage.purge(QUEUE) == 1
        put(storage, "next")
        assert take(storage) == []
        storage.leave(QUEUE, ALICE.key)
        assert len(take(storage)) == 1

    # -- length -----------------------------------------------------------------------

    def test_a_job_beyond_max_length_is_refused_with_its_whole_batch(self, storage: Storage) -> None:
        storage.set_limits(QUEUE, Limits(max_length=3))
        put(storage, "a", "b")
        before = picture(storage, *"abcde")
        with pytest.raises(QueueFullError):
            put(storage, "c", "d")
        assert picture(storage, *"abcde") == before
        put(storage, "c")
        with pytest.raises(QueueFullError):
            storage.enqueue(QUEUE, [record("e")], waiter="w1", wait_ms=60_000)
        assert_placed(storage, {"a": State.QUEUED, "b": State.QUEUED, "c": State.QUEUED, "e": State.ABSENT})
        assert storage.read(QUEUE, ["e"])[0].cause == "unknown"

    def test_duplicates_and_repeats_are_answered_by_a_full_queue(self, storage: Storage) -> None:
        storage.set_limits(QUEUE, Limits(max_length=3))
        settle(storage, put_and_take(storage, "done"), result=b"r")
        own = record("a")
        assert [a.status for a in storage.enqueue(QUEUE, [own, record("a"), record("b")])] == [
            "queued", "duplicate", "queued",
        ]  # fmt: skip
        put(storage, "c")
        assert not is_refused(storage, "a", "b", "done")
        assert [answer.status for answer in put(storage, "a", "b", "done")] == ["duplicate", "duplicate", "completed"]
        assert storage.enqueue(QUEUE, [own])[0].status == "queued"
        assert is_refused(storage, "a", "d")
        assert state_of(storage, "d") is State.ABSENT

    def test_max_length_counts_what_waits_for_its_run(self, storage: Storage) -> None:
        put(storage, "failing")
        run(storage, Verb.RETRY, error=b"e", delay_ms=HOUR)
        put_and_take(storage, "running")
        put(storage, "scheduled", delay_ms=HOUR)
        put(storage, "waiting", after=["running"])
        put(storage, "queued")
        storage.set_limits(QUEUE, Limits(max_length=4))
        with pytest.raises(QueueFullError):
            put(storage, "a")
        storage.set_limits(QUEUE, Limits(max_length=5))
        put(storage, "a")
        with pytest.raises(QueueFullError):
            put(storage, "b")
        for number, id in enumerate(["failing", "scheduled", "waiting", "queued"]):
            cancel(storage, id)
            put(storage, f"new-{number}")
        assert len(take(storage, limit=5)) == 5
        put(storage, *"bcdef")

    def test_a_full_queue_keeps_its_dead_letter(self, storage: Storage) -> None:
        put(storage, "dead")
        run(storage, Verb.FAIL, error=b"e")
        put(storage, "a")
        storage.set_limits(QUEUE, Limits(max_length=1))
        before = picture(storage, "dead", "a")
        with pytest.raises(QueueFullError):
            put(storage, "dead")
        assert picture(storage, "dead", "a") == before

    def test_a_job_that_returns_is_never_refused(self, storage: Storage) -> None:
        """Only what is new can find a queue full."""
        storage.set_limits(QUEUE, Limits(max_length=2))
        put(storage, "dead")
        run(storage, Verb.FAIL, error=b"e")
        jobs = []
        for id in ("retried", "released", "recovered"):
            put(storage, id)
            jobs.append(take_one(storage))
        put(storage, "a", "b")
        settle(storage, jobs[0], Verb.RETRY, error=b"e")
        settle(storage, jobs[1], Verb.RELEASE)
        storage.leave(QUEUE, ALICE.key)
        assert storage.revive(QUEUE, ["dead"]) == ["dead"]
        assert counted(storage) == {State.QUEUED: 6}

    # -- what is left to do -----------------------------------------------------------

    def test_backlog_counts_what_is_left_to_work_off(self, storage: Storage) -> None:
        assert storage.backlog(QUEUE) == 0
        settle(storage, put_and_take(storage, "done"))
        put(storage, "dead", "failing")
        run(storage, Verb.FAIL, error=b"e")
        run(storage, Verb.RETRY, error=b"e", delay_ms=5_000)
        put_and_take(storage, "running")
        put(storage, "waiting", after=["running"])
        put(storage, "head", "blocked", group="g")
        put(storage, "scheduled", delay_ms=10_000)
        assert storage.backlog(QUEUE) == 5
        jump(storage, 11_000)
        assert storage.backlog(QUEUE) == 6
        storage.pause(QUEUE, True)
        assert storage.backlog(QUEUE) == 1
        storage.pause(QUEUE, False)
        storage.purge(QUEUE)
        assert storage.backlog(QUEUE) == 1

    def test_backlog_of_a_queue_that_its_rate_holds(self, storage: Storage, peer: Storage) -> None:
        storage.set_limits(QUEUE, Limits(rate=1, rate_ms=HOUR))
        put(storage, "a", "b", "c")
        assert peer.backlog(QUEUE) == 3
        take_one(storage)
        assert peer.backlog(QUEUE) == 1
        peer.skew_ms = storage.skew_ms = 2 * HOUR
        assert peer.backlog(QUEUE) == 3

    def test_backlog_of_a_queue_without_a_free_slot(self, storage: Storage) -> None:
        _held_by(storage, ONE)
        assert storage.backlog(QUEUE) == 2
