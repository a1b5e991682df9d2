"""Who sleeps in this process, and how they are woken: waiters for a job's end, doorbells.

Nothing here reads the storage. A thread registers, then looks, then sleeps; whoever
commits a change wakes afterwards; so no change falls between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from ..base import Doorbell

Bell = Literal["work", "due"]


class Waiter:
    """Somebody who waits for a job's end. ``nonce``: the incarnation, empty until its first look told it."""

    __slots__ = ("event", "nonce")

    def __init__(self, nonce: bytes) -> None:
        self.event = threading.Event()
        self.nonce = nonce


class Wakeups:
    """The sleepers of one storage in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[tuple[str, str], set[Waiter]] = {}
        self._bells: dict[tuple[str, Bell], list[LocalDoorbell]] = {}
        self._asleep = 0

    @property
    def has_sleepers(self) -> bool:
        """Whether a thread of this process sleeps, or is about to look before it does."""
        with self._lock:
            return self._asleep > 0 or bool(self._waiters)

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Count the thread as a sleeper."""
        with self._lock:
            self._asleep += 1
        try:
            yield
        finally:
            with self._lock:
                self._asleep -= 1

    def forget(self) -> None:
        """In a forked child: the sleepers are threads of the parent."""
        self._lock = threading.Lock()
        self._waiters.clear()
        self._bells.clear()
        self._asleep = 0

    @contextmanager
    def waiter(self, queue: str, id: str, nonce: bytes) -> Iterator[Waiter]:
        """Somebody who waits for the end of a job; its event is set whenever that may have come."""
        waiter = Waiter(nonce)
        key = (queue, id)
        with self._lock:
            self._waiters.setdefault(key, set()).add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                waiters = self._waiters.get(key)
                if waiters is not None:
                    waiters.discard(waiter)
                    if not waiters:
                        del self._waiters[key]

    def ended(self, queue: str, ids: Iterable[str]) -> None:
        """Wake whoever waits for these jobs."""
        if not self._waiters:
            return
        with self._lock:
            waiters = [waiter for id in ids for waiter in self._waiters.get((queue, id), ())]
        for waiter in waiters:
            waiter.event.set()

    def unfinished(self, queue: str, lives: Mapping[str, bytes]) -> None:
        """Wake whoever waits for a job of the queue, but for those whose incarnation is among the ``lives`` by id."""
        with self._lock:
            waiters = [
                waiter
                for (name, id), waiters in self._waiters.items()
                if name == queue
                for waiter in waiters
                if waiter.nonce != lives.get(id)
            ]
        for waiter in waiters:
            waiter.event.set()

    def waited(self) -> dict[str, list[str]]:
        """The ids that are waited for, by queue."""
        with self._lock:
            ids: dict[str, list[str]] = {}
            for queue, id in self._waiters:
                ids.setdefault(queue, []).append(id)
            return ids

    def bells(self) -> list[tuple[str, Bell]]:
        """Which bells somebody of this process listens to."""
        with self._lock:
            return list(self._bells)

    def ring(self, queue: str, bell: Bell) -> None:
        """Ring in this process."""
        with self._lock:
            bells = list(self._bells.get((queue, bell), ()))
        for doorbell in bells:
            doorbell.ring(queue)

    def add(self, doorbell: LocalDoorbell) -> None:
        """Let a doorbell hear of its queues."""
        with self._lock:
            for queue in doorbell.queues:
                self._bells.setdefault((queue, doorbell.bell), []).append(doorbell)

    def remove(self, doorbell: LocalDoorbell) -> None:
        """Undo :meth:`add`. Idempotent."""
        with self._lock:
            for queue in doorbell.queues:
                bells = self._bells.get((queue, doorbell.bell), [])
                if doorbell in bells:
                    bells.remove(doorbell)
                    if not bells:
                        del self._bells[queue, doorbell.bell]

    def wake_all(self) -> None:
        """Wake every sleeper, to look for itself (the storage closes)."""
        with self._lock:
            waiters = [waiter for waiters in self._waiters.values() for waiter in waiters]
            bells = {id(bell): bell for bells in self._bells.values() for bell in bells}
        for waiter in waiters:
            waiter.event.set()
        for doorbell in bells.values():
            doorbell.wake()


class LocalDoorbell(Doorbell):
    """A doorbell that this process rings, with a look of its own in between.

    ``look(doorbell)`` names a queue that has something for it, or None; ``announce()`` tells
    other processes of the sleeper and is true when a look is due because of that.
    """

    def __init__(
        self, wakeups: Wakeups, queues: Sequence[str], bell: Bell, look: Callable[[LocalDoorbell], str | None],
        announce: Callable[[], bool], fallback_seconds: Callable[[], float],
    ) -> None:  # fmt: skip
        self.queues = tuple(dict.fromkeys(queues))
        self.bell: Bell = bell
        self._wakeups = wakeups
        self._look = look
        self._announce = announce
        self._fallback_seconds = fallback_seconds
        self._condition = threading.Condition()
        self._rung: dict[str, None] = {}
        self._is_woken = False
        wakeups.add(self)

    def ring(self, queue: str) -> None:
        """Note a ring for ``queue`` and end the wait."""
        with self._condition:
            self._rung[queue] = None
            self._condition.notify()

    def wake(self) -> None:
        with self._condition:
            self._is_woken = True
            self._condition.notify()

    def wait(self, timeout: float) -> str | None:
        with self._wakeups.asleep():
            return self._wait(time.monotonic() + timeout)

    def _wait(self, deadline: float) -> str | None:
        # Rings of other processes come only after this one announced itself, and what
        # happened before that is found by a look.
        is_look_due = self._announce()
        while True:
            with self._condition:
                if not is_look_due and not self._rung and not self._is_woken:
                    left = min(deadline - time.monotonic(), self._fallback_seconds())
                    if left > 0:
                        self._condition.wait(left)
                if self._is_woken:
                    self._is_woken = False
                    return None
                if self._rung:
                    queue = next(iter(self._rung))
                    del self._rung[queue]
                    return queue
            found = self._look(self)
            if found is not None or time.monotonic() >= deadline:
                return found
            is_look_due = self._announce()

    def close(self) -> None:
        self._wakeups.remove(self)
