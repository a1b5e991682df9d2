"""One run of one job: decode, call the handler, say how it ended. No thread, no storage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import message
from ..context import running
from ..errors import InvalidJobError, JobStoppedError, Reject, ReliqError, Retry, SerdeError
from ..failure import encode_error, encode_parts
from ..hooks import Around
from ..job import Event, Job, Signal
from ..retry import Backoff
from ..serde import PROGRESS_SERDE, as_bytes
from ..storage.base import STEADY_MS, Claimed, Held, Outcome, Verb
from ..validate import check_seconds, to_ms

if TYPE_CHECKING:
    from ..queue import Handler, Queue

log = logging.getLogger("reliq")

#: Told the deadline and the envelope of a job with a time limit, just before its handler starts.
Arm = Callable[[float, message.Message], None]

#: What a pool's signal says that makes a run void instead of failed: the storage decides what becomes of the job.
_VOID = frozenset({"cancelled", "lost", "stopping"})


MAX_PROGRESS_BYTES = 8 * 1024
#: For runs whose own backoff may not be known.
_BACKOFF = Backoff()


class JobTimeout(ReliqError, TimeoutError):
    """The handler ran longer than the job's time_limit."""


@dataclass(slots=True)
class Execution:
    """How a run ended, for ``after_execution(job, execution)``, which may change every field.

    ``error`` None means success with ``result``. ``result_ttl`` (seconds) replaces the job's own
    for a success; ``delay`` (seconds) its backoff when it will be tried again.
    """

    result: Any = None
    error: BaseException | None = None
    result_ttl: float | None = None
    delay: float | None = None


AfterExecution = Callable[[Job, Execution], object]


class Finished(NamedTuple):
    """How a run ended: what to settle, and what to tell listeners."""

    outcome: Outcome
    result: Any = None
    error: BaseException | None = None


