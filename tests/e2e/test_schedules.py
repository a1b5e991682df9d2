"""Schedules on every storage: each tick once, whoever looks, crashes, or turns the clock."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from reliq import ScheduleInfo
from reliq.errors import InvalidJobError, OutcomeUnknownError, StorageCorruptError, StorageUnavailableError
from reliq.job import Event, Job
from reliq.queue import Queue
from reliq.reaper import Reaper
from reliq.schedule import MIN_DEDUP_MS, tick_text
from reliq.storage.base import Limits, Reaped, Schedule, Storage
from reliq.storage.redis.storage import RedisStorage
from reliq.storage.sql.file import FileStorage
from reliq.storage.sql.memory import MemoryStorage
from reliq.ticks import Seen, Ticker
from reliq.worker.pool import WorkerPool

PATIENCE = 20.0
#: So long that no lease and no worker runs out when a test turns the clock.
FOR_EVER = 10.0 * 365 * 86_400


class Site:
    """Three objects on the data of one storage, as three processes have them (memory: one object), and their clock."""

    def __init__(self, storages: list[Storage]) -> None:
        self.storages = storages
        self.queues = [Queue("q", storage, visibility_timeout=FOR_EVER) for storage in storages]
        self.q = self.queues[0]
        self.at("2026-11-30T12:00:10Z")

    def at(self, moment: str | int) -> None:
        """Set the storage's clock. It goes on from there."""
        ms = moment if isinstance(moment, int) else round(datetime.fromisoformat(moment).timestamp() * 1000)
        for storage in self.storages:
            storage.skew_ms = ms - int(time.time() * 1000)  # never before it

    def look(self, by: int = 0) -> int:
        """One round of the reaper of one process."""
        return Reaper(self.queues[by]).run_once()

    def run(self) -> list[str]:
        """Run what is queued; the ids."""
        ids: list[str] = []
        while jobs := self.q.claim(100):
            for job in jobs:
                ids.append(job.id)
                job.complete(None)
        return ids

    def ticks(self) -> list[str]:
        """One round, and the ticks that ran."""
        self.look()
        return [id.partition("@")[2] for id in self.run()]

    @property
    def next(self) -> str:
        [found] = self.q.schedules.list()
        return tick_text(round(found.next_at * 1000))


