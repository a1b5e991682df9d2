"""I37 and I38: waiting for one job's end."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from ...lifecycle import State
from ...storage.base import Claimed, Snapshot, Storage, Verb
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    INTERVAL,
    PATIENCE,
    PROMPT,
    QUEUE,
    WORKER_TTL,
    Background,
    cancel,
    jump,
    look,
    nonce,
    outcome,
    pass_time,
    put,
    put_and_take,
    record,
    settle,
    settle_all,
    take_one,
    upkeep,
)

WAIT_MS = 600_000


def _run(storage: Storage) -> Claimed:
    return take_one(storage)


def _cancel_running(storage: Storage, verb: Verb) -> None:
    job = _run(storage)
    cancel(storage, "a", running=True)
    settle(storage, job, verb, error=b"e")


def _recover(storage: Storage) -> None:
    _run(storage)
    pass_time(storage, WORKER_TTL + 2 * INTERVAL)


def _recover_cancelled(storage: Storage) -> None:
    _run(storage)
    cancel(storage, "a", running=True)
    storage.leave(QUEUE, ALICE.key)


def _purge(storage: Storage) -> None:
    storage.purge(QUEUE)
    for _ in range(2):
        storage.skew_ms += INTERVAL
        upkeep(storage)


#: Every way in which a job with max_attempts=1 can end: what is done, the state, the cause of an absence.
ENDS: dict[str, tuple[Callable[[Storage], object], State, str]] = {
    "complete": (lambda s: settle(s, _run(s), result=b"r"), State.COMPLETED, ""),
    "fail": (lambda s: settle(s, _run(s), Verb.FAIL, error=b"e"), State.FAILED, ""),
    "retry-exhausted": (lambda s: settle(s, _run(s), Verb.RETRY, error=b"e"), State.FAILED, ""),
    "recovery-exhausted": (_recover, State.FAILED, ""),
    "leave-exhausted": (lambda s: (_run(s), s.leave(QUEUE, ALICE.key)), State.FAILED, ""),
    "cancel": (lambda s: cancel(s, "a"), State.ABSENT, "cancelled"),
    "cancel-running-retry": (lambda s: _cancel_running(s, Verb.RETRY), State.ABSENT, "cancelled"),
    "cancel-running-fail": (lambda s: _cancel_running(s, Verb.FAIL), State.ABSENT, "cancelled"),
    "cancel-running-release": (lambda s: _cancel_running(s, Verb.RELEASE), State.ABSENT, "cancelled"),
    "cancel-running-recovery": (_recover_cancelled, State.ABSENT, "cancelled"),
    "purge": (_purge, State.ABSENT, "purged"),
}


def check_end(snapshot: Snapshot | None, state: State, cause: str) -> None:
    """Whether a wait gave the end that it should."""
    assert snapshot is not None
    assert (snapshot.id, snapshot.state) == ("a", state)
    if state is State.ABSENT:
        assert snapshot.cause == cause
    assert snapshot.result == (b"r" if state is State.COMPLETED else None)


class WaitContract(ContractBase):
    """A wait ends with its job."""

    @pytest.mark.parametrize("end", ENDS)
    def test_i38_every_end_wakes_every_waiter(self, storage: Storage, peer: Storage, end: str) -> None:
        """Two that came with the enqueue, two that joined without a registration of their own."""
        act, state, cause = ENDS[end]
        upkeep(storage)
        first = record("a", max_attempts=1)
        storage.enqueue(QUEUE, [first], waiter="w1", wait_ms=WAIT_MS)
        [joined] = peer.enqueue(QUEUE, [record("a")], waiter="w2", wait_ms=WAIT_MS)
        assert (joined.status, joined.nonce) == ("duplicate", first.nonce)
        waits = [
            Background(lambda: storage.wait(QUEUE, "a", nonce=first.nonce, waiter="w1", timeout=PATIENCE)),
            Background(lambda: peer.wait(QUEUE, "a", nonce=first.nonce, waiter="w2", timeout=PATIENCE)),
            Background(lambda: storage.wait(QUEUE, "a", timeout=PATIENCE)),
            Background(lambda: peer.wait(QUEUE, "a", timeout=PATIENCE)),
        ]
        for wait in waits:
            wait.until_asleep()
            assert wait.is_alive()
        act(storage)
        for wait in waits:
            check_end(wait.prompt_result(), state, cause)

    @pytest.mark.parametrize("end", ENDS)
    def test_i38_an_end_before_the_wait_is_not_missed(self, storage: Storage, end: str) -> None:
        act, state, cause = ENDS[end]
        upkeep(storage)
        first = record("a", max_attempts=1)
        storage.enqueue(QUEUE, [first], waiter="w1", wait_ms=WAIT_MS)
        act(storage)
        for options in ({"nonce": first.nonce, "waiter": "w1"}, {}):
            began = time.monotonic()
            check_end(storage.wait(QUEUE, "a", timeout=PATIENCE, **options), state, cause)  # type: ignore[arg-type]
            assert time.monotonic() - began < PROMPT

    def test_i38_a_replaced_dead_letter_wakes_who_waited_for_it(self, storage: Storage) -> None:
        first = record("a")
        storage.enqueue(QUEUE, [first], waiter="w1", wait_ms=WAIT_MS)
        settle(storage, take_one(storage), Verb.FAIL, error=b"e")
        put(storage, "a")
        began = time.monotonic()
        snapshot = storage.wait(QUEUE, "a", nonce=first.nonce, waiter="w1", timeout=PATIENCE)
        assert time.monotonic() - began < PROMPT
        assert snapshot is not None
        assert (snapshot.state, snapshot.cause) in ((State.FAILED, "unknown"), (State.ABSENT, "replaced"))

    @pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RELEASE])
    def test_i37_a_run_that_is_not_the_end_wakes_nobody_for_good(self, storage: Storage, verb: Verb) -> None:
        wait = self._waiting(storage)
        settle(storage, take_one(storage), verb, error=b"e")
        wait.until_asleep()
        assert wait.is_alive()
        settle(storage, take_one(storage), result=b"r")
        check_end(wait.prompt_result(), State.COMPLETED, "")

    def test_i37_a_wait_for_a_scheduled_job_lasts_until_its_end(self, storage: Storage) -> None:
        put(storage, "a", delay_ms=50_000)
        wait = Background(lambda: storage.wait(QUEUE, "a", timeout=PATIENCE)).until_asleep()
        jump(storage, 51_000)
        assert wait.is_alive()
        settle(storage, take_one(storage), result=b"r")
        check_end(wait.prompt_result(), State.COMPLETED, "")

    def test_i37_a_wait_ends_by_its_timeout_and_leaves_the_job_alone(self, storage: Storage) -> None:
        put(storage, "a")
        before = look(storage, "a")
        began = time.monotonic()
        assert storage.wait(QUEUE, "a", timeout=0.1) is None
        assert 0.09 <= time.monotonic() - began < 1.1
        assert look(storage, "a") == before
        job = take_one(storage)
        assert not job.has_waiter
        assert settle(storage, job, result=b"r") is State.COMPLETED

    def test_i37_a_wait_without_time_looks_once(self, storage: Storage) -> None:
        put(storage, "a")
        assert storage.wait(QUEUE, "a", timeout=0.0) is None
        settle(storage, take_one(storage), result=b"r")
        check_end(storage.wait(QUEUE, "a", timeout=0.0), State.COMPLETED, "")

    def test_i37_an_absent_id_answers_at_once(self, storage: Storage) -> None:
        began = time.monotonic()
        snapshot = storage.wait(QUEUE, "a", timeout=PATIENCE)
        assert time.monotonic() - began < PROMPT
        assert snapshot is not None
        assert (snapshot.state, snapshot.cause) == (State.ABSENT, "unknown")

    def test_i37_a_second_waiter_stays_when_the_first_leaves(self, storage: Storage) -> None:
        put(storage, "a")
        second = Background(lambda: storage.wait(QUEUE, "a", timeout=PATIENCE)).until_asleep()
        assert storage.wait(QUEUE, "a", timeout=0.05) is None
        assert second.is_alive()
        job = take_one(storage)
        assert job.has_waiter
        settle(storage, job, result=b"r")
        check_end(second.prompt_result(), State.COMPLETED, "")

    def test_i37_a_reply_never_reaches_another_call(self, storage: Storage) -> None:
        old, new = record("a"), record("a")
        storage.enqueue(QUEUE, [old], waiter="old", wait_ms=WAIT_MS)
        first = Background(lambda: storage.wait(QUEUE, "a", nonce=old.nonce, waiter="old", timeout=PATIENCE))
        first.until_asleep()
        cancel(storage, "a")
        storage.enqueue(QUEUE, [new], waiter="new", wait_ms=WAIT_MS)
        second = Background(lambda: storage.wait(QUEUE, "a", nonce=new.nonce, waiter="new", timeout=PATIENCE))
        check_end(first.prompt_result(), State.ABSENT, "cancelled")
        second.until_asleep()
        assert second.is_alive()
        settle(storage, take_one(storage), result=b"r")
        check_end(second.prompt_result(), State.COMPLETED, "")

    def test_i37_a_late_wait_for_an_old_incarnation_does_not_get_the_new_ones_end(self, storage: Storage) -> None:
        old = record("a")
        storage.enqueue(QUEUE, [old], waiter="old", wait_ms=WAIT_MS)
        cancel(storage, "a")
        put(storage, "a")
        settle(storage, take_one(storage), result=b"another")
        snapshot = storage.wait(QUEUE, "a", nonce=old.nonce, waiter="old", timeout=PATIENCE)
        check_end(snapshot, State.ABSENT, "cancelled")

    def test_a_caller_of_a_finished_job_is_not_registered(self, storage: Storage) -> None:
        settle(storage, put_and_take(storage, "a"), result=b"r")
        [answer] = storage.enqueue(QUEUE, [record("a")], waiter="w1", wait_ms=WAIT_MS)
        assert (answer.status, answer.result) == ("completed", b"r")
        check_end(storage.wait(QUEUE, "a", timeout=0.0), State.COMPLETED, "")

    def test_a_repeated_enqueue_registers_its_caller_again(self, storage: Storage) -> None:
        own = record("a", nonce=nonce())
        storage.enqueue(QUEUE, [own], waiter="w1", wait_ms=WAIT_MS)
        storage.enqueue(QUEUE, [own], waiter="w1", wait_ms=WAIT_MS)
        wait = Background(lambda: storage.wait(QUEUE, "a", nonce=own.nonce, waiter="w1", timeout=PATIENCE))
        wait.until_asleep()
        settle(storage, take_one(storage), result=b"r")
        check_end(wait.prompt_result(), State.COMPLETED, "")

    def test_many_waits_of_one_batch_end_together(self, storage: Storage, peer: Storage) -> None:
        ids = [f"job-{n}" for n in range(8)]
        put(storage, *ids)
        waits = [Background(partial(peer.wait, QUEUE, id, timeout=PATIENCE)) for id in ids]
        for wait in waits:
            wait.until_asleep()
        jobs = storage.claim(QUEUE, BOB, 8, serial=1, lease_ms=60_000).jobs
        settle_all(storage, [outcome(job, result=job.id.encode()) for job in jobs], BOB)
        answers = [wait.prompt_result() for wait in waits]
        assert [answer and (answer.id, answer.result) for answer in answers] == [(id, id.encode()) for id in ids]

    def test_a_wait_gives_the_errors_of_a_failed_job(self, storage: Storage) -> None:
        wait = self._waiting(storage)
        settle(storage, take_one(storage), Verb.FAIL, error=b"\x00boom")
        snapshot = wait.prompt_result()
        assert snapshot is not None
        assert snapshot.state is State.FAILED
        assert [error for *_, error in snapshot.errors] == [b"\x00boom"]
        assert snapshot.attempts == 1

    def test_an_empty_result_reaches_its_waiter(self, storage: Storage) -> None:
        wait = self._waiting(storage)
        settle(storage, take_one(storage), result=b"")
        snapshot = wait.prompt_result()
        assert snapshot is not None
        assert (snapshot.state, snapshot.result) == (State.COMPLETED, b"")

    def test_a_large_result_reaches_its_waiter(self, storage: Storage) -> None:
        large = bytes(range(256)) * 3_000
        wait = self._waiting(storage)
        settle(storage, take_one(storage), result=large)
        snapshot = wait.prompt_result()
        assert snapshot is not None
        assert snapshot.result == large

    def _waiting(self, storage: Storage) -> Background[Snapshot | None]:
        put(storage, "a")
        wait = Background(lambda: storage.wait(QUEUE, "a", timeout=PATIENCE)).until_asleep()
        assert wait.is_alive()
        return wait