class Executor:
    """Runs jobs of one queue. Whatever a handler or hook raises ends in the outcome, never in the caller."""

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        worker_id: str,
        report: Callable[[Event], None],
        after_execution: AfterExecution | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._worker_id = worker_id
        self._report = report
        self._after = after_execution
        self._clock = clock

    def run(self, claimed: Claimed, signal: Signal, arm: Arm) -> Finished:
        """Run the handler and say how it ended."""
        try:
            envelope = message.decode(claimed.message)
            payload = self._queue.load_payload(envelope.payload)
        except BaseException as unreadable:  # a serde may raise anything
            return self._unreadable(claimed, unreadable)
        deadline = None
        if envelope.time_limit is not None:
            deadline = self._clock() + envelope.time_limit
            arm(deadline, envelope)
        job = Job(
            claimed.id,
            payload,
            claimed.attempts,
            claimed.max_attempts,
            claimed.created_at_ms / 1000,
            self._queue.name,
            envelope.headers,
            self._worker_id,
            signal,
            deadline,
            claimed.group,
            claimed.sequence,
            envelope.after,
            self,
            claimed,
        )
        token = running.set(job)
        try:
            if self._queue.arounds:
                return self._run_inside(job, claimed, envelope, signal)
            return self._run(job, claimed, envelope, signal)
        finally:
            running.reset(token)

    def _run_inside(self, job: Job, claimed: Claimed, envelope: message.Message, signal: Signal) -> Finished:
        """Run it inside of what ``Queue.around`` was given."""
        finished: Finished | None = None
        began = self._clock()
        try:
            arounds = self._queue.arounds
            # The way of several costs as much as a job that does nothing; mostly there is one.
            with arounds[0](job) if len(arounds) == 1 else _nested(arounds, job):
                finished = self._run(job, claimed, envelope, signal)
                if finished.error is not None:
                    raise finished.error  # they see how it ended; the outcome is decided
        except BaseException as error:
            if finished is not None and finished.error is not None:
                if error is not finished.error:
                    log.exception("what runs around job %r of queue %r raised; its outcome stands", job.id, job.queue)
                return finished
            if claimed.is_persistent:
                return self._again(claimed, envelope, signal, None, error, self._clock() - began)
            return self._failed(claimed, envelope, error, None)
        return finished

    def _run(self, job: Job, claimed: Claimed, envelope: message.Message, signal: Signal) -> Finished:
        result: Any = None
        error: BaseException | None = None
        began = self._clock()
        try:
            result = self._handler(job)
        except BaseException as raised:  # SystemExit in a handler is the job's failure, not the runner's end
            error = raised
            if isinstance(raised, JobStoppedError) and raised.reason in _VOID and raised.reason == signal.reason:
                return Finished(release(claimed), None, raised)
        if claimed.is_persistent:
            return self._again(claimed, envelope, signal, result, error, self._clock() - began)
        if self._after is not None:
            return self._after_execution(self._after, job, claimed, envelope, result, error)
        return self._finish(claimed, envelope, result, error, None, None)

    def progress(self, job: Job, value: Any) -> bool:
        """As ``Job.progress``."""
        try:
            data = as_bytes(PROGRESS_SERDE.dumps(value))
        except Exception as error:
            raise SerdeError(f"queue {job.queue!r}: the progress of {job.id!r} {error}") from error
        if len(data) > MAX_PROGRESS_BYTES:
            raise InvalidJobError(f"progress must be at most {MAX_PROGRESS_BYTES} bytes of JSON, got {len(data)}")
        claimed: Claimed = job.lease
        held = Held(claimed.id, claimed.nonce, claimed.token)
        return self._queue.storage.progress(self._queue.name, held, data)

    def result_of(self, id: str) -> Any:
        """As ``Job.result_of``."""
        return self._queue.get_result(id)

    def timed_out(self, claimed: Claimed, envelope: message.Message) -> Finished:
        """The outcome of a run that its time limit ended."""
        error = JobTimeout(f"the handler ran longer than its time_limit of {envelope.time_limit:g} s")
        return self._failed(claimed, envelope, error, None)

    def _again(
        self, claimed: Claimed, envelope: message.Message, signal: Signal, result: Any, error: BaseException | None,
        seconds: float,
    ) -> Finished:  # fmt: skip
        """A persistent job never ends by itself: however its handler came back, it runs again."""
        if signal.reason in _VOID:
            return Finished(release(claimed), result, error)
        if error is not None:
            self._log_attempt(claimed, error)
        attempts = 1 if seconds * 1000 >= STEADY_MS else claimed.attempts
        delay_ms = to_ms(envelope.backoff.delay(attempts))
        if isinstance(error, Retry) and error.delay is not None:
            delay_ms = self._delay_ms(claimed, envelope, error)
        data = encode_parts("Returned", "the handler returned") if error is None else encode_error(error)
        outcome = Outcome(claimed.id, claimed.nonce, claimed.token, Verb.RETRY, error=data, delay_ms=delay_ms)
        return Finished(outcome, result, error)

    def _after_execution(
        self, hook: AfterExecution, job: Job, claimed: Claimed, envelope: message.Message, result: Any,
        error: BaseException | None,
    ) -> Finished:  # fmt: skip
        execution = Execution(result, error)
        try:
            hook(job, execution)
            ttl_ms = None if execution.result_ttl is None else to_ms(check_seconds("result_ttl", execution.result_ttl))
            delay_ms = None if execution.delay is None else to_ms(check_seconds("delay", execution.delay, zero=True))
            if execution.error is not None and not isinstance(execution.error, BaseException):
                raise InvalidJobError(f"error must be an exception or None, got {type(execution.error).__name__}")
        except BaseException:
            log.exception("after_execution raised for job %r of queue %r; the outcome stands", job.id, job.queue)
            return self._finish(claimed, envelope, result, error, None, None)
        return self._finish(claimed, envelope, execution.result, execution.error, ttl_ms, delay_ms)

    def _finish(
        self, claimed: Claimed, envelope: message.Message, result: Any, error: BaseException | None,
        ttl_ms: int | None, delay_ms: int | None,
    ) -> Finished:  # fmt: skip
        if error is not None:
            return self._failed(claimed, envelope, error, delay_ms)
        try:
            data = self._queue.dump_result(result)
        except BaseException as unfit:  # a serde may raise anything
            # Running it again would give the same result, so it is not tried again.
            self._log_attempt(claimed, unfit)
            return Finished(fail(claimed, unfit), None, unfit)
        return Finished(Outcome(claimed.id, claimed.nonce, claimed.token, Verb.COMPLETE, data, ttl_ms=ttl_ms), result)

    def _failed(
        self, claimed: Claimed, envelope: message.Message, error: BaseException, delay_ms: int | None
    ) -> Finished:
        self._log_attempt(claimed, error)
        if isinstance(error, Reject):
            return Finished(fail(claimed, error), None, error)
        if delay_ms is None:
            delay_ms = self._delay_ms(claimed, envelope, error)
        outcome = Outcome(
            claimed.id, claimed.nonce, claimed.token, Verb.RETRY, error=encode_error(error), delay_ms=delay_ms
        )
        return Finished(outcome, None, error)

    def _delay_ms(self, claimed: Claimed, envelope: message.Message, error: BaseException) -> int:
        if isinstance(error, Retry) and error.delay is not None:
            try:
                return to_ms(check_seconds("delay", error.delay, zero=True))
            except InvalidJobError as refused:
                log.error("job %r of queue %r: %s; its backoff is used", claimed.id, self._queue.name, refused)
        return to_ms(envelope.backoff.delay(claimed.attempts))

    def _unreadable(self, claimed: Claimed, error: BaseException) -> Finished:
        self._log_attempt(claimed, error)
        self._report(Event("error", self._queue.name, claimed.id, error=error, attempts=claimed.attempts))
        return Finished(fail(claimed, error), None, error)

    def _log_attempt(self, claimed: Claimed, error: BaseException) -> None:
        log.warning(
            "job %r of queue %r: attempt %d of %d failed: %s: %.500s",
            claimed.id, self._queue.name, claimed.attempts, claimed.max_attempts, type(error).__name__, _Text(error),
        )  # fmt: skip


