"""Upkeep of queues: recovers stalled jobs, promotes due ones, carries out schedules, removes what expired."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from .errors import InvalidJobError
from .hooks import Emitter, Listener
from .job import Event
from .queue import Queue
from .service import Service
from .storage.base import Doorbell, Storage
from .ticks import Seen, Ticker
from .validate import check_items, check_queue_name, check_seconds, to_ms
from .worker.outage import Outage, pause_after

log = logging.getLogger("reliq")

INTERVAL_S = 1.0
#: Doorbells keep shorter waits to a few ms. Of a longer one for a due job the end is a wait of its own.
EXACT_S = 0.9
LAST_WAIT_S = 0.15


class Reaper:
    """Looks after queues, every second and whenever a delayed job or a schedule's tick is due. Any number may run.

    ``target`` is a Queue, several, or a Storage; with a Storage ``queues`` names the queues, and
    without it all queues of the storage are looked after, also those that come later.
    Events: ``stalled``, ``failed``, ``cancelled``, ``expired``, ``error``, and ``enqueued`` for the jobs of ticks
    (of several reapers one tells of each).
    """

    def __init__(
        self,
        target: Queue | Sequence[Queue] | Storage,
        queues: Sequence[str] | None = None,
        *,
        interval: float = INTERVAL_S,
    ) -> None:
        check_seconds("interval", interval)
        self._emitter = Emitter("stalled", "failed", "cancelled", "expired", "enqueued", "error")
        self._interval = interval
        self._queues: tuple[Queue, ...] = ()
        self._names: tuple[str, ...] | None = None
        self._storage: Storage | None = None
        if isinstance(target, Storage):
            self._storage = target
            if queues is not None:
                names = check_items("queues must be a list of names", queues)
                self._names = tuple(check_queue_name(name) for name in names)
        elif queues is not None:
            raise InvalidJobError("queues names the queues of a Storage; a Queue knows its own name")
        else:
            what = "Reaper takes a Queue, a list of queues or a Storage"
            self._queues = (target,) if isinstance(target, Queue) else check_items(what, target)
            if not self._queues or not all(isinstance(queue, Queue) for queue in self._queues):
                raise InvalidJobError(what)
        self._rounds: list[Round] = []

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Call ``listener(event)`` for one of the events above, or for all of them (``*``)."""
        return self._emitter.on(event, listener)

    def start(self) -> Self:
        """Start one thread per storage."""
        if self._rounds:
            raise InvalidJobError("this reaper was started already")
        self._rounds = self._make_rounds()
        for each in self._rounds:
            each.start()
        return self

    def stop(self, timeout: float | None = None) -> bool:
        """End the threads; False when one is still in a storage call after ``timeout`` seconds."""
        for each in self._rounds:
            each.ask_to_stop()
        ended = [each.stop(timeout) for each in self._rounds]
        if all(ended):
            self._rounds = []
        return all(ended)

    @property
    def reaped_at(self) -> float:
        """When every storage had last been looked after without an error, monotonic; infinite before the start."""
        return min((each.reaped_at for each in self._rounds), default=math.inf)

    def watch(self, queues: Sequence[str]) -> None:
        """Look after these queues of the Storage from now on."""
        self._names = tuple(check_queue_name(name) for name in queues)
        for each in self._rounds:
            each.watch(self._names)

    def run_once(self) -> int:
        """Look after every queue once, in this thread; how many changes that made. Raises StorageError."""
        return sum(each.reap()[0] for each in self._make_rounds())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _make_rounds(self) -> list[Round]:
        if self._storage is not None:
            return [Round(self._storage, self._names, self._interval, self._emitter)]
        groups: dict[Storage, list[str]] = {}
        for queue in self._queues:
            groups.setdefault(queue.storage, []).append(queue.name)
        return [Round(storage, tuple(names), self._interval, self._emitter) for storage, names in groups.items()]


