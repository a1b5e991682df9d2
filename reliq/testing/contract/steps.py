"""The words in which the contract's tests are written. Only methods of a storage are used."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from ...lifecycle import STORED, State
from ...storage.base import (
    Claim,
    Claimed,
    Doorbell,
    Enqueued,
    Extended,
    Held,
    NewRecord,
    Outcome,
    Settled,
    Snapshot,
    Storage,
    Verb,
    Worker,
)

T = TypeVar("T")

QUEUE = "orders"
OTHER = "letters"
ALICE = Worker("alice", "0a")
BOB = Worker("bob", "0b")
#: How long a worker lives after a heartbeat, a lease, a record after its end.
WORKER_TTL = ALICE.ttl_ms
LEASE = 30_000
TTL = 20_000
DAY = 86_400_000
#: The interval of the reaper that the tests play.
INTERVAL = 1_000
#: What a thread that should be woken may take; far below the fallback and every timeout.
PROMPT = 5.0
#: How long a thread that should be woken waits by itself: a missing wake-up shows as slow.
PATIENCE = 10.0

_serials = itertools.count(1)


# -- acting ---------------------------------------------------------------------------


def nonce() -> bytes:
    """A fresh nonce."""
    return os.urandom(8)


def record(
    id: str,
    *,
    message: bytes = b"payload",
    max_attempts: int = 3,
    result_ttl_ms: int = TTL,
    dedup_ttl_ms: int = TTL,
    dead_ttl_ms: int = TTL,
    priority: int = 0,
    delay_ms: int = 0,
    at_ms: int | None = None,
    group: str | None = None,
    after: Sequence[str] = (),
    is_persistent: bool = False,
    nonce: bytes | None = None,
) -> NewRecord:
    """A record to enqueue, with a nonce of its own."""
    return NewRecord(
        id,
        os.urandom(8) if nonce is None else nonce,
        message,
        max_attempts,
        result_ttl_ms,
        dedup_ttl_ms,
        dead_ttl_ms,
        priority,
        delay_ms,
        at_ms,
        group,
        tuple(after),
        is_persistent,
    )


def put(storage: Storage, *ids: str, queue: str = QUEUE, **options: Any) -> list[Enqueued]:
    """Enqueue ``ids`` in one batch."""
    return storage.enqueue(queue, [record(id, **options) for id in ids])


def take(
    storage: Storage, worker: Worker = ALICE, limit: int = 1, *, queue: str = QUEUE, lease_ms: int = LEASE
) -> list[Claimed]:
    """Claim up to ``limit`` jobs with a fresh serial."""
    return claim(storage, worker, limit, queue=queue, lease_ms=lease_ms).jobs


def claim(
    storage: Storage, worker: Worker = ALICE, limit: int = 1, *, queue: str = QUEUE, lease_ms: int = LEASE
) -> Claim:
    """The whole answer of a claim with a fresh serial."""
    return storage.claim(queue, worker, limit, serial=next(_serials), lease_ms=lease_ms)


def take_one(storage: Storage, worker: Worker = ALICE, *, queue: str = QUEUE, lease_ms: int = LEASE) -> Claimed:
    """Claim the one job that must be there."""
    jobs = take(storage, worker, queue=queue, lease_ms=lease_ms)
    assert len(jobs) == 1, f"expected one claimable job, got {jobs}"
    return jobs[0]


def put_and_take(storage: Storage, id: str, worker: Worker = ALICE, **options: Any) -> Claimed:
    """Enqueue one job into an empty queue and claim it."""
    put(storage, id, **options)
    job = take_one(storage, worker)
    assert job.id == id
    return job


def drain(storage: Storage, worker: Worker = ALICE, *, queue: str = QUEUE) -> list[str]:
    """Claim one by one until nothing is left; the ids in the order of delivery."""
    ids: list[str] = []
    while jobs := take(storage, worker, queue=queue):
        ids.extend(job.id for job in jobs)
    return ids


def outcome(job: Claimed, verb: Verb = Verb.COMPLETE, **options: Any) -> Outcome:
    """How ``job`` ended."""
    return Outcome(job.id, job.nonce, job.token, verb, **options)


def run(
    storage: Storage, verb: Verb = Verb.COMPLETE, worker: Worker = ALICE, *, queue: str = QUEUE, **options: Any
) -> str:
    """Claim the one job that must be there and end its run; its id."""
    job = take_one(storage, worker, queue=queue)
    settle(storage, job, verb, worker, queue=queue, **options)
    return job.id


def work_off(storage: Storage, *, queue: str = QUEUE) -> list[str]:
    """Claim and complete one by one until nothing is left; the ids in the order of delivery."""
    ids: list[str] = []
    while jobs := take(storage, queue=queue):
        settle(storage, jobs[0], queue=queue)
        ids.append(jobs[0].id)
    return ids


def settle(
    storage: Storage,
    job: Claimed,
    verb: Verb = Verb.COMPLETE,
    worker: Worker = ALICE,
    *,
    queue: str = QUEUE,
    **options: Any,
) -> State | None:
    """Settle one job; the state it led to."""
    [answer] = storage.settle(queue, worker, [outcome(job, verb, **options)])
    assert answer.id == job.id
    assert answer.is_lost is (answer.state is None)
    return answer.state


def settle_all(storage: Storage, outcomes: Sequence[Outcome], worker: Worker = ALICE) -> list[Settled]:
    """Settle a batch, checking that each item is answered in its place."""
    answers = storage.settle(QUEUE, worker, outcomes)
    assert [answer.id for answer in answers] == [item.id for item in outcomes]
    return answers


def held(job: Claimed) -> Held:
    """The lease of ``job`` as its holder knows it."""
    return Held(job.id, job.nonce, job.token)


def extend(
    storage: Storage,
    worker: Worker,
    jobs: Iterable[Claimed] = (),
    *,
    below: int = 0,
    in_flight: Sequence[int] = (),
    lease_ms: int = LEASE,
) -> Extended:
    """One heartbeat that holds ``jobs``; it looks for no orphans unless told."""
    return storage.extend(
        QUEUE, worker, [held(job) for job in jobs], below=below, in_flight=in_flight, lease_ms=lease_ms
    )


def held_now(storage: Storage, id: str, *, queue: str = QUEUE) -> Claimed:
    """A running job as its holder knows it, read from its record."""
    seen = look(storage, id, queue=queue)
    assert seen.state is State.PROCESSING
    return Claimed(id, seen.nonce, seen.token, seen.attempts, seen.max_attempts, 0, seen.priority, False, seen.message)


def cancel(storage: Storage, id: str, *, running: bool = False, queue: str = QUEUE) -> str:
    """Cancel one id; the status."""
    [status] = storage.cancel(queue, [id], running=running)
    return status


# -- time -----------------------------------------------------------------------------


def upkeep(storage: Storage, interval_ms: int = INTERVAL, *, queue: str = QUEUE) -> list[tuple[str, str]]:
    """Reap until nothing is left to do; all changes."""
    changes: list[tuple[str, str]] = []
    for _ in range(10_000):
        answer = storage.reap(queue, interval_ms=interval_ms)
        changes.extend(answer.changes)
        if not answer.more:
            return changes
    raise AssertionError("10,000 reaps in a row said that there is more to do")


def pass_time(
    storage: Storage, ms: int, *, alive: Sequence[tuple[Worker, Sequence[Claimed]]] = (), queue: str = QUEUE
) -> list[tuple[str, str]]:
    """Let ``ms`` pass with a reaper that works each INTERVAL; all changes.

    ``alive``: workers that send heartbeats meanwhile, with the jobs they hold.
    """
    assert ms % INTERVAL == 0
    changes: list[tuple[str, str]] = []
    for _ in range(ms // INTERVAL):
        storage.skew_ms += INTERVAL
        for worker, jobs in alive:
            extend(storage, worker, jobs)
        changes.extend(upkeep(storage, queue=queue))
    return changes


def jump(storage: Storage, ms: int, *, queue: str = QUEUE) -> list[tuple[str, str]]:
    """Let ``ms`` pass in one reap interval of that length. For tests without leases."""
    storage.skew_ms += ms
    return upkeep(storage, ms, queue=queue)


def now(storage: Storage) -> int:
    """The storage's clock, as it stamps a record."""
    put(storage, "clock", queue="clock")
    at_ms = look(storage, "clock", queue="clock").created_at_ms
    cancel(storage, "clock", queue="clock")
    return at_ms


