"""Cluster, TLS, unix sockets, and users with fewer rights."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from reliq import (
    Backoff,
    Job,
    JobFailedError,
    NewJob,
    Queue,
    Reaper,
    StorageError,
    StorageUnavailableError,
    WorkerPool,
)
from reliq.storage.redis.doorbell import ListDoorbell
from reliq.storage.redis.storage import RedisStorage

from ..servers import RedisServer, cluster
from .support import Bench, mutated, until


def _echo(job: Job) -> object:
    if job.payload == "bad":
        raise ValueError("bad payload")
    return job.payload


def _life_of_jobs(storage: RedisStorage, *names: str) -> None:
    """One of everything, on several queues in one pool."""
    queues = [Queue(name, storage, backoff=Backoff(base=0.01, jitter=0)) for name in names]
    for q in queues:
        q.handler(_echo)
    with WorkerPool(queues, threads=3):
        for number, q in enumerate(queues):
            assert q.call("call", number, timeout=10) == number
            answers = q.enqueue_many((f"many-{n}", n) for n in range(2_500))
            assert {answer.status for answer in answers} == {"queued"}
            assert q.enqueue("later", "due", delay=0.3).state == "scheduled"
            with pytest.raises(JobFailedError, match="bad payload"):
                q.call("bad", "bad", max_attempts=2, timeout=10)
        for q in queues:
            assert q.wait("later", timeout=10) == "due"
            until(lambda q=q: q.counts()["completed"] == 2_502)  # type: ignore[misc]
            assert [dead.id for dead in q.dead_letters.list()] == ["bad"]
            assert q.dead_letters.retry("bad")
            with pytest.raises(JobFailedError):
                q.wait("bad", timeout=10)
    for q in queues:
        q.enqueue("left", "behind")
        [held] = q.claim(lease=0.2)
        assert held.id == "left"
        reaper = Reaper(q)
        until(lambda reaper=reaper, q=q: reaper.run_once() and q.counts()["queued"] == 1)  # type: ignore[misc]
        assert q.cancel("left").status == "cancelled"
        assert q.purge() == 2_503


# -- cluster --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RedisServer]]:
    with cluster(3) as servers:
        yield servers


@pytest.fixture
def clustered(nodes: list[RedisServer]) -> Iterator[RedisStorage]:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    storage = RedisStorage(f"redis+cluster://{hosts}")
    yield storage
    storage.close()


def test_a_cluster_does_everything(clustered: RedisStorage, nodes: list[RedisServer]) -> None:
    names = ("alpha", "beta", "gamma", "delta")
    _life_of_jobs(clustered, *names)
    assert set(clustered.queues()) >= set(names)
    # Really on several nodes.
    sizes = [int(str(node.command("DBSIZE"))) for node in nodes]
    assert sum(size > 0 for size in sizes) > 1


def test_events_and_cancel_of_a_running_job_reach_over_a_cluster(clustered: RedisStorage) -> None:
    q = Queue("events", clustered)
    started = threading.Event()
    heard: list[str] = []

    @q.handler
    def wait_for_the_signal(job: Job) -> None:
        started.set()
        assert job.signal.wait(10)
        job.check()

    unsubscribe = q.subscribe(lambda event: heard.append(event.name))
    with WorkerPool(q, threads=1):
        q.enqueue("job")
        assert started.wait(10)
        assert q.cancel("job", running=True).status == "cancelling"
        until(lambda: q.get_status("job") is None)
    until(lambda: {"queued", "processing", "cancelled"} <= set(heard))
    unsubscribe()


def test_control_a_cluster_refuses_one_blocking_read_over_two_slots(clustered: RedisStorage) -> None:
    bell = ListDoorbell(clustered._client, "reliq", ["alpha", "beta"], "work")
    with pytest.raises(StorageError, match=r"(?i)slot"):
        bell.wait(0.1)


# -- TLS and unix sockets -------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself; the key lies beside it."""
    directory = tmp_path_factory.mktemp("tls")
    try:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
            cwd=directory, check=True, capture_output=True, timeout=30,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("no openssl")
    return directory / "cert.pem"


@pytest.fixture
def tls(certificate: Path) -> Iterator[RedisServer]:
    from ..servers import ServerError, free_port

    args = ("--tls-port", str(free_port()), "--tls-cert-file", str(certificate),
            "--tls-key-file", str(certificate.with_name("key.pem")), "--tls-auth-clients", "no")  # fmt: skip
    server = RedisServer(args=args)
    try:
        server.start()
    except ServerError as error:
        server.close()
        pytest.skip(f"this server has no TLS: {error}")
    yield server
    server.close()


