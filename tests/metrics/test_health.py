"""``/healthz`` and ``/metrics``: what a pool that gets on, hangs, works or ends is said to do."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reliq import Job, MemoryStorage, Queue, StorageUnavailableError, WorkerPool
from reliq.cli.probes import Address, make_app
from reliq.worker import health
from reliq.worker.health import CrewHealth, health_of

LIMIT_SECONDS = 20.0


@pytest.fixture
def q() -> Iterator[Queue]:
    with closing(MemoryStorage()) as storage, Queue("emails", storage) as queue:
        queue.handler(lambda job: None)
        yield queue


def until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ask(app: Callable[..., list[bytes]], path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    told: list[Any] = []
    body = app(
        {"PATH_INFO": path, "REQUEST_METHOD": method, "QUERY_STRING": ""},
        lambda status, headers, *_: told.extend((status, headers)),
    )
    return int(told[0].split()[0]), dict(told[1]), b"".join(body)


def test_the_life_of_a_pool(q: Queue) -> None:
    pool = WorkerPool(q, threads=1)
    assert pool.health().status == "not started"
    assert not pool.health().is_alive
    with pool:
        found = pool.health()
        assert found.status == "ok"
        assert found.is_alive
        assert [(loop.loop, loop.queue) for loop in found.loops] == [
            ("claims", "emails"), ("heartbeat", "emails"), ("reaper", None),
        ]  # fmt: skip
    assert pool.health().status == "stopped"
    assert not pool.health().is_alive


def _fail(*_: object, **__: object) -> Any:
    raise StorageUnavailableError("down")


@pytest.mark.parametrize(("verb", "loop"), [("claim", "claims"), ("extend", "heartbeat"), ("reap", "reaper")])
def test_a_loop_that_gets_nowhere_lags_and_recovers(
    q: Queue, verb: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LEAST_LIMIT_S", 1.5)  # a reaper looks each second
    monkeypatch.setattr(q.storage, "fallback_ms", 100)
    with WorkerPool(q, threads=1, worker_ttl=0.3) as pool:
        until(lambda: pool.health().status == "ok")
        with monkeypatch.context() as patch:
            patch.setattr(q.storage, verb, _fail)
            until(lambda: pool.health().status == "lagging")
            assert [found.loop for found in pool.health().loops if found.lags] == [loop]
        until(lambda: pool.health().status == "ok")


def test_a_pool_whose_threads_all_work_is_alive(q: Queue) -> None:
    # By plain numbers: no test waits for ten seconds.
    hours = {"emails": (7200.0, 0.5)}
    assert health_of([CrewHealth(hours, 0.5, 0, 5.0)], 2, 15.0, False).status == "lagging"
    entered, leave = threading.Event(), threading.Event()
    with closing(MemoryStorage()) as storage, Queue("busy", storage) as queue:

        @queue.handler
        def run(job: Job) -> None:
            entered.set()
            leave.wait(LIMIT_SECONDS)

        with WorkerPool(queue, threads=1) as pool:
            queue.enqueue("long")
            assert entered.wait(LIMIT_SECONDS)
            [crew] = pool._crews
            [source] = crew.sources
            source.claimed_at -= 7200
            found = pool.health()
            leave.set()
            assert (found.status, found.busy_threads, found.threads) == ("ok", 1, 1)
            until(lambda: pool.health().busy_threads == 0)
            # The long job has ended, the next claim may not have come yet.
            assert pool.health().status == "ok"


def test_a_pool_that_drains_is_alive_but_must_keep_its_leases() -> None:
    ages = {"emails": (7200.0, 0.5)}
    assert health_of([CrewHealth(ages, 0.5, 1, 5.0)], 2, 15.0, True).is_alive
    late = {"emails": (7200.0, 16.0)}
    assert health_of([CrewHealth(late, 0.5, 1, 5.0)], 2, 15.0, True).status == "lagging"


def test_the_answers(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # as if it were not installed
    pool = WorkerPool(q, threads=1, worker_id="w1")
    app = make_app(pool)
    assert ask(app, "/healthz")[0] == 503
    with pool:
        status, headers, body = ask(app, "/healthz")
        found = json.loads(body)
        assert (status, headers["Content-Type"], headers["Cache-Control"]) == (200, "application/json", "no-store")
        assert (found["status"], found["worker_id"], found["threads"]) == ("ok", "w1", 1)
        assert {"loop", "queue", "age_seconds", "limit_seconds", "lags"} == set(found["loops"][0])
        assert ask(app, "/healthz", "HEAD")[2] == b""
    assert ask(app, "/healthz")[0] == 503
    assert ask(app, "/healthz", "POST")[0] == 405
    assert ask(app, "/nothing")[0] == 404
    status, _, body = ask(app, "/metrics")
    assert status == 404
    assert b'pip install "reliq[prometheus]"' in body


def test_metrics_are_served_where_they_can_be_had(q: Queue) -> None:
    client = pytest.importorskip("prometheus_client", reason='pip install "reliq[prometheus]"')
    with closing(MemoryStorage()) as storage, Queue("emails", storage) as other:
        other.handler(lambda job: None)
        # Two queues of one name cannot be told apart in a scrape: the first is shown, and the pool runs both.
        app = make_app(WorkerPool([q, other], threads=1), client.CollectorRegistry())
        q.enqueue("j1")
        status, headers, body = ask(app, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert b'reliq_jobs{queue="emails",state="queued"} 1.0' in body
    assert b'reliq_enqueues_total{queue="emails",status="queued"} 1.0' in body


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9000", "127.0.0.1:9000"), ("9000", "127.0.0.1:9000"), ("0.0.0.0:80", "0.0.0.0:80"), ("[::1]:80", "[::1]:80"),
        ("localhost:80", "localhost:80"),
    ],
)  # fmt: skip
def test_addresses(text: str, address: str) -> None:
    assert Address(text) == address
    assert Address(address) == address


def test_the_address_of_each_process() -> None:
    assert [Address(":9000").of(number) for number in (1, 2, 3)] == [f"127.0.0.1:{port}" for port in (9000, 9001, 9002)]
    assert Address("[::1]:9000").of(2) == "[::1]:9001"
    assert Address(":0").of(3) == "127.0.0.1:0"


@pytest.mark.parametrize("text", ["", "here", "host:", ":http", ":65536", ":-1", "host:١"])
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be HOST:PORT"):
        Address(text)


APP = """
import pathlib
from reliq import Queue
q = Queue("jobs", f"file://{pathlib.Path(__file__).parent / 'queue'}")

@q.handler
def run(job):
    return 1
"""


def _free_pair() -> int:
    """Two free ports next to each other; somebody may take them meanwhile, which would fail loudly."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def _get(url: str) -> tuple[int, bytes] | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return None


def test_each_process_of_a_worker_answers_at_a_port_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "probed.py").write_text(APP)
    with Queue("jobs", f"file://{tmp_path / 'queue'}") as queue:
        queue.enqueue("j1")
    port = _free_pair()
    command = [sys.executable, "-m", "reliq", "worker", "probed:q", "-t", "1", "--processes", "2", "--http", f":{port}"]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, stderr=log)
    try:
        for number in range(2):
            url = f"http://127.0.0.1:{port + number}/healthz"
            until(lambda url=url: (_get(url) or (0,))[0] == 200)  # type: ignore[misc]
        answers = [_get(f"http://127.0.0.1:{port + number}/healthz") for number in range(2)]
        names = {json.loads(answer[1])["worker_id"] for answer in answers if answer}
        assert len(names) == 2
    finally:
        worker.terminate()
        assert worker.wait(LIMIT_SECONDS) == 0, (tmp_path / "log").read_text()
    assert _get(f"http://127.0.0.1:{port}/healthz") is None
