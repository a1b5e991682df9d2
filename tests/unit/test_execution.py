"""One run of one job: every way a handler can end, and what is settled for it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from reliq import message
from reliq.errors import JobStoppedError, Reject, Retry
from reliq.job import Event, Job, Signal
from reliq.queue import Queue
from reliq.retry import Backoff
from reliq.storage.base import Claimed, Verb
from reliq.worker.execution import Execution, Executor, Finished, JobTimeout

EXACT = Backoff(base=2.0, factor=3.0, jitter=0.0)


class Bench:
    """An executor with what it reported."""

    def __init__(self, handler: Callable[[Job], Any], after: Callable[[Job, Execution], object] | None = None) -> None:
        self.events: list[Event] = []
        self.armed: list[float] = []
        self.signal = Signal()
        self.executor = Executor(
            Queue("q", max_payload_bytes=1000), handler, "me", self.events.append, after, clock=lambda: 100.0
        )

    def run(self, payload: Any = None, attempts: int = 1, data: bytes | None = None, **envelope: Any) -> Finished:
        if data is None:
            data = message.encode(json.dumps(payload).encode(), **envelope)
        self.claimed = Claimed("j:1", b"12345678", 4, attempts, 3, 1_500, 0, False, data)
        return self.executor.run(self.claimed, self.signal, lambda deadline, _: self.armed.append(deadline))


def raiser(error: BaseException) -> Callable[[Job], Any]:
    def handler(_: Job) -> None:
        raise error

    return handler


def error_of(finished: Finished) -> dict[str, str]:
    found: dict[str, str] = json.loads(finished.outcome.error)
    return found


def test_a_handler_gets_the_whole_job() -> None:  # F000-08, F003-05
    seen: list[Job] = []
    finished = Bench(seen.append).run({"n": 1}, attempts=2, headers={"user": "7"})
    job = seen[0]
    assert (job.id, job.payload, job.attempts, job.max_attempts) == ("j:1", {"n": 1}, 2, 3)
    assert (job.created_at, job.queue, dict(job.headers), job.worker_id) == (1.5, "q", {"user": "7"}, "me")
    assert job.deadline is None and job.group is None and job.sequence is None and not job.signal.is_set()
    assert finished.outcome.verb is Verb.COMPLETE


def test_returning_completes_with_the_result() -> None:
    finished = Bench(lambda job: {"got": job.payload}).run([1])
    outcome = finished.outcome
    assert (outcome.id, outcome.nonce, outcome.token, outcome.verb) == ("j:1", b"12345678", 4, Verb.COMPLETE)
    assert outcome.result == b'{"got":[1]}' and outcome.ttl_ms is None
    assert finished.result == {"got": [1]} and finished.error is None


def test_returning_none_completes_with_a_result_that_is_none() -> None:
    assert Bench(lambda _: None).run().outcome.result == b"null"


@pytest.mark.parametrize("result", [{1, 2}, "x" * 1001, float("nan")])
def test_a_result_that_cannot_be_stored_is_a_dead_letter(result: Any) -> None:
    finished = Bench(lambda _: result).run()
    assert finished.outcome.verb is Verb.FAIL
    assert error_of(finished)["type"] == "SerdeError"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), JobStoppedError("cancelled")])
def test_raising_retries_after_the_backoff(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "reliq"):
        finished = Bench(raiser(error)).run(attempts=2, backoff=EXACT)
    assert finished.outcome.verb is Verb.RETRY
    assert finished.outcome.delay_ms == 6_000
    assert error_of(finished)["type"] == type(error).__name__
    assert finished.error is error
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    ("delay", "delay_ms"), [(0, 0), (1.5, 1_500), (None, 2_000), (-1, 2_000), (float("nan"), 2_000)]
)
def test_retry_names_its_delay(delay: float | None, delay_ms: int) -> None:
    outcome = Bench(raiser(Retry(delay))).run(backoff=EXACT).outcome
    assert (outcome.verb, outcome.delay_ms) == (Verb.RETRY, delay_ms)


def test_reject_is_a_dead_letter() -> None:
    finished = Bench(raiser(Reject("why"))).run()
    assert finished.outcome.verb is Verb.FAIL
    assert error_of(finished)["message"] == "why"


@pytest.mark.parametrize("reason", ["cancelled", "lost", "stopping"])
def test_ending_as_the_signal_asked_gives_the_job_back(reason: str) -> None:
    def handler(job: Job) -> None:
        bench.signal.set(reason)
        job.check()

    bench = Bench(handler)
    assert bench.run().outcome.verb is Verb.RELEASE


def test_ending_by_timeout_is_a_failed_attempt() -> None:
    def handler(job: Job) -> None:
        bench.signal.set("timeout")
        job.check()

    bench = Bench(handler)
    assert bench.run().outcome.verb is Verb.RETRY


@pytest.mark.parametrize("data", [b"", b"\x09\x00\x00x", message.encode(b"{not json")])
def test_what_cannot_be_decoded_is_a_dead_letter_and_an_error_event(data: bytes) -> None:  # PITFALLS A12
    ran: list[Job] = []
    bench = Bench(ran.append)
    finished = bench.run(data=data)
    assert finished.outcome.verb is Verb.FAIL and finished.error is not None
    assert not ran
    assert [(event.name, event.queue, event.id) for event in bench.events] == [("error", "q", "j:1")]


def test_a_time_limit_arms_the_deadline() -> None:
    seen: list[Job] = []
    bench = Bench(seen.append)
    bench.run(time_limit=2.5)
    assert bench.armed == [102.5]
    assert seen[0].deadline == 102.5


def test_a_timed_out_run_is_retried_with_a_timeout_error() -> None:
    bench = Bench(lambda _: None)
    bench.run(time_limit=2.5, backoff=EXACT)
    finished = bench.executor.timed_out(bench.claimed, message.decode(bench.claimed.message))
    assert finished.outcome.verb is Verb.RETRY and finished.outcome.delay_ms == 2_000
    assert isinstance(finished.error, JobTimeout) and isinstance(finished.error, TimeoutError)


class TestAfterExecution:  # F000-21
    def test_it_sees_the_result_and_may_change_it_and_its_ttl(self) -> None:
        def after(job: Job, execution: Execution) -> None:
            assert (job.id, execution.result, execution.error) == ("j:1", 1, None)
            execution.result, execution.result_ttl = 2, 0.5

        outcome = Bench(lambda _: 1, after).run().outcome
        assert (outcome.verb, outcome.result, outcome.ttl_ms) == (Verb.COMPLETE, b"2", 500)

    def test_it_may_turn_a_success_into_a_failure(self) -> None:
        def after(_: Job, execution: Execution) -> None:
            execution.error, execution.delay = ValueError("late"), 0.25

        outcome = Bench(lambda _: 1, after).run().outcome
        assert (outcome.verb, outcome.delay_ms) == (Verb.RETRY, 250)

    def test_it_may_forgive_a_failure(self) -> None:
        def after(_: Job, execution: Execution) -> None:
            execution.error, execution.result = None, "fallback"

        outcome = Bench(raiser(ValueError()), after).run().outcome
        assert (outcome.verb, outcome.result) == (Verb.COMPLETE, b'"fallback"')

    @pytest.mark.parametrize("broken", [RuntimeError("hook"), SystemExit(1)])
    def test_its_own_exception_leaves_the_outcome(
        self, broken: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        def after(_: Job, execution: Execution) -> None:
            execution.result = "spoiled"
            raise broken

        outcome = Bench(lambda _: 1, after).run().outcome
        assert (outcome.verb, outcome.result) == (Verb.COMPLETE, b"1")
        assert "after_execution raised" in caplog.text

    def test_values_out_of_range_leave_the_outcome(self) -> None:
        def after(_: Job, execution: Execution) -> None:
            execution.result, execution.result_ttl = 2, -1

        assert Bench(lambda _: 1, after).run().outcome.result == b"1"

    def test_it_is_not_called_for_a_run_that_was_ended_from_outside(self) -> None:
        def handler(job: Job) -> None:
            bench.signal.set("stopping")
            job.check()

        called: list[Execution] = []
        bench = Bench(handler, lambda _, execution: called.append(execution))
        assert bench.run().outcome.verb is Verb.RELEASE
        assert not called


def test_an_exception_whose_text_breaks_costs_nothing() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert Bench(raiser(Broken())).run().outcome.verb is Verb.RETRY