def test_tls(tls: RedisServer, certificate: Path) -> None:
    storage = RedisStorage(f"rediss://127.0.0.1:{tls.args[1]}/0?ssl_ca_certs={certificate}")
    try:
        _life_of_jobs(storage, "a", "b")
    finally:
        storage.close()


def test_control_a_certificate_that_nobody_vouches_for_is_refused(tls: RedisServer) -> None:
    storage = RedisStorage(f"rediss://127.0.0.1:{tls.args[1]}/0", repeat_for=0.1)
    try:
        with pytest.raises(StorageUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            Queue("a", storage).enqueue("x")
    finally:
        storage.close()


def test_unix_socket() -> None:
    with RedisServer() as first:
        path = first.directory / "s.sock"
        with RedisServer(args=("--unixsocket", str(path))):
            storage = RedisStorage(f"unix://{path}?db=2")
            try:
                _life_of_jobs(storage, "a", "b")
            finally:
                storage.close()


# -- users with fewer rights ----------------------------------------------------------


def _as_user(bench: Bench, *rights: str) -> RedisStorage:
    bench.server.command("ACL", "SETUSER", "limited", "on", ">secret", *rights)
    return RedisStorage(f"redis://limited:secret@127.0.0.1:{bench.server.port}/0", prefix=bench.prefix, repeat_for=1.0)


@pytest.fixture
def listened(bench: Bench) -> Iterator[Bench]:
    """Somebody with more rights listens, so that transitions publish."""
    unsubscribe = bench.queue.subscribe(lambda event: None)
    yield bench
    unsubscribe()


def _transitions(q: Queue) -> None:
    q.enqueue_many([NewJob("a"), NewJob("b"), NewJob("c"), NewJob("d", delay=60.0)])
    q.claim()[0].complete()
    q.claim()[0].fail("no")
    q.claim()[0].retry(delay=0)
    while held := q.claim():
        held[0].complete()
    assert q.cancel("d").status == "cancelled"
    Reaper(q).run_once()


def test_a_user_without_channel_rights_can_do_everything_but_publish(listened: Bench) -> None:
    storage = _as_user(listened, "~*", "+@all", "resetchannels")
    try:
        q = Queue("q", storage)
        _transitions(q)
        counts = {state: count for state, count in q.counts().items() if count}
        assert sum(counts.values()) == 3
        assert counts["completed"] >= 1
        assert "processing" not in counts
        # The control of the control: it really may not publish.
        client = redis.Redis.from_url(f"redis://limited:secret@127.0.0.1:{listened.server.port}/0")
        with client, pytest.raises(redis.exceptions.NoPermissionError):
            client.publish(f"{listened.tag()}:events", "x")
    finally:
        storage.close()


def test_control_a_publish_that_may_fail_breaks_transitions(listened: Bench) -> None:
    with mutated(("prelude", "redis.pcall('PUBLISH'", "redis.call('PUBLISH'")):
        storage = _as_user(listened, "~*", "+@all", "resetchannels")
        try:
            with pytest.raises(StorageError):
                _transitions(Queue("q", storage))
        finally:
            storage.close()


@pytest.mark.parametrize("command", ["evalsha", "zadd", "lpop", "hset", "blpop"])
def test_a_user_without_a_needed_command_gets_a_clear_error(bench: Bench, command: str) -> None:
    storage = _as_user(bench, "~*", "&*", "+@all", f"-{command}")
    try:
        q = Queue("q", storage)
        with pytest.raises(StorageError, match="lacks a right") as caught:
            q.enqueue("a")
            q.claim(timeout=0.0)
            storage.doorbell(["q"], "work").wait(0.1)
        assert not isinstance(caught.value, StorageUnavailableError)
        assert "secret" not in str(caught.value)
    finally:
        storage.close()


def test_a_wrong_password_is_a_clear_error(bench: Bench) -> None:
    _as_user(bench, "~*", "&*", "+@all").close()
    storage = RedisStorage(f"redis://limited:wr0ng@127.0.0.1:{bench.server.port}/0", repeat_for=1.0)
    try:
        with pytest.raises(StorageError, match="credentials") as caught:
            Queue("q", storage).enqueue("a")
        assert "wr0ng" not in f"{caught.value!r} {caught.value.__cause__!r}"
    finally:
        storage.close()
