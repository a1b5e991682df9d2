"""``reliq bench``: how fast is reliq on this storage, from this machine?"""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ReliqError
from ..hooks import Run
from ..identity import unique_name
from ..queue import Queue
from ..storage.base import MAX_BATCH, Storage
from ..worker.pool import WorkerPool
from .common import EXIT_OK, CommandError, UsageError, add_command, at_least_one
from .output import Column, add_json, note, progress, write_json, write_table
from .targets import add_place, open_place

if TYPE_CHECKING:
    from argparse import _SubParsersAction

#: No storage holds a queue of users by such a name.
PREFIX = "reliq-bench-"
#: What goes one by one ends after so long: a slow disk would take minutes for it.
STEP_SECONDS = 5.0
MAX_CALLS = 2_000
#: Nothing for so long: the storage does not work off jobs.
_PATIENCE_S = 60.0
_PAYLOAD = {"n": 1, "s": "x" * 64}

_EPILOG = f"""\
Enqueues jobs that do nothing to a queue of its own, `{PREFIX}...`, one by one and in bulk, works them off, and calls
some, one after the other. It is deleted afterwards, also on Ctrl-C. No other queue is touched, but whoever uses the
same server or disk meanwhile is slowed down. What goes one by one ends after {STEP_SECONDS:g} s.

examples:
  reliq bench --url redis://localhost:6379/0
  reliq bench --url file:///var/lib/app/queue --jobs 2000 --threads 4
  reliq bench --url memory:// --json                  what is left without any storage behind it

exit codes: 0 measured, 1 storage trouble, 2 wrong usage, 130 ended by Ctrl-C
"""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure. ``p50_seconds`` and ``p99_seconds`` of what has a latency, else None."""

    measure: str
    jobs: int
    seconds: float
    jobs_per_second: float
    p50_seconds: float | None = None
    p99_seconds: float | None = None


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "bench", run, help="measure the storage: enqueue, work off, call",
        description="Measure how fast reliq is on a storage, from this machine.", epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("--jobs", type=at_least_one, default=10_000, metavar="N", help="jobs per step (default: 10000)")
    parser.add_argument(
        "-t", "--threads", type=at_least_one, default=8, metavar="N", help="threads of the worker (default: 8)"
    )
    add_json(parser)
    add_place(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, and leave nothing behind."""
    with open_place(args, may_create=True, may_be_memory=True) as place, _terminable():
        if len(place.storages) != 1:
            urls = ", ".join(storage.url for storage in place.storages)
            raise UsageError(f"the application's queues are on several storages, {urls}: name one with --url")
        found = _measure_all(place.storages[0], args.jobs, args.threads)
    if args.json:
        for measure in found:
            write_json(measure)
    else:
        write_table(found, _COLUMNS, "")
    return EXIT_OK


def _measure_all(storage: Storage, jobs: int, threads: int) -> list[Measure]:
    with _throw_away(storage) as queue:
        note(
            f"{storage.url}: {jobs} jobs, {threads} threads, on the queue {queue.name}, which is deleted afterwards; "
            "no other queue is touched"
        )
        with progress("measuring") as tell:
            tell("enqueue one by one")
            single = _each("enqueue", jobs, lambda: queue.enqueue(None, _PAYLOAD))
            tell("enqueue in bulk")
            bulk = _bulk(queue, jobs)
            tell("work off")
            pool, drain = _drain(queue, threads, single.jobs + jobs)
            with pool:
                worked_off = drain()
                tell("call")
                called = _each("call", min(jobs, MAX_CALLS), lambda: queue.call(None, _PAYLOAD))
        return [single, bulk, worked_off, called]


@contextlib.contextmanager
def _throw_away(storage: Storage) -> Iterator[Queue]:
    # What is left of one that could not be deleted expires soon.
    queue = Queue(f"{PREFIX}{unique_name(8)}", storage, result_ttl=600.0, dead_ttl=600.0)
    queue.handler(lambda job: job.payload["n"])
    try:
        yield queue
    finally:
        try:
            queue.delete()
        except ReliqError as error:
            note(f"the queue {queue.name} could not be deleted (reliq delete {queue.name}): {error}")


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, so that the queue is deleted."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _each(name: str, number: int, do: Callable[[], Any]) -> Measure:
    """One after the other, for so long at most."""
    took: list[float] = []
    began = now = time.perf_counter()
    while len(took) < number and now - began < STEP_SECONDS:
        before = now
        do()
        now = time.perf_counter()
        took.append(now - before)
    took.sort()
    p50, p99 = (took[int(len(took) * part)] for part in (0.5, 0.99))
    return _measure(name, len(took), now - began, p50, p99)


def _bulk(queue: Queue, jobs: int) -> Measure:
    began = time.perf_counter()
    for first in range(0, jobs, MAX_BATCH):
        queue.enqueue_many([(None, _PAYLOAD)] * min(MAX_BATCH, jobs - first))
    return _measure("enqueue_many", jobs, time.perf_counter() - began)


def _drain(queue: Queue, threads: int, jobs: int) -> tuple[WorkerPool, Callable[[], Measure]]:
    """A pool, not started, and what waits until it has worked off so many jobs."""
    pool = WorkerPool(queue, threads=threads)
    lock = threading.Lock()
    moved, began = threading.Event(), time.perf_counter()
    completed, ended = 0, 0.0

    def count(_: str, runs: Sequence[Run]) -> None:
        nonlocal completed, ended
        with lock:
            completed += sum(run.outcome == "completed" for run in runs)
            ended = time.perf_counter()
        moved.set()

    off = pool.observe(count)

    def wait() -> Measure:
        while completed < jobs:
            if not moved.wait(_PATIENCE_S):
                raise CommandError(f"no job was worked off for {_PATIENCE_S:g} s, after {completed} of {jobs}")
            moved.clear()
        off()
        return _measure("drain", jobs, ended - began)

    return pool, wait


def _measure(name: str, jobs: int, seconds: float, p50: float | None = None, p99: float | None = None) -> Measure:
    return Measure(name, jobs, seconds, jobs / seconds, p50, p99)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.2f}"


_COLUMNS = [
    Column("MEASURE", lambda measure: measure.measure),
    Column("JOBS", lambda measure: measure.jobs, True),
    Column("JOBS/S", lambda measure: f"{measure.jobs_per_second:,.0f}", True),
    Column("P50 MS", lambda measure: _ms(measure.p50_seconds), True),
    Column("P99 MS", lambda measure: _ms(measure.p99_seconds), True),
]
