"""I21-I28: how a run ends, once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ...lifecycle import State
from ...storage.base import HISTORY, TOMBSTONE_MS, Outcome, Storage, Verb
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    INTERVAL,
    LEASE,
    QUEUE,
    TTL,
    WORKER_TTL,
    assert_placed,
    cancel,
    drain,
    extend,
    held,
    jump,
    look,
    now,
    outcome,
    pass_time,
    picture,
    put,
    put_and_take,
    settle,
    settle_all,
    state_of,
    take,
    take_one,
    together,
    upkeep,
)

#: Where each verb leads while attempts are left and nobody cancelled.
EXPECTED = {
    Verb.COMPLETE: State.COMPLETED,
    Verb.RETRY: State.QUEUED,
    Verb.FAIL: State.FAILED,
    Verb.RELEASE: State.QUEUED,
}


class SettleContract(ContractBase):
    """First come, first served, and only the holder."""

    def test_i23_complete_shows_state_and_result_together(self, storage: Storage) -> None:
        job = put_and_take(storage, "a")
        assert settle(storage, job, result=b"done") is State.COMPLETED
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.result, snapshot.worker) == (State.COMPLETED, b"done", None)
        assert snapshot.expires_at_ms is not None
        assert_placed(storage, {"a": State.COMPLETED})

    def test_i23_fail_shows_state_and_error_together(self, storage: Storage) -> None:
        job = put_and_take(storage, "a")
        at_ms = now(storage)
        assert settle(storage, job, Verb.FAIL, error=b"boom") is State.FAILED
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.result, snapshot.attempts) == (State.FAILED, None, 1)
        [(when, worker, attempt, error)] = snapshot.errors
        assert (worker, attempt, error) == (ALICE.key, 1, b"boom")
        assert at_ms <= when <= now(storage)
        assert not snapshot.is_exhausted
        assert snapshot.expires_at_ms is not None
        assert_placed(storage, {"a": State.FAILED})

    def test_i23_no_reader_sees_the_final_state_without_the_result(self, storage: Storage, peer: Storage) -> None:
        for number in range(20):
            id = f"job-{number}"
            job = put_and_take(storage, id)

            def watch(id: str = id) -> object:
                while (snapshot := look(peer, id)).state is not State.COMPLETED:
                    pass
                return snapshot.result

            steps: list[Callable[[], object]] = [partial(settle, storage, job, result=b"done"), watch]
            assert together(steps) == [State.COMPLETED, b"done"]

    def test_i05_a_finished_job_has_no_position_due_entry_or_lease(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "a", "b", result_ttl_ms=10 * TTL, dead_ttl_ms=10 * TTL)
        first, second = take_one(storage), take_one(storage)
        settle(storage, first)
        settle(storage, second, Verb.FAIL, error=b"x")
        assert [worker.processing for worker in storage.workers(QUEUE)] == [0]
        assert pass_time(storage, LEASE + 2 * INTERVAL) == []
        assert take(storage, BOB) == []
        assert extend(storage, ALICE, [first]).lost == [held(first)]

    def test_i21_nobody_but_the_present_holder_settles(self, storage: Storage) -> None:
        put(storage, "a")
        old = take_one(storage)
        storage.leave(QUEUE, ALICE.key)
        new = take_one(storage, BOB)
        before = picture(storage, "a")
        strangers = [
            outcome(old),
            Outcome("a", new.nonce, new.token + 1, Verb.COMPLETE),
            Outcome("a", new.nonce, 0, Verb.COMPLETE),
            Outcome("a", b"another!", new.token, Verb.COMPLETE),
            Outcome("unknown", new.nonce, new.token, Verb.COMPLETE),
        ]
        for stranger in strangers:
            for verb in Verb:
                item = Outcome(stranger.id, stranger.nonce, stranger.token, verb, b"r", b"e")
                assert settle_all(storage, [item])[0].is_lost
        assert picture(storage, "a") == before
        assert settle(storage, new, worker=BOB) is State.COMPLETED

    def test_i21_a_replaced_incarnation_cannot_settle_its_successor(self, storage: Storage) -> None:
        old = put_and_take(storage, "a")
        assert cancel(storage, "a", running=True) == "cancelling"
        storage.leave(QUEUE, ALICE.key)
        assert state_of(storage, "a") is State.ABSENT
        new = put_and_take(storage, "a", BOB, message=b"new")
        assert (new.token, new.nonce != old.nonce) == (1, True)
        before = picture(storage, "a")
        for verb in Verb:
            assert settle(storage, old, verb, result=b"late", error=b"late") is None
        assert extend(storage, ALICE, [old]).lost == [held(old)]
        assert picture(storage, "a") == before
        assert settle(storage, new, worker=BOB, result=b"right") is State.COMPLETED
        assert look(storage, "a").result == b"right"

    def test_i21_an_extension_renews_only_the_leases_that_are_the_workers_own(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "a", "b")
        mine, other = take_one(storage, ALICE, lease_ms=5_000), take_one(storage, BOB, lease_ms=5_000)
        answer = extend(storage, ALICE, [mine, other], lease_ms=60_000)
        assert (answer.lost, answer.cancelled, answer.orphans) == ([held(other)], [], [])
        changes = pass_time(storage, 8_000)
        assert changes == [("stalled", "b")]
        assert state_of(storage, "a") is State.PROCESSING

    def test_an_extension_never_shortens_a_lease(self, storage: Storage) -> None:
        upkeep(storage)
        job = put_and_take(storage, "a")
        extend(storage, ALICE, [job], lease_ms=1_000)
        assert pass_time(storage, 10_000) == []
        assert settle(storage, job) is State.COMPLETED

    def test_i22_an_expired_lease_still_belongs_to_its_holder(self, storage: Storage) -> None:
        job = put_and_take(storage, "a", BOB)
        storage.skew_ms += 10 * LEASE
        assert state_of(storage, "a") is State.PROCESSING
        assert settle(storage, job, worker=BOB, result=b"late") is State.COMPLETED
        upkeep(storage)
        assert look(storage, "a").result == b"late"

    def test_i24_a_final_state_is_final(self, storage: Storage) -> None:
        put(storage, "a", "b")
        first, second = take_one(storage), take_one(storage)
        settle(storage, first, result=b"done")
        settle(storage, second, Verb.FAIL, error=b"boom")
        before = picture(storage, "a", "b")
        for job in (first, second):
            for verb in Verb:
                settle(storage, job, verb, result=b"other", error=b"other")
                newer = Outcome(job.id, job.nonce, job.token + 1, verb, b"other", b"other")
                assert settle_all(storage, [newer])[0].is_lost
        assert storage.cancel(QUEUE, ["a", "b"], running=True) == ["completed", "failed"]
        assert storage.revive(QUEUE, ["a"]) == []
        assert storage.discard(QUEUE, ["a"]) == []
        upkeep(storage)
        assert picture(storage, "a", "b") == before

    @pytest.mark.parametrize("verb", Verb)
    def test_i25_repeating_a_settle_gives_the_first_answer(self, storage: Storage, verb: Verb) -> None:
        job = put_and_take(storage, "a", max_attempts=5)
        first = settle(storage, job, verb, result=b"r", error=b"e")
        before = picture(storage, "a")
        assert settle(storage, job, verb, result=b"r", error=b"e") is first
        assert settle(storage, job, verb, result=b"other", error=b"other") is first
        assert picture(storage, "a") == before

    @pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RELEASE])
    def test_i25_until_the_next_settle_of_the_incarnation(self, storage: Storage, verb: Verb) -> None:
        first = put_and_take(storage, "a", max_attempts=5)
        settle(storage, first, verb, error=b"e")
        second = take_one(storage, BOB)
        before = picture(storage, "a")
        assert settle(storage, first, verb, error=b"e") is State.QUEUED
        assert picture(storage, "a") == before
        assert settle(storage, second, worker=BOB) is State.COMPLETED
        assert settle(storage, first, verb, error=b"e") is None

    @pytest.mark.parametrize("way", ["cancelled", "purged", "discarded", "replaced", "expired"])
    def test_i25_for_a_minute_after_the_record_went(self, storage: Storage, way: str) -> None:
        upkeep(storage)
        job = put_and_take(storage, "a", dead_ttl_ms=5_000)
        expected: State | None = State.FAILED
        if way == "cancelled":
            cancel(storage, "a", running=True)
            expected = State.ABSENT
        assert settle(storage, job, Verb.FAIL, error=b"e") is expected
        if way == "purged":
            storage.purge(QUEUE)
        elif way == "discarded":
            storage.discard(QUEUE, ["a"])
        elif way == "replaced":
            put(storage, "a")
        elif way == "expired":
            jump(storage, 6_000)
        storage.skew_ms += INTERVAL
        upkeep(storage)  # which sweeps what a purge left
        before = picture(storage, "a")
        assert settle(storage, job, Verb.FAIL, error=b"e") is expected
        assert picture(storage, "a") == before
        jump(storage, TOMBSTONE_MS + TTL)
        assert settle(storage, job, Verb.FAIL, error=b"e") is None

    def test_i25_a_run_that_never_settled_is_lost_when_its_record_went(self, storage: Storage) -> None:
        job = put_and_take(storage, "a")
        cancel(storage, "a", running=True)
        storage.leave(QUEUE, ALICE.key)
        for verb in Verb:
            assert settle(storage, job, verb) is None
        assert state_of(storage, "a") is State.ABSENT

    def test_i26_a_retry_with_a_delay_waits_as_failing(self, storage: Storage) -> None:
        job = put_and_take(storage, "a", message=b"payload")
        at_ms = now(storage)
        assert settle(storage, job, Verb.RETRY, error=b"e", delay_ms=5_000) is State.FAILING
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.message, snapshot.worker) == (State.FAILING, b"payload", None)
        assert snapshot.due_at_ms is not None
        assert at_ms + 5_000 <= snapshot.due_at_ms <= now(storage) + 5_000
        assert_placed(storage, {"a": State.FAILING})
        assert take(storage) == []
        jump(storage, 5_100)
        assert_placed(storage, {"a": State.QUEUED})
        job = take_one(storage)
        assert (job.attempts, job.token, job.message) == (2, 2, b"payload")

    def test_i26_a_retry_without_a_delay_queues_at_once(self, storage: Storage) -> None:
        job = put_and_take(storage, "a")
        assert settle(storage, job, Verb.RETRY, error=b"e") is State.QUEUED
        assert_placed(storage, {"a": State.QUEUED})
        assert look(storage, "a").due_at_ms is None

    def test_i27_used_up_attempts_end_in_the_dead_letters(self, storage: Storage) -> None:
        job = put_and_take(storage, "a", max_attempts=1)
        assert settle(storage, job, Verb.RETRY, error=b"e", delay_ms=5_000) is State.FAILED
        snapshot = look(storage, "a")
        assert (snapshot.is_exhausted, snapshot.attempts, snapshot.due_at_ms) == (True, 1, None)
        assert snapshot.errors[-1][3] == b"e"
        jump(storage, 6_000)
        assert take(storage) == []

    def test_i28_a_batch_is_settled_item_by_item(self, storage: Storage) -> None:
        put(storage, *"abcdefg")
        jobs = {job.id: job for job in take(storage, limit=6)}
        cancel(storage, "e", running=True)
        answers = settle_all(
            storage,
            [
                Outcome("a", jobs["a"].nonce, 99, Verb.COMPLETE),
                outcome(jobs["b"], result=b"done"),
                Outcome("unknown", b"12345678", 1, Verb.FAIL),
                outcome(jobs["c"], Verb.RETRY, error=b"e"),
                outcome(jobs["d"], Verb.FAIL, error=b"e"),
                outcome(jobs["e"], Verb.RELEASE),
                outcome(jobs["f"], Verb.RELEASE),
                outcome(jobs["b"], result=b"again"),
            ],
        )
        S = State
        assert [a.state for a in answers] == [
            None, S.COMPLETED, None, S.QUEUED, S.FAILED, S.ABSENT, S.QUEUED, S.COMPLETED,
        ]  # fmt: skip
        assert look(storage, "b").result == b"done"
        assert_placed(
            storage,
            {
                "a": S.PROCESSING, "b": S.COMPLETED, "c": S.QUEUED, "d": S.FAILED, "e": S.ABSENT, "f": S.QUEUED,
                "g": S.QUEUED,
            },
        )  # fmt: skip
        assert drain(storage) == ["f", "g", "c"]

    @pytest.mark.parametrize("second", Verb)
    @pytest.mark.parametrize("first", Verb)
    def test_i25_of_two_outcomes_of_one_run_in_a_batch_the_first_stands(
        self, storage: Storage, first: Verb, second: Verb
    ) -> None:
        job = put_and_take(storage, "a", max_attempts=5)
        items = [outcome(job, first, result=b"1", error=b"1"), outcome(job, second, result=b"2", error=b"2")]
        one, two = settle_all(storage, items)
        assert one.state is two.state is EXPECTED[first]
        assert_placed(storage, {"a": EXPECTED[first]})
        snapshot = look(storage, "a")
        assert snapshot.result == (b"1" if first is Verb.COMPLETE else None)
        assert [error for *_, error in snapshot.errors] == ([b"1"] if first in (Verb.RETRY, Verb.FAIL) else [])

    def test_settle_of_nothing(self, storage: Storage) -> None:
        assert storage.settle(QUEUE, ALICE, []) == []

    def test_a_large_batch_of_large_results(self, storage: Storage) -> None:
        put(storage, *(f"job-{n}" for n in range(9)))
        jobs = take(storage, limit=9)
        settle_all(storage, [outcome(job, result=job.id.encode() * 60_000) for job in jobs])
        for job in jobs:
            assert look(storage, job.id).result == job.id.encode() * 60_000

    def test_release_gives_the_attempt_back_but_not_the_token(self, storage: Storage) -> None:
        job = put_and_take(storage, "a", max_attempts=1)
        assert settle(storage, job, Verb.RELEASE) is State.QUEUED
        snapshot = look(storage, "a")
        assert (snapshot.attempts, snapshot.token, snapshot.errors) == (0, 1, ())
        job = take_one(storage)
        assert (job.attempts, job.token) == (1, 2)

    def test_the_history_keeps_the_last_errors_oldest_first(self, storage: Storage) -> None:
        put(storage, "a", max_attempts=HISTORY + 3)
        for number in range(1, HISTORY + 3):
            settle(storage, take_one(storage), Verb.RETRY, error=b"error %d" % number)
        settle(storage, take_one(storage, BOB), Verb.FAIL, BOB, error=b"the end")
        errors = look(storage, "a").errors
        last = HISTORY + 3
        assert [attempt for _, _, attempt, _ in errors] == list(range(last - HISTORY + 1, last + 1))
        assert errors[0][3] == b"error %d" % errors[0][2]
        assert errors[-1][1:] == (BOB.key, last, b"the end")
        assert [when for when, *_ in errors] == sorted(when for when, *_ in errors)

    def test_an_outcome_may_set_its_own_ttl(self, storage: Storage) -> None:
        put(storage, "a", "b", result_ttl_ms=5_000, dedup_ttl_ms=5_000, dead_ttl_ms=5_000)
        settle(storage, take_one(storage), result=b"r", ttl_ms=60_000)
        settle(storage, take_one(storage), Verb.FAIL, error=b"e", ttl_ms=60_000)
        jump(storage, 30_000)
        assert look(storage, "a").result == b"r"
        assert state_of(storage, "b") is State.FAILED
        jump(storage, 31_000)
        assert_placed(storage, {"a": State.ABSENT, "b": State.ABSENT})

    def test_i25_of_two_concurrent_outcomes_the_first_stands(self, storage: Storage, peer: Storage) -> None:
        for number in range(20):
            id = f"job-{number}"
            job = put_and_take(storage, id)
            answers = together(
                [partial(settle, storage, job, result=b"r"), partial(settle, peer, job, Verb.FAIL, error=b"e")]
            )
            snapshot = look(storage, id)
            assert set(answers) == {snapshot.state}
            assert (snapshot.result, len(snapshot.errors)) in ((b"r", 0), (None, 1))

    def test_i30_settle_against_recovery_first_come_first_served(self, storage: Storage, peer: Storage) -> None:
        for number in range(20):
            id, worker = f"job-{number}", ALICE
            put(storage, id)
            job = take_one(storage, worker)
            steps: list[Callable[[], object]] = [
                partial(settle, storage, job, result=b"r"),
                partial(peer.leave, QUEUE, worker.key),
            ]
            answer, recovered = together(steps)
            if recovered:
                assert (answer, state_of(storage, id)) == (None, State.QUEUED)
                assert cancel(storage, id) == "cancelled"
            else:
                assert (answer, state_of(storage, id)) == (State.COMPLETED, State.COMPLETED)

    def test_i01_an_id_is_in_one_place_all_its_life(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "a", delay_ms=1_000, max_attempts=2)
        assert_placed(storage, {"a": State.SCHEDULED})
        jump(storage, 2_000)
        assert_placed(storage, {"a": State.QUEUED})
        job = take_one(storage)
        assert_placed(storage, {"a": State.PROCESSING})
        settle(storage, job, Verb.RETRY, error=b"e", delay_ms=1_000)
        assert_placed(storage, {"a": State.FAILING})
        jump(storage, 2_000)
        assert_placed(storage, {"a": State.QUEUED})
        take_one(storage)
        pass_time(storage, WORKER_TTL + 2 * INTERVAL)
        assert_placed(storage, {"a": State.FAILED})
        storage.revive(QUEUE, ["a"])
        assert_placed(storage, {"a": State.QUEUED})
        settle(storage, take_one(storage))
        assert_placed(storage, {"a": State.COMPLETED})
        jump(storage, TTL + 1_000)
        assert_placed(storage, {"a": State.ABSENT})
