"""I6, I48 and I49: what is read is what was written, whatever the ids and bytes; listings, counts and events."""

from __future__ import annotations

import threading

import pytest

from ...lifecycle import STORED, State
from ...storage.base import Storage, Verb, Worker
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    INTERVAL,
    OTHER,
    PATIENCE,
    QUEUE,
    TTL,
    WORKER_TTL,
    assert_placed,
    cancel,
    counted,
    drain,
    jump,
    listed,
    look,
    now,
    outcome,
    pass_time,
    picture,
    put,
    put_and_take,
    record,
    settle,
    settle_all,
    state_of,
    take,
    take_one,
    until,
    upkeep,
)

ODD_IDS = (
    "a", "A", "\uff21", "a:", ":a", "a:exp", "a:b:c", "a ", " a", " ", "../../x", "/etc/passwd", ".", "..", "a/b",
    "a\\b", "{x}", "{orders}", "{reliq:orders}:jobs", "}", "*", "?", "[a]", "%", "_", "%41", "'", '"', "''", "--", ";",
    "\\", "$", "0", "00", "1", "01", "1.0", "1e0", "-1", "+1", " 1", "0x1", "null", "None", "nan", "inf", "true",
    "\u00e1", "a\u0301", "\u0430", "\u212a", "K", "k", "\u00df", "ss", "\u0130", "i", "\U0001f986", "\u200b", "\u202e",
    "queued", "jobs", "meta", "x" * 512, "\U0001f986" * 128, "x" * 511 + "y",
)  # fmt: skip

ODD_BYTES = (
    b"", b"\x00", b"\x00\x00", b"a\x00b", b"\r\n", b"\n", b" ", b"null", b"0", b"1.50", b"\xff\xfe\x00", b"\x80", b"{}",
    b"'", b"a:b", bytes(range(256)), bytes(range(256)) * 1_200,
)  # fmt: skip


