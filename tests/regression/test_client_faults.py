"""Traps of the client library and of JSON that were found by running things."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from reliq import (
    InvalidJobError,
    JsonSerde,
    OutcomeUnknownError,
    Queue,
    RedisStorage,
    SerdeError,
    StorageUnavailableError,
    WorkerPool,
)
from reliq.storage.redis.connection import DirectLink
from reliq.storage.redis.wire import Wire

from ..faults.support import Monitor, blocked, until
from ..servers import RedisServer, find_binary

PATIENCE = 10.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    if find_binary() is None:
        pytest.skip("no Redis or Valkey server")
    with RedisServer() as server:
        yield server


@pytest.fixture
def storage(server: RedisServer) -> Iterator[RedisStorage]:
    storage = RedisStorage(server.url, repeat_for=0.3)
    yield storage
    storage.close()


def _link(storage: RedisStorage) -> DirectLink:
    link = storage._client.link
    assert isinstance(link, DirectLink)
    return link


# -- redis-py -------------------------------------------------------------------------


def test_a_command_that_is_answered_late_is_sent_once(server: RedisServer) -> None:
    """The client's own defaults sent one INCR to a paused server twice, and a BLMOVE eleven times."""
    storage = RedisStorage(server.url, repeat_for=1.0)
    link = _link(storage)
    try:
        link.execute("PING")
        server.pause()
        with pytest.raises(redis.exceptions.TimeoutError):
            link.execute("INCR", "n", timeout=0.2)
        server.resume()
        assert link.execute("GET", "n")[0] == b"1"
    finally:
        server.resume()
        storage.close()


def test_control_a_client_with_its_own_retries_sends_it_more_than_once(server: RedisServer) -> None:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client: Any = redis.Redis(port=server.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 10))
    client.ping()
    server.pause()
    resume = threading.Timer(0.5, server.resume)
    resume.start()
    try:
        assert client.incr("n") > 1
    finally:
        resume.join()
        client.close()


def test_an_enqueue_that_is_repeated_is_no_duplicate_of_itself(server: RedisServer, storage: RedisStorage) -> None:
    """An enqueue script answered duplicate to its own first call."""
    q = Queue("q", storage)
    q.enqueue("warm")
    real = storage._client.link.execute
    lost: list[Any] = []

    def lose_first_answer(*command: Any, **how: Any) -> Any:
        answer = real(*command, **how)
        if not lost:
            lost.append(answer)
            raise redis.exceptions.TimeoutError("late")
        return answer

    storage._client.link.execute = lose_first_answer  # type: ignore[method-assign]
    assert q.enqueue("job").status == "queued"
    assert lost
    assert q.counts()["queued"] == 2


def test_a_claim_whose_answer_was_lost_is_not_repeated(storage: RedisStorage) -> None:
    q = Queue("q", storage)
    q.enqueue_many([("a", 1), ("b", 1)])
    assert len(q.claim()) == 1
    real = storage._client.link.execute
    sent = []

    def lose(*command: Any, **how: Any) -> Any:
        sent.append(real(*command, **how))
        raise redis.exceptions.TimeoutError("late")

    storage._client.link.execute = lose  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknownError):
        q.claim()
    assert len(sent) == 1


class _Interrupt(BaseException):
    """As KeyboardInterrupt, without ending the test run."""


