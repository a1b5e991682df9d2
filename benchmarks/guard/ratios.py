"""What the guard watches: speeds per processor time, in terms of a loop of Python or of the server's own commands.

Seconds say how busy a machine is with other things, and round trips how its cores sleep; processor time says what the
code takes. Each run measures the yardstick beside it, and the median of several runs counts.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reliq import Queue
from reliq.storage.sql.memory import MemoryStorage

from ..call import running_worker
from ..drain import drain_of, jobs_of, preload
from ..harness import Bare, Bench, payload
from ..server_cost import calibrate, cost

BASELINE = Path(__file__).with_name("baseline.json")
#: How much of the baseline is enough.
ENOUGH = 0.7
_PACE_S = 0.1


def server_time(bench: Bench) -> float:
    """Redis: a job's three transitions in batches of 100, in terms of a script that reads and writes 100 fields."""
    return calibrate(bench)["touch"] / sum(cost(bench, 100).values())


def enqueue(bench: Bench) -> float:
    """The client: enqueues one by one, in terms of bare round trips of a script that does nothing."""
    with Queue("guard", bench.server.url) as queue, _noop(bench) as noop:
        queue.enqueue("warm", payload(0))
        return _ratio(800, lambda: [queue.enqueue(f"job-{n}", payload(n)) for n in range(800)], noop)


def bulk(bench: Bench) -> float:
    """The client: jobs of enqueue_many, in terms of a loop of Python."""
    with Queue("guard", bench.server.url) as queue:
        queue.enqueue("warm", payload(0))
        return _ratio(10_000, lambda: queue.enqueue_many((f"job-{n}", payload(n)) for n in range(10_000)), _work)


def call(bench: Bench) -> float:
    """The client: calls of a worker in another process, in terms of the same bare round trips."""
    with running_worker(bench.server.url, "guard"), Queue("guard", bench.server.url) as queue, _noop(bench) as noop:
        for n in range(50):  # until the worker is up, and all is warm
            queue.call(f"warm-{n}", payload(n))
        return _ratio(400, lambda: [queue.call(f"job-{n}", payload(n)) for n in range(400)], noop)


def drain(bench: Bench) -> float:
    """The worker: a pool of 8 threads with results, in terms of a loop of Python."""
    jobs = jobs_of(8_000)
    with bench.storage() as storage:
        preload(storage, jobs)
        return _ratio(len(jobs), lambda: drain_of(storage, jobs), _work)


def drain_memory(_: Bench) -> float:
    """The same in memory."""
    jobs = jobs_of(5_000)
    storage = MemoryStorage()
    try:
        preload(storage, jobs)
        return _ratio(len(jobs), lambda: drain_of(storage, jobs), _work)
    finally:
        storage.close()


RATIOS: dict[str, Callable[[Bench], float]] = {
    ratio.__name__: ratio for ratio in (server_time, enqueue, bulk, call, drain, drain_memory)
}


def measure(bench: Bench, name: str, runs: int) -> float:
    """The median of so many runs, on an empty server each."""
    found = []
    for _ in range(runs):
        bench.empty()
        found.append(RATIOS[name](bench))
    return statistics.median(found)


def baseline() -> dict[str, float]:
    """The ratios as they were."""
    known: dict[str, float] = json.loads(BASELINE.read_text("utf-8"))["ratios"]
    return known


def _ratio(number: int, act: Callable[[], object], unit: Callable[[], object]) -> float:
    """How many of ``act``'s ``number`` things take as long as one ``unit``, by this process's processor time."""
    before = _pace(unit)
    began = time.process_time()
    act()
    took = time.process_time() - began
    return number / took / ((before + _pace(unit)) / 2)


def _pace(unit: Callable[[], object]) -> float:
    began, number = time.process_time(), 0
    while (took := time.process_time() - began) < _PACE_S:
        unit()
        number += 1
    return number / took


def _work() -> None:
    sum(dict.fromkeys(range(100), 1).values())


@contextmanager
def _noop(bench: Bench) -> Iterator[Callable[[], object]]:
    link = Bare(bench.server.url)
    command = ("EVALSHA", bench.load_script("return 1"), 0)
    try:
        yield lambda: link.ask(command)
    finally:
        link.close()
