"""Where idle runners wait, and who goes next to which queue."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from ..storage.base import Doorbell, Storage
from .source import Source

#: A queue nobody claimed from for this long is looked at, although another one still has work.
STARVING_S = 0.050


class Turnstile:
    """One idle runner at a time, the leader, waits at the doorbell; the others wait for its place.

    When the bell rings the leader leaves its place to the next one and claims by itself, so no
    thread hop lies between a job and its claim. A queue with more work than one claim took
    has rung again, which wakes the next leader.
    """

    def __init__(self, storage: Storage, sources: Sequence[Source]) -> None:
        self._storage = storage
        self._sources = tuple(sources)
        self._by_name = {source.name: source for source in sources}
        self._place = threading.Lock()
        self._bell: Doorbell | None = None
        #: Queues to look at without a ring: all of them at the start, after an error and at each fallback.
        self._unlooked: deque[Source] = deque(sources)
        self._turn = 0
        self.is_closed = False

    def next(self) -> Source | None:
        """Block until a queue should be looked at; None once closed. Raises what the doorbell raises."""
        with self._place:
            while not self.is_closed:
                # The bell before the first look: what comes after that look rings it.
                bell = self._bell or self._hang_bell()
                if self._unlooked:
                    return self._unlooked.popleft()
                rang = self._wait(bell)
                if rang is not None:
                    source = self._by_name.get(rang)
                    if source is not None:
                        # Also once closed: the ring may be the only one, its runner has to pass it on.
                        return source
                elif not self.is_closed:
                    self.look_at_all()
            return None

    def _hang_bell(self) -> Doorbell:
        bell = self._bell = self._storage.doorbell([source.name for source in self._sources], "work")
        if self.is_closed:  # by a close that saw no bell to wake
            bell.wake()
        return bell

    def _wait(self, bell: Doorbell) -> str | None:
        try:
            return bell.wait(self._storage.fallback_ms / 1000)
        except BaseException:
            self.look_at_all()  # a ring may have gone down with the connection
            raise

    def after(self, source: Source, more: bool) -> Source | None:
        """Where a runner goes after a claim from ``source``: None = wait for a ring."""
        if not more or self.is_closed:
            return None
        if len(self._sources) > 1:
            stalest = min(self._sources, key=_looked_at)
            if stalest.looked_at < time.monotonic() - STARVING_S:
                return stalest
        return source

    def look_at_all(self) -> None:
        """Have every queue looked at once, beginning with another one each time."""
        self._turn = (self._turn + 1) % len(self._sources)
        self._unlooked = deque((*self._sources[self._turn :], *self._sources[: self._turn]))

    def close(self) -> None:
        """Let every runner leave, now and later."""
        self.is_closed = True
        if self._bell is not None:
            self._bell.wake()

    def dispose(self) -> None:
        """Give the doorbell back, once no runner waits."""
        if self._place.acquire(timeout=1.0):
            try:
                bell, self._bell = self._bell, None
            finally:
                self._place.release()
            if bell is not None:
                bell.close()


def _looked_at(source: Source) -> float:
    return source.looked_at
