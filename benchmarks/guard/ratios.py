"""What the guard watches: each a ratio within one run, higher is better, so that the machine's own speed falls out."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from reliq import Queue
from reliq.storage.sql.memory import MemoryStorage

from ..call import latency
from ..drain import drain_of, jobs_of, preload
from ..enqueue import rate_of
from ..harness import Bench, payload
from ..limits import bare_rate
from ..server_cost import calibrate, cost

BASELINE = Path(__file__).with_name("baseline.json")
#: How much of the baseline is enough.
ENOUGH = 0.7
_NOOP_S = 0.1


def server_time(bench: Bench) -> float:
    """A script that reads and writes 100 fields of a hash, in terms of a job's three transitions in batches of 100."""
    return calibrate(bench)["touch"] / sum(cost(bench, 100).values())


def enqueue(bench: Bench) -> float:
    """Jobs/s one by one, in terms of a bare loop of scripts that do nothing."""
    with Queue("guard", bench.server.url) as queue:
        queue.enqueue("warm", payload(0))
        before = _noops(bench)
        rate = rate_of(1, 800, lambda part: [queue.enqueue(f"job-{n}", payload(n)) for n in part])
        return rate / statistics.mean((before, _noops(bench)))


def bulk(bench: Bench) -> float:
    """Jobs/s of enqueue_many, in terms of the same loop."""
    with Queue("guard", bench.server.url) as queue:
        queue.enqueue("warm", payload(0))
        before = _noops(bench)
        rate = rate_of(1, 10_000, lambda part: queue.enqueue_many((f"job-{n}", payload(n)) for n in part))
        return rate / statistics.mean((before, _noops(bench)))


def drain(bench: Bench) -> float:
    """Jobs/s of a pool of 8 threads with results, in terms of the same loop."""
    jobs = jobs_of(8_000)
    with bench.storage() as storage:
        preload(storage, jobs)
        before = _noops(bench)
        rate = len(jobs) / drain_of(storage, jobs)
        return rate / statistics.mean((before, _noops(bench)))


def drain_memory(_: Bench) -> float:
    """Jobs/s of a pool in memory, in terms of a loop of Python that makes and unmakes dictionaries."""
    jobs = jobs_of(5_000)
    storage = MemoryStorage()
    try:
        preload(storage, jobs)
        before = _loops()
        rate = len(jobs) / drain_of(storage, jobs)
        return rate / statistics.mean((before, _loops()))
    finally:
        storage.close()


def call(bench: Bench) -> float:
    """A GET's median, in terms of a call's across processes."""
    return 1 / latency(bench, blocks=2)["p50x"]


RATIOS: dict[str, Callable[[Bench], float]] = {
    ratio.__name__: ratio for ratio in (server_time, enqueue, bulk, drain, drain_memory, call)
}


def measure(bench: Bench, name: str, runs: int) -> float:
    """The median of so many, on an empty server each."""
    found = []
    for _ in range(runs):
        bench.empty()
        found.append(RATIOS[name](bench))
    return statistics.median(found)


def baseline() -> dict[str, float]:
    """The ratios as they were."""
    known: dict[str, float] = json.loads(BASELINE.read_text("utf-8"))["ratios"]
    return known


def _noops(bench: Bench) -> float:
    return bare_rate(bench.server.url, ("EVALSHA", bench.load_script("return 1"), 0), _NOOP_S)


def _loops() -> float:
    end, number = time.perf_counter() + _NOOP_S, 0
    while time.perf_counter() < end:
        sum(dict.fromkeys(range(100), number).values())
        number += 1
    return number / _NOOP_S
