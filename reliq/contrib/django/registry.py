"""``queues["emails"]``: the queues of the settings, one object each for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from django.core.exceptions import ImproperlyConfigured

from ...queue import Queue
from .conf import QueueSettings, read_queues
from .transactions import CommitGate, fresh_connections


def integrate(queue: Queue, on_commit: str | None = "default") -> Queue:
    """Make a queue of your own behave like those of the settings; returns it.

    What is enqueued in a transaction of the database ``on_commit`` is sent when it commits (None: at once), and each
    job runs with fresh database connections.
    """
    queue.gate = CommitGate(on_commit)
    queue.around(fresh_connections)
    return queue


class Queues(Mapping[str, Queue]):
    """The queues of ``settings.RELIQ``, made when they are first asked for. Nothing connects before its first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, Queue] = {}
        self._settings: dict[str, QueueSettings] | None = None

    def __getitem__(self, name: str) -> Queue:
        settings = self._read()
        if name not in settings:
            raise ImproperlyConfigured(
                f"no queue {name!r} in RELIQ['QUEUES']; there are: {', '.join(settings) or 'none'}"
            )
        return self.make(settings[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def make(self, settings: QueueSettings) -> Queue:
        """The one queue of that name, made of ``settings`` unless it is there."""
        with self._lock:
            queue = self._made.get(settings.name)
            if queue is None:
                queue = self._made[settings.name] = integrate(settings.make(), settings.on_commit)
            return queue

    def _read(self) -> dict[str, QueueSettings]:
        with self._lock:
            if self._settings is None:
                self._settings = read_queues()
            return self._settings


#: ``from reliq.contrib.django import queues``
queues = Queues()
