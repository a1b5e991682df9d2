"""What ties jobs of the SQL storages: groups, limits, dependencies, persistent jobs, schedules, the end of a queue."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from reliq.errors import QueueFullError
from reliq.lifecycle import State
from reliq.storage.base import MAX_CASCADE, NO_LIMITS, Claim, Held, Limits, NewRecord, Outcome, Schedule, Verb, Worker
from reliq.storage.sql.memory import MemoryStorage
from reliq.storage.sql.statements import CHECKS

ALICE = Worker("alice", "1")
Q = "q"


@pytest.fixture
def storage() -> Iterator[MemoryStorage]:
    storage = MemoryStorage()
    storage.fallback_ms = 60_000
    # A clock that stands still but for skew_ms.
    storage._now_ms = lambda: 1_000_000 + storage.skew_ms  # type: ignore[method-assign]
    storage.reap(Q, interval_ms=1_000)
    yield storage
    sound(storage)
    storage.close()


def sound(storage: MemoryStorage) -> None:
    states = json.dumps([state.value for state in State if state is not State.ABSENT] + ["blocked"])
    for name, question in CHECKS.items():
        found = storage._database.run(question, {"states": states} if ":states" in question else {})
        assert found == [], name


def new(id: str, *after: str, **options: object) -> NewRecord:
    record = NewRecord(id, os.urandom(8), b"m", 3, 60_000, 60_000, 60_000, after=after)
    return record._replace(**options)  # type: ignore[arg-type]


def put(storage: MemoryStorage, *records: NewRecord, queue: str = Q) -> list[str]:
    answers = storage.enqueue(queue, records)
    sound(storage)
    return [f"{answer.status}/{answer.state}" for answer in answers]


def claim(storage: MemoryStorage, limit: int = 10, queue: str = Q) -> Claim:
    claim = storage.claim(queue, ALICE, limit, serial=1, lease_ms=600_000)
    sound(storage)
    return claim


def take(storage: MemoryStorage, limit: int = 10, queue: str = Q) -> list[str]:
    return [job.id for job in claim(storage, limit, queue).jobs]


def end(
    storage: MemoryStorage, *ids: str, verb: Verb = Verb.COMPLETE, queue: str = Q, **options: object
) -> list[State | None]:
    outcomes = []
    for id in ids:
        snapshot = storage.read(queue, [id])[0]
        outcomes.append(Outcome(id, snapshot.nonce, snapshot.token, verb, b"r", b"e", **options))  # type: ignore[arg-type]
    settled = [item.state for item in storage.settle(queue, ALICE, outcomes)]
    sound(storage)
    return settled


def state(storage: MemoryStorage, *ids: str, queue: str = Q) -> list[str]:
    return [str(snapshot.state) for snapshot in storage.read(queue, ids)]


def reap(storage: MemoryStorage, skew: int = 0) -> None:
    for _ in range(skew // 1_000):
        storage.skew_ms += 1_000
        storage.reap(Q, interval_ms=1_000)
        storage.extend(Q, ALICE, [], below=0, in_flight=[], lease_ms=1)
    while storage.reap(Q, interval_ms=1_000).more:
        pass
    sound(storage)


def error(storage: MemoryStorage, id: str) -> dict[str, str]:
    return dict(json.loads(storage.read(Q, [id])[0].errors[-1][3]))


# -- groups ---------------------------------------------------------------------------


def test_a_group_is_delivered_one_by_one_and_takes_turns(storage: MemoryStorage) -> None:
    put(storage, *(new(f"{group}{n}", group=group) for group in "ab" for n in range(3)), new("plain"))
    assert storage.counts(Q)[State.QUEUED] == 7
    assert take(storage) == ["a0", "b0", "plain"]
    assert take(storage) == []
    assert storage.list_ids(Q, State.QUEUED, None, 10)[0] == ["a1", "a2", "b1", "b2"]
    end(storage, "a0")
    assert take(storage) == ["a1"]
    end(storage, "a1", verb=Verb.RETRY)
    assert take(storage) == ["a1"]
    end(storage, "a1", verb=Verb.RELEASE)
    assert take(storage) == ["a1"]
    end(storage, "a1", "b0", verb=Verb.FAIL)
    assert take(storage) == ["a2", "b1"]
    assert storage.revive(Q, ["a1", "b0"]) == ["a1", "b0"]
    snapshots = storage.read(Q, ["b2", "b0"])
    assert (snapshots[0].sequence or 0) < (snapshots[1].sequence or 0)
    assert [snapshot.group for snapshot in snapshots] == ["b", "b"]
    end(storage, "a2", "b1")
    assert sorted(take(storage)) == ["a1", "b2"]


def test_a_line_stands_still_behind_a_delayed_head(storage: MemoryStorage) -> None:
    put(storage, new("a", group="g", delay_ms=5_000), new("b", group="g"))
    assert take(storage) == []
    reap(storage, 5_000)
    assert take(storage) == ["a"]
    assert storage.cancel(Q, ["b"]) == ["cancelled"]
    put(storage, new("c", group="g"))
    end(storage, "a", verb=Verb.RETRY, delay_ms=3_000)
    assert take(storage) == []
    storage.cancel(Q, ["a"])
    sound(storage)
    assert take(storage) == ["c"]


def test_group_concurrency(storage: MemoryStorage) -> None:
    storage.set_limits(Q, Limits(group_concurrency=2))
    put(storage, *(new(f"j{n}", group="g") for n in range(5)))
    assert take(storage) == ["j0", "j1"]
    end(storage, "j1")
    assert take(storage) == ["j2"]
    storage.set_limits(Q, Limits(group_concurrency=4))
    assert take(storage) == []
    end(storage, "j0")
    assert take(storage) == ["j3", "j4"]


def test_a_purge_keeps_the_place_of_what_runs(storage: MemoryStorage) -> None:
    put(storage, new("a", group="g"), new("b", group="g"), new("c", group="g"))
    assert take(storage) == ["a"]
    assert storage.purge(Q) == 2
    put(storage, new("d", group="g"), new("b", group="g"))
    assert take(storage) == []
    reap(storage)
    assert storage.counts(Q)[State.QUEUED] == 2
    end(storage, "a", verb=Verb.RELEASE)
    assert take(storage) == ["a"]
    end(storage, "a")
    assert take(storage) == ["d"]


def test_recovery_keeps_the_place(storage: MemoryStorage) -> None:
    put(storage, new("a", group="g", max_attempts=1), new("b", group="g"), new("x"))
    assert take(storage) == ["a", "x"]
    assert storage.leave(Q, ALICE.key) == 2
    assert take(storage) == ["a"]
    assert storage.leave(Q, ALICE.key) == 1
    assert state(storage, "a") == ["failed"]
    assert take(storage) == ["x"]
    assert take(storage) == ["b"]


def test_a_fifo_queue_counts_its_dedup_window_from_acceptance(storage: MemoryStorage) -> None:
    queue = "q.fifo"
    assert storage.set_limits(queue, Limits(group_concurrency=3)) == NO_LIMITS
    put(storage, new("a", group="g", dedup_ttl_ms=5_000, result_ttl_ms=1_000), queue=queue)
    storage.skew_ms += 4_000
    assert take(storage, queue=queue) == ["a"]
    end(storage, "a", queue=queue)
    assert put(storage, new("a", group="g"), queue=queue) == ["completed/completed"]
    storage.skew_ms += 1_000
    assert put(storage, new("a", group="g"), queue=queue) == ["queued/queued"]


# -- limits ---------------------------------------------------------------------------


def test_a_rate(storage: MemoryStorage) -> None:
    storage.set_limits(Q, Limits(rate=200))
    put(storage, *(new(f"j{n}") for n in range(1_000)))
    taken = []
    for at in range(2_000):
        storage.skew_ms = at
        while storage._database and (got := storage.claim(Q, ALICE, 10, serial=1, lease_ms=1)).jobs:
            assert len(got.jobs) == 1
            taken.append(at)
        assert got.wait_ms is not None and not got.more
        if at == 0:
            assert len(taken) == 20
            assert got.wait_ms == 5
    assert abs(len(taken) - 420) <= 1
    assert storage.backlog(Q) == len(taken)
    storage.skew_ms += 5
    assert storage.backlog(Q) == 1_000


def test_a_slow_rate_holds_one_token(storage: MemoryStorage) -> None:
    storage.set_limits(Q, Limits(rate=2, rate_ms=60_000))
    put(storage, new("a"), new("b"))
    first = claim(storage)
    assert ([job.id for job in first.jobs], first.more, first.wait_ms) == (["a"], False, 30_000)
    storage.skew_ms += 29_999
    assert claim(storage).wait_ms == 1
    storage.skew_ms += 1
    assert take(storage) == ["b"]
    assert claim(storage).wait_ms is None
    put(storage, new("c"))
    storage.set_limits(Q, Limits(rate=2))
    assert claim(storage).wait_ms == 500


def test_concurrency(storage: MemoryStorage) -> None:
    storage.set_limits(Q, Limits(max_concurrency=2))
    bell = storage.doorbell([Q], "work")
    put(storage, *(new(n) for n in "abcd"))
    assert bell.wait(0) == Q
    got = claim(storage)
    assert ([job.id for job in got.jobs], got.more, got.wait_ms) == (["a"], True, None)
    assert bell.wait(0) == Q
    got = claim(storage)
    assert ([job.id for job in got.jobs], got.more, got.wait_ms) == (["b"], False, None)
    assert bell.wait(0) is None
    assert claim(storage).jobs == []
    end(storage, "a")
    assert bell.wait(0) == Q
    assert take(storage) == ["c"]
    assert bell.wait(0) is None
    storage.set_limits(Q, NO_LIMITS)
    assert bell.wait(0) == Q
    assert storage.limits(Q) == NO_LIMITS
    assert storage.set_limits(Q, Limits(max_length=3), only_new=True) == Limits(max_length=3)
    assert storage.set_limits(Q, Limits(max_length=9), only_new=True) == Limits(max_length=3)
    bell.close()


def test_a_length(storage: MemoryStorage) -> None:
    storage.set_limits(Q, Limits(max_length=3))
    put(storage, new("a"), new("b", delay_ms=100))
    with pytest.raises(QueueFullError):
        put(storage, new("c"), new("d"))
    assert state(storage, "c", "d") == ["absent", "absent"]
    assert put(storage, new("a"), new("c"), new("b")) == ["duplicate/queued", "queued/queued", "duplicate/scheduled"]
    assert put(storage, new("a")) == ["duplicate/queued"]
    with pytest.raises(QueueFullError):
        put(storage, new("e"))
    assert take(storage) == ["a", "c"]
    assert put(storage, new("e")) == ["queued/queued"]


# -- dependencies ---------------------------------------------------------------------


def test_a_job_waits_for_others(storage: MemoryStorage) -> None:
    answers = put(storage, new("a"), new("b"), new("c", "a", "b"), new("d", "c", delay_ms=10_000))
    assert answers == ["queued/queued", "queued/queued", "queued/waiting", "queued/waiting"]
    assert storage.list_ids(Q, State.WAITING, None, 10)[0] == ["c", "d"]
    assert storage.read(Q, ["c"])[0].due_at_ms is None
    assert take(storage) == ["a", "b"]
    end(storage, "a")
    assert storage.read(Q, ["a"])[0].expires_at_ms is None
    assert state(storage, "c") == ["waiting"]
    end(storage, "b", ttl_ms=5_000)
    reap(storage, 8_000)
    assert storage.read(Q, ["b"])[0].result == b"r"
    assert take(storage) == ["c"]
    end(storage, "c")
    assert state(storage, "d") == ["scheduled"]
    assert storage.read(Q, ["b"])[0].expires_at_ms == storage._now_ms() + 52_000
    reap(storage, 3_000)
    assert take(storage) == ["d"]
    reap(storage, 3_000)
    assert storage.read(Q, ["b"])[0].result is None
    end(storage, "d")
    assert storage.read(Q, ["c"])[0].expires_at_ms == storage._now_ms() + 60_000


def test_a_completed_one_is_pinned_until_the_dependent_ended(storage: MemoryStorage) -> None:
    put(storage, new("a", dedup_ttl_ms=1_000))
    take(storage)
    end(storage, "a")
    assert put(storage, new("b", "a")) == ["queued/queued"]
    reap(storage, 70_000)
    assert put(storage, new("a")) == ["completed/completed"]
    assert storage.update_ttl(Q, "a", 7_000) == "updated"
    assert storage.read(Q, ["a"])[0].expires_at_ms is None
    storage.cancel(Q, ["b"])
    assert storage.read(Q, ["a"])[0].expires_at_ms == storage._now_ms() + 7_000
    assert put(storage, new("a")) == ["queued/queued"]


def test_dependents_fail_with_the_cause(storage: MemoryStorage) -> None:
    put(storage, new("a"), new("b", "a"), new("c", "b"), new("d", "nobody"), new("e", "d", "a"))
    assert state(storage, "d", "e") == ["failed", "failed"]
    assert error(storage, "d") == {
        "type": "DependencyError",
        "message": "job 'nobody', which it waits for, is unknown",
        "traceback": "",
    }
    assert "'d', which it waits for, failed" in error(storage, "e")["message"]
    assert storage.cancel(Q, ["a"]) == ["cancelled"]
    assert "'a', which it waits for, was cancelled" in error(storage, "b")["message"]
    assert "'b', which it waits for, failed" in error(storage, "c")["message"]
    assert put(storage, new("x", "b"), new("y", "a")) == ["queued/waiting"] * 2
    assert "'a', which it waits for, was cancelled" in error(storage, "y")["message"]
    assert storage.revive(Q, ["c"]) == ["c"]
    assert take(storage) == ["c"]


def test_a_cascade_goes_on_in_steps(storage: MemoryStorage) -> None:
    put(storage, new("a"), new("b"))
    for start in range(0, 2_500, 500):
        storage.enqueue(Q, [new(f"d{n}", "a") for n in range(start, start + 500)])
        storage.enqueue(Q, [new(f"f{n}", "b", *([f"f{n - 1}"] if n else [])) for n in range(start, start + 500)])
    assert take(storage) == ["a", "b"]
    end(storage, "a")
    assert storage.counts(Q)[State.QUEUED] == MAX_CASCADE
    end(storage, "b", verb=Verb.FAIL)
    assert storage.counts(Q)[State.QUEUED] == 2 * MAX_CASCADE
    assert storage.counts(Q)[State.FAILED] >= MAX_CASCADE // 2
    reap(storage)
    assert storage.counts(Q)[State.QUEUED] == 2_500
    assert storage.counts(Q)[State.FAILED] == 2_501
    assert storage._database.run("SELECT count(*) FROM cascade", {}) == [(0,)]


def test_a_batch_binds_to_what_stands_there_when_it_comes(storage: MemoryStorage) -> None:
    put(storage, new("a", "b"), new("b"), new("c", "b"))
    assert state(storage, "a", "b", "c") == ["failed", "queued", "waiting"]


def test_a_waiting_job_stands_in_its_line(storage: MemoryStorage) -> None:
    put(storage, new("x"), new("a", "x", group="g"), new("b", group="g"), new("c", "x", group="h"))
    assert take(storage) == ["x"]
    end(storage, "x", verb=Verb.FAIL)
    assert take(storage) == ["b"]


def test_a_purge_takes_the_waiting_too(storage: MemoryStorage) -> None:
    put(storage, new("x"), new("a", "x"), new("b", "a", group="g"))
    assert take(storage) == ["x"]
    assert storage.purge(Q) == 2
    end(storage, "x")
    reap(storage)
    assert storage._database.run("SELECT count(*) FROM link", {}) == [(0,)]
    assert state(storage, "x", "a", "b") == ["completed", "absent", "absent"]
    assert storage.read(Q, ["x"])[0].expires_at_ms is not None


# -- the rest -------------------------------------------------------------------------


def test_a_persistent_job_is_never_exhausted(storage: MemoryStorage) -> None:
    put(storage, new("p", is_persistent=True), new("a"))
    [job] = claim(storage).jobs
    assert (job.is_persistent, job.group, storage.backlog(Q)) == (True, None, 1)
    for attempts in (1, 2, 2, 2):
        assert end(storage, "p", verb=Verb.RETRY, delay_ms=1_000) == [State.FAILING]
        assert storage.read(Q, ["p"])[0].attempts == attempts
        assert storage.backlog(Q) == (1 if attempts == 1 else 0)
        reap(storage, 1_000)
        take(storage, 10)
        if attempts == 1:
            end(storage, "a") if state(storage, "a") == ["processing"] else take(storage) and end(storage, "a")
            if state(storage, "p") != ["processing"]:
                take(storage)
    storage.skew_ms += 60_000
    end(storage, "p", verb=Verb.RETRY)
    assert storage.read(Q, ["p"])[0].attempts == 0
    for _ in range(5):
        assert take(storage) == ["p"]
        assert storage.leave(Q, ALICE.key) == 1
    assert state(storage, "p") == ["queued"]


def test_progress(storage: MemoryStorage) -> None:
    put(storage, new("a"))
    [job] = claim(storage).jobs
    held = Held(job.id, job.nonce, job.token)
    assert storage.progress(Q, held, b"1")
    assert storage.progress(Q, held, b"2")
    end(storage, "a")
    assert not storage.progress(Q, held, b"3")
    assert storage.read(Q, ["a"])[0].progress == b"2"
    storage.purge(Q)
    reap(storage)
    assert storage._database.run("SELECT count(*) FROM tie", {}) == [(0,)]


def test_cancel_by_nonce(storage: MemoryStorage) -> None:
    put(storage, new("a"), new("b"))
    a, b = storage.read(Q, ["a", "b"])
    assert storage.cancel(Q, ["a", "b", "b"], nonces=[a.nonce, a.nonce, b.nonce]) == [
        "cancelled",
        "not_found",
        "cancelled",
    ]


def test_schedules(storage: MemoryStorage) -> None:
    bell = storage.doorbell([Q], "due")
    now = storage._now_ms()
    tick = Schedule("b", b"spec", now + 10)
    assert storage.put_schedule(Q, tick)
    assert bell.wait(0) == Q
    assert not storage.put_schedule(Q, tick, only_new=True)
    assert storage.put_schedule(Q, Schedule("a", b"", now + 5_000))
    reaped = storage.reap(Q, interval_ms=1_000)
    assert (reaped.next_due_ms, reaped.ticks, reaped.now_ms) == (10, (), now)
    storage.skew_ms += 10
    assert storage.reap(Q, interval_ms=1_000).ticks == (tick,)
    assert not storage.move_schedule(Q, "b", now, now + 1)
    assert storage.move_schedule(Q, "b", now + 10, now + 9_000)
    assert storage.reap(Q, interval_ms=1_000).next_due_ms == 4_990
    assert [schedule.name for schedule in storage.schedules(Q)] == ["a", "b"]
    assert storage.remove_schedule(Q, "a")
    assert not storage.remove_schedule(Q, "a")
    bell.close()


def test_delete(storage: MemoryStorage) -> None:
    storage.set_limits(Q, Limits(rate=1_000_000, max_length=10_000))
    storage.put_schedule(Q, Schedule("s", b"", 0))
    storage.enqueue(Q, [new(f"j{n}") for n in range(2_500)])
    put(storage, new("x"), new("y", "x"), new("z", group="g"), new("zz", group="g"), new("p", is_persistent=True))
    [job] = storage.claim(Q, ALICE, 1, serial=1, lease_ms=1_000).jobs
    storage.pause(Q, True)
    assert storage.delete(Q) == 2_505
    assert storage.queues() == []
    assert storage.limits(Q) == NO_LIMITS
    assert (storage.schedules(Q), storage.workers(Q), storage.is_paused(Q)) == ([], [], False)
    assert storage.read(Q, [job.id, "y"])[0].cause == "purged"
    assert storage.settle(Q, ALICE, [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE)])[0].is_lost
    for table in ("job", "tie", "link", "cascade", "message", "error"):
        assert storage._database.run(f"SELECT count(*) FROM {table}", {}) == [(0,)]
    assert storage.delete(Q) == 0
    put(storage, new("a"))
    assert storage.queues() == [Q]
    assert take(storage) == ["a"]
    storage.delete("never seen")
    storage.skew_ms += 61_000
    storage.delete(Q)
    for _ in range(2):
        storage.skew_ms += 1_000
        storage.reap("other", interval_ms=1_000)
    assert storage._database.run("SELECT count(*) FROM tombstone", {}) == [(1,)]


# -- calls that share a step ----------------------------------------------------------


def _together(storage: MemoryStorage, *calls: list[NewRecord]) -> list[object]:
    """What came of calls of several threads that were served in one step."""
    answers: list[object] = [None] * len(calls)

    def run(n: int) -> None:
        try:
            answers[n] = [answer.status for answer in storage.enqueue(Q, calls[n])]
        except QueueFullError as error:
            answers[n] = error

    storage._database._turns.hold()
    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    for n, thread in enumerate(threads):
        thread.start()
        while len(storage._database._turns._waiting) <= n:
            time.sleep(0.001)
    storage._database._turns.go_on()
    for thread in threads:
        thread.join(10)
    sound(storage)
    return answers


def test_nobody_is_refused_for_a_neighbour(storage: MemoryStorage) -> None:
    storage.set_limits(Q, Limits(max_length=3))
    answers = _together(storage, [new("a"), new("b")], [new("c"), new("d")], [new("e")], [new("a")])
    assert answers[0] == ["queued", "queued"]
    assert isinstance(answers[1], QueueFullError)
    assert answers[2:] == [["queued"], ["duplicate"]]
    assert storage.counts(Q)[State.QUEUED] == 3


def test_calls_that_share_a_step_make_no_cycle(storage: MemoryStorage) -> None:
    assert _together(storage, [new("a", "b")], [new("b", "a")]) == [["queued"], ["queued"]]
    assert state(storage, "a", "b") == ["failed", "failed"]
    assert "is unknown" in error(storage, "a")["message"]


# -- cost -----------------------------------------------------------------------------


def test_a_step_does_not_read_what_it_does_not_concern(storage: MemoryStorage) -> None:
    def steps(act: Callable[[], object]) -> int:
        count = 0

        def tick() -> int:
            nonlocal count
            count += 1
            return 0

        storage._database._connection.set_progress_handler(tick, 1)  # type: ignore[union-attr]
        act()
        storage._database._connection.set_progress_handler(None, 1)  # type: ignore[union-attr]
        return count

    costs = []
    for size in (50, 2_000):
        storage.enqueue(Q, [new(f"{size}-{n}") for n in range(size)])
        storage.enqueue(Q, [new(f"{size}-g{n}", group="g") for n in range(size)])
        storage.enqueue(Q, [new(f"{size}-after", f"{size}-g1"), new(f"{size}-due", delay_ms=1), new("top", priority=9)])
        storage.skew_ms += 1
        cost = [
            steps(lambda: storage.reap(Q, interval_ms=1_000)),
            steps(partial(storage.cancel, Q, [f"{size}-3", f"{size}-g1", f"{size}-g2"])),
        ]
        take(storage, 1)
        end(storage, "top", verb=Verb.FAIL)
        cost += [steps(lambda: storage.revive(Q, ["top"])), steps(lambda: storage.cancel(Q, ["top"]))]
        costs.append(cost)
    few, many = costs
    assert all(cost < 1.5 * before + 50 for before, cost in zip(few, many, strict=True)), costs
