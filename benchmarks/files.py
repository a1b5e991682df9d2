"""How fast is a store of files, beside the disk itself and beside what else keeps jobs in files?"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reliq import Job, Queue, WorkerPool
from reliq.lifecycle import State
from reliq.message import encode
from reliq.serde import JsonSerde
from reliq.storage.base import MAX_BATCH, Outcome, Verb, Worker
from reliq.storage.sql.file import FileStorage

from . import environments
from .drain import embedded as drain_of
from .enqueue import rate_of
from .harness import Bench, Figure, directory, payload

THREADS = 8
PEERS = ("SqliteHuey", "FileHuey", "persist-queue", "litequeue")
_QUEUE = "files"
_ROOT = Path(__file__).resolve().parents[1]


def measure(bench: Bench) -> list[Figure]:
    """Everything that a store of files promises about speed; all of it durable (fsync)."""
    figures = [*_writing(bench), *_draining(bench), *_waking(bench), *_growing(bench), *_sharing(bench)]
    if bench.quick:
        bench.say("other queues: left out of the quick run")
        return figures
    return [*figures, *_peers(bench)]


# -- enqueue --------------------------------------------------------------------------


def _writing(bench: Bench) -> list[Figure]:
    number, bulk = bench.amount(4_000, 1_000), bench.amount(100_000, 20_000)

    def rates() -> dict[str, float]:
        with directory() as path, _queue(path / "queue") as queue:
            queue.enqueue("warm", payload(0))
            # Before and after, so that a disk that changes its pace is noticed by both.
            raw = [_raw(path / "raw", number // 2)]
            single = rate_of(1, number, lambda part: [queue.enqueue(f"single-{n}", payload(n)) for n in part])
            raw.append(_raw(path / "raw", number // 2))
            threads = rate_of(
                THREADS, 2 * number, lambda part: [queue.enqueue(f"threads-{n}", payload(n)) for n in part]
            )
            many = rate_of(1, bulk, lambda part: queue.enqueue_many((f"many-{n}", payload(n)) for n in part))
            queued = queue.counts()["queued"]
        if queued != 1 + 3 * number + bulk:
            raise AssertionError(f"{queued} jobs are queued")
        base = statistics.harmonic_mean(raw)
        return {"raw": base, "single": single, "share": single / base, "threads": threads,
                "gain": threads / single, "many": many}  # fmt: skip

    found = bench.repeat("files: enqueue", rates)
    return [
        Figure("raw append + fdatasync", "writes/s", found["raw"]),
        Figure("enqueue one by one, 1 thread", "jobs/s", found["single"]),
        Figure("  in raw appends", "x", found["share"], 0.8, "at least"),
        Figure(f"enqueue one by one, {THREADS} threads", "jobs/s", found["threads"]),
        Figure("  in those of 1 thread", "x", found["gain"], 2.0, "at least"),
        Figure("enqueue_many", "jobs/s", found["many"], 100_000, "at least"),
    ]


def _raw(path: Path, number: int) -> float:
    """Appends of one job's message, each followed by fdatasync."""
    message = encode(JsonSerde().dumps(payload(0)))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(number):
            os.write(descriptor, message)
            os.fdatasync(descriptor)
        return number / (time.perf_counter() - began)
    finally:
        os.close(descriptor)


# -- drain, wake-up, call ---------------------------------------------------------------


def _draining(bench: Bench) -> list[Figure]:
    def drain() -> dict[str, float]:
        with directory() as path:
            return drain_of(FileStorage(path / "queue"), bench.amount(50_000, 10_000))

    found = bench.repeat("files: drain", drain)
    return [Figure(f"drain, {THREADS} threads, results on", "jobs/s", found["pool"], 40_000, "at least")]


