"""Where idle runners wait, and who goes next to which queue."""

from __future__ import annotations

import math
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
        self._place = threading.Lock()
        self._bell: Doorbell | None = None
        #: Queues to look at without a ring: all of them at the start, after an error and at each fallback.
        self._unlooked: deque[Source] = deque()
        self._turn = 0
        self._belled: tuple[Source, ...] | None = None
        #: When every queue is looked at whatever rang or not; monotonic.
        self._look_at = math.inf
        #: Until when somebody waits at the bell; -inf while nobody does.
        self._waits_until = -math.inf
        self.is_closed = False

    def next(self) -> Source | None:
        """Block until a queue should be looked at; None once closed. Raises what the doorbell raises."""
        with self._place:
            while not self.is_closed:
                # The bell before the first look: what comes after that look rings it.
                belled = self._sources
                bell = self._bell_of(belled)
                if self._unlooked:
                    return self._unlooked.popleft()
                if (source := self._let_go()) is not None:
                    return source
                rang = self._wait(bell)
                if rang is not None:
                    # Also once closed, or once the queue was removed: the ring may be the only one, and others may
                    # wait for it; its runner has to pass it on.
                    source = next((source for source in belled if source.name == rang), None)
                    if source is not None:
                        return source
                elif not self.is_closed and time.monotonic() >= self._look_at:
                    self.look_at_all()
            return None

    def _bell_of(self, sources: tuple[Source, ...]) -> Doorbell:
        """The bell of these queues: a new one after they changed."""
        if self._belled is not sources:
            old, self._bell = self._bell, None
            if old is not None:
                old.close()
            self._bell = self._storage.doorbell([source.name for source in sources], "work")
            self._belled = sources
            self.look_at_all()
            if self.is_closed or self._sources is not sources:  # by somebody who saw no bell to wake
                self._bell.wake()
        assert self._bell is not None  # noqa: S101 (for the type checker)
        return self._bell

    def _let_go(self) -> Source | None:
        """A queue whose rate limit has a token again."""
        now = time.monotonic()
        for source in self._sources:
            if -math.inf < source.held_until <= now:
                source.held_until = -math.inf
                return source
        return None

    def _wait(self, bell: Doorbell) -> str | None:
        self._waits_until = math.inf  # before the look at what is held: see `hold`
        # Nobody rings when a rate limit has its next token, which may have come since `_let_go` looked.
        held = (source.held_until for source in self._sources if source.held_until > -math.inf)
        until = min([self._look_at, *held])
        self._waits_until = until
        try:
            return bell.wait(max(0.0, until - time.monotonic()))
        except BaseException:
            self.look_at_all()  # a ring may have gone down with the connection
            raise
        finally:
            self._waits_until = -math.inf

    def hold(self, source: Source, seconds: float) -> None:
        """A rate limit holds the queue's jobs for so long: then it is looked at."""
        source.held_until = time.monotonic() + seconds
        # Who waits already does not know that yet.
        if self._waits_until > source.held_until and (bell := self._bell) is not None:
            bell.wake()

    def after(self, source: Source, more: bool) -> Source | None:
        """Where a runner goes after a claim from ``source``: None = wait for a ring."""
        if not more or self.is_closed or source.is_closed:
            return None
        if len(self._sources) > 1:
            stalest = min(self._sources, key=_looked_at)
            if stalest.looked_at < time.monotonic() - STARVING_S:
                return stalest
        return source

    def look_at_all(self) -> None:
        """Have every queue looked at once, beginning with another one each time."""
        self._look_at = time.monotonic() + self._storage.fallback_ms / 1000
        sources = self._sources
        self._turn = (self._turn + 1) % len(sources)
        self._unlooked = deque((*sources[self._turn :], *sources[: self._turn]))

    def change(self, sources: Sequence[Source]) -> None:
        """Serve these queues from now on; at least one."""
        self._sources = tuple(sources)
        if (bell := self._bell) is not None:
            bell.wake()

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