@pytest.fixture(params=["memory", "file", "redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    storages: list[Storage]
    if request.param == "memory":
        storages = [MemoryStorage()] * 3
    elif request.param == "file":
        storages = [FileStorage(tmp_path / "queue", durability="os") for _ in range(3)]
    else:
        url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
        storages = [RedisStorage(url, prefix=prefix) for _ in range(3)]
    made = Site(storages)
    yield made
    for queue in made.queues:
        queue.close()
    for storage in storages:
        storage.close()


# -- once -----------------------------------------------------------------------------


def test_three_pools_run_each_of_a_hundred_ticks_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # A real second between two looks would be a hundred of them.
    monkeypatch.setattr(Reaper.__init__, "__kwdefaults__", {"interval": 0.02})
    # All in less than MIN_DEDUP_MS of the storage's time: a thread that the machine holds up for a moment here must
    # not have lagged behind for longer than any could in earnest.
    step_ms = 5_000
    ran: list[str] = []
    changed = threading.Condition()

    def handle(job: Job) -> None:
        with changed:
            ran.append(job.id)
            changed.notify_all()

    for queue in site.queues:
        queue.handler(handle)
        queue.schedule("often", every=step_ms / 1000, payload={"n": 1}, result_ttl=1)
    first = round(site.q.schedules.list()[0].next_at * 1000)
    expected: list[str] = []
    with contextlib.ExitStack() as stack:
        for queue in site.queues:
            pool = WorkerPool(queue, threads=2, worker_ttl=FOR_EVER)
            pool.start()
            stack.callback(pool.stop)
        for n in range(100):
            tick = first + n * step_ms
            expected.append(f"often@{tick_text(tick)}")
            site.at(tick)
            with changed:
                assert changed.wait_for(lambda: len(ran) > n, PATIENCE), f"tick {n} never ran"  # noqa: B023
        for by in range(3):
            site.look(by)
    assert ran + site.run() == expected


def test_three_reapers_at_once_enqueue_a_tick_once(site: Site) -> None:
    site.q.schedule("s", every=60)
    with ThreadPoolExecutor(3) as threads:
        for minute in range(1, 21):
            site.at(f"2026-11-30T12:{minute:02}:00Z")
            list(threads.map(site.look, range(3)))
            assert site.run() == [f"s@2026-11-30T12:{minute:02}:00Z"]


class Crash(BaseException):
    """The end of a process, for as far as those who stay can see."""


def crash(*_: Any, **__: Any) -> Any:
    raise Crash


def test_a_crash_between_enqueue_and_move_repeats_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.q.schedule("s", every=60, result_ttl=0.001)
    site.at("2026-11-30T12:01:00Z")
    with monkeypatch.context() as patched:
        patched.setattr(site.storages[1], "move_schedule", crash)
        with pytest.raises(Crash):
            site.look(1)
    assert site.next == "2026-11-30T12:01:00Z"
    assert site.run() == ["s@2026-11-30T12:01:00Z"]  # before anybody else looked
    site.at("2026-11-30T12:01:30Z")
    for by in (0, 1, 2):
        site.look(by)
    assert site.run() == []
    assert site.next == "2026-11-30T12:02:00Z"
    site.at("2026-11-30T12:02:00Z")
    assert site.ticks() == ["2026-11-30T12:02:00Z"]


def test_a_crash_before_the_enqueue_loses_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.q.schedule("s", every=60)
    site.at("2026-11-30T12:01:00Z")
    with monkeypatch.context() as patched:
        patched.setattr(site.storages[1], "enqueue", crash)
        with pytest.raises(Crash):
            site.look(1)
    assert site.ticks() == ["2026-11-30T12:01:00Z"]


def test_an_answer_that_was_lost_repeats_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.q.schedule("s", every=60)
    site.at("2026-11-30T12:01:00Z")
    enqueue = site.storages[1].enqueue

    def written_but_not_known(*args: Any) -> Any:
        enqueue(*args)
        raise OutcomeUnknownError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(site.storages[1], "enqueue", written_but_not_known)
        with pytest.raises(OutcomeUnknownError):
            site.look(1)
    assert site.ticks() == ["2026-11-30T12:01:00Z"]
    assert site.ticks() == []


def fail(site: Site, _: str) -> None:
    [job] = site.q.claim(1)
    job.fail("no")


def discard(site: Site, id: str) -> None:
    fail(site, id)
    assert site.q.dead_letters.discard(id)


END: dict[str, Callable[[Site, str], object]] = {
    "completed": lambda site, _: site.run(),
    "failed": fail,
    "cancelled": lambda site, id: site.q.cancel(id),
    "purged": lambda site, _: (site.q.purge(), site.look()),
    "discarded": discard,
}


# A record that was removed leaves a tombstone for a minute; what a pool saw so long ago it throws away.
@pytest.mark.parametrize(
    ("after_ms", "end"),
    [
        *((after_ms, end) for after_ms in (0, 50_000) for end in END),
        *((MIN_DEDUP_MS - 60_000, end) for end in ("completed", "failed")),
    ],
)
def test_a_pool_that_lags_behind_repeats_nothing(site: Site, end: str, after_ms: int) -> None:
    site.q.schedule("s", every=60, missed="skip", result_ttl=0.001, dedup_ttl=0.001)
    site.at("2026-11-30T12:01:00Z")
    seen = site.storages[1].reap("q", interval_ms=1000)
    began = Seen.now()
    assert len(seen.ticks) == 1
    assert site.look() == 1
    END[end](site, "s@2026-11-30T12:01:00Z")
    site.storages[0].reap("q", interval_ms=1)
    for storage in set(site.storages):
        storage.skew_ms += after_ms
    site.storages[0].reap("q", interval_ms=1)
    Ticker(site.storages[1], lambda event: None).carry_out("q", seen.ticks, seen.now_ms, began)
    assert site.run() == []


# -- the clock ------------------------------------------------------------------------


def test_a_clock_that_goes_back_repeats_nothing(site: Site) -> None:
    site.q.schedule("s", every=60)
    site.at("2026-11-30T12:01:00Z")
    assert site.ticks() == ["2026-11-30T12:01:00Z"]
    site.at("2026-11-30T11:30:30Z")
    assert site.ticks() == []
    site.at("2026-11-30T12:01:30Z")
    assert site.ticks() == []
    assert site.next == "2026-11-30T12:02:00Z"
    site.at("2026-11-30T12:02:00Z")
    assert site.ticks() == ["2026-11-30T12:02:00Z"]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("one", ["2026-11-30T15:00:00Z"]),
        ("all", ["2026-11-30T13:00:00Z", "2026-11-30T14:00:00Z", "2026-11-30T15:00:00Z"]),
        ("skip", []),
    ],
)
@pytest.mark.parametrize("how", [{"every": 3600}, pytest.param({"cron": "0 * * * *"}, marks=pytest.mark.cron)])
def test_after_an_outage_or_a_clock_that_jumped_ahead(
    site: Site, how: dict[str, Any], missed: str, expected: list[str]
) -> None:
    site.q.schedule("s", missed=missed, **how)
    site.at("2026-11-30T15:10:00Z")
    assert sorted(site.ticks()) == expected
    assert site.ticks() == []
    assert site.next == "2026-11-30T16:00:00Z"
    site.at("2026-11-30T16:00:30Z")
    assert site.ticks() == ["2026-11-30T16:00:00Z"]
    site.at("2026-11-30T12:10:00Z")  # and back again
    assert site.ticks() == []
    site.at("2026-11-30T17:00:00Z")
    assert site.ticks() == ["2026-11-30T17:00:00Z"]


