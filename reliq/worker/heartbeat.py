"""The thread that keeps leases and registration alive, and hears of cancels and losses."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ..service import Periodic
from ..storage.base import Held, Outcome, Verb, Worker
from .ledger import Ledger
from .outage import Outage
from .source import Source

log = logging.getLogger("reliq")

INTERVAL_S = 1.0


class Heartbeat(Periodic):
    """Extends every second while jobs are held, every ``worker_ttl / 5`` while none are.

    A message is built anew each time, never resent. Nothing's safety rests on it: a handler
    that keeps the GIL delays it, and then the token decides.
    """

    def __init__(self, name: str, worker: Worker, ledger: Ledger, sources: Sequence[Source], outage: Outage) -> None:
        self._worker = worker
        self._ledger = ledger
        self._outage = outage
        self._sources: tuple[Source, ...] = ()
        self._idle_interval = INTERVAL_S
        super().__init__(name, INTERVAL_S, self.step)
        self.change(sources)
        self._beat_at = 0.0
        self._suspicious = 0

    def change(self, sources: Sequence[Source]) -> None:
        """Beat for these queues from now on; at least one."""
        shortest_lease = min(source.lease_ms for source in sources) / 1000
        self._idle_interval = min(self._worker.ttl_ms / 1000 / 5, shortest_lease / 3)
        self.interval = min(INTERVAL_S, self._idle_interval)
        self._sources = tuple(sources)

    def suspect(self) -> None:
        """A claim's answer was lost: beat at full pace for two beats, which find what it may have taken."""
        self._suspicious = 2

    def step(self) -> None:
        """Beat, unless the pool is idle and its last beat is young."""
        now = time.monotonic()
        idle = self._ledger.is_empty and not self._suspicious
        # The thread wakes at full pace all the same: that costs no command, and a pool that becomes busy beats soon.
        if idle and now - self._beat_at < self._idle_interval - self.interval / 2:
            return
        self._beat_at = now
        self._suspicious = max(0, self._suspicious - 1)
        for source in self._sources:
            if not source.is_left:  # it would sign the worker on again
                self.beat(source)

    def beat(self, source: Source) -> None:
        """One heartbeat for one queue."""
        snapshot = self._ledger.snapshot(source)
        held = [Held(*entry.key) for entry in snapshot.entries]
        try:
            answer = source.storage.extend(
                source.name, self._worker, held,
                below=snapshot.below, in_flight=snapshot.in_flight, lease_ms=source.lease_ms,
            )  # fmt: skip
            orphans = [orphan for orphan in answer.orphans if not self._ledger.knows(orphan)]
            if orphans:
                log.warning("queue %r: %d claimed job(s) never arrived, they are given back", source.name, len(orphans))
                outcomes = [Outcome(orphan.id, orphan.nonce, orphan.token, Verb.RELEASE) for orphan in orphans]
                source.storage.settle(source.name, self._worker, outcomes)
        except Exception as error:
            self._outage.failed(error, "heartbeat", source.name)
            return
        source.beaten_at = time.monotonic()
        if self._outage.is_on:
            self._outage.over("heartbeat")
        if answer.lost or answer.cancelled:
            entries = {entry.key: entry for entry in snapshot.entries}
            for gone in answer.lost:
                entry = entries.get((gone.id, gone.nonce, gone.token))
                if entry is not None and self._ledger.lose(entry):
                    log.warning("job %r of queue %r: the lease was lost", gone.id, source.name)
            for asked in answer.cancelled:
                entry = entries.get((asked.id, asked.nonce, asked.token))
                if entry is not None:
                    self._ledger.cancel(entry)