def _waking(bench: Bench) -> list[Figure]:
    number = bench.amount(300, 60)

    def latency() -> dict[str, float]:
        wakes, calls = [], []
        with directory() as path, _queue(path / "queue") as queue, _child("pool", path / "queue"):
            for n in range(20):
                queue.call(f"warm-{n}", payload(n))
            for n in range(number):
                sent = time.time()
                wakes.append(queue.call(f"wake-{n}", payload(n)) - sent)
                began = time.perf_counter()
                queue.call(f"call-{n}", payload(n))
                calls.append(time.perf_counter() - began)
                time.sleep(0.004)  # the worker falls asleep again
        return {"wake": 1000 * statistics.median(wakes), "call": 1000 * statistics.median(calls),
                "p99": 1000 * statistics.quantiles(calls, n=100)[98]}  # fmt: skip

    found = bench.repeat("files: wake-up and call", latency)
    return [
        Figure("wake-up of an idle worker elsewhere, p50", "ms", found["wake"], 2.0),
        Figure("call across processes, p50", "ms", found["call"], 5.0),
        Figure("call across processes, p99", "ms", found["p99"]),
    ]


# -- with many jobs queued --------------------------------------------------------------


def _growing(bench: Bench) -> list[Figure]:
    sizes = (1_000, bench.amount(100_000, 10_000), bench.amount(1_000_000, 100_000))
    found: dict[int, dict[str, tuple[float, ...]]] = {}
    with directory() as path:
        filled = 0
        for size in sizes:
            with _queue(path / "queue") as queue:
                for first in range(filled, size, 50_000):
                    queue.enqueue_many((f"job-{n}", payload(n)) for n in range(first, min(first + 50_000, size)))
            filled = size
            found[size] = bench.repeat(
                f"files: {size:,} jobs queued", lambda: _ask(_child_command("look", path / "queue"))
            )
    few, some, many = (found[size] for size in sizes)
    return [
        Figure(f"opening a directory with {sizes[2]:,} jobs", "ms", many["open"], 50.0),
        *(Figure(f"claim of one with {size:,} queued, p50", "us", found[size]["claim"]) for size in sizes),
        Figure(f"  {sizes[2]:,} in those with {sizes[0]:,}", "x", _quotient(many["claim"], few["claim"]), 1.5),
        Figure(f"resident memory, {sizes[0]:,} queued", "MB", few["memory"]),
        Figure(f"resident memory, {sizes[1]:,} queued", "MB", some["memory"]),
        Figure(f"resident memory, {sizes[2]:,} queued", "MB", many["memory"]),
        Figure("  more than with the fewest", "MB", tuple(
            a - b for a, b in zip(many["memory"], few["memory"], strict=True)
        ), 20.0),
    ]  # fmt: skip


def _quotient(above: tuple[float, ...], below: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(above, below, strict=True))


def _look(path: Path) -> dict[str, float]:
    """In a fresh process: open, claim 200 one by one, give them back."""
    began = time.perf_counter()
    storage = FileStorage(path)
    queued = storage.counts(_QUEUE)[State.QUEUED]
    opened = time.perf_counter() - began
    worker = Worker("look", str(os.getpid()), queued)  # as many runners as jobs: a claim takes one
    claims, jobs = [], []
    for serial in range(200):
        began = time.perf_counter()
        jobs += storage.claim(_QUEUE, worker, 1, serial=serial, lease_ms=600_000).jobs
        claims.append(time.perf_counter() - began)
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
    storage.settle(_QUEUE, worker, [Outcome(job.id, job.nonce, job.token, Verb.RELEASE) for job in reversed(jobs)])
    storage.leave(_QUEUE, worker.key)
    storage.close()
    memory = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return {"open": 1000 * opened, "claim": 1e6 * statistics.median(claims), "memory": memory}


# -- beside busy processes --------------------------------------------------------------


