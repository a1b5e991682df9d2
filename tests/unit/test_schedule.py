"""What a schedule says: its ticks, its policies, its ids, its bytes. No storage."""

from __future__ import annotations

import itertools
import json
import math
import sys
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliq.errors import InvalidJobError, StorageCorruptError
from reliq.schedule import FORMAT, GRACE_MS, MAX_DUE, MIN_DEDUP_MS, Due, Spec, tick_text
from reliq.storage.base import NewRecord

EACH_MINUTE = [{"every": 60}, pytest.param({"cron": "* * * * *"}, marks=pytest.mark.cron)]
JOB = NewRecord("", b"", b"\x01\x00\x00\xff", 3, 3_600_000, 60_000, 86_400_000, 7, group="g")


def spec(**how: Any) -> Spec:
    return Spec.make(JOB, **how)


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def texts(schedule: Spec, after: str, n: int) -> list[str]:
    return [tick_text(tick) for tick in itertools.islice(schedule.ticks_after(ms(after)), n)]


# -- time -----------------------------------------------------------------------------


def test_every_ticks_at_whole_multiples_since_the_epoch() -> None:
    assert texts(spec(every=30), "2026-11-30T12:00:10Z", 3) == [
        "2026-11-30T12:00:30Z",
        "2026-11-30T12:01:00Z",
        "2026-11-30T12:01:30Z",
    ]
    assert texts(spec(every=0.1), "2026-11-30T12:00:00.850Z", 2) == [
        "2026-11-30T12:00:00.900Z",
        "2026-11-30T12:00:01Z",
    ]


@pytest.mark.parametrize("how", EACH_MINUTE)
def test_the_next_tick_is_beyond_the_one_before(how: dict[str, Any]) -> None:
    schedule = spec(**how)
    noon = ms("2026-11-30T12:00:00Z")
    assert schedule.next_after(noon - 1) == noon
    assert schedule.next_after(noon) == noon + 60_000


@pytest.mark.cron
def test_cron_in_utc_and_in_a_zone() -> None:
    assert texts(spec(cron="*/20 8 * * MON"), "2026-11-30T00:00Z", 4) == [
        "2026-11-30T08:00:00Z",
        "2026-11-30T08:20:00Z",
        "2026-11-30T08:40:00Z",
        "2026-12-07T08:00:00Z",
    ]
    berlin = spec(cron="0 2 * * *", tz="Europe/Berlin")
    assert texts(berlin, "2026-11-30T00:00Z", 1) == ["2026-11-30T01:00:00Z"]
    assert spec(cron="0 2 * * *", tz=ZoneInfo("Europe/Berlin")) == berlin
    assert texts(spec(cron="0 0 29 2 *"), "2026-11-30T00:00Z", 2) == ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]


@pytest.mark.cron
def test_a_time_that_spring_leaves_out_comes_once_when_the_clock_was_put_forward() -> None:
    # Berlin 2026-03-29: 02:00 becomes 03:00 at 01:00 UTC.
    assert texts(spec(cron="30 2 * * *", tz="Europe/Berlin"), "2026-03-28T00:00Z", 3) == [
        "2026-03-28T01:30:00Z",
        "2026-03-29T01:00:00Z",  # 03:00, the first time after the gap
        "2026-03-30T00:30:00Z",
    ]
    # Two times within the gap and the one at its end are one tick.
    assert texts(spec(cron="0,30 2,3 * * *", tz="Europe/Berlin"), "2026-03-29T00:00Z", 3) == [
        "2026-03-29T01:00:00Z",
        "2026-03-29T01:30:00Z",
        "2026-03-30T00:00:00Z",
    ]


