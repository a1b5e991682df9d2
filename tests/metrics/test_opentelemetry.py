"""Spans around what is enqueued and run: their names, kinds, attributes, and how they hang together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from reliq import InvalidJobError, Job, JobFailedError, MemoryStorage, NewJob, Queue, WorkerPool, current_job

pytest.importorskip("opentelemetry.sdk", reason='pip install "reliq[opentelemetry]" opentelemetry-sdk')

from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from reliq.contrib.opentelemetry import instrument


class Spans:
    """A provider of the test's own, and what it recorded."""

    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    yield found
    found.provider.shutdown()


@pytest.fixture
def q() -> Iterator[Queue]:
    with closing(MemoryStorage()) as storage, Queue("emails", storage, max_attempts=1) as queue:

        @queue.handler
        def run(job: Job) -> Any:
            if job.payload == "fail":
                raise ValueError("no such address")
            if job.payload == "broken":
                raise BrokenText
            if job.payload == "baggage":
                return baggage.get_baggage("user")
            if job.payload == "nested":
                queue.enqueue("inner", None)
            return format(trace.get_current_span().get_span_context().span_id, "x")

        yield queue


def work(queue: Queue) -> None:
    assert WorkerPool(queue, threads=1).run_until_empty(10.0)


def test_a_run_is_linked_to_who_enqueued_it(q: Queue, spans: Spans) -> None:
    instrument(q, tracer_provider=spans.provider)
    q.enqueue("welcome-1", {"to": "a"})
    work(q)
    sent, ran = spans.one("enqueue emails"), spans.one("process emails")
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(sent.attributes or {}) == {
        "messaging.system": "reliq",
        "messaging.destination.name": "emails",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.message.id": "welcome-1",
    }
    attributes = dict(ran.attributes or {})
    assert attributes.pop("messaging.client.id")
    assert attributes == {
        "messaging.system": "reliq",
        "messaging.destination.name": "emails",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": "welcome-1",
        "reliq.job.attempt": 1,
    }
    assert [link.context.span_id for link in ran.links] == [sent.context.span_id]
    assert ran.parent is None
    assert ran.context.trace_id != sent.context.trace_id
    assert q.get_result("welcome-1") == format(ran.context.span_id, "x")  # current inside of the handler
    assert ran.status.status_code is StatusCode.UNSET


def test_runs_continue_the_trace_where_that_is_wanted(q: Queue, spans: Spans) -> None:
    instrument(q, tracer_provider=spans.provider, parent=True)
    q.enqueue("a")
    work(q)
    sent, ran = spans.one("enqueue emails"), spans.one("process emails")
    assert ran.parent is not None
    assert (ran.parent.span_id, ran.context.trace_id) == (sent.context.span_id, sent.context.trace_id)
    assert [link.context.span_id for link in ran.links] == [sent.context.span_id]


def test_many_jobs_are_one_span(q: Queue, spans: Spans) -> None:
    instrument(q, tracer_provider=spans.provider)
    q.enqueue_many([("a", 1), NewJob("b", 2, headers={"mine": "kept"}), ("c", 3)])
    work(q)
    sent = spans.one("enqueue_many emails")
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in (sent.attributes or {})
    ran = spans.named("process emails")
    assert [[link.context.span_id for link in span.links] for span in ran] == [[sent.context.span_id]] * 3
    status = q.get_status("b")
    assert status is not None
    assert status.headers["mine"] == "kept"


def test_a_call_lasts_until_its_result_and_carries_its_failure(q: Queue, spans: Spans) -> None:
    instrument(q, tracer_provider=spans.provider)
    with WorkerPool(q, threads=1):
        assert q.call("a", 1, timeout=10.0)
        with pytest.raises(JobFailedError):
            q.call("b", "fail", timeout=10.0)
    good, bad = spans.named("call emails")
    ran, failed = spans.named("process emails")
    assert (good.end_time or 0) >= (ran.end_time or 0)
    assert good.status.status_code is StatusCode.UNSET
    assert bad.status.status_code is StatusCode.ERROR
    assert failed.status.status_code is StatusCode.ERROR
    assert "no such address" in (failed.status.description or "")
    assert (failed.attributes or {})["error.type"] == "ValueError"
    [event] = failed.events
    assert (event.name, (event.attributes or {})["exception.type"]) == ("exception", "ValueError")


def test_an_error_without_a_text_is_recorded_too(q: Queue, spans: Spans) -> None:
    instrument(q, tracer_provider=spans.provider)
    q.enqueue("a", "broken")
    work(q)
    span = spans.one("process emails")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == f"{__name__}.BrokenText"
    assert q.counts()["failed"] == 1


