"""How fast does one process work off no-op jobs, and how much of what the scripts allow is that?"""

from __future__ import annotations

import gc
import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from reliq import Job, JsonSerde, Queue, WorkerPool
from reliq.lifecycle import State
from reliq.message import encode
from reliq.storage.base import MAX_BATCH, Claim, NewRecord, Outcome, Storage, Verb, Worker

from .contest import Contestant, Peer, contest, is_bullmq, is_python
from .harness import Bare, Bench, Figure, directory, payload
from .replay import Command, Commands, claimed_ids, record

THREADS = 8
SHARE = 65.0
#: Beside the fastest peer of the same language, and beside bullmq.
LEAD_PYTHON = 10.0
LEAD_BULLMQ = 3.0
_QUEUE = "drain"
_PATIENCE_S = 120.0
_serde = JsonSerde()


def measure(bench: Bench) -> list[Figure]:
    """Drain with results on Redis, beside a raw replay; then on the embedded storages; then side by side."""
    found = bench.repeat("drain on Redis", lambda: _redis(bench))
    figures = [
        Figure(f"drain, {THREADS} threads, results on", "jobs/s", found["pool"]),
        Figure("  mean batch of its claims", "jobs", found["batch"]),
        Figure("  raw replay of the same scripts and batches", "jobs/s", found["raw"]),
        Figure("  drain as a share of the replay", "%", found["share"], SHARE, "at least"),
    ]
    for name, measure_one in (("memory", _memory), ("file", _file)):
        try:
            values = bench.repeat(f"drain on {name}", lambda one=measure_one: one(bench))  # type: ignore[misc]
        except ImportError as error:
            bench.say(f"drain on {name}: left out, {error}")
            continue
        figures.append(Figure(f"drain on {name} storage", "jobs/s", values["pool"]))
    # reliq alone has been measured above.
    return [*figures, *_peers(bench)] if bench.peers else figures


def _peers(bench: Bench) -> list[Figure]:
    found = contest(bench, "drain", lambda contestant: {"rate": _ask(bench, contestant)})
    figures = [
        *found.figures("rate", "drain by one worker", "jobs/s"),
        *found.lead("rate", "the fastest in Python", is_python, LEAD_PYTHON),
        *found.lead("rate", "bullmq", is_bullmq, LEAD_BULLMQ),
    ]

    def has_choice(peer: Peer) -> bool:
        return peer.has_results_off

    off = contest(bench, "drain, results off", lambda one: {"rate": _ask(bench, one, False)}, has_choice, results=False)
    return [*figures, *off.figures("rate", "drain, results off", "jobs/s")[1:]]  # reliq keeps them


def _ask(bench: Bench, contestant: Contestant, has_results: bool = True) -> float:
    """Jobs/s from the start of the first handler to the end of the last, of jobs queued before the worker starts."""
    number = contestant.number(bench.seconds(0.8, 0.4))
    contestant.clear(number)
    contestant.fill(number)
    contestant.start_workers()
    try:
        began, ended = contestant.wait(0, number)
        if has_results:
            contestant.check(number)
    finally:
        contestant.stop_workers()
    return number / (max(ended) - min(began))


def _redis(bench: Bench) -> dict[str, float]:
    jobs = jobs_of(bench.amount(50_000, 8_000))
    limits: list[int] = []
    with bench.storage() as storage:
        preload(storage, jobs)
        claims, claim = [0], storage.claim

        def counted(queue: str, worker: Worker, limit: int, **more: Any) -> Claim:
            answer = claim(queue, worker, limit, **more)
            if answer.jobs:
                claims[0] += 1  # a lost update changes the mean by a ten-thousandth
                limits.append(limit)
            return answer

        storage.claim = counted  # type: ignore[method-assign]
        pool = len(jobs) / drain_of(storage, jobs)
    bench.empty()
    with bench.storage() as storage:
        preload(storage, jobs)
        raw = len(jobs) / _replay(bench.server.url, storage, jobs, limits)
    return {"pool": pool, "raw": raw, "share": 100 * pool / raw, "batch": len(jobs) / claims[0]}


def _memory(bench: Bench) -> dict[str, float]:
    from reliq.storage.sql.memory import MemoryStorage

    return embedded(MemoryStorage(), bench.amount(50_000, 6_000))


