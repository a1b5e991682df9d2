"""The view in a real Django project, behind gunicorn. The project is written for the test."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliq import Queue, WorkerPool

from .conftest import handle
from .support import ROOT, Address, Answer, ask, gunicorn, multipart, part, say

for needed in ("django", "gunicorn"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed (pip install {needed})", allow_module_level=True)

SETTINGS = """
SECRET_KEY = "not a secret"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
DATA_UPLOAD_MAX_MEMORY_SIZE = 5000
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
TEMPLATES = []
DATABASES = {}
"""
URLS = """
from django.http import HttpResponse
from django.middleware.csrf import get_token
from django.urls import include, path
from reliq import Queue
from reliq.contrib.django import urls, view

q = Queue("doors")

def by_header(request):
    return request.headers.get("X-User")

urlpatterns = [
    path("token/", lambda request: HttpResponse(get_token(request))),
    path("jobs/", include(urls(q, csrf=False, max_body=10_000))),
    path("mine/", include(urls(q, authenticate=by_header, csrf=False, route="/[color]/[dedupe]"))),
    path("forms/", include(urls(q, max_body=10_000))),
    path("bare", view(q, csrf=False)),
]
"""
WSGI = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
from django.core.wsgi import get_wsgi_application
application = get_wsgi_application()
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('doors') / 'queue'}"


@pytest.fixture(scope="module")
def door(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    project: Path = tmp_path_factory.mktemp("project")
    shop = project / "shop"
    shop.mkdir()
    for name, text in (("__init__", ""), ("settings", SETTINGS), ("urls", URLS), ("wsgi", WSGI)):
        (shop / f"{name}.py").write_text(textwrap.dedent(text))
    with gunicorn("shop.wsgi:application", project, RELIQ_URL=url, PYTHONPATH=str(ROOT)) as address:
        yield address


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("doors", url) as queue:
        queue.execute(handle)
        queue.purge()
        yield queue


def test_a_job_from_post_to_result(queue: Queue, door: Address) -> None:
    pool = WorkerPool(queue, threads=1).start()
    try:
        answer = ask(door, "POST", "/jobs/?id=d-1&color=red&wait=20", n=1)
        assert answer.status == 200
        assert answer.headers["X-Job-Id"] == "d-1"
        assert answer.headers.get_all("Content-Type") == ["application/json"]
        assert answer.json["result"] == {"payload": {"n": 1}, "headers": {"param-color": "red"}, "id": "d-1"}
        assert ask(door, "GET", "/jobs/d-1").json["state"] == "completed"
        assert ask(door, "GET", "/jobs/d-1?wait=1").json["result"]["id"] == "d-1"
    finally:
        pool.stop()


@pytest.mark.parametrize("id", ["a%2Fb", "a%20%C3%A9", "a%0Ab", "..%2F.."])
def test_odd_ids_in_the_path(queue: Queue, door: Address, id: str) -> None:
    from urllib.parse import unquote

    answer = ask(door, "GET", f"/jobs/{id}")
    assert answer.code == ("job-invalid" if "%0A" in id else "job-not-found")
    if answer.code == "job-not-found":
        assert answer.json["id"] == unquote(id)


def test_a_user_and_a_route(queue: Queue, door: Address) -> None:
    assert ask(door, "POST", "/mine/r%C3%B6d/m-1", n=1).status == 401
    answer = ask(door, "POST", "/mine/r%C3%B6d/m-1", headers={"X-User": "änn".encode().decode("latin-1")}, n=1)
    assert answer.status == 202
    assert answer.headers["Location"] == "/mine/r%C3%B6d/m-1"
    status = queue.get_status("m-1")
    assert status is not None
    assert status.headers["param-color"] == "röd"
    assert ask(door, "GET", "/mine/r%C3%B6d/m-1", headers={"X-User": "ben"}).status == 404


def test_methods_and_problems_are_the_endpoints(queue: Queue, door: Address) -> None:
    assert ask(door, "PUT", "/jobs/").headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    assert ask(door, "OPTIONS", "/jobs/x").headers["Allow"] == "GET, HEAD, OPTIONS"
    head = ask(door, "HEAD", "/jobs/nobody")
    assert (head.status, head.body) == (404, b"")
    assert int(head.headers["Content-Length"]) > 0
    assert ask(door, "POST", "/jobs/", b"{", {"Content-Type": "application/json"}).code == "json-invalid"
    assert ask(door, "POST", "/jobs/a/b", n=1).code == "not-found"
    assert ask(door, "POST", "/bare", n=1).status == 202
    start = b"POST /jobs/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    assert say(door, start + b"Content-Length: 10001\r\n\r\n").code == "too-large"
    assert say(door, start + b"Content-Length: 10\r\n\r\n{}").code in ("body-incomplete", "body-unreadable")
    # Django reads no body without a length: such a body is refused, not taken for an empty one.
    assert say(door, start + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n").code == "length-required"
    assert ask(door, "POST", "/jobs/", ["x" * 8000]).status == 202  # within the endpoint's limit


def _token(door: Address) -> tuple[str, dict[str, str]]:
    answer = ask(door, "GET", "/token/")
    return answer.body.decode(), {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}


def test_djangos_token_is_needed_where_it_is_not_waived(queue: Queue, door: Address) -> None:
    token, cookie = _token(door)
    form, form_headers = multipart(part("a", b"1"), part("csrfmiddlewaretoken", token.encode()))

    def accepted(answer: Answer) -> bool:
        assert answer.status in (202, 403)
        return answer.status == 202

    assert not accepted(ask(door, "POST", "/forms/?id=1", n=1))
    assert not accepted(ask(door, "POST", "/forms/?id=2", headers=cookie, n=1))
    assert not accepted(ask(door, "POST", "/forms/?id=3", form, form_headers))
    assert queue.get_statuses("123") == {"1": None, "2": None, "3": None}
    assert accepted(ask(door, "POST", "/forms/?id=4", headers={**cookie, "X-CSRFToken": token}, n=1))
    assert accepted(ask(door, "POST", "/forms/?id=5", form, {**form_headers, **cookie}))
    status = queue.get_status("5")
    assert status is not None
    assert status.payload["a"] == "1"  # looking for the token in the form has not used it up
    assert ask(door, "GET", "/forms/5").status == 200
    assert ask(door, "POST", "/forms/", ["x" * 9000], headers=cookie).code == "too-large"  # Django's own limit
    assert ask(door, "POST", "/forms/", ["x" * 11000], headers=cookie).code == "too-large"


def test_djangos_users() -> None:
    from types import SimpleNamespace

    from reliq.contrib.django import user_id

    assert user_id(SimpleNamespace()) is None
    assert user_id(SimpleNamespace(user=SimpleNamespace(is_authenticated=False, pk=None))) is None
    assert user_id(SimpleNamespace(user=SimpleNamespace(is_authenticated=True, pk=7))) == "7"
