"""What callers and handlers see of a job. Plain values; nothing here talks to a storage."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, overload

from .errors import JobStoppedError, ReliqError
from .retry import Backoff


class NewJob(NamedTuple):
    """One job for ``enqueue_many``; the fields are ``enqueue``'s arguments."""

    id: str | None
    payload: Any = None
    max_attempts: int | None = None
    result_ttl: float | None = None
    dedup_ttl: float | None = None
    time_limit: float | None = None
    delay: float | None = None
    at: Any = None
    priority: int | None = None
    backoff: Backoff | None = None
    headers: Mapping[str, str] | None = None
    group: str | None = None
    after: Sequence[str] | None = None
    persistent: bool | None = None


class EnqueueResult(NamedTuple):
    """The answer of ``enqueue``.

    ``status`` is ``"queued"`` (accepted), ``"duplicate"`` (the id exists, nothing changed)
    or ``"completed"`` (it has run already and ``result`` is its cached result).
    ``state`` is the job's state as of this answer. ``"deferred"``, with an empty state, means that nothing
    was sent yet: an integration keeps the job until the present transaction commits.
    """

    id: str
    status: str
    state: str
    result: Any = None


class CancelResult(NamedTuple):
    """The answer of ``cancel``.

    ``status``: ``"cancelled"``, ``"cancelling"`` (running, its handler was asked to stop),
    ``"processing"`` (running and left alone), ``"completed"``, ``"failed"`` or ``"not_found"``.
    """

    id: str
    status: str


class AttemptError(NamedTuple):
    """Why one attempt failed. ``at`` in epoch seconds by the storage's clock."""

    attempt: int
    error_type: str
    message: str
    traceback: str
    at: float
    worker_id: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as the storage sees it. Times are epoch seconds by the storage's clock.

    ``errors`` holds the last failed attempts, oldest first; ``error`` is the text of the
    last one. ``due_at`` is set while scheduled or failing, ``expires_at`` when finished (None while jobs
    wait for it). ``sequence`` is the place in the order of a ``group``; ``after`` names the jobs it waits or waited
    for; ``progress`` is what its handler last reported. ``payload`` and ``result`` are values, or the stored
    bytes where those cannot be decoded.
    """

    id: str
    queue: str
    state: str
    created_at: float
    updated_at: float
    attempts: int
    max_attempts: int
    priority: int = 0
    due_at: float | None = None
    expires_at: float | None = None
    worker_id: str | None = None
    cancel_requested: bool = False
    result: Any = None
    errors: tuple[AttemptError, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: Any = None
    group: str | None = None
    sequence: int | None = None
    after: tuple[str, ...] = ()
    persistent: bool = False
    progress: Any = None

    @property
    def error(self) -> str | None:
        """``"Type: message"`` of the last failed attempt, or None."""
        if not self.errors:
            return None
        last = self.errors[-1]
        return f"{last.error_type}: {last.message}"


class Page(Sequence[JobStatus]):
    """One page of a listing. ``cursor`` continues it, or is None on the last page."""

    def __init__(self, jobs: Sequence[JobStatus], cursor: str | None) -> None:
        self._jobs = tuple(jobs)
        self.cursor = cursor

    @overload
    def __getitem__(self, index: int) -> JobStatus: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[JobStatus]: ...
    def __getitem__(self, index: int | slice) -> JobStatus | Sequence[JobStatus]:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[JobStatus]:
        return iter(self._jobs)

    def __repr__(self) -> str:
        return f"Page({list(self._jobs)!r}, cursor={self.cursor!r})"


class Event(NamedTuple):
    """One change, as listeners get it.

    ``name`` is what happened (``"queued"``, ``"processing"``, ``"completed"``, ``"failing"``,
    ``"failed"``, ``"requeued"``, ``"stalled"``, ``"cancelled"``, ``"expired"``, ``"error"``,
    ``"started"``, ``"stopped"``); ``queue`` and ``id`` say to what (empty where they do not
    apply); ``result``, ``error`` and ``attempts`` are filled where the emitter knows them.
    """

    name: str
    queue: str = ""
    id: str = ""
    result: Any = None
    error: BaseException | None = None
    attempts: int = 0


#: Guards the making of every signal's condition: so rare that one lock serves them all.
_making = threading.Lock()


class Signal:
    """Tells a running handler that it should end. Set at most once; the first reason stands.

    ``reason`` is None or one of ``"cancelled"``, ``"timeout"``, ``"stopping"``, ``"lost"``.
    """

    __slots__ = ("_condition", "_reason")

    def __init__(self) -> None:
        self._reason: str | None = None
        self._condition: threading.Condition | None = None  # made by the first wait: most jobs never wait

    @property
    def reason(self) -> str | None:
        """Why the handler should end, None while it should not."""
        return self._reason

    def is_set(self) -> bool:
        """Whether the handler should end."""
        return self._reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the signal is set or ``timeout`` seconds passed; whether it is set."""
        with _making:
            if self._condition is None:
                self._condition = threading.Condition()
            condition = self._condition
        with condition:
            return condition.wait_for(self.is_set, timeout)

    def set(self, reason: str) -> bool:
        """Set it; False when it was set before. For the pool."""
        with _making:
            # A wait that makes its condition after this sees the reason; one before it is notified.
            if self._reason is not None:
                return False
            self._reason = reason
            condition = self._condition
        if condition is not None:
            with condition:
                condition.notify_all()
        return True

    def __repr__(self) -> str:
        return f"Signal({self._reason!r})"


class Desk(Protocol):
    """Where a running job asks and reports; for whoever runs handlers."""

    def progress(self, job: Job, value: Any) -> bool:
        """Keep ``value`` as the job's progress; False when the job is no longer held."""

    def result_of(self, id: str) -> Any:
        """The result of another job of the queue."""


@dataclass(slots=True, eq=False)
class Job:
    """What a handler gets.

    ``attempts`` counts this run; ``created_at`` is in epoch seconds by the storage's clock;
    ``deadline`` is the ``time.monotonic()`` at which ``time_limit`` ends, or None;
    ``worker_id`` is the label of the pool. ``group`` and ``sequence`` are those of a job in a group;
    ``after`` names the jobs that had to complete first. ``lease`` proves that the job is held.
    """

    id: str
    payload: Any
    attempts: int
    max_attempts: int
    created_at: float
    queue: str
    headers: Mapping[str, str]
    worker_id: str
    signal: Signal
    deadline: float | None = None
    group: str | None = None
    sequence: int | None = None
    after: tuple[str, ...] = ()
    desk: Desk | None = field(default=None, repr=False)
    lease: Any = field(default=None, repr=False)

    def progress(self, value: Any) -> bool:
        """Report how far this run is: any JSON value of at most 8 KiB, seen in ``get_status(id).progress`` and told
        to subscribers as ``progress``. False when the job is no longer this run's. Raises SerdeError, StorageError.
        """
        return self._desk().progress(self, value)

    def result_of(self, id: str) -> Any:
        """The result of a job in ``after`` (or any other of the queue); None while there is none."""
        return self._desk().result_of(id)

    def _desk(self) -> Desk:
        if self.desk is None:
            raise ReliqError("this Job was made by hand: nothing runs it that could be asked")
        return self.desk

    def check(self) -> None:
        """Raise JobStoppedError when the handler should end; let it through to end the run properly."""
        reason = self.signal.reason
        if reason is not None:
            raise JobStoppedError(reason)
