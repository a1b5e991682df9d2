"""I29-I34, I50 and I51: what a reaper does with jobs that nobody looks after, and with those that are due."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from ...lifecycle import State
from ...storage.base import Storage, Verb, Worker
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    DAY,
    INTERVAL,
    LEASE,
    QUEUE,
    TTL,
    WORKER_TTL,
    assert_placed,
    cancel,
    counted,
    drain,
    extend,
    held,
    jump,
    listed,
    look,
    pass_time,
    picture,
    put,
    put_and_take,
    settle,
    state_of,
    take,
    take_one,
    together,
    upkeep,
)


class RecoveryContract(ContractBase):
    """Nothing stays with a worker that is gone."""

    def test_i29_a_lease_past_its_deadline_is_recovered(self, storage: Storage) -> None:
        """Also while its worker lives."""
        upkeep(storage)
        job = put_and_take(storage, "a")
        assert pass_time(storage, LEASE - 5_000, alive=[(ALICE, [])]) == []
        assert state_of(storage, "a") is State.PROCESSING
        assert pass_time(storage, 7_000, alive=[(ALICE, [])]) == [("stalled", "a")]
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.attempts, snapshot.worker) == (State.QUEUED, 1, None)
        assert extend(storage, ALICE, [job]).lost == [held(job)]
        assert settle(storage, job) is None

    def test_i29_all_leases_of_a_worker_past_its_heartbeat_are_recovered(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "a", "b")
        take_one(storage, ALICE, lease_ms=10 * LEASE)
        other = take_one(storage, BOB, lease_ms=10 * LEASE)
        assert pass_time(storage, WORKER_TTL - 5_000, alive=[(BOB, [other])]) == []
        assert pass_time(storage, 7_000, alive=[(BOB, [other])]) == [("stalled", "a")]
        assert_placed(storage, {"a": State.QUEUED, "b": State.PROCESSING})
        assert [worker.key for worker in storage.workers(QUEUE)] == [BOB.key]

    def test_i32_recovery_takes_at_most_one_interval_beyond_the_deadline(self, storage: Storage) -> None:
        upkeep(storage)
        put_and_take(storage, "a", max_attempts=1)
        pass_time(storage, WORKER_TTL - INTERVAL)
        assert state_of(storage, "a") is State.PROCESSING
        pass_time(storage, 2 * INTERVAL)
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.is_exhausted) == (State.FAILED, True)

    def test_a_recovery_that_uses_up_the_attempts_says_so(self, storage: Storage) -> None:
        upkeep(storage)
        put_and_take(storage, "a", max_attempts=1)
        changes = pass_time(storage, WORKER_TTL + 2 * INTERVAL)
        assert ("failed", "a") in changes
        assert_placed(storage, {"a": State.FAILED})
        assert storage.revive(QUEUE, None) == ["a"]
        job = take_one(storage)
        assert (job.attempts, job.token) == (1, 2)

    def test_a_recovery_that_counts_leaves_an_error(self, storage: Storage) -> None:
        """The history tells why an attempt is missing; an uncounted recovery is no attempt."""
        put(storage, "a", "b")
        take(storage, limit=2)
        storage.leave(QUEUE, ALICE.key)
        assert look(storage, "a").errors == ()
        take_one(storage)
        storage.leave(QUEUE, ALICE.key)
        [(_, worker, attempt, error)] = look(storage, "a").errors
        assert (worker, attempt) == (ALICE.key, 1)
        assert b'"StalledError"' in error

    @pytest.mark.parametrize("way", ["cancel", "purge"])
    def test_i53_the_history_goes_with_its_record(self, storage: Storage, way: str) -> None:
        """Also of a job that was only ever recovered and whose attempts began anew."""
        put_and_take(storage, "a", max_attempts=1)
        storage.leave(QUEUE, ALICE.key)
        assert storage.revive(QUEUE, ["a"]) == ["a"]
        assert len(look(storage, "a").errors) == 1
        if way == "cancel":
            cancel(storage, "a")
        else:
            storage.purge(QUEUE)
        put(storage, "a")
        assert look(storage, "a").errors == ()

    def test_i36_a_recovered_job_whose_cancel_was_requested_is_removed(self, storage: Storage) -> None:
        upkeep(storage)
        put_and_take(storage, "a")
        assert cancel(storage, "a", running=True) == "cancelling"
        assert ("cancelled", "a") in pass_time(storage, WORKER_TTL + 2 * INTERVAL)
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.cause) == (State.ABSENT, "cancelled")
        assert_placed(storage, {"a": State.ABSENT})
        assert take(storage) == []

    def test_i31_any_number_of_reapers_gives_one_outcome(self, storage: Storage, peer: Storage) -> None:
        upkeep(storage)
        ids = [f"job-{n:02}" for n in range(40)]
        put(storage, *ids)
        while take(storage, ALICE, 1):
            pass
        put(storage, "later", delay_ms=5_000)
        pass_time(storage, WORKER_TTL - INTERVAL)
        storage.skew_ms += INTERVAL
        peer.skew_ms = storage.skew_ms
        answers = together([partial(upkeep, view) for view in (storage, peer) * 3])
        storage.skew_ms += INTERVAL
        answers.append(upkeep(storage))
        assert Counter(change for answer in answers for change in answer) == Counter(("stalled", id) for id in ids)
        assert counted(storage) == {State.QUEUED: 41}
        jobs = drain(storage, BOB)
        assert sorted(jobs) == sorted([*ids, "later"])
        assert jobs[-1] == "later"
        assert all(look(storage, id).attempts == 2 for id in ids)

    def test_i31_a_reap_in_small_steps_ends_where_one_step_does(self, storage: Storage) -> None:
        upkeep(storage)
        ids = [f"job-{n}" for n in range(10)]
        put(storage, *ids)
        put(storage, *(f"due-{n}" for n in range(10)), delay_ms=WORKER_TTL)
        while take(storage, ALICE, 1):
            pass
        for _ in range(WORKER_TTL // INTERVAL + 2):
            storage.skew_ms += INTERVAL
            steps = 0
            while storage.reap(QUEUE, interval_ms=INTERVAL, limit=3).more:
                steps += 1
                assert steps < 100
        assert counted(storage) == {State.QUEUED: 20}
        assert sorted(drain(storage, BOB)[:10]) == ids

    def test_reaps_within_half_an_interval_only_promote(self, storage: Storage) -> None:
        put(storage, "a", "later")
        upkeep(storage, 10_000_000)  # of an empty queue nothing need be remembered
        cancel(storage, "later")
        put(storage, "later", delay_ms=20_000)
        take_one(storage)
        storage.skew_ms += WORKER_TTL + 10_000
        upkeep(storage, 10_000_000)
        assert_placed(storage, {"a": State.PROCESSING, "later": State.QUEUED})

    def test_i33_after_a_pause_of_the_storage_workers_get_a_ttl_of_grace(self, storage: Storage) -> None:
        """A worker that could send no heartbeat because the storage was away is not dead yet."""
        put(storage, "a")
        upkeep(storage)
        job = take_one(storage)
        storage.skew_ms += 60_000
        assert upkeep(storage) == []
        assert state_of(storage, "a") is State.PROCESSING
        extend(storage, ALICE, [job])
        assert pass_time(storage, WORKER_TTL - 2_000) == []
        assert settle(storage, job) is State.COMPLETED

    def test_i33_the_grace_ends(self, storage: Storage) -> None:
        put(storage, "a")
        upkeep(storage)
        take_one(storage)
        storage.skew_ms += 60_000
        assert upkeep(storage) == []
        assert pass_time(storage, max(WORKER_TTL, LEASE) + 2 * INTERVAL) == [("stalled", "a")]

    def test_i33_grace_comes_once_between_two_heartbeats(self, storage: Storage) -> None:
        put(storage, "a")
        upkeep(storage)
        take_one(storage)
        storage.skew_ms += 60_000
        assert upkeep(storage) == []
        storage.skew_ms += 60_000
        assert upkeep(storage) == [("stalled", "a")]

    def test_i33_grace_comes_again_after_a_heartbeat(self, storage: Storage) -> None:
        put(storage, "a")
        upkeep(storage)
        job = take_one(storage)
        for _ in range(3):
            storage.skew_ms += 60_000
            assert upkeep(storage) == []
            assert extend(storage, ALICE, [job]).lost == []
        assert settle(storage, job) is State.COMPLETED

    def test_i33_a_worker_that_was_dead_before_the_pause_gets_no_grace(self, storage: Storage) -> None:
        """Its deadline had passed at the previous reap, which only had no time for it."""
        put(storage, *(f"job-{n}" for n in range(4)))
        upkeep(storage)
        while take(storage, ALICE, 1):
            pass
        pass_time(storage, WORKER_TTL)
        storage.skew_ms += INTERVAL
        storage.reap(QUEUE, interval_ms=INTERVAL, limit=1)
        storage.skew_ms += 60_000
        upkeep(storage)
        assert counted(storage) == {State.QUEUED: 4}

    def test_i51_a_worker_that_leaves_hands_back_what_it_holds(self, storage: Storage) -> None:
        put(storage, "a", "b", "c")
        take_one(storage)
        take_one(storage)
        other = take_one(storage, BOB)
        assert storage.leave(QUEUE, ALICE.key) == 2
        assert [worker.key for worker in storage.workers(QUEUE)] == [BOB.key]
        assert_placed(storage, {"a": State.QUEUED, "b": State.QUEUED, "c": State.PROCESSING})
        assert settle(storage, other, worker=BOB) is State.COMPLETED
        assert storage.leave(QUEUE, ALICE.key) == 0
        assert storage.leave(QUEUE, "nobody~00") == 0
        assert sorted(drain(storage, BOB)) == ["a", "b"]

    def test_i51_a_clean_stop_leaves_nothing(self, storage: Storage) -> None:
        job = put_and_take(storage, "a")
        settle(storage, job)
        assert storage.leave(QUEUE, ALICE.key) == 0
        assert storage.workers(QUEUE) == []
        assert state_of(storage, "a") is State.COMPLETED

    def test_a_heartbeat_registers_again(self, storage: Storage) -> None:
        """A worker that was taken for dead finds its jobs lost and goes on."""
        upkeep(storage)
        job = put_and_take(storage, "a")
        pass_time(storage, WORKER_TTL + 2 * INTERVAL)
        assert storage.workers(QUEUE) == []
        assert extend(storage, ALICE, [job]).lost == [held(job)]
        assert [worker.key for worker in storage.workers(QUEUE)] == [ALICE.key]

    def test_workers_of_one_label_are_two(self, storage: Storage) -> None:
        first, second = Worker("same", "01"), Worker("same", "02")
        put(storage, "a", "b")
        kept = take_one(storage, first)
        take_one(storage, second)
        assert storage.leave(QUEUE, second.key) == 1
        assert extend(storage, first, [kept]).lost == []
        assert [worker.key for worker in storage.workers(QUEUE)] == [first.key]

    def test_worker_labels_may_hold_any_sign(self, storage: Storage) -> None:
        labels = ["a~b", "~", "../x", "{orders}", "x:y:z", "*", "ä'\"%"]
        odd = [Worker(label, f"0{number}") for number, label in enumerate(labels)]
        for number, worker in enumerate(odd):
            put(storage, f"job-{number}")
            job = take_one(storage, worker)
            assert look(storage, job.id).worker == worker.key
        assert sorted(info.key for info in storage.workers(QUEUE)) == sorted(worker.key for worker in odd)
        for worker in odd:
            assert storage.leave(QUEUE, worker.key) == 1
        assert storage.workers(QUEUE) == []

    @pytest.mark.parametrize("source", ["scheduled", "failing"])
    def test_i34_a_job_is_never_delivered_before_it_is_due(self, storage: Storage, source: str) -> None:
        upkeep(storage)
        if source == "scheduled":
            put(storage, "a", delay_ms=10_000)
        else:
            settle(storage, put_and_take(storage, "a"), Verb.RETRY, error=b"e", delay_ms=10_000)
        for _ in range(9):
            storage.skew_ms += 1_000
            assert upkeep(storage) == []
            assert take(storage) == []
        storage.skew_ms += 1_100
        upkeep(storage)
        assert_placed(storage, {"a": State.QUEUED})
        assert take_one(storage).id == "a"

    def test_i03_a_due_entry_is_that_of_the_present_incarnation(self, storage: Storage) -> None:
        put(storage, "a", delay_ms=5_000, message=b"first")
        cancel(storage, "a")
        put(storage, "a", delay_ms=20_000, message=b"second")
        jump(storage, 10_000)
        assert_placed(storage, {"a": State.SCHEDULED})
        jump(storage, 11_000)
        assert_placed(storage, {"a": State.QUEUED})
        assert take_one(storage).message == b"second"
        jump(storage, 10_000)
        assert_placed(storage, {"a": State.PROCESSING})

    def test_a_reap_tells_when_the_next_job_is_due(self, storage: Storage) -> None:
        assert storage.reap(QUEUE, interval_ms=INTERVAL).next_due_ms is None
        put(storage, "a", delay_ms=90_000)
        put(storage, "b", delay_ms=50_000)
        due = storage.reap(QUEUE, interval_ms=INTERVAL).next_due_ms
        assert due is not None
        assert 45_000 < due <= 50_000
        cancel(storage, "b")
        due = storage.reap(QUEUE, interval_ms=INTERVAL).next_due_ms
        assert due is not None
        assert 85_000 < due <= 90_000
        jump(storage, 91_000)
        assert storage.reap(QUEUE, interval_ms=INTERVAL).next_due_ms is None

    def test_promotion_keeps_the_order_of_due_times_and_priorities(self, storage: Storage) -> None:
        for id, delay, priority in [("c", 30_000, 0), ("a", 10_000, 0), ("b", 20_000, 0), ("high", 35_000, 5)]:
            put(storage, id, delay_ms=delay, priority=priority)
        jump(storage, 40_000)
        assert drain(storage) == ["high", "a", "b", "c"]

    def test_many_due_jobs_are_promoted_in_bounded_steps(self, storage: Storage) -> None:
        ids = [f"job-{n:04}" for n in range(1_500)]
        put(storage, *ids, delay_ms=1_000)
        storage.skew_ms += 2_000
        assert storage.reap(QUEUE, interval_ms=INTERVAL, limit=1_000).more
        assert 0 < counted(storage)[State.QUEUED] <= 1_000
        upkeep(storage)
        assert counted(storage) == {State.QUEUED: len(ids)}
        assert sorted(listed(storage, State.QUEUED)) == ids

    def test_i07_a_live_job_needs_nothing_that_expires(self, storage: Storage) -> None:
        put(storage, "queued", result_ttl_ms=1_000, dedup_ttl_ms=1_000, dead_ttl_ms=1_000)
        put(storage, "scheduled", delay_ms=500 * DAY, result_ttl_ms=1_000)
        settle(storage, put_and_take(storage, "failing", priority=9), Verb.RETRY, error=b"e", delay_ms=500 * DAY)
        for _ in range(4):
            jump(storage, 100 * DAY)
        assert_placed(storage, {"queued": State.QUEUED, "scheduled": State.SCHEDULED, "failing": State.FAILING})
        assert look(storage, "failing").errors[0][3] == b"e"
        assert take_one(storage).message == b"payload"

    def test_i50_nothing_is_recovered_while_all_is_well(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "a", "b", "c", "d")
        jobs = take(storage, ALICE, 2)
        put(storage, "later", delay_ms=10 * TTL)
        before = picture(storage, "a", "b", "c", "d", "later")
        assert pass_time(storage, 2 * TTL, alive=[(ALICE, jobs)]) == []
        assert picture(storage, "a", "b", "c", "d", "later") == before
