"""Tells the storage how runs ended, and the listeners what became of them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from ..errors import StorageError
from ..hooks import Emitter, Observer, Run
from ..job import Event
from ..lifecycle import State
from ..storage.base import MAX_BATCH, Settled, Verb, Worker
from .execution import Finished, fail
from .ledger import Entry, Ledger
from .outage import Outage, pause_after
from .source import Source

log = logging.getLogger("reliq")

#: Errors that are about the storage or the machine. Any other is about the values that it was given.
_MAY_PASS = (StorageError, OSError, MemoryError)


class Settler:
    """Settles entries that its caller took from the ledger. Safe from any thread.

    ``observers`` may grow and shrink while it is used.
    """

    def __init__(
        self, ledger: Ledger, worker: Worker, outage: Outage, emitter: Emitter, report: Callable[[Event], None],
        observers: Sequence[Observer] = (),
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._worker = worker
        self._outage = outage
        self._emitter = emitter
        self._report = report
        self._observers = observers
        self._failures = 0
        #: When the storage last took outcomes, monotonic.
        self.settled_at = -math.inf

    def settle(self, entries: Sequence[Entry]) -> bool:
        """One storage call per queue. False when the storage failed: the ledger keeps those outcomes for later."""
        by_source: dict[Source, list[Entry]] = {}
        for entry in entries:
            by_source.setdefault(entry.batch.source, []).append(entry)
        # Taken from the end: a call keeps the order of what it releases to the front, of several the last comes first.
        calls = [
            (source, group[first : first + MAX_BATCH])
            for source, group in by_source.items()
            for first in range(0, len(group), MAX_BATCH)
        ]
        done = True
        while calls:
            source, group = calls.pop()
            answers: list[Settled] | None
            try:
                answers = self._send(source, group)
            except BaseException as error:
                is_unfit = isinstance(error, Exception) and not isinstance(error, _MAY_PASS)
                if is_unfit and len(group) > 1:
                    # One outcome that cannot be sent must not hold up its neighbours.
                    calls += [(source, [entry]) for entry in group]
                    continue
                answers = self._fail_instead(source, group[0], error) if is_unfit else None
                if answers is None:
                    done = False
                    self._keep(source, group, error)
                    if not isinstance(error, Exception):
                        for other, rest in calls:
                            self._keep(other, rest, error)
                        raise
                    continue
            self._settled(source, group, answers)
        return done

    def _send(self, source: Source, entries: Sequence[Entry]) -> list[Settled]:
        outcomes = [entry.finished.outcome for entry in entries if entry.finished is not None]
        return source.storage.settle(source.name, self._worker, outcomes)

    def _fail_instead(self, source: Source, entry: Entry, error: BaseException) -> list[Settled] | None:
        """Make the job of an outcome that cannot be sent a dead letter; None when that cannot be sent either.

        Then it is not the outcome that is at fault, and it is kept. So is a release: it holds nothing but the lease.
        """
        finished = entry.finished
        if finished is None or finished.outcome.verb not in (Verb.COMPLETE, Verb.RETRY):
            return None
        claimed = entry.claimed
        instead = Finished(fail(claimed, error), None, error)
        try:
            answers = source.storage.settle(source.name, self._worker, [instead.outcome])
        except Exception:
            return None
        entry.finished = instead
        log.error(
            "job %r of queue %r: its outcome cannot be stored, it is a dead letter instead: %s",
            claimed.id, source.name, error,
        )  # fmt: skip
        self._report(Event("error", source.name, claimed.id, error=error, attempts=claimed.attempts))
        return answers

    def _keep(self, source: Source, entries: Sequence[Entry], error: BaseException) -> None:
        # It may have been written all the same: repeating a settle is safe, running the job again is not.
        self._failures += 1
        self._ledger.unsettled(entries, pause_after(self._failures))
        self._outage.failed(error, "settle", source.name)

    def _settled(self, source: Source, entries: Sequence[Entry], answers: Sequence[Settled]) -> None:
        self._failures = 0
        self.settled_at = time.monotonic()
        if self._outage.is_on:
            self._outage.over("settle")
        self._ledger.settled(entries)
        tell_completed = self._emitter.has("completed")
        for entry, answer in zip(entries, answers, strict=True):
            if answer.state is not State.COMPLETED or tell_completed:
                self._tell(source.name, entry, answer)
        if self._observers:
            self._observed(source.name, entries, answers)

    def _observed(self, queue: str, entries: Sequence[Entry], answers: Sequence[Settled]) -> None:
        """Tell of a batch at once: a call for each job would cost as much as a job that does nothing."""
        now, completed = self.settled_at, State.COMPLETED
        runs = [
            # A run that a time limit or a stop took from its handler has no end of its own.
            Run(
                "completed" if answer.state is completed else _outcome(entry, answer),
                (now if entry.ended is None else entry.ended) - entry.began,
            )
            for entry, answer in zip(entries, answers, strict=True)
            if entry.began is not None
        ]
        for observe in tuple(self._observers) if runs else ():
            try:
                observe(queue, runs)
            except BaseException:  # whatever it raises, a runner must not end by it
                log.exception("an observer of queue %r raised; the jobs are not affected", queue)

    def _tell(self, queue: str, entry: Entry, answer: Settled) -> None:
        claimed = entry.claimed
        finished = entry.finished
        name = _outcome(entry, answer)
        if name == "lost" or finished is None:
            log.warning("job %r of queue %r: the lease was lost, its outcome is dropped", claimed.id, queue)
            return
        if name == "failed":
            log.error(
                "job %r of queue %r is a dead letter after attempt %d of %d",
                claimed.id, queue, claimed.attempts, claimed.max_attempts, exc_info=finished.error,
            )  # fmt: skip
        if self._emitter.has(name):
            self._report(Event(name, queue, claimed.id, finished.result, finished.error, claimed.attempts))


def _outcome(entry: Entry, answer: Settled) -> str:
    """What became of a job, by the name of its event; ``lost`` has none."""
    state = answer.state
    if state is State.COMPLETED:
        return "completed"
    if state is None or entry.finished is None:
        return "lost"
    if state is State.FAILED:
        return "failed"
    if state is State.ABSENT:
        return "cancelled"
    return "requeued" if entry.finished.outcome.verb is Verb.RELEASE else "failing"
