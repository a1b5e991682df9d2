"""A Django project, made of the how-to page, in processes of its own; on PostgreSQL if it can be had, else SQLite."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from reliq import Queue

from . import pages
from .postgres import NoPostgres, postgres

if importlib.util.find_spec("django") is None:
    pytest.skip('django is not installed (pip install "reliq[django]")', allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
#: A directory with Django 6, for a Python that is too old to have it installed by pip.
DJANGO_6 = os.environ.get("RELIQ_TEST_DJANGO_6")
URL = "redis://localhost:6379/0"

MANAGE = """
    import os, sys
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
    if __name__ == "__main__":
        from django.core.management import execute_from_command_line
        execute_from_command_line(sys.argv)
"""
SETTINGS = """
    SECRET_KEY = "not a secret"
    ALLOWED_HOSTS = ["*"]
    ROOT_URLCONF = "mysite.urls"
    INSTALLED_APPS = ["shop"]
    USE_TZ = True
    DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = "mails"
    _DATABASE = {database!r}
    DATABASES = {{
        "default": {{**_DATABASE, "NAME": _DATABASE["NAME"], "CONN_MAX_AGE": None}},
        "logs": {{**_DATABASE, "NAME": _DATABASE["NAME"].replace("postgres", "logs").replace("default.", "logs.")}},
    }}
"""
URLS = """
    from django.urls import include, path
    from reliq.contrib.django import urls
    from shop.jobs import emails
    from shop.views import buy
    urlpatterns = [path("buy", buy), path("jobs/", include(urls(emails, csrf=False)))]
"""
MODELS = """
    from django.db import models

    class Order(models.Model):
        receipt_sent = models.BooleanField(default=False)
"""
#: Handlers of the tests beside those of the page.
MORE_JOBS = """

    @queues["audit"].handler
    def audit(job):
        from django.db import connection
        with connection.cursor() as cursor:
            if job.payload == "kill" and job.attempts == 1:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            cursor.execute("SELECT pg_backend_pid()")
            return cursor.fetchone()[0]
"""


@dataclass
class Project:
    """The project on disk, and where its jobs are."""

    directory: Path
    url: str
    #: Why it is not on PostgreSQL; empty: it is.
    no_postgres: str

    def python(self, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        """Run Python in it; what it printed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            capture_output=True, text=True, timeout=90,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def script(self, text: str, env: Mapping[str, str] | None = None) -> str:
        """Run a program of the project; what it printed."""
        head = "import manage, django; django.setup()\n"
        return self.python("-c", head + textwrap.dedent(text), env=env)


@pytest.fixture(scope="module")
def database() -> Iterator[tuple[dict[str, str], str]]:
    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(postgres())
        except NoPostgres as error:
            yield {"ENGINE": "django.db.backends.sqlite3", "NAME": "default.sqlite3"}, str(error)
        else:
            yield {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "HOST": host, "USER": "postgres"}, ""


