"""How fast jobs end, counted from the events of the queues that somebody looks at.

Counts cannot tell: finished jobs leave them when their TTL ends. So while pages are open one thread listens, and it
ends with what it opened a minute after the last look. A process counts what it heard itself, from its first look on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ReliqError
from ..queue import Queue
from ..service import Service

log = logging.getLogger("reliq.dashboard")

#: A rate is over so many seconds, or since the first look.
WINDOW_SECONDS = 60.0
#: What charts show: so many buckets of so many seconds.
BUCKETS, BUCKET_SECONDS = 60, 5.0
#: Whoever looks at a queue less often than this is not looking any more.
IDLE_SECONDS = 60.0
#: Each watched queue costs a thread and a connection on some storages.
MAX_WATCHED = 50
_ROUND_SECONDS = 5.0
_LEAST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs per second, completed and failed for good, over ``seconds``; ``history`` holds completed ones per bucket."""

    completed: float
    failed: float
    seconds: float
    history: tuple[int, ...]


class _Meter:
    """Counts the events of one queue."""

    def __init__(self, queue: Queue, now: float, clock: Callable[[], float]) -> None:
        self.queue = queue
        self.looked_at = now
        self.stop: Callable[[], None] | None = None
        self._clock = clock
        self._since: float | None = None
        self._lock = threading.Lock()
        #: (number of the bucket, completed, failed), the newest last.
        self._buckets: deque[list[int]] = deque(maxlen=BUCKETS)

    def listen(self) -> None:
        self.stop = self.queue.storage.subscribe(self.queue.name, self._hear)
        self._since = self._clock()

    def _hear(self, event: str, _: str) -> None:
        if event not in ("completed", "failed"):
            return
        number = int(self._clock() // BUCKET_SECONDS)
        with self._lock:
            if not self._buckets or self._buckets[-1][0] != number:
                self._buckets.append([number, 0, 0])
            self._buckets[-1][1 if event == "completed" else 2] += 1

    def rate(self) -> Rate | None:
        now = self._clock()
        if self._since is None or now - self._since < _LEAST_SECONDS:
            return None
        number = int(now // BUCKET_SECONDS)
        with self._lock:
            buckets = {at: (completed, failed) for at, completed, failed in self._buckets}
        # The window ends now and begins with a bucket, so that none is counted in part.
        first = number - int(WINDOW_SECONDS // BUCKET_SECONDS) + 1
        seconds = now - max(self._since, first * BUCKET_SECONDS)
        completed = sum(found[0] for at, found in buckets.items() if at >= first)
        failed = sum(found[1] for at, found in buckets.items() if at >= first)
        history = tuple(buckets.get(at, (0, 0))[0] for at in range(number - BUCKETS + 1, number + 1))
        return Rate(completed / seconds, failed / seconds, seconds, history)


class Rates:
    """The rates of the queues that are looked at."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._meters: dict[str, _Meter] = {}
        self._service: Service | None = None
        self._wake = threading.Event()

    def look(self, queue: Queue) -> Rate | None:
        """The rate of a queue, None while it is not known; makes it known soon."""
        if self._pid != os.getpid():
            self._begin()  # threads and connections are the parent's
        with self._lock:
            meter = self._meters.get(queue.name)
            if meter is None:
                if len(self._meters) < MAX_WATCHED:
                    self._meters[queue.name] = _Meter(queue, self._clock(), self._clock)
                    self._start()
                return None
            meter.looked_at = self._clock()
        return meter.rate()

    def close(self) -> None:
        """Stop listening. Idempotent; a later look begins anew."""
        if self._pid != os.getpid():
            return
        with self._lock:
            service, self._service = self._service, None
            if service is not None:
                service.stopping.set()
            self._wake.set()
        if service is not None:
            service.stop()

    def _start(self) -> None:
        if self._service is None:
            self._wake = threading.Event()
            self._service = Service("reliq-dashboard-rates", self._run).start()
        self._wake.set()

    def _run(self, stop: threading.Event) -> None:
        while self._round(stop):
            self._wake.wait(_ROUND_SECONDS)
            self._wake.clear()

    def _round(self, stop: threading.Event) -> bool:
        """Listen where somebody began to look, leave where nobody does; False when nothing is left to do."""
        with self._lock:
            now = self._clock()
            is_over = stop.is_set()
            gone = [meter for meter in self._meters.values() if is_over or now - meter.looked_at > IDLE_SECONDS]
            for meter in gone:
                del self._meters[meter.queue.name]
            fresh = [meter for meter in self._meters.values() if meter.stop is None]
            is_last = not self._meters
            if is_last and not is_over:
                self._service = None  # under the lock: the next look starts another thread
        for meter in fresh:
            if stop.is_set():
                break  # the next round gives up what this one opened
            try:
                meter.listen()
            except ReliqError as error:
                log.warning("queue %r: its events cannot be heard: %s", meter.queue.name, error)
        for meter in gone:
            if meter.stop is not None:
                meter.stop()
        return not is_last
