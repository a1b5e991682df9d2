"""Background threads, all of one shape: a name, a stop event, last words."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Self

log = logging.getLogger("reliq")


class Service:
    """A daemon thread that runs ``body(stop)`` once; ``body`` returns soon after ``stop`` is set."""

    def __init__(self, name: str, body: Callable[[threading.Event], None]) -> None:
        self.stopping = threading.Event()
        self._body = body
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Self:
        """Start the thread. Once per object."""
        self._thread.start()
        return self

    def stop(self, timeout: float | None = None) -> bool:
        """Ask the thread to end and wait for it; False when it is still running after ``timeout``."""
        self.stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._body(self.stopping)
        except Exception:
            log.exception("the thread %s ended by an error", self._thread.name)


class Periodic(Service):
    """Calls ``step()`` every ``interval`` seconds until stopped; an exception is logged, not fatal.

    ``step`` may return the seconds until its next call in place of ``interval``.
    """

    def __init__(self, name: str, interval: float, step: Callable[[], float | None]) -> None:
        self.interval = interval
        self._step = step
        super().__init__(name, self._loop)

    def _loop(self, stop: threading.Event) -> None:
        pause: float | None = 0.0
        while not stop.wait(self.interval if pause is None else pause):
            try:
                pause = self._step()
            except Exception:
                log.exception("%s: this round failed, the next follows", self._thread.name)
                pause = None
