"""What the threads of a pool do while their storage does not answer."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from ..errors import StorageError
from ..job import Event

log = logging.getLogger("reliq")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


def pause_after(failures: int) -> float:
    """Seconds to wait after that many failures in a row: exponential, so that many threads do not hammer
    a storage that comes back, and jittered, so that they do not come together."""
    pause: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 10))
    return pause * random.uniform(0.5, 1.0)


class Outage:
    """One outage of one storage: told once, however many threads run into it, and once when it is over.

    It is over when each operation that failed has succeeded again. ``is_on`` is cheap to ask.
    """

    def __init__(self, storage: str, report: Callable[[Event], None]) -> None:
        self.is_on = False
        self._storage = storage
        self._report = report
        self._lock = threading.Lock()
        self._failing: set[str] = set()

    def failed(self, error: BaseException, operation: str, queue: str = "") -> None:
        """``operation`` failed."""
        with self._lock:
            is_first = not self._failing
            self._failing.add(operation)
            self.is_on = True
        if not is_first:
            log.debug("storage %s: %s failed, too: %s", self._storage, operation, error)
            return
        # A storage error says what is wrong by itself; anything else is a fault whose place matters.
        trace = None if isinstance(error, StorageError) else error
        log.error("storage %s: %s failed, it is tried again: %s", self._storage, operation, error, exc_info=trace)
        self._report(Event("error", queue, error=error))

    def over(self, *operations: str) -> None:
        """These went through."""
        with self._lock:
            self._failing.difference_update(operations)
            if self._failing or not self.is_on:
                return
            self.is_on = False
        log.info("storage %s answers again", self._storage)
