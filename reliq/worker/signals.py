"""SIGTERM and SIGINT, once and twice."""

from __future__ import annotations

import signal
import threading
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """While entered, each SIGTERM or SIGINT puts ``"signal"`` into ``mail``; afterwards all is as before.

    Does nothing outside the main thread, where Python allows no handlers. The handler does
    nothing but put: ``SimpleQueue.put`` is reentrant, while an Event that is set
    inside the wait that it interrupts would block for ever.
    """

    def __init__(self, mail: SimpleQueue[str]) -> None:
        self._mail = mail
        self._before: list[tuple[signal.Signals, Any]] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = [(number, signal.signal(number, self._received)) for number in SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before:
            # None: installed by something other than Python, which cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        self._mail.put("signal")
