"""What pages show of jobs and workers, each read in a bounded number of steps and without payloads."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import InvalidJobError
from ..job import JobStatus
from ..lifecycle import State
from ..listing import list_jobs, to_status
from ..queue import Queue
from ..storage.base import worker_label
from ..validate import MAX_ID_BYTES, check_text

#: Jobs of one page.
PAGE = 50
#: A search reads so many jobs at a time, and so many in all before it shows what it found.
_STEP = 200
_SEARCHED = 5_000
#: So many running jobs of a queue are told by name.
MAX_RUNNING = 200


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of jobs. ``cursor`` continues it; ``searched`` is how many jobs a search has looked at for it."""

    jobs: list[JobStatus]
    cursor: str | None
    searched: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """One worker of a queue and what it runs. ``is_cut``: it may run more than is told."""

    worker_id: str
    instance: str
    queue: str
    threads: int
    processing: int
    expires_at: float
    jobs: list[JobStatus] = field(default_factory=list)
    is_cut: bool = False


def list_page(queue: Queue, state: str | None, cursor: str | None, limit: int = PAGE) -> Listing:
    """A page of jobs in ``state``, or of all. Raises InvalidJobError for what is no state or cursor."""
    page = list_jobs(queue, state, limit, cursor, payload=False)
    return Listing(list(page), page.cursor)


def search(queue: Queue, state: str | None, term: str, cursor: str | None) -> Listing:
    """Jobs whose id or last error holds ``term``, in any case; the one with exactly this id comes first.

    Looks at most at 5,000 jobs, then its cursor goes on.
    """
    wanted = term.casefold()
    found: dict[str, JobStatus] = {}
    if cursor is None and (exact := find_job(queue, term)) is not None and state in (None, exact.state):
        found[exact.id] = exact
    searched = 0
    while True:
        page = list_jobs(queue, state, _STEP, cursor, payload=False)
        searched += len(page)
        for job in page:
            if wanted in job.id.casefold() or wanted in (job.error or "").casefold():
                found.setdefault(job.id, job)
        cursor = page.cursor
        if cursor is None or len(found) >= PAGE or searched >= _SEARCHED:
            return Listing(list(found.values()), cursor, searched)


def find_job(queue: Queue, id: str) -> JobStatus | None:
    """A job without its payload; None for an unknown id and for what cannot be one."""
    try:
        check_text("id", id, MAX_ID_BYTES)
    except InvalidJobError:
        return None
    [snapshot] = queue.storage.read(queue.name, [id], payload=False)
    return to_status(snapshot, queue)


def workers_of(queue: Queue) -> list[Running]:
    """The workers of a queue, by name, with the jobs they run."""
    infos = queue.storage.workers(queue.name)
    ids: list[str] = []
    if any(info.processing for info in infos):
        ids, _ = queue.storage.list_ids(queue.name, State.PROCESSING, None, MAX_RUNNING)
    running: dict[str, list[JobStatus]] = {}
    for snapshot in queue.storage.read(queue.name, ids, payload=False) if ids else ():
        if snapshot.state is State.PROCESSING and snapshot.worker is not None:
            status = to_status(snapshot, queue)
            if status is not None:
                running.setdefault(snapshot.worker, []).append(status)
    return [
        Running(
            worker_label(info.key),
            info.key.rpartition("~")[2],
            queue.name,
            info.runners,
            info.processing,
            info.expires_at_ms / 1000,
            sorted(running.get(info.key, ()), key=lambda job: job.updated_at),
            len(ids) >= MAX_RUNNING,
        )
        for info in sorted(infos)
    ]