@pytest.mark.cron
def test_a_time_that_autumn_doubles_comes_once_whenever_one_looks() -> None:
    # Berlin 2026-10-25: 03:00 becomes 02:00 at 01:00 UTC; 02:30 is at 00:30 and at 01:30 UTC.
    nightly = spec(cron="30 2 * * *", tz="Europe/Berlin")
    for after in ("00:30", "00:45", "01:00", "01:15", "01:30", "01:45"):
        assert texts(nightly, f"2026-10-25T{after}Z", 1) == ["2026-10-26T01:30:00Z"], after
    assert texts(nightly, "2026-10-24T12:00Z", 2) == ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    # As the last tick, too: one hour later by the wall clock it is still the first of the two.
    first = ms("2026-10-24T00:30Z")
    assert nightly.due(first, ms("2026-10-25T01:29Z")).ticks == (ms("2026-10-25T00:30Z"),)


@pytest.mark.cron
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_steps_run_through_the_change_of_the_clock(day: str) -> None:
    schedule = spec(cron="*/30 * * * *", tz="Europe/Berlin")
    start = ms(f"{day}T00:00Z")
    ticks = list(itertools.islice(schedule.ticks_after(start), 8))
    assert ticks == [start + n * 1_800_000 for n in range(1, 9)]


@pytest.mark.cron
def test_a_change_of_half_an_hour() -> None:
    # Lord Howe 2026-04-05: 02:00 becomes 01:30 at 15:00 UTC the day before.
    schedule = spec(cron="45 1 * * *", tz="Australia/Lord_Howe")
    assert texts(schedule, "2026-04-04T00:00Z", 2) == ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"]


_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Beirut")
_CRONS = ("30 2 * * *", "0 0 * * *", "*/45 * * * *", "0,30 1,2,3 * * *", "*/20 2 * * *", "10 */2 * * *", "59 23 L * *")


@pytest.mark.cron
@given(
    st.sampled_from(_ZONES),
    st.sampled_from(_CRONS),
    st.sampled_from(["2026-03-25", "2026-04-01", "2026-10-21", "2026-10-28"]),
    st.integers(0, 8 * 86_400_000),
)
@settings(max_examples=60, deadline=None)
def test_every_pool_finds_the_same_ticks_wherever_it_begins(zone: str, cron: str, day: str, offset: int) -> None:
    schedule = spec(cron=cron, tz=zone)
    start = ms(f"{day}T00:00:00Z")
    now = start + offset
    ticks = list(itertools.takewhile(lambda tick: tick <= now + 40 * 86_400_000, schedule.ticks_after(start)))
    assert all(a < b for a, b in itertools.pairwise(ticks))
    later = next(tick for tick in ticks if tick > now)
    assert schedule.next_after(now) == later
    past = tuple(tick for tick in ticks if tick <= now)
    every = Spec.make(JOB, cron=cron, tz=zone, missed="all")
    if past:
        assert schedule.due(past[0], now) == Due(past[-1:], later, past[0] if len(past) > 1 else None)
        assert every.due(past[0], now) == Due(past, later)
    else:
        assert schedule.due(later, now) == Due((), later)


# -- policies -------------------------------------------------------------------------

MINUTE = 60_000


@pytest.mark.parametrize("how", EACH_MINUTE)
class TestPolicies:
    def test_on_time_they_do_the_same(self, how: dict[str, Any]) -> None:
        for missed in ("one", "all", "skip"):
            assert spec(**how, missed=missed).due(MINUTE, MINUTE + 20) == Due((MINUTE,), 2 * MINUTE)

    def test_nothing_is_due_before_its_time(self, how: dict[str, Any]) -> None:
        for missed in ("one", "all", "skip"):
            assert spec(**how, missed=missed).due(MINUTE, MINUTE - 1) == Due((), MINUTE)
            assert spec(**how, missed=missed).due(MINUTE - 1, MINUTE - 1) == Due((), MINUTE)

    def test_one_carries_out_the_last(self, how: dict[str, Any]) -> None:
        due = spec(**how).due(MINUTE, 500 * MINUTE + 7)
        assert due == Due((500 * MINUTE,), 501 * MINUTE, MINUTE)

    def test_all_carries_out_each_but_so_many_at_once(self, how: dict[str, Any]) -> None:
        schedule = spec(**how, missed="all")
        assert schedule.due(MINUTE, 3 * MINUTE) == Due((MINUTE, 2 * MINUTE, 3 * MINUTE), 4 * MINUTE)
        due = schedule.due(MINUTE, 5_000 * MINUTE)
        assert due == Due(tuple(n * MINUTE for n in range(1, MAX_DUE + 1)), (MAX_DUE + 1) * MINUTE)
        at_the_bound = schedule.due(MINUTE, MAX_DUE * MINUTE)
        assert at_the_bound == due

    def test_skip_carries_out_none_that_is_late(self, how: dict[str, Any]) -> None:
        hourly = {"every": 3600} if "every" in how else {"cron": "0 * * * *"}
        schedule = spec(**hourly, missed="skip")
        hour = 60 * MINUTE
        assert schedule.due(hour, hour + GRACE_MS) == Due((hour,), 2 * hour)
        assert schedule.due(hour, hour + GRACE_MS + 1) == Due((), 2 * hour, hour)
        assert schedule.due(hour, 3 * hour + 5) == Due((3 * hour,), 4 * hour, hour)


