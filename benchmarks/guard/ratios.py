"""What the guard watches: ratios of two speeds measured in turns, so that the machine's own speed falls out.

Each is the best of several runs over the best of its yardstick: others who are busy on the machine can only slow
either down, so the best are the least disturbed. (A median of the quotients halves when a neighbour compiles.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from reliq import Queue
from reliq.storage.base import NewRecord, Storage
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
#: How fast something is, and its yardstick.
Pair = tuple[float, float]


def server_time(bench: Bench) -> Pair:
    """A script that reads and writes 100 fields of a hash, in terms of a job's three transitions in batches of 100."""
    return 1 / sum(cost(bench, 100).values()), 1 / calibrate(bench)["touch"]


def enqueue(bench: Bench) -> Pair:
    """Jobs/s one by one, in terms of a bare loop of scripts that do nothing."""
    with Queue("guard", bench.server.url) as queue:
        queue.enqueue("warm", payload(0))
        before = _noops(bench)
        rate = rate_of(1, 800, lambda part: [queue.enqueue(f"job-{n}", payload(n)) for n in part])
        return rate, max(before, _noops(bench))


def bulk(bench: Bench) -> Pair:
    """Jobs/s of enqueue_many, in terms of the same loop."""
    with Queue("guard", bench.server.url) as queue:
        queue.enqueue("warm", payload(0))
        before = _noops(bench)
        rate = rate_of(1, 10_000, lambda part: queue.enqueue_many((f"job-{n}", payload(n)) for n in part))
        return rate, max(before, _noops(bench))


def drain(bench: Bench) -> Pair:
    """Jobs per second of processor time of a pool of 8 threads with results, in terms of a loop of Python."""
    jobs = jobs_of(8_000)
    with bench.storage() as storage:
        return _drained(storage, jobs)


def drain_memory(_: Bench) -> Pair:
    """The same in memory."""
    jobs = jobs_of(5_000)
    storage = MemoryStorage()
    try:
        return _drained(storage, jobs)
    finally:
        storage.close()


def call(bench: Bench) -> Pair:
    """A GET's median, in terms of a call's across processes."""
    found = latency(bench, blocks=2)
    return 1 / found["p50"], 1 / found["get"]


RATIOS: dict[str, Callable[[Bench], Pair]] = {
    ratio.__name__: ratio for ratio in (server_time, enqueue, bulk, drain, drain_memory, call)
}


def measure(bench: Bench, name: str, runs: int) -> list[Pair]:
    """So many runs, on an empty server each."""
    found = []
    for _ in range(runs):
        bench.empty()
        found.append(RATIOS[name](bench))
    return found


def ratio_of(pairs: list[Pair]) -> float:
    """The best over the best."""
    return max(speed for speed, _ in pairs) / max(yardstick for _, yardstick in pairs)


def baseline() -> dict[str, float]:
    """The ratios as they were."""
    known: dict[str, float] = json.loads(BASELINE.read_text("utf-8"))["ratios"]
    return known


def _noops(bench: Bench) -> float:
    return bare_rate(bench.server.url, ("EVALSHA", bench.load_script("return 1"), 0), _NOOP_S)


def _drained(storage: Storage, jobs: list[NewRecord]) -> Pair:
    """By processor time: how 8 threads and a server share two cores with others is nothing to hold a limit against."""
    preload(storage, jobs)
    before = _loops()
    began = time.process_time()
    drain_of(storage, jobs)
    return len(jobs) / (time.process_time() - began), max(before, _loops())


def _loops() -> float:
    """Dictionaries made and unmade, per second of processor time."""
    began, number = time.process_time(), 0
    while (took := time.process_time() - began) < _NOOP_S:
        sum(dict.fromkeys(range(100), number).values())
        number += 1
    return number / took