def _sharing(bench: Bench) -> list[Figure]:
    seconds = bench.amount(3, 1)

    def beside(role: str) -> float:
        # The drain gets more than it can do meanwhile.
        jobs = bench.amount(400_000, 120_000) if role == "drain" else 20_000
        with directory() as path, _queue(path / "queue") as busy:
            for first in range(0, jobs, MAX_BATCH):
                busy.enqueue_many((f"job-{n}", payload(n)) for n in range(first, first + MAX_BATCH))
            with Queue("other", busy.storage) as queue, _child(role, path / "queue"):
                until = time.monotonic() + 30
                while busy.counts()["completed"] == 0:
                    if time.monotonic() > until:
                        raise AssertionError("the other process does nothing")
                    time.sleep(0.01)
                times, end, n = [], time.monotonic() + seconds, 0
                while time.monotonic() < end:
                    began = time.perf_counter()
                    queue.enqueue(f"mine-{n}", payload(n))
                    times.append(time.perf_counter() - began)
                    n += 1
                    time.sleep(0.001)
                left = busy.counts()["queued"]
        if not left:
            raise AssertionError(f"the other process ({role}) had nothing left to do before the end")
        return 1000 * statistics.quantiles(times, n=100)[98]

    drained = bench.repeat("files: enqueue beside a drain", lambda: {"p99": beside("drain")})
    spun = bench.repeat("files: enqueue beside busy handlers", lambda: {"p99": beside("spin")})
    return [
        Figure("enqueue beside a process that drains, p99", "ms", drained["p99"], 50.0),
        Figure(f"enqueue beside {THREADS} CPU-bound handlers, p99", "ms", spun["p99"], 50.0),
    ]


# -- other queues -------------------------------------------------------------------------


def _peers(bench: Bench) -> list[Figure]:
    """The same questions to others; one that cannot be asked is said, as a figure without a value."""
    try:
        python = environments.python("files", bench.say)
    except environments.EnvironmentUnavailableError as error:
        return [Figure(peer, "", (), note=f"FAILED: {error}") for peer in PEERS]
    figures = []
    for peer in PEERS:

        def ask(peer: str = peer) -> dict[str, float]:
            with directory() as path:
                return _ask(
                    [
                        *python,
                        "-m",
                        "benchmarks.peers.files",
                        peer,
                        str(path / "peer"),
                        str(bench.amount(1_000, 500)),
                        "5",
                    ]
                )

        try:
            found = bench.repeat(peer, ask)
        except subprocess.CalledProcessError as error:
            lines = (error.stderr or str(error)).strip().splitlines()
            bench.say(f"{peer}: FAILED, {lines[-1]}")
            figures.append(Figure(peer, "", (), note=f"FAILED: {lines[-1]}"))
            continue
        names = {"enqueue": "jobs/s", "enqueue by threads": "jobs/s", "drain": "jobs/s", "call": "ms"}
        labels = {"enqueue by threads": f"enqueue, {THREADS} threads", "call": "call across processes, p50"}
        figures += [Figure(f"{peer}: {labels.get(name, name)}", names[name], values) for name, values in found.items()]
    return figures


# -- processes ----------------------------------------------------------------------------


@contextmanager
def _queue(path: Path) -> Iterator[Queue]:
    storage = FileStorage(path)
    try:
        with Queue(_QUEUE, storage) as queue:
            yield queue
    finally:
        storage.close()


def _child_command(role: str, path: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.files", role, str(path)]


@contextmanager
def _child(role: str, path: Path) -> Iterator[None]:
    process = subprocess.Popen(_child_command(role, path), cwd=_ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _ask(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _pool(path: Path, handler: Callable[[Job], Any]) -> None:
    queue = Queue(_QUEUE, FileStorage(path))
    queue.handler(handler)
    WorkerPool(queue, threads=THREADS).run_forever()


def _spin(_: Job) -> int:
    """50 ms of Python."""
    end, n = time.thread_time() + 0.05, 0
    while time.thread_time() < end:
        n = sum(range(n % 7, 200))
    return n


def main() -> None:
    """``python -m benchmarks.files ROLE DIRECTORY``: one of the other processes."""
    role, path = sys.argv[1], Path(sys.argv[2])
    if role == "look":
        print(json.dumps(_look(path)))
    elif role == "pool":
        _pool(path, lambda _: time.time())
    elif role == "drain":
        _pool(path, lambda job: int(job.payload["n"]))
    else:
        _pool(path, _spin)


if __name__ == "__main__":
    main()
