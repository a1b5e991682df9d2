"""The dead letters of a queue: jobs that failed for good, kept for dead_ttl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .job import Page
from .lifecycle import State
from .listing import list_jobs
from .storage.base import MAX_BATCH
from .validate import MAX_ID_BYTES, check_text

if TYPE_CHECKING:
    from .queue import Queue


class DeadLetters:
    """``q.dead_letters``: list them, try them again, or let them go."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def list(self, *, limit: int = 100, cursor: str | None = None) -> Page:
        """A page of dead letters, oldest first, with the history of their errors."""
        return list_jobs(self._queue, State.FAILED, limit, cursor)

    def retry(self, id: str) -> bool:
        """Put one back at the end of its queue with all its attempts; False when it is no dead letter."""
        queue = self._queue
        return bool(queue.storage.revive(queue.name, [check_text("id", id, MAX_ID_BYTES)]))

    def retry_all(self) -> int:
        """Put back every dead letter there is now; how many. In steps of 1,000."""
        queue = self._queue
        left = queue.storage.counts(queue.name)[State.FAILED]
        revived = 0
        while left > 0 and (step := len(queue.storage.revive(queue.name, None, limit=min(left, MAX_BATCH)))):
            revived += step
            left -= step
        return revived

    def discard(self, id: str) -> bool:
        """Remove one for good; False when it is no dead letter."""
        queue = self._queue
        return bool(queue.storage.discard(queue.name, [check_text("id", id, MAX_ID_BYTES)]))
