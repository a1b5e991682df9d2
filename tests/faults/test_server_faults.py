"""A server that restarts, forgets its scripts, drops its connections, stands still or fails over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from reliq import (
    CallTimeoutError,
    OutcomeUnknownError,
    Queue,
    StorageError,
    StorageUnavailableError,
    WorkerPool,
)
from reliq.storage.redis.scripts import script
from reliq.storage.redis.storage import RedisStorage

from ..servers import RedisServer, sentinels
from .support import Bench, blocked, info, never, until


class Producer:
    """Threads that enqueue ever new ids, and try each until it is acknowledged. ``acknowledged`` lists them."""

    def __init__(self, q: Queue, name: str, threads: int = 2, pause: float = 0.0005) -> None:
        self._q = q
        self._name = name
        self._pause = pause
        self._stop = threading.Event()
        self.acknowledged: list[str] = []
        self.errors: list[StorageError] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def _run(self, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            id = f"{self._name}-{number}-{count}"
            try:
                self._q.enqueue(id, {"seconds": 0.001})
            except StorageError as error:
                self.errors.append(error)
                self._stop.wait(0.01)
                continue
            self.acknowledged.append(id)
            count += 1
            self._stop.wait(self._pause)

    def wait_for_more(self, count: int) -> None:
        """Wait until ``count`` more are acknowledged."""
        had = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > had + count)

    def __enter__(self) -> Producer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def _repeatedly(step: Callable[[], Any], interval: float) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(interval):
            step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _lost(bench: Bench, producer: Producer, timeout: float = 60.0) -> set[str]:
    """Which acknowledged jobs never ran, once nothing is left to run."""

    def is_idle() -> bool:
        try:
            counts = bench.queue.counts()
        except StorageError:
            return False
        return not any(counts[state] for state in ("queued", "processing", "failing"))

    until(is_idle, timeout, "the end of the work")
    return set(producer.acknowledged) - set(bench.runs("end"))


# -- restarts -------------------------------------------------------------------------


def _restart_under_load(bench: Bench) -> set[str]:
    with bench.worker(threads=2), Producer(bench.queue, "job") as producer:
        for _ in range(2):
            producer.wait_for_more(300)
            bench.server.restart()
        producer.wait_for_more(100)
        producer.__exit__()
        return _lost(bench, producer)


def test_a_restart_of_the_server_under_load_loses_nothing(tmp_path: Path) -> None:
    with RedisServer(args=("--appendonly", "yes")) as server, Bench(server, tmp_path) as bench:
        assert _restart_under_load(bench) == set()


def test_control_a_server_that_keeps_nothing_loses_jobs_and_it_shows(tmp_path: Path) -> None:
    with RedisServer() as server, Bench(server, tmp_path) as bench:
        assert _restart_under_load(bench)


# -- scripts and connections ----------------------------------------------------------


def test_script_flush_under_load_goes_unnoticed(bench: Bench) -> None:
    with bench.worker(threads=4, prefetch=1), Producer(bench.queue, "job") as producer:
        with _repeatedly(lambda: bench.server.command("SCRIPT", "FLUSH"), 0.003):
            until(lambda: len(producer.acknowledged) > 1500)
        producer.__exit__()
        assert _lost(bench, producer) == set()
    assert producer.errors == []
    assert max(bench.runs().values()) == 1
    # The control: the fault did happen, many times.
    misses = info(bench.server, "errorstats").get("errorstat_NOSCRIPT", "count=0")
    assert int(misses.partition("=")[2]) > 20, misses


def test_control_a_flushed_script_is_unknown_by_its_hash(bench: Bench) -> None:
    bench.queue.enqueue("a")
    bench.server.command("SCRIPT", "FLUSH")
    with pytest.raises(redis.exceptions.NoScriptError):
        bench.storage._client.link.execute("EVALSHA", script("enqueue").sha, 1, bench.tag(), 0)


def _killed_connections(bench: Bench) -> tuple[Producer, int]:
    kills = []

    def kill() -> None:
        kills.append(int(str(bench.server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))))

    with bench.worker(threads=2), Producer(bench.queue, "job") as producer:
        with _repeatedly(kill, 0.05):
            until(lambda: len(producer.acknowledged) + 50 * len(producer.errors) > 1500)
        producer.__exit__()
        assert _lost(bench, producer) == set()
    return producer, sum(kills)


def test_client_kill_under_load_loses_nothing(bench: Bench) -> None:
    producer, killed = _killed_connections(bench)
    assert killed > 50
    assert producer.errors == []


def test_control_without_repeating_killed_connections_are_errors(bench: Bench) -> None:
    bench.storage._client.repeat_for = 1e-9
    producer, _ = _killed_connections(bench)
    assert producer.errors
    assert all(isinstance(error, OutcomeUnknownError | StorageUnavailableError) for error in producer.errors)


# -- a server that stands still -------------------------------------------------------


def _pause_once_somebody_blocks(server: RedisServer) -> None:
    until(lambda: blocked(server))
    server.pause()


@pytest.mark.parametrize("when", ["before", "while_waiting"])
@pytest.mark.parametrize("timeout", [1.0, 7.0])
def test_i37_a_call_to_a_server_that_stands_still_ends_by_its_deadline(bench: Bench, when: str, timeout: float) -> None:
    bench.queue.enqueue("warm")
    if when == "before":
        bench.server.pause()
        pauser = None
    else:
        pauser = threading.Thread(target=_pause_once_somebody_blocks, args=(bench.server,))
        pauser.start()
    began = time.monotonic()
    try:
        with pytest.raises(CallTimeoutError) as caught:
            bench.queue.call("job", timeout=timeout)
        took = time.monotonic() - began
    finally:
        bench.server.resume()
        if pauser is not None:
            pauser.join()
    # The server's failure is the error's cause.
    assert isinstance(caught.value.__cause__, StorageError)
    assert timeout * 0.9 <= took <= timeout + 1.0, took


def test_control_a_server_that_goes_on_in_time_answers_the_call(bench: Bench) -> None:
    with bench.worker():
        bench.queue.call("warm")
        bench.server.pause()
        with _resuming(bench.server, 1.0):
            assert bench.queue.call("job", timeout=8.0) == "job"
    assert bench.runs()["job"] == 1


@contextmanager
def _resuming(server: RedisServer, after: float) -> Iterator[None]:
    timer = threading.Timer(after, server.resume)
    timer.start()
    try:
        yield
    finally:
        timer.join()


# -- failover -------------------------------------------------------------------------


def test_work_goes_on_after_a_sentinel_failover() -> None:
    with sentinels("primary", replicas=1, count=1) as (primary, _, [watcher]):
        url = f"redis+sentinel://127.0.0.1:{watcher.port}/primary/0"
        storage, direct = RedisStorage(url), RedisStorage(primary.url)
        q = Queue("q", storage)
        q.handler(lambda job: job.payload)
        try:
            with WorkerPool(q, threads=2):
                assert q.call("before", 1, timeout=10) == 1
                primary.kill()
                # The call waits the failover out.
                assert _call_until_answered(q, "after", 2) == 2
                assert q.call("later", 3, timeout=10) == 3
            # The control: without Sentinel there is nobody to answer.
            with pytest.raises(StorageUnavailableError):
                Queue("q", direct).enqueue("direct")
        finally:
            storage.close()
            direct.close()


def _call_until_answered(q: Queue, id: str, payload: int) -> object:
    deadline = time.monotonic() + 40
    while True:
        try:
            return q.call(id, payload, timeout=10)
        except (CallTimeoutError, StorageError):
            if time.monotonic() > deadline:
                raise


def test_never_notices(bench: Bench) -> None:
    """The helper that negative controls rest on."""
    bench.queue.enqueue("a")
    assert not never(lambda: bench.queue.counts()["queued"], 1.0)
