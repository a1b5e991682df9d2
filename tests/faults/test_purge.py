"""A purge of many jobs while others enqueue the same ids."""

from __future__ import annotations

import threading
from typing import Any

from reliq import Queue, Reaper
from reliq.storage.redis.scripts import script
from reliq.storage.redis.storage import RedisStorage

from .support import Bench, Mutation, mutated, until

#: What a purge left is carried out without a look at whether it is of the purge's time.
BLIND_SWEEP: Mutation = ("ends", "r[STATE] ~= 'P' and r[EPOCH] ~= epoch", "r[STATE] ~= 'P'")


def _purge_under_load(bench: Bench, jobs: int) -> tuple[int, set[str], set[str]]:
    """``jobs`` jobs are purged while threads enqueue the same ids and a reaper sweeps.

    How many microseconds the purge took on the server, which ids were accepted after it, and which of
    them are there at the end.
    """
    q = bench.queue
    q.enqueue_many((f"job-{n}", None) for n in range(jobs))
    assert q.counts()["queued"] == jobs
    bench.server.command("CONFIG", "SET", "slowlog-log-slower-than", "0")
    bench.server.command("CONFIG", "SET", "slowlog-max-len", "100000")
    stop = threading.Event()
    refused = threading.Semaphore(0)
    accepted: set[str] = set()

    def enqueue(offset: int) -> None:
        storage = RedisStorage(bench.url, prefix=bench.prefix)
        mine = Queue("q", storage)
        number = offset
        while not stop.is_set():
            id = f"job-{number % jobs}"
            number += 7
            # Before the purge every id is taken, so an accepted one is a new job.
            if mine.enqueue(id, "new").status == "queued":
                accepted.add(id)
            else:
                refused.release()
        storage.close()

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        assert refused.acquire(timeout=30)
    purged = q.purge()
    took = _slowest(bench, script("purge").sha)
    bench.server.command("CONFIG", "SET", "slowlog-log-slower-than", "-1")
    assert purged == jobs
    reaper = Reaper(q).start()
    until(lambda: len(accepted) > min(5_000, jobs // 4), 60)
    until(lambda: not _is_purging(bench), 120, "the sweep")
    stop.set()
    for thread in threads:
        thread.join()
    reaper.stop()
    there = {id for id, status in q.get_statuses(accepted).items() if status is not None and status.state == "queued"}
    return took, accepted, there


def _is_purging(bench: Bench) -> bool:
    return bench.server.command("HEXISTS", f"{bench.tag()}:meta", "purging") == 1


def _slowest(bench: Bench, text: str) -> int:
    entries: Any = bench.server.command("SLOWLOG", "GET", -1, timeout=30.0)
    # The words of a long command are cut short.
    return max(int(entry[2]) for entry in entries if len(entry[3]) > 1 and entry[3][1][:40] == text[:40])


def test_a_purge_of_a_million_jobs_is_quick_and_takes_no_new_job(bench: Bench) -> None:
    took, accepted, there = _purge_under_load(bench, 1_000_000)
    assert took < 50_000, f"{took} us"
    assert accepted
    assert there == accepted
    # Everything was swept: what is left is the new jobs, and the counters say so.
    assert bench.server.command("HLEN", f"{bench.tag()}:jobs") == len(accepted)
    assert bench.server.command("HLEN", f"{bench.tag()}:messages") == len(accepted)
    counts = bench.queue.counts()
    assert counts.pop("queued") == len(accepted)
    assert not any(counts.values())


def test_control_a_blind_sweep_takes_new_jobs(bench: Bench) -> None:
    with mutated(BLIND_SWEEP):
        _, accepted, there = _purge_under_load(bench, 50_000)
    assert there < accepted


def test_control_a_removal_one_by_one_takes_longer(bench: Bench) -> None:
    """What the bound is about: the same jobs removed by name block the server beyond it."""
    jobs = 100_000
    bench.queue.enqueue_many((f"job-{n}", None) for n in range(jobs))
    bench.server.command("CONFIG", "SET", "slowlog-log-slower-than", "0")
    text = "for i = 0, ARGV[1] - 1 do redis.call('HDEL', KEYS[1] .. ':jobs', 'job-' .. i) end"
    bench.server.command("EVAL", text, 1, bench.tag(), jobs, timeout=60.0)
    assert _slowest(bench, text) * 10 > 50_000
