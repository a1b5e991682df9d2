"""A call by the bare scripts: what ``call`` cannot be faster than. ``python -m benchmarks.bare_call URL`` answers it.

Enqueue with a reply list, block on it; on the other side block on the doorbell, claim one, settle it. The same
scripts as the library, the commands built beforehand, one pinned connection for each thread, nothing kept account of.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reliq import JsonSerde
from reliq.message import encode
from reliq.storage.base import Outcome, Verb, Worker
from reliq.storage.redis.keys import queue_tag

from .harness import Bare, Bench, payload
from .replay import Commands, claimed_ids, record

_QUEUE = "bare"
_RUNNERS = 8
_WAIT_MS = 60_000


def bare_calls(bench: Bench, seconds: float, callers: int) -> dict[str, float]:
    """p50 and p99 (ms) of one caller, calls/s of many."""
    bench.empty()
    with bench.storage() as storage:  # the scripts get loaded
        storage.enqueue("warm", [record("warm", bytes(8), b"")])
        worker = Worker("warm", "0")
        for job in storage.claim("warm", worker, 1, serial=1, lease_ms=60_000).jobs:
            storage.settle("warm", worker, [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE, result=b"0")])
    most = bench.amount(20_000, 5_000)
    commands, serde = Commands(_QUEUE), JsonSerde()
    tag = queue_tag("reliq", _QUEUE)
    built = [
        (
            commands.enqueue(record(str(n), _nonce(n), encode(serde.dumps(payload(n)))), f"reply-{n}", _WAIT_MS),
            ("BLPOP", f"{tag}:reply:reply-{n}", "60"),
        )
        for n in range(most)
    ]
    numbers, lock = itertools.count(), threading.Lock()

    def caller(until: float, each: list[float]) -> None:
        link = Bare(bench.server.url)
        try:
            while time.perf_counter() < until:
                with lock:
                    n = next(numbers)
                if n >= most:
                    return
                began = time.perf_counter()
                link.ask(built[n][0])
                reply = link.ask(built[n][1])
                each.append(time.perf_counter() - began)
                if reply is None or reply[1][9:] != str(n).encode():
                    raise AssertionError(f"call {n} was answered {reply}")
        finally:
            link.close()

    def callers_for(seconds: float, callers: int) -> tuple[list[float], float]:
        each: list[float] = []
        began = time.perf_counter()
        threads = [threading.Thread(target=caller, args=(began + seconds, each)) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(each), time.perf_counter() - began

    with _answering(bench.server.url, most):
        callers_for(seconds, callers)  # all is warm
        one, _ = callers_for(seconds, 1)
        many, took = callers_for(seconds, callers)
    return {"p50": 1000 * one[len(one) // 2], "p99": 1000 * one[len(one) * 99 // 100], "rate": len(many) / took}


def _nonce(number: int) -> bytes:
    return number.to_bytes(8)


@contextmanager
def _answering(url: str, most: int) -> Iterator[None]:
    root = Path(__file__).resolve().parents[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bare_call", url, str(most)],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
        yield
    finally:
        process.kill()
        process.communicate()


def _answer(url: str, most: int, ready: threading.Barrier) -> None:
    worker, commands = Worker("bare", "0", _RUNNERS), Commands(_QUEUE)
    outcomes = [Outcome(str(n), _nonce(n), 1, Verb.COMPLETE, result=str(n).encode()) for n in range(most)]
    head, parts = commands.settle_parts(worker, outcomes)
    claim = commands.claim(worker, 1)
    bell = ("BLPOP", f"{queue_tag('reliq', _QUEUE)}:wake", "60")
    link = Bare(url)
    ready.wait()
    while True:
        for id in claimed_ids(link.ask(claim)) or [b""]:
            if id:
                link.ask((*head, *parts[id]))
            else:
                link.ask(bell)


def main() -> None:
    """Until it is killed, or its stdin ends."""
    ready = threading.Barrier(_RUNNERS + 1)
    for _ in range(_RUNNERS):
        threading.Thread(target=_answer, args=(sys.argv[1], int(sys.argv[2]), ready), daemon=True).start()
    ready.wait()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
