"""The thread that does for runners what they cannot do while a handler runs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from ..service import Service
from .ledger import Batch, Ledger
from .settler import Settler

log = logging.getLogger("reliq")


class Monitor(Service):
    """Settles outcomes and gives back unstarted jobs behind a slow neighbour, ends runs at their time
    limit, and tries again what the storage did not take. Sleeps while there is none of it.

    ``replace(batch)`` is told of a batch whose runner is stuck.
    """

    def __init__(self, name: str, ledger: Ledger, settler: Settler, replace: Callable[[Batch], None]) -> None:
        super().__init__(name, self._loop)
        self._ledger = ledger
        self._settler = settler
        self._replace = replace
        self._woken = threading.Event()
        ledger.nudge = self._woken.set

    def step(self) -> float:
        """Do what is due; when to look again, as ``time.monotonic()``."""
        found = self._ledger.overdue()
        for entry in found.timed_out:
            entry.signal.set("timeout")
            try:
                self._replace(entry.batch)
            except Exception:  # no thread to be had must not keep the job from being settled
                log.exception("a stuck runner could not be replaced")
            if entry.envelope is not None:
                entry.finished = entry.batch.source.executor.timed_out(entry.claimed, entry.envelope)
        for entries in (found.timed_out, found.ready):
            if entries:
                self._settler.settle(entries)
        return found.look_at

    def stop(self, timeout: float | None = None) -> bool:
        """As :meth:`Service.stop`."""
        self.stopping.set()
        self._woken.set()
        return super().stop(timeout)

    def _loop(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._woken.clear()
            try:
                look_at = self.step()
            except BaseException:  # whatever it is, this thread goes on
                log.exception("%s: this round failed, the next follows", threading.current_thread().name)
                look_at = time.monotonic() + 0.1
            self._woken.wait(None if look_at == math.inf else max(0.0, look_at - time.monotonic()))
