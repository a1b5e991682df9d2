"""POST: what becomes a job, under which id, and what is answered."""

from __future__ import annotations

import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, unquote

import pytest

from reliq import CallTimeoutError, InvalidJobError, Queue, QueueFullError, RawSerde, WorkerPool, content_id
from reliq.errors import NotConfirmedError, OutcomeUnknownError, StorageCorruptError, StorageUnavailableError
from reliq.http import endpoint
from reliq.options import JobArguments
from reliq.storage.sql.memory import MemoryStorage

from .conftest import run_all, serve
from .support import Address, ask, multipart, part, say, serving

ODD_IDS = ["a b", "100%", "ä-ö-☃", "a/b", "../../etc/passwd", "a,b;c=d", 'say "hi"', "..", "{}*:"]


def payload_of(queue: Queue, id: str) -> Any:
    status = queue.get_status(id)
    assert status is not None
    return status.payload


def test_an_accepted_job_is_202_with_its_id_and_where_to_ask(queue: Queue, door: Address) -> None:
    answer = ask(door, "POST", "/", to="a@example.org")
    id = answer.headers["X-Job-Id"]
    assert answer.status == 202
    assert answer.json == {"id": id, "status": "queued", "state": "queued"}
    assert answer.headers["X-Job-Status"] == "queued"
    assert answer.headers["Location"] == f"/{id}"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert payload_of(queue, id) == {"to": "a@example.org"}
    assert ask(door, "GET", answer.headers["Location"]).json["state"] == "queued"


def test_jobs_without_an_id_are_each_their_own(queue: Queue, door: Address) -> None:
    assert ask(door, "POST", "/", [1]).headers["X-Job-Id"] != ask(door, "POST", "/", [1]).headers["X-Job-Id"]
    assert queue.counts()["queued"] == 2


# -- bodies -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, "ä"]}, [], "text", 7, None, True, {}])
def test_json_travels_as_it_parses(queue: Queue, door: Address, value: Any) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert ask(door, "POST", "/?id=j", json.dumps(value).encode(), headers).status == 202
    assert payload_of(queue, "j") == value


def test_a_form_is_a_dict_with_lists_for_repeated_names(queue: Queue, door: Address) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert ask(door, "POST", "/?id=f", b"to=a%40b&tag=x&tag=y&empty=&city=K%C3%B6ln+1", headers).status == 202
    assert payload_of(queue, "f") == {"to": "a@b", "tag": ["x", "y"], "empty": "", "city": "Köln 1"}


def test_a_form_may_be_in_another_charset(queue: Queue, door: Address) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=ISO-8859-1"}
    assert ask(door, "POST", "/?id=f", b"city=K%F6ln", headers).status == 202
    assert payload_of(queue, "f") == {"city": "Köln"}


def test_a_multipart_form_has_fields_and_files(queue: Queue, door: Address) -> None:
    content = bytes(range(256)) + b"\r\n--frontie\r\n--frontierx\r\n\r\n"
    body, headers = multipart(
        part("to", "Köln".encode()),
        part("tag", b"x"),
        part("tag", b"\r\n"),
        part("file", content, '; filename="a;b ä.bin"', "Content-Type: image/png\r\n"),
        part("empty", b"", '; filename=""'),
        part("old", b"\xf6", lines="Content-Type: text/plain; charset=latin1\r\n"),
    )
    assert ask(door, "POST", "/?id=m", body, headers).status == 202
    encoded = base64.b64encode(content).decode()
    assert payload_of(queue, "m") == {
        "to": "Köln",
        "tag": ["x", "\r\n"],
        "file": {"filename": "a;b ä.bin", "content_type": "image/png", "size": len(content), "content": encoded},
        "empty": {"filename": "", "content_type": "application/octet-stream", "size": 0, "content": ""},
        "old": "ö",
    }


