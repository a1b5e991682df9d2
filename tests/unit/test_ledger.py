"""Who owns a job inside a pool: each way from phase to phase, and none beside them."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import cast

import pytest

from reliq import message
from reliq.storage.base import Claimed, Held, Outcome, Storage, Verb
from reliq.worker.batching import MAX_SIZE, TARGET_S, BatchSize
from reliq.worker.execution import Executor, Finished
from reliq.worker.ledger import FLUSH_S, HAND_BACK_S, Batch, Entry, Ledger, Phase
from reliq.worker.source import Source


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


SOURCE = Source("q", cast(Storage, None), 30_000, cast(Executor, None))


def jobs(*ids: str) -> list[Claimed]:
    return [Claimed(id, b"12345678", 1, 1, 3, 0, 0, False, b"") for id in ids]


def done(entry: Entry) -> Finished:
    claimed = entry.claimed
    return Finished(Outcome(claimed.id, claimed.nonce, claimed.token, Verb.COMPLETE))


def reserve(ledger: Ledger, source: Source) -> int:
    serial = ledger.reserve(source)
    assert serial is not None
    return serial


def enter(ledger: Ledger, *ids: str, source: Source = SOURCE) -> Batch:
    batch = ledger.enter(reserve(ledger, source), jobs(*ids))
    assert batch is not None
    return batch


def begin(ledger: Ledger, batch: Batch) -> Entry:
    entry = ledger.start(batch)
    assert entry is not None
    return entry


def ids(entries: Sequence[Entry]) -> list[str]:
    return [entry.claimed.id for entry in entries]


def verbs(entries: Sequence[Entry]) -> list[Verb]:
    return [entry.finished.outcome.verb for entry in entries if entry.finished is not None]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(clock)


def test_a_job_goes_through_all_phases_once(ledger: Ledger) -> None:
    batch = enter(ledger, "a")
    entry = batch.entries[0]
    phases = [entry.phase]
    assert begin(ledger, batch) is entry
    phases.append(entry.phase)
    assert ledger.finish(entry, done(entry))
    phases.append(entry.phase)
    assert ledger.take(batch) == [entry]
    phases.append(entry.phase)
    assert ledger.take(batch) == []
    ledger.settled([entry])
    assert [*phases, entry.phase] == list(Phase)
    assert ledger.is_empty


def put(ledger: Ledger, phase: Phase) -> tuple[Batch, Entry]:
    """A batch whose only job is in ``phase``."""
    batch = enter(ledger, "a")
    entry = batch.entries[0]
    if phase is not Phase.UNSTARTED:
        begin(ledger, batch)
    if phase in (Phase.OUTCOME, Phase.SETTLING, Phase.GONE):
        ledger.finish(entry, done(entry))
    if phase in (Phase.SETTLING, Phase.GONE):
        ledger.take(batch)
    if phase is Phase.GONE:
        ledger.settled([entry])
    return batch, entry


#: (what happens, phase before) -> phase after. What does not change the phase gives nobody the job.
TABLE = {
    "start": (Phase.RUNNING, Phase.RUNNING, Phase.OUTCOME, Phase.SETTLING, Phase.GONE),
    "finish": (Phase.UNSTARTED, Phase.OUTCOME, Phase.OUTCOME, Phase.SETTLING, Phase.GONE),
    "hand_back": (Phase.SETTLING, Phase.RUNNING, Phase.SETTLING, Phase.SETTLING, Phase.GONE),
    "cancel": (Phase.OUTCOME, Phase.RUNNING, Phase.OUTCOME, Phase.SETTLING, Phase.GONE),
    "lose": (Phase.GONE, Phase.GONE, Phase.OUTCOME, Phase.SETTLING, Phase.GONE),
    "seize": (Phase.SETTLING, Phase.SETTLING, Phase.SETTLING, Phase.SETTLING, Phase.GONE),
}


@pytest.mark.parametrize("before", list(Phase))
@pytest.mark.parametrize("what", list(TABLE))
def test_each_move_from_each_phase(ledger: Ledger, what: str, before: Phase) -> None:
    batch, entry = put(ledger, before)
    if what == "start":
        ledger.start(batch)
    elif what == "finish":
        ledger.finish(entry, done(entry))
    elif what == "hand_back":
        ledger.hand_back(batch)
    elif what == "cancel":
        ledger.cancel(entry)
    elif what == "lose":
        ledger.lose(entry)
    else:
        ledger.seize()
    assert entry.phase is TABLE[what][list(Phase).index(before)]
    # Only a claimed job that is gone is unknown, and nothing but that empties the ledger.
    assert ledger.is_empty is (entry.phase is Phase.GONE)
    assert ledger.knows(Held(*entry.key)) is (entry.phase is not Phase.GONE)


def test_two_threads_never_own_one_job(ledger: Ledger) -> None:
    names = [f"j{n}" for n in range(2000)]
    batch = enter(ledger, *names)
    owned: list[str] = []
    barrier = threading.Barrier(2)

    def run() -> None:
        barrier.wait()
        while (entry := ledger.start(batch)) is not None:
            if ledger.finish(entry, done(entry)):
                owned.extend(ids(ledger.take(batch)))

    def steal() -> None:
        barrier.wait()
        owned.extend(ids(ledger.seize()))

    threads = [threading.Thread(target=run), threading.Thread(target=steal)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(owned) == sorted(names)


def test_advance_finishes_and_starts(ledger: Ledger) -> None:
    batch = enter(ledger, "a", "b")
    first = begin(ledger, batch)
    finished = done(first)
    second = ledger.advance(first, finished)
    assert second is batch.entries[1] and second.phase is Phase.RUNNING and first.finished is finished
    ledger.lose(second)
    late = done(second)
    assert ledger.advance(second, late) is None
    assert second.finished is not late


def test_a_claim_is_in_flight_until_its_jobs_are_in(ledger: Ledger) -> None:
    first, second = reserve(ledger, SOURCE), reserve(ledger, SOURCE)
    assert (first, second) == (1, 2)
    snapshot = ledger.snapshot(SOURCE)
    assert (snapshot.below, snapshot.in_flight, snapshot.entries) == (3, [1, 2], [])
    assert not ledger.is_empty
    ledger.enter(first, jobs("a"))
    ledger.enter(second, ())  # it raised
    snapshot = ledger.snapshot(SOURCE)
    assert (snapshot.below, snapshot.in_flight, ids(snapshot.entries)) == (3, [], ["a"])


def test_a_snapshot_names_what_is_not_gone_of_its_queue_only(ledger: Ledger) -> None:
    batch = enter(ledger, "a", "b")
    enter(ledger, "c", source=Source("other", cast(Storage, None), 30_000, cast(Executor, None)))
    entry = begin(ledger, batch)
    ledger.finish(entry, done(entry))
    taken = ledger.take(batch)
    assert ids(ledger.snapshot(SOURCE).entries) == ["a", "b"]
    ledger.settled(taken)
    assert ids(ledger.snapshot(SOURCE).entries) == ["b"]


class TestMonitor:
    def test_unstarted_jobs_behind_a_slow_one_are_taken_in_order(self, ledger: Ledger, clock: Clock) -> None:
        batch = enter(ledger, "a", "b", "c")
        begin(ledger, batch)
        clock.now += HAND_BACK_S - 0.01
        assert ledger.overdue().ready == []
        clock.now += 0.02
        found = ledger.overdue()
        assert ids(found.ready) == ["b", "c"] and verbs(found.ready) == [Verb.RELEASE] * 2
        assert ledger.start(batch) is None
        assert HAND_BACK_S + FLUSH_S <= 0.1

    def test_outcomes_behind_a_slow_one_are_taken(self, ledger: Ledger, clock: Clock) -> None:
        batch = enter(ledger, "a", "b")
        ledger.advance(begin(ledger, batch), done(batch.entries[0]))
        assert ledger.overdue().ready == []
        clock.now += FLUSH_S + 0.001
        assert ids(ledger.overdue().ready) == ["a"]
        assert ledger.take(batch) == []

    def test_outcomes_that_their_runner_is_about_to_settle_are_left_to_it(self, ledger: Ledger, clock: Clock) -> None:
        batch = enter(ledger, "a")
        entry = begin(ledger, batch)
        ledger.finish(entry, done(entry))
        clock.now += 1
        assert ledger.overdue().ready == []

    def test_it_is_woken_for_a_batch_and_sleeps_when_there_is_nothing(self, ledger: Ledger) -> None:
        nudges: list[int] = []
        ledger.nudge = lambda: nudges.append(1)
        begin(ledger, enter(ledger, "a"))
        assert nudges == []
        assert ledger.overdue().look_at == math.inf
        batch = enter(ledger, "b", "c")
        assert nudges == [1]
        enter(ledger, "d", "e")
        assert nudges == [1]
        assert ledger.overdue().look_at < math.inf
        ledger.hand_back(batch)
        assert ledger.overdue().look_at < math.inf  # d and e

    def test_a_run_over_its_time_limit_is_taken_and_its_neighbours_with_it(self, ledger: Ledger, clock: Clock) -> None:
        batch = enter(ledger, "a", "b")
        nudges: list[int] = []
        ledger.nudge = lambda: nudges.append(1)
        entry = begin(ledger, batch)
        ledger.arm(entry, clock.now + 0.005, message.Message(b""))
        assert nudges == [1]
        assert ledger.overdue().timed_out == []
        clock.now += 0.005
        found = ledger.overdue()
        assert found.timed_out == [entry] and entry.phase is Phase.SETTLING
        assert ids(found.ready) == ["b"]
        assert batch.is_abandoned
        assert not ledger.finish(entry, done(entry))

    def test_what_the_storage_did_not_take_comes_back_after_the_pause(self, ledger: Ledger, clock: Clock) -> None:
        batch = enter(ledger, "a")
        entry = begin(ledger, batch)
        ledger.finish(entry, done(entry))
        ledger.unsettled(ledger.take(batch), 0.5)
        assert entry.phase is Phase.OUTCOME and not ledger.is_empty
        found = ledger.overdue()
        assert found.ready == [] and found.look_at == clock.now + 0.5
        clock.now += 0.5
        assert ledger.overdue().ready == [entry]
        assert verbs([entry]) == [Verb.COMPLETE]


def test_a_cancelled_job_that_has_not_started_never_starts(ledger: Ledger) -> None:
    batch = enter(ledger, "a", "b")
    ledger.cancel(batch.entries[0])
    assert begin(ledger, batch).claimed.id == "b"
    assert verbs(ledger.take(batch)) == [Verb.RELEASE]


def test_a_cancelled_running_job_is_told(ledger: Ledger) -> None:
    entry = begin(ledger, enter(ledger, "a"))
    ledger.cancel(entry)
    assert entry.signal.reason == "cancelled"
    assert ledger.finish(entry, done(entry))  # its completion may still win


def test_a_lost_running_job_is_told_and_its_outcome_dropped(ledger: Ledger) -> None:
    entry = begin(ledger, enter(ledger, "a"))
    assert ledger.lose(entry)
    assert entry.signal.reason == "lost" and ledger.is_empty
    assert not ledger.finish(entry, done(entry))


def test_seize_gives_everything_back_in_the_order_of_the_claims(ledger: Ledger) -> None:
    early, late = reserve(ledger, SOURCE), reserve(ledger, SOURCE)
    second = ledger.enter(late, jobs("c", "d"))
    first = ledger.enter(early, jobs("a", "b"))
    assert first is not None and second is not None
    for batch in (first, second):
        begin(ledger, batch)
    seized = ledger.seize()
    assert ids(seized) == ["a", "b", "c", "d"]
    assert verbs(seized) == [Verb.RELEASE] * 4


def test_wait_empty_ends_with_the_last_job(ledger: Ledger) -> None:
    batch = enter(ledger, "a")
    entry = begin(ledger, batch)
    assert not ledger.wait_empty(lambda: 0.0)
    waiter = threading.Thread(target=ledger.wait_empty, args=(lambda: math.inf,))
    waiter.start()
    ledger.finish(entry, done(entry))
    ledger.settled(ledger.take(batch))
    waiter.join(5)
    assert not waiter.is_alive()


class TestBatchSize:
    def test_it_starts_at_one_and_doubles_while_batches_are_fast(self) -> None:
        size = BatchSize()
        seen = [size.size]
        for _ in range(10):
            size.learn(size.size, TARGET_S / 2)
            seen.append(size.size)
        assert seen == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]
        assert seen[-1] == MAX_SIZE

    def test_a_batch_that_was_not_full_teaches_nothing(self) -> None:
        size = BatchSize()
        size.size = 16
        size.learn(3, 0.001)
        size.learn(0, 5.0)
        assert size.size == 16

    def test_a_slow_handler_brings_it_to_one(self) -> None:
        size = BatchSize()
        size.size = 256
        size.learn(1, 0.2)
        assert size.size == 1

    def test_a_batch_over_the_target_shrinks_it_to_the_target_by_halves(self) -> None:
        size = BatchSize()
        size.size = 64
        for _ in range(3):
            size.learn(size.size, size.size * 0.001)  # 1 ms a job: 10 fit
        assert size.size == 10

    def test_the_cap_holds(self) -> None:
        size = BatchSize(1)
        size.learn(1, 0.0)
        assert size.size == 1
        assert BatchSize(10_000)._cap == MAX_SIZE