class Round(Service):
    """The thread that goes round the queues of one storage."""

    def __init__(self, storage: Storage, names: tuple[str, ...] | None, interval: float, emitter: Emitter) -> None:
        super().__init__("reliq-reaper", self._loop)
        self._storage = storage
        self._names = names
        self._interval = interval
        self._emitter = emitter
        self._outage = Outage(storage.url or type(storage).__name__, emitter.emit)
        self._ticker = Ticker(storage, emitter.emit)
        self._bell: Doorbell | None = None
        self._belled: tuple[str, ...] = ()
        #: The last round without an error, or when this was made; monotonic.
        self.reaped_at = time.monotonic()

    def watch(self, names: tuple[str, ...]) -> None:
        """As :meth:`Reaper.watch`; the thread looks at once."""
        self._names = names
        bell = self._bell
        if bell is not None:
            bell.wake()

    def reap(self) -> tuple[int, float | None]:
        """Look after each queue until nothing is left to do: the number of changes, seconds to the next due time.

        One step of a schedule's missed ticks; where there are more, the time is 0.
        """
        changes = 0
        next_due: int | None = None
        for name in self._queue_names():
            more = True
            while more and not self.stopping.is_set():
                seen = Seen.now()
                reaped = self._storage.reap(name, interval_ms=to_ms(self._interval))
                changes += len(reaped.changes)
                for kind, id in reaped.changes:
                    self._tell(kind, name, id)
                due = reaped.next_due_ms
                if reaped.ticks:
                    carried = self._ticker.carry_out(name, reaped.ticks, reaped.now_ms, seen)
                    changes += carried.enqueued
                    due = carried.next_due_ms if due is None else min(due, carried.next_due_ms)
                if due is not None:
                    next_due = due if next_due is None else min(next_due, due)
                more = reaped.more
        return changes, None if next_due is None else next_due / 1000

    def ask_to_stop(self) -> None:
        """Let the thread end; does not wait."""
        self.stopping.set()
        bell = self._bell
        if bell is not None:
            bell.wake()

    def stop(self, timeout: float | None = None) -> bool:
        """As :meth:`Service.stop`."""
        self.ask_to_stop()
        return super().stop(timeout)

    def _loop(self, stop: threading.Event) -> None:
        failures = 0
        try:
            while not stop.is_set():
                try:
                    # The bell first: what becomes due earlier during the round rings it.
                    bell = self._bell_of(self._queue_names())
                    began = time.monotonic()
                    _, next_due = self.reap()
                    failures = 0
                    self.reaped_at = time.monotonic()
                    if self._outage.is_on:
                        self._outage.over("reap")
                    pause = self._interval if next_due is None else min(self._interval, _until_due(next_due))
                    pause -= time.monotonic() - began
                    if pause > 0 and not stop.is_set():
                        if bell is None:
                            stop.wait(pause)
                        else:
                            bell.wait(pause)
                except BaseException as error:  # a listener's SystemExit too: this thread goes on
                    failures += 1
                    self._outage.failed(error, "reap")
                    stop.wait(pause_after(failures))
        finally:
            self._drop_bell()

    def _queue_names(self) -> tuple[str, ...]:
        return tuple(self._storage.queues()) if self._names is None else self._names

    def _bell_of(self, names: tuple[str, ...]) -> Doorbell | None:
        if names != self._belled:
            self._drop_bell()
        if self._bell is None and names:
            self._bell = self._storage.doorbell(names, "due")
            self._belled = names
        return self._bell

    def _drop_bell(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            with contextlib.suppress(Exception):
                bell.close()

    def _tell(self, kind: str, queue: str, id: str) -> None:
        if kind == "stalled":
            log.warning("job %r of queue %r was recovered from a worker that is gone or stuck", id, queue)
        elif kind == "failed":
            log.error("job %r of queue %r is a dead letter: its attempts were used up by lost workers", id, queue)
        if self._emitter.has(kind):
            self._emitter.emit(Event(kind, queue, id))


def _until_due(seconds: float) -> float:
    return seconds if seconds < EXACT_S else seconds - LAST_WAIT_S
