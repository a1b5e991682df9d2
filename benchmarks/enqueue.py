"""How fast are jobs enqueued: one by one, by several threads, in bulk?"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from reliq import JsonSerde, Queue
from reliq.message import encode

from .contest import Contestant, anyone, contest
from .harness import Bare, Bench, Figure, payload
from .limits import bare_rate
from .replay import Command, Commands, record

THREADS = 8
#: One by one, as a share of a bare loop of scripts that do nothing.
SHARE = 85.0
#: In bulk, beside the best of the others.
LEAD = 4.0
_QUEUE = "enqueue"
_serde = JsonSerde()


def measure(bench: Bench) -> list[Figure]:
    """enqueue and enqueue_many, beside bare loops; then side by side."""
    found = bench.repeat("enqueue", lambda: _rates(bench))
    figures = [
        Figure("enqueue one by one, 1 thread", "jobs/s", found["single"]),
        Figure("  as a share of a raw loop of the same script", "%", found["single share"]),
        Figure("  as a share of a raw no-op EVALSHA loop", "%", found["no-op share"], SHARE, "at least"),
        Figure(f"enqueue one by one, {THREADS} threads", "jobs/s", found["threads"]),
        Figure("  as a share of raw loops of the same script", "%", found["threads share"]),
        Figure("enqueue_many", "jobs/s", found["bulk"]),
    ]
    return [*figures, *_peers(bench)] if bench.peers else figures


def _peers(bench: Bench) -> list[Figure]:
    peers = contest(bench, "enqueue", lambda contestant: _ask(bench, contestant))
    return [
        *peers.figures("single", "one by one, 1 thread", "jobs/s"),
        *peers.lead("single", "the best", anyone),
        *peers.figures("threads", f"one by one, {THREADS} threads", "jobs/s"),
        *peers.lead("threads", "the best", anyone),
        *peers.figures("bulk", "in bulk, 100 at once", "jobs/s"),
        *peers.lead("bulk", "the best", anyone, LEAD),
    ]


def _ask(bench: Bench, contestant: Contestant) -> dict[str, float]:
    """So many seconds of each; nobody works the jobs off. All that were enqueued must be queued."""
    how: dict[str, Any] = {"seconds": bench.seconds(0.5, 0.25)}
    most = bench.amount(40_000, 10_000)
    contestant.clear(1)
    ways: dict[str, Callable[..., dict[str, Any]]] = {
        "single": contestant.enqueue,
        "threads": partial(contestant.enqueue, lanes=THREADS),
    }
    if contestant.has_bulk:
        ways["bulk"] = contestant.enqueue_many
    found, queued = {}, 0
    for at, (name, enqueue) in enumerate(ways.items()):
        first = at * (most + 100)
        warm = enqueue(100, first)  # connections are made, scripts are loaded
        answer = enqueue(most, first + 100, **how)
        queued += warm["number"] + answer["number"]
        found[name] = answer["number"] / answer["seconds"]
    contestant.check_queued(queued)
    return found


def _rates(bench: Bench) -> dict[str, float]:
    number = bench.amount(8_000, 1_600)
    bulk = bench.amount(100_000, 10_000)
    with Queue(_QUEUE, bench.server.url) as queue:
        queue.enqueue("warm", payload(0))
        raw = _raw(bench.server.url, 1, number)
        noop = bare_rate(bench.server.url, ("EVALSHA", bench.load_script("return 1"), 0), bench.seconds(0.5, 0.2))
        single = rate_of(1, number, lambda part: [queue.enqueue(f"single-{n}", payload(n)) for n in part])
        threads = rate_of(THREADS, number, lambda part: [queue.enqueue(f"threads-{n}", payload(n)) for n in part])
        raws = _raw(bench.server.url, THREADS, number)
        many = rate_of(1, bulk, lambda part: queue.enqueue_many((f"bulk-{n}", payload(n)) for n in part))
        queued = queue.counts()["queued"]
    expected = 1 + 4 * number + bulk
    if queued != expected:
        raise AssertionError(f"{expected} jobs enqueued, {queued} counted")
    return {
        "single": single,
        "single share": 100 * single / raw,
        "no-op share": 100 * single / noop,
        "threads": threads,
        "threads share": 100 * threads / raws,
        "bulk": many,
    }


def _raw(url: str, threads: int, number: int) -> float:
    """Bare connections, one for each thread, that send commands built beforehand."""
    commands = Commands(_QUEUE)
    built: list[Command] = [
        commands.enqueue(record(f"raw-{threads}-{n}", secrets.token_bytes(8), encode(_serde.dumps(payload(n)))))
        for n in range(number)
    ]

    def send(part: Sequence[int]) -> None:
        link = Bare(url)
        try:
            for n in part:
                link.ask(built[n])
        finally:
            link.close()

    return rate_of(threads, number, send)


def rate_of(threads: int, number: int, act: Callable[[Sequence[int]], object]) -> float:
    """Jobs per second when ``threads`` threads share ``number`` jobs."""
    trouble: list[BaseException] = []

    def run(part: Sequence[int]) -> None:
        try:
            act(part)
        except BaseException as error:
            trouble.append(error)

    workers = [threading.Thread(target=run, args=(range(first, number, threads),)) for first in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - began
    if trouble:
        raise trouble[0]
    return number / seconds
