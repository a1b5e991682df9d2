"""Queues of an application, out of the way of its real storage while a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..errors import InvalidJobError
from ..queue import Queue
from ..storage.base import Storage
from ..storage.sql.memory import MemoryStorage


@contextmanager
def isolated(*queues: Queue) -> Iterator[Storage]:
    """Put ``queues`` on one fresh memory storage; afterwards they are where they were, untouched.

    They keep their handlers, tasks and options, and need not be bound to anything. Nothing connects to their own
    storage. For all threads of the process: no pool or reaper may run on them meanwhile, and what was claimed from
    them by hand before belongs to the other storage. May be nested. Raises InvalidJobError for anything but queues.
    """
    if not queues or not all(isinstance(queue, Queue) for queue in queues):
        raise InvalidJobError(f"isolated takes queues, got {queues!r}")
    with ExitStack() as stack:
        storage = MemoryStorage()
        stack.callback(storage.close)
        for queue in queues:
            stack.enter_context(_on(queue, storage))
        yield storage


@contextmanager
def _on(queue: Queue, storage: Storage) -> Iterator[None]:
    with queue._lock:
        before = (queue._storage, queue._url, queue._owns_url, queue._manual, queue._new_limits)
        queue._storage, queue._url, queue._owns_url, queue._manual = storage, None, False, None
        queue._new_limits = queue.options.given_limits()  # this storage has not been told yet
    try:
        yield
    finally:
        queue.close()  # what the test holds goes back before its storage ends
        with queue._lock:
            queue._storage, queue._url, queue._owns_url, queue._manual, queue._new_limits = before
