"""I35 and I36: cancelling; and purge, pause and the dead letters, which end or revive jobs from outside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ...lifecycle import State
from ...storage.base import MAX_BATCH, Storage, Verb
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    INTERVAL,
    QUEUE,
    TTL,
    assert_placed,
    cancel,
    counted,
    drain,
    extend,
    held,
    jump,
    listed,
    look,
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


def fail(storage: Storage, *ids: str, error: bytes = b"e") -> None:
    """Bring new jobs into the dead letters, in this order."""
    for id in ids:
        settle(storage, put_and_take(storage, id), Verb.FAIL, error=error)


class CancelContract(ContractBase):
    """Ends that come from outside."""

    def test_i35_cancel_answers_by_state(self, storage: Storage) -> None:
        put(storage, "scheduled", delay_ms=60_000)
        fail(storage, "failed")
        settle(storage, put_and_take(storage, "completed"))
        settle(storage, put_and_take(storage, "failing"), Verb.RETRY, error=b"e", delay_ms=60_000)
        put_and_take(storage, "processing")
        put(storage, "queued")
        ids = ["queued", "absent", "scheduled", "failing", "processing", "completed", "failed"]
        assert storage.cancel(QUEUE, ids) == [
            "cancelled", "not_found", "cancelled", "cancelled", "processing", "completed", "failed",
        ]  # fmt: skip
        S = State
        states = [S.ABSENT, S.ABSENT, S.ABSENT, S.ABSENT, S.PROCESSING, S.COMPLETED, S.FAILED]
        assert_placed(storage, dict(zip(ids, states, strict=True)))
        assert [look(storage, id).cause for id in ("queued", "absent", "scheduled")] == [
            "cancelled", "unknown", "cancelled",
        ]  # fmt: skip
        assert storage.cancel(QUEUE, ["queued"]) == ["not_found"]
        jump(storage, 61_000)
        assert set(drain(storage)) <= {"processing"}  # its lease ran out; nothing else comes back

    def test_cancel_of_nothing_and_of_the_same_id_twice(self, storage: Storage) -> None:
        put(storage, "a")
        assert storage.cancel(QUEUE, []) == []
        assert storage.cancel(QUEUE, ["a", "a"]) == ["cancelled", "not_found"]

    def test_i35_cancel_against_claim_one_of_them_wins(self, storage: Storage, peer: Storage) -> None:
        for number in range(30):
            id = f"job-{number}"
            put(storage, id)
            steps: list[Callable[[], object]] = [partial(cancel, storage, id), partial(take, peer, BOB)]
            status, _ = together(steps)
            jobs = [snapshot for snapshot in storage.read(QUEUE, [id]) if snapshot.state is State.PROCESSING]
            assert (status, len(jobs)) in (("cancelled", 0), ("processing", 1))
            assert storage.leave(QUEUE, BOB.key) == len(jobs)
            assert storage.cancel(QUEUE, [id]) == (["cancelled"] if jobs else ["not_found"])

    def test_i36_the_request_reaches_the_holder(self, storage: Storage, peer: Storage) -> None:
        put(storage, "a", "b")
        jobs = take(storage, limit=2)
        assert cancel(peer, "a", running=True) == "cancelling"
        assert cancel(peer, "a", running=True) == "cancelling"
        assert look(storage, "a").cancel_requested
        assert not look(storage, "b").cancel_requested
        assert_placed(storage, {"a": State.PROCESSING, "b": State.PROCESSING})
        answer = extend(storage, ALICE, jobs)
        assert (answer.lost, answer.cancelled) == ([], [held(jobs[0])])

    def test_i36_without_running_a_running_job_is_left_alone(self, storage: Storage) -> None:
        job = put_and_take(storage, "a")
        before = picture(storage, "a")
        assert cancel(storage, "a") == "processing"
        assert picture(storage, "a") == before
        assert extend(storage, ALICE, [job]).cancelled == []

    def test_i36_a_cancelled_run_ends_once_however_often_a_batch_says_so(self, storage: Storage) -> None:
        put(storage, "a", "b")
        first, second = take(storage, limit=2)
        cancel(storage, "a", running=True)
        items = [outcome(first, verb, error=b"e") for verb in (Verb.RELEASE, Verb.FAIL, Verb.RETRY, Verb.RELEASE)]
        assert [answer.state for answer in settle_all(storage, items)] == [State.ABSENT] * 4
        assert_placed(storage, {"a": State.ABSENT, "b": State.PROCESSING})
        settle(storage, second)
        assert_placed(storage, {"a": State.ABSENT, "b": State.COMPLETED})

    def test_i36_complete_wins_over_a_request(self, storage: Storage) -> None:
        job = put_and_take(storage, "a")
        cancel(storage, "a", running=True)
        assert settle(storage, job, result=b"done") is State.COMPLETED
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.result, snapshot.cancel_requested) == (State.COMPLETED, b"done", False)

    @pytest.mark.parametrize("verb", [Verb.RETRY, Verb.FAIL, Verb.RELEASE])
    def test_i36_a_cancelled_run_is_never_retried(self, storage: Storage, verb: Verb) -> None:
        job = put_and_take(storage, "a")
        cancel(storage, "a", running=True)
        assert settle(storage, job, verb, error=b"e", delay_ms=1_000) is State.ABSENT
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.cause) == (State.ABSENT, "cancelled")
        assert_placed(storage, {"a": State.ABSENT})
        jump(storage, 5_000)
        assert take(storage) == []
        assert [worker.processing for worker in storage.workers(QUEUE)] == [0]

    def test_a_cancelled_id_is_free_at_once(self, storage: Storage) -> None:
        put(storage, "a", message=b"old")
        cancel(storage, "a")
        assert put(storage, "a", message=b"new")[0].status == "queued"
        assert take_one(storage).message == b"new"

    def test_a_purge_makes_all_but_the_running_absent_at_once(self, storage: Storage, peer: Storage) -> None:
        settle(storage, put_and_take(storage, "completed"), result=b"r")
        fail(storage, "failed")
        settle(storage, put_and_take(storage, "failing"), Verb.RETRY, error=b"e", delay_ms=5_000)
        put(storage, "scheduled", delay_ms=5_000)
        running = put_and_take(storage, "running")
        put(storage, "queued-1", "queued-2")
        gone = ["completed", "failed", "failing", "scheduled", "queued-1", "queued-2"]
        assert storage.purge(QUEUE) == 6
        for view in (storage, peer):
            assert_placed(view, {**dict.fromkeys(gone, State.ABSENT), "running": State.PROCESSING})
        for id in gone:
            snapshot = look(storage, id)
            assert (snapshot.cause, snapshot.message, snapshot.result) == ("purged", b"", None)
        assert storage.cancel(QUEUE, gone) == ["not_found"] * 6
        assert storage.revive(QUEUE, None) == []
        assert storage.discard(QUEUE, gone) == []
        assert storage.update_ttl(QUEUE, "completed", 5_000) == "not_found"
        assert storage.purge(QUEUE) == 0
        jump(storage, 6_000)
        assert take(storage, BOB) == []
        assert settle(storage, running, result=b"done") is State.COMPLETED

    def test_a_job_that_ran_through_a_purge_lives_on(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "completes", "retries", "waits", "fails", "released", "cancelled")
        jobs = {id: take_one(storage) for id in ("completes", "retries", "waits", "fails", "released", "cancelled")}
        assert storage.purge(QUEUE) == 0
        settle(storage, jobs["completes"], result=b"r")
        settle(storage, jobs["retries"], Verb.RETRY, error=b"e")
        settle(storage, jobs["waits"], Verb.RETRY, error=b"e", delay_ms=4_000)
        settle(storage, jobs["fails"], Verb.FAIL, error=b"e")
        settle(storage, jobs["released"], Verb.RELEASE)
        S = State
        expected = {
            "completes": S.COMPLETED, "retries": S.QUEUED, "waits": S.FAILING, "fails": S.FAILED,
            "released": S.QUEUED, "cancelled": S.PROCESSING,
        }  # fmt: skip
        assert_placed(storage, expected)
        pass_time(storage, 5_000, alive=[(ALICE, [jobs["cancelled"]])])
        assert_placed(storage, {**expected, "waits": S.QUEUED})
        assert look(storage, "completes").result == b"r"
        assert put(storage, "retries")[0].status == "duplicate"
        assert drain(storage, BOB) == ["released", "retries", "waits"]

    def test_a_purged_id_is_free_at_once(self, storage: Storage) -> None:
        settle(storage, put_and_take(storage, "done"), result=b"old")
        put(storage, "queued", message=b"old")
        storage.purge(QUEUE)
        answers = put(storage, "queued", "done", message=b"new")
        assert [answer.status for answer in answers] == ["queued", "queued"]
        assert look(storage, "done").result is None
        for _ in range(3):
            storage.skew_ms += INTERVAL
            upkeep(storage)  # which sweeps what the purge left and nothing else
        assert_placed(storage, {"queued": State.QUEUED, "done": State.QUEUED})
        assert [(job.id, job.message) for job in take(storage, limit=9)] == [("queued", b"new"), ("done", b"new")]

    def test_a_purge_of_many_is_swept_in_bounded_steps(self, storage: Storage) -> None:
        upkeep(storage)
        ids = [f"job-{n}" for n in range(MAX_BATCH * 2 + 10)]
        put(storage, *ids)
        put(storage, "more", priority=4)
        assert storage.purge(QUEUE) == len(ids) + 1
        assert counted(storage) == {}
        for _ in range(3):
            storage.skew_ms += INTERVAL
            upkeep(storage)
        assert_placed(storage, {"job-0": State.ABSENT})
        put(storage, "job-0")
        assert drain(storage) == ["job-0"]

    def test_i37_revive_takes_dead_letters_to_the_end_of_the_queue(self, storage: Storage) -> None:
        fail(storage, "a", "b", "c", error=b"boom")
        put(storage, "first")
        before = look(storage, "b")
        assert storage.revive(QUEUE, ["b", "first", "unknown"]) == ["b"]
        snapshot = look(storage, "b")
        assert (snapshot.state, snapshot.attempts, snapshot.token, snapshot.nonce) == (
            State.QUEUED, 0, before.token, before.nonce,
        )  # fmt: skip
        assert not snapshot.is_exhausted
        assert snapshot.expires_at_ms is None
        assert_placed(storage, {"a": State.FAILED, "b": State.QUEUED, "c": State.FAILED, "first": State.QUEUED})
        assert drain(storage) == ["first", "b"]

    def test_a_revived_job_outlives_its_dead_letter(self, storage: Storage) -> None:
        fail(storage, "a")
        storage.revive(QUEUE, ["a"])
        jump(storage, TTL + 1_000)
        assert state_of(storage, "a") is State.QUEUED
        settle(storage, take_one(storage), result=b"r")
        assert look(storage, "a").result == b"r"

    def test_revive_without_ids_takes_the_oldest(self, storage: Storage) -> None:
        fail(storage, "c", "a")
        storage.skew_ms += 1_000
        fail(storage, "b")
        assert sorted(storage.revive(QUEUE, None, limit=2)) == ["a", "c"]
        assert storage.revive(QUEUE, None) == ["b"]
        assert storage.revive(QUEUE, None) == []
        assert_placed(storage, dict.fromkeys("abc", State.QUEUED))

    def test_revive_keeps_the_priority(self, storage: Storage) -> None:
        put(storage, "a", priority=5)
        settle(storage, take_one(storage), Verb.FAIL, error=b"e")
        put(storage, "b")
        storage.revive(QUEUE, ["a"])
        assert drain(storage) == ["a", "b"]

    def test_discard_removes_dead_letters_only(self, storage: Storage) -> None:
        fail(storage, "dead")
        put(storage, "queued")
        assert storage.discard(QUEUE, ["queued", "unknown", "dead"]) == ["dead"]
        snapshot = look(storage, "dead")
        assert (snapshot.state, snapshot.cause, snapshot.errors) == (State.ABSENT, "discarded", ())
        assert_placed(storage, {"dead": State.ABSENT, "queued": State.QUEUED})
        assert storage.discard(QUEUE, ["dead"]) == []

    def test_dead_letters_beyond_the_bound_of_one_step(self, storage: Storage) -> None:
        ids = [f"job-{n}" for n in range(MAX_BATCH + 200)]
        put(storage, *ids)
        while jobs := take(storage, limit=MAX_BATCH):
            settle_all(storage, [outcome(job, Verb.FAIL, error=b"e") for job in jobs])
        assert sorted(listed(storage, State.FAILED)) == sorted(ids)
        assert storage.discard(QUEUE, ids[:100]) == ids[:100]
        assert sorted(storage.revive(QUEUE, ids)) == sorted(ids[100:])
        assert counted(storage) == {State.QUEUED: MAX_BATCH + 100}
