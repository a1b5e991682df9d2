"""What runs around each job, and what may keep an enqueue for later."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from reliq import CallTimeoutError, InvalidJobError, Job, NewJob, Queue, WorkerPool, current_job
from reliq.worker.execution import Execution


@pytest.fixture
def queue() -> Iterator[Queue]:
    with Queue("around", "memory://", max_attempts=1) as queue:
        yield queue


def _drain(queue: Queue, **options: object) -> None:
    assert WorkerPool(queue, threads=1, **options).run_until_empty(20)  # type: ignore[arg-type]


def test_handler_and_after_execution_run_inside_the_first_one_outermost(queue: Queue) -> None:
    seen: list[str] = []

    def note(name: str) -> Callable[[Job], contextlib.AbstractContextManager[None]]:
        @contextlib.contextmanager
        def enter(job: Job) -> Iterator[None]:
            assert current_job() is job
            seen.append(f"{name} in")
            yield
            seen.append(f"{name} out")

        return enter

    queue.around(note("a"))
    off = queue.around(note("b"))
    queue.execute(lambda job: seen.append("handler"))
    queue.enqueue("one")
    _drain(queue, after_execution=lambda job, execution: seen.append("after"))
    assert seen == ["a in", "b in", "handler", "after", "b out", "a out"]
    off()
    seen.clear()
    queue.enqueue("two")
    _drain(queue)
    assert seen == ["a in", "handler", "a out"]


def test_it_sees_the_handlers_error_and_cannot_swallow_it(queue: Queue) -> None:
    seen: list[BaseException] = []

    @contextlib.contextmanager
    def enter(job: Job) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(error)

    queue.around(enter)

    @queue.handler
    def run(job: Job) -> None:
        raise ValueError("mine")

    queue.enqueue("one")
    _drain(queue)
    assert [str(error) for error in seen] == ["mine"]
    status = queue.get_status("one")
    assert status is not None
    assert (status.state, status.error) == ("failed", "ValueError: mine")


def test_an_error_that_after_execution_forgave_is_none(queue: Queue) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def enter(job: Job) -> Iterator[None]:
        yield
        seen.append("well")

    def forgive(job: Job, execution: Execution) -> None:
        execution.error, execution.result = None, "forgiven"

    queue.around(enter)
    queue.execute(lambda job: 1 // 0)
    queue.enqueue("one")
    _drain(queue, after_execution=forgive)
    assert queue.get_result("one") == "forgiven"
    assert seen == ["well"]


@pytest.mark.parametrize("where", ["in", "out"])
def test_its_own_error_is_the_attempts(queue: Queue, where: str) -> None:
    ran: list[str] = []

    @contextlib.contextmanager
    def enter(job: Job) -> Iterator[None]:
        if where == "in":
            raise OSError("no way in")
        yield
        raise OSError("no way out")

    queue.around(enter)
    queue.execute(lambda job: ran.append(job.id))
    queue.enqueue("one")
    _drain(queue)
    status = queue.get_status("one")
    assert status is not None
    assert status.error == f"OSError: no way {where}"
    assert ran == ([] if where == "in" else ["one"])


def test_around_takes_functions_only(queue: Queue) -> None:
    with pytest.raises(InvalidJobError, match="around takes a function of a job, got str"):
        queue.around("x")  # type: ignore[arg-type]


class _Later:
    """Keeps everything until it is told to send it."""

    def __init__(self) -> None:
        self.kept: list[Callable[[], object]] = []
        self.is_open = False

    def defer(self, send: Callable[[], object]) -> bool:
        if not self.is_open:
            self.kept.append(send)
        return not self.is_open

    def check_wait(self, verb: str) -> None:
        if not self.is_open:
            raise RuntimeError(verb)


def test_a_gate_keeps_every_kind_of_enqueue(queue: Queue) -> None:
    queue.gate = gate = _Later()
    told: list[str] = []
    queue.on("enqueued", lambda event: told.append(event.id))
    assert queue.enqueue("one", 1) == ("one", "deferred", "", None)
    made = queue.enqueue(None)
    results = queue.enqueue_many([NewJob("last", after=["first"]), ("first", None)])
    assert [(result.id, result.status) for result in results] == [("last", "deferred"), ("first", "deferred")]
    assert queue.counts() == dict.fromkeys(queue.counts(), 0)
    assert told == []
    for send in gate.kept:
        send()
    assert told == ["one", made.id, "first", "last"]
    with pytest.raises(RuntimeError, match="call"):
        queue.call("x")
    with pytest.raises(RuntimeError, match="wait"):
        queue.wait("one")
    gate.is_open = True
    assert queue.enqueue("one").status == "duplicate"
    with pytest.raises(CallTimeoutError):
        queue.wait("one", 0.01)


def test_what_is_wrong_with_a_job_is_told_before_the_gate(queue: Queue) -> None:
    queue.gate = gate = _Later()
    with pytest.raises(InvalidJobError):
        queue.enqueue("one", priority=10)
    assert gate.kept == []
