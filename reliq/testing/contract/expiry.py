"""I39, I40 and I53: everything finished goes, each thing at its own time."""

from __future__ import annotations

from typing import Any

import pytest

from ...lifecycle import STORED, State
from ...storage.base import TOMBSTONE_MS, Enqueued, Storage, Verb
from .base import ContractBase
from .steps import (
    QUEUE,
    TTL,
    assert_placed,
    cancel,
    counted,
    drain,
    jump,
    listed,
    look,
    now,
    outcome,
    pass_time,
    put,
    put_and_take,
    settle,
    settle_all,
    state_of,
    take,
    take_one,
    upkeep,
)


def complete(storage: Storage, id: str, result: bytes = b"r", **options: Any) -> None:
    """Bring a new job to its end."""
    settle(storage, put_and_take(storage, id, **options), result=result)


class ExpiryContract(ContractBase):
    """Records, results and dead letters have their time."""

    def test_i39_the_result_goes_before_a_longer_record(self, storage: Storage) -> None:
        upkeep(storage)
        complete(storage, "a", result_ttl_ms=10_000, dedup_ttl_ms=30_000)
        storage.skew_ms += 9_000
        assert look(storage, "a").result == b"r"
        storage.skew_ms += 2_000
        for _ in range(2):  # the deadline decides, not whether a reaper came by
            snapshot = look(storage, "a")
            assert (snapshot.state, snapshot.result) == (State.COMPLETED, None)
            upkeep(storage)
        assert_placed(storage, {"a": State.COMPLETED})
        jump(storage, 20_000)
        assert_placed(storage, {"a": State.ABSENT})
        assert look(storage, "a").cause == "expired"

    def test_i39_the_record_stays_as_long_as_its_result(self, storage: Storage) -> None:
        upkeep(storage)
        complete(storage, "a", result_ttl_ms=30_000, dedup_ttl_ms=10_000)
        jump(storage, 20_000)
        assert look(storage, "a").result == b"r"
        jump(storage, 11_000)
        assert_placed(storage, {"a": State.ABSENT})

    def test_i39_past_its_end_an_id_is_absent_to_every_operation(self, storage: Storage) -> None:
        """Whether or not a reaper came by."""
        upkeep(storage)
        put(storage, "done", "dead")
        first, second = take_one(storage), take_one(storage)
        settle(storage, first, result=b"r")
        settle(storage, second, Verb.FAIL, error=b"e")
        storage.skew_ms += TTL + 1_000
        for id in ("done", "dead"):
            snapshot = look(storage, id)
            assert (snapshot.state, snapshot.cause, snapshot.result) == (State.ABSENT, "expired", None)
            assert cancel(storage, id) == "not_found"
            assert storage.update_ttl(QUEUE, id, 5_000) == "not_found"
            waited = storage.wait(QUEUE, id, timeout=5.0)
            assert waited is not None
            assert waited.state is State.ABSENT
        assert storage.discard(QUEUE, ["dead"]) == []
        assert storage.revive(QUEUE, ["dead"]) == []
        assert storage.revive(QUEUE, None) == []
        answers = put(storage, "done", "dead")
        assert [answer.status for answer in answers] == ["queued", "queued"]
        storage.skew_ms += 1_000
        upkeep(storage)
        assert_placed(storage, {"done": State.QUEUED, "dead": State.QUEUED})

    def test_i39_a_reap_takes_what_expired_from_counts_and_listings(self, storage: Storage) -> None:
        upkeep(storage)
        complete(storage, "done")
        settle(storage, put_and_take(storage, "dead", dead_ttl_ms=5_000), Verb.FAIL, error=b"e")
        assert pass_time(storage, 6_000) == [("expired", "dead")]
        assert_placed(storage, {"done": State.COMPLETED, "dead": State.ABSENT})
        assert pass_time(storage, TTL) == [("expired", "done")]
        assert_placed(storage, {"done": State.ABSENT, "dead": State.ABSENT})
        assert [listed(storage, state) for state in STORED] == [[] for _ in STORED]

    def test_i40_one_jobs_expiry_never_touches_anothers(self, storage: Storage) -> None:
        upkeep(storage)
        for number in range(1, 6):
            complete(storage, f"job-{number}", b"%d" % number, result_ttl_ms=number * 10_000, dedup_ttl_ms=1_000)
        put(storage, "live", result_ttl_ms=1)
        for number in range(1, 6):
            pass_time(storage, 10_000)
            for other in range(1, 6):
                expected = b"%d" % other if other > number else None
                assert look(storage, f"job-{other}").result == expected
        assert_placed(storage, {"live": State.QUEUED})

    def test_i39_a_new_incarnation_is_not_touched_by_the_old_ones_expiry(self, storage: Storage) -> None:
        upkeep(storage)
        complete(storage, "a", b"old", result_ttl_ms=10_000, dedup_ttl_ms=2_000)
        storage.skew_ms += 3_000
        complete(storage, "a", b"new", result_ttl_ms=60_000, dedup_ttl_ms=60_000)
        settle(storage, put_and_take(storage, "b", dead_ttl_ms=5_000), Verb.FAIL, error=b"e")
        put(storage, "b")
        pass_time(storage, 20_000)
        assert look(storage, "a").result == b"new"
        assert state_of(storage, "b") is State.QUEUED

    def test_i53_nothing_finished_stays_for_ever(self, storage: Storage) -> None:
        """Records, results, errors, tombstones and waiters of 300 jobs."""
        upkeep(storage)
        ids = [f"job-{n}" for n in range(300)]
        put(storage, *ids)
        jobs = take(storage, limit=300)
        settle_all(storage, [outcome(job, result=b"r") for job in jobs[:100]])
        settle_all(storage, [outcome(job, Verb.FAIL, error=b"e") for job in jobs[100:200]])
        settle_all(storage, [outcome(job, Verb.RELEASE) for job in jobs[200:]])
        assert storage.cancel(QUEUE, ids[200:]) == ["cancelled"] * 100
        pass_time(storage, TTL + 2_000)
        assert counted(storage) == {}
        jump(storage, TOMBSTONE_MS + 1_000)
        jump(storage, 1_000)
        assert {snapshot.cause for snapshot in storage.read(QUEUE, ids)} == {"unknown"}
        assert {snapshot.state for snapshot in storage.read(QUEUE, ids)} == {State.ABSENT}

    def test_update_ttl_of_a_completed_job(self, storage: Storage) -> None:
        upkeep(storage)
        complete(storage, "longer")
        complete(storage, "shorter", result_ttl_ms=60_000, dedup_ttl_ms=20_000)
        assert storage.update_ttl(QUEUE, "longer", 60_000) == "updated"
        assert storage.update_ttl(QUEUE, "shorter", 5_000) == "updated"
        jump(storage, 6_000)
        snapshot = look(storage, "shorter")
        assert (snapshot.state, snapshot.result) == (State.COMPLETED, None)  # its dedup window is still open
        jump(storage, 20_000)
        assert_placed(storage, {"longer": State.COMPLETED, "shorter": State.ABSENT})
        assert look(storage, "longer").result == b"r"
        jump(storage, 40_000)
        assert_placed(storage, {"longer": State.ABSENT, "shorter": State.ABSENT})

    def test_update_ttl_of_a_dead_letter(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "longer", "shorter")
        for job in take(storage, limit=2):
            settle(storage, job, Verb.FAIL, error=b"e")
        assert storage.update_ttl(QUEUE, "longer", 60_000) == "updated"
        assert storage.update_ttl(QUEUE, "shorter", 5_000) == "updated"
        jump(storage, 6_000)
        assert_placed(storage, {"longer": State.FAILED, "shorter": State.ABSENT})
        jump(storage, 50_000)
        assert state_of(storage, "longer") is State.FAILED
        jump(storage, 5_000)
        assert_placed(storage, {"longer": State.ABSENT})

    @pytest.mark.parametrize("way", ["outcome", "update_ttl"])
    def test_a_ttl_given_to_one_end_is_not_kept_for_the_next(self, storage: Storage, way: str) -> None:
        upkeep(storage)
        job = put_and_take(storage, "a", dead_ttl_ms=5_000)
        settle(storage, job, Verb.FAIL, error=b"e", ttl_ms=60_000 if way == "outcome" else None)
        if way == "update_ttl":
            assert storage.update_ttl(QUEUE, "a", 60_000) == "updated"
        jump(storage, 10_000)
        assert storage.revive(QUEUE, ["a"]) == ["a"]
        settle(storage, take_one(storage), Verb.FAIL, error=b"e")
        jump(storage, 6_000)
        assert_placed(storage, {"a": State.ABSENT})

    @pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RELEASE])
    def test_a_ttl_given_to_a_run_that_is_not_the_end_is_not_kept(self, storage: Storage, verb: Verb) -> None:
        settle(storage, put_and_take(storage, "a", result_ttl_ms=5_000, dedup_ttl_ms=5_000), verb, ttl_ms=60_000)
        settle(storage, take_one(storage), result=b"r")
        expires = look(storage, "a").expires_at_ms
        assert expires is not None
        assert expires <= now(storage) + 5_000

    def test_update_ttl_of_what_has_not_ended_or_is_gone(self, storage: Storage) -> None:
        assert storage.update_ttl(QUEUE, "unknown", 5_000) == "not_found"
        put(storage, "later", delay_ms=60_000)
        put(storage, "a")
        assert storage.update_ttl(QUEUE, "later", 5_000) == "not_terminal"
        assert storage.update_ttl(QUEUE, "a", 5_000) == "not_terminal"
        job = take_one(storage)
        assert storage.update_ttl(QUEUE, "a", 5_000) == "not_terminal"
        settle(storage, job, Verb.RETRY, error=b"e", delay_ms=60_000)
        assert storage.update_ttl(QUEUE, "a", 5_000) == "not_terminal"
        complete(storage, "done", result_ttl_ms=5_000, dedup_ttl_ms=60_000)
        storage.skew_ms += 6_000
        assert storage.update_ttl(QUEUE, "done", 5_000) == "not_found"
        assert state_of(storage, "done") is State.COMPLETED

    def test_ttls_count_from_the_end_of_the_job(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "a", result_ttl_ms=10_000, dedup_ttl_ms=10_000)
        jump(storage, 60_000)
        job = take_one(storage)
        at_ms = now(storage)
        settle(storage, job, result=b"r")
        expires = look(storage, "a").expires_at_ms
        assert expires is not None
        assert at_ms + 10_000 <= expires <= now(storage) + 10_000
        storage.skew_ms += 9_000
        assert put(storage, "a") == [Enqueued("a", "completed", State.COMPLETED, job.nonce, b"r")]

    def test_without_any_reaper_the_data_stays_bounded(self, storage: Storage) -> None:
        """Each enqueue and cancel also removes some of what is due."""
        for number in range(60):
            complete(storage, f"job-{number}", result_ttl_ms=1_000, dedup_ttl_ms=1_000)
            storage.skew_ms += 500
        assert counted(storage).get(State.COMPLETED, 0) <= 10
        put(storage, "live")
        assert drain(storage) == ["live"]