def test_a_multipart_form_may_have_text_around_it_and_a_quoted_boundary(queue: Queue, door: Address) -> None:
    body, _ = multipart(part("a", b"1"), part("b", b""), boundary="a b")
    headers = {"Content-Type": 'multipart/form-data; boundary="a b"'}
    body = b"preamble\r\n" + body.replace(b"--a b\r\n", b"--a b \t\r\n") + b"epilogue --a b"
    assert ask(door, "POST", "/?id=m", body, headers).status == 202
    assert payload_of(queue, "m") == {"a": "1", "b": ""}


def test_an_empty_multipart_form_is_an_empty_dict(queue: Queue, door: Address) -> None:
    body, headers = multipart()
    assert ask(door, "POST", "/?id=m", body, headers).status == 202
    assert payload_of(queue, "m") == {}


def test_a_form_of_a_real_client_is_read(queue: Queue, door: Address) -> None:
    test = pytest.importorskip("werkzeug.test", reason="werkzeug is not installed")
    structures = pytest.importorskip("werkzeug.datastructures", reason="werkzeug is not installed")
    file = structures.FileStorage(io.BytesIO(b"abc"), "f.txt")
    stream, _, boundary = test.stream_encode_multipart({"name": "x", "file": file})
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    assert ask(door, "POST", "/?id=m", stream.read(), headers).status == 202
    found = payload_of(queue, "m")
    assert found["name"] == "x"
    assert found["file"]["filename"] == "f.txt"


def test_a_compressed_body_is_415(queue: Queue, door: Address) -> None:
    headers = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    assert ask(door, "POST", "/", b"abc", headers).code == "unsupported-type"
    assert ask(door, "POST", "/?id=i", b"abc", {**headers, "Content-Encoding": "identity"}).status == 202


def test_text_is_a_str(queue: Queue, door: Address) -> None:
    for id, content_type, body in (
        ("1", "text/plain", "ä".encode()),
        ("2", "text/csv; charset=windows-1252", "ä€".encode("cp1252")),
        ("3", "TEXT/Plain", b""),
    ):
        assert ask(door, "POST", f"/?id={id}", body, {"Content-Type": content_type}).status == 202
    assert [payload_of(queue, id) for id in "123"] == ["ä", "ä€", ""]


def test_no_body_and_no_type_is_none(queue: Queue) -> None:
    status = endpoint(queue).handle(
        {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "QUERY_STRING": "id=n", "wsgi.input": b""}
    )
    assert status.status == 202
    assert payload_of(queue, "n") is None


def test_text_for_a_queue_of_bytes(queue: Queue) -> None:
    raw = Queue("raw", queue.storage, payload_serde=RawSerde(), result_serde=RawSerde())
    raw.execute(lambda job: job.payload * 2)
    with serve(raw, accepts=["text/plain"]) as address:
        assert ask(address, "POST", "/?id=r", b"\xc3\xa4", {"Content-Type": "text/plain"}).status == 202
        assert payload_of(raw, "r") == b"\xc3\xa4"
        run_all(raw)
        assert ask(address, "GET", "/r").json["result_base64"] == base64.b64encode(b"\xc3\xa4\xc3\xa4").decode()


def test_accepts_says_which_bodies_are_taken(queue: Queue) -> None:
    with serve(queue, accepts=("application/json", "application/vnd.order+json")) as address:
        assert ask(address, "POST", "/", b"{}", {"Content-Type": "application/vnd.order+json"}).status == 202
        refused = ask(address, "POST", "/", b"a=b", {"Content-Type": "application/x-www-form-urlencoded"})
        assert (refused.status, refused.code) == (415, "unsupported-type")
        assert refused.headers["Accept-Post"] == "application/json, application/vnd.order+json"


