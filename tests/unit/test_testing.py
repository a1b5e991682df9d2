"""The helpers that reliq offers to its users' tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import ANY

import pytest

import reliq
import reliq.testing
from reliq import Backoff, FileStorage, InvalidJobError, Job, Queue, RedisStorage, Reject, Retry, Storage
from reliq.options import QueueArguments
from reliq.pytest_plugin import MakeQueue, ReliqWorker
from reliq.testing import FakeClock, Probe, Ran, assert_enqueued, isolated, run_all, run_one, simulate

DAY = 86_400.0


@pytest.fixture
def echo(reliq_queue: Queue) -> Queue:
    reliq_queue.handler(lambda job: job.payload)
    return reliq_queue


# -- running --------------------------------------------------------------------------


def test_run_one_runs_the_next_job(echo: Queue) -> None:
    assert run_one(echo) is None
    echo.enqueue_many([("a", 1), ("b", 2)])
    assert run_one(echo) == Ran("a", "completed", 1)
    assert run_one(echo) == Ran("b", "completed", 2)
    assert echo.get_result("b") == 2


def test_run_one_without_a_handler_is_refused(reliq_queue: Queue) -> None:
    with pytest.raises(InvalidJobError, match="has no handler"):
        run_one(reliq_queue)


def test_what_a_handler_raises_is_an_outcome(reliq_queue: Queue, reliq_worker: ReliqWorker) -> None:
    @reliq_queue.handler
    def fail(job: Job) -> None:
        raise Reject("never") if job.payload else ValueError("not now")

    reliq_queue.enqueue_many([("a", False), ("b", True)])
    ran = reliq_worker.run_all()
    assert [(each.id, each.state, str(each.error)) for each in ran] == [
        ("a", "failing", "not now"),
        ("b", "failed", "never"),
    ]


def test_check_raises_what_the_handler_raised(reliq_queue: Queue) -> None:
    reliq_queue.handler(lambda job: 1 / job.payload)
    reliq_queue.enqueue_many([("a", 0), ("b", 1)])
    bad, good = run_all(reliq_queue)
    with pytest.raises(ZeroDivisionError):
        bad.check()
    assert good.check() == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), pytest.fail.Exception("the test's own")])
def test_what_is_meant_for_the_test_passes_through_and_the_job_is_settled(
    reliq_queue: Queue, error: BaseException
) -> None:
    @reliq_queue.handler
    def end(job: Job) -> None:
        raise error

    reliq_queue.enqueue("1")
    with pytest.raises(type(error)):
        run_one(reliq_queue)
    assert_enqueued(reliq_queue, "1", state="failing", attempts=1)


def test_a_handler_that_asks_to_exit_fails_its_job_only(reliq_queue: Queue) -> None:
    reliq_queue.handler(lambda job: sys.exit(3))
    reliq_queue.enqueue("1")
    [ran] = run_all(reliq_queue)
    assert (ran.state, type(ran.error)) == ("failing", SystemExit)


def test_run_all_also_runs_what_handlers_enqueue_and_ends(reliq_queue: Queue) -> None:
    @reliq_queue.handler
    def count_down(job: Job) -> None:
        if job.payload:
            reliq_queue.enqueue(None, job.payload - 1)

    reliq_queue.enqueue(None, 3)
    assert len(run_all(reliq_queue)) == 4
    reliq_queue.enqueue(None, 10**6)
    with pytest.raises(AssertionError, match="still has jobs after 5 runs"):
        run_all(reliq_queue, max_runs=5)


def test_queues_of_a_test_share_a_storage(make_reliq_queue: MakeQueue) -> None:
    a, b = make_reliq_queue("a", max_attempts=9), make_reliq_queue("b")
    assert a.storage is b.storage
    a.enqueue("1")
    assert_enqueued(a, "1", max_attempts=9)


# -- assertions -----------------------------------------------------------------------


def test_assert_enqueued_tells_what_differs(reliq_queue: Queue) -> None:
    with pytest.raises(AssertionError, match="the queue is empty"):
        assert_enqueued(reliq_queue)
    reliq_queue.enqueue("a", {"n": 1}, priority=2)
    reliq_queue.enqueue("b", {"n": 2}, delay=30)
    assert assert_enqueued(reliq_queue, payload={"n": 1}).id == "a"
    assert assert_enqueued(reliq_queue, delay=30).id == "b"
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(reliq_queue, payload={"n": 1}, priority=3)
    lines = str(caught.value).splitlines()
    assert lines[0] == "no job of queue 'default' has priority=3, payload={'n': 1}"
    assert lines[1] == "  'a' (queued): priority is 2, not 3"
    assert lines[2] == "  'b' (scheduled): priority is 0, not 3; payload['n'] is 2, not 1"
    with pytest.raises(InvalidJobError, match="no field 'prioritty'"):
        assert_enqueued(reliq_queue, prioritty=3)


def test_assert_enqueued_shows_the_keys_that_differ(reliq_queue: Queue) -> None:
    reliq_queue.enqueue("a", {"to": {"name": "ada", "at": 1}, "text": "x" * 5000 + "old", "more": 1})
    wanted = {"to": {"name": "bob", "at": 1}, "text": "x" * 5000 + "new", "less": 2}
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(reliq_queue, payload=wanted)
    line = str(caught.value).splitlines()[1]
    for each in (
        "payload['to']['name'] is 'ada', not 'bob'",
        "xxxold', not ...xxx",
        "payload['less'] is not there, 2 was expected",
        "payload['more'] is 1, which was not expected",
    ):
        assert each in line
    assert "'at'" not in line
    assert len(str(caught.value)) < 1000
    assert_enqueued(reliq_queue, payload={"to": ANY, "text": ANY, "more": 1})


def test_assert_enqueued_compares_every_job_with_the_same(reliq_queue: Queue) -> None:
    reliq_queue.enqueue_many([("1", None), ("2", None)])
    with pytest.raises(AssertionError, match="after is"):
        assert_enqueued(reliq_queue, after=iter(["1"]))  # used up by the first job, it fitted the second
    reliq_queue.enqueue("3", after=["1"])
    assert assert_enqueued(reliq_queue, after=iter(["1"])).id == "3"


def test_assert_enqueued_looks_at_due_times(reliq_queue: Queue) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    reliq_queue.enqueue("1", at=at)
    assert_enqueued(reliq_queue, at=at)
    assert_enqueued(reliq_queue, at=at.timestamp())
    with pytest.raises(AssertionError, match="at is"):
        assert_enqueued(reliq_queue, at=at + timedelta(seconds=1))


# -- queues of an application ---------------------------------------------------------


def test_an_applications_queue_runs_in_memory_and_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIQ_URL", raising=False)
    unbound = Queue("unbound")
    elsewhere = Queue("elsewhere", "redis://nobody.invalid", max_length=1)  # any use of it would fail
    elsewhere.handler(lambda job: job.payload)
    for _ in range(2):
        with isolated(unbound, elsewhere) as storage:
            assert unbound.storage is elsewhere.storage is storage
            unbound.enqueue("1")
            elsewhere.enqueue("1", "x")
            with pytest.raises(reliq.QueueFullError):  # each storage is told of the limits
                elsewhere.enqueue("2")
            assert [ran.result for ran in run_all(elsewhere)] == ["x"]
            with isolated(unbound):
                assert unbound.counts()["queued"] == 0
            assert unbound.counts()["queued"] == 1
    with pytest.raises(reliq.StorageError, match="has no storage"):
        unbound.enqueue("1")
    assert unbound.bind("memory://").storage is not storage
    unbound.close()


def test_isolation_keeps_what_was_there_and_ends_with_an_error(make_reliq_queue: MakeQueue) -> None:
    queue = make_reliq_queue(max_length=1)
    queue.enqueue("mine")
    [held] = queue.claim()
    with pytest.raises(ZeroDivisionError), isolated(queue):
        assert queue.get_status("mine") is None
        assert queue.limits["max_length"] == 1  # the other storage was told of it, this one was not
        queue.enqueue("other")
        queue.claim()
        raise ZeroDivisionError
    assert queue.get_status("other") is None
    held.complete()
    assert_enqueued(queue, "mine", state="completed")


def test_a_clock_of_an_isolated_queue_never_moves_its_own_storage(reliq_queue: Queue) -> None:
    with isolated(reliq_queue) as storage:
        clock = FakeClock(reliq_queue)
        clock.advance(10)
        assert storage.skew_ms == 10_000
    with pytest.raises(reliq.StorageError):  # its storage ended
        clock.advance(10)
    assert reliq_queue.storage.skew_ms == 0


def test_isolation_is_for_queues() -> None:
    for wrong in ((), ("emails",)):
        with pytest.raises(InvalidJobError, match="isolated takes queues"), isolated(*wrong):
            pass


# -- the clock ------------------------------------------------------------------------


def test_the_clock_drives_delays(echo: Queue, reliq_clock: FakeClock) -> None:
    echo.enqueue("1", delay=3600)
    reliq_clock.advance(3500)
    assert run_one(echo) is None
    reliq_clock.advance(101)
    assert run_one(echo) is not None


def test_the_clock_drives_backoff_to_the_dead_letters(make_reliq_queue: MakeQueue) -> None:
    queue = make_reliq_queue(backoff=Backoff(base=100, factor=2, jitter=0), max_attempts=3)
    queue.handler(lambda job: 1 / 0)
    clock = FakeClock(queue)
    queue.enqueue("1")
    states = []
    for seconds in (101, 201, 1):
        [ran] = run_all(queue)
        states.append(ran.state)
        clock.advance(seconds)
    assert states == ["failing", "failing", "failed"]


def test_the_clock_drives_leases(make_reliq_queue: MakeQueue) -> None:
    queue = make_reliq_queue(visibility_timeout=20)
    queue.handler(lambda job: job.payload)
    clock = FakeClock(queue)
    queue.enqueue("1")
    [held] = queue.claim()
    clock.advance(19)
    assert queue.counts()["processing"] == 1
    clock.advance(6)
    assert run_one(queue) is not None
    with pytest.raises(reliq.LeaseLostError):
        held.complete()


def test_the_clock_drives_schedules(echo: Queue, reliq_clock: FakeClock) -> None:
    echo.schedule("hourly", every=3600)
    reliq_clock.advance(DAY)
    assert len(run_all(echo)) == 24


def test_the_clock_drives_ttls(echo: Queue, reliq_clock: FakeClock) -> None:
    echo.enqueue("1", result_ttl=50)
    run_all(echo)
    reliq_clock.advance(60)
    assert echo.get_status("1") is None


def test_the_clock_looks_after_all_queues_of_the_storage(make_reliq_queue: MakeQueue) -> None:
    first, second = make_reliq_queue("first"), make_reliq_queue("second", visibility_timeout=5)
    clock = FakeClock(first)
    second.enqueue("held")
    second.claim()
    second.enqueue("later", delay=100)
    clock.advance(101)
    assert second.counts()["queued"] == 2


@pytest.mark.parametrize("kind", ["file", "redis"])
def test_the_clock_drives_other_storages_too(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    storage: Storage
    if kind == "redis":
        storage = RedisStorage(request.getfixturevalue("redis_url"), prefix=request.getfixturevalue("redis_prefix"))
    else:
        storage = FileStorage(tmp_path)
    options: QueueArguments = {"backoff": Backoff(base=50, jitter=0), "visibility_timeout": 20, "result_ttl": 500}
    with closing(storage), Queue("q", storage, **options) as queue:
        queue.handler(lambda job: job.payload / (job.attempts - 1))
        clock = FakeClock(queue)
        queue.enqueue("1", 1, delay=3600)
        queue.schedule("daily", every=DAY, payload=1)
        assert run_one(queue) is None
        clock.advance(3601)
        assert [ran.state for ran in run_all(queue)] == ["failing"]
        clock.advance(51)
        queue.claim()
        clock.advance(26)
        assert [ran.state for ran in run_all(queue)] == ["completed"]
        clock.advance(600)
        assert queue.get_status("1") is None
        clock.advance(DAY)
        assert queue.counts()["queued"] == 1


# -- the simulator --------------------------------------------------------------------


def careless(probe: Probe) -> Callable[[Job], Any]:
    send = probe.wrap(lambda to: None, "send")
    return lambda job: send(job.payload)


def once_by_key(probe: Probe) -> Callable[[Job], Any]:
    rows: dict[str, Any] = {}
    put = probe.wrap(rows.__setitem__, "put", repeatable=True)
    return lambda job: put(job.id, job.payload)


def marks_first(probe: Probe) -> Callable[[Job], Any]:
    done: set[str] = set()
    mark = probe.wrap(done.add, "mark", repeatable=True)
    send = probe.wrap(lambda to: None, "send")

    def handler(job: Job) -> None:
        if job.id not in done:
            mark(job.id)
            send(job.payload)

    return handler


def test_a_careless_handler_repeats_its_effect() -> None:
    report = simulate(careless, "ada")
    assert not report.is_idempotent
    assert report.repeated == {"send('ada')"}
    assert report.missing == set()
    bad = [each.crash for each in report.scenarios if not each.is_safe]
    assert bad == ["after send('ada')", "after the handler, before the settle"]
    assert "BAD crash after send('ada')\n       happened again: send('ada')" in str(report)


def test_a_handler_that_marks_first_loses_its_effect() -> None:
    report = simulate(marks_first, "ada")
    assert report.missing == {"send('ada')"}
    assert report.repeated == set()


def test_an_idempotent_handler_passes_every_crash() -> None:
    report = simulate(once_by_key, "ada")
    assert report.is_idempotent, report
    assert len(report.scenarios) == 5  # before, around its one effect, around the settle
    assert report.effects == ("put('simulated', 'ada')",)


def test_a_handler_that_fails_after_redelivery_is_not_idempotent() -> None:
    def make(probe: Probe) -> Callable[[Job], Any]:
        rows: set[str] = set()

        def insert(key: str) -> None:
            if key in rows:
                raise KeyError("unique")
            rows.add(key)

        wrapped = probe.wrap(insert)
        return lambda job: wrapped(job.id)

    report = simulate(make)
    assert not report.is_idempotent
    assert "KeyError: 'unique'" in str(report)


def test_a_handler_that_catches_its_crash_does_nothing_more() -> None:
    def make(probe: Probe) -> Callable[[Job], Any]:
        first = probe.wrap(lambda: None, "first", repeatable=True)
        second = probe.wrap(lambda: None, "second")

        def handler(job: Job) -> None:
            try:
                first()
            finally:
                second()

        return handler

    safe = {each.crash for each in simulate(make).scenarios if each.is_safe}
    assert {"before first()", "after first()"} <= safe  # the second effect came with the redelivery only


def test_a_handler_that_retries_is_crashed_in_each_delivery() -> None:
    def make(probe: Probe) -> Callable[[Job], Any]:
        begun: set[str] = set()
        begin = probe.wrap(begun.add, "begin", repeatable=True)
        charge = probe.wrap(lambda: None, "charge")

        def handler(job: Job) -> None:
            if job.id not in begun:
                begin(job.id)
                raise Retry(delay=3600)
            charge()

        return handler

    report = simulate(make)
    bad = [each.crash for each in report.scenarios if not each.is_safe]
    assert bad == ["after charge() (delivery 2)", "after the handler, before the settle (delivery 2)"]
    assert len(report.scenarios) == 10
    assert report.missing == set()


def test_make_may_put_effects_into_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    mailer = ModuleType("mailer")

    def make(probe: Probe) -> Callable[[Job], Any]:
        monkeypatch.setattr(mailer, "send", probe.wrap(lambda to: None, "send"), raising=False)
        return lambda job: mailer.send(job.payload)

    assert simulate(make, "ada").repeated == {"send('ada')"}


def test_places_in_memory_tell_no_effects_apart() -> None:
    def make(probe: Probe) -> Callable[[Job], Any]:
        put = probe.wrap(lambda thing: None, "put", repeatable=True)
        return lambda job: put(object())

    report = simulate(make)
    assert report.is_idempotent
    assert report.effects == ("put(<object object>)",)


def test_runs_that_cannot_be_compared_are_refused() -> None:
    numbers = iter(range(100))
    done: set[str] = set()  # outside of make: not reset between the crashes

    def new_each_time(probe: Probe) -> Callable[[Job], Any]:
        put = probe.wrap(lambda number: None, "put")
        return lambda job: put(next(numbers))

    def remembers(probe: Probe) -> Callable[[Job], Any]:
        put = probe.wrap(done.add, "put")
        other = probe.wrap(lambda: None, "other")
        return lambda job: other() if job.id in done else put(job.id)

    with pytest.raises(InvalidJobError, match=r"put\(0\), then put\(1\)"):
        simulate(new_each_time)
    with pytest.raises(InvalidJobError, match=r"put\('simulated'\), then other\(\)"):
        simulate(remembers)


def test_a_handler_that_does_not_come_to_its_crash_is_refused() -> None:
    runs = iter(range(100))

    def make(probe: Probe) -> Callable[[Job], Any]:
        first = probe.wrap(lambda: None, "first")
        second = probe.wrap(lambda: None, "second")
        run = next(runs)

        def handler(job: Job) -> None:
            first()
            if run < 2:  # alike in the two runs that are compared, not in those with a crash
                second()

        return handler

    with pytest.raises(InvalidJobError, match=r"did not come to the crash before second\(\)"):
        simulate(make)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(InvalidJobError, match="called no effect"):
        simulate(lambda probe: lambda job: None)
    with pytest.raises(ZeroDivisionError):
        simulate(lambda probe: lambda job: 1 / 0)


# -- the plugin -----------------------------------------------------------------------


def test_the_plugin_loads_no_storage_and_no_contract_until_a_fixture_is_used() -> None:
    code = (
        "import sys, reliq.pytest_plugin; "
        "print([name for name in ('sqlite3', 'redis', 'reliq.testing', 'reliq.worker') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_each_name_is_there() -> None:
    for name in reliq.testing.__all__:
        assert getattr(reliq.testing, name).__module__.startswith("reliq.testing.")
    with pytest.raises(AttributeError, match="no attribute 'run_two'"):
        reliq.testing.run_two  # noqa: B018


def test_the_helpers_need_no_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from reliq import Queue\n"
        "from reliq.testing import run_one\n"
        "with Queue('q', 'memory://') as q:\n"
        "    q.handler(lambda job: job.payload)\n"
        "    q.enqueue('1', 5)\n"
        "    print(run_one(q).result)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "5", done.stderr


def test_a_users_test_gets_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(reliq_queue, reliq_worker, reliq_clock, assert_enqueued):\n"
        "    reliq_queue.handler(lambda job: job.payload)\n"
        "    reliq_queue.enqueue('1', 'x', delay=5)\n"
        "    assert_enqueued(reliq_queue, '1', payload='x', delay=5)\n"
        "    reliq_clock.advance(6)\n"
        "    assert [ran.result for ran in reliq_worker.run_all()] == ['x']\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
