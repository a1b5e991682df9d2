"""Threads that write at once share a statement; what one does wrong stays its own."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from reliq.lifecycle import State
from reliq.storage.base import NewRecord, Outcome, Verb, Worker
from reliq.storage.sql.connection import Write
from reliq.storage.sql.memory import MemoryStorage
from reliq.storage.sql.turns import Request, Turns

ALICE = Worker("alice", "1")
BOB = Worker("bob", "1")


def record(id: str, **options: Any) -> NewRecord:
    return NewRecord(id, os.urandom(8), b"m-" + id.encode(), 3, 60_000, 60_000, 60_000, **options)


def at_once(storage: MemoryStorage, *functions: Callable[[], Any]) -> list[Any]:
    """Run them while the storage stands still, so that they wait together; their answers or errors."""
    answers: list[Any] = [None] * len(functions)

    def run(n: int) -> None:
        try:
            answers[n] = functions[n]()
        except Exception as error:
            answers[n] = error

    turns = storage._database._turns
    storage.counts("q")
    turns.hold()
    threads = []
    for n in range(len(functions)):  # in this order
        threads.append(threading.Thread(target=run, args=(n,)))
        threads[-1].start()
        while len(turns._waiting) <= n:
            assert threads[-1].is_alive()
    turns.go_on()
    for thread in threads:
        thread.join(10)
    return answers


@pytest.fixture
def storage() -> MemoryStorage:
    storage = MemoryStorage()
    storage.enqueue("q", [record("old-1"), record("old-2")])
    return storage


@pytest.fixture
def rounds(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The transitions of each statement that was run."""
    seen: list[list[str]] = []
    run = storage._database._run_groups

    def note(groups: list[Any]) -> None:
        seen.append([write.transition for group in groups for write in group.writes])
        run(groups)

    monkeypatch.setattr(storage._database, "_run_groups", note)
    return seen


def test_threads_that_wait_together_share_one_statement(storage: MemoryStorage, rounds: list[list[str]]) -> None:
    [job] = storage.claim("q", ALICE, 1, serial=1, lease_ms=60_000).jobs
    rounds.clear()
    a, b, claimed, settled = at_once(
        storage,
        lambda: storage.enqueue("q", [record("a"), record("old-2")]),
        lambda: storage.enqueue("q", [record("b", delay_ms=60_000), record("c")]),
        lambda: storage.claim("q", BOB, 1, serial=1, lease_ms=60_000),
        lambda: storage.settle("q", ALICE, [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE)]),
    )
    assert rounds == [["enqueue", "enqueue", "claim", "settle"]]
    assert [(answer.id, answer.status, answer.state) for answer in (*a, *b)] == [
        ("a", "queued", State.QUEUED), ("old-2", "duplicate", State.QUEUED),
        ("b", "queued", State.SCHEDULED), ("c", "queued", State.QUEUED),
    ]  # fmt: skip
    assert [job.id for job in claimed.jobs] == ["old-2"]
    assert settled[0].state is State.COMPLETED
    counts = {state.value: count for state, count in storage.counts("q").items() if count}
    assert counts == {"queued": 2, "scheduled": 1, "processing": 1, "completed": 1}


def test_an_id_that_two_enqueue_at_once_is_accepted_once(storage: MemoryStorage, rounds: list[list[str]]) -> None:
    first, second = at_once(
        storage, lambda: storage.enqueue("q", [record("a")]), lambda: storage.enqueue("q", [record("a"), record("b")])
    )
    assert rounds == [["enqueue"], ["enqueue"]]
    assert [answer.status for answer in (*first, *second)] == ["queued", "duplicate", "queued"]


def test_claims_that_wait_together_take_different_jobs(storage: MemoryStorage, rounds: list[list[str]]) -> None:
    one, other, none = at_once(
        storage,
        lambda: storage.claim("q", ALICE, 1, serial=1, lease_ms=60_000),
        lambda: storage.claim("q", BOB, 1, serial=1, lease_ms=60_000),
        lambda: storage.claim("q", BOB, 1, serial=2, lease_ms=60_000),
    )
    assert rounds == [["claim", "claim", "claim"]]
    assert [[job.id for job in claim.jobs] for claim in (one, other, none)] == [["old-1"], ["old-2"], []]
    assert [claim.more for claim in (one, other, none)] == [True, False, False]


def test_a_bad_command_fails_alone(storage: MemoryStorage) -> None:
    good, bad, last = at_once(
        storage,
        lambda: storage.enqueue("q", [record("a")]),
        lambda: storage.enqueue("q", [record("b", priority=2**70)]),
        lambda: storage.enqueue("q", [record("c")]),
    )
    assert isinstance(bad, OverflowError)
    assert [answer[0].status for answer in (good, last)] == ["queued", "queued"]
    assert [snapshot.state for snapshot in storage.read("q", ["a", "b", "c"])] == [
        State.QUEUED, State.ABSENT, State.QUEUED,
    ]  # fmt: skip


def test_everything_is_served_with_many_threads() -> None:
    served: list[Any] = []

    def serve(waiting: deque[Any]) -> None:
        request = waiting.popleft()
        served.append(request.answers)
        request.finish()

    turns = Turns(serve)

    def submit(n: int) -> None:
        for k in range(200):
            request = Request()
            request.answers = [n * 200 + k]
            turns.submit(request)
            assert request.is_done

    threads = [threading.Thread(target=submit, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        turns.hold()
        before = len(served)
        assert len(served) == before
        turns.go_on()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert sorted(served) == [[n] for n in range(1_600)]


def test_an_interrupted_waiter_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was to serve next never looks again."""
    turns = Turns(lambda waiting: waiting.popleft().finish())
    turns.hold()
    dead = Request()
    monkeypatch.setattr(Request, "sleep", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        turns.submit(dead)
    monkeypatch.undo()
    live = threading.Thread(target=turns.submit, args=(Request(),))
    live.start()
    while not turns._waiting:
        assert live.is_alive()
    turns.go_on()
    live.join(10)
    assert not live.is_alive()


def test_a_write_names_what_it_moves() -> None:
    assert Write("settle", 1, 2, staged=[("a",), ("b",)]).size == 2
    assert Write("claim", 1, 2, size=5).is_repeatable
