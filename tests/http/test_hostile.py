"""Bodies and requests that nobody sends by accident."""

from __future__ import annotations

import io
import random
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliq import Queue
from reliq.http import endpoint
from reliq.http.multipart import MAX_FIELDS, MAX_PART_HEADERS_BYTES

from .conftest import serve
from .support import Address, Answer, ask, multipart, part, say, until

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def post(address: Address, *lines: str, body: bytes = b"{}") -> Answer:
    """A POST whose headers are given as they go over the wire."""
    head = ["POST / HTTP/1.1", "Host: x", "Content-Type: application/json", *lines]
    return say(address, "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)


@pytest.fixture(scope="module")
def queue() -> Iterator[Queue]:
    """One for all of them: none may leave anything in it."""
    with Queue("doors", f"memory://{secrets.token_hex(8)}") as queue:
        yield queue


@pytest.fixture(scope="module")
def door(queue: Queue) -> Iterator[Address]:
    with serve(queue) as address:
        yield address


@pytest.fixture(autouse=True)
def nothing_is_accepted(queue: Queue) -> Any:
    yield
    accepted = [job.payload for job in queue.jobs()]
    queue.purge()  # one test's fault is not the next one's
    assert not accepted


# -- lengths ----------------------------------------------------------------------------


@pytest.mark.parametrize("length", ["-1", "+2", "abc", "2, 2", "1e1", "0x2", "2_0", "9" * 19, "9" * 4000, "²"])
def test_a_length_that_is_none_is_400(door: Address, length: str) -> None:
    assert post(door, f"Content-Length: {length}").code == "length-invalid"


def test_a_body_over_the_limit_is_413_before_it_is_read(queue: Queue) -> None:
    with serve(queue, max_body=1000) as address:
        for length in (1001, 10**17):
            answer = post(address, f"Content-Length: {length}", body=b"")
            assert (answer.status, answer.code) == (413, "too-large")
            assert answer.json["limit"] == 1000


def test_the_limit_is_the_queues_where_nothing_else_is_said(queue: Queue, door: Address) -> None:
    assert post(door, f"Content-Length: {queue.options.max_payload_bytes + 1}", body=b"").status == 413


def test_a_body_that_ends_early_is_400(door: Address) -> None:
    assert post(door, "Content-Length: 10").code == "body-incomplete"
    assert post(door, "Content-Length: 1000000", body=b"").code == "body-incomplete"


def test_without_a_length_there_is_no_body(door: Address) -> None:
    assert post(door).code == "json-invalid"  # what follows is not this request's


def test_chunks_need_a_server_that_knows_where_they_end(door: Address) -> None:
    answer = post(door, "Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\n")
    assert (answer.status, answer.code) == (411, "length-required")
    assert post(door, "Transfer-Encoding: chunked", "Content-Length: 2").status == 411


class Endless(io.RawIOBase):
    """A body that does not end; counts what was taken of it."""

    taken = 0

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        self.taken += size
        return b"[" * size


class Broken(io.RawIOBase):
    """A body whose sender is gone."""

    def read(self, size: int = -1) -> bytes:
        raise TimeoutError("the client is gone")


def environ(**more: Any) -> dict[str, Any]:
    return {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "QUERY_STRING": "", "CONTENT_TYPE": "application/json", **more}


def test_a_chunked_body_without_end_is_given_up_at_the_limit(queue: Queue) -> None:
    stream = Endless()
    more = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True, "wsgi.input": stream}
    assert endpoint(queue, max_body=100_000).handle(environ(**more)).status == 413
    assert stream.taken == 100_001


def test_never_more_is_read_than_was_announced(queue: Queue) -> None:
    stream = Endless()
    assert endpoint(queue).handle(environ(CONTENT_LENGTH="70000", **{"wsgi.input": stream})).status == 400
    assert stream.taken == 70_000


def test_a_body_that_cannot_be_read_is_400(queue: Queue) -> None:
    response = endpoint(queue).handle(environ(CONTENT_LENGTH="7", **{"wsgi.input": Broken()}))
    assert response.status == 400
    assert b"body-unreadable" in response.body


