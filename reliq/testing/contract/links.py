"""I47: a job with ``after=`` runs when all of them have completed, and never when one cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from ...lifecycle import State
from ...storage.base import MAX_CASCADE, MAX_LINKS, Storage, Verb, Worker
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    DAY,
    INTERVAL,
    OTHER,
    PATIENCE,
    QUEUE,
    TTL,
    Background,
    assert_placed,
    cancel,
    counted,
    held_now,
    jump,
    listed,
    look,
    now,
    outcome,
    picture,
    put,
    put_and_take,
    record,
    run,
    settle,
    settle_all,
    state_of,
    take,
    take_one,
    together,
    until,
    upkeep,
    work_off,
)

#: A worker whose leases outlast every test.
HOLDER = Worker("holder", "0e", ttl_ms=DAY)
#: An id that is found again in an error by no accident.
FIRST = "first:{1}"

Step = Callable[[Storage], object]


def reason(storage: Storage, id: str) -> str:
    """Why a dependent failed, as its error says."""
    snapshot = look(storage, id)
    assert snapshot.state is State.FAILED
    assert not snapshot.is_exhausted
    [(*_, error)] = snapshot.errors
    parts = json.loads(error)
    assert parts["type"] == "DependencyError"
    return str(parts["message"])


def _fail(storage: Storage) -> None:
    put(storage, FIRST)
    run(storage, Verb.FAIL, error=b"e")


def _cancelled(storage: Storage) -> None:
    put(storage, FIRST)
    cancel(storage, FIRST)


def _purged(storage: Storage) -> None:
    put(storage, FIRST)
    storage.purge(QUEUE)


def _expired(storage: Storage) -> None:
    put(storage, FIRST)
    run(storage)
    storage.skew_ms += TTL + 1_000


def _discarded(storage: Storage) -> None:
    _fail(storage)
    storage.discard(QUEUE, [FIRST])


#: What may have become of a predecessor before the enqueue, and what the error names.
BEFORE: dict[str, tuple[Step, str]] = {
    "unknown": (lambda s: None, "unknown"),
    "failed": (_fail, "failed"),
    "cancelled": (_cancelled, "cancelled"),
    "purged": (_purged, "purged"),
    "expired": (_expired, "expired"),
    "discarded": (_discarded, "discarded"),
    "of-another-queue": (lambda s: put(s, FIRST, queue=OTHER), "unknown"),
}


def _settle(verb: Verb) -> Step:
    return lambda storage: settle(storage, held_now(storage, FIRST), verb, error=b"e")


def _take(storage: Storage) -> None:
    assert take_one(storage).id == FIRST


def _cancel(storage: Storage) -> None:
    assert cancel(storage, FIRST) == "cancelled"


def _fail_now(storage: Storage) -> None:
    _take(storage)
    _settle(Verb.FAIL)(storage)


def _exhaust(storage: Storage) -> None:
    for _ in range(3):
        assert look(storage, "next").state is State.WAITING
        _take(storage)
        _settle(Verb.RETRY)(storage)


def _crash(storage: Storage) -> None:
    for _ in range(3):
        assert look(storage, "next").state is State.WAITING
        _take(storage)
        storage.leave(QUEUE, ALICE.key)


def _cancel_failing(storage: Storage) -> None:
    _take(storage)
    settle(storage, held_now(storage, FIRST), Verb.RETRY, error=b"e", delay_ms=60_000)
    _cancel(storage)


def _cancel_running(storage: Storage) -> None:
    _take(storage)
    assert cancel(storage, FIRST, running=True) == "cancelling"
    assert look(storage, "next").state is State.WAITING
    _settle(Verb.RELEASE)(storage)


def _cancel_recovered(storage: Storage) -> None:
    _take(storage)
    cancel(storage, FIRST, running=True)
    storage.leave(QUEUE, ALICE.key)


#: What may become of a predecessor (with three attempts) that somebody waits for.
MEANWHILE: dict[str, tuple[Step, str]] = {
    "fail": (_fail_now, "failed"),
    "retry-exhausted": (_exhaust, "failed"),
    "recovery-exhausted": (_crash, "failed"),
    "cancel": (_cancel, "cancelled"),
    "cancel-failing": (_cancel_failing, "cancelled"),
    "cancel-running": (_cancel_running, "cancelled"),
    "cancel-running-recovery": (_cancel_recovered, "cancelled"),
}


def _run_next(verb: Verb, delay_ms: int = 0) -> Step:
    def act(storage: Storage) -> None:
        job = take_one(storage, HOLDER, lease_ms=DAY)
        assert job.id == "next"
        if verb is not Verb.RELEASE:
            settle(storage, job, verb, HOLDER, error=b"e", delay_ms=delay_ms)

    return act


def _end_next(verb: Verb) -> Step:
    return lambda storage: settle(storage, held_now(storage, "next"), verb, HOLDER, error=b"e")


def _cancel_next(storage: Storage) -> None:
    assert cancel(storage, "next") == "cancelled"


def _cancel_next_running(storage: Storage) -> None:
    cancel(storage, "next", running=True)
    _end_next(Verb.RETRY)(storage)


def _nothing(storage: Storage) -> None:
    assert state_of(storage, "next") is State.QUEUED


def _hold(storage: Storage) -> None:
    _run_next(Verb.RELEASE)(storage)


#: How an unfinished dependent stands, and how it ends.
DEPENDENTS: dict[str, tuple[Step, Step]] = {
    "queued-cancel": (_nothing, _cancel_next),
    "failing-cancel": (_run_next(Verb.RETRY, delay_ms=60_000), _cancel_next),
    "running-complete": (_hold, _end_next(Verb.COMPLETE)),
    "running-fail": (_hold, _end_next(Verb.FAIL)),
    "running-exhausted": (_hold, _end_next(Verb.RETRY)),
    "running-cancel": (_hold, _cancel_next_running),
    "running-leave": (_hold, lambda s: s.leave(QUEUE, HOLDER.key)),
}
SHORT: dict[str, Any] = {"result_ttl_ms": 5_000, "dedup_ttl_ms": 5_000}


def _complete(storage: Storage, id: str, **options: Any) -> None:
    settle(storage, put_and_take(storage, id, **options), result=b"r")


def assert_stays(storage: Storage, id: str = "a") -> None:
    """Nothing of a pinned predecessor goes, however much time passes, and its id is not free."""
    jump(storage, 20_000)
    snapshot = look(storage, id)
    assert (snapshot.state, snapshot.result, snapshot.expires_at_ms) == (State.COMPLETED, b"r", None)
    [answer] = put(storage, id)
    assert (answer.status, answer.result) == ("completed", b"r")


def assert_goes(storage: Storage, id: str = "a", ttl_ms: int = 5_000) -> None:
    """The time to live of a predecessor has just begun."""
    expires = look(storage, id).expires_at_ms
    assert expires is not None
    assert now(storage) + ttl_ms - 1_000 < expires <= now(storage) + ttl_ms
    jump(storage, ttl_ms - 1_000)
    assert look(storage, id).result == b"r"
    jump(storage, 2_000)
    assert look(storage, id).state is State.ABSENT


class LinkContract(ContractBase):
    """Jobs that wait for jobs."""

    def test_i47_a_job_is_queued_when_its_predecessor_has_completed(self, storage: Storage) -> None:
        put(storage, "a")
        [answer] = put(storage, "b", after=["a"])
        assert (answer.status, answer.state) == ("queued", State.WAITING)
        assert_placed(storage, {"a": State.QUEUED, "b": State.WAITING})
        for verb in (Verb.RETRY, Verb.RELEASE):
            assert run(storage, verb, error=b"e") == "a"
            assert state_of(storage, "b") is State.WAITING
        job = take_one(storage)
        assert take(storage, BOB, 10) == []
        settle(storage, job, result=b"r")
        assert_placed(storage, {"a": State.COMPLETED, "b": State.QUEUED})
        assert take_one(storage, BOB).id == "b"

    def test_i47_all_of_several_must_have_completed(self, storage: Storage) -> None:
        _complete(storage, "done")
        put(storage, "a", "b", "c")
        put(storage, "next", after=["c", "done", "a", "b"])
        for _ in range(3):
            assert state_of(storage, "next") is State.WAITING
            run(storage)
        assert work_off(storage) == ["next"]

    def test_i47_what_has_completed_before_is_not_waited_for(self, storage: Storage) -> None:
        _complete(storage, "a", result_ttl_ms=1_000)
        _complete(storage, "b")
        storage.skew_ms += 2_000  # the result of one is gone, its record is there
        [answer] = put(storage, "next", after=["a", "b"])
        assert (answer.status, answer.state) == ("queued", State.QUEUED)
        [answer] = put(storage, "later", after=["a", "b"], delay_ms=60_000)
        assert answer.state is State.SCHEDULED
        assert take_one(storage).id == "next"

    @pytest.mark.parametrize("case", BEFORE)
    def test_i47_a_predecessor_that_cannot_complete_fails_the_job_at_once(self, storage: Storage, case: str) -> None:
        build, cause = BEFORE[case]
        upkeep(storage)
        build(storage)
        [answer] = storage.enqueue(QUEUE, [record("next", after=[FIRST])], waiter="w1", wait_ms=60_000)
        assert answer.status == "queued"
        text = reason(storage, "next")
        assert FIRST in text
        assert cause in text
        assert take(storage) == []
        waited = storage.wait(QUEUE, "next", nonce=answer.nonce, waiter="w1", timeout=PATIENCE)
        assert waited is not None
        assert waited.state is State.FAILED

    @pytest.mark.parametrize("case", MEANWHILE)
    def test_i47_a_predecessor_that_ends_otherwise_fails_the_job(self, storage: Storage, case: str) -> None:
        act, cause = MEANWHILE[case]
        put(storage, FIRST)
        put(storage, "next", after=[FIRST])
        act(storage)
        text = reason(storage, "next")
        assert FIRST in text
        assert cause in text
        assert_placed(storage, {FIRST: state_of(storage, FIRST), "next": State.FAILED})
        assert take(storage, BOB, 10) == []

    def test_i47_one_that_fails_is_enough(self, storage: Storage) -> None:
        put(storage, "one", "two", "three")
        put(storage, "next", after=["one", "two", "three"])
        assert run(storage) == "one"
        cancel(storage, "two")
        assert "two" in reason(storage, "next")
        before = look(storage, "next")
        assert work_off(storage) == ["three"]
        assert look(storage, "next") == before

    def test_i47_a_job_that_fails_at_once_gives_no_result_more_time(self, storage: Storage) -> None:
        put(storage, "a", result_ttl_ms=30_000, dedup_ttl_ms=1_000)
        run(storage)
        expires = look(storage, "a").expires_at_ms
        storage.skew_ms += 10_000
        put(storage, "next", after=["a", "unknown"])
        upkeep(storage)
        assert state_of(storage, "next") is State.FAILED
        assert look(storage, "a").expires_at_ms == expires

    def test_i47_it_is_bound_to_the_incarnation(self, storage: Storage) -> None:
        """Another life of the same id is another job."""
        put(storage, "a")
        put(storage, "b", after=["a"])
        cancel(storage, "a")
        put(storage, "a")
        put(storage, "c", after=["a"])
        assert work_off(storage) == ["a", "c"]
        assert "cancelled" in reason(storage, "b")

    def test_i08_the_first_of_an_id_in_a_batch_wins_though_it_fails_at_once(self, storage: Storage) -> None:
        first, second = record("a", after=["unknown"]), record("a", message=b"second")
        assert [answer.status for answer in storage.enqueue(QUEUE, [first, second])] == ["queued", "duplicate"]
        assert look(storage, "a").nonce == first.nonce
        assert "unknown" in reason(storage, "a")
        assert take(storage) == []

    def test_i47_a_chain_runs_in_order(self, storage: Storage) -> None:
        """Linked within one batch; the later ones of a batch are not there yet."""
        storage.enqueue(
            QUEUE,
            [
                record("x", after=["c"]),
                record("a"),
                record("b", after=["a"]),
                record("c", after=["b", "a"]),
                record("d"),
            ],
        )
        assert "unknown" in reason(storage, "x")
        assert_placed(
            storage, {"x": State.FAILED, "a": State.QUEUED, "b": State.WAITING, "c": State.WAITING, "d": State.QUEUED}
        )
        assert work_off(storage) == ["a", "d", "b", "c"]

    def test_i47_a_chain_fails_link_by_link(self, storage: Storage) -> None:
        ids = [f"job-{n:02}" for n in range(30)]
        put(storage, ids[0])
        storage.enqueue(QUEUE, [record(id, after=[before]) for before, id in pairwise(ids)])
        put(storage, "fork", after=[ids[2], ids[1]])
        cancel(storage, ids[0])
        upkeep(storage)
        assert take(storage) == []
        assert sorted(listed(storage, State.FAILED)) == ["fork", *ids[1:]]
        assert "cancelled" in reason(storage, ids[1])
        for before, id in pairwise(ids[1:]):
            assert before in reason(storage, id)
            assert "failed" in reason(storage, id)

    @pytest.mark.parametrize("end", ["complete", "cancel"])
    def test_i47_many_dependents_follow_in_bounded_steps(self, storage: Storage, peer: Storage, end: str) -> None:
        """Also those that are told by a reap are bound to the incarnation, and their waiters wake."""
        upkeep(storage)
        job = put_and_take(storage, "a", result_ttl_ms=1_000, dedup_ttl_ms=1_000)
        ids = [f"job-{n:04}" for n in range(2_500)]
        put(storage, *ids, after=["a"])
        waits = [Background(partial(peer.wait, QUEUE, id, timeout=PATIENCE)) for id in (ids[0], ids[1_200], ids[-1])]
        waits[-1].until_asleep()
        if end == "complete":
            settle(storage, job, result=b"r")
        else:
            cancel(storage, "a", running=True)
            settle(storage, job, Verb.RETRY, error=b"e")
        left = counted(storage).get(State.WAITING, 0)
        assert left >= len(ids) - MAX_CASCADE
        if end == "cancel":
            put(storage, "a")
            assert run(storage) == "a"
            left = counted(storage).get(State.WAITING, 0)
        for _ in range(10):
            assert end == "complete" or take(storage, limit=100) == []
            more = storage.reap(QUEUE, interval_ms=INTERVAL).more
            before, left = left, counted(storage).get(State.WAITING, 0)
            assert before - left <= MAX_CASCADE
            assert more or not left
        assert not left
        upkeep(storage)
        if end == "complete":
            assert counted(storage) == {State.COMPLETED: 1, State.QUEUED: len(ids)}
            assert look(storage, "a").result == b"r"
            storage.cancel(QUEUE, ids[-1:] + ids[:1] + ids[1_200:1_201])
        else:
            assert counted(storage) == {State.COMPLETED: 1, State.FAILED: len(ids)}
            assert all("cancelled" in reason(storage, id) for id in ids[::500])
        expected = State.ABSENT if end == "complete" else State.FAILED
        assert [(answer := wait.prompt_result()) and answer.state for wait in waits] == [expected] * 3

    def test_i47_the_most_predecessors_that_a_job_may_have(self, storage: Storage) -> None:
        ids = [f"job-{n:04}" for n in range(MAX_LINKS)]
        put(storage, *ids)
        put(storage, "next", after=ids)
        jobs = take(storage, limit=MAX_LINKS)
        settle_all(storage, [outcome(job) for job in jobs[:-1]])
        assert state_of(storage, "next") is State.WAITING
        settle(storage, jobs[-1])
        upkeep(storage)
        assert state_of(storage, "next") is State.QUEUED

    def test_i47_no_job_waits_for_an_end_that_has_come(self, storage: Storage, peer: Storage) -> None:
        """The enqueue of a dependent against the end of its predecessor; two ends of which each is the last."""
        for number in range(8):
            a, b, c = f"a-{number}", f"b-{number}", f"c-{number}"
            put(storage, a, b)
            first, second = take(storage, limit=2)
            steps: list[Callable[[], object]] = [
                partial(settle, storage, first),
                partial(settle, peer, second),
                partial(put, peer, c, after=[b, a]),
            ]
            together(steps)
            assert take_one(storage).id == c

    def test_i47_a_job_without_a_delay_is_queued_at_once_whatever_the_clocks(self, storage: Storage) -> None:
        """Who lets it go may have looked at the clock before who enqueued it."""
        job = put_and_take(storage, "a")
        storage.skew_ms += 50
        put(storage, "next", after=["a"])
        storage.skew_ms -= 50
        settle(storage, job)
        assert state_of(storage, "next") is State.QUEUED

    # -- what stays meanwhile ---------------------------------------------------------

    @pytest.mark.parametrize("case", DEPENDENTS)
    def test_i47_a_predecessor_stays_while_a_dependent_is_unfinished(self, storage: Storage, case: str) -> None:
        build, end = DEPENDENTS[case]
        upkeep(storage)
        put(storage, "a", **SHORT)
        put(storage, "next", after=["a"], max_attempts=2 if "failing" in case else 1)
        run(storage, result=b"r")
        build(storage)
        state = state_of(storage, "next")
        assert_stays(storage)
        assert state_of(storage, "next") is state
        end(storage)
        assert_goes(storage)

    def test_i47_a_predecessor_stays_until_the_last_dependent_has_ended(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "a", **SHORT)
        put(storage, "pending")
        put(storage, "b", after=["a"])
        put(storage, "c", after=["a", "pending"])
        run(storage, result=b"r")
        assert take_one(storage).id == "pending"
        settle(storage, take_one(storage, HOLDER), worker=HOLDER)
        assert state_of(storage, "b") is State.COMPLETED
        assert look(storage, "a").expires_at_ms is None
        cancel(storage, "c")
        assert_goes(storage)

    def test_i47_what_had_completed_before_stays_as_well(self, storage: Storage) -> None:
        upkeep(storage)
        _complete(storage, "a", **SHORT)
        storage.skew_ms += 4_000
        put(storage, "next", after=["a"], delay_ms=60_000)
        assert_stays(storage)
        cancel(storage, "next")
        assert_goes(storage)

    def test_i47_a_dependent_that_a_failure_ends_lets_the_others_go(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "a", **SHORT)
        put(storage, "b", delay_ms=500_000)
        put(storage, "next", after=["a", "b"])
        run(storage, result=b"r")
        assert_stays(storage)
        cancel(storage, "b")
        assert_goes(storage)

    def test_i47_in_a_chain_only_the_last_link_stays(self, storage: Storage) -> None:
        upkeep(storage)
        storage.enqueue(
            QUEUE, [record("a", **SHORT), record("b", after=["a"], **SHORT), record("c", after=["b"], **SHORT)]
        )
        for _ in "ab":
            run(storage, result=b"r")
        assert look(storage, "a").expires_at_ms is not None
        assert_stays(storage, "b")
        assert state_of(storage, "a") is State.ABSENT
        assert run(storage) == "c"
        assert_goes(storage, "b")

    def test_i47_a_result_that_went_before_does_not_come_back(self, storage: Storage) -> None:
        """Whether or not a reaper came by before somebody wanted its record to stay."""
        _complete(storage, "a", result_ttl_ms=5_000)
        storage.skew_ms += 6_000
        put(storage, "next", after=["a"])
        assert look(storage, "a").result is None
        assert put(storage, "a")[0].status == "duplicate"
        assert run(storage) == "next"
        assert look(storage, "a").result is None
        jump(storage, 2 * TTL)
        assert_placed(storage, {"a": State.ABSENT, "next": State.ABSENT})

    def test_i47_update_ttl_of_a_predecessor_counts_when_it_may_go(self, storage: Storage) -> None:
        upkeep(storage)
        _complete(storage, "a", **SHORT)
        put(storage, "next", after=["a"])
        assert storage.update_ttl(QUEUE, "a", 5_000) == "updated"
        assert_stays(storage)
        run(storage)
        assert_goes(storage)

    def test_i47_a_purge_takes_a_predecessor_of_a_running_job(self, storage: Storage) -> None:
        upkeep(storage)
        _complete(storage, "a")
        put(storage, "next", after=["a"])
        job = take_one(storage)
        assert storage.purge(QUEUE) == 1
        assert state_of(storage, "a") is State.ABSENT
        _complete(storage, "a", **SHORT)
        assert settle(storage, job) is State.COMPLETED
        storage.skew_ms += INTERVAL
        upkeep(storage)
        jump(storage, 10_000)
        assert_placed(storage, {"a": State.ABSENT, "next": State.COMPLETED})

    # -- together with the rest -------------------------------------------------------

    def test_i34_a_delay_counts_beside_the_predecessors(self, storage: Storage) -> None:
        put(storage, "a", "b")
        put(storage, "after-a", after=["a"], delay_ms=10_000)
        put(storage, "after-b", after=["b"], delay_ms=10_000)
        assert run(storage) == "a"
        assert_placed(
            storage,
            {"a": State.COMPLETED, "after-a": State.SCHEDULED, "b": State.QUEUED, "after-b": State.WAITING},
        )
        assert look(storage, "after-a").due_at_ms is not None
        jump(storage, 11_000)
        assert_placed(
            storage, {"a": State.COMPLETED, "after-a": State.QUEUED, "b": State.QUEUED, "after-b": State.WAITING}
        )
        assert work_off(storage) == ["b", "after-a", "after-b"]

    def test_i35_a_waiting_job_can_be_cancelled(self, storage: Storage) -> None:
        put(storage, "a")
        put(storage, "b", after=["a"])
        put(storage, "c", after=["b"])
        assert put(storage, "b")[0].state is State.WAITING
        assert cancel(storage, "b") == "cancelled"
        assert "cancelled" in reason(storage, "c")
        put(storage, "b")
        assert work_off(storage) == ["a", "b"]

    def test_a_purge_takes_the_waiting(self, storage: Storage) -> None:
        upkeep(storage)
        job = put_and_take(storage, "a")
        put(storage, "b", after=["a"])
        put(storage, "c", after=["b"])
        assert storage.purge(QUEUE) == 2
        put(storage, "b", message=b"new")
        storage.skew_ms += INTERVAL
        upkeep(storage)
        settle(storage, job)
        assert_placed(storage, {"a": State.COMPLETED, "b": State.QUEUED, "c": State.ABSENT})
        assert take_one(storage).message == b"new"
        assert take(storage) == []

    def test_i41_a_waiting_job_keeps_its_place_in_its_group(self, storage: Storage) -> None:
        put(storage, "a", "other")
        put(storage, "g1", group="g", after=["a"])
        put(storage, "g2", group="g", after=["g1"])
        put(storage, "g3", group="g")
        put(storage, "g4", group="g", after=["other"])
        assert work_off(storage) == ["a", "other", "g1", "g2", "g3", "g4"]

    def test_i38_waiters_of_a_job_that_a_cascade_fails_wake(self, storage: Storage, peer: Storage) -> None:
        put(storage, "a")
        put(storage, "b", after=["a"])
        put(storage, "c", after=["b"])
        waits = [Background(partial(peer.wait, QUEUE, id, timeout=PATIENCE)).until_asleep() for id in "bc"]
        cancel(storage, "a")
        upkeep(storage)
        for wait in waits:
            answer = wait.prompt_result()
            assert answer is not None
            assert answer.state is State.FAILED
            assert b"DependencyError" in answer.errors[-1][3]

    def test_a_job_that_failed_by_its_predecessor_can_be_revived(self, storage: Storage) -> None:
        put(storage, "a")
        put(storage, "b", after=["a"])
        cancel(storage, "a")
        assert storage.revive(QUEUE, ["b"]) == ["b"]
        assert_placed(storage, {"a": State.ABSENT, "b": State.QUEUED})
        job = take_one(storage)
        assert (job.id, job.attempts, job.token) == ("b", 1, 1)
        assert settle(storage, job, result=b"r") is State.COMPLETED
        assert look(storage, "b").expires_at_ms is not None

    def test_i53_a_job_that_failed_by_its_predecessor_expires(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "b", after=["unknown"], dead_ttl_ms=5_000)
        jump(storage, 4_000)
        assert state_of(storage, "b") is State.FAILED
        jump(storage, 2_000)
        assert_placed(storage, {"b": State.ABSENT})

    def test_i11_repeating_the_enqueue_of_a_dependent_gives_the_first_answer(self, storage: Storage) -> None:
        own = record("b", after=["a"])
        put(storage, "a")
        storage.enqueue(QUEUE, [own])
        assert run(storage) == "a"
        before = picture(storage, "a", "b")
        assert storage.enqueue(QUEUE, [own])[0].status == "queued"
        assert picture(storage, "a", "b") == before
        assert work_off(storage) == ["b"]
        assert storage.enqueue(QUEUE, [own])[0].status == "queued"
        assert take(storage) == []

    def test_events_of_dependents(self, storage: Storage, peer: Storage) -> None:
        heard: list[tuple[str, str]] = []
        put(storage, "a", "x")
        stop = peer.subscribe(QUEUE, lambda name, id: heard.append((name, id)))
        put(storage, "b", after=["a"])
        put(storage, "later", after=["a"], delay_ms=60_000)
        put(storage, "c", after=["x"])
        run(storage)
        cancel(storage, "x")
        expected = [
            ("waiting", "b"), ("waiting", "later"), ("waiting", "c"), ("processing", "a"), ("completed", "a"),
            ("queued", "b"), ("scheduled", "later"), ("cancelled", "x"), ("failed", "c"),
        ]  # fmt: skip
        until(lambda: len(heard) >= len(expected), f"heard {heard}")
        assert sorted(heard) == sorted(expected)
        stop()
