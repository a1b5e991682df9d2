"""The reaper against a storage that is told what to answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from reliq.errors import InvalidJobError, StorageUnavailableError
from reliq.job import Event
from reliq.queue import Queue
from reliq.reaper import Reaper
from reliq.storage.base import Doorbell, Reaped, Storage

PATIENCE = 10.0


class FakeBell(Doorbell):
    def __init__(self) -> None:
        self.waits: list[float] = []
        self.waiting = threading.Event()
        self.is_closed = False
        self._rung = threading.Event()

    def wait(self, timeout: float) -> str | None:
        self.waits.append(timeout)
        self.waiting.set()
        self._rung.wait(PATIENCE)
        self._rung.clear()
        return None

    def wake(self) -> None:
        self._rung.set()

    def close(self) -> None:
        self.is_closed = True


class _Fake:
    """What a reaper needs of a storage. ``script``: answers of reap by queue, then nothing to do."""

    url = "fake://"

    def __init__(self, **script: Sequence[Reaped | Exception]) -> None:
        self.script = {name: list(answers) for name, answers in script.items()}
        self.calls: list[str] = []
        self.bells: list[FakeBell] = []
        self.names = list(script)
        self.reaped = threading.Semaphore(0)

    def reap(self, queue: str, *, interval_ms: int, **_: Any) -> Reaped:
        assert interval_ms == 1000
        self.calls.append(queue)
        self.reaped.release()
        answers = self.script.get(queue)
        answer = answers.pop(0) if answers else Reaped([], False, None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def queues(self) -> list[str]:
        return self.names

    def doorbell(self, queues: Sequence[str], bell: str) -> FakeBell:
        assert bell == "due"
        self.bells.append(FakeBell())
        return self.bells[-1]


def fake(**script: Sequence[Reaped | Exception]) -> Any:
    made = type("FakeStorage", (_Fake, Storage), {})
    made.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return made(**script)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(int(PATIENCE / 0.005)):
        if condition():
            return
        deadline.wait(0.005)
    pytest.fail("it never happened")


def test_run_once_reaps_each_queue_until_nothing_is_left() -> None:
    storage = fake(a=[Reaped([("stalled", "1")], True, None), Reaped([("expired", "2")], False, None)], b=[])
    reaper = Reaper(storage)
    heard: list[tuple[str, str, str]] = []

    def listen(event: Event) -> None:
        heard.append((event.name, event.queue, event.id))

    reaper.on("*", listen)
    assert reaper.run_once() == 2
    assert storage.calls == ["a", "a", "b"]
    assert heard == [("stalled", "a", "1"), ("expired", "a", "2")]


def test_it_takes_a_queue_several_or_names_of_a_storage() -> None:
    storage = fake(a=[], b=[])
    Reaper(Queue("a", storage)).run_once()
    Reaper([Queue("a", storage), Queue("b", storage)]).run_once()
    Reaper(storage, ["b"]).run_once()
    assert storage.calls == ["a", "a", "b", "b"]


@pytest.mark.parametrize("target", [[], ["a"], 3])
def test_anything_else_is_refused(target: Any) -> None:
    with pytest.raises((InvalidJobError, TypeError)):
        Reaper(target)


def test_a_queue_needs_no_names() -> None:
    with pytest.raises(InvalidJobError):
        Reaper(Queue("a", fake()), ["a"])


def test_it_sleeps_at_the_bell_until_the_next_due_time() -> None:
    storage = fake(a=[Reaped([], False, 200), Reaped([], False, 60_000)])
    with Reaper(storage, ["a"]):
        wait_for(lambda: bool(storage.bells))
        bell = storage.bells[0]
        assert bell.waiting.wait(PATIENCE)
        assert 0 < bell.waits[0] <= 0.2
        bell.waiting.clear()
        bell.wake()
        assert bell.waiting.wait(PATIENCE)
        assert 0.2 < bell.waits[1] <= 1.0
    assert bell.is_closed


def test_new_queues_of_a_storage_are_found() -> None:
    storage = fake(a=[])
    with Reaper(storage):
        wait_for(lambda: len(storage.bells) == 1)
        assert storage.bells[0].waiting.wait(PATIENCE)
        storage.names = ["a", "b"]
        storage.bells[0].wake()
        wait_for(lambda: "b" in storage.calls)
        wait_for(lambda: len(storage.bells) == 2)
        assert storage.bells[0].is_closed


def test_a_failing_storage_is_told_once_and_survived(caplog: pytest.LogCaptureFixture) -> None:  # PITFALLS A2
    down = [StorageUnavailableError("down")] * 3
    storage = fake(a=[*down, Reaped([("stalled", "1")], False, None)])
    reaper = Reaper(storage, ["a"])
    errors: list[Event] = []
    stalled = threading.Event()
    reaper.on("error", errors.append)
    reaper.on("stalled", lambda _: stalled.set())
    with reaper:
        assert stalled.wait(PATIENCE)
    assert len(errors) == 1 and isinstance(errors[0].error, StorageUnavailableError)
    assert [record.levelname for record in caplog.records if "reap failed" in record.message] == ["ERROR"]


def test_a_listener_that_raises_ends_nothing() -> None:
    storage = fake(a=[Reaped([("stalled", "1"), ("stalled", "2")], False, None)])
    reaper = Reaper(storage, ["a"])
    heard: list[str] = []

    def listen(event: Event) -> None:
        heard.append(event.id)
        raise ValueError(event.id)

    reaper.on("stalled", listen)
    assert reaper.run_once() == 2
    assert heard == ["1", "2"]


def test_it_stops_at_once_and_starts_again() -> None:
    storage = fake(a=[])
    reaper = Reaper(storage, ["a"])
    for _ in range(20):
        reaper.start()
        assert reaper.stop(PATIENCE)
