"""The blueprint in a real Flask application, behind Werkzeug's server and behind gunicorn."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliq import Queue, WorkerPool

from .conftest import handle
from .support import Address, ask, gunicorn, multipart, part, say

if importlib.util.find_spec("flask") is None:
    pytest.skip("flask is not installed (pip install flask)", allow_module_level=True)

from .apps import site


@pytest.fixture
def app(queue: Queue) -> Any:
    return site(queue)


@pytest.fixture
def door(app: Any) -> Iterator[Address]:
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    server.daemon_threads = False  # type: ignore[attr-defined]  # of its threaded kind: waits for them when it closes
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield "127.0.0.1", server.port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("path", ["/jobs", "/jobs/"])
def test_a_job_from_post_to_result(queue: Queue, door: Address, pool: WorkerPool, path: str) -> None:
    answer = ask(door, "POST", f"{path}?id=f-1&color=red&wait=10", n=1)
    assert answer.status == 200
    assert answer.headers["X-Job-Id"] == "f-1"
    assert answer.headers["X-Site"] == "flask"  # the application's own hooks run
    assert answer.headers.get_all("Content-Type") == ["application/json"]
    assert answer.json["result"] == {"payload": {"n": 1}, "headers": {"param-color": "red"}, "id": "f-1"}
    assert ask(door, "GET", "/jobs/f-1").json["state"] == "completed"


def test_forms_and_files(queue: Queue, door: Address) -> None:
    body, headers = multipart(part("a", b"1"), part("f", b"\x00\xff", '; filename="f.bin"'))
    answer = ask(door, "POST", "/jobs/?id=f", body, headers)
    assert answer.status == 202
    assert answer.headers["Location"] == "/jobs/f"
    status = queue.get_status("f")
    assert status is not None
    assert status.payload["f"]["content"] == "AP8="


@pytest.mark.parametrize("id", ["a%2Fb", "a%2F%2Fb", "a%20%C3%A9", "%7Bx%7D", "a/"])
def test_odd_ids_in_the_path(queue: Queue, door: Address, id: str) -> None:
    from urllib.parse import unquote

    queue.enqueue(unquote(id).rstrip("/"), 1)
    assert ask(door, "GET", f"/jobs/{id}").json["id"] == unquote(id).rstrip("/")


def test_a_session_authenticates(queue: Queue, door: Address) -> None:
    assert ask(door, "POST", "/%C3%BCber/red/m-1", n=1).status == 401
    cookie = ask(door, "POST", "/login/ann").headers["Set-Cookie"].partition(";")[0]
    answer = ask(door, "POST", "/%C3%BCber/red/m-1", headers={"Cookie": cookie}, n=1)
    assert answer.status == 202
    assert answer.headers["Location"] == "/%C3%BCber/red/m-1"
    status = queue.get_status("m-1")
    assert status is not None
    assert status.headers == {"user-id": "ann", "param-color": "red"}
    assert ask(door, "GET", answer.headers["Location"], headers={"Cookie": cookie}).status == 200


def test_methods_and_problems_are_the_endpoints(door: Address) -> None:
    assert ask(door, "PUT", "/jobs/").headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    assert ask(door, "OPTIONS", "/jobs/x").headers["Allow"] == "GET, HEAD, OPTIONS"
    assert ask(door, "GET", "/jobs/nobody").code == "job-not-found"
    head = ask(door, "HEAD", "/jobs/nobody")
    assert (head.status, head.body) == (404, b"")
    assert int(head.headers["Content-Length"]) > 0
    assert ask(door, "POST", "/jobs/", b"{", {"Content-Type": "application/json"}).code == "json-invalid"
    assert ask(door, "POST", "/jobs/a/b", n=1).code == "not-found"
    start = b"POST /jobs/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    assert say(door, start + b"Content-Length: 10000000\r\n\r\n").code == "too-large"
    assert say(door, start + b'Transfer-Encoding: chunked\r\n\r\n7\r\n{"n":1}\r\n0\r\n\r\n').status == 202


def test_behind_gunicorn(tmp_path: Path) -> None:
    if importlib.util.find_spec("gunicorn") is None:
        pytest.skip("gunicorn is not installed (pip install gunicorn)")
    url = f"file://{tmp_path / 'queue'}"
    with gunicorn("tests.http.apps:site()", RELIQ_URL=url) as address, Queue("doors", url) as queue:
        queue.execute(handle)
        pool = WorkerPool(queue, threads=1).start()
        try:
            answer = ask(address, "POST", "/jobs?id=a%2Fb&wait=20", n=1)
            assert answer.status == 200
            assert ask(address, "GET", "/jobs/a%2Fb").json["result"]["payload"] == {"n": 1}
        finally:
            pool.stop()


def test_two_queues_in_one_application(queue: Queue) -> None:
    import flask

    from reliq.contrib.flask import blueprint

    app = flask.Flask(__name__)
    app.register_blueprint(blueprint(queue), url_prefix="/a")
    app.register_blueprint(blueprint(Queue("other.queue", queue.storage)), url_prefix="/b")
    assert set(app.blueprints) == {"reliq_doors", "reliq_other_queue"}