# -- JSON, forms, text ------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b"NaN", b"[Infinity]", b"-Infinity", b"[" * 100_000, b"[" * 300 + b"]" * 300,
     b'{"a":' * 2000, b"\xff", b'"\xc3"', b'"\\ud800"', b"\xef\xbb\xbf{}", b"{}{}",
     b"{'a': 1}", b"[1,]", b"01", b"\x00", "ä".encode("utf-16")],
)  # fmt: skip
def test_json_that_is_none_is_400(door: Address, body: bytes) -> None:
    answer = ask(door, "POST", "/", body, JSON)
    assert answer.status == 400
    assert answer.code in {"json-invalid", "payload-invalid"}


@pytest.mark.parametrize(
    "body", [b"a=%ff", b"a=%ed%a0%80", b"\xff=1", b"%c3=1", b"&".join([b"a=1"] * (MAX_FIELDS + 1))]
)
def test_forms_that_are_none_are_400(door: Address, body: bytes) -> None:
    assert ask(door, "POST", "/", body, FORM).code == "form-invalid"


def test_text_in_the_wrong_charset_is_400(door: Address) -> None:
    for content_type, body in (
        ("text/plain", b"\xff"),
        ("text/plain; charset=ascii", b"\xc3\xa4"),
        ("text/plain; charset=cp1252", b"x"),
        ("text/plain; charset=windows-1252", b"\x81"),
        ('text/plain; charset="', b"\xff"),
        ("text/plain; charset*=utf-8''%ff", b"\xff"),
    ):
        assert ask(door, "POST", "/", body, {"Content-Type": content_type}).status in (400, 415)


# -- multipart --------------------------------------------------------------------------

GOOD = part("a", b"1")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--frontier",
        b"x\r\n--frontier--",
        b"--frontier\r\n",
        b"--frontier\r\n\r\n",
        b"--frontier\r\n\r\n\r\n--frontier--",
        b"--frontier\r\n--frontier--",
        b"--frontier\r\n" + GOOD,
        b"--frontier\r\n" + GOOD + b"\r\n--frontier",
        b"--frontier\r\n" + GOOD + b"\r\n--frontier\r\n",
        b"--frontierx\r\n" + GOOD + b"\r\n--frontier--",
        b"x--frontier\r\n" + GOOD + b"\r\n--frontier--",
        b"--frontier\n" + GOOD.replace(b"\r\n", b"\n") + b"\n--frontier--",
        multipart(b"1")[0],
        multipart(b"X: y\r\n\r\n1")[0],
        multipart(b"Content-Disposition: attachment; name=a\r\n\r\n1")[0],
        multipart(b"Content-Disposition: form-data\r\n\r\n1")[0],
        multipart(b'Content-Disposition: form-data; name="\xff"\r\n\r\n1')[0],
        multipart(b"Content-Disposition: form-data; name*=utf-8''%ff\r\n\r\n1")[0],
        multipart(part("a", b"1", ";a=1" * 100))[0],
        multipart(part("a", b"MQ==", lines="Content-Transfer-Encoding: base64\r\n"))[0],
        multipart(part("a", b"\xff"))[0],
        multipart(part("a", b"1", lines="Content-Type: text/plain; charset=utf-7\r\n"))[0],
        multipart(part("a" * MAX_PART_HEADERS_BYTES, b"1"))[0],
        multipart(*[GOOD] * (MAX_FIELDS + 1))[0],
    ],
)
def test_forms_that_are_malformed_are_400(door: Address, body: bytes) -> None:
    answer = ask(door, "POST", "/", body, {"Content-Type": "multipart/form-data; boundary=frontier"})
    assert answer.status in (400, 415)
    assert answer.code in {"multipart-invalid", "text-invalid", "unsupported-type"}


@pytest.mark.parametrize(
    "parameter",
    ["", "; boundary=", '; boundary=""', f"; boundary={'x' * 71}", '; boundary="a\\"b"', "; boundary=a;boundary",
     "; boundary*=utf-8''frontier%00", '; boundary="ends with "'],
)  # fmt: skip
def test_boundaries_that_cannot_be_are_400(door: Address, parameter: str) -> None:
    body, _ = multipart(GOOD)
    assert ask(door, "POST", "/", body, {"Content-Type": f"multipart/form-data{parameter}"}).code == "multipart-invalid"


