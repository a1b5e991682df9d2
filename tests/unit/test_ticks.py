"""Carrying out ticks, against a storage that is told what to answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from reliq import ticks
from reliq.errors import (
    OutcomeUnknownError,
    QueueFullError,
    StorageCorruptError,
    StorageError,
    StorageUnavailableError,
)
from reliq.job import Event
from reliq.lifecycle import State
from reliq.reaper import Reaper
from reliq.schedule import Spec
from reliq.storage.base import MAX_BATCH, TOMBSTONE_MS, Doorbell, Enqueued, NewRecord, Reaped, Schedule, Storage
from reliq.ticks import FRESH_S, RETRY_MS, Carried, Seen, Ticker

PATIENCE = 10.0
JOB = NewRecord("", b"", b"m", 1, 1, 1, 1)
EVERY = Spec.make(JOB, every=60).encode()
ALL = Spec.make(JOB, every=60, missed="all").encode()
MINUTE = 60_000


class _Fake:
    """The schedules and the ids of one queue, and what was asked for."""

    url = "fake://"

    def __init__(self, *schedules: Schedule, room: int = MAX_BATCH) -> None:
        self.schedules = {schedule.name: schedule for schedule in schedules}
        self.room = room
        self.jobs: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.errors: dict[str, list[BaseException]] = {"enqueue": [], "move": []}
        self.now_ms = 0
        self.reaps = 0
        self.reaped = threading.Condition()

    def enqueue(self, queue: str, jobs: Sequence[NewRecord]) -> list[Enqueued]:
        self.calls.append(f"enqueue {len(jobs)}")
        if self.errors["enqueue"]:
            raise self.errors["enqueue"].pop(0)
        new = [job for job in jobs if job.id not in self.jobs]
        if len(new) > self.room:
            raise QueueFullError("full")
        self.room -= len(new)
        self.jobs.update((job.id, job.nonce) for job in new)
        return [Enqueued(job.id, "queued", State.QUEUED, job.nonce) for job in jobs]

    def move_schedule(self, queue: str, name: str, was_ms: int, next_ms: int) -> bool:
        self.calls.append(f"move {name} {was_ms // MINUTE} {next_ms // MINUTE}")
        if self.errors["move"]:
            raise self.errors["move"].pop(0)
        stored = self.schedules.get(name)
        if stored is None or stored.next_ms != was_ms:
            return False
        self.schedules[name] = stored._replace(next_ms=next_ms)
        return True

    def due(self) -> tuple[Schedule, ...]:
        return tuple(each for each in self.schedules.values() if each.next_ms <= self.now_ms)

    def reap(self, queue: str, *, interval_ms: int) -> Reaped:
        with self.reaped:
            self.reaps += 1
            self.reaped.notify_all()
        later = [each.next_ms for each in self.schedules.values() if each.next_ms > self.now_ms]
        return Reaped([], False, min(later) - self.now_ms if later else None, self.due(), self.now_ms)

    def queues(self) -> list[str]:
        return ["q"]

    def doorbell(self, queues: Sequence[str], bell: str) -> Doorbell:
        return _Bell()


class _Bell(Doorbell):
    def __init__(self) -> None:
        self._rung = threading.Event()

    def wait(self, timeout: float) -> str | None:
        self._rung.wait(timeout)
        return None

    def wake(self) -> None:
        self._rung.set()

    def close(self) -> None: ...


def fake(*schedules: Schedule, room: int = MAX_BATCH) -> Any:
    made = type("FakeStorage", (_Fake, Storage), {})
    made.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return made(*schedules, room=room)


class Look:
    """One ticker on a storage; ``at`` a time it looks."""

    def __init__(self, storage: Any) -> None:
        self.events: list[Event] = []
        self.storage = storage
        self.ticker = Ticker(storage, self.events.append)

    def at(self, now_ms: int) -> Carried:
        self.storage.now_ms = now_ms
        return self.ticker.carry_out("q", self.storage.due(), now_ms, Seen.now())

    def told(self, name: str) -> list[Any]:
        return [event.id or event.error for event in self.events if event.name == name]


def test_a_tick_is_enqueued_and_then_the_schedule_moves_on() -> None:
    storage = fake(Schedule("a", EVERY, MINUTE))
    look = Look(storage)
    assert look.at(MINUTE) == Carried(1, 0)
    assert storage.calls == ["enqueue 1", "move a 1 2"]
    assert look.told("enqueued") == ["a@1970-01-01T00:01:00Z"]
    assert look.events[0].queue == "q"


def test_what_is_not_due_only_moves() -> None:
    storage = fake(Schedule("a", EVERY, MINUTE - 1))
    assert Look(storage).at(MINUTE - 1) == Carried(0, 0)
    assert storage.calls == ["move a 0 1"]


def test_who_comes_second_changes_nothing_and_tells_nothing() -> None:
    storage = fake(Schedule("a", EVERY, MINUTE))
    first, second = Look(storage), Look(storage)
    seen = storage.schedules["a"]
    first.at(MINUTE)
    jobs = dict(storage.jobs)
    assert second.ticker.carry_out("q", [seen], MINUTE, Seen.now()) == Carried(0, 0)
    assert storage.jobs == jobs
    assert second.events == []
    assert storage.schedules["a"].next_ms == 2 * MINUTE


def test_a_crash_between_the_two_steps_repeats_the_first() -> None:
    storage = fake(Schedule("a", EVERY, MINUTE))
    storage.errors["move"] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        Look(storage).at(MINUTE)
    jobs = dict(storage.jobs)
    assert Look(storage).at(MINUTE + 20) == Carried(1, 0)
    assert storage.jobs == jobs


@pytest.mark.parametrize("clock", Seen._fields)
def test_what_was_seen_long_ago_is_not_acted_on(clock: str) -> None:
    storage = fake(Schedule("a", EVERY, MINUTE))
    look = Look(storage)
    seen = Seen.now()
    seen = seen._replace(**{clock: getattr(seen, clock) - FRESH_S - 1})
    storage.now_ms = MINUTE
    assert look.ticker.carry_out("q", storage.due(), MINUTE, seen) == (0, 0)
    assert storage.calls == []


def test_looking_and_repeating_end_before_the_tombstone() -> None:
    repeats_s = 30  # SPEC I11
    assert (FRESH_S + repeats_s) * 1000 < TOMBSTONE_MS


def test_a_full_queue_takes_what_it_has_room_for_and_the_rest_later() -> None:
    storage = fake(Schedule("a", ALL, MINUTE), room=3)
    look = Look(storage)
    assert look.at(10 * MINUTE) == Carried(2, 0)
    assert storage.calls == ["enqueue 10", "enqueue 5", "enqueue 2", "move a 1 3"]
    assert look.at(10 * MINUTE) == Carried(1, 0)
    assert look.at(10 * MINUTE) == Carried(0, RETRY_MS)
    assert [type(error) for error in look.told("error")] == [QueueFullError]
    storage.room = 100
    assert look.at(10 * MINUTE) == Carried(7, 0)
    assert len(storage.jobs) == 10
    assert storage.schedules["a"].next_ms == 11 * MINUTE


def test_a_full_queue_leaves_a_single_tick_for_later() -> None:
    storage = fake(Schedule("a", EVERY, MINUTE), room=0)
    look = Look(storage)
    for minute in (1, 2, 3):
        assert look.at(minute * MINUTE) == Carried(0, RETRY_MS)
    storage.room = 1
    assert look.at(3 * MINUTE + 1) == Carried(1, 0)
    assert look.told("enqueued") == ["a@1970-01-01T00:03:00Z"]


def test_one_in_trouble_does_not_hold_up_the_others_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    storage = fake(Schedule("broken", b"{}", MINUTE), Schedule("a", EVERY, MINUTE))
    look = Look(storage)
    assert look.at(MINUTE) == Carried(1, 0)
    assert look.at(MINUTE) == Carried(0, RETRY_MS)
    assert look.at(2 * MINUTE) == Carried(1, 0)
    assert [type(error) for error in look.told("error")] == [StorageCorruptError]
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "schedule 'broken' of queue 'q'" in record.message and record.exc_info is None
    assert storage.schedules["broken"].next_ms == MINUTE  # others may know what it means


def test_trouble_that_is_over_is_told_of_again() -> None:
    storage = fake(Schedule("a", EVERY, MINUTE))
    look = Look(storage)
    storage.errors["enqueue"] = [StorageError("no"), StorageError("no")]
    assert [look.at(MINUTE) for _ in range(3)] == [(0, RETRY_MS), (0, RETRY_MS), (1, 0)]
    storage.errors["enqueue"] = [ValueError("a fault")]
    assert look.at(2 * MINUTE) == Carried(0, RETRY_MS)
    assert [str(error) for error in look.told("error")] == ["no", "a fault"]


def test_the_memory_of_troubles_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "MAX_TROUBLES", 3)
    look = Look(fake(*(Schedule(f"{n}", b"", MINUTE) for n in range(10))))
    look.at(MINUTE)
    assert len(look.ticker._troubles) <= 3


@pytest.mark.parametrize("error", [StorageUnavailableError("down"), OutcomeUnknownError("who knows")])
def test_an_outage_ends_the_look(error: StorageError) -> None:
    storage = fake(Schedule("a", EVERY, MINUTE), Schedule("b", EVERY, MINUTE))
    storage.errors["enqueue"] = [error]
    with pytest.raises(type(error)):
        Look(storage).at(MINUTE)
    assert storage.calls == ["enqueue 1"]


@pytest.mark.parametrize(("late", "level"), [(50_000, logging.DEBUG), (MINUTE * 9, logging.WARNING)])
def test_missed_ticks_are_logged(late: int, level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "reliq")
    spec = Spec.make(JOB, every=10).encode()
    Look(fake(Schedule("a", spec, MINUTE))).at(MINUTE + late)
    [record] = caplog.records
    assert record.levelno == level
    assert "missed its ticks from 1970-01-01T00:01:00Z on" in record.message


# -- within the reaper ----------------------------------------------------------------


def test_the_reaper_counts_and_tells_of_jobs_of_ticks() -> None:
    storage = fake(Schedule("a", EVERY, MINUTE))
    storage.now_ms = MINUTE
    reaper = Reaper(storage)
    heard: list[tuple[str, str, str]] = []
    reaper.on("enqueued", lambda event: heard.append((event.name, event.queue, event.id)))
    assert reaper.run_once() == 1
    assert heard == [("enqueued", "q", "a@1970-01-01T00:01:00Z")]
    assert reaper.run_once() == 0


def test_the_reaper_looks_at_once_for_what_a_tick_hid() -> None:
    storage = fake(Schedule("a", ALL, MINUTE), room=10_000)
    storage.now_ms = 3_500 * MINUTE
    with Reaper(storage, interval=3600):
        wait_for(storage, lambda: storage.schedules["a"].next_ms > storage.now_ms)
    assert len(storage.jobs) == 3_500


def test_the_reaper_does_not_spin_on_what_it_cannot_carry_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "RETRY_MS", 3_600_000)
    storage = fake(Schedule("broken", b"", MINUTE))
    storage.now_ms = MINUTE
    with Reaper(storage, interval=0.05):
        began = time.monotonic()
        wait_for(storage, lambda: storage.reaps >= 6)
        assert time.monotonic() - began >= 0.2  # five pauses, but for the clock's grain


def wait_for(storage: Any, condition: Callable[[], bool]) -> None:
    with storage.reaped:
        assert storage.reaped.wait_for(condition, PATIENCE)