@pytest.mark.parametrize(
    "content_type",
    ["application/xml", "image/png", "garbage", "text", "application/json, text/plain", "text/plain; charset=utf-7",
     "text/plain; charset=hex", "application/json; charset=utf-16", "multipart/mixed; boundary=x", "text/*", "*/*",
     "application/" + "x" * 5000],
)  # fmt: skip
def test_other_bodies_are_415(queue: Queue, door: Address, content_type: str) -> None:
    assert ask(door, "POST", "/", b"{}", {"Content-Type": content_type}).status == 415
    assert not any(queue.counts().values())


# -- ids --------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ODD_IDS)
def test_any_id_travels_both_ways(queue: Queue, door: Address, id: str) -> None:
    answer = ask(door, "POST", f"/?dedupe={quote(id, safe='')}", [1])
    assert answer.status == 202
    assert answer.json["id"] == id
    assert unquote(answer.headers["X-Job-Id"]) == id
    assert queue.get_status(id) is not None
    assert ask(door, "POST", "/", [1], {"X-Job-Id": answer.headers["X-Job-Id"]}).json["id"] == id
    assert ask(door, "GET", answer.headers["Location"]).json["id"] == id
    assert ask(door, "GET", f"/?id={quote(id, safe='')}").json["id"] == id


@pytest.mark.parametrize(
    "headers", [{"X-Job-Id": "k-1"}, {"Idempotency-Key": "k-1"}, {"Idempotency-Key": '"k-1"'}, {"X-Job-Id": "%6b-1"}]
)
def test_a_header_may_give_the_id(queue: Queue, door: Address, headers: dict[str, str]) -> None:
    assert ask(door, "POST", "/", [1], headers).headers["X-Job-Id"] == "k-1"


def test_two_ids_that_differ_are_refused(queue: Queue, door: Address) -> None:
    assert ask(door, "POST", "/?dedupe=a", [1], {"X-Job-Id": "a"}).status == 202
    refused = ask(door, "POST", "/?dedupe=a", [1], {"X-Job-Id": "b"})
    assert (refused.status, refused.code) == (400, "ambiguous")


@pytest.mark.parametrize("id", ["", "x" * 513, "a%0d%0aSet-Cookie:%20x=1", "%00", "%c2%85", "%ed%a0%80", "%ff"])
def test_ids_that_cannot_be_are_400(queue: Queue, door: Address, id: str) -> None:
    for answer in (
        ask(door, "POST", f"/?dedupe={id}", [1]),
        ask(door, "POST", "/", [1], {"X-Job-Id": id}),
        ask(door, "GET", f"/?id={id}"),
    ):
        assert answer.status == 400
        assert answer.code in {"job-invalid", "query-invalid", "id-invalid"}
        assert answer.headers["Set-Cookie"] is None
    assert not any(queue.counts().values())


def test_an_id_cannot_end_the_line_of_a_header(queue: Queue, door: Address) -> None:
    answer = say(
        door, b"POST /?dedupe=a%E2%80%A8b%E2%80%A9c%C3%A9 HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n\r\n"
    )
    assert answer.status == 202
    assert answer.headers["X-Job-Id"] == quote("a\u2028b\u2029cé")


# -- duplicates -------------------------------------------------------------------------


def test_a_duplicate_of_a_live_job_is_202_and_changes_nothing(queue: Queue, door: Address) -> None:
    ask(door, "POST", "/?id=d", n=1)
    again = ask(door, "POST", "/?id=d", n=2)
    assert again.status == 202
    assert again.json == {"id": "d", "status": "duplicate", "state": "queued"}
    assert again.headers["X-Job-Status"] == "duplicate"
    assert payload_of(queue, "d") == {"n": 1}


def test_of_many_posts_of_one_id_at_once_exactly_one_is_accepted(queue: Queue, door: Address) -> None:
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda n: ask(door, "POST", "/?id=d", n=n), range(16)))
    assert sorted(answer.json["status"] for answer in answers) == ["duplicate"] * 15 + ["queued"]
    assert {answer.status for answer in answers} == {202}
    [accepted] = [n for n, answer in enumerate(answers) if answer.json["status"] == "queued"]
    assert payload_of(queue, "d") == {"n": accepted}


