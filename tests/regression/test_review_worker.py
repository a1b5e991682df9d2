"""Jobs whose serde, error, header or outcome is broken come to an end, and spoil no other."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from reliq import Backoff, Event, Job, JsonSerde, MemoryStorage, Queue, Retry, Storage, WorkerPool
from reliq.hooks import Emitter
from reliq.storage.base import NewRecord, Outcome, Settled, Verb, Worker
from reliq.worker.execution import Executor
from reliq.worker.ledger import Ledger

PATIENCE = 10.0
ONCE = Backoff(base=0.0)


class Panic(BaseException):
    """What an extension module raises when it breaks: no Exception."""


class Dumps(JsonSerde):
    def __init__(self, dumps: Callable[[Any], Any]) -> None:
        self._dumps = dumps

    def dumps(self, value: Any) -> Any:
        return self._dumps(value)


class BrokenLoads(JsonSerde):
    def loads(self, data: bytes) -> Any:
        raise Panic("loads")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise Panic("str")


def panic(_: Any) -> Any:
    raise Panic("dumps")


def raiser(error: BaseException) -> Callable[[Job], Any]:
    def handler(_: Job) -> Any:
        raise error

    return handler


def _fate(queue: Queue, handler: Callable[[Job], Any] = lambda _: 1) -> str:
    """The state to which a pool brings job ``a`` in its only attempt."""
    queue.execute(handler)
    queue.enqueue("a", 1, max_attempts=1, backoff=ONCE)
    assert WorkerPool(queue, 1).run_until_empty(PATIENCE)
    return queue.storage.read("q", ["a"])[0].state


@pytest.mark.parametrize(
    "serde",
    [Dumps(lambda _: None), Dumps(lambda _: "text"), Dumps(lambda _: 5), Dumps(panic)],
    ids=["None", "str", "int", "panic"],
)
def test_a_result_that_its_serde_cannot_encode_ends_the_job(storage: Storage, serde: JsonSerde) -> None:
    queue = Queue("q", storage, result_serde=serde)
    assert _fate(queue) == "failed"
    [failed] = queue.jobs("failed")
    assert failed.error is not None and failed.error.startswith(("SerdeError: queue 'q': the result must", "Panic"))


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_serde_may_return_what_is_like_bytes(storage: Storage, kind: Callable[[bytes], Any]) -> None:
    serde = Dumps(lambda value: kind(json.dumps(value).encode()))
    queue = Queue("q", storage, result_serde=serde, payload_serde=serde)
    assert _fate(queue, lambda job: [job.payload]) == "completed"
    assert queue.get_result("a") == [1]


def test_a_payload_whose_decoding_panics_ends_the_job(storage: Storage) -> None:
    assert _fate(Queue("q", storage, payload_serde=BrokenLoads())) == "failed"


@pytest.mark.parametrize("error", [Retry(10**400), Retry(float("inf")), Unprintable()], ids=["int", "inf", "text"])
def test_an_error_that_cannot_be_used_ends_the_attempt(storage: Storage, error: Exception) -> None:
    assert _fate(Queue("q", storage), raiser(error)) == "failed"


@pytest.mark.parametrize(
    "header",
    [
        {"time_limit": "5"},
        {"time_limit": True},
        {"time_limit": -1},
        {"headers": 5},
        {"headers": {"a": 1}},
        {"backoff": 3},
        {"backoff": [10**400, 2, 3, 0]},
        [],
    ],
)
def test_a_header_of_wrong_types_ends_the_job(storage: Storage, header: Any) -> None:
    text = json.dumps(header).encode()
    stored = b"\x01" + len(text).to_bytes(2, "little") + text + b"1"
    storage.enqueue("q", [NewRecord("a", b"12345678", stored, 3, 60_000, 60_000, 60_000)])
    queue = Queue("q", storage)
    queue.execute(lambda _: 1)
    assert WorkerPool(queue, 1).run_until_empty(PATIENCE)
    status = queue.get_status("a")
    assert status is not None and status.state == "failed"
    assert status.error is not None and status.error.startswith("StorageCorruptError")


def test_a_run_that_raises_ends_its_job_only(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue("q", storage)
    queue.execute(lambda _: 1)
    queue.enqueue_many((id, 1) for id in "abc")
    run = Executor.run

    def broken(self: Executor, claimed: Any, *rest: Any) -> Any:
        if claimed.id == "b" and claimed.attempts == 1:
            raise Panic("run")
        return run(self, claimed, *rest)

    monkeypatch.setattr(Executor, "run", broken)
    assert WorkerPool(queue, 1).run_until_empty(PATIENCE)
    statuses = queue.get_statuses("abc")
    assert [status.attempts for status in statuses.values() if status is not None] == [1, 2, 1]
    assert queue.counts()["completed"] == 3


def test_a_runner_that_leaves_in_the_middle_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue("q", MemoryStorage())
    queue.execute(lambda _: 1)
    queue.enqueue("a", 1, max_attempts=2, backoff=ONCE)
    advance = Ledger.advance
    left: list[str] = []

    def broken(self: Ledger, entry: Any, finished: Any) -> Any:
        if not left:
            left.append(entry.claimed.id)
            raise Panic("advance")
        return advance(self, entry, finished)

    monkeypatch.setattr(Ledger, "advance", broken)
    assert WorkerPool(queue, 1).run_until_empty(PATIENCE)
    status = queue.get_status("a")
    assert left and status is not None and (status.state, status.attempts) == ("completed", 2)
    queue.storage.close()


class Picky(MemoryStorage):
    """Cannot write some outcomes."""

    def __init__(self, refuses: Callable[[Outcome], bool]) -> None:
        super().__init__()
        self.refuses = refuses
        self.calls: list[int] = []

    def settle(self, queue: str, worker: Worker, outcomes: Sequence[Outcome]) -> list[Settled]:
        self.calls.append(len(outcomes))
        if any(map(self.refuses, outcomes)):
            raise OverflowError("int too large to convert")
        return super().settle(queue, worker, outcomes)


def test_an_outcome_that_cannot_be_sent_is_a_dead_letter_and_spoils_no_other() -> None:
    storage = Picky(lambda outcome: outcome.id == "b" and outcome.verb is Verb.COMPLETE)
    queue = Queue("q", storage)
    queue.execute(lambda _: 1)
    queue.enqueue_many((id, 1) for id in "abcdef")
    pool = WorkerPool(queue, 1)
    told: list[Event] = []
    pool.on("error", told.append)
    pool.on("failed", told.append)
    assert pool.run_until_empty(PATIENCE)
    assert {id: status.state for id, status in queue.get_statuses("abcdef").items() if status is not None} == {
        **dict.fromkeys("acdef", "completed"),
        "b": "failed",
    }
    assert [(event.name, event.id) for event in told] == [("error", "b"), ("failed", "b")]
    [failed] = queue.jobs("failed")
    assert failed.error == "OverflowError: int too large to convert"
    storage.close()


def test_a_storage_that_writes_nothing_at_all_costs_no_result() -> None:
    """The control: it is not the outcome that is at fault, so it is kept and sent again."""
    refusals = [0]

    def refuses(_: Outcome) -> bool:
        refusals[0] += 1
        return refusals[0] <= 4

    storage = Picky(refuses)
    queue = Queue("q", storage)
    queue.execute(lambda _: 1)
    queue.enqueue("a", 1)
    assert WorkerPool(queue, 1).run_until_empty(PATIENCE)
    assert queue.get_result("a") == 1
    storage.close()


def test_the_longest_backoff_can_be_stored(storage: Storage) -> None:
    queue = Queue("q", storage)
    queue.execute(lambda job: 1 / (job.payload - 1))
    century = 100 * 365.25 * 86400
    queue.enqueue("a", 1, backoff=Backoff(base=century, cap=century, jitter=1.0))
    queue.enqueue_many((f"ok{n}", 2) for n in range(5))
    with WorkerPool(queue, 1) as pool:
        failing = threading.Event()
        pool.on("failing", lambda _: failing.set())
        if queue.counts()["failing"] == 0:
            assert failing.wait(PATIENCE)
        assert [queue.wait(f"ok{n}", PATIENCE) for n in range(5)] == [1.0] * 5
    assert queue.counts()["failing"] == 1


def test_a_listener_that_exits_does_not_end_the_events_of_others(storage: Storage) -> None:
    queue = Queue("q", storage)
    heard: list[str] = []
    both = threading.Event()

    def listener(event: Event) -> None:
        heard.append(event.id)
        if len(heard) == 2:
            both.set()
        raise SystemExit(3)

    off = queue.subscribe(listener)
    queue.enqueue("a", 1)
    queue.enqueue("b", 1)
    assert both.wait(PATIENCE)
    off()


def test_a_listener_that_exits_in_a_thread_keeps_none_from_hearing() -> None:
    emitter = Emitter("stalled")
    heard: list[str] = []
    emitter.on("stalled", raiser_of_exit)
    emitter.on("stalled", lambda event: heard.append(event.id))
    thread = threading.Thread(target=emitter.emit, args=(Event("stalled", "q", "a"),))
    thread.start()
    thread.join()
    assert heard == ["a"]
    with pytest.raises(SystemExit):
        emitter.emit(Event("stalled", "q", "b"))  # the main thread's own


def raiser_of_exit(_: Event) -> None:
    raise SystemExit(3)
