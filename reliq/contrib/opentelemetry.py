"""OpenTelemetry traces of jobs (the extra ``opentelemetry``), by its conventions for messaging.

.. code-block:: python

    from reliq.contrib.opentelemetry import instrument

    instrument(q)    # in the processes that enqueue, and in those that run the jobs

``enqueue``, ``enqueue_many`` and ``call`` are spans of the kind PRODUCER, one for all jobs of a call; that of ``call``
lasts until the result is there. Their context travels in the jobs' headers, as the global propagator writes it
(``traceparent``, ``tracestate``, ``baggage``). Each run of a job is a span of the kind CONSUMER with a link to the
producer's, in a trace of its own: a job may run long after the request that enqueued it, and several times. With
``parent=True`` it continues the producer's trace, too.

Without an SDK nothing is recorded and runs are left alone; what is enqueued still carries the context that it finds on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from types import TracebackType
from weakref import WeakSet

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        NoOpTracerProvider,
        ProxyTracerProvider,
        Span,
        SpanKind,
        Status,
        StatusCode,
        Tracer,
        TracerProvider,
    )
except ImportError as error:
    raise ImportError(
        'reliq.contrib.opentelemetry needs opentelemetry-api: pip install "reliq[opentelemetry]"'
    ) from error

from ..errors import InvalidJobError
from ..job import Job
from ..queue import Queue

log = logging.getLogger("reliq")

_SYSTEM = "reliq"
_WITHOUT_SDK = (NoOpTracerProvider, ProxyTracerProvider)
_NOTHING = nullcontext()
_lock = threading.Lock()
_instrumented: WeakSet[Queue] = WeakSet()


def instrument(
    *queues: Queue, tracer_provider: TracerProvider | None = None, parent: bool = False
) -> Callable[[], None]:
    """Make spans of what these Queue objects enqueue and of the jobs their pools run; returns the way to stop it.

    Instrument a queue before anything else goes :meth:`~reliq.Queue.around` its jobs that should be inside of the
    span. ``tracer_provider``: in place of the global one. ``parent``: runs are children of the producer's span,
    besides the link. Raises InvalidJobError for a queue that is instrumented already.
    """
    tracer = trace.get_tracer("reliq", version("reliq"), tracer_provider)
    with _lock:
        for queue in queues:
            if not isinstance(queue, Queue):
                raise InvalidJobError(f"instrument takes queues, got {type(queue).__name__}")
            if queue in _instrumented or queues.count(queue) > 1:
                raise InvalidJobError(f"queue {queue.name!r} is instrumented already")
            if queue.sending is not None:
                raise InvalidJobError(f"queue {queue.name!r} has a `sending` of another integration")
        offs = []
        for queue in queues:
            _instrumented.add(queue)
            queue.sending = _Producer(tracer, queue.name).sending
            offs.append(queue.around(_Consumer(tracer, tracer_provider, queue.name, parent).running))

    def off() -> None:
        with _lock:
            for queue, off_around in zip(queues, offs, strict=True):
                if queue in _instrumented:
                    _instrumented.discard(queue)
                    queue.sending = None
                    off_around()

    return off


class _Producer:
    """Makes the spans around the verbs of one queue."""

    def __init__(self, tracer: Tracer, queue: str) -> None:
        self._tracer = tracer
        self._queue = queue

    @contextmanager
    def sending(self, verb: str, id: str | None, number: int) -> Iterator[Mapping[str, str]]:
        attributes: dict[str, str | int] = {
            "messaging.system": _SYSTEM,
            "messaging.destination.name": self._queue,
            "messaging.operation.name": verb,
            "messaging.operation.type": "send",
        }
        if verb == "enqueue_many":
            attributes["messaging.batch.message_count"] = number
        elif id is not None:
            attributes["messaging.message.id"] = id
        headers: dict[str, str] = {}
        span = self._tracer.start_span(f"{verb} {self._queue}", kind=SpanKind.PRODUCER, attributes=attributes)
        token = context.attach(trace.set_span_in_context(span))
        try:
            try:
                propagate.inject(headers)
            except Exception:  # a propagator of somebody's own: a trace must not cost a job
                log.exception("queue %r: the trace's context cannot be written; the job goes without", self._queue)
                headers = {}
            yield headers
        except BaseException as error:
            _record(span, error)
            raise
        finally:
            context.detach(token)
            span.end()


class _Consumer:
    """Makes the spans around the runs of one queue's jobs."""

    def __init__(self, tracer: Tracer, provider: TracerProvider | None, queue: str, parent: bool) -> None:
        self.tracer = tracer
        self._provider = provider
        self._queue = queue
        self.name = f"process {queue}"
        self._parent = parent
        self._last: tuple[Mapping[str, str], Context, list[Link] | None] = ({}, Context(), None)

    def running(self, job: Job) -> AbstractContextManager[None]:
        # Asked each time: an application may set its SDK up after its queues.
        if isinstance(self._provider or trace.get_tracer_provider(), _WITHOUT_SDK):
            return _NOTHING
        return _Running(self, job)

    def read(self, headers: Mapping[str, str]) -> tuple[Context, list[Link] | None]:
        """What a run's span begins from, and its link to the producer's."""
        last, base, links = self._last
        if headers != last:  # jobs that were enqueued together have the same ones
            base, links = self._extract(headers)
            self._last = dict(headers), base, links  # a handler may change its own
        return base, links

    def _extract(self, headers: Mapping[str, str]) -> tuple[Context, list[Link] | None]:
        # From an empty context: what is attached to a runner's thread is no part of any job.
        try:
            base = propagate.extract(headers, Context())
        except Exception:  # a propagator of somebody's own: a trace must not cost a job
            log.exception("queue %r: the trace's context cannot be read; the job runs without", self._queue)
            return Context(), None
        producer = trace.get_current_span(base).get_span_context()
        if not producer.is_valid:
            return base, None
        if not self._parent:
            base = trace.set_span_in_context(trace.INVALID_SPAN, base)  # baggage stays
        return base, [Link(producer)]


class _Running(AbstractContextManager[None]):
    """One run. A class, not a generator: it is made for every job."""

    __slots__ = "_consumer", "_job", "_span", "_token"

    def __init__(self, consumer: _Consumer, job: Job) -> None:
        self._consumer = consumer
        self._job = job

    def __enter__(self) -> None:
        job = self._job
        base, links = self._consumer.read(job.headers)
        span = self._consumer.tracer.start_span(
            self._consumer.name,
            base,
            SpanKind.CONSUMER,
            {
                "messaging.system": _SYSTEM,
                "messaging.destination.name": job.queue,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.message.id": job.id,
                "messaging.client.id": job.worker_id,
                "reliq.job.attempt": job.attempts,
            },
            links,
        )
        self._span = span
        self._token = context.attach(trace.set_span_in_context(span, base))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        context.detach(self._token)
        if error is not None:
            _record(self._span, error)
        self._span.end()


def _record(span: Span, error: BaseException) -> None:
    if not span.is_recording():
        return
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", name)
    try:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{error!s:.500}"))
    except Exception:  # a broken __str__ must not hide the error, nor change how a job ends
        span.set_status(Status(StatusCode.ERROR, "its text cannot be shown"))
