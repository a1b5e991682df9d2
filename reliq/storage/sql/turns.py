"""Group commit: of the threads that want to write, one serves all that wait.

Nothing here knows SQL. A thread hands in a request; if nobody serves it becomes the server,
and serves the waiting requests until its own is done; then one of those still waiting goes
on. So while one commit is on its way to the disk the next one collects.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class Request:
    """Something one thread wants done. Whoever serves it fills ``answers`` or ``error``, then calls :meth:`finish`."""

    __slots__ = ("_gate", "answers", "error", "is_done")

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.error: BaseException | None = None
        self.is_done = False
        self._gate: Any = None  # a lock that the waiting thread sleeps on

    def finish(self) -> None:
        """Mark it as done and wake its thread."""
        self.is_done = True
        self.nudge()

    def nudge(self) -> None:
        """Let its thread look whether it is done, or may serve."""
        gate = self._gate
        if gate is not None:
            try:
                gate.release()
            except RuntimeError:
                return  # nudged already, and it has not looked since

    def prepare(self) -> None:
        """Before others can see it."""
        self._gate = threading.Lock()
        self._gate.acquire()

    def sleep(self) -> None:
        """Until the next nudge."""
        self._gate.acquire()


class Turns:
    """One thread at a time runs ``serve(waiting)``, which takes the deque's first request and finishes all it takes."""

    def __init__(self, serve: Callable[[deque[Any]], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()
        self._holders = 0  # threads that want everybody to pause

    def submit(self, request: Request) -> None:
        """Have ``request`` served, together with others; raises the error it ended with."""
        if self._holders or not self._lock.acquire(blocking=False):
            request.prepare()
            self._waiting.append(request)
            # Whoever served looks for waiting ones after it let go of the lock, so one of both sees the other.
            try:
                while not request.is_done:
                    if not self._holders and self._lock.acquire(blocking=False):
                        self._lead(request)
                    else:
                        request.sleep()
            except BaseException:
                # An interrupted thread may have been the next to serve.
                with contextlib.suppress(ValueError):
                    self._waiting.remove(request)
                self._nudge_next()
                raise
        else:
            # Behind the others: a thread that comes again and again must not keep them waiting.
            self._waiting.append(request)
            self._lead(request)
        if request.error is not None:
            raise request.error

    def hold(self) -> None:
        """Let what is being served end, and nothing begin until :meth:`go_on`."""
        self._holders += 1
        self._lock.acquire()

    def go_on(self) -> None:
        """End a :meth:`hold`."""
        self._holders -= 1
        self._lock.release()
        self._nudge_next()

    def reset(self) -> None:
        """In a forked child, instead of :meth:`go_on`: the waiting threads are the parent's."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._holders = 0

    def _lead(self, request: Request) -> None:
        try:
            while not request.is_done:
                self._serve(self._waiting)
        finally:
            self._lock.release()
            self._nudge_next()

    def _nudge_next(self) -> None:
        try:
            self._waiting[0].nudge()
        except IndexError:
            return