class ReadingContract(ContractBase):
    """Bytes, names and places."""

    def test_i48_ids_are_compared_byte_by_byte(self, storage: Storage) -> None:
        records = [record(id, message=id.encode() + b"!", max_attempts=9) for id in ODD_IDS]
        assert len(set(ODD_IDS)) == len(ODD_IDS)
        assert [answer.status for answer in storage.enqueue(QUEUE, records)] == ["queued"] * len(ODD_IDS)
        assert [answer.id for answer in storage.enqueue(QUEUE, records)] == list(ODD_IDS)
        assert [(s.id, s.message) for s in storage.read(QUEUE, ODD_IDS)] == [(id, id.encode() + b"!") for id in ODD_IDS]
        assert sorted(listed(storage, State.QUEUED, page=7)) == sorted(ODD_IDS)
        jobs = take(storage, limit=len(ODD_IDS))
        assert [(job.id, job.message) for job in jobs] == [(id, id.encode() + b"!") for id in ODD_IDS]
        settle_all(storage, [outcome(job, Verb.RETRY, error=job.id.encode(), delay_ms=1_000) for job in jobs])
        assert sorted(listed(storage, State.FAILING, page=7)) == sorted(ODD_IDS)
        jump(storage, 2_000)
        jobs = take(storage, limit=len(ODD_IDS))
        settle_all(storage, [outcome(job, result=job.id.encode() + b"?") for job in jobs])
        for id in ODD_IDS:
            snapshot = look(storage, id)
            assert (snapshot.state, snapshot.result) == (State.COMPLETED, id.encode() + b"?")
            assert [error for *_, error in snapshot.errors] == [id.encode()]
        assert sorted(listed(storage, State.COMPLETED, page=7)) == sorted(ODD_IDS)
        jump(storage, TTL + 1_000)
        assert counted(storage) == {}

    def test_i48_an_operation_on_one_odd_id_touches_no_other(self, storage: Storage) -> None:
        put(storage, *ODD_IDS)
        left = list(ODD_IDS)
        for id in ODD_IDS[::3]:
            assert cancel(storage, id) == "cancelled"
            left.remove(id)
        assert drain(storage) == left

    def test_i48_waiting_and_events_work_for_odd_ids(self, storage: Storage) -> None:
        heard: list[tuple[str, str]] = []
        stop = storage.subscribe(QUEUE, lambda name, id: heard.append((name, id)))
        put(storage, *ODD_IDS)
        for id in ODD_IDS:
            job = take_one(storage)
            assert job.id == id
            settle(storage, job, result=id.encode())
            snapshot = storage.wait(QUEUE, id, timeout=PATIENCE)
            assert snapshot is not None
            assert snapshot.result == id.encode()
        until(lambda: len(heard) >= 3 * len(ODD_IDS))
        stop()
        for name in ("queued", "processing", "completed"):
            assert [id for event, id in heard if event == name] == list(ODD_IDS)

    @pytest.mark.parametrize("data", ODD_BYTES, ids=lambda data: f"{len(data)}-{data[:8]!r}")
    def test_i49_the_bytes_given_are_the_bytes_returned(self, storage: Storage, data: bytes) -> None:
        put(storage, "a", "b", message=data)
        assert look(storage, "a").message == data
        first, second = take(storage, limit=2)
        assert (first.message, second.message) == (data, data)
        settle_all(storage, [outcome(first, result=data), outcome(second, Verb.FAIL, error=data + b"!")])
        snapshot = look(storage, "a")
        assert (snapshot.message, snapshot.result) == (data, data)
        assert put(storage, "a")[0].result == data
        assert [error for *_, error in look(storage, "b").errors] == [data + b"!"]
        waited = storage.wait(QUEUE, "a", timeout=PATIENCE)
        assert waited is not None
        assert waited.result == data

    def test_a_read_without_payload_leaves_the_bytes_out(self, storage: Storage) -> None:
        settle(storage, put_and_take(storage, "a", message=b"m"), result=b"r")
        [snapshot] = storage.read(QUEUE, ["a"], payload=False)
        assert (snapshot.state, snapshot.message, snapshot.result) == (State.COMPLETED, b"", None)

    def test_a_read_answers_in_order_also_for_unknown_and_repeated_ids(self, storage: Storage) -> None:
        put(storage, "a", "b")
        snapshots = storage.read(QUEUE, ["b", "x", "a", "b"])
        assert [(s.id, s.state.value) for s in snapshots] == [
            ("b", "queued"), ("x", "absent"), ("a", "queued"), ("b", "queued"),
        ]  # fmt: skip
        assert snapshots[1].cause == "unknown"
        assert storage.read(QUEUE, []) == []

    def test_times_are_those_of_the_transitions(self, storage: Storage) -> None:
        put(storage, "a")
        created = look(storage, "a").created_at_ms
        storage.skew_ms += 5_000
        job = take_one(storage)
        assert job.created_at_ms == created
        storage.skew_ms += 5_000
        before = now(storage)
        settle(storage, job)
        snapshot = look(storage, "a")
        assert snapshot.created_at_ms == created
        assert before <= snapshot.updated_at_ms <= now(storage)
        assert snapshot.updated_at_ms >= created + 10_000

    def test_i06_every_record_is_listed_once_and_every_listed_id_can_be_read(self, storage: Storage) -> None:
        put(storage, *(f"scheduled-{n}" for n in range(25)), delay_ms=60_000)
        put(storage, *(f"job-{n}" for n in range(100)))
        jobs = take(storage, limit=75)
        settle_all(storage, [outcome(job, result=b"r") for job in jobs[:25]])
        settle_all(storage, [outcome(job, Verb.FAIL, error=b"e") for job in jobs[25:45]])
        settle_all(storage, [outcome(job, Verb.RETRY, error=b"e", delay_ms=60_000) for job in jobs[45:60]])
        expected = {
            State.WAITING: 0, State.SCHEDULED: 25, State.QUEUED: 25, State.PROCESSING: 15, State.FAILING: 15,
            State.COMPLETED: 25, State.FAILED: 20,
        }  # fmt: skip
        assert counted(storage) == {state: number for state, number in expected.items() if number}
        for page in (1, 7, 25, 1_000):
            for state, number in expected.items():
                ids = listed(storage, state, page=page)
                assert len(ids) == number
                assert {snapshot.state for snapshot in storage.read(QUEUE, ids)} <= {state}

    def test_listings_come_roughly_in_the_order_of_service(self, storage: Storage) -> None:
        put(storage, "low-1", "low-2")
        put(storage, "high", priority=5)
        put(storage, "later", delay_ms=90_000)
        put(storage, "sooner", delay_ms=50_000)
        assert listed(storage, State.QUEUED) == ["high", "low-1", "low-2"]
        assert listed(storage, State.SCHEDULED) == ["sooner", "later"]

    def test_i02_stale_entries_are_not_listed(self, storage: Storage) -> None:
        for _ in range(3):
            put(storage, "a", "b")
            cancel(storage, "a")
        assert_placed(storage, {"a": State.ABSENT, "b": State.QUEUED})
        put(storage, "a")
        assert listed(storage, State.QUEUED) == ["b", "a"]

    def test_two_queues_know_nothing_of_each_other(self, storage: Storage) -> None:
        upkeep(storage, queue=QUEUE)
        upkeep(storage, queue=OTHER)
        put(storage, "a", "b", message=b"here")
        put(storage, "a", "c", message=b"there", queue=OTHER)
        before = picture(storage, "a", "c", queue=OTHER)
        jobs = take(storage, limit=2)
        assert [(job.id, job.message) for job in jobs] == [("a", b"here"), ("b", b"here")]
        settle(storage, jobs[0])
        cancel(storage, "c")
        storage.pause(QUEUE, True)
        storage.purge(QUEUE)
        pass_time(storage, WORKER_TTL + 2 * INTERVAL)
        assert picture(storage, "a", "c", queue=OTHER) == before
        assert not storage.is_paused(OTHER)
        assert storage.workers(OTHER) == []
        assert drain(storage, queue=OTHER) == ["a", "c"]
        assert [worker.queue for worker in storage.workers()] == [OTHER]

    def test_queues_are_listed_from_their_first_job_on(self, storage: Storage, peer: Storage) -> None:
        assert storage.queues() == []
        for name in ("zeta", "Alpha", "a.b-c_d", "x" * 64):
            put(storage, "a", queue=name)
        assert peer.queues() == sorted(["zeta", "Alpha", "a.b-c_d", "x" * 64])
        drain(storage, queue="zeta")
        storage.purge("Alpha")
        assert peer.queues() == sorted(["zeta", "Alpha", "a.b-c_d", "x" * 64])

    def test_workers_of_one_queue_and_of_all(self, storage: Storage, peer: Storage) -> None:
        assert storage.workers() == []
        put(storage, "a")
        put(storage, "b", queue=OTHER)
        take(storage, ALICE)
        take(storage, ALICE, queue=OTHER)
        take(storage, Worker("big", "0d", runners=8, ttl_ms=60_000), queue=OTHER)
        at_ms = now(storage)
        [worker] = peer.workers(QUEUE)
        assert (worker.key, worker.queue, worker.runners, worker.processing) == (ALICE.key, QUEUE, 1, 1)
        assert at_ms < worker.expires_at_ms <= at_ms + WORKER_TTL
        found = sorted((info.queue, info.key, info.runners, info.processing) for info in peer.workers())
        assert found == [(OTHER, ALICE.key, 1, 1), (OTHER, "big~0d", 8, 0), (QUEUE, ALICE.key, 1, 1)]

    def test_an_unknown_queue_is_empty(self, storage: Storage) -> None:
        assert counted(storage, queue="never") == {}
        assert storage.list_ids("never", State.QUEUED, None, 10) == ([], None)
        assert storage.workers("never") == []
        assert not storage.is_paused("never")
        assert storage.cancel("never", ["a"]) == ["not_found"]
        assert storage.revive("never", None) == []
        assert storage.discard("never", ["a"]) == []
        assert storage.purge("never") == 0
        assert upkeep(storage, queue="never") == []
        assert storage.leave("never", ALICE.key) == 0
        assert storage.queues() == []

    def test_counts_name_every_stored_state(self, storage: Storage) -> None:
        put(storage, "a")
        assert set(storage.counts(QUEUE)) == set(STORED)
        assert storage.counts(QUEUE)[State.QUEUED] == 1

    def test_events_tell_every_change(self, storage: Storage, peer: Storage) -> None:
        heard: list[tuple[str, str]] = []
        stop = peer.subscribe(QUEUE, lambda name, id: heard.append((name, id)))
        upkeep(storage)

        def expect(*events: tuple[str, str]) -> None:
            until(lambda: len(heard) >= len(events), f"expected {events}, heard {heard}")
            assert sorted(heard) == sorted(events)
            heard.clear()

        put(storage, "a", "b", "c", result_ttl_ms=60_000, dedup_ttl_ms=60_000)
        expect(("queued", "a"), ("queued", "b"), ("queued", "c"))
        put(storage, "d", delay_ms=2_000)
        expect(("scheduled", "d"))
        jobs = take(storage, limit=3)
        expect(("processing", "a"), ("processing", "b"), ("processing", "c"))
        settle(storage, jobs[0])
        expect(("completed", "a"))
        settle(storage, jobs[1], Verb.RETRY, error=b"e", delay_ms=1_000)
        expect(("failing", "b"))
        settle(storage, jobs[2], Verb.FAIL, error=b"e")
        expect(("failed", "c"))
        storage.revive(QUEUE, ["c"])
        expect(("queued", "c"))
        settle(storage, take_one(storage), Verb.RELEASE)
        expect(("processing", "c"), ("requeued", "c"))
        cancel(storage, "c")
        expect(("cancelled", "c"))
        jump(storage, 3_000)
        expect(("queued", "b"), ("queued", "d"))
        job = take_one(storage)
        cancel(storage, job.id, running=True)
        settle(storage, job, Verb.RETRY, error=b"e")
        expect(("processing", "b"), ("cancelling", "b"), ("cancelled", "b"))
        take_one(storage, BOB)
        expect(("processing", "d"))
        pass_time(storage, WORKER_TTL + 2 * INTERVAL)
        until(lambda: ("stalled", "d") in heard)
        heard.clear()
        settle(storage, take_one(storage), Verb.FAIL, error=b"e")
        storage.discard(QUEUE, ["d"])
        expect(("processing", "d"), ("failed", "d"), ("discarded", "d"))
        jump(storage, 60_000)
        expect(("expired", "a"))
        put(storage, "e")
        storage.purge(QUEUE)
        expect(("queued", "e"), ("purged", ""))
        stop()
        put(storage, "f")
        put(storage, "g", queue=OTHER)
        assert heard == []

    def test_a_failing_listener_disturbs_nobody(self, storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
        heard = threading.Event()

        def broken(name: str, id: str) -> None:
            raise ValueError("this listener is broken")

        stop_broken = storage.subscribe(QUEUE, broken)
        stop = storage.subscribe(QUEUE, lambda name, id: heard.set() if id == "b" else None)
        put(storage, "a")
        put(storage, "b")
        assert heard.wait(PATIENCE)
        until(lambda: any("listener" in (entry.exc_text or entry.getMessage()) for entry in caplog.records))
        stop_broken()
        stop_broken()
        stop()
        assert state_of(storage, "a") is State.QUEUED
