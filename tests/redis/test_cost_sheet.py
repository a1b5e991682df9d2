"""What each operation costs in commands, counted on the server."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from reliq import Queue, WorkerPool
from reliq.service import Service
from reliq.storage.redis.storage import RedisStorage

from ..faults.support import Monitor, blocked, until
from ..servers import RedisServer, find_binary


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One that nobody else sends commands to."""
    if find_binary() is None:
        pytest.skip("no Redis or Valkey server")
    with RedisServer() as server:
        yield server


@pytest.fixture
def storage(server: RedisServer) -> Iterator[RedisStorage]:
    server.command("FLUSHALL")
    storage = RedisStorage(server.url)
    yield storage
    storage.close()


@pytest.fixture
def q(storage: RedisStorage) -> Queue:
    queue = Queue("q", storage)
    # Connections, the registry of queues and the scripts' texts are paid for once.
    queue.purge()
    queue.pause()
    queue.resume()
    queue.update_result_ttl("none", 1.0)
    queue.get_status("none")
    queue.enqueue_many([("warm-1", 1), ("warm-2", 1)])
    for job in queue.claim(2, lease=60):
        job.complete()
    while held := queue.claim():
        held[0].complete()
    queue.cancel("none")
    return queue


def test_enqueue_is_one_round_trip(q: Queue, server: RedisServer) -> None:
    with Monitor(server.port) as monitor:
        q.enqueue("a", {"x": 1}, delay=0, priority=3, headers={"a": "b"})
        assert monitor.names() == {"enqueue": 1}
        q.enqueue("a")
        assert monitor.names() == {"enqueue": 1}


@pytest.mark.parametrize(("jobs", "trips"), [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (2_500, 3)])
def test_enqueue_many_is_one_round_trip_per_thousand(q: Queue, server: RedisServer, jobs: int, trips: int) -> None:
    with Monitor(server.port) as monitor:
        assert len(q.enqueue_many((f"job-{n}", n) for n in range(jobs))) == jobs
        assert monitor.names() == ({"enqueue": trips} if trips else {})


def test_claim_is_one_round_trip_and_so_is_a_settle(q: Queue, server: RedisServer) -> None:
    q.enqueue_many((f"job-{n}", n) for n in range(10))
    with Monitor(server.port) as monitor:
        [job] = q.claim(1)
        assert monitor.names() == {"claim": 1}
        job.complete("result")
        assert monitor.names() == {"settle": 1}


def test_reads_and_admin_are_one_round_trip(q: Queue, server: RedisServer) -> None:
    with Monitor(server.port) as monitor:
        q.get_status("warm-1")
        q.get_result("warm-1")
        q.get_statuses(f"job-{n}" for n in range(1_000))
        assert monitor.names() == {"read": 3}
        q.cancel("warm-1")
        q.update_result_ttl("warm-1", 10.0)
        q.pause()
        q.resume()
        q.purge()
        assert monitor.names() == {"cancel": 1, "update_ttl": 1, "pause": 2, "purge": 1}
        q.counts()
        assert sum(monitor.names().values()) == 1


def test_a_batch_is_settled_in_one_round_trip(q: Queue, server: RedisServer) -> None:
    q.handler(lambda job: None)
    q.pause()
    with WorkerPool(q, threads=1, reaper=False):
        q.enqueue_many((f"job-{n}", n) for n in range(3_000))
        with Monitor(server.port) as monitor:
            q.resume()
            until(lambda: q.counts()["completed"] >= 3_000)
            costs = monitor.names()
    # 1, 2, 4 ... 256: the pool learns that the jobs are fast, and then one claim and one settle serve hundreds.
    assert costs["claim"] < 300, costs
    # On a busy machine some batches take more than 10 ms, and the monitor settles the first part of them.
    assert costs["settle"] <= 1.5 * costs["claim"], costs


