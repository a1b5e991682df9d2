"""``reliq worker --processes N``: keeps N worker processes alive.

A child that dies is started again; its jobs go back to their queues at once, without
waiting for the worker's TTL. A child that can never start ends the whole command, loudly, unless its
code is watched: then the next change may mend it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from ..errors import ReliqError
from ..identity import default_worker_label
from ..queue import Queue
from .child import Child
from .common import EXIT_OK, EXIT_TROUBLE, EXIT_USAGE
from .probes import Address

log = logging.getLogger("reliq.cli")

#: A child that lived this long was healthy: its successor starts at once.
HEALTHY_SECONDS = 10.0
#: Pauses before restarts of a child that keeps dying young.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: So many times in a row one slot may die before it ever served its queues.
MAX_FALSE_STARTS = 5
#: After the second signal a child gets this long before it is killed.
KILL_SECONDS = 10.0
_LOOK_SECONDS = 1.0
#: A child's exit code when it ran as many jobs as it should: it wants a successor.
EXIT_REPLACE = 75
#: Editors write several files, and one of them several times: a reload waits until so long nothing changed.
_SETTLE_SECONDS = 0.1


@dataclass(slots=True)
class _Slot:
    """One of the N places for a child."""

    number: int
    child: Child | None = None
    incarnations: int = 0
    false_starts: int = 0
    young_deaths: int = 0
    restart_at: float = 0.0
    is_done: bool = False
    #: Whether the child was told to end because its code changed.
    is_reloading: bool = False


class Supervisor:
    """Starts ``processes`` children with ``arguments`` and looks after them until a signal or the end of the work.

    ``passes_label``: whether the children take their label from ``--worker-id`` (a WorkerPool of
    the user's own has one already). ``reloads``: whether :meth:`reload` will be called, so that a child that
    cannot start waits for the next change. ``http``: where the first child answers probes, the others next to it.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        arguments: Sequence[str],
        processes: int,
        *,
        worker_id: str | None = None,
        passes_label: bool = True,
        until_empty: bool = False,
        reloads: bool = False,
        http: Address | None = None,
    ) -> None:
        self._queues = queues
        self._arguments = arguments
        self._slots = [_Slot(number + 1) for number in range(processes)]
        self._base = worker_id or default_worker_label()
        self._passes_label = passes_label
        self._until_empty = until_empty
        self._reloads = reloads
        self._http = http
        self._changed_at: float | None = None
        self._bell: socket.socket | None = None
        self._signals: list[int] = []
        self._passed_on = 0
        self._kill_at: float | None = None
        self._code = EXIT_OK

    def run(self) -> int:
        """Block until every child has ended for good; the exit code. Call it in the main thread."""
        with self._listening() as wake:
            try:
                while not all(slot.is_done for slot in self._slots):
                    self._reload_if_changed()
                    for slot in self._slots:
                        self._look_at(slot)
                    self._pass_signals_on()
                    self._sleep(wake)
            finally:
                self._end_all()
        return self._code

    def reload(self) -> None:
        """Replace every child by one with the present code. Any thread may call it."""
        self._changed_at = time.monotonic()
        bell = self._bell
        if bell is not None:
            with contextlib.suppress(OSError):  # full: it is awake; closed: it is over
                bell.send(b"r")

    # -- one slot ---------------------------------------------------------------------

    def _reload_if_changed(self) -> None:
        changed_at = self._changed_at
        if changed_at is None or self._is_stopping or time.monotonic() < changed_at + _SETTLE_SECONDS:
            return
        self._changed_at = None
        log.info("the code has changed: starting anew")
        for slot in self._slots:
            slot.false_starts = slot.young_deaths = 0
            slot.restart_at = 0.0
            if slot.child is not None and not slot.is_reloading:
                slot.is_reloading = True
                slot.child.send_signal(signal.SIGTERM)

    def _look_at(self, slot: _Slot) -> None:
        if slot.is_done:
            return
        if slot.child is None:
            if self._is_stopping:
                slot.is_done = True
            elif time.monotonic() >= slot.restart_at:
                self._start(slot)
            return
        code = slot.child.exit_code
        slot.child.hear()
        if code is not None:
            self._bury(slot, slot.child, code)

    def _start(self, slot: _Slot) -> None:
        slot.incarnations += 1
        named = ["--worker-id", f"{self._base}-{slot.number}.{slot.incarnations}"] if self._passes_label else []
        probes = [] if self._http is None else ["--http", self._http.of(slot.number)]
        slot.child = Child([*named, *probes, *self._arguments])
        log.info("worker process %d started, pid %d", slot.number, slot.child.pid)

    def _bury(self, slot: _Slot, child: Child, code: int) -> None:
        lived = time.monotonic() - child.started_at
        served = child.is_ready
        child.close()
        slot.child = None
        is_reloading, slot.is_reloading = slot.is_reloading, False
        self._hand_back(child)
        if self._is_stopping:
            slot.is_done = True
            # Before it could listen, any end by the signal is a clean one.
            if code not in (EXIT_OK, EXIT_REPLACE) and served:
                self._code = self._code or EXIT_TROUBLE
            log.info("worker process %d, pid %d, ended %s", slot.number, child.pid, _how(code))
            return
        if self._until_empty and code == 0:
            slot.is_done = True
            log.info("worker process %d, pid %d, found its queues empty", slot.number, child.pid)
            return
        if is_reloading:
            return
        if code == EXIT_REPLACE:
            log.info("worker process %d, pid %d, ran as many jobs as it should", slot.number, child.pid)
            return
        log.warning("worker process %d, pid %d, ended %s after %.1f s", slot.number, child.pid, _how(code), lived)
        slot.false_starts = 0 if served else slot.false_starts + 1
        slot.young_deaths = 0 if lived >= HEALTHY_SECONDS else slot.young_deaths + 1
        if not served and self._reloads:
            log.error("worker process %d cannot start; waiting for the code to change", slot.number)
            slot.restart_at = math.inf
            return
        if not served and (code == EXIT_USAGE or slot.false_starts >= MAX_FALSE_STARTS):
            log.error(
                "giving up: worker process %d cannot start (attempts: %d, the last ended %s); see its messages above",
                slot.number, slot.false_starts, _how(code),
            )  # fmt: skip
            self._code = EXIT_USAGE if code == EXIT_USAGE else EXIT_TROUBLE
            self._signals.append(signal.SIGTERM)
            slot.is_done = True
            return
        pause = 0.0
        if slot.young_deaths > 1:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (slot.young_deaths - 2))
            log.info("worker process %d is started again in %.1f s", slot.number, pause)
        slot.restart_at = time.monotonic() + pause

    def _hand_back(self, child: Child) -> None:
        """Give the jobs of a dead child back. Its key is its own, whatever other workers share its label."""
        key = child.worker_key
        if key is None:
            return
        for queue in self._queues:
            try:
                if count := queue.storage.leave(queue.name, key):
                    log.info("queue %s: %d job(s) of the dead worker %s handed back", queue.name, count, key)
            except ReliqError as error:
                log.warning("queue %s: the jobs of %s come back after its TTL only: %s", queue.name, key, error)

    # -- stopping ---------------------------------------------------------------------

    @property
    def _is_stopping(self) -> bool:
        return bool(self._signals)

    def _pass_signals_on(self) -> None:
        """Each signal once to each child: the first is a graceful stop, the second means now."""
        children = [slot.child for slot in self._slots if slot.child is not None]
        for number in self._signals[self._passed_on :]:
            self._passed_on += 1
            log.info("stopping: %s to %d worker process(es)", signal.Signals(number).name, len(children))
            for child in children:
                child.send_signal(number)
            if self._passed_on == 2:
                self._kill_at = time.monotonic() + KILL_SECONDS
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            for child in children:
                child.send_signal(signal.SIGKILL)

    def _end_all(self) -> None:
        """Last resort after an error of the supervisor's own: no child stays behind."""
        for slot in self._slots:
            if slot.child is not None:
                slot.child.end(KILL_SECONDS)
                slot.child.hear()
                slot.child.close()
                self._hand_back(slot.child)
                slot.child = None

    # -- waiting ----------------------------------------------------------------------

    def _sleep(self, wake: socket.socket) -> None:
        """Until a signal arrives, a child ends or speaks, or a restart is due."""
        now = time.monotonic()
        pauses = [slot.restart_at - now for slot in self._slots if slot.child is None and not slot.is_done]
        if self._changed_at is not None:
            pauses.append(self._changed_at + _SETTLE_SECONDS - now)
        timeout = max(0.0, min([_LOOK_SECONDS, *pauses]))
        if all(slot.is_done for slot in self._slots):
            return
        children = [slot.child for slot in self._slots if slot.child is not None]
        ready, _, _ = select.select([wake.fileno(), *(child.fileno() for child in children)], [], [], timeout)
        if wake.fileno() in ready:
            wake.recv(4096)
        for child in children:
            if child.fileno() in ready and child.has_hung_up:
                # End of file comes a moment before the exit code can be read.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(0.05)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[socket.socket]:
        """Signals only count and wake the loop: a handler runs in the middle of anything."""
        wake, bell = socket.socketpair()
        wake.setblocking(False)
        bell.setblocking(False)

        def note(number: int, _: FrameType | None) -> None:
            self._signals.append(number)

        def ignore(number: int, _: FrameType | None) -> None:
            """The wake-up is all it is for."""

        handlers = {signal.SIGTERM: note, signal.SIGINT: note, signal.SIGCHLD: ignore}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        fd = signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
        self._bell = bell
        try:
            yield wake
        finally:
            self._bell = None
            signal.set_wakeup_fd(fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            wake.close()
            bell.close()


def _how(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"
