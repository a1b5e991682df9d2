"""The endpoint behind gunicorn: another process, chunked bodies, raw paths, connections that stay."""

from __future__ import annotations

import http.client
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliq import Queue, WorkerPool

from .conftest import handle
from .support import PATIENCE, Address, ask, gunicorn, say

if importlib.util.find_spec("gunicorn") is None:
    pytest.skip("gunicorn is not installed (pip install gunicorn)", allow_module_level=True)

JSON = "Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory: Path = tmp_path_factory.mktemp("doors") / "queue"
    return f"file://{directory}"


@pytest.fixture(scope="module")
def door(url: str) -> Iterator[Address]:
    with gunicorn("tests.http.apps:plain()", RELIQ_URL=url) as address:
        yield address


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    """The queue as another process has it."""
    with Queue("doors", url) as queue:
        queue.execute(handle)
        queue.purge()
        yield queue


def test_a_job_goes_through_another_process_and_back(queue: Queue, door: Address) -> None:
    pool = WorkerPool(queue, threads=2).start()
    try:
        answer = ask(door, "POST", "/there/b%2Fc/a%2Fb%20%C3%A9?wait=20", n=1)
        assert answer.status == 200
        assert answer.json["id"] == "a/b é"
        assert answer.json["result"]["headers"] == {"param-place": "b/c"}
        assert ask(door, "GET", "/there/b%2Fc/a%2Fb%20%C3%A9").json["state"] == "completed"
        assert ask(door, "GET", "/there/b/c/a/b").status == 404
    finally:
        pool.stop()


def test_a_chunked_body_is_read_to_its_end(queue: Queue, door: Address) -> None:
    head = f"POST /there/x/chunked HTTP/1.1\r\nHost: x\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n".encode()
    assert say(door, head, b'4\r\n{"n"\r\n', b"3\r\n:1}\r\n0\r\n\r\n").status == 202
    status = queue.get_status("chunked")
    assert status is not None
    assert status.payload == {"n": 1}


def test_a_chunked_body_over_the_limit_is_413_and_broken_chunks_are_400(queue: Queue, door: Address) -> None:
    head = f"POST /there/x/chunked HTTP/1.1\r\nHost: x\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n".encode()
    assert say(door, head, b"7d1\r\n", b" " * 2001, b"\r\n0\r\n\r\n").code == "too-large"
    assert say(door, head, b"5\r\n{}").status == 400
    assert say(door, head, b"zz\r\n{}\r\n").status == 400
    assert queue.get_status("chunked") is None


def test_a_connection_stays_for_the_next_request(queue: Queue, door: Address) -> None:
    """An answer leaves nothing behind on the line, also where a body was refused unread."""
    connection = http.client.HTTPConnection(*door, timeout=PATIENCE)
    try:
        for number in range(3):
            for content_type, expected in (("image/png", 415), ("application/json", 202)):
                headers = {"Content-Type": content_type}
                connection.request("POST", f"/there/x/{number}", json.dumps("x" * 1000).encode(), headers)
                response = connection.getresponse()
                assert response.status == expected, response.read()
                response.read()
            connection.request("HEAD", f"/there/x/{number}")
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"")
            connection.request("OPTIONS", f"/there/x/{number}")
            response = connection.getresponse()
            assert (response.status, response.read()) == (204, b"")
    finally:
        connection.close()


@pytest.mark.parametrize("length", ["-1", "abc", "1_0", "99999999999999999999", "2\r\nContent-Length: 3"])
def test_lengths_that_are_none_never_become_jobs(queue: Queue, door: Address, length: str) -> None:
    head = f"POST /there/x/odd HTTP/1.1\r\nHost: x\r\n{JSON}Content-Length: {length}\r\n\r\n".encode()
    assert 400 <= say(door, head, b"{}").status < 500
    assert queue.get_status("odd") is None