@pytest.mark.cron
def test_the_last_of_a_long_outage_is_found_soon() -> None:
    monthly = spec(cron="* * 1-5 * *")
    first, now = ms("2016-01-01T00:00Z"), ms("2026-11-30T12:00Z")
    assert monthly.due(first, now) == Due((ms("2026-11-05T23:59Z"),), ms("2026-12-01T00:00Z"), first)


@pytest.mark.cron
def test_a_schedule_that_never_comes_is_refused() -> None:
    with pytest.raises(InvalidJobError, match="within 50 years"):
        spec(cron="0 0 */31 2 6#5").next_after(0)


# -- ids ------------------------------------------------------------------------------


def test_ids_are_made_of_name_and_tick() -> None:
    job = spec(every=1).job_of("q", "nightly", ms("2026-11-30T02:00:00Z"))
    assert job.id == "nightly@2026-11-30T02:00:00Z"
    assert spec(every=1).job_of("q", "n", ms("2026-11-30T02:00:00.100Z")).id == "n@2026-11-30T02:00:00.100Z"
    assert (job.message, job.max_attempts, job.priority, job.group) == (JOB.message, 3, 7, "g")


def test_nonces_are_those_of_queue_name_and_tick() -> None:
    schedule = spec(every=1)
    made = {schedule.job_of(queue, name, tick).nonce for queue in ("q", "qn") for name in "ab" for tick in (1, 2, 12)}
    assert len(made) == 12
    assert {len(nonce) for nonce in made} == {8}
    # Fixed: processes of two versions must agree.
    assert schedule.job_of("q", "a", 0).nonce == bytes.fromhex("7ec012d469523cd8")


def test_a_tick_stays_known_for_a_while_however_short_its_ttls() -> None:
    short = JOB._replace(result_ttl_ms=1, dedup_ttl_ms=1, dead_ttl_ms=1)
    job = Spec.make(short, every=1).job_of("q", "n", 0)
    assert (job.result_ttl_ms, job.dedup_ttl_ms, job.dead_ttl_ms) == (1, MIN_DEDUP_MS, MIN_DEDUP_MS)
    long = JOB._replace(dedup_ttl_ms=10**9, dead_ttl_ms=10**10)
    job = Spec.make(long, every=1).job_of("q", "n", 0)
    assert (job.dedup_ttl_ms, job.dead_ttl_ms) == (10**9, 10**10)


# -- what is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "either cron or every, got neither"),
        ({"cron": "* * * * *", "every": 1}, "either cron or every, got both"),
        ({"every": 0.09}, "every must be at least 0.1 seconds, got 0.09"),
        ({"every": 0}, "every must be a finite number of seconds > 0, got 0"),
        ({"every": math.nan}, "every must be a finite number"),
        ({"every": "30"}, "every must be a finite number of seconds > 0, got str"),
        ({"every": True}, "every must be .*, got bool"),
        ({"every": 10**400}, "every must be at most 100 years|every must be a finite"),
        ({"every": 1, "tz": "UTC"}, "tz is for cron"),
        ({"every": 1, "missed": "some"}, "missed must be one of one, all, skip, got 'some'"),
        ({"every": 1, "missed": None}, "missed must be one of"),
        ({"every": 1, "missed": ["one"]}, "missed must be one of"),
        ({"cron": 5}, "cron must be a str"),
        ({"cron": ""}, "cron must be 1-256 bytes"),
        ({"cron": "*" * 257}, "cron must be 1-256 bytes"),
    ],
)
def test_what_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJobError, match=message):
        spec(**how)