def test_a_finished_id_is_200_with_its_cached_result(queue: Queue, door: Address) -> None:
    ask(door, "POST", "/?id=d", n=1)
    run_all(queue)
    again = ask(door, "POST", "/?id=d", n=2)
    assert again.status == 200
    assert again.headers["X-Job-Status"] == "completed"
    assert again.json["state"] == "completed"
    assert again.json["result"] == {"payload": {"n": 1}, "headers": {}, "id": "d"}


def test_a_result_of_none_is_a_result(queue: Queue) -> None:
    nothing = Queue("nothing", queue.storage)
    nothing.execute(lambda job: None)
    with serve(nothing) as address:
        ask(address, "POST", "/?id=d", n=1)
        run_all(nothing)
        again = ask(address, "POST", "/?id=d", n=1)
        assert again.status == 200
        assert again.json["result"] is None
        assert ask(address, "GET", "/d").json["result"] is None


def test_an_id_whose_result_is_gone_is_409(queue: Queue, door: Address) -> None:
    queue.enqueue("d", 1, result_ttl=1, dedup_ttl=1000)
    run_all(queue)
    queue.storage.skew_ms = 5_000
    for answer in (
        ask(door, "POST", "/?id=d", n=1),
        ask(door, "POST", "/?id=d&wait=1", n=1),
        ask(door, "GET", "/d?wait=1"),
    ):
        assert (answer.status, answer.code) == (409, "result-expired")
    plain = ask(door, "GET", "/d")
    assert plain.status == 200
    assert plain.json["state"] == "completed"
    assert "result" not in plain.json


def test_a_failed_id_is_accepted_again(queue: Queue, door: Address) -> None:
    ask(door, "POST", "/?id=d", fail="no")
    run_all(queue)
    assert ask(door, "POST", "/?id=d", n=1).json["status"] == "queued"


# -- routes -----------------------------------------------------------------------------


def test_a_route_names_parameters_for_the_handler(queue: Queue, pool: WorkerPool) -> None:
    with serve(queue, route="/shops/[shop]/orders/[dedupe]", job_options={"headers": {"via": "door"}}) as address:
        answer = ask(address, "POST", "/shops/caf%C3%A9%201/orders/o-1?color=red&x-y=&wait=10", n=1)
        assert answer.status == 200
        assert answer.json["id"] == "o-1"
        assert answer.json["result"]["headers"] == {
            "via": "door", "param-shop": "café 1", "param-color": "red", "param-x-y": "",
        }  # fmt: skip
        assert ask(address, "GET", "/shops/caf%C3%A9%201/orders/o-1").json["state"] == "completed"
        for path in ("/shops/x/orders", "/shops/x/orders/1/2", "/shops//orders/1", "/", "/Shops/x/orders/1"):
            assert ask(address, "POST", path, n=1).code == "not-found"


def test_a_parameter_given_twice_is_refused(queue: Queue) -> None:
    with serve(queue, route="/[shop]/[dedupe]") as address:
        assert ask(address, "POST", "/a/1?shop=b", n=1).code == "ambiguous"
        assert ask(address, "POST", "/a/1?dedupe=2", n=1).code == "ambiguous"
        assert ask(address, "POST", "/a/1?color=red&color=blue", n=1).code == "query-invalid"


def test_parameters_are_bounded_and_hold_no_control_characters(queue: Queue, door: Address) -> None:
    assert ask(door, "POST", f"/?a={'x' * 8187}", n=1).code == "parameters-too-large"
    assert ask(door, "POST", f"/?a={'x' * 8185}", n=1).status == 202
    assert ask(door, "POST", "/?a=b%0d%0ac", n=1).code == "parameter-invalid"
    assert ask(door, "POST", "/?a%00=b", n=1).code == "parameter-invalid"
    assert ask(door, "POST", "/?" + "&".join(f"a{n}=1" for n in range(101)), n=1).code == "query-invalid"