def _file(bench: Bench) -> dict[str, float]:
    from reliq.storage.sql.file import FileStorage

    with directory() as path:
        return embedded(FileStorage(path / "queue"), bench.amount(50_000, 6_000))


def embedded(storage: Storage, number: int) -> dict[str, float]:
    try:
        jobs = jobs_of(number)
        preload(storage, jobs)
        return {"pool": number / drain_of(storage, jobs)}
    finally:
        storage.close()


def jobs_of(number: int, headers: Callable[[int], dict[str, str]] | None = None) -> list[NewRecord]:
    """Jobs that return their number; ``headers(n)`` are those of each."""
    return [
        record(f"job-{n}", secrets.token_bytes(8), encode(_serde.dumps(payload(n)), headers(n) if headers else None))
        for n in range(number)
    ]


def preload(storage: Storage, jobs: list[NewRecord]) -> None:
    for first in range(0, len(jobs), MAX_BATCH):
        storage.enqueue(_QUEUE, jobs[first : first + MAX_BATCH])


def drain_of(
    storage: Storage, jobs: list[NewRecord], prepare: Callable[[Queue, WorkerPool], object] | None = None
) -> float:
    """Seconds from the start of the pool to the last settle. ``prepare`` is given both before the pool starts."""
    queue = Queue(_QUEUE, storage)

    @queue.handler
    def handle(job: Job) -> int:
        return int(job.payload["n"])

    pool = WorkerPool(queue, threads=THREADS)
    if prepare is not None:
        prepare(queue, pool)
    with _out_of_the_way():
        began = time.time()
        pool.start()
        is_empty = pool.run_until_empty(timeout=_PATIENCE_S)
        pool.stop()
    if not is_empty:
        raise AssertionError(f"the queue was not empty after {_PATIENCE_S:g} s: {queue.counts()}")
    return _check(storage, jobs) - began


@contextmanager
def _out_of_the_way() -> Iterator[None]:
    """Objects of the benchmark, which a worker would not have, are no burden to the garbage collector meanwhile."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _replay(url: str, storage: Storage, jobs: list[NewRecord], limits: list[int]) -> float:
    """The same claims and settles by a bare loop: nothing is decoded, run, encoded or kept account of."""
    worker = Worker("replay", "0", THREADS)
    commands = Commands(_QUEUE)
    head, parts = commands.settle_parts(
        worker, [Outcome(job.id, job.nonce, 1, Verb.COMPLETE, result=str(n).encode()) for n, job in enumerate(jobs)]
    )
    claims: dict[int, Command] = {limit: commands.claim(worker, limit) for limit in set(limits)}
    todo = deque(limits)
    barrier = threading.Barrier(THREADS + 1)
    trouble: list[BaseException] = []

    def loop() -> None:
        link = Bare(url)
        try:
            barrier.wait()
            while True:
                try:
                    limit = todo.popleft()
                except IndexError:
                    limit = limits[-1]
                ids = claimed_ids(link.ask(claims[limit]))
                if not ids:
                    return
                link.ask((*head, *itertools.chain.from_iterable([parts[id] for id in ids])))
        except BaseException as error:
            trouble.append(error)
        finally:
            link.close()

    threads = [threading.Thread(target=loop) for _ in range(THREADS)]
    with _out_of_the_way():
        for thread in threads:
            thread.start()
        barrier.wait()
        began = time.time()
        for thread in threads:
            thread.join()
    if trouble:
        raise trouble[0]
    return _check(storage, jobs) - began


def _check(storage: Storage, jobs: list[NewRecord]) -> float:
    """Every job must have its own result; when the last one ended, by the storage's clock."""
    last_ms = 0
    for first in range(0, len(jobs), MAX_BATCH):
        ids = [job.id for job in jobs[first : first + MAX_BATCH]]
        for n, snapshot in enumerate(storage.read(_QUEUE, ids), first):
            expected = (State.COMPLETED, str(n).encode(), 1)
            if (snapshot.state, snapshot.result, snapshot.attempts) != expected:
                raise AssertionError(f"expected {expected}, found {snapshot}")
            last_ms = max(last_ms, snapshot.updated_at_ms)
    return last_ms / 1000
