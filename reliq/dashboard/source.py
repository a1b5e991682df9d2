"""Which queues a dashboard shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import InvalidJobError
from ..http.response import Problem
from ..queue import Queue
from ..storage.base import Storage

#: What a dashboard can be given.
Shown = Queue | Storage | Iterable[Queue | Storage]


class Source:
    """The given queues, with their serdes, and every queue of the given storages; each name once.

    Raises InvalidJobError for anything else, and for two queues of one name.
    """

    def __init__(self, given: Shown) -> None:
        items: list[Any] = [given] if isinstance(given, Queue | Storage) else _listed(given)
        self._storages = [item for item in items if isinstance(item, Storage)]
        self._queues: dict[str, Queue] = {}
        for item in items:
            if isinstance(item, Queue):
                if item.name in self._queues:
                    raise InvalidJobError(f"a dashboard shows each name once, got two queues {item.name!r}")
                self._queues[item.name] = item

    def all(self) -> list[Queue]:
        """Every queue, by name."""
        found = dict(self._queues)
        for storage in self._storages:
            for name in storage.queues():
                if name not in found:
                    found[name] = Queue(name, storage)
        return [found[name] for name in sorted(found)]

    def find(self, name: str) -> Queue:
        """The queue of that name; raises Problem(404)."""
        if name in self._queues:
            return self._queues[name]
        for storage in self._storages:
            if name in storage.queues():
                return Queue(name, storage)
        raise Problem(404, "queue-not-found", f"there is no queue {name!r:.80}")


def _listed(given: Any) -> list[Any]:
    what = "a dashboard shows a Queue, a Storage or a list of them"
    if isinstance(given, str):
        raise InvalidJobError(f"{what}, got a str: RedisStorage(url) or FileStorage(directory) makes a storage of it")
    try:
        items = list(given)
    except TypeError:
        raise InvalidJobError(f"{what}, got {type(given).__name__}") from None
    for item in items:
        if not isinstance(item, Queue | Storage):
            raise InvalidJobError(f"{what}, got a list with a {type(item).__name__}")
    if not items:
        raise InvalidJobError(f"{what}, got an empty list")
    return items
