"""The extension in Flask applications made by a factory, and its command in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliq import InvalidJobError, Job, Queue, WorkerPool

if importlib.util.find_spec("flask") is None:
    pytest.skip('flask is not installed (pip install "reliq[flask]")', allow_module_level=True)

import flask

from reliq.contrib.flask import Reliq, mount

from . import pages

ROOT = Path(__file__).resolve().parents[2]
Factory = Callable[..., flask.Flask]


@pytest.fixture
def reliq() -> Reliq:
    return Reliq()


@pytest.fixture
def factory(reliq: Reliq) -> Iterator[Factory]:
    apps: list[flask.Flask] = []

    def create_app(name: str = "shop", **config: Any) -> flask.Flask:
        app = flask.Flask(name)
        app.config.update({"RELIQ_URL": f"memory://{name}", **config})
        reliq.init_app(app)
        apps.append(app)
        return app

    yield create_app
    for app in apps:
        reliq.close(app)


def _drain(*queues: Queue, **options: Any) -> None:
    assert WorkerPool(queues, threads=1, **options).run_until_empty(20)


def test_each_application_has_queues_of_its_own(reliq: Reliq, factory: Factory) -> None:
    reliq.handler("mail")(lambda job: flask.current_app.name)
    one, two = factory("one"), factory("two")
    with one.app_context():
        assert reliq["mail"].enqueue("a").status == "queued"
        assert reliq["mail"] is reliq.queue("mail", one)
    with two.app_context():
        assert reliq["mail"].enqueue("a").status == "queued"
    _drain(reliq.queue("mail", one))
    _drain(reliq.queue("mail", two))
    assert [reliq.queue("mail", app).get_result("a") for app in (one, two)] == ["one", "two"]


def test_a_fresh_context_around_each_job_and_its_hooks(reliq: Reliq, factory: Factory) -> None:
    torn_down: list[object] = []

    @reliq.handler("mail", max_attempts=1)
    def send(job: Job) -> bool:
        was_fresh = "used" not in flask.g
        flask.g.used = job.id
        if job.payload == "fail":
            raise ValueError("mine")
        return was_fresh

    app = factory()
    app.teardown_appcontext(lambda error: torn_down.append((flask.g.used, repr(error))))
    queue = reliq.queue("mail", app)
    seen: list[str] = []
    queue.enqueue_many([("a", None), ("b", "fail"), ("c", None)])
    _drain(queue, after_execution=lambda job, execution: seen.append(flask.g.used))
    assert queue.get_result("a") is queue.get_result("c") is True
    assert torn_down == [("a", "None"), ("b", "ValueError('mine')"), ("c", "None")]
    assert seen == ["a", "b", "c"]


def test_options_config_stands_above_the_handlers_and_those_above_the_defaults(reliq: Reliq, factory: Factory) -> None:
    reliq.handler("mail", max_attempts=5, result_ttl=50.0)(print)
    app = factory(
        RELIQ_TIME_LIMIT=9.0,
        RELIQ_MAX_ATTEMPTS=2,
        RELIQ_QUEUES={"mail": {"result_ttl": 7.0}, "log": {"url": "memory://l"}},
    )
    mail, log = reliq.queue("mail", app), reliq.queue("log", app)
    assert (mail.options.max_attempts, mail.options.result_ttl, mail.options.time_limit) == (5, 7.0, 9.0)
    assert (log.options.max_attempts, log.function) == (2, None)
    assert [queue.name for queue in reliq.queues(app)] == ["log", "mail"]
    reliq.handler("log")(print)  # a module with handlers may be loaded after the first use
    assert reliq.queue("log", app).function is print


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"RELIQ_TIMELIMIT": 1}, r"no config key RELIQ_TIMELIMIT; there are: RELIQ_MAX_ATTEMPTS, .*RELIQ_URL"),
        ({"RELIQ_MAX_ATTEMPTS": 0}, r"the config RELIQ_\.\.\.: max_attempts must be"),
        ({"RELIQ_URL": "http://x"}, r"the config RELIQ_\.\.\.: storage URL must begin with"),
        ({"RELIQ_QUEUES": ["a"]}, r"RELIQ_QUEUES must be a dict"),
        ({"RELIQ_QUEUES": {"a": {"nonsense": 1}}}, r"RELIQ_QUEUES\['a'\]: no queue option 'nonsense'"),
    ],
)
def test_a_wrong_config_is_told(factory: Factory, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJobError, match=message):
        factory(**config)


def test_what_is_missing_is_told(reliq: Reliq, factory: Factory) -> None:
    with pytest.raises(InvalidJobError, match="outside of an application context"):
        reliq["mail"]
    with flask.Flask("bare").app_context(), pytest.raises(InvalidJobError, match="'bare' has no Reliq: call init_app"):
        reliq["mail"]
    app = factory()
    with pytest.raises(InvalidJobError, match=r"no queue 'mail': .* there are: none"):
        reliq.queue("mail", app)
    with pytest.raises(InvalidJobError, match="has a Reliq already"):
        reliq.init_app(app)
    reliq.handler("mail")(print)
    with pytest.raises(InvalidJobError, match="'mail' has a handler already"):
        reliq.handler("mail")(repr)


def test_the_door_of_a_queue(reliq: Reliq, factory: Factory) -> None:
    reliq.handler("mail")(print)
    app = factory()
    app.register_blueprint(reliq.door("mail", app), url_prefix="/jobs")
    answer = app.test_client().post("/jobs/?id=d-1", json={"n": 1})
    assert answer.status_code == 202
    assert reliq.queue("mail", app).get_status("d-1") is not None


def _echo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("207 Multi-Status", [("X-Root", environ["SCRIPT_NAME"]), ("X-Path", environ["PATH_INFO"])])
    return [environ["REQUEST_METHOD"].encode(), b" ", body, b" ", environ["QUERY_STRING"].encode()]


@pytest.mark.parametrize(
    ("path", "inner"),
    [("/admin", ""), ("/admin/", "/"), ("/admin/a/b", "/a/b"), ("/admin/a//b", "/a//b"), ("/admin/a%20b", "/a b")],
)
def test_any_wsgi_application_under_a_prefix(path: str, inner: str) -> None:
    app = flask.Flask("site")
    app.register_blueprint(mount(_echo, "admin"), url_prefix="/admin")

    @app.before_request
    def guard() -> Any:
        return ("no", 401) if "X-User" not in flask.request.headers else None

    client = app.test_client()
    assert client.get(path).status_code == 401
    answer = client.post(f"{path}?x=1", data=b"body", headers={"X-User": "me"})
    assert answer.status_code == 207
    assert (answer.headers["X-Root"], answer.headers["X-Path"]) == ("/admin", inner)
    assert answer.data == b"POST body x=1"


APP = """
    import flask
    from reliq.contrib.flask import Reliq

    reliq = Reliq()

    @reliq.handler("mail")
    def send(job):
        return [flask.current_app.name, job.payload]

    @reliq.handler("other")
    def other(job):
        return "other"

    def create_app():
        app = flask.Flask("shop")
        app.config["RELIQ_URL"] = {url!r}
        reliq.init_app(app)
        return app
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "site").mkdir()
    url = f"file://{tmp_path}/queue"
    (tmp_path / "site" / "shop.py").write_text(textwrap.dedent(APP).format(url=url))
    return url