def test_it_can_be_mounted_anywhere(queue: Queue) -> None:
    app = endpoint(queue)

    def site(environ: dict[str, Any], start_response: Any) -> Any:
        environ["SCRIPT_NAME"] = "/über uns".encode().decode("latin-1")
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix(environ["SCRIPT_NAME"])
        return app(environ, start_response)

    with serving(site) as address:
        place = quote("/über uns")
        answer = ask(address, "POST", place + "?id=m", n=1)
        assert answer.status == 202
        assert answer.headers["Location"] == place + "/m"
        assert ask(address, "GET", place + "/m").status == 200
        assert ask(address, "POST", place + "/?id=m", n=1).json["status"] == "duplicate"


class Recording(Queue):
    """A queue that keeps what its enqueue was given, and takes ``group`` whether or not its options know it."""

    given: dict[str, Any] | None = None

    def enqueue(self, id: str | None, payload: Any = None, **options: Any) -> Any:
        self.given = {"id": id, "payload": payload, **options}
        if "group" not in JobArguments.__annotations__:
            options.pop("group", None)
        return super().enqueue(id, payload, **options)


@pytest.mark.parametrize("path", ["/users/u-1", "/users/u-1/?group=u-1"])
def test_the_group_is_handed_to_the_queue(queue: Queue, path: str) -> None:
    recording = Recording("profiles", queue.storage)
    with serve(recording, route="/users/[group]") as address:
        assert ask(address, "POST", path, n=1).status == 202
    assert recording.given is not None
    assert recording.given["group"] == "u-1"
    assert recording.given["headers"] == {}


def test_no_group_is_handed_on_where_none_is_given(queue: Queue) -> None:
    recording = Recording("profiles", queue.storage)
    with serve(recording) as address:
        ask(address, "POST", "/", n=1)
    assert recording.given is not None
    assert "group" not in recording.given


def test_groups_of_a_fifo_queue(queue: Queue) -> None:
    if "group" not in JobArguments.__annotations__:
        pytest.skip("this version's queues take no group= yet")
    fifo = Queue("profiles.fifo", queue.storage)
    seen = []
    fifo.execute(lambda job: seen.append((job.group, job.payload)))
    with serve(fifo, route="/users/[group]") as grouped, serve(fifo) as bare:
        first = ask(grouped, "POST", "/users/u-1", n=1)
        assert first.headers["X-Job-Id"] == content_id(["u-1", {"n": 1}])
        assert ask(grouped, "POST", "/users/u-1", n=1).json["status"] == "duplicate"
        assert ask(grouped, "POST", "/users/u-1", n=2).json["status"] == "queued"
        refused = ask(bare, "POST", "/", n=3)
        assert refused.status == 400
        assert "group" in refused.json["detail"]
        run_all(fifo)
    assert seen == [("u-1", {"n": 1}), ("u-1", {"n": 2})]


# -- what the storage says --------------------------------------------------------------


class Failing(MemoryStorage):
    """A storage whose every write and look ends in ``error``."""

    error: Exception | None = None

    def enqueue(self, *arguments: Any, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super().enqueue(*arguments, **options)

    def read(self, *arguments: Any, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super().read(*arguments, **options)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (QueueFullError("full"), 429, "queue-full"),
        (StorageUnavailableError("secret-host"), 503, "unavailable"),
        (OutcomeUnknownError("secret-host"), 503, "outcome-unknown"),
        (NotConfirmedError("secret-host"), 503, "outcome-unknown"),
        (StorageCorruptError("secret-host"), 500, "internal-error"),
        (KeyError("secret-host"), 500, "internal-error"),
    ],
)
def test_trouble_of_the_storage_has_its_status(error: Exception, status: int, code: str) -> None:
    storage = Failing()
    storage.error = error
    try:
        with serve(Queue("doors", storage)) as address:
            answer = ask(address, "POST", "/", n=1)
            assert (answer.status, answer.code) == (status, code)
            assert b"secret" not in answer.body
            assert (answer.headers["Retry-After"] is not None) == (status in (429, 503))
            if code == "outcome-unknown":  # what to repeat, although the client gave no id
                assert answer.json["id"] == answer.headers["X-Job-Id"]
                storage.error = None
                again = ask(address, "POST", "/", headers={"X-Job-Id": answer.headers["X-Job-Id"]}, n=1)
                assert again.headers["X-Job-Id"] == answer.headers["X-Job-Id"]
    finally:
        storage.close()


