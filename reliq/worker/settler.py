"""Tells the storage how runs ended, and the listeners what became of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..hooks import Emitter
from ..job import Event
from ..lifecycle import State
from ..storage.base import MAX_BATCH, Settled, Verb, Worker
from .ledger import Entry, Ledger
from .outage import Outage, pause_after
from .source import Source

log = logging.getLogger("reliq")


class Settler:
    """Settles entries that its caller took from the ledger. Safe from any thread."""

    def __init__(
        self, ledger: Ledger, worker: Worker, outage: Outage, emitter: Emitter, report: Callable[[Event], None]
    ) -> None:
        self._ledger = ledger
        self._worker = worker
        self._outage = outage
        self._emitter = emitter
        self._report = report
        self._failures = 0

    def settle(self, entries: Sequence[Entry]) -> bool:
        """One storage call per queue. False when the storage failed: the ledger keeps those outcomes for later."""
        by_source: dict[Source, list[Entry]] = {}
        for entry in entries:
            by_source.setdefault(entry.batch.source, []).append(entry)
        done = True
        for source, group in by_source.items():
            # A call keeps the order of what it releases to the front; of several calls the last comes first.
            for first in reversed(range(0, len(group), MAX_BATCH)):
                done = self._settle(source, group[first : first + MAX_BATCH]) and done
        return done

    def _settle(self, source: Source, entries: list[Entry]) -> bool:
        outcomes = [entry.finished.outcome for entry in entries if entry.finished is not None]
        try:
            answers = source.storage.settle(source.name, self._worker, outcomes)
        except BaseException as error:
            # It may have been written all the same: repeating a settle is safe, running the job again is not.
            self._failures += 1
            self._ledger.unsettled(entries, pause_after(self._failures))
            if not isinstance(error, Exception):
                raise
            self._outage.failed(error, "settle", source.name)
            return False
        self._failures = 0
        if self._outage.is_on:
            self._outage.over("settle")
        self._ledger.settled(entries)
        tell_completed = self._emitter.has("completed")
        for entry, answer in zip(entries, answers, strict=True):
            if answer.state is not State.COMPLETED or tell_completed:
                self._tell(source.name, entry, answer)
        return True

    def _tell(self, queue: str, entry: Entry, answer: Settled) -> None:
        claimed = entry.claimed
        state = answer.state
        finished = entry.finished
        if state is None or finished is None:
            log.warning("job %r of queue %r: the lease was lost, its outcome is dropped", claimed.id, queue)
            return
        if state is State.COMPLETED:
            name = "completed"
        elif state is State.FAILED:
            name = "failed"
            log.error(
                "job %r of queue %r is a dead letter after attempt %d of %d",
                claimed.id, queue, claimed.attempts, claimed.max_attempts, exc_info=finished.error,
            )  # fmt: skip
        elif state is State.ABSENT:
            name = "cancelled"
        else:
            name = "requeued" if finished.outcome.verb is Verb.RELEASE else "failing"
        if self._emitter.has(name):
            self._report(Event(name, queue, claimed.id, finished.result, finished.error, claimed.attempts))
