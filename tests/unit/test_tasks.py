"""Tasks: functions whose calls are jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from reliq import InvalidJobError, JobFailedError, Queue, RawSerde, SerdeError, WorkerPool, current_job
from reliq.pytest_plugin import MakeQueue, ReliqWorker
from reliq.tasks import Task


def add_to(queue: Queue) -> Task[[int, int], int]:
    @queue.task
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    return add


def typing_contract(queue: Queue) -> None:
    """Never runs; mypy reads it, and fails on a comment that ignores nothing."""

    @queue.task(name="other", max_attempts=2)
    def other(to: str, *, n: int) -> list[str]:
        return [to] * n

    result: list[str] = other.call("ada", n=2)
    again: list[str] = other.options(id="1", delay=1.0).call("ada", n=len(result))
    other.enqueue("ada", n=len(again))
    other.enqueue(1, n=2)  # type: ignore[arg-type]
    other.enqueue("ada")  # type: ignore[call-arg]
    other.options(delya=1)  # type: ignore[call-arg]


def test_a_call_is_a_job_and_a_direct_call_is_none(reliq_queue: Queue, reliq_worker: ReliqWorker) -> None:
    add = add_to(reliq_queue)
    assert (getattr(add, "__name__", None), add.__doc__) == ("add", "Adds.")
    assert add(1, 2) == 3
    assert sum(reliq_queue.counts().values()) == 0
    accepted = add.enqueue(2, 3)
    assert accepted.status == "queued"
    assert [ran.result for ran in reliq_worker.run_all()] == [5]
    assert reliq_queue.get_result(accepted.id) == 5


def test_call_waits_for_a_pool(reliq_queue: Queue) -> None:
    add = add_to(reliq_queue)

    @reliq_queue.task(name="who")
    def identify() -> str:
        job = current_job()
        assert job is not None
        return job.id

    pool = WorkerPool(reliq_queue, threads=1)
    pool.start()
    try:
        assert add.options(timeout=20).call(40, 2) == 42
        assert identify.options(id="me", timeout=20).call() == "me"
    finally:
        pool.stop(5)


def test_equal_calls_of_a_unique_task_are_duplicates(reliq_queue: Queue) -> None:
    add = add_to(reliq_queue).options(unique=True)
    by_keyword: Any = add
    first = add.enqueue(1, 2)
    assert by_keyword.enqueue(a=1, b=2) == (first.id, "duplicate", "queued", None)
    assert add.enqueue(2, 1).status == "queued"
    assert add.options(id="given").enqueue(1, 2).id == "given"
    assert add_to_other(reliq_queue).options(unique=True).enqueue(1, 2).status == "queued"


def add_to_other(queue: Queue) -> Task[[int, int], int]:
    @queue.task
    def subtract(a: int, b: int) -> int:
        return a - b

    return subtract


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "argument value is a datetime"),
        ({"a": [b"x"]}, r"argument value\['a'\]\[0\] is a bytes"),
        ({1: 2}, "argument value has the key 1"),
        ({1, 2}, "argument value is a set"),
        (float("nan"), "nan"),
        (2**70, "64 bits"),
    ],
)
def test_what_json_cannot_hold_is_refused_before_anything_is_written(reliq_queue: Queue, value: Any, said: str) -> None:
    @reliq_queue.task
    def take(value: Any) -> None: ...

    with pytest.raises(SerdeError, match=said):
        take.enqueue(value)
    assert sum(reliq_queue.counts().values()) == 0


def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(reliq_queue: Queue) -> None:
    add: Any = add_to(reliq_queue)
    for verb in (add.enqueue, add.call, add.options(every=60).schedule):
        with pytest.raises(InvalidJobError, match=r"task 'add'.*missing a required argument: 'a'"):
            verb()
        with pytest.raises(InvalidJobError, match="unexpected keyword argument 'c'"):
            verb(1, 2, c=3)
    assert sum(reliq_queue.counts().values()) == 0
    assert list(reliq_queue.schedules.list()) == []


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (
            {"task": "os.system", "args": ["true"], "kwargs": {}},
            "has no task 'os.system' in this worker; there are: 'add'",
        ),
        ({"task": "add", "args": [], "kwargs": {}}, "missing a required argument: 'a'"),
        ({"task": ["add"], "args": [], "kwargs": {}}, "task must be a str"),
        ("text", "is no task's"),
    ],
)
def test_a_job_that_fits_no_task_is_a_dead_letter_at_once(
    reliq_queue: Queue, reliq_worker: ReliqWorker, payload: Any, said: str
) -> None:
    add_to(reliq_queue)
    reliq_queue.enqueue("1", payload)
    ran = reliq_worker.run_one()
    assert ran is not None
    assert ran.state == "failed"
    with pytest.raises(JobFailedError, match=said):
        reliq_queue.get_result("1")


def test_a_type_error_of_the_task_itself_is_tried_again(reliq_queue: Queue, reliq_worker: ReliqWorker) -> None:
    @reliq_queue.task
    def wrong() -> None:
        raise TypeError("mine")

    wrong.enqueue()
    ran = reliq_worker.run_one()
    assert ran is not None
    assert ran.state == "failing"


def test_options_are_the_jobs(reliq_queue: Queue, assert_enqueued: Any) -> None:
    @reliq_queue.task(priority=3, max_attempts=7)
    def work(n: int) -> None: ...

    work.options(id="1", priority=5, delay=60).enqueue(1)
    assert_enqueued(reliq_queue, "1", payload=work.payload(1), priority=5, max_attempts=7, delay=60, state="scheduled")
    work.options(group="g").enqueue(2)
    assert_enqueued(reliq_queue, payload=work.payload(n=2), priority=3, group="g")


def test_a_schedule_is_named_like_its_task_or_by_its_id(reliq_queue: Queue) -> None:
    add: Any = add_to(reliq_queue)
    assert add.options(every=60).schedule(1, 1).name == "add"
    assert add.options(every=60, id="second").schedule(2, 2).payload == add.payload(2, 2)
    with pytest.raises(InvalidJobError, match="every is for schedule"):
        add.options(every=60).enqueue(1, 1)


def test_bad_declarations_are_refused(reliq_queue: Queue, make_reliq_queue: MakeQueue) -> None:
    add_to(reliq_queue)
    with pytest.raises(InvalidJobError, match="has a task 'add' already"):
        add_to(reliq_queue)
    with pytest.raises(InvalidJobError, match="has a handler already"):
        reliq_queue.handler(print)
    bad: Any = reliq_queue.task
    with pytest.raises(InvalidJobError, match="must be a function, got int"):
        bad(3)
    with pytest.raises(InvalidJobError, match="no job option 'delya'"):
        bad(delya=1)(print)
    with pytest.raises(InvalidJobError, match="unique must be True or False, got 'yes'"):
        bad(unique="yes")(print)

    async def later() -> None: ...

    async def stream() -> Any:
        yield 1

    def produce() -> Any:
        yield 1

    class Later:
        __name__ = "later"

        async def __call__(self) -> None: ...

    for odd in (later, stream, produce, Later()):
        with pytest.raises(InvalidJobError, match="no generator and not async"):
            bad(odd)
    with pytest.raises(InvalidJobError, match="tells no arguments"):
        bad(name="x")(dict)
    with pytest.raises(InvalidJobError, match=r"payload_serde=JsonSerde\(\), got RawSerde"):
        make_reliq_queue("raw", payload_serde=RawSerde()).task(print)


def test_a_parameter_may_be_named_self(reliq_queue: Queue) -> None:
    @reliq_queue.task
    def greet(self: str) -> str:
        return f"hello {self}"

    assert greet.payload(self="ada")["args"] == ["ada"]
    assert greet.enqueue(self="ada").status == "queued"
    assert greet(self="ada") == "hello ada"


def test_a_schedule_is_not_unique(reliq_queue: Queue) -> None:
    with pytest.raises(InvalidJobError, match="unique is for enqueue"):
        add_to(reliq_queue).options(unique=True, every=30).schedule(1, 2)
