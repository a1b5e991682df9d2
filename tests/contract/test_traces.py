"""I43 and I53: what is over leaves nothing behind in a storage's own structures, whichever features it used."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from reliq.storage.base import NO_LIMITS, TOMBSTONE_MS, Limits, Schedule, Storage, Verb
from reliq.storage.redis.storage import RedisStorage
from reliq.storage.sql.file import FileStorage
from reliq.testing.contract.steps import (
    ALICE,
    QUEUE,
    TTL,
    cancel,
    counted,
    held,
    jump,
    put,
    record,
    run,
    settle,
    take,
    take_one,
    upkeep,
    work_off,
)

Traces = dict[str, int]


def _plain(storage: Storage) -> None:
    """A life without anything special."""
    storage.enqueue(QUEUE, [record("plain")], waiter="w", wait_ms=1_000)
    run(storage, result=b"r")
    put(storage, "dead", "gone", "later", delay_ms=1)
    storage.skew_ms += 10
    upkeep(storage)
    run(storage, Verb.FAIL, error=b"e")
    cancel(storage, "gone")
    run(storage, Verb.RETRY, error=b"e")
    work_off(storage)
    storage.purge(QUEUE)


def _special(storage: Storage) -> None:
    storage.set_limits(QUEUE, Limits(rate=1_000, max_concurrency=9, max_length=5_000, group_concurrency=2))
    storage.put_schedule(QUEUE, Schedule("tick", b"s", 1))
    for name in ("g", "a:b", "{orders}"):
        put(storage, *(f"{name}-{n}" for n in range(6)), group=name, max_attempts=2)
    job = take_one(storage)
    storage.progress(QUEUE, held(job), b"half")
    settle(storage, job, Verb.FAIL, error=b"e")
    storage.revive(QUEUE, [job.id])
    cancel(storage, "g-2")
    for verb in (Verb.RETRY, Verb.RELEASE, Verb.FAIL):
        storage.skew_ms += 100
        run(storage, verb, error=b"e")
    storage.set_limits(QUEUE, NO_LIMITS)
    take_one(storage)
    storage.leave(QUEUE, ALICE.key)
    put(storage, "first", "second", "third")
    put(storage, "both", after=["first", "second"], group="a:b")
    put(storage, "doomed", "doomed-too", after=["third"], group="h", delay_ms=5)
    put(storage, "chain", after=["doomed"])
    put(storage, "hopeless", after=["unknown"], group="h")
    put(storage, "waiting", after=["both"])
    cancel(storage, "waiting")
    cancel(storage, "third")
    put(storage, "persistent", is_persistent=True)
    run_all(storage)
    put(storage, "again", after=["both"])
    put(storage, *(f"purged-{n}" for n in range(4)), group="g")
    put(storage, "purged-too", after=["purged-0"], group="a:b")
    job = take_one(storage)
    storage.purge(QUEUE)
    put(storage, "last", group="g", after=[job.id])
    settle(storage, job)
    work_off(storage)
    storage.remove_schedule(QUEUE, "tick")


def run_all(storage: Storage) -> None:
    """Work off everything; a persistent job is cancelled while it runs."""
    while jobs := take(storage):
        if jobs[0].is_persistent:
            cancel(storage, jobs[0].id, running=True)
        settle(storage, jobs[0], Verb.RETRY if jobs[0].is_persistent else Verb.COMPLETE)


def _let_all_expire(storage: Storage) -> None:
    storage.leave(QUEUE, ALICE.key)
    for _ in range(3):
        jump(storage, TTL + 1_000)
    for _ in range(3):
        jump(storage, TOMBSTONE_MS + 1_000)
    assert counted(storage) == {}


def _check(storage: Storage, traces: Callable[[], Traces]) -> None:
    _plain(storage)
    _let_all_expire(storage)
    before = traces()
    _special(storage)
    assert traces() != before
    _let_all_expire(storage)
    assert traces() == before


def test_redis_keeps_no_trace(redis_url: str, redis_prefix: str) -> None:
    import redis

    client = redis.Redis.from_url(redis_url, decode_responses=True)
    sizes = {"hash": client.hlen, "list": client.llen, "zset": client.zcard, "set": client.scard, "string": len}

    def traces() -> Traces:
        found = {key: client.type(key) for key in client.scan_iter(match=f"*{redis_prefix}*", count=1_000)}
        # Counters and settings of the queue have a fixed number of fields, doorbells a bounded number of tokens.
        return {
            key: int(sizes[str(kind)](key))
            for key, kind in found.items()
            if not key.endswith((":meta", ":wake", ":due-wake")) and client.pttl(key) < 0
        }

    storage = RedisStorage(redis_url, prefix=redis_prefix)
    with contextlib.closing(client), contextlib.closing(storage):
        _check(storage, traces)
        [meta] = client.scan_iter(match=f"*{redis_prefix}*:meta")
        assert client.hlen(meta) < 40


def test_redis_keeps_nothing_of_a_queue_that_is_over(redis_url: str, redis_prefix: str) -> None:
    import redis

    client = redis.Redis.from_url(redis_url, decode_responses=True)
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    with contextlib.closing(client), contextlib.closing(storage):
        _plain(storage)
        _let_all_expire(storage)
        storage.leave(QUEUE, ALICE.key)
        left = [key for key in client.scan_iter(match=f"*{redis_prefix}*") if client.pttl(key) < 0]
        assert left == [f"{redis_prefix}:queues"]
        put(storage, "again")
        assert counted(storage) == {"queued": 1}
        run(storage)


def test_redis_keeps_counting_where_groups_were(redis_url: str, redis_prefix: str) -> None:
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    with contextlib.closing(storage):
        put(storage, "first", group="g")
        first = take_one(storage)
        settle(storage, first)
        _let_all_expire(storage)
        storage.leave(QUEUE, ALICE.key)
        put(storage, "second", group="g")
        second = take_one(storage)
        assert first.sequence is not None and second.sequence is not None and second.sequence > first.sequence


def test_a_file_keeps_no_trace(tmp_path: Path) -> None:
    storages = [FileStorage(tmp_path / "queue", durability="os")]

    def traces() -> Traces:
        skew_ms = storages[-1].skew_ms
        storages[-1].close()  # the file is opened beside nobody
        with contextlib.closing(sqlite3.connect(tmp_path / "queue" / "queue.db")) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            found = {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}
        storages.append(FileStorage(tmp_path / "queue", durability="os"))
        storages[-1].skew_ms = skew_ms
        return found

    class Reopened:
        """The storage that is open now."""

        def __getattr__(self, name: str) -> object:
            return getattr(storages[-1], name)

        def __setattr__(self, name: str, value: object) -> None:
            setattr(storages[-1], name, value)

    _check(Reopened(), traces)  # type: ignore[arg-type]
    storages[-1].close()