# -- looking --------------------------------------------------------------------------


def look(storage: Storage, id: str, *, queue: str = QUEUE) -> Snapshot:
    """The record of ``id``."""
    [snapshot] = storage.read(queue, [id])
    assert snapshot.id == id
    return snapshot


def state_of(storage: Storage, id: str, *, queue: str = QUEUE) -> State:
    """The state of ``id``."""
    return look(storage, id, queue=queue).state


def listed(storage: Storage, state: State, *, queue: str = QUEUE, page: int = 100) -> list[str]:
    """Every id in ``state``, read in pages; no id may come twice."""
    ids: list[str] = []
    cursor: str | None = None
    for _ in range(10_000):
        found, cursor = storage.list_ids(queue, state, cursor, page)
        assert len(found) <= page
        ids.extend(found)
        if cursor is None:
            assert len(set(ids)) == len(ids), f"listed twice: {sorted(id for id in set(ids) if ids.count(id) > 1)}"
            return ids
    raise AssertionError("a listing that never ends")


def counted(storage: Storage, *, queue: str = QUEUE) -> dict[State, int]:
    """How many jobs are in each state; states without any left out."""
    counts = storage.counts(queue)
    assert set(counts) <= set(STORED)
    assert all(number >= 0 for number in counts.values()), counts
    return {state: number for state, number in counts.items() if number}


