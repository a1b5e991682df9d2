"""I8-I12: what enqueue accepts, refuses and repeats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ...lifecycle import State
from ...storage.base import MAX_BATCH, TOMBSTONE_MS, Enqueued, Storage, Verb
from .base import ContractBase
from .steps import (
    ALICE,
    QUEUE,
    TTL,
    assert_placed,
    cancel,
    counted,
    drain,
    jump,
    look,
    nonce,
    now,
    picture,
    put,
    put_and_take,
    record,
    settle,
    state_of,
    take,
    take_one,
    together,
    upkeep,
)


def _complete(storage: Storage, id: str) -> None:
    settle(storage, take_one(storage), result=b"done")


def _fail(storage: Storage, id: str) -> None:
    settle(storage, take_one(storage), Verb.FAIL, error=b"no")


def _replace(storage: Storage, id: str) -> None:
    _fail(storage, id)
    put(storage, id, message=b"newer")


def _discard(storage: Storage, id: str) -> None:
    _fail(storage, id)
    storage.discard(QUEUE, [id])


def _expire(storage: Storage, id: str) -> None:
    _complete(storage, id)
    jump(storage, TTL + 1_000)


def _purge_and_sweep(storage: Storage, id: str) -> None:
    upkeep(storage)
    storage.purge(QUEUE)
    storage.skew_ms += 1_000
    upkeep(storage)


#: What may have happened between an enqueue and its repetition.
MEANWHILE: dict[str, Callable[[Storage, str], object]] = {
    "nothing": lambda storage, id: None,
    "claimed": lambda storage, id: take(storage),
    "retried": lambda storage, id: settle(storage, take_one(storage), Verb.RETRY, error=b"again"),
    "completed": _complete,
    "failed": _fail,
    "cancelled": lambda storage, id: cancel(storage, id),
    "purged": lambda storage, id: storage.purge(QUEUE),
    "purged-and-swept": _purge_and_sweep,
    "expired": _expire,
    "discarded": _discard,
    "replaced": _replace,
}


class EnqueueContract(ContractBase):
    """One id, one live job."""

    def test_enqueue_answers_in_order(self, storage: Storage) -> None:
        records = [record("b"), record("a", delay_ms=5_000), record("c", priority=9)]
        assert storage.enqueue(QUEUE, records) == [
            Enqueued("b", "queued", State.QUEUED, records[0].nonce),
            Enqueued("a", "queued", State.SCHEDULED, records[1].nonce),
            Enqueued("c", "queued", State.QUEUED, records[2].nonce),
        ]
        assert_placed(storage, {"a": State.SCHEDULED, "b": State.QUEUED, "c": State.QUEUED})

    def test_enqueue_of_nothing(self, storage: Storage) -> None:
        assert storage.enqueue(QUEUE, []) == []

    def test_i08_of_concurrent_enqueues_one_is_accepted(self, storage: Storage, peer: Storage) -> None:
        for attempt in range(10):
            id = f"job-{attempt}"
            contenders = [storage, peer] * 4
            nonces = [nonce() for _ in contenders]
            answers = together(
                [
                    partial(contender.enqueue, QUEUE, [record(id, nonce=own)])
                    for contender, own in zip(contenders, nonces, strict=True)
                ]
            )
            accepted = [answer for [answer] in answers if answer.status == "queued"]
            assert len(accepted) == 1
            assert {answer.nonce for [answer] in answers} == {accepted[0].nonce}
            assert {answer.status for [answer] in answers} == {"queued", "duplicate"}
        assert counted(storage) == {State.QUEUED: 10}
        assert sorted(drain(storage)) == sorted(f"job-{n}" for n in range(10))

    def test_i08_concurrent_batches_in_opposite_order_share_the_ids(self, storage: Storage, peer: Storage) -> None:
        ids = [f"job-{n}" for n in range(50)]
        answers = together([lambda: put(storage, *ids), lambda: put(peer, *reversed(ids))])
        accepted = sorted(answer.id for batch in answers for answer in batch if answer.status == "queued")
        assert accepted == sorted(ids)
        assert sorted(drain(storage)) == sorted(ids)

    def test_i08_the_same_id_twice_in_one_batch(self, storage: Storage) -> None:
        first, second = record("a", message=b"first"), record("a", message=b"second")
        answers = storage.enqueue(QUEUE, [first, second])
        assert [answer.status for answer in answers] == ["queued", "duplicate"]
        assert {answer.nonce for answer in answers} == {first.nonce}
        assert [job.message for job in take(storage, limit=5)] == [b"first"]

    def test_i09_a_refused_duplicate_changes_nothing(self, storage: Storage) -> None:
        [first] = put(storage, "a", message=b"first")
        put(storage, "b")
        before = picture(storage, "a", "b")
        storage.skew_ms += 1_000
        answers = put(storage, "a", message=b"second", priority=9, delay_ms=60_000, max_attempts=9, result_ttl_ms=1)
        assert answers == [Enqueued("a", "duplicate", State.QUEUED, first.nonce)]
        assert picture(storage, "a", "b") == before
        assert drain(storage) == ["a", "b"]

    def test_i09_a_duplicate_of_a_completed_job_gets_its_result(self, storage: Storage) -> None:
        job = put_and_take(storage, "a")
        settle(storage, job, result=b"done")
        before = picture(storage, "a")
        assert put(storage, "a", message=b"x") == [Enqueued("a", "completed", State.COMPLETED, job.nonce, b"done")]
        assert picture(storage, "a") == before
        assert take(storage) == []

    def test_i10_the_first_accepted_enqueue_fixes_payload_and_options(self, storage: Storage) -> None:
        put(storage, "a", message=b"first", max_attempts=1, priority=3, result_ttl_ms=5_000, dedup_ttl_ms=9_000)
        put(storage, "a", message=b"second", max_attempts=7, priority=0, result_ttl_ms=90_000, dedup_ttl_ms=90_000)
        job = take_one(storage)
        assert (job.message, job.max_attempts, job.priority, job.attempts) == (b"first", 1, 3, 1)
        settle(storage, job, result=b"done")
        jump(storage, 6_000)
        assert look(storage, "a").result is None
        jump(storage, 4_000)
        assert state_of(storage, "a") is State.ABSENT

    @pytest.mark.parametrize("meanwhile", MEANWHILE)
    def test_i11_repeating_an_enqueue_gives_the_first_answer(self, storage: Storage, meanwhile: str) -> None:
        original = record("a", message=b"original")
        storage.enqueue(QUEUE, [original])
        MEANWHILE[meanwhile](storage, "a")
        before = picture(storage, "a")
        [answer] = storage.enqueue(QUEUE, [original])
        assert (answer.id, answer.status) == ("a", "queued")
        assert answer.nonce in (original.nonce, before.records[0].nonce)
        assert picture(storage, "a") == before

    def test_i11_a_repeated_batch_accepts_only_what_is_new(self, storage: Storage) -> None:
        old = [record("a"), record("b")]
        storage.enqueue(QUEUE, old)
        cancel(storage, "b")
        answers = storage.enqueue(QUEUE, [*old, record("c")])
        assert [answer.status for answer in answers] == ["queued"] * 3
        assert_placed(storage, {"a": State.QUEUED, "b": State.ABSENT, "c": State.QUEUED})

    def test_i11_one_batch_may_repeat_several_lives_of_an_id(self, storage: Storage) -> None:
        lives = [record("a"), record("a"), record("a")]
        for life in lives:
            storage.enqueue(QUEUE, [life])
            cancel(storage, "a")
        assert [answer.status for answer in storage.enqueue(QUEUE, lives)] == ["queued"] * 3
        assert_placed(storage, {"a": State.ABSENT})

    def test_i11_a_tombstone_lapses(self, storage: Storage) -> None:
        upkeep(storage)
        original = record("a")
        storage.enqueue(QUEUE, [original])
        cancel(storage, "a")
        assert look(storage, "a").cause == "cancelled"
        jump(storage, TOMBSTONE_MS + 1_000)
        assert look(storage, "a").cause == "unknown"
        assert storage.enqueue(QUEUE, [original])[0].status == "queued"
        assert state_of(storage, "a") is State.QUEUED

    def test_i11_the_tombstone_of_a_replaced_incarnation_leaves_the_new_one_alone(self, storage: Storage) -> None:
        first, second = record("a", message=b"first"), record("a", message=b"second")
        storage.enqueue(QUEUE, [first])
        cancel(storage, "a")
        storage.enqueue(QUEUE, [second])
        [answer] = storage.enqueue(QUEUE, [first])
        assert (answer.status, answer.state) == ("queued", State.QUEUED)
        assert [job.message for job in take(storage, limit=9)] == [b"second"]

    def test_i12_an_acknowledged_enqueue_is_seen_by_every_user_of_the_data(
        self, storage: Storage, peer: Storage
    ) -> None:
        put(storage, "a", message=b"here")
        assert look(peer, "a") == look(storage, "a")
        assert take_one(peer).message == b"here"

    def test_a_batch_beyond_the_bound_of_one_step(self, storage: Storage) -> None:
        ids = [f"job-{n}" for n in range(MAX_BATCH * 2 + 50)]
        answers = put(storage, *ids)
        assert [answer.id for answer in answers] == ids
        assert counted(storage) == {State.QUEUED: len(ids)}
        assert [snapshot.id for snapshot in storage.read(QUEUE, ids)] == ids
        assert storage.cancel(QUEUE, ids) == ["cancelled"] * len(ids)
        assert counted(storage) == {}
        assert take(storage) == []

    def test_at_wins_over_delay(self, storage: Storage) -> None:
        at_ms = now(storage) + 50_000
        put(storage, "a", at_ms=at_ms, delay_ms=1)
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.due_at_ms) == (State.SCHEDULED, at_ms)

    def test_due_in_the_past_is_due_at_once(self, storage: Storage) -> None:
        [answer] = put(storage, "a", at_ms=now(storage) - 5_000, delay_ms=70_000)
        assert answer.state is State.QUEUED
        assert look(storage, "a").due_at_ms is None
        assert take_one(storage).id == "a"

    def test_a_new_record_as_it_is_read(self, storage: Storage) -> None:
        at_ms = now(storage)
        original = record("a", message=b"\x00m", max_attempts=4, priority=2)
        storage.enqueue(QUEUE, [original])
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.nonce, snapshot.message) == (State.QUEUED, original.nonce, b"\x00m")
        assert (snapshot.attempts, snapshot.max_attempts, snapshot.token, snapshot.priority) == (0, 4, 0, 2)
        assert (snapshot.worker, snapshot.result, snapshot.errors) == (None, None, ())
        assert (snapshot.due_at_ms, snapshot.expires_at_ms) == (None, None)
        assert not snapshot.cancel_requested
        assert not snapshot.is_exhausted
        assert at_ms <= snapshot.created_at_ms <= now(storage)

    def test_i24_a_failed_id_may_be_enqueued_at_once(self, storage: Storage) -> None:
        old = put_and_take(storage, "a", message=b"old", max_attempts=1)
        settle(storage, old, Verb.FAIL, error=b"boom")
        new = record("a", message=b"new", max_attempts=5)
        assert storage.enqueue(QUEUE, [new]) == [Enqueued("a", "queued", State.QUEUED, new.nonce)]
        snapshot = look(storage, "a")
        assert (snapshot.nonce, snapshot.message, snapshot.errors, snapshot.attempts) == (new.nonce, b"new", (), 0)
        assert_placed(storage, {"a": State.QUEUED})
        assert storage.revive(QUEUE, None) == []
        job = take_one(storage)
        assert (job.message, job.max_attempts, job.attempts) == (b"new", 5, 1)

    def test_i24_a_completed_id_is_new_once_its_dedup_window_is_over(self, storage: Storage) -> None:
        """The old result goes in the step of the new enqueue (I39)."""
        settle(storage, put_and_take(storage, "a", result_ttl_ms=90_000, dedup_ttl_ms=5_000), result=b"old")
        storage.skew_ms += 4_000
        assert put(storage, "a")[0].status == "completed"
        storage.skew_ms += 2_000
        assert look(storage, "a").result == b"old"
        [answer] = put(storage, "a", message=b"new")
        assert (answer.status, answer.state, answer.result) == ("queued", State.QUEUED, None)
        assert look(storage, "a").result is None
        assert_placed(storage, {"a": State.QUEUED})
        assert take_one(storage).message == b"new"

    def test_a_completed_id_without_its_result_is_still_a_duplicate(self, storage: Storage) -> None:
        job = put_and_take(storage, "a", result_ttl_ms=5_000, dedup_ttl_ms=15_000)
        settle(storage, job, result=b"old")
        storage.skew_ms += 6_000
        assert put(storage, "a") == [Enqueued("a", "duplicate", State.COMPLETED, job.nonce)]
        storage.skew_ms += 10_000
        assert put(storage, "a")[0].status == "queued"

    def test_nonces_are_any_bytes(self, storage: Storage) -> None:
        nonces = [bytes(8), b"a:b\n\r\x00{}", b"\xff" * 8, b"        ", b"1234.500", b"'\"--\\%_*"]
        for number, odd in enumerate(nonces):
            id = f"job-{number}"
            assert storage.enqueue(QUEUE, [record(id, nonce=odd)])[0].nonce == odd
            assert look(storage, id).nonce == odd
            job = take_one(storage, ALICE)
            assert job.nonce == odd
            assert settle(storage, job) is State.COMPLETED
            assert storage.enqueue(QUEUE, [record(id, nonce=odd)])[0].status == "queued"
