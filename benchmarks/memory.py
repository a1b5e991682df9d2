"""How much memory do jobs take in the server and in the worker, and what is left when every TTL has run out?"""

from __future__ import annotations

import logging
import time

from reliq import Job, Queue, Reject, WorkerPool

from .contest import Contestant, Peer, contest, working
from .harness import Bench, Figure, payload

_PATIENCE_S = 15.0


def measure(bench: Bench) -> list[Figure]:
    """Side by side; what is left, of reliq."""
    found = contest(bench, "memory", lambda contestant: _ask(bench, contestant))
    left = bench.repeat("what is left", lambda: {"keys": float(_left(bench))})
    return [
        *found.figures("job", "server, per queued job with payload", "bytes"),
        *found.lead("job", "the leanest with ids", has_ids, 1.0, less=True),
        *found.figures("worker", "worker after a drain, resident", "MB"),
        *found.figures("more", "  more after another drain, per job", "bytes"),
        Figure("keys left after all TTLs, but the registry", "keys", left["keys"], 0.0),
    ]


def has_ids(peer: Peer) -> bool:
    """Who else deduplicates by ids that the caller chooses."""
    return peer.name == "platformatic"


def _ask(bench: Bench, contestant: Contestant) -> dict[str, float]:
    number = bench.amount(20_000, 5_000)
    contestant.clear(1)
    contestant.fill(100, number)
    before = bench.used_memory()
    contestant.fill(number)
    found = {"job": (bench.used_memory() - before) / number}
    bench.empty()
    part = min(contestant.number(bench.seconds(1.0, 0.3)), number)
    with working(contestant, 2 * part) as first:
        sizes = []
        for begin in (first, first + part):
            contestant.fill(part, begin)
            contestant.wait(begin, part)
            sizes.append(contestant.memory())
        contestant.check(first + 2 * part)
    return {**found, "worker": sizes[0] / 1e6, "more": (sizes[1] - sizes[0]) / part}


def _left(bench: Bench) -> int:
    """Completed and failed jobs with short TTLs, and an idle pool that cleans up after them."""
    number = bench.amount(1_000, 300)
    logging.getLogger("reliq").addFilter(_hide)  # each dead letter comes with its traceback
    with Queue("left", bench.server.url, result_ttl=0.5, dead_ttl=0.5, max_attempts=1) as queue:

        @queue.handler
        def handle(job: Job) -> int:
            if job.payload["n"] % 10 == 0:
                raise Reject("every tenth")
            return int(job.payload["n"])

        queue.enqueue_many((f"job-{n}", payload(n)) for n in range(number))
        pool = WorkerPool(queue, threads=2)
        pool.start()
        try:
            if not pool.run_until_empty(timeout=_PATIENCE_S):
                raise AssertionError("the queue was not empty in time")
            deadline = time.monotonic() + _PATIENCE_S
            while _stored(bench) and any(queue.counts().values()) and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            pool.stop()
    time.sleep(1.0)  # what has a TTL of its own, for a second at most
    logging.getLogger("reliq").removeFilter(_hide)
    if left := _stored(bench):
        bench.say(f"what is left: {', '.join(left)}")
    return len(left)


def _hide(_: logging.LogRecord) -> bool:
    return False


def _stored(bench: Bench) -> list[str]:
    return [key for key in bench.stored() if key != "reliq:queues"]