@contextmanager
def _nested(arounds: Sequence[Around], job: Job) -> Iterator[None]:
    with ExitStack() as stack:
        for enter in arounds:
            stack.enter_context(enter(job))
        yield


def release(claimed: Claimed) -> Outcome:
    """Give a job back: to the front, the attempt not counted, or gone when its cancel was requested."""
    return Outcome(claimed.id, claimed.nonce, claimed.token, Verb.RELEASE)


def fail(claimed: Claimed, error: BaseException) -> Outcome:
    """Make a job a dead letter at once."""
    return Outcome(claimed.id, claimed.nonce, claimed.token, Verb.FAIL, error=encode_error(error))


def broken_off(claimed: Claimed, error: BaseException | None = None) -> Finished:
    """The end of a run that did not come to an outcome by itself: an attempt that failed.

    Rests on nothing of the job, whose envelope, hook or error may be what went wrong.
    """
    try:
        data = encode_error(error or ReliqError("the runner ended in the middle of the run"))
    except BaseException:
        data = encode_parts(type(error).__qualname__, "its text cannot be shown")
    delay_ms = to_ms(_BACKOFF.delay(claimed.attempts))
    return Finished(
        Outcome(claimed.id, claimed.nonce, claimed.token, Verb.RETRY, error=data, delay_ms=delay_ms), None, error
    )


class _Text:
    """An exception's text for a log line; a broken ``__str__`` must cost nothing."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __str__(self) -> str:
        try:
            return str(self._error)
        except BaseException:
            return "<its text cannot be shown>"