def test_an_interrupted_command_leaves_no_reply_for_the_next_one(
    storage: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted command left its reply in the socket, and the next caller took it for its own."""
    q = Queue("q", storage)
    q.enqueue("a", "A")
    q.enqueue("b", "B")
    stack = _link(storage)._short
    assert len(stack._idle) == 1

    def interrupted(wire: Wire) -> Any:
        monkeypatch.undo()
        raise _Interrupt

    monkeypatch.setattr(Wire, "read", interrupted)
    with pytest.raises(_Interrupt):
        q.get_status("a")
    assert not stack._idle
    status = q.get_status("b")
    assert status is not None
    assert (status.id, status.payload) == ("b", "B")


def test_control_a_connection_that_is_kept_after_an_interruption_answers_the_wrong_question(
    storage: RedisStorage,
) -> None:
    link = _link(storage)
    link.execute("SET", "a", "A")
    link.execute("SET", "b", "B")
    [kept] = link._short._idle
    kept.send(("GET", "a"))  # interrupted here, and given back
    assert link.execute("GET", "b")[0] == b"A"
    kept.disconnect()


def test_connections_that_the_server_closed_while_idle_heal(server: RedisServer, storage: RedisStorage) -> None:
    q = Queue("q", storage)
    q.enqueue("a")
    for n in range(5):
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert q.enqueue(f"job-{n}").status == "queued"


def test_a_connection_to_a_server_that_became_a_replica_is_given_up(server: RedisServer, storage: RedisStorage) -> None:
    """Who is the master now shows only when connecting."""
    link = _link(storage)
    link.execute("SET", "a", "A")
    [kept] = link._short._idle
    server.command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(redis.ReadOnlyError):
        link.execute("SET", "a", "B")
    assert not link._short._idle
    assert link.execute("GET", "a")[0] == b"A"
    assert kept not in link._short._idle
    server.command("REPLICAOF", "NO", "ONE")
    assert link.execute("SET", "a", "B")[0] == b"OK"


def test_blocked_callers_starve_neither_heartbeat_nor_settle(storage: RedisStorage) -> None:
    """One shared pool of connections starved itself once its runners blocked."""
    q = Queue("q", storage)
    q.handler(lambda job: job.payload)
    q.enqueue("stuck", delay=60.0)
    done = []

    def wait() -> None:
        try:
            q.wait("stuck", timeout=1.0)
        except TimeoutError as error:
            done.append(error)

    threads = [threading.Thread(target=wait) for _ in range(60)]
    for thread in threads:
        thread.start()
    with WorkerPool(q, threads=2):
        for n in range(20):
            assert q.call(f"job-{n}", n, timeout=2.0) == n
    for thread in threads:
        thread.join()
    assert len(done) == 60


def test_an_idle_pool_stops_at_once(server: RedisServer, storage: RedisStorage) -> None:
    """A blocked read had to run out first, or ended as an error."""
    q = Queue("q", storage)
    q.handler(lambda job: None)
    pool = WorkerPool(q, threads=4).start()
    until(lambda: blocked(server))
    began = time.monotonic()
    pool.stop()
    assert time.monotonic() - began < 1.0


def test_a_pool_stops_while_the_server_is_away(server: RedisServer, storage: RedisStorage) -> None:
    q = Queue("q", storage)
    q.handler(lambda job: job.payload)
    pool = WorkerPool(q, threads=2).start()
    assert q.call("a", 1, timeout=PATIENCE) == 1
    server.kill()
    began = time.monotonic()
    pool.stop(1.0)
    assert time.monotonic() - began < 10.0


def test_reading_is_bounded_by_the_block_and_a_margin(server: RedisServer, storage: RedisStorage) -> None:
    """A blmove(timeout=7) hung for 58.8 s."""
    link = _link(storage)
    assert link.block("BLPOP", "nothing", "0.05") is None
    server.pause()
    began = time.monotonic()
    try:
        with pytest.raises(redis.exceptions.TimeoutError):
            link.block("BLPOP", "nothing", "0.05", timeout=0.3)
    finally:
        server.resume()
    assert 0.2 < time.monotonic() - began < 1.0
    # The short timeout was this command's only.
    assert link.block("BLPOP", "nothing", "0.4") is None


def test_the_handshake_is_as_short_as_it_can_be(server: RedisServer) -> None:
    """Connecting cost four more round trips."""
    storage = RedisStorage(server.url)
    try:
        with Monitor(server.port) as monitor:
            Queue("q", storage).counts()
            names = monitor.names()
    finally:
        storage.close()
    assert names["HGET"] == 1
    assert sum(names.values()) <= 2, names


def test_a_server_that_drops_every_connection_is_unavailable_and_nothing_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def slam() -> None:
            listener.settimeout(0.05)
            while not stop.is_set():
                try:
                    listener.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=slam)
        thread.start()
        storage = RedisStorage(f"redis://127.0.0.1:{listener.getsockname()[1]}", repeat_for=0.2)
        began = time.monotonic()
        try:
            with pytest.raises((StorageUnavailableError, OutcomeUnknownError)):
                Queue("q", storage).enqueue("a")
        finally:
            storage.close()
            stop.set()
            thread.join()
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    ("setting", "command"), [("maxmemory", "1"), ("min-replicas-to-write", "3")], ids=["out_of_memory", "no_replicas"]
)
def test_a_server_that_refuses_writes_is_a_typed_error_and_works_again(
    server: RedisServer, storage: RedisStorage, setting: str, command: str
) -> None:
    from reliq import StorageError

    q = Queue("q", storage)
    q.enqueue("before")
    server.command("CONFIG", "SET", setting, command)
    with pytest.raises(StorageError):
        q.enqueue("refused")
    server.command("CONFIG", "SET", setting, "0")
    assert q.enqueue("refused").status == "queued"
    assert q.counts()["queued"] == 2


# -- JSON -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [1, {"a": math.nan}], {"deep": [[math.inf]]}])
def test_nan_and_infinity_are_refused_not_turned_into_null(value: Any) -> None:
    with pytest.raises(SerdeError):
        Queue("q", "memory://").enqueue("a", value)
    assert JsonSerde().loads(JsonSerde().dumps(1.5)) == 1.5


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), {(1, 2): 3}, 2j], ids=lambda value: type(value).__name__)
def test_what_json_cannot_hold_is_refused_with_its_place(value: Any) -> None:
    with Queue("mine", "memory://") as q, pytest.raises(SerdeError, match="mine") as caught:
        q.enqueue("a", {"deep": [value]})
    assert isinstance(caught.value, InvalidJobError)


@pytest.mark.parametrize("value", [2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30])
def test_large_integers_come_back_as_they_were_or_are_refused(value: int) -> None:
    serde = JsonSerde()
    try:
        data = serde.dumps(value)
    except Exception as error:
        assert "integer" in str(error).lower() or "int" in str(error).lower()
        return
    back = serde.loads(data)
    assert back == value
    assert isinstance(back, int)


def test_deep_nesting_is_refused_or_comes_back() -> None:
    serde = JsonSerde()
    value: Any = 0
    for _ in range(5_000):
        value = [value]
    with Queue("q", "memory://") as q, pytest.raises(SerdeError):
        q.enqueue("a", value)
    assert serde.loads(serde.dumps([[[[1]]]])) == [[[[1]]]]
