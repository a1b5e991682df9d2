"""What groups, links and persistent jobs keep beside the records: the truth at every step, and nothing at the end."""

from __future__ import annotations

import itertools
import random
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from reliq.lifecycle import LIVE, State
from reliq.storage.base import (
    MAX_BATCH,
    MAX_CASCADE,
    TOMBSTONE_MS,
    Claimed,
    Held,
    Limits,
    NewRecord,
    Outcome,
    Verb,
    Worker,
)
from reliq.storage.redis.storage import RedisStorage

QUEUE = "q"
WORKERS = [Worker("one", "1"), Worker("two", "2")]
IDS = [f"job-{n}" for n in range(14)]
GROUPS = [None, None, "g", "h", "other:{group}"]
INTERVAL = 1_000


class Bench:
    """One queue, driven at random, and its keys as they are."""

    def __init__(self, storage: RedisStorage, raw: Any, prefix: str, seed: int) -> None:
        self.storage, self.raw, self.prefix = storage, raw, prefix
        self.tag = f"{{{prefix}:{QUEUE}}}"
        self.random = random.Random(seed)
        self.numbers = itertools.count(1)
        self.held: list[tuple[Worker, Claimed]] = []
        self.width = 1

    def put(self, id: str, **options: Any) -> NewRecord:
        number = next(self.numbers)
        ttls = {"result_ttl_ms": 20_000, "dedup_ttl_ms": 10_000, "dead_ttl_ms": 30_000}
        return NewRecord(id, number.to_bytes(8, "big"), b"message", 2, **{**ttls, **options})

    def enqueue(self) -> None:
        records: list[NewRecord] = []
        for _ in range(self.random.randint(1, 5)):
            id = self.random.choice(IDS)
            if self.random.random() < 0.1:
                records.append(self.put(id, is_persistent=True))
                continue
            others = [other for other in IDS if other != id]
            after = self.random.sample(others, self.random.choice([0, 0, 1, 2]))
            options = {"priority": self.random.choice([0, 0, 5]), "delay_ms": self.random.choice([0, 0, 8_000])}
            records.append(self.put(id, group=self.random.choice(GROUPS), after=tuple(after), **options))
        self.storage.enqueue(QUEUE, records)

    def claim(self) -> None:
        worker = self.random.choice(WORKERS)
        limit = self.random.choice([1, 3, 10])
        got = self.storage.claim(
            QUEUE, worker, limit, serial=next(self.numbers), lease_ms=self.random.choice([5_000, 60_000])
        )
        self.held += [(worker, job) for job in got.jobs]

    def settle(self) -> None:
        if not self.held:
            return
        worker = self.random.choice(self.held)[0]
        mine = [run for run in self.held if run[0] is worker]
        chosen = self.random.sample(mine, min(len(mine), self.random.randint(1, 4)))
        verbs = [Verb.COMPLETE, Verb.COMPLETE, Verb.RETRY, Verb.FAIL, Verb.RELEASE]
        self.storage.settle(
            QUEUE,
            worker,
            [
                Outcome(
                    job.id, job.nonce, job.token, self.random.choice(verbs), b"r", b"e", self.random.choice([0, 4_000])
                )
                for _, job in chosen
            ],
        )
        self.held = [run for run in self.held if run not in chosen]

    def cancel(self) -> None:
        self.storage.cancel(QUEUE, self.random.sample(IDS, 2), running=self.random.random() < 0.5)

    def pass_time(self) -> None:
        self.storage.skew_ms += self.random.choice([1_000, 5_000, 25_000])
        self.reap()

    def reap(self) -> None:
        while self.storage.reap(QUEUE, interval_ms=INTERVAL).more:
            pass

    def seldom(self) -> None:
        kind = self.random.randrange(7)
        if kind == 0:
            self.storage.purge(QUEUE)
        elif kind == 1:
            self.storage.revive(QUEUE, None)
        elif kind == 2:
            self.storage.leave(QUEUE, self.random.choice(WORKERS).key)
        elif kind == 3:
            self.width = self.random.choice([1, 2, 3])
            self.storage.set_limits(QUEUE, Limits(group_concurrency=self.width))
        elif kind == 4:
            self.storage.update_ttl(QUEUE, self.random.choice(IDS), 15_000)
        elif kind == 5:
            self.storage.discard(QUEUE, self.random.sample(IDS, 4))
        elif self.random.random() < 0.3:
            self.storage.delete(QUEUE)
            self.width = 1

    def step(self) -> None:
        moves = [
            self.enqueue,
            self.enqueue,
            self.claim,
            self.claim,
            self.settle,
            self.settle,
            self.cancel,
            self.pass_time,
        ]
        self.random.choice([*moves, self.seldom])()

    # -- the truth --------------------------------------------------------------------

    def check(self) -> None:
        jobs = {
            snapshot.id: snapshot for snapshot in self.storage.read(QUEUE, IDS) if snapshot.state is not State.ABSENT
        }
        unfinished = {id for id, job in jobs.items() if job.state in LIVE}
        listed: set[str] = set()
        for number in range(10):
            for entry in self.raw.lrange(f"{self.tag}:pending{f':{number}' if number else ''}", 0, -1):
                position, _, id = entry.decode().partition(":")
                record = self.raw.hget(f"{self.tag}:jobs", id)
                if (
                    id in jobs
                    and record[:1] == b"Q"
                    and struct.unpack_from("<q", record[7:13] + (b"\xff\xff" if record[12] > 127 else b"\0\0"))[0]
                    == int(position)
                ):
                    assert id not in listed
                    listed.add(id)
        blocked = {id.decode() for id in self.raw.zrange(f"{self.tag}:blocked", 0, -1)}
        queued = {id for id, job in jobs.items() if job.state is State.QUEUED}
        assert listed | blocked == queued
        assert not listed & blocked
        waiting = {id.decode() for id in self.raw.zrange(f"{self.tag}:waiting", 0, -1)}
        assert waiting == {id for id, job in jobs.items() if job.state is State.WAITING}
        counts = Counter(job.state for job in jobs.values())
        assert {state: number for state, number in self.storage.counts(QUEUE).items() if number} == counts
        persistent = {id for id in unfinished if jobs[id].is_persistent}
        working = {id for id in unfinished if jobs[id].state is not State.SCHEDULED}
        assert self.storage.backlog(QUEUE) == len(working - persistent)
        for group in filter(None, GROUPS):
            members = {id for id in unfinished if jobs[id].group == group}
            line = [id.decode() for id in self.raw.zrange(f"{self.tag}:group:{group}", 0, -1)]
            there = [id for id in line if id in members]
            assert set(there) == members, group
            if line == there:  # else a purge left it as it was
                out = [id for id in there if id not in blocked]
                # Who came out before a limit was lowered stays out.
                assert not blocked & set(there[:1]), (group, there, blocked)
                assert len(out) <= 3 + sum(jobs[id].state is not State.QUEUED for id in out)
        pins = Counter({id.decode(): int(number) for id, number in self.raw.hgetall(f"{self.tag}:pins").items()})
        assert all(number > 0 for number in pins.values())
        for id, job in jobs.items():
            if job.state is State.COMPLETED:
                assert (job.expires_at_ms is None) == (pins[id] > 0), id

    def finish(self) -> set[str]:
        """Let everything run out; the keys that are left."""
        for _ in range(40):
            for worker in WORKERS:
                self.storage.leave(QUEUE, worker.key)
            self.storage.cancel(QUEUE, IDS, running=True)
            self.storage.skew_ms += 70_000
            self.reap()
        left = {
            key.decode().removeprefix(self.tag) for key in self.raw.scan_iter(match=f"*{self.prefix}*", count=1_000)
        }
        return left - {f"{self.prefix}:queues", ":meta", ":wake", ":due-wake"}


