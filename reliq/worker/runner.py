"""One thread that claims, runs and settles."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..hooks import Emitter
from ..job import Event
from ..message import Message
from ..service import Service
from ..storage.base import Worker
from .execution import broken_off
from .ledger import Batch, Entry, Ledger, Phase
from .outage import Outage, pause_after
from .settler import Settler
from .source import Source
from .turnstile import Turnstile

log = logging.getLogger("reliq")


class Runner(Service):
    """Claims a batch, runs its jobs one after the other, settles them together; until the turnstile closes.

    ``may_go_on(batch)`` decides what becomes of the thread after a batch that was taken from it
    while its handler was over its time.
    """

    def __init__(
        self,
        name: str,
        worker: Worker,
        ledger: Ledger,
        settler: Settler,
        turnstile: Turnstile,
        outage: Outage,
        emitter: Emitter,
        report: Callable[[Event], None],
        suspect: Callable[[], None],
        may_go_on: Callable[[Batch], bool],
    ) -> None:
        super().__init__(name, self._loop)
        self._worker = worker
        self._ledger = ledger
        self._settler = settler
        self._turnstile = turnstile
        self._outage = outage
        self._emitter = emitter
        self._report = report
        self._suspect = suspect
        self._may_go_on = may_go_on
        self._entry: Entry | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether it is inside the handler of a job that was taken from it."""
        entry = self._entry
        return entry is not None and entry.phase is not Phase.RUNNING

    def _loop(self, stop: threading.Event) -> None:
        failures = 0
        source: Source | None = None
        while True:
            try:
                if source is None or source.is_closed:
                    source = self._turnstile.next()
                if source is None:
                    return
                batch, more = self._claim(source)
                if batch is not None and not self._work_off(batch):
                    return
                source = self._turnstile.after(source, more)
                failures = 0
            except BaseException as error:  # whatever it is, this thread goes on
                failures += 1
                self._outage.failed(error, "claim" if source else "wait for jobs", source.name if source else "")
                # The ring that led to the source is spent and nobody else will look: it is kept for the next try.
                if stop.wait(pause_after(failures)):
                    return

    def _claim(self, source: Source) -> tuple[Batch | None, bool]:
        source.looked_at = time.monotonic()
        serial = self._ledger.reserve(source)
        if serial is None:
            return None, False
        try:
            claim = source.storage.claim(
                source.name, self._worker, source.size.size, serial=serial, lease_ms=source.lease_ms
            )
        except BaseException:
            # Its jobs may be claimed all the same: a heartbeat finds them.
            self._ledger.enter(serial, ())
            self._suspect()
            raise
        source.claimed_at = time.monotonic()
        if claim.wait_ms is not None:
            self._turnstile.hold(source, claim.wait_ms / 1000)
        batch = self._ledger.enter(serial, claim.jobs)
        if self._outage.is_on:
            self._outage.over("claim", "wait for jobs")
        return batch, claim.more

    def _work_off(self, batch: Batch) -> bool:
        """Run and settle a batch; False when this thread has been replaced and must end."""
        ledger = self._ledger
        if self._turnstile.is_closed or batch.source.is_closed:  # claimed in a race with that: the ring is passed on
            self._settler.settle(ledger.hand_back(batch))
            return True
        executor = batch.source.executor
        tell = self._emitter.has("processing")
        ran = 0
        began = time.monotonic()
        try:
            entry = ledger.start(batch)
            while entry is not None:
                self._entry = entry
                claimed = entry.claimed
                if tell:
                    self._report(Event("processing", batch.source.name, claimed.id, attempts=claimed.attempts))
                try:
                    finished = executor.run(claimed, entry.signal, self._arm)
                except BaseException as error:  # a job without an outcome would be held for ever
                    log.exception("job %r of queue %r: its run could not be ended", claimed.id, batch.source.name)
                    finished = broken_off(claimed, error)
                ran += 1
                if claimed.has_waiter:
                    following = None
                    if ledger.finish(entry, finished):
                        self._settler.settle(ledger.take(batch))
                else:
                    following = ledger.advance(entry, finished)
                if entry.finished is not finished:
                    log.warning(
                        "job %r of queue %r: its handler came back after the job had been taken from it (%s); "
                        "the outcome is dropped", claimed.id, batch.source.name, entry.signal.reason,
                    )  # fmt: skip
                    if batch.is_abandoned:
                        return self._may_go_on(batch)
                entry = following or ledger.start(batch)
            batch.source.size.learn(ran, time.monotonic() - began)
        finally:
            self._entry = None
            # After an error too: nothing of the batch may stay with a runner that left it.
            if (running := batch.running) is not None:
                ledger.finish(running, broken_off(running.claimed))
            if entries := ledger.hand_back(batch):
                self._settler.settle(entries)
        return True

    def _arm(self, deadline: float, envelope: Message) -> None:
        if self._entry is not None:
            self._ledger.arm(self._entry, deadline, envelope)