def test_all_missed_ticks_however_many(site: Site) -> None:
    site.q.schedule("s", every=1, missed="all")
    site.at("2026-11-30T12:40:10Z")
    while site.look():
        pass
    ran = site.run()
    assert len(ran) == len(set(ran)) == 2400


@pytest.mark.cron
def test_daylight_saving(site: Site) -> None:
    site.at("2026-03-27T12:00:00Z")
    site.q.schedule("nightly", cron="30 2 * * *", tz=ZoneInfo("Europe/Berlin"))
    site.q.schedule("steps", cron="*/30 2,3 * * *", tz="Europe/Berlin")

    def of(name: str, day: str) -> list[str]:
        for minute in range(0, 180, 30):  # 01:00 to 04:00 by the clock of Berlin, and beyond
            site.at(f"{day}T0{minute // 60}:{minute % 60:02}:01Z")
            site.look(minute // 30 % 3)
        return [id.partition("@")[2][11:16] for id in sorted(site.run()) if id.startswith(name)]

    site.at("2026-03-28T12:00:00Z")
    site.ticks()
    assert of("", "2026-03-29").count("01:00") == 2  # at 03:00, which comes right after 01:59
    site.at("2026-10-24T23:59:00Z")
    site.ticks()
    assert of("nightly", "2026-10-25") == ["00:30"]  # the first of two
    site.at("2026-10-25T23:00:00Z")
    site.ticks()
    assert of("nightly", "2026-10-26") == ["01:30"]


# -- making, changing and removing ----------------------------------------------------


def test_an_equal_schedule_changes_nothing(site: Site) -> None:
    made = site.q.schedule("s", every=3600, payload=[1])
    assert made == ScheduleInfo("s", "q", made.next_at, every=3600.0, payload=[1])
    site.at("2026-11-30T13:30:00Z")
    for queue in site.queues:
        assert queue.schedule("s", every=3600, payload=[1]) == made
    assert site.ticks() == ["2026-11-30T13:00:00Z"]


@pytest.mark.cron
def test_processes_that_start_at_once_make_one(site: Site) -> None:
    with ThreadPoolExecutor(9) as threads:
        made = list(threads.map(lambda n: site.queues[n % 3].schedule("s", cron="0 * * * *"), range(9)))
    assert len(set(made)) == 1
    assert [info.name for info in site.q.schedules.list()] == ["s"]


def test_a_different_schedule_replaces_it_from_now_on(site: Site) -> None:
    site.q.schedule("s", every=60, payload=1)
    site.at("2026-11-30T12:05:10Z")
    site.queues[1].schedule("s", every=60, payload=2)
    assert site.next == "2026-11-30T12:06:00Z"
    assert site.ticks() == []
    site.at("2026-11-30T12:06:00Z")
    site.look()
    [job] = site.q.claim(1)
    assert job.payload == 2
    job.complete(None)


def test_a_pool_that_lags_behind_does_not_move_what_replaced_its_schedule(site: Site) -> None:
    site.at("2026-11-30T12:00:59.000Z")
    site.q.schedule("s", every=60, payload="old")
    # A pool that sees the tick before the new schedule is there, and moves it only then.
    old = site.storages[1].schedules("q")[0]
    site.q.schedule("s", every=0.5 * 60, payload="new")
    site.at("2026-11-30T12:01:00Z")
    Ticker(site.storages[1], lambda event: None).carry_out("q", [old], old.next_ms, Seen.now())
    assert site.q.schedules.list()[0].next_at * 1000 == old.next_ms - 1
    site.look()
    assert site.next == "2026-11-30T12:01:30Z"
    assert site.run() == ["s@2026-11-30T12:01:00Z"]


@pytest.mark.cron
def test_get_and_remove(site: Site) -> None:
    assert site.q.schedules.get("s") is None
    assert site.q.schedules.remove("s") is False
    made = site.q.schedule("s", cron="0 2 * * *", tz="Europe/Berlin", missed="all", payload={"a": 1}, priority=3)
    assert site.queues[1].schedules.get("s") == made
    assert (made.cron, made.tz, made.missed, made.payload, made.priority, made.error) == (
        "0 2 * * *", "Europe/Berlin", "all", {"a": 1}, 3, None,
    )  # fmt: skip
    assert site.queues[2].schedules.remove("s") is True
    site.at("2026-12-02T12:00:00Z")
    assert site.ticks() == []
    assert site.q.schedules.list() == []


def test_names_are_apart(site: Site) -> None:
    names = ["a", "a@b", "a:b", "b/../a", "ä", "{a}", "*"]
    for name in names:
        site.q.schedule(name, every=60, payload=name)
    assert sorted(info.name for info in site.q.schedules.list()) == sorted(names)
    site.at("2026-11-30T12:01:00Z")
    site.look()
    assert sorted(site.run()) == sorted(f"{name}@2026-11-30T12:01:00Z" for name in names)


def test_the_options_of_a_job_go_with_it(site: Site) -> None:
    site.q.schedule("s", every=60, max_attempts=7, priority=5, headers={"a": "b"}, time_limit=9, group="g")
    site.at("2026-11-30T12:01:00Z")
    site.look(1)
    status = site.q.get_status("s@2026-11-30T12:01:00Z")
    assert status is not None
    assert (status.max_attempts, status.priority, status.headers, status.group) == (7, 5, {"a": "b"}, "g")


def test_a_fifo_queue_needs_a_group(site: Site) -> None:
    fifo = Queue("q.fifo", site.storages[0])
    with pytest.raises(InvalidJobError, match="group"):
        fifo.schedule("s", every=60)
    fifo.schedule("s", every=60, group="g")
    site.at("2026-11-30T12:01:00Z")
    Reaper(fifo).run_once()
    status = fifo.get_status("s@2026-11-30T12:01:00Z")
    assert status is not None and status.group == "g"


@pytest.mark.parametrize("options", [{"delay": 1}, {"at": 1}, {"after": ["a"]}, {"persistent": True}])
def test_what_a_schedule_cannot_have(site: Site, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidJobError, match=f"{next(iter(options))} is not for a schedule"):
        site.q.schedule("s", every=60, **options)
    for name in ("", "a\n", "x" * 257, 1):
        with pytest.raises(InvalidJobError, match="schedule name must"):
            site.q.schedule(name, every=60)  # type: ignore[arg-type]
    assert site.q.schedules.list() == []


# -- trouble --------------------------------------------------------------------------


def test_a_full_queue_makes_a_tick_wait(site: Site) -> None:
    site.storages[0].set_limits("q", Limits(max_length=1))
    site.q.schedule("s", every=60)
    site.q.enqueue("other")
    site.at("2026-11-30T12:01:00Z")
    reaper = Reaper(site.queues[1])
    told: list[Event] = []
    reaper.on("error", told.append)
    assert reaper.run_once() == 0
    assert [type(event.error).__name__ for event in told] == ["QueueFullError"]
    site.at("2026-11-30T12:02:30Z")
    assert site.run() == ["other"]
    assert site.ticks() == ["2026-11-30T12:02:00Z"]


def test_a_schedule_that_cannot_be_read_stops_no_other(site: Site) -> None:
    site.q.schedule("s", every=60)
    site.storages[0].put_schedule("q", Schedule("later", b'{"v": 99}', 1))
    site.at("2026-11-30T12:01:00Z")
    reaper = Reaper(site.storages[1])
    told: list[Event] = []
    reaper.on("error", told.append)
    assert reaper.run_once() == 1
    assert [type(event.error) for event in told] == [StorageCorruptError]
    assert site.run() == ["s@2026-11-30T12:01:00Z"]
    listed = {info.name: info for info in site.q.schedules.list()}
    assert "format 99" in str(listed["later"].error)
    assert listed["s"].error is None
    assert site.q.schedules.remove("later")


@pytest.mark.cron
def test_a_pool_without_cronsim_leaves_the_tick_to_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.q.schedule("s", cron="* * * * *")
    site.at("2026-11-30T12:01:00Z")
    reaper = Reaper(site.queues[1])
    told: list[Event] = []
    reaper.on("error", told.append)
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, "reliq.cron")
        patched.setitem(sys.modules, "cronsim", None)
        assert reaper.run_once() == 0
    assert len(told) == 1 and "pip install reliq[cron]" in str(told[0].error)
    assert site.ticks() == ["2026-11-30T12:01:00Z"]