def _flask(url: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "flask", "--app", f"{url.removeprefix('file://')}/../site/shop.py", *arguments]


def _run(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_flask(url, *arguments), capture_output=True, text=True, timeout=60, env=_env())


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_the_worker_command(url: str) -> None:
    with Queue("mail", url) as mail, Queue("other", url) as other:
        mail.enqueue("m-1", 1)
        other.enqueue("o-1")
        done = _run(url, "reliq", "worker", "mail", "--burst", "-t", "1")
        assert done.returncode == 0, done.stderr
        assert mail.get_result("m-1") == ["shop", 1]
        assert other.counts()["queued"] == 1  # it was not named


def test_the_worker_command_stops_by_a_signal(url: str) -> None:
    with Queue("mail", url) as mail:
        worker = subprocess.Popen(_flask(url, "reliq", "worker"), stderr=subprocess.DEVNULL, env=_env())
        try:
            assert mail.call("m-1", 2, timeout=30) == ["shop", 2]
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()
            worker.wait()


def test_the_worker_command_tells_what_is_wrong(url: str) -> None:
    done = _run(url, "reliq", "worker", "nobody")
    assert done.returncode == 2
    assert "reliq: no queue 'nobody'; there are: mail, other" in done.stderr


def test_the_worker_command_shows_its_options(factory: Factory) -> None:
    done = factory().test_cli_runner().invoke(args=["reliq", "worker", "--help"])
    assert done.exit_code == 0
    assert "--drain-timeout" in done.output


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/queue"
    spaces: dict[str, dict[str, Any]] = {}
    for name, text in pages.files("flask.rst").items():
        (tmp_path / name).write_text(text.replace("redis://localhost:6379/0", url))
        spaces[name] = {"__name__": name.removesuffix(".py")}
        exec(compile((tmp_path / name).read_text(), name, "exec"), spaces[name])
    app, reliq = spaces["shop.py"]["create_app"](), spaces["shop.py"]["reliq"]
    spaces["admin.py"]["add_admin"](app, _echo)
    spaces["test_shop.py"]["check_a_receipt_is_sent"](app, reliq)
    client = app.test_client()
    assert client.get("/admin/x").status_code == 403
    assert client.get("/admin/x", headers={"X-Staff": "yes"}).headers["X-Path"] == "/x"
    assert client.get("/jobs/receipt-ada").json["result"] == "shop sent ada"
    reliq.close(app)
    for command in pages.commands("flask.rst"):
        program, *arguments = command.replace("--reload", "").split()
        assert program == "flask"
        client.post("/buy/ben")
        done = subprocess.run(
            [sys.executable, "-m", program, *arguments, "--burst"],
            cwd=tmp_path, env=_env(), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert client.get("/jobs/receipt-ben").json["result"] == "shop sent ben"
    reliq.close(app)