@pytest.fixture
def raw(redis_url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_url)
    yield client
    client.close()


@pytest.fixture
def storage(redis_url: str, redis_prefix: str) -> Iterator[RedisStorage]:
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    yield storage
    storage.close()


def test_who_ran_through_a_purge_keeps_its_place_when_its_line_is_cleaned(
    storage: RedisStorage, raw: Any, redis_prefix: str
) -> None:
    """Also when it runs no more by then: a retry that waits touches no line."""
    bench = Bench(storage, raw, redis_prefix, 0)
    storage.enqueue(QUEUE, [bench.put("first", group="g"), *(bench.put(f"old-{n}", group="g") for n in range(50))])
    [job] = storage.claim(QUEUE, WORKERS[0], 10, serial=1, lease_ms=60_000).jobs
    assert storage.purge(QUEUE) == 50
    retried = Outcome(job.id, job.nonce, job.token, Verb.RETRY, error=b"e", delay_ms=4_000)
    storage.settle(QUEUE, WORKERS[0], [retried])
    storage.enqueue(QUEUE, [bench.put("second", group="g")])
    assert storage.claim(QUEUE, WORKERS[0], 10, serial=2, lease_ms=60_000).jobs == []
    assert raw.zrange(f"{bench.tag}:group:g", 0, -1) == [b"first", b"second"]
    storage.skew_ms += 5_000
    bench.reap()
    assert [job.id for job in storage.claim(QUEUE, WORKERS[0], 10, serial=3, lease_ms=60_000).jobs] == ["first"]


def test_a_cascade_is_carried_out_in_bounded_steps(storage: RedisStorage, raw: Any, redis_prefix: str) -> None:
    bench = Bench(storage, raw, redis_prefix, 0)
    storage.enqueue(QUEUE, [bench.put("first")])
    storage.enqueue(QUEUE, [bench.put(f"next-{n}", after=("first",)) for n in range(2_500)])
    assert storage.cancel(QUEUE, ["first"]) == ["cancelled"]
    steps = [storage.counts(QUEUE)[State.FAILED]]
    while storage.reap(QUEUE, interval_ms=INTERVAL).more:
        steps.append(storage.counts(QUEUE)[State.FAILED])
    assert steps == list(range(MAX_CASCADE, 2_500, MAX_CASCADE))
    assert storage.counts(QUEUE)[State.FAILED] == 2_500
    assert not raw.exists(f"{bench.tag}:cascades", f"{bench.tag}:open", f"{bench.tag}:pins", f"{bench.tag}:waiting")