@dataclass(frozen=True)
class Picture:
    """All that can be seen of some ids and of their queue."""

    records: tuple[Snapshot, ...]
    counts: dict[State, int]
    listings: dict[State, list[str]]


def picture(storage: Storage, *ids: str, queue: str = QUEUE) -> Picture:
    """Look at everything, to compare before and after."""
    return Picture(
        tuple(storage.read(queue, ids)),
        counted(storage, queue=queue),
        {state: listed(storage, state, queue=queue) for state in STORED},
    )


def assert_placed(storage: Storage, expected: dict[str, State], *, queue: str = QUEUE) -> None:
    """Each id stands in its one place and the queue holds nothing else: read, counts and listings agree."""
    stored = {id: state for id, state in expected.items() if state is not State.ABSENT}
    assert {id: state_of(storage, id, queue=queue) for id in expected} == expected
    found = {state: sorted(listed(storage, state, queue=queue)) for state in STORED}
    assert found == {state: sorted(id for id in stored if stored[id] is state) for state in STORED}
    assert counted(storage, queue=queue) == {state: len(ids) for state, ids in found.items() if ids}


# -- threads --------------------------------------------------------------------------


class Background(Generic[T]):
    """A function in a thread of its own, with its answer, its error and how long it took."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="contract", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._answer.append(self._function())
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - began

    def is_alive(self) -> bool:
        """Whether the function still runs."""
        return self._thread.is_alive()

    def until_asleep(self) -> Background[T]:
        """Return once the thread stands still (or has ended): it has most likely begun to wait.

        Nothing's correctness rests on it: it only makes a missing wake-up likely to be seen.
        """
        last: object = None
        still = 0
        deadline = time.monotonic() + PROMPT
        while still < 15 and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
            frame = sys._current_frames().get(self._thread.ident or 0)
            place = None if frame is None else (id(frame), frame.f_lasti)
            still = still + 1 if place == last else 0
            last = place
        return self

    def result(self, timeout: float = 3 * PATIENCE) -> T:
        """The function's answer, or its error raised here."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the thread did not end"
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def prompt_result(self) -> T:
        """The answer, which must have come within PROMPT."""
        answer = self.result()
        assert self.seconds < PATIENCE - 1, f"nobody woke the thread: it took {self.seconds:.1f} s"
        return answer


def together(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Run all functions at the same moment, each in its own thread; their answers in order."""
    barrier = threading.Barrier(len(functions))

    def begin(function: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            barrier.wait(PATIENCE)
            return function()

        return run

    return [thread.result() for thread in [Background(begin(function)) for function in functions]]


def until(condition: Callable[[], bool], message: str = "the condition did not come true") -> None:
    """Return as soon as ``condition`` holds; fail after PROMPT seconds."""
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.002)


def silence(bell: Doorbell) -> None:
    """Take every ring that is still on its way."""
    for _ in range(1_000):
        if bell.wait(0.03) is None:
            return
    raise AssertionError("the doorbell rings without end")


def assert_rings(storage: Storage, peer: Storage, act: Callable[[], object], which: Literal["work", "due"]) -> None:
    """Whether ``act`` wakes a thread of ``peer`` that sleeps on a bell."""
    peer.skew_ms = storage.skew_ms
    bell = peer.doorbell([QUEUE], which)
    silence(bell)
    sleeper = Background(lambda: bell.wait(PATIENCE)).until_asleep()
    assert sleeper.is_alive()
    act()
    assert sleeper.prompt_result() == QUEUE
    bell.close()