def test_call_is_two_commands_of_the_caller_and_three_of_an_idle_worker(server: RedisServer, q: Queue) -> None:
    q.handler(lambda job: job.payload)
    caller_storage = RedisStorage(server.url)
    try:
        caller = Queue("q", caller_storage)
        with WorkerPool(q, threads=4, reaper=False):
            for n in range(20):
                caller.call(f"warm-{n}", n)
            client = _addresses(server, caller, "own")
            with Monitor(server.port) as monitor:
                costs = []
                for n in range(10):
                    _until_waiting(server)
                    monitor.read()
                    assert caller.call(f"call-{n}", n) == n
                    _until_waiting(server)
                    # A heartbeat is due by the clock, not by the call; INFO is this test.
                    sent = [(address, name) for address, name, _ in monitor.read() if name not in ("extend", "INFO")]
                    of_caller = Counter(name for address, name in sent if address in client)
                    of_worker = Counter(name for address, name in sent if address not in client)
                    costs.append((of_caller, of_worker))
    finally:
        caller_storage.close()
    for of_caller, of_worker in costs:
        assert of_caller == {"enqueue": 1, "BLPOP": 1}
        # The BLPOP is the wait for the next wake-up; the one that this call ended had been sent before.
        assert of_worker["claim"] == of_worker["settle"] == of_worker["BLPOP"] == 1, of_worker
        assert sum(of_worker.values()) == 3, of_worker


def _addresses(server: RedisServer, caller: Queue, id: str) -> set[str]:
    """The connections that ``caller`` uses for a call."""
    with Monitor(server.port) as monitor:
        caller.call(id, 0)
        lines = monitor.read()
    found = {address for address, name, _ in lines if name == "enqueue"}
    return found | {address for address, name, line in lines if name == "BLPOP" and ":reply:" in line}


def _until_waiting(server: RedisServer) -> None:
    until(lambda: blocked(server), what="an idle worker")


@pytest.mark.slow
def test_an_idle_pool_sends_at_most_one_command_per_second_and_thread(server: RedisServer, q: Queue) -> None:
    seconds = 6.0
    q.handler(lambda job: job.payload)
    with WorkerPool(q, threads=4) as pool:
        q.call("warm")
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("reliq-")]
        assert len(threads) >= 4 + 2
        _until_waiting(server)
        began = time.monotonic()
        with Monitor(server.port) as monitor:
            threading.Event().wait(seconds)
            costs = monitor.names()
        elapsed = time.monotonic() - began
        assert pool.is_running
    assert sum(costs.values()) <= elapsed * len(threads), costs
    # Runners share one wait: their number does not matter.
    assert costs["BLPOP"] + costs["claim"] <= 2 * elapsed + 4, costs


@pytest.mark.slow
def test_control_a_pool_that_polls_is_found_out(server: RedisServer, q: Queue) -> None:
    storage = q.storage
    storage.fallback_ms = 20  # a sleeping thread looks by itself all the time
    q.handler(lambda job: job.payload)
    with WorkerPool(q, threads=1, reaper=False), Monitor(server.port) as monitor:
        threading.Event().wait(1.0)
        costs = monitor.names()
    assert sum(costs.values()) > 20, costs


def test_a_waiting_call_polls_nothing(server: RedisServer, q: Queue) -> None:
    answers: list[object] = []
    with Monitor(server.port) as monitor:
        waiting = Service("caller", lambda stop: answers.append(q.call("job", 1, timeout=20))).start()
        [job] = q.claim(timeout=5)
        assert isinstance(job.payload, int)
        threading.Event().wait(0.5)
        job.complete(7)
        waiting.stop()
        costs = monitor.names()
    assert answers == [7]
    assert costs["enqueue"] == 1
    assert costs["read"] == 0
    # On a busy machine the claim may have blocked more than once until the job came, with a claim after each time.
    assert costs["BLPOP"] - max(0, costs["claim"] - 2) <= 1, costs