def _half_deleted(storage: RedisStorage, bench: Bench) -> list[Claimed]:
    """A queue whose deletion ended after its first step; the jobs that ran."""
    records = [bench.put(f"job-{n}", group=f"g-{n % 7}" if n % 2 else None) for n in range(40)]
    storage.enqueue(QUEUE, [*records, bench.put("last", after=("job-0",)), bench.put("service", is_persistent=True)])
    jobs = storage.claim(QUEUE, WORKERS[0], 20, serial=1, lease_ms=60_000).jobs
    assert len(jobs) == 20
    storage.set_limits(QUEUE, Limits(max_length=50))
    assert storage._run("delete", QUEUE, 1, 5) == [42, b"0"]
    return jobs


def test_a_deletion_that_broke_off_has_taken_everything_already(
    storage: RedisStorage, raw: Any, redis_prefix: str
) -> None:
    bench = Bench(storage, raw, redis_prefix, 0)
    jobs = _half_deleted(storage, bench)
    ids = [job.id for job in jobs]
    assert {(snapshot.state, snapshot.cause) for snapshot in storage.read(QUEUE, ids)} == {(State.ABSENT, "purged")}
    held = [Held(job.id, job.nonce, job.token) for job in jobs]
    answer = storage.extend(QUEUE, WORKERS[0], held, below=0, in_flight=[], lease_ms=60_000)
    assert {lease.id for lease in answer.lost} == set(ids)
    outcomes = [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE, b"r") for job in jobs]
    assert all(settled.is_lost for settled in storage.settle(QUEUE, WORKERS[0], outcomes))
    assert not any(storage.progress(QUEUE, lease, b"half") for lease in held)
    # What comes now is of the new queue, also under the old ids and beside what is yet to be carried out.
    new = [bench.put(id, group="g-1") for id in ids[-3:]]
    assert [answer.status for answer in storage.enqueue(QUEUE, new)] == ["queued"] * 3
    assert [job.id for job in storage.claim(QUEUE, WORKERS[1], 10, serial=2, lease_ms=60_000).jobs] == ids[-3:-2]
    for _ in range(3):
        bench.reap()
        storage.skew_ms += INTERVAL
    assert {state: number for state, number in storage.counts(QUEUE).items() if number} == {
        State.QUEUED: 2,
        State.PROCESSING: 1,
    }
    assert raw.hlen(f"{bench.tag}:jobs") == 3
    assert storage.limits(QUEUE) == Limits()


def test_a_repeated_deletion_finishes_it(storage: RedisStorage, raw: Any, redis_prefix: str) -> None:
    bench = Bench(storage, raw, redis_prefix, 0)
    _half_deleted(storage, bench)
    storage.delete(QUEUE)
    left = {key.decode() for key in raw.scan_iter(match=f"*{redis_prefix}*", count=1_000)}
    assert left == {f"{bench.tag}:gone", f"{bench.tag}:gone:order"}
    assert all(0 < raw.pttl(key) <= TOMBSTONE_MS for key in left)
    storage.enqueue(QUEUE, [bench.put("new")])
    assert all(raw.pttl(key) == -1 for key in left)
    assert storage.queues() == [QUEUE]


def test_very_many_that_a_raised_limit_lets_go_come_in_bounded_steps(
    storage: RedisStorage, raw: Any, redis_prefix: str
) -> None:
    """More of them than one command takes at a time."""
    bench = Bench(storage, raw, redis_prefix, 0)
    total = 12_000
    storage.enqueue(QUEUE, [bench.put(f"job-{n}", group=f"g-{n % 20}") for n in range(total)])
    storage.set_limits(QUEUE, Limits(group_concurrency=900))
    done, longest = 0, 0
    while jobs := storage.claim(QUEUE, WORKERS[0], MAX_BATCH, serial=1, lease_ms=60_000).jobs:
        before = raw.zcard(f"{bench.tag}:blocked")
        outcomes = [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE, b"r") for job in jobs]
        assert not any(settled.is_lost for settled in storage.settle(QUEUE, WORKERS[0], outcomes))
        longest = max(longest, before - raw.zcard(f"{bench.tag}:blocked"))
        done += len(jobs)
    assert done == total
    assert 1_000 < longest <= 3 * MAX_BATCH


@pytest.mark.parametrize("seed", range(12))
def test_side_structures_equal_the_truth_and_leave_nothing(
    storage: RedisStorage, raw: Any, redis_prefix: str, seed: int
) -> None:
    bench = Bench(storage, raw, redis_prefix, seed)
    bench.enqueue()
    bench.reap()
    for _ in range(250):
        bench.step()
        bench.check()
    assert bench.finish() == set()
    numbers = raw.hmget(f"{bench.tag}:meta", "persistent", "persistent:leased")
    assert {int(number or 0) for number in numbers} == {0}
