"""Who may: names, sites, users, tokens. Each refusal stands beside the request that is let through."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from reliq import MemoryStorage, Queue, StorageUnavailableError
from reliq.dashboard import Dashboard

from .support import Browser

ACTIONS = ("pause", "resume", "cancel", "retry", "discard", "retry-all", "discard-all")


@pytest.fixture
def form(queue: Queue, actor: Browser) -> dict[str, Any]:
    """The form that pauses the queue, of a browser with a session."""
    queue.enqueue("a", 1)
    return actor.page("/jobs?queue=emails").form("Pause")


def test_every_answer_forbids_what_pages_do_not_need(queue: Queue, actor: Browser, form: dict[str, Any]) -> None:
    answers = [actor.get(path) for path in ("/", "/nothing", "/api/queues", "/api/x", "/static/dashboard.js")]
    answers += [actor.post("/act", {}), actor.submit(form)]
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
    assert all(answer.headers["Cache-Control"] == "no-store" for answer in answers if answer.status != 200)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8765", 200),
        ("LOCALHOST:80", 200),
        ("localhost.", 200),
        ("127.0.0.1:8765", 200),
        ("[::1]:8765", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil.example:8765", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost:8765@evil.example", 421),
        ("10.0.0.5", 421),
        ("", 421),
        (None, 421),
    ],
)
def test_without_authentication_it_answers_by_loopback_names_only(
    reader: Browser, host: str | None, status: int
) -> None:
    assert reader.get("/", HTTP_HOST=host).status == status
    assert reader.get("/api/queues", HTTP_HOST=host).status == status


def test_the_names_it_answers_by_can_be_said(queue: Queue) -> None:
    named = Browser(Dashboard(queue, hosts=["Jobs.Example.org", "[::1]"]))
    assert named.get("/", HTTP_HOST="jobs.example.org").status == 200
    assert named.get("/", HTTP_HOST="localhost").status == 421
    asked = Browser(Dashboard(queue, authenticate=lambda _: "ann"))
    assert asked.get("/", HTTP_HOST="jobs.example.org").status == 200
    both = Browser(Dashboard(queue, authenticate=lambda _: "ann", hosts=["jobs.example.org"]))
    assert both.get("/", HTTP_HOST="other.example.org").status == 421
    for browser in (named, asked, both):
        browser.app.close()


def test_nobody_is_401_everywhere(queue: Queue) -> None:
    asked: list[str] = []

    def authenticate(environ: dict[str, Any]) -> str | None:
        asked.append(environ["PATH_INFO"])
        return environ.get("HTTP_X_USER")

    app = Browser(Dashboard(queue, authenticate=authenticate, allow_actions=True, challenge='Basic realm="ops"'))
    paths = ["/", "/jobs?queue=emails", "/job?queue=emails&id=a", "/dead", "/workers", "/api/queues", "/nothing"]
    for path in paths:
        answer = app.get(path)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="ops"'
        assert "emails" not in answer.text
    assert app.post("/act", {"action": "pause", "queue": "emails"}).status == 401
    assert not queue.is_paused
    assert asked
    assert "signed in as ann" in app.get("/", HTTP_X_USER="ann").page.one("footer").content
    app.app.close()


def test_an_authentication_that_breaks_lets_nobody_in(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    def authenticate(_: Any) -> str | None:
        raise RuntimeError("the directory at 10.1.2.3 is down")

    app = Browser(Dashboard(queue, authenticate=authenticate))
    with caplog.at_level(logging.CRITICAL):
        answer = app.get("/")
    assert answer.status == 500
    assert "10.1.2.3" not in answer.text


# -- actions --------------------------------------------------------------------------


def test_the_form_of_the_page_is_taken(queue: Queue, actor: Browser, form: dict[str, Any]) -> None:
    """The control of all refusals below."""
    assert actor.submit(form).status == 303
    assert queue.is_paused


def test_the_cookie_is_for_this_dashboard_alone(actor: Browser) -> None:
    first = actor.get("/").headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/ops/queues/"} <= set(first.split("; "))
    assert "Secure" not in first
    assert "Set-Cookie" not in actor.get("/").headers, "the session goes on"
    actor.cookie = ""
    assert actor.get("/", **{"wsgi.url_scheme": "https"}).headers["Set-Cookie"].endswith("; Secure")


@pytest.mark.parametrize("name", ACTIONS)
def test_no_action_without_the_token(queue: Queue, actor: Browser, name: str) -> None:
    queue.enqueue("a", 1)
    before = queue.counts(), queue.is_paused
    stranger = Browser(actor.app, actor.prefix)
    other = stranger.page("/jobs?queue=emails").form("Pause")["token"]
    actor.get("/")
    assert other
    for token in ({}, {"token": ""}, {"token": "0" * 64}, {"token": other}, {"token": "\udc80\u00e9"[1:]}):
        answer = actor.post("/act", {"action": name, "queue": "emails", "id": "a", "confirm": "yes", **token})
        assert answer.status == 403
        assert "not of this browser session" in answer.text
    assert (queue.counts(), queue.is_paused) == before


def test_a_token_is_of_its_session_and_user(queue: Queue) -> None:
    app = Dashboard(queue, allow_actions=True, authenticate=lambda environ: environ["HTTP_X_USER"])
    ann = Browser(app, HTTP_X_USER="ann")
    queue.enqueue("a", 1)
    form = ann.page("/jobs?queue=emails").form("Pause")
    session, ann.cookie = ann.cookie, ""
    assert ann.submit(form).status == 403, "without the cookie"
    ann.cookie = f"{session[:-1]}{'0' if session[-1] != '0' else '1'}"
    assert ann.submit(form).status == 403, "with another"
    ann.cookie = session
    ben = Browser(app, HTTP_X_USER="ben")
    ben.cookie = session
    assert ben.submit(form).status == 403, "of another user"
    assert not queue.is_paused
    ann.cookie = f"other=1; {session}; more=2"
    assert ann.submit(form).status == 303
    app.close()


@pytest.mark.parametrize(
    ("sent", "is_taken"),
    [
        ({}, True),
        ({"HTTP_ORIGIN": "https://localhost:8765"}, True),  # behind a proxy that speaks TLS
        ({"HTTP_ORIGIN": None, "HTTP_SEC_FETCH_SITE": "same-origin"}, True),
        ({"HTTP_ORIGIN": None, "HTTP_REFERER": "http://localhost:8765/ops/queues/jobs"}, True),
        ({"HTTP_ORIGIN": None}, False),
        ({"HTTP_ORIGIN": "null"}, False),
        ({"HTTP_ORIGIN": ""}, False),
        ({"HTTP_ORIGIN": "http://localhost:9999"}, False),
        ({"HTTP_ORIGIN": "http://localhost:8765.evil.example"}, False),
        ({"HTTP_ORIGIN": "http://localhost:8765@evil.example"}, False),
        ({"HTTP_ORIGIN": "http://[nonsense"}, False),
        ({"HTTP_ORIGIN": "file://localhost:8765"}, False),
        ({"HTTP_SEC_FETCH_SITE": "cross-site"}, False),
        ({"HTTP_SEC_FETCH_SITE": "same-site"}, False),
        ({"HTTP_ORIGIN": None, "HTTP_SEC_FETCH_SITE": "none"}, False),
        ({"HTTP_ORIGIN": None, "HTTP_REFERER": "http://evil.example/?http://localhost:8765/"}, False),
    ],
)
def test_actions_come_from_pages_of_this_site(
    queue: Queue, actor: Browser, form: dict[str, Any], sent: dict[str, Any], is_taken: bool
) -> None:
    fields = {name: form[name] for name in ("token", "action", "queue")}
    answer = actor.post("/act", fields, **sent)
    assert answer.status == (303 if is_taken else 403)
    assert queue.is_paused is is_taken


@pytest.mark.parametrize("name", ACTIONS)
def test_a_get_changes_nothing(queue: Queue, actor: Browser, form: dict[str, Any], name: str) -> None:
    before = queue.counts(), queue.is_paused
    where = f"/act?action={name}&queue=emails&id=a&confirm=yes&token={form['token']}"
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
        assert actor.ask(method, where, HTTP_ORIGIN="http://localhost:8765").status == 405
    assert actor.post(where, {}).status == 403, "nothing is read from the address"
    assert actor.post("/jobs?queue=emails", form).status == 405
    assert (queue.counts(), queue.is_paused) == before


def test_a_reader_has_no_forms_and_takes_none(queue: Queue, reader: Browser, actor: Browser) -> None:
    queue.enqueue("a", 1)
    token = actor.page("/jobs?queue=emails").form("Pause")["token"]
    for path in ("/", "/jobs?queue=emails", "/job?queue=emails&id=a", "/dead", "/workers"):
        answer = reader.get(path)
        assert answer.page.forms == []
        assert "Set-Cookie" not in answer.headers
    reader.cookie = actor.cookie
    for name in ACTIONS:
        answer = reader.post("/act", {"action": name, "queue": "emails", "id": "a", "confirm": "yes", "token": token})
        assert answer.status == 403
    assert not queue.is_paused
    assert queue.counts()["queued"] == 1


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"action": "explode"}, 400),
        ({"action": "retry"}, 400),
        ({"action": "retry", "id": ""}, 400),
        ({"action": "retry", "id": "\x00"}, 400),
        ({"action": "retry-all", "left": "many", "confirm": "yes"}, 400),
        ({"action": "retry-all", "left": "-1", "confirm": "yes"}, 400),
        ({"queue": "other"}, 404),
    ],
)
def test_forms_that_make_no_sense_are_told_so(
    actor: Browser, form: dict[str, Any], more: dict[str, str], status: int
) -> None:
    assert actor.submit(form, **more).status == status


def test_a_form_has_its_type_and_size(actor: Browser) -> None:
    headers: dict[str, Any] = {"CONTENT_TYPE": "text/plain"}
    assert actor.post("/act", {"a": "b"}, **headers).status == 415
    assert actor.post("/act", {"a": "b" * 600_000}).status == 413


# -- trouble --------------------------------------------------------------------------


class Broken(MemoryStorage):
    """Does not answer, or breaks."""

    error: Exception = StorageUnavailableError("no connection to redis://10.9.8.7")

    def queues(self) -> list[str]:
        raise self.error


def test_trouble_is_told_without_its_inside(caplog: pytest.LogCaptureFixture) -> None:
    storage = Broken()
    app = Browser(Dashboard(storage))
    with caplog.at_level(logging.CRITICAL):
        for error, status in ((storage.error, 503), (RuntimeError("inside 10.9.8.7"), 500)):
            storage.error = error
            for path in ("/", "/api/queues"):
                answer = app.get(path)
                assert answer.status == status
                assert "10.9.8.7" not in answer.text
    storage.close()
