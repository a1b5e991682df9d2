"""How does the cost grow: with jobs queued, with queues, with idle workers, with the size of payloads?"""

from __future__ import annotations

import secrets
import time
from typing import Any

from reliq import JsonSerde
from reliq.message import encode
from reliq.storage.base import MAX_BATCH, Claimed, Outcome, Verb, Worker
from reliq.storage.redis.storage import RedisStorage

from .contest import THREADS, Contestant, contest, nobody
from .harness import Bench, Figure, payload
from .replay import record

#: Server time per job with the most jobs queued, in that with the fewest.
FLAT = 1.2
#: Commands per second and idle thread.
IDLE = 1.0
_QUEUE = "growth"
_BATCH = 100
_WORKER = Worker("growth", "0")
_serde = JsonSerde()


def measure(bench: Bench) -> list[Figure]:
    """One after the other."""
    figures = [*_queued(bench), *_payloads(bench)]
    if bench.quick:
        bench.say("growth: many queues and idle workers are left out of the quick run")
        return figures
    return [*figures, *_queues(bench), *_idle(bench)]


# -- jobs queued ------------------------------------------------------------------------


def _queued(bench: Bench) -> list[Figure]:
    sizes = (1_000, 10_000, 100_000) if bench.quick else (1_000, 10_000, 100_000, 1_000_000)
    found: dict[int, dict[str, tuple[float, ...]]] = {}
    bench.empty()
    with bench.storage() as storage:
        filled = 0
        for size in sizes:
            _fill(storage, filled, size)
            filled = size
            costs = bench.repeat(f"growth: {size:,} queued", lambda: _costs(bench, storage), on_empty=False)
            found[size] = costs
    bench.empty()
    figures = []
    for step in ("enqueue", "claim", "settle"):
        few, many = found[sizes[0]][step], found[sizes[-1]][step]
        figures += [Figure(f"{step}, {size:,} queued", "us/job", found[size][step]) for size in sizes]
        quotient = tuple(above / below for above, below in zip(many, few, strict=True))
        figures.append(Figure(f"  {sizes[-1]:,} in terms of {sizes[0]:,}", "x", quotient, FLAT))
    return figures


def _fill(storage: RedisStorage, first: int, end: int) -> None:
    for at in range(first, end, MAX_BATCH):
        numbers = range(at, min(at + MAX_BATCH, end))
        storage.enqueue(_QUEUE, [_record(f"job-{n}", n) for n in numbers])


def _record(id: str, number: int) -> Any:
    return record(id, secrets.token_bytes(8), encode(_serde.dumps(payload(number))))


def _costs(bench: Bench, storage: RedisStorage) -> dict[str, float]:
    """Server microseconds per job of as many enqueues, claims and settles: so many stay queued."""
    number, mark = bench.amount(4_000, 2_000), secrets.token_hex(4)
    costs = {}
    before, _ = bench.script_usec()
    for at in range(0, number, _BATCH):
        storage.enqueue(_QUEUE, [_record(f"{mark}-{at + n}", n) for n in range(_BATCH)])
    costs["enqueue"], before = (bench.script_usec()[0] - before) / number, bench.script_usec()[0]
    claimed: list[Claimed] = []
    while len(claimed) < number:
        limit = min(_BATCH, number - len(claimed))
        claimed += storage.claim(_QUEUE, _WORKER, limit, serial=len(claimed) + 1, lease_ms=600_000).jobs
    costs["claim"], before = (bench.script_usec()[0] - before) / number, bench.script_usec()[0]
    for at in range(0, number, _BATCH):
        chunk = [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE, result=b"0") for job in claimed[at : at + _BATCH]]
        if any(answer.is_lost for answer in storage.settle(_QUEUE, _WORKER, chunk)):
            raise AssertionError("a lease was lost")
    costs["settle"] = (bench.script_usec()[0] - before) / number
    return costs


# -- queues, idle workers, payloads -------------------------------------------------------


def _queues(bench: Bench) -> list[Figure]:
    figures = []
    for queues in (1, 8, 64):
        found = contest(
            bench, f"growth: {queues} queues", lambda one: {"rate": _drain(bench, one)}, nobody, queues=queues
        )
        figures += found.figures("rate", f"drain of {queues} queues by one worker", "jobs/s")
    return figures


def _drain(bench: Bench, contestant: Contestant) -> float:
    number = contestant.number(bench.seconds(0.5, 0.25))
    contestant.clear(number)
    contestant.fill(number)
    contestant.start_workers()
    try:
        began, ended = contestant.wait(0, number)
        contestant.check(number)
    finally:
        contestant.stop_workers()
    return number / (max(ended) - min(began))


def _idle(bench: Bench) -> list[Figure]:
    found = contest(bench, "growth: idle worker", lambda one: _load(bench, one, 1), nobody)
    figures = found.figures("load", "an idle worker", "cmds/s", IDLE * THREADS, less=True)
    for workers in (8, 32):
        many = contest(bench, f"growth: {workers} idle", lambda one, n=workers: _load(bench, one, n), nobody)  # type: ignore[misc]
        label = f"{workers} idle workers"
        figures += many.figures("load", label, "cmds/s", IDLE * THREADS * workers, less=True)
    return figures


def _load(bench: Bench, contestant: Contestant, workers: int) -> dict[str, float]:
    seconds = bench.seconds(2.0, 1.0)
    contestant.clear(1)
    contestant.start_workers(workers)
    try:
        bench.await_steady(workers)
        before = bench.requests()
        time.sleep(seconds)
        return {"load": max(0, bench.requests() - before - 1) / seconds}  # one is the look itself
    finally:
        contestant.stop_workers()


def _payloads(bench: Bench) -> list[Figure]:
    figures = []
    for size in (100_000,) if bench.quick else (100, 1_000, 10_000, 100_000, 1_000_000):
        found = contest(bench, f"growth: {size:,} bytes", lambda one, size=size: _sized(bench, one, size), nobody)  # type: ignore[misc]
        figures += found.figures("enqueue", f"enqueue one by one, payload of {size:,} B", "jobs/s")
        figures += found.figures("drain", f"drain, payload of {size:,} B", "jobs/s")
    return figures


def _sized(bench: Bench, contestant: Contestant, size: int) -> dict[str, float]:
    number = min(bench.amount(4_000, 1_000), bench.amount(60_000_000, 20_000_000) // size)
    contestant.clear(number)
    answer = contestant.enqueue(number, size=size)
    contestant.start_workers()
    try:
        began, ended = contestant.wait(0, number)
        contestant.check(number)
    finally:
        contestant.stop_workers()
    return {"enqueue": number / answer["seconds"], "drain": number / (max(ended) - min(began))}
