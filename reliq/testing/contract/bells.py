"""I33: whatever makes a job claimable rings, in the same step; nothing else keeps a sleeping thread awake."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest

from ...storage.base import Storage, Verb
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    INTERVAL,
    LEASE,
    OTHER,
    PATIENCE,
    PROMPT,
    QUEUE,
    WORKER_TTL,
    Background,
    assert_rings,
    cancel,
    drain,
    held_now,
    jump,
    pass_time,
    put,
    put_and_take,
    settle,
    silence,
    take,
    take_one,
    upkeep,
)

Step = Callable[[Storage], object]


def _nothing(storage: Storage) -> None:
    upkeep(storage)


def _running(storage: Storage) -> None:
    upkeep(storage)
    put_and_take(storage, "a")


def _late(storage: Storage) -> None:
    _running(storage)
    pass_time(storage, WORKER_TTL - INTERVAL)


def _dead(storage: Storage) -> None:
    settle(storage, put_and_take(storage, "a"), Verb.FAIL, error=b"e")


def _paused(storage: Storage) -> None:
    storage.pause(QUEUE, True)
    put(storage, "a")


def _failing(storage: Storage) -> None:
    settle(storage, put_and_take(storage, "a"), Verb.RETRY, error=b"e", delay_ms=5_000)


def _linked(storage: Storage, delay_ms: int = 0) -> None:
    put_and_take(storage, "first")
    put(storage, "a", after=["first"], delay_ms=delay_ms)


def _linked_later(storage: Storage) -> None:
    _linked(storage, delay_ms=60_000)


#: What makes a job claimable: how it stood before, and the step that must ring.
CAUSES: dict[str, tuple[Step, Step]] = {
    "enqueue": (_nothing, lambda s: put(s, "a")),
    "enqueue-with-priority": (_nothing, lambda s: put(s, "a", priority=7)),
    "enqueue-of-a-dead-letter": (_dead, lambda s: put(s, "a")),
    "promotion": (lambda s: put(s, "a", delay_ms=5_000), lambda s: jump(s, 6_000)),
    "promotion-of-a-retry": (_failing, lambda s: jump(s, 6_000)),
    "retry-without-delay": (_running, lambda s: settle(s, held_now(s, "a"), Verb.RETRY, error=b"e")),
    "release": (_running, lambda s: settle(s, held_now(s, "a"), Verb.RELEASE)),
    "recovery": (_late, lambda s: pass_time(s, 3 * INTERVAL)),
    "leave": (_running, lambda s: s.leave(QUEUE, ALICE.key)),
    "resume": (_paused, lambda s: s.pause(QUEUE, False)),
    "revive": (_dead, lambda s: s.revive(QUEUE, ["a"])),
    "predecessor-completed": (_linked, lambda s: settle(s, held_now(s, "first"))),
    "revive-all": (_dead, lambda s: s.revive(QUEUE, None)),
}

#: What makes a job the earliest one due.
DUE_CAUSES: dict[str, tuple[Step, Step]] = {
    "enqueue": (_nothing, lambda s: put(s, "a", delay_ms=60_000)),
    "an-earlier-enqueue": (lambda s: put(s, "b", delay_ms=90_000), lambda s: put(s, "a", delay_ms=60_000)),
    "retry": (_running, lambda s: settle(s, held_now(s, "a"), Verb.RETRY, error=b"e", delay_ms=60_000)),
    "predecessor-completed": (_linked_later, lambda s: settle(s, held_now(s, "first"))),
}


class BellContract(ContractBase):
    """Doorbells."""

    def _rings(self, storage: Storage, peer: Storage, which: Literal["work", "due"], before: Step, act: Step) -> None:
        before(storage)
        assert_rings(storage, peer, lambda: act(storage), which)

    @pytest.mark.parametrize("cause", CAUSES)
    def test_i33_whatever_makes_a_job_claimable_rings(self, storage: Storage, peer: Storage, cause: str) -> None:
        self._rings(storage, peer, "work", *CAUSES[cause])
        assert take_one(peer).id == "a"

    @pytest.mark.parametrize("cause", DUE_CAUSES)
    def test_i33_a_new_earliest_due_time_rings(self, storage: Storage, peer: Storage, cause: str) -> None:
        self._rings(storage, peer, "due", *DUE_CAUSES[cause])

    def test_i33_a_ring_between_two_waits_is_not_lost(self, storage: Storage, peer: Storage) -> None:
        bell = peer.doorbell([QUEUE], "work")
        silence(bell)
        put(storage, "a")
        if bell.wait(PROMPT) is None:  # then it is the look that finds the work
            assert take_one(peer).id == "a"
        bell.close()

    def test_i33_a_claim_rings_again_while_work_remains(self, storage: Storage, peer: Storage) -> None:
        bell = peer.doorbell([QUEUE], "work")
        silence(bell)
        put(storage, *(f"job-{n}" for n in range(5)))
        taken = []
        for _ in range(5):
            assert bell.wait(PROMPT) == QUEUE
            taken.append(take_one(peer).id)
        assert taken == [f"job-{n}" for n in range(5)]
        silence(bell)
        bell.close()

    def test_i33_every_sleeper_is_woken_in_turn(self, storage: Storage, peer: Storage) -> None:
        """Four sleeping threads on two objects, four jobs: none is left to the fallback."""
        bells = [view.doorbell([QUEUE], "work") for view in (storage, peer, storage, peer)]
        for bell in bells:
            silence(bell)

        def work(number: int) -> list[str]:
            view = (storage, peer)[number % 2]
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                if jobs := take(view, ALICE):
                    return [job.id for job in jobs]
                bells[number].wait(max(0.0, deadline - time.monotonic()))
            return []

        sleepers = [Background(partial(work, number)).until_asleep() for number in range(4)]
        put(storage, *"abcd")
        assert sorted(id for sleeper in sleepers for id in sleeper.prompt_result()) == list("abcd")
        for bell in bells:
            bell.close()

    def test_a_paused_queue_rings_nobody_over_and_over(self, storage: Storage) -> None:
        bell = storage.doorbell([QUEUE], "work")
        storage.pause(QUEUE, True)
        put(storage, *(f"job-{n}" for n in range(20)))
        rings = 0
        while bell.wait(0.05) is not None:
            rings += 1
            assert rings <= 21, "a claim that hands out nothing rings again"
            assert take(storage) == []
        assert take(storage) == []
        assert bell.wait(0.05) is None
        bell.close()

    def test_a_job_that_is_not_due_rings_no_runner(self, storage: Storage) -> None:
        bell = storage.doorbell([QUEUE], "work")
        put(storage, "a", delay_ms=60_000)
        upkeep(storage)
        assert bell.wait(0.1) is None
        bell.close()

    def test_a_bell_tells_which_queue_rang(self, storage: Storage, peer: Storage) -> None:
        bell = peer.doorbell([QUEUE, OTHER], "work")
        silence(bell)
        for queue in (OTHER, QUEUE, OTHER):
            sleeper = Background(lambda: bell.wait(PATIENCE)).until_asleep()
            put(storage, "a", queue=queue)
            assert sleeper.prompt_result() == queue
            assert take_one(peer, queue=queue).id == "a"
            cancel(storage, "a", queue=queue, running=True)
            storage.leave(queue, ALICE.key)
            silence(bell)
        bell.close()

    def test_a_bell_hears_only_its_own_queues(self, storage: Storage) -> None:
        bell = storage.doorbell([QUEUE], "work")
        silence(bell)
        put(storage, "a", queue=OTHER)
        assert bell.wait(0.1) is None
        bell.close()

    def test_wake_ends_the_present_wait(self, storage: Storage) -> None:
        bell = storage.doorbell([QUEUE], "work")
        silence(bell)
        sleeper = Background(lambda: bell.wait(PATIENCE)).until_asleep()
        bell.wake()
        assert sleeper.prompt_result() is None
        bell.close()

    def test_wake_ends_the_next_wait(self, storage: Storage) -> None:
        bell = storage.doorbell([QUEUE], "due")
        silence(bell)
        bell.wake()
        began = time.monotonic()
        assert bell.wait(PATIENCE) is None
        assert time.monotonic() - began < PROMPT
        bell.close()

    def test_a_wait_ends_by_its_timeout(self, storage: Storage) -> None:
        bell = storage.doorbell([QUEUE], "work")
        silence(bell)
        began = time.monotonic()
        assert bell.wait(0.2) is None
        assert 0.19 <= time.monotonic() - began < 1.2
        bell.close()

    def test_i33_work_that_waited_before_the_bell_is_found_by_a_look(self, storage: Storage) -> None:
        put(storage, "a", "b")
        bell = storage.doorbell([QUEUE], "work")
        assert drain(storage) == ["a", "b"]
        assert storage.claim(QUEUE, BOB, 1, serial=1, lease_ms=LEASE).jobs == []
        bell.close()

    def test_a_short_wait_ends_in_time(self, storage: Storage) -> None:
        """Due jobs and rate limits rest on it. The median: this process may have to wait for a processor."""
        bell = storage.doorbell([QUEUE], "due")
        late = []
        for _ in range(5):
            began = time.monotonic()
            while (left := began + 0.05 - time.monotonic()) > 0:
                assert bell.wait(left) is None
            late.append(time.monotonic() - began - 0.05)
        assert sorted(late)[2] < 0.03, late
        bell.close()
