"""Queues and jobs as plain facts: what ``reliq info``, ``reliq ls`` and the dashboard show and tell as JSON."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .job import JobStatus
from .lifecycle import State
from .queue import Queue
from .storage.base import worker_label


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker of a queue."""

    worker_id: str
    threads: int
    processing: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One queue. ``oldest_wait``: for how many seconds the job that comes next has been ready, None without one."""

    queue: str
    storage: str
    is_paused: bool
    counts: dict[str, int]
    oldest_wait: float | None
    limits: dict[str, Any]
    workers: list[WorkerFacts]


def queue_facts(queue: Queue) -> QueueFacts:
    """What is known of a queue as a whole."""
    storage = queue.storage
    # Not from an application's Queue: reading must not store the limits that it was made with.
    limits = Queue(queue.name, storage).limits
    return QueueFacts(
        queue.name,
        storage.url,
        storage.is_paused(queue.name),
        {state.value: count for state, count in storage.counts(queue.name).items()},
        _oldest_wait(queue),
        {limit: value for limit, value in limits.items() if value is not None},
        [
            WorkerFacts(worker_label(found.key), found.runners, found.processing)
            for found in storage.workers(queue.name)
        ],
    )


def _oldest_wait(queue: Queue) -> float | None:
    ids, _ = queue.storage.list_ids(queue.name, State.QUEUED, None, 1)
    for snapshot in queue.storage.read(queue.name, ids, payload=False) if ids else ():
        if snapshot.state is State.QUEUED:
            return max(0.0, time.time() - snapshot.updated_at_ms / 1000)
    return None


def limit_remarks(limits: dict[str, Any]) -> list[str]:
    """The limits that somebody set, in words."""
    shown = {name: value for name, value in limits.items() if (name, value) != ("group_concurrency", 1)}
    return [f"{name.replace('_', ' ')} {value}" for name, value in shown.items()]


def job_facts(job: JobStatus, *, with_payload: bool = False) -> dict[str, Any]:
    """A job's fields by name. Payloads and results may be private: only when asked for."""
    found = {name: getattr(job, name) for name in JobStatus.__dataclass_fields__}
    if not with_payload:
        del found["payload"], found["result"]
    return found
