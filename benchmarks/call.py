"""How long does ``call`` take, measured in raw round trips?"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from reliq import Queue

from .bare_call import bare_calls
from .contest import Contestant, anyone, contest, is_synchronous, working
from .harness import Bench, Figure, payload

TARGET = 3.8
THREADS = 16
#: Beside the best synchronous peer in Python, from so many threads.
LEAD = 2.0
#: Of what bare scripts allow, from so many threads.
SHARE = 75.0
_QUEUE = "call"
_BLOCK = 100


def measure(bench: Bench) -> list[Figure]:
    """Latency of call() with an idle worker in another process, and of a GET on a pinned connection."""
    found = bench.repeat("call", lambda: latency(bench, bench.amount(20, 4)))
    return [
        Figure("raw GET round trip, p50", "ms", found["get"]),
        Figure("call, p50", "ms", found["p50"]),
        Figure("call, p50 in round trips", "x", found["p50x"], TARGET),
        Figure("call, p95 in round trips", "x", found["p95x"]),
        Figure("call, p99 in round trips", "x", found["p99x"]),
        *_peers(bench),
    ]


def _peers(bench: Bench) -> list[Figure]:
    bare = bench.repeat("call by bare scripts", lambda: bare_calls(bench, bench.seconds(0.7, 0.25), THREADS))
    found = contest(bench, "call", lambda contestant: _ask(bench, contestant))
    medians = {name: statistics.median(values) for name, values in bare.items()}
    return [
        Figure("call by bare scripts, p50", "ms", bare["p50"]),
        Figure("call by bare scripts, p99", "ms", bare["p99"]),
        Figure(f"call by bare scripts, {THREADS} callers", "calls/s", bare["rate"]),
        Figure("  call, p99 in terms of it", "x", tuple(p99 / medians["p99"] for p99 in found.reliq["p99"]), 2.0),
        Figure(
            f"  {THREADS} callers in terms of it",
            "%",
            tuple(100 * rate / medians["rate"] for rate in found.reliq["rate"]),
            SHARE,
            "at least",
        ),
        *found.figures("p50", "call, p50", "ms"),
        *found.lead("p50", "the shortest", anyone, 1.0, less=True),
        *found.figures("p99", "call, p99", "ms"),
        *found.figures("rate", f"{THREADS} callers", "calls/s"),
        *found.lead("rate", "the best synchronous in Python", is_synchronous, LEAD),
    ]


def _ask(bench: Bench, contestant: Contestant) -> dict[str, float]:
    """One caller for so many seconds, then many; each compares its results."""
    seconds, most = bench.seconds(0.6, 0.25), bench.amount(10_000, 3_000)
    with working(contestant, 3 * most) as first:
        contestant.call(most, first, seconds=seconds, lanes=THREADS)  # connections are made, and all is warm
        one = contestant.call(most, first + most, seconds=seconds)
        many = contestant.call(most, first + 2 * most, seconds=seconds, lanes=THREADS)
    return {
        "p50": 1000 * one["cuts"]["50"],
        "p99": 1000 * one["cuts"]["99"],
        "rate": many["number"] / many["seconds"],
    }


def latency(bench: Bench, blocks: int) -> dict[str, float]:
    gets: list[float] = []
    calls: list[float] = []
    # As a caller would do it by hand: the client's own method, the connection pinned.
    client = redis.Redis.from_url(bench.server.url, single_connection_client=True, protocol=2)
    try:
        with running_worker(bench.server.url, _QUEUE), Queue(_QUEUE, bench.server.url) as queue:
            for n in range(_BLOCK):  # until the worker is up, and all is warm
                queue.call(f"warm-{n}", payload(n))
            client.set("key", "x" * 64)
            # In turns, so that whatever else the machine does hits both.
            for block in range(blocks):
                gets += _timed(lambda _: client.get("key"))
                calls += _timed(lambda n, block=block: queue.call(f"job-{block}-{n}", payload(n)))  # type: ignore[misc]
    finally:
        client.close()
    get = statistics.median(gets)
    cuts = statistics.quantiles(calls, n=100)
    return {
        "get": 1000 * get,
        "p50": 1000 * cuts[49],
        "p50x": cuts[49] / get,
        "p95x": cuts[94] / get,
        "p99x": cuts[98] / get,
    }


def _timed(act: Callable[[int], object]) -> list[float]:
    seconds = []
    for n in range(_BLOCK):
        began = time.perf_counter()
        act(n)
        seconds.append(time.perf_counter() - began)
    return seconds


@contextmanager
def running_worker(url: str, queue: str) -> Iterator[None]:
    """A pool of 8 threads in a process of its own."""
    root = Path(__file__).resolve().parents[1]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.worker", url, queue], cwd=root)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
