"""The how-to's examples, run as they stand there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from reliq import Queue
from reliq.dashboard import Dashboard

HOWTO = Path(__file__).resolve().parents[2] / "docs/howto/dashboard.rst"


def example(start: str) -> str:
    """The Python block of the how-to that begins with this line."""
    for block in HOWTO.read_text().split(".. code-block:: python\n\n")[1:]:
        lines: list[str] = []
        for line in block.splitlines():
            if line and not line.startswith("   "):
                break
            lines.append(line)
        code = textwrap.dedent("\n".join(lines))
        if code.startswith(start):
            return code
    raise AssertionError(f"no example begins with {start!r}")


def test_in_flask(queue: Queue) -> None:
    flask = pytest.importorskip("flask", reason="needs the extra `flask`")
    app = flask.Flask("shop")
    app.secret_key = "test"
    app.add_url_rule("/", view_func=lambda: "the shop")
    found: dict[str, Any] = {"app": app}
    dashboard = Dashboard(queue, authenticate=lambda environ: found["operator"](environ))
    exec(example("import flask"), found | {"dashboard": dashboard}, found)
    found["operator"].__globals__.update(found)
    client = app.test_client()
    assert client.get("/").text == "the shop"
    assert client.get("/ops/queues/").status_code == 401
    with client.session_transaction() as session:
        session["operator"] = "ann"
    answer = client.get("/ops/queues/")
    assert answer.status_code == 200
    assert "signed in as <bdi>ann</bdi>" in answer.text
    assert "/ops/queues/static/dashboard.css" in answer.text
    dashboard.close()


DJANGO = """
import io
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="test", ALLOWED_HOSTS=["*"], ROOT_URLCONF="__main__", USE_TZ=True,
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
)
django.setup()
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from reliq import Queue
from reliq.dashboard import Dashboard
urlpatterns = [path("", lambda request: HttpResponse("the shop"))]
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
queue = Queue("emails", "memory://")
dashboard = Dashboard(queue, authenticate=lambda environ: operator(environ))
exec(EXAMPLE)

def get(where, client=None):
    cookies = "; ".join(f"{name}={each.value}" for name, each in client.cookies.items()) if client else ""
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": where, "HTTP_HOST": "localhost", "HTTP_COOKIE": cookies,
               "SERVER_NAME": "localhost", "SERVER_PORT": "80", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO()}
    said = []
    body = b"".join(application(environ, lambda status, headers: said.append(status)))
    return said[0][:3], body.decode()

assert get("/") == ("200", "the shop")
assert get("/ops/queues/")[0] == "401"
for name, is_staff, expected in (("ben", False, "401"), ("ann", True, "200")):
    client = Client()
    client.force_login(User.objects.create_user(name, is_staff=is_staff))
    status, body = get("/ops/queues/", client)
    assert status == expected, (name, status)
assert "signed in as <bdi>ann</bdi>" in body and "/ops/queues/static/dashboard.css" in body
dashboard.close()
"""


def test_in_django() -> None:
    pytest.importorskip("django", reason="needs the extra `django`")
    program = f"EXAMPLE = {example('from http.cookies')!r}\n{DJANGO}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
