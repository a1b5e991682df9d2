"""The threads of a pool that share one storage."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from ..hooks import Emitter, Observer
from ..job import Event
from ..reaper import Reaper
from ..storage.base import Storage, Worker
from .health import CrewHealth
from .heartbeat import Heartbeat
from .ledger import EVERYTHING, Batch, Ledger, Which
from .monitor import Monitor
from .outage import Outage
from .runner import Runner
from .settler import Settler
from .source import Source
from .turnstile import Turnstile

log = logging.getLogger("reliq")

#: How long handlers get to end by themselves after they were told to stop.
GRACE_S = 0.5
#: How long a stop tries to reach a storage that fails, and waits for threads that should be ending.
LAST_TRY_S = 2.0

#: What became of the thread of an abandoned batch.
_KEPT, _REPLACED, _REFUSED = "kept", "replaced", "refused"


class Crew:
    """Runners, monitor, heartbeat and reaper around one ledger; each is told to end in this order by a stop.

    ``exhausted()`` is called when a stuck runner could not be replaced any more.
    """

    def __init__(
        self,
        storage: Storage,
        sources: Sequence[Source],
        worker: Worker,
        emitter: Emitter,
        report: Callable[[Event], None],
        exhausted: Callable[[], None],
        reaper: Reaper | None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.sources = tuple(sources)
        self.ledger = Ledger()
        self.storage = storage
        self._worker = worker
        self._emitter = emitter
        self._report = report
        self._exhausted = exhausted
        self._outage = Outage(storage.url or type(storage).__name__, report)
        self._settler = Settler(self.ledger, worker, self._outage, emitter, report, observers)
        self._turnstile = Turnstile(storage, sources)
        self._heartbeat = Heartbeat(self._name("heartbeat"), worker, self.ledger, sources, self._outage)
        self._monitor = Monitor(self._name("monitor"), self.ledger, self._settler, self._replace)
        self._reaper = reaper
        self._lock = threading.Lock()
        self._runners: list[Runner] = []
        self._extra = 0

    def start(self) -> None:
        """Start all threads."""
        self._heartbeat.start()
        self._monitor.start()
        if self._reaper is not None:
            self._reaper.start()
        with self._lock:
            for _ in range(self._worker.runners):
                self._hire()

    # -- queues that come and go ------------------------------------------------------

    def add(self, source: Source) -> None:
        """Serve one more queue."""
        self._change((*self.sources, source))

    def remove(self, source: Source, remaining: Callable[[], float]) -> None:
        """Serve a queue no more: wait for its running jobs while ``remaining()`` seconds are left, then give back
        what still runs, and sign off from it. Not for the last one: then the crew stops."""
        source.is_closed = True
        self._change(tuple(other for other in self.sources if other is not source), still=source)
        self.drain(Which(source), remaining)
        # A claim that began meanwhile hands its jobs back: signing off would count them as runs that were lost.
        self.ledger.leave(source)
        last_try = time.monotonic() + LAST_TRY_S
        self.ledger.wait_empty(lambda: until(last_try), Which(source))
        self._heartbeat.change(self.sources)
        self._leave(source)

    def _change(self, sources: tuple[Source, ...], still: Source | None = None) -> None:
        self.sources = sources
        # A queue that is being left needs heartbeats until nothing of it is held.
        self._heartbeat.change(sources if still is None else (*sources, still))
        self._turnstile.change(sources)
        if self._reaper is not None:
            self._reaper.watch([source.name for source in sources])

    # -- how it goes ------------------------------------------------------------------

    def health(self) -> CrewHealth:
        """How long ago its loops last got through to the storage."""
        now = time.monotonic()
        busy = self.ledger.busy()
        # A runner that has just settled is about to claim, however long its job ran. While all run jobs, none claims.
        moved_at = now if busy >= self._worker.runners else self._settler.settled_at
        ages = {
            source.name: (now - max(source.claimed_at, moved_at), now - source.beaten_at) for source in self.sources
        }
        reaped = None if self._reaper is None else max(0.0, now - self._reaper.reaped_at)
        return CrewHealth(ages, reaped, busy, self.storage.fallback_ms / 1000)

    # -- stopping, step by step -------------------------------------------------------

    def drain(self, which: Which, remaining: Callable[[], float]) -> None:
        """Wait for running jobs while ``remaining()`` seconds are left; then tell them to end, and give back
        what still runs half a second later. Persistent ones are told at once: waiting for them is in vain."""
        self.interrupt(which._replace(is_persistent=True))
        if not self.ledger.wait_empty(remaining, which._replace(is_persistent=False)):
            self.interrupt(which)
        grace = time.monotonic() + GRACE_S
        if not self.ledger.wait_empty(lambda: until(grace), which):
            self.seize(which)

    def quiet(self) -> None:
        """Claim nothing more."""
        self._turnstile.close()
        with self._lock:
            for runner in self._runners:
                runner.stopping.set()  # ends a pause after an error

    def interrupt(self, which: Which = EVERYTHING) -> None:
        """Tell running handlers to end; give back what has not started."""
        self.ledger.interrupt("stopping", which)
        self._settler.settle(self.ledger.return_unstarted(which))

    def seize(self, which: Which = EVERYTHING) -> None:
        """Give back what still runs."""
        entries = self.ledger.seize(which)
        for entry in entries:
            entry.signal.set("stopping")
        self._settler.settle(entries)

    def close(self) -> None:
        """End the threads, the heartbeat last, and sign off from the storage."""
        last_try = time.monotonic() + LAST_TRY_S
        if not self.ledger.wait_empty(lambda: last_try - time.monotonic()):
            log.error("stopped with jobs that the storage did not take back: they are recovered when their lease ends")
        with self._lock:
            runners = list(self._runners)
        for runner in runners:
            runner.stop(max(0.0, last_try - time.monotonic()) if not runner.is_stuck else 0.0)
        self._monitor.stop(LAST_TRY_S)
        if self._reaper is not None:
            self._reaper.stop(LAST_TRY_S)
        self._heartbeat.stop(LAST_TRY_S)
        if self.ledger.is_empty:
            for source in self.sources:
                if not self._leave(source):
                    break
        try:
            self._turnstile.dispose()
        except Exception as error:
            self._outage.failed(error, "close the doorbell")

    def _leave(self, source: Source) -> bool:
        try:
            self.storage.leave(source.name, self._worker.key)
        except Exception as error:
            # Its registration runs out by itself.
            self._outage.failed(error, "leave", source.name)
            return False
        return True

    def owns(self, thread: threading.Thread) -> bool:
        """Whether ``thread`` is one that a stop waits for."""
        return thread.name.startswith(self._name(""))

    # -- runners ----------------------------------------------------------------------

    def _hire(self) -> None:
        self._runners = [runner for runner in self._runners if runner.is_alive]
        runner = Runner(
            self._name(f"runner-{len(self._runners) + 1}"),
            self._worker,
            self.ledger,
            self._settler,
            self._turnstile,
            self._outage,
            self._emitter,
            self._report,
            self._heartbeat.suspect,
            self._may_go_on,
        )
        self._runners.append(runner.start())

    def _replace(self, batch: Batch) -> None:
        """The runner of ``batch`` is stuck in a handler: another thread takes its place."""
        with self._lock:
            if batch.replacement is not None or self._turnstile.is_closed:
                return
            if self._extra < self._worker.runners:
                self._extra += 1
                batch.replacement = _REPLACED
                self._hire()
                return
            batch.replacement = _REFUSED
        log.error("%d handlers are stuck beyond their time_limit: no more threads are started", self._extra)
        self._report(Event("error", batch.source.name, error=TimeoutError("too many handlers are stuck")))
        self._exhausted()

    def _may_go_on(self, batch: Batch) -> bool:
        """The stuck runner is back: whether it goes on, or was replaced and ends."""
        with self._lock:
            if batch.replacement is None:
                batch.replacement = _KEPT
            elif batch.replacement == _REPLACED:
                self._extra -= 1
                return False
            return True

    def _name(self, role: str) -> str:
        return f"reliq-{self._worker.key}-{role}"


def until(deadline: float) -> float:
    """Seconds left until ``deadline`` (monotonic); infinite for an infinite one."""
    return math.inf if deadline == math.inf else deadline - time.monotonic()
