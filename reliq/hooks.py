"""The surface from which the world around reliq observes it (listeners) and takes part in it (around, gate)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from .errors import InvalidJobError
from .job import Event, Job

log = logging.getLogger("reliq")
Listener = Callable[[Event], object]
#: Makes what a run of a job happens inside of.
Around = Callable[[Job], AbstractContextManager[object]]
#: Makes what a call that sends jobs happens inside of, from the verb (``enqueue``, ``enqueue_many``, ``call``), and the
#: id and the number of the jobs; it yields headers for them.
Sending = Callable[[str, str | None, int], AbstractContextManager[Mapping[str, str]]]


class Run(NamedTuple):
    """How one run of a job ended, for :meth:`WorkerPool.observe`.

    ``outcome``: the name of its event (``completed`` ``failing`` ``failed`` ``requeued`` ``cancelled``), or ``lost``
    when the lease was lost and the outcome dropped. ``seconds``: how long it ran.
    """

    outcome: str
    seconds: float


#: Told the name of a queue and the runs of its jobs that were settled together.
Observer = Callable[[str, Sequence[Run]], object]


class Gate(Protocol):
    """When a queue sends what is enqueued: at once, or when something else has happened, such as a commit."""

    def defer(self, send: Callable[[], object]) -> bool:
        """True: ``send`` is called later, once, or never. False: nothing was kept, the queue sends at once."""

    def check_wait(self, verb: str) -> None:
        """Called before ``call`` or ``wait`` (the ``verb``) does anything; raises where waiting could not end."""


class Emitter:
    """Calls listeners in the order they were added. A listener that raises is logged and changes nothing."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)
        self._lock = threading.Lock()
        self._listeners: dict[str, tuple[Listener, ...]] = {}

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        """Call ``listener(event)`` for each event of this name, ``"*"`` for all; returns the way to stop it."""
        if name != "*" and name not in self.names:
            raise InvalidJobError(f"no event {name!r}; there are: * {' '.join(sorted(self.names))}")
        with self._lock:
            self._listeners[name] = (*self._listeners.get(name, ()), listener)

        def off() -> None:
            with self._lock:
                self._listeners[name] = tuple(fn for fn in self._listeners.get(name, ()) if fn is not listener)

        return off

    def has(self, name: str) -> bool:
        """Whether anybody listens; lets a hot path skip building the event."""
        return bool(self._listeners.get(name) or self._listeners.get("*"))

    def emit(self, event: Event) -> None:
        """Tell the listeners of ``event.name`` and of ``"*"``."""
        for listener in (*self._listeners.get(event.name, ()), *self._listeners.get("*", ())):
            try:
                listener(event)
            except BaseException as error:
                # A listener's SystemExit must not end a thread of reliq; in the main thread it is meant.
                if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                    raise
                log.exception("a listener of %r raised; the job is not affected", event.name)
