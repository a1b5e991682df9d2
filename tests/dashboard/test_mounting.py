"""The how-to's examples, run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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


def test_in_flask() -> None:
    flask = pytest.importorskip("flask", reason="needs the extra `flask`")
    from reliq.contrib.flask import Reliq

    reliq = Reliq()
    reliq.handler("emails")(print)
    app = flask.Flask("shop")
    app.secret_key = "test"
    app.config["RELIQ_URL"] = "memory://"
    reliq.init_app(app)
    app.add_url_rule("/", view_func=lambda: "the shop")
    exec(example("from flask"), {"app": app, "reliq": reliq})
    client = app.test_client()
    assert client.get("/").text == "the shop"
    assert client.get("/ops/queues/").status_code == 401
    with client.session_transaction() as session:
        session["operator"] = "ann"
    answer = client.get("/ops/queues/")
    assert answer.status_code == 200
    assert "signed in as <bdi>ann</bdi>" in answer.text
    assert client.get(re.findall(r"/ops/queues/static/dashboard\S+?css", answer.text)[0]).mimetype == "text/css"
    queue = reliq.queue("emails", app)
    form = {"action": "pause", "queue": "emails", "token": "0" * 64}
    headers = {"Origin": "http://localhost"}
    assert client.post("/ops/queues/act", data=form, headers=headers).status_code == 403
    assert not queue.is_paused
    form["token"] = re.findall(r'name="token" value="(\w+)"', client.get("/ops/queues/jobs?queue=emails").text)[0]
    assert client.post("/ops/queues/act", data=form, headers=headers).status_code == 303
    assert queue.is_paused
    reliq.close(app)


DJANGO = r"""
import re
from urllib.parse import urlencode
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="test", ALLOWED_HOSTS=["*"], ROOT_URLCONF="__main__", USE_TZ=True, LOGIN_URL="/login/",
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "ATOMIC_REQUESTS": True}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    MIDDLEWARE=[f"django.{name}" for name in (
        "middleware.security.SecurityMiddleware", "contrib.sessions.middleware.SessionMiddleware",
        "middleware.common.CommonMiddleware", "middleware.csrf.CsrfViewMiddleware",
        "contrib.auth.middleware.AuthenticationMiddleware", "middleware.clickjacking.XFrameOptionsMiddleware",
    )],
    RELIQ={"URL": "memory://", "QUEUES": {"emails": {}, "audit": {}}},
)
django.setup()
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client
urlpatterns = []
exec(EXAMPLE)
urlpatterns += [
    path("", lambda request: HttpResponse("the shop")),
    path("own/", include(dashboard_urls(authenticate=lambda request: request.headers.get("X-User")))),
]
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
from reliq.contrib.django import queues

client = Client(enforce_csrf_checks=True)
assert client.get("/").content == b"the shop"
answer = client.get("/ops/queues/jobs?queue=emails")
assert answer.status_code == 302 and answer["Location"].startswith("/login/?next=/ops/queues/jobs"), answer
client.force_login(User.objects.create_user("ben"))
assert client.get("/ops/queues/").status_code == 302
client.force_login(User.objects.create_user("ann", is_staff=True))
answer = client.get("/ops/queues/")
text = answer.text if hasattr(answer, "text") else answer.content.decode()
assert answer.status_code == 200, text
assert "signed in as <bdi>ann</bdi>" in text and "audit" in text
assert answer["X-Frame-Options"] == "DENY"
[style] = set(re.findall(r"/ops/queues/static/dashboard\S+?css", text))
assert client.get(style)["Content-Type"].startswith("text/css")

form = {"action": "pause", "queue": "emails", "token": "0" * 64}
def act(headers):
    content = "application/x-www-form-urlencoded"
    return client.post("/ops/queues/act", urlencode(form), content_type=content, headers=headers)

here = {"Host": "testserver", "Origin": "http://testserver"}  # as browsers send them
answer = act(here)
assert answer.status_code == 403 and not queues["emails"].is_paused, (answer.status_code, answer.content)
page = client.get("/ops/queues/jobs?queue=emails").content.decode()
form["token"] = re.findall(r'name="token" value="(\w+)"', page)[0]
answer = act(here | {"Origin": "http://elsewhere"})
assert answer.status_code == 403 and not queues["emails"].is_paused
answer = act(here)
assert answer.status_code == 303, answer.content
assert queues["emails"].is_paused and not queues["audit"].is_paused

assert client.get("/own/").status_code == 401
assert "signed in as <bdi>cat</bdi>" in client.get("/own/", headers={"X-User": "cat"}).content.decode()
"""


def test_in_django() -> None:
    pytest.importorskip("django", reason="needs the extra `django`")
    program = f"EXAMPLE = {example('from django')!r}\n{DJANGO}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