@pytest.mark.cron
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "0 * * * * *"}, r"five fields .*for seconds there is every="),
        ({"cron": "@daily"}, "five fields"),
        ({"cron": "61 * * * *"}, "got '61 .*: Bad minute"),
        ({"cron": "0 0 31 4,6 *"}, "Bad day-of-month"),
        ({"cron": "0 0 " + "9" * 200 + " * *"}, "Bad day-of-month"),
        ({"cron": "*\t* * * *"}, "control characters"),
        ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "tz must name a zone .*'Mars/Olympus'"),
        ({"cron": "* * * * *", "tz": "../../etc/passwd"}, "tz must name a zone"),
        ({"cron": "* * * * *", "tz": "Europe"}, "tz must name a zone"),
        ({"cron": "* * * * *", "tz": ""}, "tz must name a zone"),
        ({"cron": "* * * * *", "tz": "\0"}, "tz must name a zone"),
        ({"cron": "* * * * *", "tz": UTC}, "tz must be the name of a zone"),
        ({"cron": "* * * * *", "tz": 1}, "tz must be the name of a zone.*got int"),
    ],
)
def test_what_is_refused_of_cron(how: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJobError, match=message):
        spec(**how)


@pytest.mark.cron
def test_without_cronsim_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = spec(cron="* * * * *").encode()
    monkeypatch.delitem(sys.modules, "reliq.cron")
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(InvalidJobError, match=r"pip install reliq\[cron\]"):
        spec(cron="* * * * *")
    found = Spec.decode(stored)  # to list it nobody needs cronsim
    with pytest.raises(InvalidJobError, match=r"pip install reliq\[cron\]"):
        found.next_after(0)
    assert spec(every=1).next_after(0) == 1000


# -- bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"every": 0.5},
        pytest.param({"cron": "0 2 * * *", "tz": "Europe/Berlin", "missed": "all"}, marks=pytest.mark.cron),
        {"every": 9, "missed": "skip"},
    ],
)
def test_bytes_and_back(how: dict[str, Any]) -> None:
    made = spec(**how)
    assert Spec.decode(made.encode()) == made
    assert spec(**how).encode() == made.encode()


def test_a_job_without_a_group() -> None:
    made = Spec.make(JOB._replace(group=None, priority=0), every=1)
    assert Spec.decode(made.encode()) == made


def _broken() -> list[bytes]:
    good = json.loads(spec(every=1).encode())
    outer: list[tuple[str, Any]] = [
        ("v", FORMAT + 1), ("cron", "* * * * *"), ("every_ms", 0), ("every_ms", True), ("every_ms", None), ("tz", 1),
        ("missed", "x"), ("missed", []), ("job", []),
    ]  # fmt: skip
    inner: list[tuple[str, Any]] = [
        ("message", "%"), ("message", 1), ("max_attempts", 0), ("priority", "1"), ("group", 1), ("result_ttl_ms", 0.5),
    ]  # fmt: skip
    changed: list[Any] = [[], None, 1, {}, *({**good, name: value} for name, value in outer)]
    changed += [{**good, "job": {**good["job"], name: value}} for name, value in inner]
    return [b"", b"\xff", b"[" * 100_000, *(json.dumps(fields).encode() for fields in changed)]


@pytest.mark.parametrize("data", _broken(), ids=lambda data: repr(data[:60]))
def test_what_is_no_spec_is_told_so(data: bytes) -> None:
    with pytest.raises(StorageCorruptError, match="the stored schedule cannot be read"):
        Spec.decode(data)
