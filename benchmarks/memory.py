"""How much memory do jobs take in the server and in the worker, and what is left when every TTL has run out?"""

from __future__ import annotations

import logging
import time

from reliq import Job, Queue, Reject, WorkerPool

from .contest import Contestant, Peer, contest, working
from .harness import Bench, Figure, payload

#: Tombstones stay for a minute.
_PATIENCE_S = 90.0


def measure(bench: Bench) -> list[Figure]:
    """Side by side; what is left, of reliq."""
    found = contest(bench, "memory", lambda contestant: _ask(bench, contestant))
    figures = [
        *found.figures("job", "server, per queued job with payload", "bytes"),
        *found.lead("job", "the leanest with ids", has_ids, 1.0, less=True),
        *found.figures("worker", "worker after a drain, resident", "MB"),
        *found.figures("more", "  more after another drain, per job", "bytes"),
    ]
    if bench.quick:
        bench.say("memory: what is left after a minute is left out of the quick run")
        return figures
    return [*figures, Figure("keys left after all TTLs, per queue", "keys", _left(bench), 0.0)]


def has_ids(peer: Peer) -> bool:
    """Who else deduplicates by ids that the caller chooses."""
    return peer.name == "platformatic"


def _ask(bench: Bench, contestant: Contestant) -> dict[str, float]:
    number = bench.amount(3_000, 1_500)
    contestant.clear(1)
    contestant.fill(100, number)
    before = bench.used_memory()
    contestant.fill(number)
    found = {"job": (bench.used_memory() - before) / number}
    bench.empty()
    part = min(contestant.number(bench.seconds(0.6, 0.3)), number)
    with working(contestant, 2 * part) as first:
        sizes = []
        for begin in (first, first + part):
            contestant.fill(part, begin)
            contestant.wait(begin, part)
            sizes.append(contestant.memory())
        contestant.check(first + 2 * part)
    return {**found, "worker": sizes[0] / 1e6, "more": (sizes[1] - sizes[0]) / part}


def _left(bench: Bench) -> tuple[float, ...]:
    """Completed and failed jobs with short TTLs, in a queue for each run, and a pool that cleans up after them."""
    number = 1_000
    logging.getLogger("reliq").addFilter(_hide)  # each dead letter comes with its traceback
    bench.empty()
    queues = [
        Queue(f"left-{run}", bench.server.url, result_ttl=0.5, dead_ttl=0.5, max_attempts=1)
        for run in range(bench.runs)
    ]

    def handle(job: Job) -> int:
        if job.payload["n"] % 10 == 0:
            raise Reject("every tenth")
        return int(job.payload["n"])

    for queue in queues:
        queue.handler(handle)
        queue.enqueue_many((f"job-{n}", payload(n)) for n in range(number))
    pool = WorkerPool(queues, threads=2)
    pool.start()
    try:
        if not pool.run_until_empty(timeout=_PATIENCE_S):
            raise AssertionError("the queues were not empty in time")
        deadline = time.monotonic() + _PATIENCE_S
        while any(":gone" in key or ":jobs" in key for key in bench.stored()) and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        pool.stop()
        for queue in queues:
            queue.close()
        logging.getLogger("reliq").removeFilter(_hide)
    time.sleep(1.0)  # what has a TTL of its own, for a second at most
    left = bench.stored()
    bench.say(f"memory: left after all TTLs: {', '.join(left)}")
    return tuple(float(sum(f"{{reliq:{queue.name}}}" in key for key in left)) for queue in queues)


def _hide(_: logging.LogRecord) -> bool:
    return False