def test_an_outage_ends_no_reaper(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = threading.Event()
    enqueue: Callable[..., Any] = site.storages[0].enqueue

    def down(*args: Any) -> Any:
        failing.set()
        raise StorageUnavailableError("down")

    site.q.schedule("s", every=60)
    enqueued = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(site.storages[0], "enqueue", down)
        site.at("2026-11-30T12:01:00Z")
        reaper = Reaper(site.storages[0], ["q"], interval=0.05)
        reaper.on("enqueued", lambda event: enqueued.set())
        with reaper:
            assert failing.wait(PATIENCE)
            patched.setattr(site.storages[0], "enqueue", enqueue)
            assert enqueued.wait(PATIENCE)
    assert site.run() == ["s@2026-11-30T12:01:00Z"]


def test_a_reaper_of_a_storage_finds_a_queue_that_has_nothing_but_a_schedule(site: Site) -> None:
    site.q.schedule("s", every=60)
    site.at("2026-11-30T12:01:00Z")
    assert Reaper(site.storages[1]).run_once() == 1


def test_a_sleeping_reaper_is_woken_for_a_new_schedule(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """I33: without the ring it would look after an hour."""
    for storage in site.storages:
        storage.fallback_ms = 3_600_000
    site.q.enqueue("later", delay=3600)
    looked, ticked = threading.Event(), threading.Event()
    reap = site.storages[1].reap

    def seen(*args: Any, **how: Any) -> Reaped:
        answer = reap(*args, **how)
        looked.set()
        return answer

    monkeypatch.setattr(site.storages[1], "reap", seen)
    reaper = Reaper(site.storages[1], ["q"], interval=3600)
    reaper.on("enqueued", lambda event: ticked.set())
    with reaper:
        assert looked.wait(PATIENCE)
        site.q.schedule("s", every=0.5)
        assert ticked.wait(PATIENCE)
    site.q.schedules.remove("s")