MIB = 1 << 20
SLOW = {
    "boundaries that are none": b"\r\n--b" * (MIB // 5),
    "boundaries with long tails": (b"\r\n--b" + b" " * 2000) * (MIB // 2005),
    "one tail": b"--b" + b" " * MIB,
    "line ends": b"\r\n" * (MIB // 2),
    "empty parts": b"--b\r\n" + b"\r\n\r\n--b\r\n" * (MIB // 9),
    "semicolons": b"".join(
        b'--b\r\nContent-Disposition: form-data; name="' + b'";' * 2000 + b"\r\n\r\n\r\n" for _ in range(MIB // 4100)
    ),
    "header lines": b"".join(b"--b\r\n" + b"a:\r\n" * 1000 + b"\r\n\r\n" for _ in range(MIB // 4010)),
    "multiparts within": b"--b\r\nContent-Disposition: form-data; name=a\r\n"
    + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
    + b"--b\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n" * (MIB // 50),
}


@pytest.mark.parametrize("name", SLOW)
def test_no_form_takes_more_time_than_its_size_explains(queue: Queue, name: str) -> None:
    """The bound is a hundred times what it takes, and far below what anything quadratic would."""
    body = SLOW[name][: MIB - 10] + b"\r\n--b--\r\n"
    more = {"CONTENT_TYPE": "multipart/form-data; boundary=b", "CONTENT_LENGTH": str(len(body))}
    started = time.thread_time()
    response = endpoint(queue).handle(environ(**more, **{"wsgi.input": io.BytesIO(body)}))
    assert response.status == 400
    assert time.thread_time() - started < 5


# -- chance -----------------------------------------------------------------------------


def test_a_hundred_random_bodies_of_every_type_are_refused_and_nothing_else(door: Address) -> None:
    chance = random.Random(5)
    types = ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "text/plain"]
    for number in range(100):
        body = b"\xff" + chance.randbytes(chance.randrange(1, 300))
        if number % 4 == 2:
            body = b"--b\r\n" + body + b"\r\n--b--"
        answer = ask(door, "POST", "/", body, {"Content-Type": types[number % 4]})
        assert 400 <= answer.status < 500
        assert answer.code is not None


def test_random_environs_never_raise(queue: Queue) -> None:
    app, chance = endpoint(queue), random.Random(7)
    keys = [
        "PATH_INFO",
        "SCRIPT_NAME",
        "QUERY_STRING",
        "RAW_URI",
        "CONTENT_TYPE",
        "HTTP_X_JOB_ID",
        "HTTP_IDEMPOTENCY_KEY",
    ]
    for _ in range(300):
        noise = {key: chance.randbytes(chance.randrange(1, 30)).decode("latin-1") for key in chance.sample(keys, 3)}
        response = app.handle({**environ(), **noise, "wsgi.input": io.BytesIO(b"{"), "CONTENT_LENGTH": "1"})
        assert 400 <= response.status < 500, noise


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc here to count open files in")
def test_no_request_leaves_a_file_open(door: Address) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    ask(door, "GET", "/nobody")
    before = open_files()
    for _ in range(10):
        post(door, "Content-Length: 100")
        post(door, "Content-Length: 99999999", body=b"")
        post(door, "Transfer-Encoding: chunked", body=b"zz")
        ask(door, "POST", "/", *multipart(part("a", b"\xff")))
        ask(door, "GET", "/nobody?wait=0.01")
    until(lambda: open_files() <= before, "more files are open than before")


@pytest.mark.parametrize(
    "request_line", [b"POST /?dedupe=a%0d%0aX-Evil:1 HTTP/1.1", b"GET /a%0d%0aX-Evil:1 HTTP/1.1", b"GET /%00 HTTP/1.1"]
)
def test_no_request_line_writes_a_header(door: Address, request_line: bytes) -> None:
    answer = say(door, request_line + b"\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n1")
    assert answer.status == 400
    assert answer.headers["X-Evil"] is None
