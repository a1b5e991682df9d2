"""The end of a queue, the progress of a job, and a cancel that names incarnations."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ...lifecycle import State
from ...storage.base import NO_LIMITS, Held, Limits, Schedule, Storage, Verb
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    OTHER,
    PATIENCE,
    QUEUE,
    TTL,
    Background,
    assert_placed,
    counted,
    drain,
    extend,
    held,
    jump,
    look,
    nonce,
    picture,
    put,
    put_and_take,
    record,
    run,
    settle,
    state_of,
    take,
    take_one,
    until,
    upkeep,
    work_off,
)

IDS = ("done", "dead", "failing", "running", "waiting", "scheduled", "queued", "blocked")


def fill(storage: Storage, *, queue: str = QUEUE) -> None:
    """A job in every state."""
    put(storage, "done", "dead", "failing", "running", queue=queue)
    run(storage, queue=queue, result=b"r")
    run(storage, Verb.FAIL, queue=queue, error=b"e")
    run(storage, Verb.RETRY, queue=queue, error=b"e", delay_ms=60_000)
    take_one(storage, queue=queue)
    put(storage, "waiting", queue=queue, after=["running", "done"])
    put(storage, "scheduled", queue=queue, delay_ms=60_000)
    put(storage, "queued", "blocked", queue=queue, group="g")


class LifeContract(ContractBase):
    """What is gone is gone."""

    # -- delete -----------------------------------------------------------------------

    def test_a_deleted_queue_leaves_nothing(self, storage: Storage, peer: Storage) -> None:
        upkeep(storage)
        fill(storage)
        fill(storage, queue=OTHER)
        other = picture(storage, *IDS, queue=OTHER)
        storage.set_limits(QUEUE, Limits(max_length=99))
        storage.put_schedule(QUEUE, Schedule("s", b"", 1_000))
        storage.pause(QUEUE, True)
        assert peer.delete(QUEUE) == len(IDS)
        assert_placed(storage, dict.fromkeys(IDS, State.ABSENT))
        assert peer.queues() == storage.queues() == [OTHER]
        assert storage.limits(QUEUE) == NO_LIMITS
        assert storage.schedules(QUEUE) == []
        assert not storage.is_paused(QUEUE)
        assert storage.workers(QUEUE) == []
        assert storage.backlog(QUEUE) == 0
        answer = storage.reap(QUEUE, interval_ms=1_000)
        assert (answer.ticks, answer.next_due_ms) == ((), None)
        assert picture(storage, *IDS, queue=OTHER) == other
        jump(storage, 61_000)
        assert drain(storage) == []
        assert counted(storage) == {}

    def test_a_deleted_queue_begins_anew(self, storage: Storage, peer: Storage) -> None:
        """Groups, links, slots and dedup windows of the old one concern nobody."""
        storage.set_limits(QUEUE, Limits(max_concurrency=1, max_length=8))
        fill(storage)
        storage.delete(QUEUE)
        answers = put(peer, *IDS, group="g")
        assert [answer.status for answer in answers] == ["queued"] * len(IDS)
        assert storage.queues() == [QUEUE]
        put(storage, "plain")
        put(storage, "next", after=["queued"])
        order = work_off(storage)
        assert order[:8] == ["done", "plain", *IDS[1:7]]
        assert sorted(order[8:]) == ["blocked", "next"]
        assert counted(storage) == {State.COMPLETED: 10}
        snapshot = look(storage, "done")
        assert (snapshot.token, snapshot.attempts, snapshot.errors) == (1, 1, ())
        jump(storage, TTL + 1_000)
        assert counted(storage) == {}

    def test_i21_a_holder_finds_its_lease_lost_when_the_queue_is_deleted(self, storage: Storage) -> None:
        put(storage, "a", "b")
        first, second = take_one(storage), take_one(storage)
        assert storage.delete(QUEUE) == 2
        for again in (False, True):
            for verb in Verb:
                assert settle(storage, first, verb, result=b"r", error=b"e") is None
            assert extend(storage, ALICE, [second]).lost == [held(second)]
            assert not storage.progress(QUEUE, held(second), b"half")
            if not again:
                put(storage, "a")
        assert_placed(storage, {"a": State.QUEUED, "b": State.ABSENT})
        job = take_one(storage, BOB)
        assert settle(storage, first, result=b"old") is None
        assert settle(storage, job, worker=BOB, result=b"new") is State.COMPLETED

    def test_i38_a_delete_wakes_every_waiter(self, storage: Storage, peer: Storage) -> None:
        fill(storage)
        ids = [id for id in IDS if id not in ("done", "dead")]
        waits = [Background(partial(peer.wait, QUEUE, id, timeout=PATIENCE)) for id in ids]
        waits[-1].until_asleep()
        storage.delete(QUEUE)
        for wait in waits:
            answer = wait.prompt_result()
            assert answer is not None
            assert (answer.state, answer.cause) == (State.ABSENT, "purged")

    def test_a_delete_of_many_jobs(self, storage: Storage) -> None:
        ids = [f"job-{n:04}" for n in range(2_500)]
        put(storage, *ids)
        take(storage, limit=700)
        assert storage.delete(QUEUE) == len(ids)
        assert counted(storage) == {}
        assert storage.queues() == []
        put(storage, *ids[:3])
        assert drain(storage) == ids[:3]

    def test_a_delete_of_nothing(self, storage: Storage) -> None:
        assert storage.delete("never") == 0
        put(storage, "a")
        assert [storage.delete(QUEUE), storage.delete(QUEUE)] == [1, 0]
        assert storage.queues() == []

    def test_a_delete_after_a_purge(self, storage: Storage) -> None:
        fill(storage)
        assert storage.purge(QUEUE) == len(IDS) - 1
        assert storage.delete(QUEUE) == 1
        assert counted(storage) == {}
        put(storage, *IDS)
        assert drain(storage) == list(IDS)

    # -- progress ---------------------------------------------------------------------

    def test_progress_is_kept_until_the_record_goes(self, storage: Storage, peer: Storage) -> None:
        job = put_and_take(storage, "a")
        assert look(storage, "a").progress is None
        for data in (b"\x00half", b"", b"x" * 10_000):
            assert storage.progress(QUEUE, held(job), data)
            assert look(peer, "a").progress == data
        settle(storage, job, Verb.RETRY, error=b"e")
        job = take_one(storage)
        assert look(storage, "a").progress == b"x" * 10_000
        assert storage.progress(QUEUE, held(job), b"more")
        settle(storage, job, result=b"r")
        snapshot = look(storage, "a")
        assert (snapshot.progress, snapshot.result) == (b"more", b"r")

    @pytest.mark.parametrize("way", ["cancel", "purge", "expire", "replace", "delete"])
    def test_progress_goes_with_its_record(self, storage: Storage, way: str) -> None:
        upkeep(storage)
        job = put_and_take(storage, "a")
        storage.progress(QUEUE, held(job), b"half")
        if way == "cancel":
            settle(storage, job, Verb.RELEASE)
            storage.cancel(QUEUE, ["a"])
        elif way == "purge":
            settle(storage, job, Verb.RELEASE)
            storage.purge(QUEUE)
        elif way == "delete":
            storage.delete(QUEUE)
        else:
            settle(storage, job, Verb.COMPLETE if way == "expire" else Verb.FAIL, error=b"e")
        if way == "expire":
            jump(storage, TTL + 1_000)
        assert look(storage, "a").progress == (b"half" if way == "replace" else None)
        put(storage, "a")
        assert look(storage, "a").progress is None

    def test_i21_progress_of_a_lost_lease_is_refused(self, storage: Storage) -> None:
        put(storage, "a")
        old = take_one(storage)
        storage.leave(QUEUE, ALICE.key)
        assert not storage.progress(QUEUE, held(old), b"nobody runs it")
        new = take_one(storage, BOB)
        for lost in (held(old), Held("a", b"another!", new.token), Held("unknown", new.nonce, new.token)):
            assert not storage.progress(QUEUE, lost, b"lost")
        assert not storage.progress(OTHER, held(new), b"lost")
        assert look(storage, "a").progress is None
        assert storage.progress(QUEUE, held(new), b"right")
        settle(storage, new, worker=BOB)
        assert not storage.progress(QUEUE, held(new), b"late")
        assert look(storage, "a").progress == b"right"

    def test_events_of_progress_and_delete(self, storage: Storage, peer: Storage) -> None:
        heard: list[tuple[str, str]] = []
        job = put_and_take(storage, "a")
        stop = peer.subscribe(QUEUE, lambda name, id: heard.append((name, id)))
        storage.progress(QUEUE, held(job), b"half")
        storage.delete(QUEUE)
        until(lambda: len(heard) >= 2, f"heard {heard}")
        assert heard == [("progress", "a"), ("purged", "")]
        stop()

    # -- cancel -----------------------------------------------------------------------

    def test_i35_a_cancel_may_name_the_incarnations(self, storage: Storage) -> None:
        records = [record(id) for id in "abc"]
        storage.enqueue(QUEUE, records)
        job = take_one(storage)
        before = picture(storage, *"abc")
        others: dict[str, Any] = {"running": True, "nonces": [nonce(), nonce(), nonce()]}
        assert storage.cancel(QUEUE, ["a", "b", "unknown"], **others) == ["not_found"] * 3
        assert picture(storage, *"abc") == before
        own = [records[0].nonce, nonce(), records[2].nonce]
        assert storage.cancel(QUEUE, ["a", "b", "c"], nonces=own) == ["processing", "not_found", "cancelled"]
        assert storage.cancel(QUEUE, ["a"], running=True, nonces=own[:1]) == ["cancelling"]
        assert settle(storage, job, Verb.RETRY, error=b"e") is State.ABSENT
        assert_placed(storage, {"a": State.ABSENT, "b": State.QUEUED, "c": State.ABSENT})

    def test_i35_a_cancel_of_an_old_incarnation_leaves_the_new_one_alone(self, storage: Storage) -> None:
        old, new = record("a"), record("a")
        storage.enqueue(QUEUE, [old])
        storage.cancel(QUEUE, ["a"], nonces=[old.nonce])
        storage.enqueue(QUEUE, [new])
        assert storage.cancel(QUEUE, ["a", "a"], nonces=[old.nonce, old.nonce]) == ["not_found", "not_found"]
        assert state_of(storage, "a") is State.QUEUED
        settle(storage, take_one(storage), result=b"r")
        assert storage.cancel(QUEUE, ["a", "a"], nonces=[new.nonce, old.nonce]) == ["completed", "not_found"]