def test_a_job_that_was_accepted_is_202_whatever_happens_to_the_wait() -> None:
    storage = Failing()

    class Once(Queue):
        def wait(self, id: str, timeout: float = 30.0) -> Any:
            storage.error = StorageUnavailableError("gone")
            raise CallTimeoutError(id, "gone")

    try:
        with serve(Once("doors", storage)) as address:
            answer = ask(address, "POST", "/?wait=10", n=1)
            assert answer.status == 202
            assert answer.json == {"id": answer.headers["X-Job-Id"], "status": "queued", "state": "queued"}
            assert ask(address, "GET", answer.headers["Location"] + "?wait=10").status == 503
            storage.error = None
            worker = Queue("doors", storage)
            worker.execute(lambda job: job.payload)
            run_all(worker)
            assert ask(address, "GET", answer.headers["Location"]).json["result"] == {"n": 1}
    finally:
        storage.close()


def test_a_payload_that_outgrows_the_limit_as_json_is_413(queue: Queue) -> None:
    small = Queue("small", queue.storage, max_payload_bytes=100)
    with serve(small, max_body=1000) as address:
        body, headers = multipart(part("f", bytes(90), '; filename="f"'))
        answer = ask(address, "POST", "/", body, headers)
        assert (answer.status, answer.code) == (413, "too-large")
        assert answer.json["limit"] == 100


# -- options ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"route": "orders"}, "route must be a str that starts with a slash"),
        ({"route": "/a b"}, "route must be made of segments"),
        ({"route": "/[a]/[a]"}, "route must name each parameter once"),
        ({"route": "/x[a]"}, "route must be made of segments"),
        ({"route": 7}, "route must be a str"),
        ({"accepts": "application/json"}, "accepts must hold media types, got str"),
        ({"accepts": ["application/x-www-form-urlencode"]}, "accepts must hold types like"),
        ({"accepts": ["*/*"]}, "accepts must hold types like"),
        ({"accepts": []}, "at least one"),
        ({"authenticate": "me"}, "authenticate must be callable"),
        ({"challenge": "Bearer\r\nX: y"}, "challenge must be the text of a header"),
        ({"private": 1}, "private must be a bool"),
        ({"max_body": 0}, "max_body must be from 1"),
        ({"max_wait": -1}, "max_wait must be a finite number"),
        ({"job_options": {"colour": 1}}, "no job option 'colour'"),
        ({"job_options": []}, "job_options must be a mapping"),
        ({"timeout": 1}, "no endpoint option 'timeout'"),
    ],
)
def test_options_that_cannot_be_are_refused_when_it_is_made(
    queue: Queue, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidJobError, match=message.replace("/", r"\/").replace("*", r"\*")):
        endpoint(queue, **options)


def test_only_a_queue_can_be_served() -> None:
    with pytest.raises(InvalidJobError, match="queue must be a Queue"):
        endpoint("emails")  # type: ignore[arg-type]


def test_job_options_hold_for_every_job(queue: Queue) -> None:
    with serve(queue, job_options={"priority": 7, "max_attempts": 2}) as address:
        ask(address, "POST", "/?id=o", n=1)
    status = queue.get_status("o")
    assert status is not None
    assert (status.priority, status.max_attempts) == (7, 2)
