"""What callers and handlers see of a job. Plain values; nothing here talks to a storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from .retry import Backoff


@dataclass(frozen=True, slots=True)
class NewJob:
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


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """The answer of ``enqueue``.

    ``status`` is ``"queued"`` (accepted), ``"duplicate"`` (the id exists, nothing changed)
    or ``"completed"`` (it has run already and ``result`` is its cached result).
    ``state`` is the job's state as of this answer.
    """

    id: str
    status: str
    state: str
    result: Any = None


@dataclass(frozen=True, slots=True)
class CancelResult:
    """The answer of ``cancel``.

    ``status``: ``"cancelled"``, ``"cancelling"`` (running, its handler was asked to stop),
    ``"processing"`` (running and left alone), ``"completed"``, ``"failed"`` or ``"not_found"``.
    """

    id: str
    status: str


@dataclass(frozen=True, slots=True)
class AttemptError:
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
    last one. ``due_at`` is set while scheduled or failing, ``expires_at`` when finished.
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
    payload: bytes = b""

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


@dataclass(frozen=True, slots=True)
class Event:
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
