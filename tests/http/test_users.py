"""Who may, and whose job it is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from reliq import Queue, WorkerPool

from .conftest import run_all, serve
from .support import Address, ask, say

ANN, BEN = {"X-User": "ann"}, {"X-User": "ben"}


def by_header(environ: dict[str, Any]) -> str | None:
    user = environ.get("HTTP_X_USER")
    return None if user is None else str(user)


@pytest.fixture
def door(queue: Queue) -> Iterator[Address]:
    with serve(queue, authenticate=by_header, challenge='Bearer realm="jobs"') as address:
        yield address


def test_nobody_is_401_before_anything_is_read(queue: Queue, door: Address) -> None:
    queue.enqueue("a", 1)
    start = b"POST /?id=b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    for answer in (
        ask(door, "POST", "/", n=1),
        ask(door, "GET", "/a"),
        ask(door, "GET", "/nobody"),
        ask(door, "HEAD", "/a"),
        ask(door, "GET", "/a?wait=nonsense"),
        say(door, start),
    ):
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="jobs"'
    assert queue.counts()["queued"] == 1


def test_the_handler_is_told_the_user_id_and_no_parameter_can_forge_it(
    queue: Queue, pool: WorkerPool, door: Address
) -> None:
    answer = ask(door, "POST", "/?wait=10&user-id=root", headers=ANN, n=1)
    assert answer.json["result"]["headers"] == {"user-id": "ann", "param-user-id": "root"}


def test_a_job_without_authentication_has_no_user(queue: Queue, pool: WorkerPool) -> None:
    with serve(queue, job_options={"headers": {"user-id": "root"}}) as address:
        assert ask(address, "POST", "/?wait=10", n=1).json["result"]["headers"] == {}


def test_users_do_not_see_each_others_jobs(queue: Queue, door: Address) -> None:
    ask(door, "POST", "/?id=order-1", headers=ANN, n=1)
    queue.enqueue("internal", 1)
    for _ in range(2):  # before it ran and after
        assert ask(door, "GET", "/order-1", headers=ANN).status == 200
        for path in ("/order-1", "/order-1?wait=0.01", "/internal", "/nobody"):
            refused = ask(door, "GET", path, headers=BEN)
            assert (refused.status, refused.code) == (404, "job-not-found")
        for path in ("/?id=order-1", "/?id=order-1&wait=0.01", "/?id=internal"):
            taken = ask(door, "POST", path, headers=BEN, n=2)
            assert (taken.status, taken.code) == (409, "id-taken")
            assert "state" not in taken.json
        run_all(queue)
    assert ask(door, "POST", "/?id=order-1", headers=ANN, n=1).json["result"]["payload"] == {"n": 1}


def test_users_may_share_their_jobs(queue: Queue) -> None:
    with serve(queue, authenticate=by_header, private=False) as address:
        ask(address, "POST", "/?id=order-1", headers=ANN, n=1)
        assert ask(address, "GET", "/order-1", headers=BEN).status == 200
        assert ask(address, "POST", "/?id=order-1", headers=BEN, n=1).json["status"] == "duplicate"


@pytest.mark.parametrize("returned", ["", 7, "a\r\nb", b"ann", True, "x" * 9000])
def test_a_user_id_that_cannot_be_is_an_error_of_the_server(
    queue: Queue, caplog: pytest.LogCaptureFixture, returned: Any
) -> None:
    with caplog.at_level(logging.CRITICAL + 1, "reliq.http"), serve(queue, authenticate=lambda _: returned) as address:
        answer = ask(address, "POST", "/", n=1)
    assert (answer.status, answer.code) == (500, "internal-error")
    assert not any(queue.counts().values())


def test_an_exception_in_authenticate_is_logged_and_not_told(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    def broken(environ: dict[str, Any]) -> str:
        raise RuntimeError("password of the user table")

    with serve(queue, authenticate=broken) as address:
        answer = ask(address, "GET", "/x")
    assert (answer.status, answer.code) == (500, "internal-error")
    assert b"password" not in answer.body
    assert "password of the user table" in caplog.text
