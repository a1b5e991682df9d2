"""The verbs of a queue. No threads, no Lua, no paths: a storage does the work."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, overload

from . import message
from .context import running
from .dead_letters import DeadLetters
from .errors import (
    CallTimeoutError,
    InvalidJobError,
    JobCancelledError,
    JobNotFoundError,
    OutcomeUnknownError,
    ResultExpiredError,
    SerdeError,
    StorageError,
    StorageUnavailableError,
)
from .failure import to_exception
from .hooks import Around, Emitter, Gate, Listener, Sending
from .identity import unique_name
from .job import CancelResult, EnqueueResult, Event, JobStatus, NewJob, Page
from .lifecycle import LIVE, State
from .listing import list_jobs, listed_snapshots, payload_of, to_status
from .manual import ClaimedJob, ManualWorker
from .options import LIMIT_NAMES, JobArguments, JobOptions, QueueArguments, QueueOptions, change_limits
from .schedules import ScheduleArguments, ScheduleInfo, Schedules
from .serde import as_bytes, content_id
from .storage import registry
from .storage.base import MAX_BATCH, NO_LIMITS, Enqueued, NewRecord, Snapshot, Storage
from .validate import (
    MAX_ID_BYTES,
    check_function,
    check_headers,
    check_queue_name,
    check_seconds,
    check_text,
    shown_rate,
    to_ms,
)

if TYPE_CHECKING:
    from .tasks import Task, TaskArguments

log = logging.getLogger("reliq")

#: A .fifo queue takes an id for a duplicate for so many seconds after its acceptance, unless told otherwise.
FIFO_DEDUP_TTL = 300.0
#: Jobs that name each other are accepted in one step: it must not hold up a storage for long.
MAX_LINKED = 10_000
#: The unfinished states in the order in which jobs mostly go through them: one that moves on is met again.
_ONWARD = (State.WAITING, State.SCHEDULED, State.FAILING, State.QUEUED, State.PROCESSING)

Handler = Callable[[Any], Any]
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class Queue:
    """A named queue of jobs on a storage.

    ``storage`` is a URL or a :class:`~reliq.storage.base.Storage`; without one, bind it before
    use or set ``RELIQ_URL``. Nothing connects before the first operation. The keyword
    arguments are those of :class:`~reliq.options.QueueOptions`. Safe to use from any thread.
    """

    def __init__(
        self, name: str = "default", storage: str | Storage | None = None, **options: Unpack[QueueArguments]
    ) -> None:
        self.name = check_queue_name(name)
        #: Whether every job needs a group, and ids are deduplicated for a window that begins with acceptance.
        self.is_fifo = name.endswith(".fifo")
        if self.is_fifo and options.get("dedup_ttl") is None:
            options["dedup_ttl"] = FIFO_DEDUP_TTL
        self.options = QueueOptions(**options)
        self.function: Handler | None = None
        self.dead_letters = DeadLetters(self)
        self.schedules = Schedules(self)
        #: Limits that the storage has not been told yet.
        self._new_limits = self.options.given_limits()
        self._defaults = JobOptions.default(self.options)
        self._default_ttls_ms = self._ttls_ms(self._defaults)
        self._default_head = _head(self._defaults)
        self._emitter = Emitter("enqueued", "duplicate", "cancelled")
        #: What each run of a job happens inside of, the first one outermost; see :meth:`around`.
        self.arounds: tuple[Around, ...] = ()
        #: What each call that sends jobs happens inside of, and takes headers from; None: nothing. For integrations.
        self.sending: Sending | None = None
        #: Asked before anything is enqueued or waited for; None: everything is sent at once.
        self.gate: Gate | None = None
        self._lock = threading.RLock()
        self._storage: Storage | None = None
        self._url: str | None = None
        self._owns_url = False
        self._manual: ManualWorker | None = None
        if storage is not None:
            self.bind(storage)

    # -- the storage ------------------------------------------------------------------

    def bind(self, storage: str | Storage) -> Self:
        """Say where the queue lives. Once, before its first use."""
        with self._lock:
            if self._storage is not None or self._url is not None:
                raise InvalidJobError(f"queue {self.name!r} is bound to a storage already")
            if isinstance(storage, Storage):
                self._storage = storage
            elif isinstance(storage, str):
                registry.check_url(storage)
                self._url = storage
            else:
                raise InvalidJobError(f"storage must be a URL or a Storage, got {type(storage).__name__}")
        return self

    @property
    def storage(self) -> Storage:
        """The bound storage; made from the URL (or ``RELIQ_URL``) on first use."""
        storage = self._storage
        if storage is not None:
            return storage
        with self._lock:
            if self._storage is None:
                if self._url is None:
                    url = os.environ.get("RELIQ_URL")
                    if not url:
                        raise StorageError(
                            f"queue {self.name!r} has no storage: give Queue a URL, bind() one or set RELIQ_URL"
                        )
                    self._url = url
                self._storage = registry.acquire(self._url)
                self._owns_url = True
            return self._storage

    def close(self) -> None:
        """Hand back jobs claimed by hand and end the connections this queue opened. Idempotent."""
        with self._lock:
            manual, self._manual = self._manual, None
            if manual is not None:
                with contextlib.suppress(StorageError):  # its leases run out by themselves
                    manual.close()
            if self._owns_url and self._url is not None:
                self._owns_url = False
                self._storage = None
                registry.release(self._url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # -- producing --------------------------------------------------------------------

    def enqueue(self, id: str | None, payload: Any = None, **options: Unpack[JobArguments]) -> EnqueueResult:
        """Accept one job, unless its id is taken. Duplicates are an answer, not an exception.

        ``id=None`` makes a unique id. Raises InvalidJobError or SerdeError before anything is
        written, StorageUnavailableError when nothing was, and OutcomeUnknownError when that
        cannot be told (repeating the call is safe then). Where a :attr:`gate` keeps the job for later, the
        status is ``"deferred"``: nothing has been sent.
        """
        if self.sending is None:
            return self._enqueue(id, payload, options, None)
        with self.sending("enqueue", id, 1) as headers:
            return self._enqueue(id, payload, options, headers)

    def _enqueue(
        self, id: str | None, payload: Any, options: Mapping[str, Any], headers: Mapping[str, str] | None
    ) -> EnqueueResult:
        record = self._record(id, payload, options, None, headers)
        if self.gate is not None and self.gate.defer(partial(self._send, [record])):
            return _deferred(record)
        answers = self._ready_storage().enqueue(self.name, [record])
        self._tell(answers)
        return self._result(answers[0])

    def enqueue_many(self, jobs: Iterable[NewJob | tuple[str | None, Any]]) -> list[EnqueueResult]:
        """Accept many jobs, one round trip per 1,000; answers in order.

        ``jobs`` holds ``(id, payload)`` pairs or :class:`NewJob`. Everything is checked before the
        first job is written. Atomic per chunk: after an error, repeating the whole call is safe. Jobs may
        name each other in ``after``, in any order: then there are at most 1,000, with at most 10,000 ids in all,
        accepted together or not at all. Raises QueueFullError when a chunk does not fit; nothing of that chunk was
        written. A :attr:`gate` keeps all of them for later, or none.
        """
        jobs = list(jobs)
        if self.sending is None:
            return self._enqueue_many(jobs, None)
        with self.sending("enqueue_many", None, len(jobs)) as headers:
            return self._enqueue_many(jobs, headers)

    def _enqueue_many(
        self, jobs: Sequence[NewJob | tuple[str | None, Any]], headers: Mapping[str, str] | None
    ) -> list[EnqueueResult]:
        random = os.urandom(8 * len(jobs))  # a call for each nonce costs as much as the rest of a small job
        records = [self._record(*_unpack(job), random[8 * n : 8 * n + 8], headers) for n, job in enumerate(jobs)]
        order = in_order(records) if any(record.after for record in records) else None
        ordered = records if order is None else [records[n] for n in order]
        if self.gate is not None and records and self.gate.defer(partial(self._send, ordered)):
            return list(map(_deferred, records))
        results = list(map(self._result, self._send(ordered)))
        if order is not None:
            results = [result for _, result in sorted(zip(order, results, strict=True))]
        return results

    def call(
        self, id: str | None, payload: Any = None, *, timeout: float = 30.0, **options: Unpack[JobArguments]
    ) -> Any:
        """Enqueue a job and wait for its result; join it when it is there, take the cached result when it is done.

        Raises CallTimeoutError after ``timeout`` seconds (the job goes on), JobFailedError or
        MaxRetriesError when it ended in the dead letters, JobCancelledError, ResultExpiredError.
        """
        if self.sending is None:
            return self._call(id, payload, timeout, options, None)
        with self.sending("call", id, 1) as headers:
            return self._call(id, payload, timeout, options, headers)

    def _call(
        self, id: str | None, payload: Any, timeout: float, options: Mapping[str, Any],
        headers: Mapping[str, str] | None,
    ) -> Any:  # fmt: skip
        if self.gate is not None:
            self.gate.check_wait("call")
        deadline = time.monotonic() + check_seconds("timeout", timeout)
        record = self._record(id, payload, options, None, headers)
        if record.is_persistent:
            raise InvalidJobError("a persistent job never ends by itself, so nobody can wait for its result")
        waiter = unique_name(8)
        try:
            [answer] = self._ready_storage().enqueue(self.name, [record], waiter, to_ms(timeout))
        except (StorageUnavailableError, OutcomeUnknownError) as error:
            if time.monotonic() < deadline:
                raise  # it was tried for as long as anything is tried
            raise CallTimeoutError(record.id, f"could not be enqueued within {timeout:g} s: {error}") from error
        self._tell([answer])
        if answer.status == "completed":
            return self._load_result(record.id, answer.result)
        if answer.state is State.COMPLETED and answer.status == "duplicate":
            raise ResultExpiredError(record.id, "it completed, but its result is past its TTL")
        # A repeated enqueue may find its own job finished: then nobody replies, look at the state.
        registered = waiter if answer.state in LIVE else None
        return self._join(record.id, timeout, deadline, answer.nonce, registered)

    def schedule(self, name: str, **arguments: Unpack[ScheduleArguments]) -> ScheduleInfo:
        """Enqueue a job at each tick of ``cron="*/5 * * * *"`` or ``every=30``, until ``schedules.remove(name)``.

        The arguments are those of :meth:`~reliq.schedules.Schedules.put`. Any pool or reaper carries it out.
        """
        self._ready_storage()
        return self.schedules.put(name, **arguments)

    def wait(self, id: str, timeout: float = 30.0) -> Any:
        """Wait for a job that was enqueued earlier; its result. Raises as :meth:`call`, and JobNotFoundError."""
        if self.gate is not None:
            self.gate.check_wait("wait")
        deadline = time.monotonic() + check_seconds("timeout", timeout)
        return self._join(check_text("id", id, MAX_ID_BYTES), timeout, deadline)

    def cancel(self, id: str, *, running: bool = False) -> CancelResult:
        """Cancel a job that has not started; with ``running``, also ask its handler to stop.

        A cancelled id is unknown afterwards, its callers get JobCancelledError.
        """
        [status] = self.storage.cancel(self.name, [check_text("id", id, MAX_ID_BYTES)], running=running)
        if status == "cancelled" and self._emitter.has("cancelled"):
            self._emitter.emit(Event("cancelled", self.name, id))
        return CancelResult(id, status)

    def cancel_matching(self, payload: Any) -> list[CancelResult]:
        """Cancel every unfinished job with an equal payload (the same bytes once serialised), running ones included.

        Reads the whole backlog, a page at a time: meant for mending, not for every request. Jobs that are
        enqueued meanwhile may be missed.
        """
        data = self._dump_payload(None, payload)
        results: dict[str, CancelResult] = {}
        storage = self.storage
        for state in _ONWARD:
            for page in listed_snapshots(storage, self.name, state):
                found = [snapshot for snapshot in page if payload_of(snapshot) == data]
                nonces = [snapshot.nonce for snapshot in found]
                ids = [snapshot.id for snapshot in found]
                # By incarnation: an id that was given another payload since is left alone.
                for id, status in zip(ids, storage.cancel(self.name, ids, running=True, nonces=nonces), strict=True):
                    if status in ("cancelled", "cancelling"):
                        results[id] = CancelResult(id, status)
        return list(results.values())

    # -- looking ----------------------------------------------------------------------

    def get_result(self, id: str, default: Any = None) -> Any:
        """The result of a completed job, ``default`` when there is none (yet); JobFailedError when it failed."""
        [snapshot] = self.storage.read(self.name, [check_text("id", id, MAX_ID_BYTES)])
        if snapshot.state is State.FAILED:
            raise to_exception(snapshot)
        if snapshot.state is not State.COMPLETED or snapshot.result is None:
            return default
        return self._load_result(id, snapshot.result)

    def get_status(self, id: str) -> JobStatus | None:
        """Everything known of a job, or None."""
        return self.get_statuses([id])[id]

    def get_statuses(self, ids: Iterable[str]) -> dict[str, JobStatus | None]:
        """:meth:`get_status` of many ids, by id."""
        checked = [check_text("id", id, MAX_ID_BYTES) for id in ids]
        found: dict[str, JobStatus | None] = {}
        for chunk in _chunks(checked, MAX_BATCH):
            for snapshot in self.storage.read(self.name, chunk):
                found[snapshot.id] = to_status(snapshot, self)
        return found

    def jobs(self, state: State | str | None = None, *, limit: int = 100, cursor: str | None = None) -> Page:
        """A page of jobs, of one state or of all; pass the page's ``cursor`` on for the next."""
        return list_jobs(self, state, limit, cursor)

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state, by its name."""
        return {state.value: count for state, count in self.storage.counts(self.name).items()}

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener(event)`` for each change of the queue, from every process, until the returned
        function is called. For monitoring only: nothing's correctness may rest on it."""

        def heard(kind: str, id: str) -> None:
            listener(Event(kind, self.name, id))

        return self.storage.subscribe(self.name, heard)

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Call ``listener(event)`` for what this object does: ``enqueued``, ``duplicate``, ``cancelled``, ``*``."""
        return self._emitter.on(event, listener)

    def around(self, enter: Around) -> Callable[[], None]:
        """Run each job of this object's pools inside of ``with enter(job):``; returns the way to stop it.

        Handler and ``after_execution`` run inside, on the thread of the job. What was added first is outermost. A
        handler's exception passes through it. What it raises by itself, on the way in or out, is a failure of the
        attempt like the handler's own.
        """
        if not callable(enter):
            raise InvalidJobError(f"around takes a function of a job, got {type(enter).__name__}")
        with self._lock:
            self.arounds = (*self.arounds, enter)

        def off() -> None:
            with self._lock:
                self.arounds = tuple(fn for fn in self.arounds if fn is not enter)

        return off

    # -- upkeep -----------------------------------------------------------------------

    def update_result_ttl(self, id: str, ttl: float) -> str:
        """Let a finished job's result (or dead letter) live ``ttl`` seconds from now.

        ``"updated"``, ``"not_found"`` or ``"not_terminal"`` (it has not ended yet).
        """
        check_text("id", id, MAX_ID_BYTES)
        return self.storage.update_ttl(self.name, id, to_ms(check_seconds("ttl", ttl)))

    def pause(self) -> None:
        """Hand out no more jobs, in any process. Running jobs go on, new ones are accepted."""
        self.storage.pause(self.name, True)

    def resume(self) -> None:
        """End a :meth:`pause`."""
        self.storage.pause(self.name, False)

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self.storage.is_paused(self.name)

    def purge(self) -> int:
        """Remove every job that is not running, whatever its state; how many there were."""
        return self.storage.purge(self.name)

    def delete(self) -> int:
        """Remove the queue with all its jobs, running ones included, its schedules and limits; how many jobs.

        Handlers that run are told ``"lost"`` and their outcomes are dropped. A job enqueued later makes it anew.
        """
        return self.storage.delete(self.name)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that hold for the queue in every process; None where there is none."""
        limits = self._ready_storage().limits(self.name)
        rate = None if limits.rate is None else shown_rate(limits.rate, limits.rate_ms)
        return {name: rate if name == "rate_limit" else getattr(limits, name) for name in LIMIT_NAMES}

    def set_limits(self, **limits: Any) -> None:
        """Change limits for every process; what is not named stays, None lifts one.

        ``rate_limit``: ``"100/s"`` (or ``/m``, ``/h``, ``/d``), jobs that may start, over all workers.
        ``max_concurrency``: jobs that run at once. ``max_length``: jobs that wait to run, beyond which
        ``enqueue`` raises QueueFullError. ``group_concurrency``: jobs of one group that run at once (1; never more
        on a ``.fifo`` queue).
        """
        storage = self._ready_storage()
        storage.set_limits(self.name, change_limits(storage.limits(self.name), self._checked_limits(limits)))

    # -- consuming --------------------------------------------------------------------

    def handler(self, function: Handler) -> Handler:
        """Decorator: ``function(job)`` runs this queue's jobs. Returns it unchanged; one per Queue object."""
        if self.function is not None:
            raise InvalidJobError(f"queue {self.name!r} has a handler already: {self.function!r}")
        check_function("handler", function)
        self.function = function
        return function

    #: ``q.execute(fn)``, for those who prefer a call to a decorator.
    execute = handler

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self, *, name: str | None = None, **options: Unpack[TaskArguments]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(  # type: ignore[misc]  # mypy does not see that **options takes what Unpack names
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any
    ) -> Any:
        """Decorator: calls of ``function`` can be jobs, by ``.enqueue(...)``, ``.call(...)`` and ``.schedule(...)``.

        A queue may have many tasks; they are its handler, so it takes no other. ``name`` (the function's own) is
        what jobs carry: it must stay while jobs are under way. The options are those of
        :meth:`~reliq.tasks.Task.options`. Arguments and results travel as JSON. Raises InvalidJobError.
        """
        from .tasks import make_task  # only those who use tasks pay for them

        if function is not None:
            return make_task(self, function, name, options)

        def decorate(function: Callable[P, R]) -> Task[P, R]:
            return make_task(self, function, name, options)

        return decorate

    def claim(
        self, limit: int = 1, *, timeout: float = 0.0, lease: float | None = None, worker_id: str | None = None
    ) -> list[ClaimedJob]:
        """Claim up to ``limit`` jobs by hand, for those who run their own loop.

        Waits up to ``timeout`` seconds for the first one. Each job must be settled by its
        ``complete``, ``retry``, ``fail`` or ``release`` within ``lease`` seconds (default: the queue's
        visibility_timeout), or be kept by ``extend``. ``worker_id`` labels the first claim's worker.
        """
        with self._lock:
            if self._manual is None or self._manual.is_inherited:
                self._manual = ManualWorker(self, worker_id)
            manual = self._manual
        if self._new_limits:
            self.apply_limits()
        return manual.claim(limit, timeout, lease)

    # -- shared by the verbs ----------------------------------------------------------

    def _send(self, records: Sequence[NewRecord]) -> list[Enqueued]:
        """Write ``records`` and tell the listeners of each chunk."""
        storage = self._ready_storage()
        answers: list[Enqueued] = []
        for chunk in _chunks(records, MAX_BATCH):
            accepted = storage.enqueue(self.name, chunk)
            self._tell(accepted)
            answers += accepted
        return answers

    def _ready_storage(self) -> Storage:
        """The storage, told of this object's limits."""
        if self._new_limits:
            self.apply_limits()
        return self.storage

    def apply_limits(self) -> None:
        """Store the limits this object was made with, unless others are set: those stand, with a warning."""
        with self._lock:
            given, self._new_limits = self._new_limits, {}
        if not given:
            return
        try:
            wanted = change_limits(NO_LIMITS, self._checked_limits(given))
            found = self.storage.set_limits(self.name, wanted, only_new=True)
        except BaseException:
            self._new_limits = given
            raise
        if change_limits(found, given) != found:
            log.warning(
                "queue %r: this process was given the limits %s, but those in its storage stand: %s; "
                "Queue.set_limits changes them for all", self.name, given, self.limits,
            )  # fmt: skip

    def _checked_limits(self, limits: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.is_fifo and limits.get("group_concurrency") not in (None, 1):
            raise InvalidJobError(f"group_concurrency of {self.name!r} is 1: a .fifo queue is strictly in order")
        return limits

    def load_payload(self, data: bytes) -> Any:
        """The payload's value; raises SerdeError naming the queue."""
        try:
            return self.options.payload_serde.loads(data)
        except Exception as error:
            raise SerdeError(f"queue {self.name!r}: the payload cannot be decoded: {error}") from error

    def dump_result(self, value: Any) -> bytes:
        """The bytes of a handler's result; raises SerdeError naming the queue."""
        try:
            data = as_bytes(self.options.result_serde.dumps(value))
        except Exception as error:
            raise SerdeError(f"queue {self.name!r}: the result {error}") from error
        limit = self.options.max_payload_bytes
        if len(data) > limit:
            raise SerdeError(f"queue {self.name!r}: the result must be at most {limit} bytes, got {len(data)}")
        return data

    def _load_result(self, id: str, data: bytes | None) -> Any:
        try:
            return self.options.result_serde.loads(data or b"")
        except Exception as error:
            raise SerdeError(f"queue {self.name!r}: the result of {id!r} cannot be decoded: {error}") from error

    def _record(
        self, id: str | None, payload: Any, given: Mapping[str, Any] | None, nonce: bytes | None = None,
        sent: Mapping[str, str] | None = None,
    ) -> NewRecord:  # fmt: skip
        """Check everything and build what the storage takes; nothing is written yet.

        ``sent``: headers of :attr:`sending`, over those of the job that enqueues and under the job's own.
        """
        options = JobOptions.of(self.options, given) if given else None
        if self.is_fifo and (options is None or options.group is None):
            raise InvalidJobError(f"queue {self.name!r} is a .fifo queue: each of its jobs needs a group")
        if id is not None:
            check_text("id", id, MAX_ID_BYTES)
        data = self._dump_payload(id, payload)
        if id is None:
            id = _group_id(options.group, payload, data) if options and self.is_fifo else unique_name(16)
        nonce = nonce or os.urandom(8)
        caller = running.get()
        inherited = None if caller is None else caller.headers
        if options is None:
            if not inherited and not sent:
                head = self._default_head
                return NewRecord(id, nonce, head + data, self._defaults.max_attempts, *self._default_ttls_ms)
            options = self._defaults
        if id in options.after:
            raise InvalidJobError(f"after must not hold the job itself, got {id!r}")
        if inherited or sent:
            options = replace(options, headers=_all_headers(inherited or {}, sent or {}, options.headers or {}))
        return NewRecord(
            id,
            nonce,
            _head(options) + data,
            options.max_attempts,
            *self._ttls_ms(options),
            options.priority,
            to_ms(options.delay) if options.delay else 0,
            None if options.at is None else round(options.at * 1000),
            options.group,
            options.after,
            options.persistent,
        )

    def _dump_payload(self, id: str | None, payload: Any) -> bytes:
        try:
            data = as_bytes(self.options.payload_serde.dumps(payload))
        except Exception as error:
            raise SerdeError(f"queue {self.name!r}: the payload of {id!r} {error}") from error
        limit = self.options.max_payload_bytes
        if len(data) > limit:
            raise InvalidJobError(f"payload of {id!r} must be at most {limit} bytes, got {len(data)}")
        return data

    def _ttls_ms(self, options: JobOptions) -> tuple[int, int, int]:
        return to_ms(options.result_ttl), to_ms(options.dedup_ttl), to_ms(self.options.dead_ttl)

    def _result(self, answer: Enqueued) -> EnqueueResult:
        result = self._load_result(answer.id, answer.result) if answer.status == "completed" else None
        # `.value` is a property in Python, and costs as much as the answer itself.
        return EnqueueResult(answer.id, answer.status, answer.state._value_, result)

    def _tell(self, answers: Sequence[Enqueued]) -> None:
        emitter = self._emitter
        if emitter.has("enqueued") or emitter.has("duplicate"):
            for answer in answers:
                name = "enqueued" if answer.status == "queued" else "duplicate"
                emitter.emit(Event(name, self.name, answer.id))

    def _join(self, id: str, timeout: float, deadline: float, nonce: bytes = b"", waiter: str | None = None) -> Any:
        """Wait for the end of a job; a storage that fails meanwhile is asked again until the deadline."""
        trouble: StorageError | None = None
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            try:
                snapshot = self.storage.wait(self.name, id, nonce=nonce, waiter=waiter, timeout=remaining)
            except StorageError as error:
                trouble = error
                if (left := deadline - time.monotonic()) <= 0:
                    raise self._timed_out(id, timeout) from trouble
                time.sleep(min(left, 0.1))  # a storage that is down answers at once
                continue
            if snapshot is None:
                raise self._timed_out(id, timeout) from trouble
            return self._end_of(snapshot)

    def _end_of(self, snapshot: Snapshot) -> Any:
        id = snapshot.id
        if snapshot.state is State.COMPLETED:
            if snapshot.result is None:
                raise ResultExpiredError(id, "it completed, but its result is past its TTL")
            return self._load_result(id, snapshot.result)
        if snapshot.state is State.FAILED:
            raise to_exception(snapshot)
        if snapshot.cause in ("cancelled", "purged"):
            raise JobCancelledError(id, f"it was {snapshot.cause}")
        if snapshot.cause in ("expired", "replaced"):
            raise ResultExpiredError(id, f"its record was {snapshot.cause}")
        raise JobNotFoundError(id, "no such job" if snapshot.cause == "unknown" else f"it was {snapshot.cause}")

    def _timed_out(self, id: str, timeout: float) -> CallTimeoutError:
        return CallTimeoutError(id, f"did not end within {timeout:g} s; it goes on")


def _head(options: JobOptions) -> bytes:
    return message.head(options.headers, options.time_limit, options.backoff, options.after)


def _all_headers(inherited: Mapping[str, str], sent: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The later ones count. What an integration adds is left out where it would not fit: it must not cost a job."""
    if sent:
        with contextlib.suppress(InvalidJobError):
            return check_headers({**inherited, **sent, **own})
    return check_headers({**inherited, **own})


def _group_id(group: str | None, payload: Any, data: bytes) -> str:
    """Equal jobs of one group of a .fifo queue are one job; in another group they mean something else."""
    try:
        return content_id([group, payload])
    except SerdeError:  # no JSON value: then by its bytes
        return content_id(f"{group}\0".encode() + data)


def _deferred(record: NewRecord) -> EnqueueResult:
    return EnqueueResult(record.id, "deferred", "")


def _unpack(job: NewJob | tuple[str | None, Any]) -> tuple[str | None, Any, dict[str, Any] | None]:
    if type(job) is tuple and len(job) == 2:
        return job[0], job[1], None
    if isinstance(job, NewJob):
        options = zip(NewJob._fields[2:], job[2:], strict=True)
        return job.id, job.payload, {name: value for name, value in options if value is not None}
    if isinstance(job, Sequence) and not isinstance(job, str | bytes) and len(job) == 2:
        return job[0], job[1], None
    raise InvalidJobError(f"jobs must hold (id, payload) pairs or NewJob, got {type(job).__name__}")


def in_order(records: Sequence[NewRecord]) -> list[int]:
    """The numbers of linked ``records``, each behind those that it waits for and otherwise as they stand.

    Raises InvalidJobError for a cycle, and for more than a storage accepts in one step.
    """
    numbers: dict[str, int] = {}
    for n, record in enumerate(records):
        numbers.setdefault(record.id, n)  # of one id the first counts
    inside = {n: [numbers[id] for id in record.after if id in numbers] for n, record in enumerate(records)}
    if not any(inside.values()):
        return list(range(len(records)))
    if len(records) > MAX_BATCH:
        raise InvalidJobError(
            f"jobs that name each other in after must be at most {MAX_BATCH} in one call, got {len(records)}"
        )
    if (links := sum(len(record.after) for record in records)) > MAX_LINKED:
        raise InvalidJobError(
            f"jobs that name each other in after must hold at most {MAX_LINKED} ids in all, got {links}"
        )
    try:
        TopologicalSorter(inside).prepare()
    except CycleError as error:
        ids = " -> ".join(repr(records[n].id) for n in error.args[1][:10])
        raise InvalidJobError(f"after must not go round in a circle, got {ids}") from None
    order: dict[int, None] = {}
    pending = list(reversed(inside))
    while pending:
        n = pending[-1]
        waits_for = [] if n in order else [other for other in inside[n] if other not in order]
        if waits_for:
            pending += reversed(waits_for)
        else:
            order[pending.pop()] = None
    return list(order)


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
