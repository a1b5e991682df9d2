"""Schedules: stored, named by reaps when their tick is due, and moved on by one of those who saw it."""

from __future__ import annotations

from functools import partial

from ...lifecycle import State
from ...storage.base import MAX_TICKS, Schedule, Storage
from .base import ContractBase
from .steps import (
    INTERVAL,
    OTHER,
    QUEUE,
    assert_rings,
    counted,
    now,
    put,
    state_of,
    together,
)

NAMES = ("a", "A", "a:b", "*", "{orders}", "../x", "\u00e9", "e\u0301", "n" * 200)


def ticks(storage: Storage, *, queue: str = QUEUE) -> list[str]:
    """The names of the schedules that a reap says are due."""
    return [schedule.name for schedule in storage.reap(queue, interval_ms=INTERVAL).ticks]


class ScheduleContract(ContractBase):
    """Ticks."""

    def test_schedules_are_kept_as_given(self, storage: Storage, peer: Storage) -> None:
        schedules = [Schedule(name, name.encode() + b"\x00\xff", 1_000 + n) for n, name in enumerate(NAMES)]
        assert storage.schedules(QUEUE) == []
        assert all(storage.put_schedule(QUEUE, schedule) for schedule in schedules)
        assert peer.schedules(QUEUE) == sorted(schedules)
        assert peer.schedules(OTHER) == []
        for schedule in schedules:
            assert peer.remove_schedule(QUEUE, schedule.name)
            assert not storage.remove_schedule(QUEUE, schedule.name)
        assert storage.schedules(QUEUE) == []

    def test_a_schedule_is_put_in_place_of_the_old_one_unless_only_new(self, storage: Storage) -> None:
        first, second, third = (Schedule("a", b"%d" % n, n * 1_000_000) for n in (1, 2, 3))
        assert storage.put_schedule(QUEUE, first, only_new=True)
        assert not storage.put_schedule(QUEUE, second, only_new=True)
        assert storage.schedules(QUEUE) == [first]
        assert storage.put_schedule(QUEUE, third)
        assert storage.schedules(QUEUE) == [third]

    def test_a_schedule_is_moved_once(self, storage: Storage, peer: Storage) -> None:
        """Of several who carry one tick out one may go on with it."""
        storage.put_schedule(QUEUE, Schedule("a", b"s", 1_000))
        assert not storage.move_schedule(QUEUE, "a", 999, 2_000)
        assert not storage.move_schedule(QUEUE, "unknown", 1_000, 2_000)
        assert not storage.move_schedule(OTHER, "a", 1_000, 2_000)
        moves = [partial((storage, peer)[n % 2].move_schedule, QUEUE, "a", 1_000, 2_000 + n) for n in range(6)]
        answers = together(moves)
        assert sorted(answers) == [False] * 5 + [True]
        assert storage.schedules(QUEUE) == [Schedule("a", b"s", 2_000 + answers.index(True))]

    def test_a_reap_names_the_schedules_that_are_due(self, storage: Storage) -> None:
        at_ms = now(storage)
        schedules = {
            name: Schedule(name, name.encode(), at_ms + delay)
            for name, delay in {"late": 30_000, "past": -5_000, "early": 10_000, "soon": 20_000}.items()
        }
        for schedule in schedules.values():
            storage.put_schedule(QUEUE, schedule)
        assert storage.reap(QUEUE, interval_ms=INTERVAL).ticks == (schedules["past"],)
        storage.skew_ms += 21_000
        answer = storage.reap(QUEUE, interval_ms=10_000_000)
        assert answer.ticks == (schedules["past"], schedules["early"], schedules["soon"])
        assert now(storage) - 5_000 < answer.now_ms <= now(storage)
        assert ticks(storage) == ["past", "early", "soon"]  # until somebody moves them
        assert storage.move_schedule(QUEUE, "past", at_ms - 5_000, at_ms + 60_000)
        assert storage.remove_schedule(QUEUE, "early")
        assert ticks(storage) == ["soon"]
        assert ticks(storage, queue=OTHER) == []
        storage.skew_ms += 40_000
        assert ticks(storage) == ["soon", "late", "past"]

    def test_a_reap_names_a_bounded_number(self, storage: Storage) -> None:
        for number in range(MAX_TICKS + 5):
            storage.put_schedule(QUEUE, Schedule(f"s-{number:03}", b"", 1_000 + number))
        first = ticks(storage)
        assert first == [f"s-{number:03}" for number in range(MAX_TICKS)]
        later = now(storage) + 60_000
        for number, name in enumerate(first):
            assert storage.move_schedule(QUEUE, name, 1_000 + number, later)
        assert ticks(storage) == [f"s-{MAX_TICKS + number:03}" for number in range(5)]

    def test_a_reap_tells_when_the_next_tick_is_due(self, storage: Storage) -> None:
        put(storage, "job", delay_ms=90_000)
        storage.put_schedule(QUEUE, Schedule("a", b"", now(storage) + 50_000))
        due = storage.reap(QUEUE, interval_ms=INTERVAL).next_due_ms
        assert due is not None
        assert 45_000 < due <= 50_000
        storage.put_schedule(QUEUE, Schedule("a", b"", now(storage) + 100_000))
        due = storage.reap(QUEUE, interval_ms=INTERVAL).next_due_ms
        assert due is not None
        assert 85_000 < due <= 90_000
        [schedule] = storage.schedules(QUEUE)
        storage.move_schedule(QUEUE, "a", schedule.next_ms, now(storage) + 20_000)
        due = storage.reap(QUEUE, interval_ms=INTERVAL).next_due_ms
        assert due is not None
        assert 15_000 < due <= 20_000

    def test_due_ticks_do_not_hide_what_is_due_next(self, storage: Storage) -> None:
        storage.put_schedule(QUEUE, Schedule("due", b"", 1_000))
        assert storage.reap(QUEUE, interval_ms=INTERVAL).next_due_ms is None
        put(storage, "job", delay_ms=90_000)
        storage.put_schedule(QUEUE, Schedule("later", b"", now(storage) + 95_000))
        answer = storage.reap(QUEUE, interval_ms=INTERVAL)
        assert [tick.name for tick in answer.ticks] == ["due"]
        assert answer.next_due_ms is not None
        assert 85_000 < answer.next_due_ms <= 90_000

    def test_a_queue_without_jobs_has_ticks(self, storage: Storage, peer: Storage) -> None:
        storage.put_schedule(OTHER, Schedule("a", b"spec", 1_000))
        assert peer.reap(OTHER, interval_ms=INTERVAL).ticks == (Schedule("a", b"spec", 1_000),)
        assert counted(storage, queue=OTHER) == {}

    def test_a_purge_leaves_the_schedules(self, storage: Storage) -> None:
        storage.put_schedule(QUEUE, Schedule("a", b"", 1_000))
        put(storage, "job")
        assert storage.purge(QUEUE) == 1
        assert state_of(storage, "job") is State.ABSENT
        assert ticks(storage) == ["a"]

    def test_i33_a_schedule_that_is_the_earliest_rings(self, storage: Storage, peer: Storage) -> None:
        put(storage, "job", delay_ms=90_000)
        storage.put_schedule(QUEUE, Schedule("late", b"", now(storage) + 80_000))
        soon = Schedule("soon", b"", now(storage) + 60_000)
        assert_rings(storage, peer, lambda: storage.put_schedule(QUEUE, soon), "due")