def test_a_job_that_enqueues_links_its_own_run(q: Queue, spans: Spans) -> None:
    """What is inherited from the running job's headers gives way to the run's own span."""
    instrument(q, tracer_provider=spans.provider)
    q.enqueue("outer", "nested", headers={"tenant": "t1"})
    work(q)
    outer_sent, inner_sent = spans.named("enqueue emails")
    outer, inner = spans.named("process emails")
    assert inner_sent.parent is not None
    assert inner_sent.parent.span_id == outer.context.span_id
    assert [link.context.span_id for link in inner.links] == [inner_sent.context.span_id]
    assert outer_sent.context.trace_id != inner_sent.context.trace_id
    status = q.get_status("inner")
    assert status is not None
    assert status.headers["tenant"] == "t1"


def test_baggage_reaches_the_handler_and_ends_with_it(q: Queue, spans: Spans) -> None:
    instrument(q, tracer_provider=spans.provider)
    token = context.attach(baggage.set_baggage("user", "u1"))
    try:
        q.enqueue("with", "baggage")
    finally:
        context.detach(token)
    q.enqueue("without", "baggage")
    work(q)
    assert q.get_result("with") == "u1"
    assert q.get_result("without", "none") is None


def test_a_users_own_header_counts(q: Queue, spans: Spans) -> None:
    instrument(q, tracer_provider=spans.provider)
    theirs = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    q.enqueue("a", headers={"traceparent": theirs})
    work(q)
    [link] = spans.one("process emails").links
    assert format(link.context.span_id, "x") == "2" * 16


def test_a_trace_costs_no_job(q: Queue, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    instrument(q, tracer_provider=spans.provider)
    full = {"big": "x" * (8 * 1024 - 3)}
    q.enqueue("full", headers=full)  # the limit is 8 KiB: there is no room for more
    status = q.get_status("full")
    assert status is not None
    assert status.headers == full
    with pytest.raises(InvalidJobError, match="headers must be at most"):
        q.enqueue("over", headers={"big": "x" * 8 * 1024})
    assert spans.named("enqueue emails")[1].status.status_code is StatusCode.ERROR

    def broken(*_: object) -> None:
        raise RuntimeError("a propagator of somebody's own")

    monkeypatch.setattr(propagate, "inject", broken)
    q.enqueue("a")
    work(q)
    assert q.counts()["completed"] == 2


def test_what_nobody_enqueued_with_a_trace_runs_in_one(q: Queue, spans: Spans) -> None:
    q.enqueue("before", headers={"traceparent": "nonsense"})
    q.enqueue("bare")
    instrument(q, tracer_provider=spans.provider)
    work(q)
    assert [list(span.links) for span in spans.named("process emails")] == [[], []]


def test_without_an_sdk_nothing_is_recorded_and_what_is_there_is_passed_on(q: Queue) -> None:
    """The API alone: a service in the middle must not break the trace of those around it."""
    instrument(q, tracer_provider=trace.NoOpTracerProvider())
    around = trace.NonRecordingSpan(trace.SpanContext(0x11, 0x22, is_remote=True, trace_flags=trace.TraceFlags(1)))
    with trace.use_span(around):
        q.enqueue("traced")
    q.enqueue("plain")
    traced, plain = q.get_status("traced"), q.get_status("plain")
    assert traced is not None
    assert traced.headers["traceparent"].split("-")[2] == format(0x22, "016x")
    assert plain is not None
    assert not plain.headers
    work(q)
    assert q.counts()["completed"] == 2


def test_off_takes_all_of_it_away(q: Queue, spans: Spans) -> None:
    off = instrument(q, tracer_provider=spans.provider)
    with pytest.raises(InvalidJobError, match="'emails' is instrumented already"):
        instrument(q, tracer_provider=spans.provider)
    off()
    off()
    q.enqueue("a")
    work(q)
    assert not spans.named("enqueue emails") + spans.named("process emails")
    assert (q.sending, q.arounds) == (None, ())
    instrument(q, tracer_provider=spans.provider)()


def test_only_queues_are_taken(q: Queue) -> None:
    with pytest.raises(InvalidJobError, match="instrument takes queues, got str"):
        instrument("emails")  # type: ignore[arg-type]
    with pytest.raises(InvalidJobError, match="instrumented already"):
        instrument(q, q)
    assert q.sending is None
    assert current_job() is None
