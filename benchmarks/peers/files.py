"""File-backed queues of others, driven at the durability of an fsync.

``python -m benchmarks.peers.files PEER DIRECTORY JOBS CALLS`` runs in an environment of its own, without reliq, and
prints one JSON object of figures. What a peer has no notion of is left out.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

THREADS = 8
PAYLOAD = {"n": 0, "s": "x" * 64}


def _timed(number: int, threads: int, act: Callable[[int], object]) -> float:
    """Calls per second when ``threads`` threads share ``number`` calls."""
    trouble: list[BaseException] = []

    def run(first: int) -> None:
        try:
            for n in range(first, number, threads):
                act(n)
        except BaseException as error:
            trouble.append(error)

    workers = [threading.Thread(target=run, args=(first,)) for first in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if trouble:
        raise trouble[0]
    return number / (time.perf_counter() - began)


def _figures(jobs: int, put: Callable[[int], object], take: Callable[[], object]) -> dict[str, float]:
    found = {"enqueue": _timed(jobs, 1, put), "enqueue by threads": _timed(jobs, THREADS, put)}
    number = 2 * jobs
    began = time.perf_counter()
    for _ in range(number):
        if take() is None:
            raise AssertionError("the queue was empty too early")
    found["drain"] = number / (time.perf_counter() - began)
    return found


def _huey(kind: str, directory: str) -> Any:
    huey = importlib.import_module("huey")
    if kind == "SqliteHuey":
        return huey.SqliteHuey("peer", filename=f"{directory}/huey.db", fsync=True)
    storage: Any = importlib.import_module("huey.storage")

    @contextlib.contextmanager
    def durable(path: str, mode: str = "r") -> Iterator[Any]:
        """It never syncs; here a written file and its directory are."""
        with open(path, mode) as file:
            yield file
            if "w" in mode:
                file.flush()
                os.fsync(file.fileno())
        if "w" in mode:
            parent = os.open(os.path.dirname(path), os.O_RDONLY)
            os.fsync(parent)
            os.close(parent)

    storage.open = durable
    return huey.FileHuey("peer", path=directory)


def _task(huey: Any) -> Any:
    def handle(payload: dict[str, Any]) -> int:
        return int(payload["n"])

    return huey.task(name="handle")(handle)


def _measure_huey(kind: str, directory: str, jobs: int, calls: int) -> dict[str, float]:
    huey = _huey(kind, directory)
    handle = _task(huey)

    def take() -> object:
        task = huey.dequeue()
        if task is not None:
            huey.execute(task)
        return task

    found = _figures(jobs, lambda n: handle({**PAYLOAD, "n": n}), take)
    consumer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.files", f"{kind}:consume", directory, "0", "0"]
    )
    try:
        seconds = []
        for n in range(calls + 1):
            began = time.perf_counter()
            if handle({**PAYLOAD, "n": n + 1}).get(blocking=True, timeout=60) != n + 1:
                raise AssertionError("another result")
            seconds.append(time.perf_counter() - began)
            time.sleep(0.3)  # its consumer polls more rarely the longer it idles
    finally:
        consumer.terminate()
        consumer.wait()
    return {**found, "call": 1000 * statistics.median(seconds[1:])}


def _consume(kind: str, directory: str) -> None:
    huey = _huey(kind, directory)
    _task(huey)
    huey.create_consumer(workers=THREADS).run()


def _measure_persist_queue(directory: str, jobs: int) -> dict[str, float]:
    # Its default level of SQLite's `synchronous` is FULL.
    queue = importlib.import_module("persistqueue").SQLiteAckQueue(directory, multithreading=True)

    def take() -> object:
        item = queue.get(block=False)
        queue.ack(item)
        return item

    return _figures(jobs, lambda n: queue.put({**PAYLOAD, "n": n}), take)


def _measure_litequeue(directory: str, jobs: int) -> dict[str, float]:
    queue = importlib.import_module("litequeue").LiteQueue(f"{directory}/lite.db")
    queue.conn.execute("PRAGMA synchronous = FULL")

    def take() -> object:
        message = queue.pop()
        queue.done(message.message_id)
        return message

    return _figures(jobs, lambda n: queue.put(json.dumps({**PAYLOAD, "n": n})), take)


def main() -> None:
    """Measure one peer."""
    peer, directory, jobs, calls = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    Path(directory).mkdir(parents=True, exist_ok=True)
    if peer.endswith(":consume"):
        _consume(peer.partition(":")[0], directory)
    elif peer.endswith("Huey"):
        print(json.dumps(_measure_huey(peer, directory, jobs, calls)))
    elif peer == "persist-queue":
        print(json.dumps(_measure_persist_queue(directory, jobs)))
    else:
        print(json.dumps(_measure_litequeue(directory, jobs)))


if __name__ == "__main__":
    main()
