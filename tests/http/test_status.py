"""GET and ?wait=: what became of a job, and what is never told."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import pytest

from reliq import Queue, RedisStorage, WorkerPool
from reliq.http import Endpoint, endpoint

from .conftest import handle, run_all, serve
from .support import Address, Answer, ask, say, until


def test_the_status_of_a_job(queue: Queue, door: Address) -> None:
    secret = secrets.token_hex(8)
    queue.enqueue("s", {"password": secret}, headers={"token": secret})
    facts = ask(door, "GET", "/s").json
    assert facts.keys() == {"id", "state", "attempts", "max_attempts", "created_at", "updated_at"}
    assert (facts["id"], facts["state"], facts["attempts"], facts["max_attempts"]) == ("s", "queued", 0, 3)
    assert secret not in repr(facts)
    run_all(queue)
    answer = ask(door, "GET", "/s")
    assert answer.status == 200
    assert answer.headers["X-Job-Id"] == "s"
    assert answer.json["state"] == "completed"
    assert answer.json["attempts"] == 1
    assert answer.json["result"]["id"] == "s"


def test_a_scheduled_job_says_when_it_is_due(queue: Queue, door: Address) -> None:
    queue.enqueue("s", 1, delay=100)
    facts = ask(door, "GET", "/s").json
    assert facts["state"] == "scheduled"
    assert 90 < facts["due_at"] - facts["created_at"] < 110


@pytest.mark.parametrize("query", ["", "?wait=0", "?wait=1"])
def test_an_unknown_id_is_404(door: Address, query: str) -> None:
    answer = ask(door, "GET", f"/nobody{query}")
    assert (answer.status, answer.code) == (404, "job-not-found")


def test_a_status_needs_an_id(door: Address) -> None:
    assert ask(door, "GET", "/").code == "id-missing"
    assert ask(door, "GET", "/a?id=b").code == "ambiguous"


def test_a_slash_in_the_path_needs_a_server_that_tells_it_apart(queue: Queue) -> None:
    queue.enqueue("a/b", 1)
    app = endpoint(queue)
    environ = {"REQUEST_METHOD": "GET", "SCRIPT_NAME": "/jobs", "PATH_INFO": "/a/b", "QUERY_STRING": ""}
    assert app.handle(environ).status == 404
    for key in ("RAW_URI", "REQUEST_URI"):
        assert app.handle({**environ, key: "/jobs/a%2Fb?x=/"}).status == 200
        assert app.handle({**environ, key: "/jobs/a/b"}).status == 404
        assert app.handle({**environ, key: "/else%2Fwhere"}).status == 404  # not the path that PATH_INFO has


# -- a failed job -----------------------------------------------------------------------


def test_a_failed_job_is_told_without_its_error(queue: Queue, door: Address) -> None:
    secret = secrets.token_hex(8)
    queue.enqueue("f", {"fail": secret})
    run_all(queue)
    plain = ask(door, "GET", "/f")
    assert plain.status == 200
    assert plain.json["state"] == "failed"
    for answer in (ask(door, "GET", "/f?wait=1"), ask(door, "POST", "/?id=g&wait=0", fail=secret)):
        assert secret not in answer.body.decode()
    waited = ask(door, "GET", "/f?wait=1")
    assert (waited.status, waited.code) == (500, "job-failed")
    assert waited.json["id"] == "f"
    assert "1 attempt" in waited.json["detail"]
    assert secret.encode() not in plain.body + waited.body


def test_the_error_is_told_where_that_is_allowed_but_never_the_traceback(queue: Queue) -> None:
    queue.enqueue("f", {"fail": "no such address"})
    run_all(queue)
    with serve(queue, show_errors=True) as address:
        for answer in (ask(address, "GET", "/f"), ask(address, "GET", "/f?wait=1")):
            assert answer.json["error"] == "Reject: no such address"
            assert b"Traceback" not in answer.body
            assert b".py" not in answer.body


# -- waiting ----------------------------------------------------------------------------


def test_a_post_that_waits_gets_the_result(queue: Queue, pool: WorkerPool, door: Address) -> None:
    answer = ask(door, "POST", "/?id=w&wait=10", n=1)
    assert answer.status == 200
    assert answer.headers["X-Job-Status"] == "queued"
    assert answer.json["result"]["payload"] == {"n": 1}
    assert ask(door, "POST", "/?id=w&wait=10", n=1).headers["X-Job-Status"] == "completed"
    assert ask(door, "GET", "/w?wait=10").json["result"]["payload"] == {"n": 1}


def test_a_post_that_waits_for_a_failure_is_500(queue: Queue, pool: WorkerPool, door: Address) -> None:
    answer = ask(door, "POST", "/?id=w&wait=10", fail="no")
    assert (answer.status, answer.code) == (500, "job-failed")
    assert answer.headers["X-Job-Id"] == "w"


@pytest.mark.parametrize("wait", ["0", "0.02", "0.000001"])
def test_a_job_that_does_not_end_in_time_is_202(queue: Queue, door: Address, wait: str) -> None:
    for answer in (ask(door, "POST", f"/?id=w&wait={wait}", n=1), ask(door, "GET", f"/w?wait={wait}")):
        assert answer.status == 202
        assert answer.json["state"] == "queued"
        assert answer.headers["X-Job-Id"] == "w"
    assert ask(door, "POST", f"/?id=w&wait={wait}", n=1).headers["Location"] == "/w"


def test_how_long_a_wait_may_be_is_bounded(queue: Queue) -> None:
    queue.enqueue("w", 1)
    with serve(queue, max_wait=0.02) as address:
        assert ask(address, "GET", "/w?wait=999999").status == 202
    with serve(queue, max_wait=0) as address:
        assert ask(address, "GET", "/w?wait=10").status == 202


@pytest.mark.parametrize("wait", ["", "-1", "nan", "inf", "1e3", "1_0", "%D9%A1", "0x1", "1000000000", "+1", "%201"])
def test_waits_that_are_no_seconds_are_400(queue: Queue, door: Address, wait: str) -> None:
    assert ask(door, "GET", f"/w?wait={wait}").code == "wait-invalid"
    assert ask(door, "POST", f"/?id=w&wait={wait}", n=1).code == "wait-invalid"
    assert not any(queue.counts().values())


@pytest.mark.parametrize("end", [lambda queue: queue.cancel("w"), lambda queue: queue.purge()])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_wait_for_a_cancelled_job_is_410(
    queue: Queue, door: Address, method: str, end: Callable[[Queue], Any]
) -> None:
    queue.enqueue("w", 1)
    answers: list[Answer] = []
    path = "/?id=w&wait=20"
    body = b"1" if method == "POST" else None
    waiting = threading.Event()
    real_wait = queue.wait

    def wait(id: str, timeout: float = 30.0) -> Any:
        waiting.set()
        return real_wait(id, timeout)

    queue.wait = wait  # type: ignore[method-assign]
    headers = {"Content-Type": "application/json"}
    thread = threading.Thread(target=lambda: answers.append(ask(door, method, path, body, headers)))
    thread.start()
    assert waiting.wait(10)
    end(queue)
    thread.join()
    assert (answers[0].status, answers[0].code) == (410, "job-cancelled")
    assert ask(door, "GET", "/w").status == 404


def test_a_wait_ends_when_the_job_does(queue: Queue, door: Address) -> None:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask(door, "POST", "/?id=w&wait=20", n=1)))
    thread.start()
    until(lambda: queue.get_status("w") is not None, "the job was never accepted")
    run_all(queue)
    thread.join()
    assert answers[0].status == 200


def test_on_a_server(redis_url: str, redis_prefix: str) -> None:
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    queue = Queue("doors", storage)
    queue.execute(handle)
    pool = WorkerPool(queue, threads=1).start()
    try:
        with serve(queue) as address:
            assert ask(address, "POST", "/?id=r&wait=10", n=1).json["result"]["payload"] == {"n": 1}
            assert ask(address, "POST", "/?id=r", n=2).json["result"]["payload"] == {"n": 1}
            assert ask(address, "POST", "/?id=f&wait=10", fail="no").code == "job-failed"
            assert ask(address, "GET", "/r").json["state"] == "completed"
    finally:
        pool.stop()
        storage.close()


# -- methods ----------------------------------------------------------------------------


def test_head_has_the_headers_of_get_and_no_body(queue: Queue, door: Address) -> None:
    queue.enqueue("h", 1)
    for path in ("/h", "/nobody", "/?id=h", "/"):
        head, get = ask(door, "HEAD", path), ask(door, "GET", path)
        assert head.status == get.status
        assert head.body == b""
        for name in ("Content-Type", "Content-Length", "X-Job-Id"):
            assert head.headers[name] == get.headers[name]


def test_options_and_405_say_what_is_allowed(door: Address) -> None:
    for path, allowed in (("/", "GET, HEAD, OPTIONS, POST"), ("/some-id", "GET, HEAD, OPTIONS")):
        answer = ask(door, "OPTIONS", path)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["Allow"] == allowed
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        for method in ("PUT", "DELETE", "PATCH", "get", "TRACE"):
            refused = ask(door, method, path)
            assert (refused.status, refused.code) == (405, "method-not-allowed")
            assert refused.headers["Allow"] == allowed
    assert ask(door, "POST", "/some-id", n=1).status == 405


def test_a_result_that_json_cannot_hold_is_a_problem_of_the_server(queue: Queue) -> None:
    import pickle

    class Pickled:
        def dumps(self, value: Any) -> bytes:
            return pickle.dumps(value)

        def loads(self, data: bytes) -> Any:
            return pickle.loads(data)

    odd = Queue("odd", queue.storage, result_serde=Pickled())
    odd.execute(lambda job: {1, 2})
    odd.enqueue("o", 1)
    run_all(odd)
    with serve(odd) as address:
        answer = ask(address, "GET", "/o")
        assert (answer.status, answer.code) == (500, "result-unreadable")


def test_it_is_a_plain_callable_that_any_thread_may_call(queue: Queue) -> None:
    app = endpoint(queue)
    assert isinstance(app, Endpoint)
    heard: list[tuple[str, Any]] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x", "QUERY_STRING": ""}
    body = b"".join(app(environ, lambda status, headers, exc_info=None: heard.append((status, headers))))  # type: ignore[arg-type]
    assert heard[0][0] == "404 Not Found"
    assert dict(heard[0][1])["Content-Length"] == str(len(body))


def test_a_path_that_is_no_utf8_is_400(door: Address) -> None:
    assert say(door, b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n").code == "path-invalid"
    assert say(door, b"GET /?id=%ff HTTP/1.1\r\nHost: x\r\n\r\n").code == "query-invalid"
    assert say(door, b"GET /?id=\xff HTTP/1.1\r\nHost: x\r\n\r\n").code == "query-invalid"
