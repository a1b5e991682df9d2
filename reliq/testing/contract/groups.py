"""I41-I43: the jobs of a group one at a time, in the order of acceptance, and nobody else delayed by them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from ...lifecycle import State
from ...storage.base import Limits, Storage, Verb, Worker
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    INTERVAL,
    LEASE,
    PROMPT,
    QUEUE,
    WORKER_TTL,
    assert_placed,
    assert_rings,
    cancel,
    claim,
    counted,
    drain,
    held_now,
    jump,
    listed,
    look,
    outcome,
    pass_time,
    put,
    record,
    run,
    settle,
    settle_all,
    state_of,
    take,
    take_one,
    together,
    upkeep,
    work_off,
)

FIFO = "letters.fifo"
#: Names that must stay names.
NAMES = ("g", "G", "a:b", "{orders}", "*", "../g", "g~1", "\u00e9", "e\u0301", "0", " g", "g" * 300, "'\"%_\\")

Step = Callable[[Storage], object]


def _queued(storage: Storage) -> None:
    put(storage, "head", group="g")


def _running(storage: Storage, max_attempts: int = 3) -> None:
    put(storage, "head", group="g", max_attempts=max_attempts)
    take_one(storage)


def _running_last(storage: Storage) -> None:
    _running(storage, 1)


def _scheduled(storage: Storage) -> None:
    put(storage, "head", group="g", delay_ms=60_000)


def _failing(storage: Storage) -> None:
    put(storage, "head", group="g")
    run(storage, Verb.RETRY, error=b"e", delay_ms=60_000)


def _waiting(storage: Storage) -> None:
    put(storage, "first")
    put(storage, "head", group="g", after=["first"])
    take_one(storage, BOB)


def _end(verb: Verb) -> Step:
    return lambda storage: settle(storage, held_now(storage, "head"), verb, error=b"e")


def _cancel(storage: Storage) -> None:
    assert cancel(storage, "head") == "cancelled"


def _cancel_running(storage: Storage) -> None:
    job = held_now(storage, "head")
    assert cancel(storage, "head", running=True) == "cancelling"
    assert take(storage, BOB) == []
    assert settle(storage, job, Verb.RETRY, error=b"e") is State.ABSENT


def _cancel_recovered(storage: Storage) -> None:
    cancel(storage, "head", running=True)
    storage.leave(QUEUE, ALICE.key)


def _leave(storage: Storage) -> None:
    storage.leave(QUEUE, ALICE.key)


def _fail_dependency(storage: Storage) -> None:
    settle(storage, held_now(storage, "first"), Verb.FAIL, BOB, error=b"e")


#: Every way in which the head of a line can end: how it stands, and what ends it.
ENDS: dict[str, tuple[Step, Step]] = {
    "complete": (_running, _end(Verb.COMPLETE)),
    "fail": (_running, _end(Verb.FAIL)),
    "retry-exhausted": (_running_last, _end(Verb.RETRY)),
    "recovery-exhausted": (_running_last, _leave),
    "cancel-queued": (_queued, _cancel),
    "cancel-scheduled": (_scheduled, _cancel),
    "cancel-failing": (_failing, _cancel),
    "cancel-waiting": (_waiting, _cancel),
    "cancel-running": (_running, _cancel_running),
    "cancel-running-recovery": (_running, _cancel_recovered),
    "dependency-failed": (_waiting, _fail_dependency),
}


def _retry(storage: Storage) -> None:
    settle(storage, held_now(storage, "head"), Verb.RETRY, error=b"e")


def _release(storage: Storage) -> None:
    settle(storage, held_now(storage, "head"), Verb.RELEASE)


def _retry_later(storage: Storage) -> None:
    settle(storage, held_now(storage, "head"), Verb.RETRY, error=b"e", delay_ms=5_000)
    assert take(storage) == []
    jump(storage, 6_000)


def _stall(storage: Storage) -> None:
    pass_time(storage, WORKER_TTL + 2 * INTERVAL)


#: What ends a run but not its job.
RETURNS: dict[str, Step] = {
    "retry": _retry,
    "retry-with-delay": _retry_later,
    "release": _release,
    "leave": _leave,
    "stall": _stall,
}


def put_line(storage: Storage, group: str, *ids: str, queue: str = QUEUE) -> None:
    """Enqueue ``ids``, all of one group."""
    put(storage, *ids, queue=queue, group=group)


class GroupContract(ContractBase):
    """Lines of jobs."""

    def test_i41_one_at_a_time_in_the_order_of_acceptance(self, storage: Storage) -> None:
        put_line(storage, "g", "d", "a")
        put_line(storage, "g", "c", "b")
        for id in ("d", "a", "c"):
            job = take_one(storage)
            assert (job.id, job.group) == (id, "g")
            answer = claim(storage, BOB, 10)
            assert (answer.jobs, answer.more, answer.wait_ms) == ([], False, None)
            settle(storage, job)
        assert work_off(storage) == ["b"]

    @pytest.mark.parametrize("end", ENDS)
    def test_i41_the_next_is_delivered_when_the_head_has_ended(self, storage: Storage, end: str) -> None:
        before, act = ENDS[end]
        before(storage)
        put_line(storage, "g", "next", "last")
        if state_of(storage, "head") is not State.QUEUED:
            assert take(storage, BOB, 10) == []
        act(storage)
        assert state_of(storage, "head") in (State.COMPLETED, State.FAILED, State.ABSENT)
        assert [job.id for job in take(storage, limit=10)] == ["next"]
        assert take(storage, BOB, 10) == []

    @pytest.mark.parametrize("end", ["complete", "fail", "cancel-scheduled", "cancel-running", "dependency-failed"])
    def test_i33_the_next_that_comes_to_the_head_rings(self, storage: Storage, peer: Storage, end: str) -> None:
        before, act = ENDS[end]
        before(storage)
        put_line(storage, "g", "next")
        assert_rings(storage, peer, lambda: act(storage), "work")
        assert take_one(peer).id == "next"

    @pytest.mark.parametrize("way", RETURNS)
    def test_i41_a_run_that_is_not_the_end_keeps_the_place(self, storage: Storage, way: str) -> None:
        upkeep(storage)
        put_line(storage, "g", "head", "next")
        take_one(storage)
        RETURNS[way](storage)
        assert [job.id for job in take(storage, limit=10)] == ["head"]
        assert take(storage, BOB, 10) == []
        settle(storage, held_now(storage, "head"))
        assert work_off(storage) == ["next"]

    def test_i41_a_batch_returns_to_the_heads_of_its_lines(self, storage: Storage) -> None:
        """A claim of many takes one of each group; recovered or handed back they are delivered first again."""
        for number in (1, 2):
            for group in "gh":
                put_line(storage, group, f"{group}{number}")
        put(storage, "plain")
        assert [job.id for job in take(storage, limit=10)] == ["g1", "h1", "plain"]
        storage.leave(QUEUE, ALICE.key)
        jobs = [take_one(storage) for _ in range(3)]
        assert [job.id for job in jobs] == ["g1", "h1", "plain"]
        settle_all(storage, [outcome(job, Verb.RELEASE) for job in jobs])
        assert [take_one(storage).id for _ in range(3)] == ["g1", "h1", "plain"]
        assert take(storage) == []

    def test_i41_a_priority_overtakes_nobody_of_its_group(self, storage: Storage) -> None:
        put(storage, "g1", group="g", priority=1)
        put(storage, "h1", group="h", priority=3)
        put(storage, "g2", group="g", priority=9)
        put(storage, "plain", priority=5)
        assert work_off(storage) == ["plain", "h1", "g1", "g2"]

    def test_i41_a_delayed_head_blocks_its_line_until_it_has_ended(self, storage: Storage) -> None:
        put(storage, "head", group="g", delay_ms=5_000)
        put_line(storage, "g", "next")
        put(storage, "later", group="g", delay_ms=1_000)
        put_line(storage, "h", "other")
        assert work_off(storage) == ["other"]
        jump(storage, 2_000)  # what is due behind the head is promoted and stays blocked
        assert_placed(
            storage,
            {"head": State.SCHEDULED, "next": State.QUEUED, "later": State.QUEUED, "other": State.COMPLETED},
        )
        assert take(storage) == []
        jump(storage, 4_000)
        assert work_off(storage) == ["head", "next", "later"]

    def test_i41_a_job_that_is_not_due_when_it_comes_to_the_head_waits_for_its_time(self, storage: Storage) -> None:
        put_line(storage, "g", "head")
        put(storage, "later", group="g", delay_ms=5_000)
        put_line(storage, "g", "last")
        assert work_off(storage) == ["head"]
        assert_placed(storage, {"head": State.COMPLETED, "later": State.SCHEDULED, "last": State.QUEUED})
        jump(storage, 6_000)
        assert work_off(storage) == ["later", "last"]

    def test_i41_a_blocked_job_that_is_cancelled_leaves_the_line(self, storage: Storage) -> None:
        put_line(storage, "g", "head", "b", "c", "d")
        job = take_one(storage)
        assert storage.cancel(QUEUE, ["b", "d"]) == ["cancelled", "cancelled"]
        put_line(storage, "g", "b")
        assert take(storage, BOB, 10) == []
        settle(storage, job)
        assert work_off(storage) == ["c", "b"]

    def test_i41_of_concurrent_workers_one_has_the_group(self, storage: Storage, peer: Storage) -> None:
        for number in range(6):
            for group in "ghij":
                put_line(storage, group, f"{group}{number}")
        lock = threading.Lock()
        running: set[str] = set()
        done: list[str] = []

        def work(view: Storage, worker: Worker) -> None:
            deadline = time.monotonic() + PROMPT
            while len(done) < 24 and time.monotonic() < deadline:
                for job in take(view, worker, 2):
                    group = job.group or ""
                    with lock:
                        assert group not in running, f"two jobs of {group} at once"
                        running.add(group)
                        done.append(job.id)
                    with lock:
                        running.remove(group)
                    settle(view, job, worker=worker)

        together([partial(work, (storage, peer)[n % 2], Worker(f"w{n}", "00")) for n in range(4)])
        for group in "ghij":
            assert [id for id in done if id[0] == group] == [f"{group}{n}" for n in range(6)]

    def test_i42_a_groups_trouble_delays_no_other(self, storage: Storage) -> None:
        put_line(storage, "stuck", *(f"stuck-{n}" for n in range(20)))
        put_line(storage, "failing", "failing-0", "failing-1")
        take_one(storage)
        run(storage, Verb.RETRY, error=b"e", delay_ms=60_000)
        put_line(storage, "g", "g0", "g1")
        put(storage, "plain")
        assert work_off(storage) == ["g0", "plain", "g1"]
        assert take(storage) == []

    def test_i42_groups_take_turns(self, storage: Storage) -> None:
        """A long line does not let a short one that came later wait for its end."""
        put_line(storage, "many", *(f"many-{n:02}" for n in range(40)))
        put_line(storage, "few", "few-1", "few-2", "few-3")
        order = [run(storage) for _ in range(8)]
        assert [id for id in order if id.startswith("few")] == ["few-1", "few-2", "few-3"]
        assert [id for id in order if id.startswith("many")] == [f"many-{n:02}" for n in range(5)]

    def test_blocked_jobs_are_counted_and_listed_as_queued(self, storage: Storage) -> None:
        put_line(storage, "g", "a", "b", "c")
        put(storage, "d")
        assert_placed(storage, dict.fromkeys("abcd", State.QUEUED))
        take_one(storage)
        assert_placed(storage, {"a": State.PROCESSING, "b": State.QUEUED, "c": State.QUEUED, "d": State.QUEUED})
        assert storage.backlog(QUEUE) == 4
        seen = [look(storage, id) for id in "abcd"]
        assert [snapshot.group for snapshot in seen] == ["g", "g", "g", None]

    def test_blocked_jobs_do_not_count_for_the_fair_share(self, storage: Storage) -> None:
        take(storage, Worker("carol", "0c", runners=4))
        put_line(storage, "g", *(f"g{n}" for n in range(20)))
        put(storage, *(f"plain-{n}" for n in range(4)))
        answer = claim(storage, ALICE, 10)  # five runners, five claimable jobs
        assert (len(answer.jobs), answer.more) == (1, True)

    def test_i41_the_sequence_rises_within_the_queue(self, storage: Storage) -> None:
        put_line(storage, "g", "a", "b")
        put_line(storage, "h", "c")
        put(storage, "plain")
        put(storage, "d", group="g", delay_ms=1_000)
        sequences = [look(storage, id).sequence for id in "abcd"]
        assert None not in sequences
        assert sequences == sorted(set(sequences))  # type: ignore[type-var]
        assert look(storage, "plain").sequence is None
        jump(storage, 2_000)
        delivered = {}
        while jobs := take(storage):
            delivered[jobs[0].id] = jobs[0].sequence
            settle(storage, jobs[0])
        assert delivered == dict(zip("abcd", sequences, strict=True)) | {"plain": None}

    @pytest.mark.parametrize("way", ["revive", "enqueue"])
    def test_i41_a_dead_letter_that_returns_joins_the_end(self, storage: Storage, way: str) -> None:
        put_line(storage, "g", "dead", "b", "c")
        run(storage, Verb.FAIL, error=b"e")
        job = take_one(storage)
        if way == "revive":
            assert storage.revive(QUEUE, ["dead"]) == ["dead"]
        else:
            put_line(storage, "g", "dead")
        put_line(storage, "g", "last")
        assert take(storage, BOB, 10) == []
        settle(storage, job)
        assert work_off(storage) == ["c", "dead", "last"]

    def test_i41_a_purge_leaves_the_running_head_in_its_line(self, storage: Storage) -> None:
        upkeep(storage)
        put_line(storage, "g", "head", "b", "c")
        put_line(storage, "h", "h1", "h2")
        job = take_one(storage)
        assert storage.purge(QUEUE) == 4
        put_line(storage, "g", "next")
        put_line(storage, "h", "h2")
        storage.skew_ms += INTERVAL
        upkeep(storage)
        assert work_off(storage) == ["h2"]
        settle(storage, job)
        assert work_off(storage) == ["next"]
        assert counted(storage) == {State.COMPLETED: 3}

    def test_i41_a_purged_head_blocks_nobody(self, storage: Storage) -> None:
        """Also while the purge is not carried out."""
        put(storage, "head", group="g", delay_ms=60_000)
        put_line(storage, "g", "old-1", "old-2", "old-3")
        storage.purge(QUEUE)
        put_line(storage, "g", "b")
        assert [job.id for job in take(storage, limit=10)] == ["b"]
        put_line(storage, "g", "c")
        settle(storage, held_now(storage, "b"))
        assert work_off(storage) == ["c"]

    def test_i43_a_group_that_was_empty_begins_anew(self, storage: Storage) -> None:
        upkeep(storage)
        for verb in (Verb.COMPLETE, Verb.FAIL, Verb.COMPLETE):
            put_line(storage, "g", "a", "b")
            assert [run(storage, verb, error=b"e") for _ in "ab"] == ["a", "b"]
            jump(storage, 120_000)
            assert counted(storage) == {}
        put_line(storage, "g", "c")
        put_line(storage, "h", "d")
        assert work_off(storage) == ["c", "d"]

    def test_i48_group_names_are_only_names(self, storage: Storage) -> None:
        """A group may be called like an id, a key or another spelling of itself."""
        for number in (1, 2):
            for group in NAMES:
                put_line(storage, group, group if number == 1 else f"{group}.2")
        assert [job.id for job in take(storage, limit=100)] == list(NAMES)
        assert [look(storage, name).group for name in NAMES] == list(NAMES)
        assert take(storage, BOB, 100) == []
        settle_all(storage, [outcome(held_now(storage, name)) for name in NAMES])
        assert sorted(drain(storage)) == sorted(f"{name}.2" for name in NAMES)

    def test_i41_groups_of_two_queues_are_two(self, storage: Storage) -> None:
        put_line(storage, "g", "a")
        put_line(storage, "g", "a", queue="letters")
        assert take_one(storage).id == "a"
        assert take_one(storage, queue="letters").id == "a"

    def test_i41_group_concurrency_lets_as_many_go(self, storage: Storage, peer: Storage) -> None:
        storage.set_limits(QUEUE, Limits(group_concurrency=2))
        put_line(storage, "g", "a", "b", "c", "d", "e")
        first, second = take_one(storage), take_one(peer, BOB)
        assert (first.id, second.id) == ("a", "b")
        assert take(storage) == []
        settle(storage, second, Verb.RETRY, BOB, error=b"e", delay_ms=60_000)
        assert take(storage) == []
        settle(storage, first)
        assert take_one(storage).id == "c"
        assert take(storage) == []
        assert cancel(storage, "b") == "cancelled"
        assert take_one(storage).id == "d"
        assert take(storage) == []

    def test_i41_a_raised_group_concurrency_keeps_the_order(self, storage: Storage) -> None:
        put_line(storage, "g", "a", "b")
        job = take_one(storage)
        storage.set_limits(QUEUE, Limits(group_concurrency=3))
        put_line(storage, "g", "c", "d")
        early = drain(storage)
        assert early == ["b", "c"][: len(early)]
        settle(storage, job)
        assert early + drain(storage) == ["b", "c", "d"]
        put_line(storage, "h", "h1", "h2", "h3", "h4")
        assert drain(storage) == ["h1", "h2", "h3"]

    def test_i41_a_fifo_queue_has_one_of_a_group_whatever_is_set(self, storage: Storage) -> None:
        storage.set_limits(FIFO, Limits(group_concurrency=5))
        put_line(storage, "g", "a", "b", queue=FIFO)
        assert drain(storage, queue=FIFO) == ["a"]

    def test_the_dedup_window_of_a_fifo_queue_counts_from_acceptance(self, storage: Storage) -> None:
        options = {"group": "g", "result_ttl_ms": 3_000, "dedup_ttl_ms": 20_000}
        for queue in (FIFO, QUEUE):
            put(storage, "a", queue=queue, **options)
        storage.skew_ms += 10_000
        for queue in (FIFO, QUEUE):
            run(storage, queue=queue)
        storage.skew_ms += 8_000
        for queue in (FIFO, QUEUE):
            assert put(storage, "a", queue=queue, **options)[0].status == "duplicate"
        storage.skew_ms += 4_000
        assert look(storage, "a", queue=FIFO).state is State.ABSENT
        assert put(storage, "a", queue=FIFO, **options)[0].status == "queued"
        assert put(storage, "a", queue=QUEUE, **options)[0].status == "duplicate"

    def test_a_live_job_of_a_fifo_queue_is_a_duplicate_past_its_window(self, storage: Storage) -> None:
        """And its result is kept for its whole time, though the id is free by then."""
        options = {"group": "g", "result_ttl_ms": 60_000, "dedup_ttl_ms": 5_000}
        put(storage, "a", queue=FIFO, **options)
        storage.skew_ms += 10_000
        assert put(storage, "a", queue=FIFO, **options)[0].status == "duplicate"
        run(storage, queue=FIFO, result=b"r")
        assert look(storage, "a", queue=FIFO).result == b"r"
        assert put(storage, "a", queue=FIFO, **options)[0].status == "queued"

    def test_i11_a_repeated_enqueue_takes_no_second_place(self, storage: Storage) -> None:
        records = [record("a", group="g"), record("b", group="g")]
        for _ in range(2):
            assert [answer.status for answer in storage.enqueue(QUEUE, records)] == ["queued", "queued"]
        put_line(storage, "g", "c", "a")
        job = take_one(storage, lease_ms=LEASE)
        storage.enqueue(QUEUE, records)
        settle(storage, job)
        assert work_off(storage) == ["b", "c"]
        assert sorted(listed(storage, State.COMPLETED)) == ["a", "b", "c"]