@pytest.fixture(scope="module")
def project(database: tuple[dict[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Project:
    directory = tmp_path_factory.mktemp("project")
    url = f"file://{directory}/queue"
    server, no_postgres = database
    page = pages.files("django.rst")
    page["mysite/settings.py"] = textwrap.dedent(SETTINGS).format(database=server) + page["mysite/settings.py"]
    page["shop/jobs.py"] += textwrap.dedent(MORE_JOBS)
    page["mysite/six.py"] = "from .settings import *\n" + page.pop("mysite/settings.py (Django 6)")
    given = {"manage.py": MANAGE, "mysite/urls.py": URLS, "shop/models.py": MODELS}
    for name, text in {**page, **given, "mysite/__init__.py": "", "shop/__init__.py": ""}.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text).replace(URL, url))
    project = Project(directory, url, no_postgres)
    project.python("manage.py", "migrate", "--run-syncdb", "-v0")
    return project


@pytest.fixture
def emails(project: Project) -> Iterator[Queue]:
    with Queue("emails", project.url) as queue:
        queue.delete()
        yield queue


def test_commits_and_rollbacks(project: Project, emails: Queue) -> None:
    project.script("""
        from django.db import transaction
        from django.test import RequestFactory
        from reliq import NewJob, Queue, QueueFullError
        from reliq.contrib.django import after_commit, at_once, integrate, queues
        from shop.exceptions import remind_when_the_log_has_it, warn_even_if_it_fails
        from shop.jobs import emails
        from shop.models import Order
        from shop.views import buy

        order = Order.objects.create()
        assert emails.enqueue("outside", {"order": order.pk}).status == "queued"

        with transaction.atomic():
            assert emails.enqueue("kept", 1) == ("kept", "deferred", "", None)
            assert [r.status for r in emails.enqueue_many([("many-1", 1), NewJob("many-2", 1)])] == ["deferred"] * 2
            assert emails.get_status("kept") is None and emails.get_status("many-2") is None
            try:
                with transaction.atomic():
                    emails.enqueue("savepoint", 1)
                    raise KeyError
            except KeyError:
                pass
            with at_once():
                assert emails.enqueue("at-once", 1).status == "queued"
            assert queues["audit"].enqueue("now").status == "queued"  # ON_COMMIT is False
            for verb in emails.call, emails.wait:
                try:
                    verb("kept")
                except transaction.TransactionManagementError as error:
                    assert f"{verb.__name__}() cannot be used inside of an atomic block" in str(error), error
                else:
                    raise SystemExit("it waited")
        for id in "kept", "many-1", "many-2":
            assert emails.get_status(id).state == "queued", id
        assert emails.get_status("savepoint") is None

        try:
            with transaction.atomic():
                emails.enqueue("rolled-back", 1)
                warn_even_if_it_fails(order)
                Order.objects.create()
                raise KeyError
        except KeyError:
            pass
        assert emails.get_status("rolled-back") is None
        assert emails.get_status(f"warn-{order.pk}").state == "queued"

        # Per alias: a transaction of another database is none of this queue's.
        with transaction.atomic("logs"):
            assert emails.enqueue("other", 1).status == "queued"
            with after_commit("logs"):
                assert queues["audit"].enqueue("logged").status == "deferred"
        assert queues["audit"].get_status("logged") is not None
        assert remind_when_the_log_has_it(order).status == "deferred"
        assert emails.get_status(f"remind-{order.pk}").state == "queued"

        own = integrate(Queue("own", "memory://"))
        with transaction.atomic():
            assert own.enqueue("a").status == "deferred"
        assert own.counts()["queued"] == 1
        buy(RequestFactory().get("/buy"))

        # The door answers what became of the job, whatever is open around it.
        from django.db import connections
        from django.test import Client
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
        assert Client().get("/buy").status_code == 200
        with transaction.atomic():
            assert Client().post("/jobs/?id=door").headers["X-Job-Status"] == "queued"

        # A storage that fails at the commit is told.
        queue = integrate(Queue("full", "memory://", max_length=1))
        before = Order.objects.count()
        try:
            with transaction.atomic():
                Order.objects.create()
                queue.enqueue("a")
                queue.enqueue("b")
        except QueueFullError:
            assert Order.objects.count() == before + 1  # it has committed
        else:
            raise SystemExit("nobody was told")
    """)
    ids = {job.id for job in emails.jobs(limit=100)}
    assert {"outside", "kept", "at-once", "other"} <= ids
    assert not {"savepoint", "rolled-back"} & ids


def test_the_worker_command(project: Project, emails: Queue) -> None:
    emails.enqueue("none", {"order": 0}, max_attempts=1)
    order = project.script("""
        from django.test import Client
        print(Client().post("/buy").json()["order"])
    """).strip()
    _, named = pages.commands("django.rst")
    project.python(*named.removeprefix("python ").replace("--reload", "--burst").split())
    assert emails.get_result(f"receipt-{order}") == f"receipt {order}"
    status = emails.get_status("none")
    assert status is not None
    assert status.error == "Order.DoesNotExist: Order matching query does not exist."


@pytest.mark.slow
def test_the_worker_command_with_processes_from_elsewhere(project: Project, emails: Queue) -> None:
    emails.enqueue("none", {"order": 0}, max_attempts=1)
    command, _ = pages.commands("django.rst")
    arguments = command.removeprefix("python manage.py ").split()
    elsewhere = replace(project, directory=project.directory.parent)
    elsewhere.python(f"{project.directory.name}/manage.py", *arguments, "--burst")
    assert emails.counts()["failed"] == 1


def test_the_worker_command_tells_what_is_wrong(project: Project) -> None:
    told = project.python("manage.py", "reliq_worker", "nobody", code=2)
    assert "reliq: no queue 'nobody'; there are: audit, emails" in told


def test_a_killed_connection_costs_one_attempt(project: Project) -> None:
    if project.no_postgres:
        pytest.skip(f"the project is on SQLite, which has no connection to kill: {project.no_postgres}")
    with Queue("audit", project.url) as audit:
        audit.delete()
        audit.enqueue_many([("before", None), ("killed", "kill"), ("after", None)])
        project.python("manage.py", "reliq_worker", "audit", "--burst", "-t", "1")
        statuses = audit.get_statuses(["before", "killed", "after"])
    before, killed, after = (status for status in statuses.values() if status is not None)
    assert [before.state, killed.state, after.state] == ["completed"] * 3
    assert [before.attempts, killed.attempts, after.attempts] == [1, 2, 1]
    assert killed.error is not None and "terminat" in killed.error
    # CONN_MAX_AGE is None: the first one's connection would have been used for all.
    assert before.result != after.result == killed.result


WRONG = [
    ("[]", "RELIQ must be a dict, got list"),
    ("{'URLS': 1}", "RELIQ has no key 'URLS'; there are: ON_COMMIT, QUEUES, URL"),
    ("{'QUEUES': {'a': 1}}", "RELIQ['QUEUES']['a'] must be a dict, got int"),
    ("{'QUEUES': {'a b': {}}}", "RELIQ['QUEUES']['a b']: queue name must be"),
    ("{'QUEUES': {'a': {'max_attempts': 0}}}", "RELIQ['QUEUES']['a']: max_attempts must be"),
    ("{'QUEUES': {'a': {'nonsense': 0}}}", "RELIQ['QUEUES']['a']: no queue option 'nonsense'"),
    ("{'QUEUES': {'a': {'NONSENSE': 0}}}", "RELIQ['QUEUES']['a'] has no key 'NONSENSE'; there are: ON_COMMIT, URL"),
    ("{'URL': 'http://x', 'QUEUES': {'a': {}}}", "RELIQ['QUEUES']['a']: storage URL must begin with"),
    ("{'ON_COMMIT': 'x', 'QUEUES': {'a': {}}}", "ON_COMMIT must be True, False or one of the databases default"),
]


def test_wrong_settings_are_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(f"""
            from django.conf import settings
            settings.configure()
            from django.core.exceptions import ImproperlyConfigured
            from reliq.contrib.django.conf import read_queues
            for settings.RELIQ in {[ast.literal_eval(given) for given, _ in WRONG]}:
                try:
                    print(read_queues())
                except ImproperlyConfigured as error:
                    print(error)
        """)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    told = done.stdout.splitlines()
    assert len(told) == len(WRONG)
    for line, (_, message) in zip(told, WRONG, strict=True):
        assert message in line


def test_the_pages_own_test(project: Project, emails: Queue) -> None:
    assert "OK" in project.python("manage.py", "test", "shop", "--settings=mysite.settings")


# -- django.tasks ---------------------------------------------------------------------

#: The documentation's own tasks (https://docs.djangoproject.com/en/6.0/topics/tasks/), and some that go wrong.
TASKS = """
    import logging
    from django.core.mail import send_mail
    from django.tasks import task
    from .models import Order

    logger = logging.getLogger(__name__)

    @task(priority=2, queue_name="emails")
    def email_users(emails, subject, message):
        return send_mail(subject=subject, message=message, from_email=None, recipient_list=emails)

    @task(takes_context=True)
    def email_with_context(context, emails, subject, message):
        logger.debug(f"Attempt {context.attempt} to send user email. Task result id: {context.task_result.id}.")
        assert context.task_result.status == "RUNNING"
        return [context.attempt, context.task_result.id]

    @task()
    def double_dictionary(key):
        return {key: key * 2}

    @task
    def my_task(thing_num):
        return Order.objects.get(pk=thing_num).pk

    @task
    async def later(n):
        return n + 1

    @task(takes_context=True)
    def second_time(context):
        if context.attempt == 1:
            raise LookupError("not yet")
        return context.attempt

    order = []

    @task
    def in_order(n):
        order.append(n)
        return list(order)
"""
TASK_PROGRAM = """
    from datetime import datetime, timedelta
    from functools import partial
    from django.core.exceptions import ImproperlyConfigured
    from django.db import transaction
    from django.tasks import default_task_backend, task_backends
    from django.tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch, InvalidTask
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils import timezone
    from reliq import Backoff, WorkerPool
    from reliq.contrib.django.backend import ReliqBackend
    from reliq.contrib.django.worker import find_queues
    from shop.models import Order
    from shop.tasks import *

    seen = []
    for name, signal in dict(enqueued=task_enqueued, started=task_started, finished=task_finished).items():
        def hear(task_result, name=name, **_):
            seen.append((name, task_result.id, str(task_result.status)))
        signal.connect(hear, weak=False)

    backend = default_task_backend
    assert backend.supports_defer and backend.supports_async_task
    assert backend.supports_get_result and backend.supports_priority

    mail = email_users.enqueue(emails=["user@example.com"], subject="You have a message", message="Hello there!")
    assert mail.status == "READY" and not mail.is_finished and mail.enqueued_at is not None
    assert seen == [("enqueued", mail.id, "READY")]
    with_context = email_with_context.enqueue(["u@example.com"], "s", "m")
    failing = double_dictionary.enqueue((1, 2, 3))
    coroutine = later.enqueue(41)
    retried = second_time.enqueue()
    deferred = later.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    soon = later.using(run_after=timezone.now() + timedelta(milliseconds=10)).enqueue(2)
    try:
        email_users.enqueue(datetime.now())
    except TypeError as error:
        assert "datetime" in str(error)
    else:
        raise SystemExit("no JSON was taken")
    try:
        email_users.using(queue_name="nowhere")
    except InvalidTask:
        pass
    assert email_users.priority == 2 and email_users.using(priority=10).priority == 10

    with transaction.atomic():
        kept = my_task.enqueue(thing_num=Order.objects.create().pk)
        assert ("enqueued", kept.id, "READY") not in seen
        try:
            backend.get_result(kept.id)
        except TaskResultDoesNotExist:
            pass
        else:
            raise SystemExit("it was sent before the commit")
    assert ("enqueued", kept.id, "READY") in seen
    with transaction.atomic():
        order_made = Order.objects.create()
        transaction.on_commit(partial(my_task.enqueue, thing_num=order_made.pk))
    for n, priority in enumerate([-100, 0, 2, 10, 100]):
        last = in_order.using(priority=priority).enqueue(n)

    assert WorkerPool(find_queues(), threads=1, prefetch=1).run_until_empty(60)
    for result in mail, with_context, failing, coroutine, retried, deferred, kept, last, soon:
        result.refresh()
    assert (str(mail.status), mail.return_value, mail.attempts) == ("SUCCESSFUL", 1, 1), mail
    assert mail.enqueued_at <= mail.started_at <= mail.finished_at and mail.last_attempted_at == mail.started_at
    assert with_context.return_value == [1, with_context.id]
    assert str(failing.status) == "FAILED" and failing.is_finished
    assert [error.exception_class for error in failing.errors] == [TypeError] * 2, failing.errors
    assert "TypeError: unhashable type: 'list'" in failing.errors[0].traceback
    assert failing.attempts == 2 and failing.enqueued_at <= failing.started_at < failing.last_attempted_at
    try:
        failing.return_value
    except ValueError as error:
        assert str(error) == "Task failed"
    assert coroutine.return_value == 42
    assert (retried.return_value, retried.attempts) == (2, 2)
    assert [error.exception_class for error in retried.errors] == [LookupError]
    assert retried.started_at < retried.last_attempted_at
    assert str(deferred.status) == "READY" and deferred.started_at is None
    assert soon.return_value == 3 or str(soon.status) == "READY"
    assert str(kept.status) == "SUCCESSFUL"
    assert order == [4, 3, 2, 1, 0], order
    assert [name for name, id, _ in seen if id == failing.id] == ["enqueued", "started", "started", "finished"]
    assert ("finished", failing.id, "FAILED") in seen and ("finished", retried.id, "SUCCESSFUL") in seen

    assert email_users.get_result(mail.id).args == []
    assert email_users.get_result(mail.id).kwargs["subject"] == "You have a message"
    assert email_users.get_result(mail.id).task.priority == 2
    for wrong, raised in (("nobody", TaskResultDoesNotExist), ("a\\n", TaskResultDoesNotExist)):
        try:
            backend.get_result(wrong)
        except raised:
            pass
        else:
            raise SystemExit("a result of nothing")
    try:
        later.get_result(mail.id)
    except TaskResultMismatch:
        pass
    else:
        raise SystemExit("a result of another task")

    # Not everything that can be imported is a task.
    [queue] = [queue for queue in find_queues() if queue.name == "tasks.default.default"]
    queue.enqueue("evil", {"task": "os.system", "args": ["true"], "kwargs": {}, "priority": 0})
    assert WorkerPool(queue, threads=1).run_until_empty(20)
    assert queue.get_status("evil").error == "Reject: 'os.system' is no task"
    for params in dict(QUEUES=[]), dict(QUEUES=["a.fifo"]), dict(OPTIONS={"max_attempts": 0}):
        try:
            ReliqBackend("x", params)
        except ImproperlyConfigured as error:
            assert "TASKS['x']" in str(error)
        else:
            raise SystemExit(params)
"""


def _django_6() -> dict[str, str]:
    """What a process needs to have django.tasks."""
    if importlib.util.find_spec("django.tasks") is not None:
        return {}
    if DJANGO_6:
        return {"PYTHONPATH": f"{ROOT}{os.pathsep}{DJANGO_6}"}
    pytest.skip("Django 6 is not installed, and RELIQ_TEST_DJANGO_6 names no directory with it")


def test_tasks(project: Project) -> None:
    env = {**_django_6(), "DJANGO_SETTINGS_MODULE": "mysite.six"}
    (project.directory / "shop" / "tasks.py").write_text(textwrap.dedent(TASKS))
    with (project.directory / "mysite" / "six.py").open("a") as settings:
        settings.write(
            "from reliq import Backoff\n"
            "TASKS['default']['OPTIONS'] |= {'max_attempts': 2, 'backoff': Backoff(base=0.05, jitter=0.0)}\n"
        )
    project.script(TASK_PROGRAM, env)
    id = project.script(
        """
        from shop.tasks import later
        print(later.enqueue(1).id)
        """,
        env,
    ).strip()
    project.python("manage.py", "reliq_worker", "tasks.default.default", "--burst", env=env)
    told = project.script(f"from shop.tasks import later; print(later.get_result({id!r}).return_value)", env)
    assert told.strip() == "2"
