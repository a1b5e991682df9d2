"""Who owns a claimed job inside a pool.

Each claimed job has one phase, changed only under the ledger's lock. Whoever moves an entry
owns it from then on, and moves it before it calls the storage: so a job is settled by one
thread, once, however runner, monitor, heartbeat and a stop race for it::

    UNSTARTED -> RUNNING -> OUTCOME -> SETTLING -> GONE
    UNSTARTED -> OUTCOME (returning: its outcome is RELEASE)     the pool gives it back unrun
    RUNNING   -> SETTLING (by another than its runner)           time limit, end of a stop
    SETTLING  -> OUTCOME                                         the storage failed: tried again
    UNSTARTED, RUNNING -> GONE                                   the lease was lost

A runner that comes back from its handler to an entry that is RUNNING no more was abandoned:
its outcome is dropped. A heartbeat names every entry that is not GONE.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from ..job import Signal
from ..message import Message
from ..storage.base import Claimed, Held
from .execution import Finished, release
from .source import Source

#: A finished outcome waits at most this long behind a running neighbour.
FLUSH_S = 0.010
#: Unstarted jobs behind one that runs this long are given back.
HAND_BACK_S = 0.050


class Phase(Enum):
    """Where a claimed job is inside its pool."""

    UNSTARTED = auto()
    RUNNING = auto()
    OUTCOME = auto()
    SETTLING = auto()
    GONE = auto()


_UNSTARTED, _RUNNING, _OUTCOME, _SETTLING, _GONE = Phase


class Entry:
    """One claimed job. ``finished`` is set from OUTCOME on; ``envelope`` when it has a time limit.

    ``began`` and ``ended``: its run, by the ledger's clock; None for what did not happen.
    """

    __slots__ = ("batch", "began", "claimed", "deadline", "ended", "envelope", "finished", "phase", "signal")

    def __init__(self, claimed: Claimed, batch: Batch) -> None:
        self.claimed = claimed
        self.batch = batch
        self.phase = _UNSTARTED
        self.signal = Signal()
        self.finished: Finished | None = None
        self.deadline = math.inf
        self.envelope: Message | None = None
        self.began: float | None = None
        self.ended: float | None = None

    @property
    def key(self) -> tuple[str, bytes, int]:
        """What proves that the job is held."""
        return self.claimed.id, self.claimed.nonce, self.claimed.token


class Batch:
    """The jobs of one claim, run by one runner in order. Belongs to the ledger's lock.

    ``moved_at`` is when its runner last started or finished one; ``waiting_since`` when the
    first of ``outcomes`` was ready; ``live`` counts entries that are not GONE. ``is_abandoned``:
    its runner is stuck in a handler whose time is over; ``replacement`` what was decided then.
    """

    __slots__ = (
        "entries", "is_abandoned", "is_persistent", "live", "moved_at", "outcomes", "replacement", "running", "serial",
        "source", "unstarted", "waiting_since",
    )  # fmt: skip

    def __init__(self, serial: int, source: Source, jobs: Sequence[Claimed], now: float) -> None:
        self.serial = serial
        self.source = source
        self.entries = [Entry(claimed, self) for claimed in jobs]
        self.unstarted = deque(self.entries)
        self.running: Entry | None = None
        self.outcomes: list[Entry] = []
        self.live = len(self.entries)
        self.moved_at = now
        self.waiting_since = math.inf
        self.is_abandoned = False
        self.is_persistent = jobs[0].is_persistent
        self.replacement: str | None = None


class Which(NamedTuple):
    """A part of the claimed jobs: those of one queue, all but the persistent ones, or only those."""

    source: Source | None = None
    is_persistent: bool | None = None

    def covers(self, batch: Batch) -> bool:
        """Whether a batch belongs to it. A persistent job is a batch of its own."""
        return self.source in (None, batch.source) and self.is_persistent in (None, batch.is_persistent)


EVERYTHING = Which()
ENDING = Which(is_persistent=False)


class Snapshot(NamedTuple):
    """What a heartbeat says about one queue, consistent at one moment."""

    entries: list[Entry]
    below: int
    in_flight: list[int]


class Overdue:
    """What the monitor has to do now; it owns every entry in here.

    ``timed_out`` has no outcome yet; ``ready`` has; ``look_at`` is when to look again.
    """

    __slots__ = "look_at", "ready", "timed_out"

    def __init__(self) -> None:
        self.timed_out: list[Entry] = []
        self.ready: list[Entry] = []
        self.look_at = math.inf


class Ledger:
    """The claimed jobs of the runners that share a storage. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        #: Called (without the lock) when the monitor must look earlier than it planned.
        self.nudge: Callable[[], None] = _nothing
        self._clock = clock
        self._lock = threading.Lock()
        self._emptied = threading.Condition(self._lock)
        self._batches: dict[int, Batch] = {}
        self._in_flight: dict[int, Source] = {}
        self._next_serial = 1
        self._partly = 0
        self._unsettled: list[Entry] = []
        self._retry_at = math.inf
        self._look_at = math.inf

    # -- the runner -------------------------------------------------------------------

    def reserve(self, source: Source) -> int | None:
        """The serial of a claim that is about to be made; None when the pool has left the queue."""
        with self._lock:
            if source.is_left:
                return None
            serial = self._next_serial
            self._next_serial += 1
            self._in_flight[serial] = source
            return serial

    def enter(self, serial: int, jobs: Sequence[Claimed]) -> Batch | None:
        """The claim was answered (or, with no jobs, raised): its serial leaves and its jobs enter in one step."""
        now = self._clock()
        early = False
        with self._lock:
            source = self._in_flight.pop(serial)
            if not jobs:
                self._notify_if_empty()
                return None
            batch = self._batches[serial] = Batch(serial, source, jobs, now)
            if len(jobs) > 1 and self._look_at > now + HAND_BACK_S:
                self._look_at = now + FLUSH_S
                early = True
        if early:
            self.nudge()
        return batch

    def start(self, batch: Batch) -> Entry | None:
        """The next job of the batch to run, None when there is none left."""
        with self._lock:
            return self._start(batch, self._clock())

    def advance(self, entry: Entry, finished: Finished) -> Entry | None:
        """:meth:`finish` and :meth:`start` in one step.

        A caller tells a refused finish by ``entry.finished``, which then is not ``finished``.
        """
        now = self._clock()
        with self._lock:
            return self._start(entry.batch, now) if self._finish(entry, finished, now) else None

    def arm(self, entry: Entry, deadline: float, envelope: Message) -> None:
        """The running job has a time limit."""
        with self._lock:
            entry.envelope = envelope
            entry.deadline = deadline
            early = deadline < self._look_at
            if early:
                self._look_at = deadline
        if early:
            self.nudge()

    def finish(self, entry: Entry, finished: Finished) -> bool:
        """The handler is back. False when somebody took the job over meanwhile: the outcome is dropped."""
        with self._lock:
            return self._finish(entry, finished, self._clock())

    def take(self, batch: Batch) -> list[Entry]:
        """The outcomes of the batch that nobody settles yet, to be settled by the caller."""
        with self._lock:
            return self._take(batch)

    def hand_back(self, batch: Batch) -> list[Entry]:
        """As :meth:`take`, and the unstarted jobs with them, to be released in this order."""
        with self._lock:
            self._return_unstarted(batch)
            return self._take(batch)

    # -- settling ---------------------------------------------------------------------

    def settled(self, entries: Iterable[Entry]) -> None:
        """The storage answered: these are gone, whatever it said."""
        with self._lock:
            for entry in entries:
                self._drop(entry)
            self._notify_if_empty()

    def unsettled(self, entries: Sequence[Entry], pause: float) -> None:
        """The storage failed: keep the outcomes, they are tried again after ``pause`` seconds."""
        retry_at = self._clock() + pause
        with self._lock:
            for entry in entries:
                entry.phase = _OUTCOME
            self._unsettled.extend(entries)
            self._retry_at = retry_at
            early = retry_at < self._look_at
            if early:
                self._look_at = retry_at
        if early:
            self.nudge()

    # -- the monitor ------------------------------------------------------------------

    def overdue(self) -> Overdue:
        """Take over what its runner does not get to: timed-out runs, outcomes and unstarted jobs behind
        a slow neighbour, outcomes that the storage did not take."""
        found = Overdue()
        now = self._clock()
        with self._lock:
            for batch in self._batches.values():
                self._look(batch, now, found)
            if self._unsettled:
                if now >= self._retry_at:
                    found.ready += self._take_unsettled()
                else:
                    found.look_at = min(found.look_at, self._retry_at)
            self._look_at = found.look_at
        return found

    def _look(self, batch: Batch, now: float, found: Overdue) -> None:
        running = batch.running
        if running is not None and running.deadline < math.inf:
            if now >= running.deadline:
                running.phase = _SETTLING
                batch.running = None
                batch.is_abandoned = True
                found.timed_out.append(running)
            else:
                found.look_at = min(found.look_at, running.deadline)
        if batch.unstarted:
            if batch.is_abandoned or now - batch.moved_at >= HAND_BACK_S:
                self._return_unstarted(batch)
            found.look_at = min(found.look_at, now + FLUSH_S)
        # Without a running neighbour its runner is about to settle them itself.
        if batch.outcomes and (batch.running is not None or batch.is_abandoned):
            if now - batch.waiting_since >= FLUSH_S:
                found.ready += self._take(batch)
            else:
                found.look_at = min(found.look_at, batch.waiting_since + FLUSH_S)

    # -- the heartbeat ----------------------------------------------------------------

    def snapshot(self, source: Source) -> Snapshot:
        """What is held and in flight on a queue, and the next serial, as of one moment."""
        with self._lock:
            entries = [
                entry
                for batch in self._batches.values()
                if batch.source is source
                for entry in batch.entries
                if entry.phase is not _GONE
            ]
            in_flight = [serial for serial, claiming in self._in_flight.items() if claiming is source]
            return Snapshot(entries, self._next_serial, in_flight)

    def lose(self, entry: Entry) -> bool:
        """The storage says that the lease is lost. False when the entry's end is on its way anyway.

        An entry that is being settled, or waits for it, is left alone: the settle tells whether
        it was lost, or ended by a call whose answer did not arrive.
        """
        with self._lock:
            if entry.phase is not _UNSTARTED and entry.phase is not _RUNNING:
                return False
            if entry.batch.running is entry:
                entry.batch.running = None
            self._drop(entry)
            self._notify_if_empty()
        entry.signal.set("lost")
        return True

    def cancel(self, entry: Entry) -> None:
        """The storage says that a cancel was requested: a running handler is told, an unstarted job never starts."""
        with self._lock:
            if entry.phase is _UNSTARTED:
                self._return(entry)
        entry.signal.set("cancelled")

    def knows(self, held: Held) -> bool:
        """Whether the job is in here, under this very claim."""
        key = (held.id, held.nonce, held.token)
        with self._lock:
            return any(
                entry.phase is not _GONE and entry.key == key
                for batch in self._batches.values()
                for entry in batch.entries
            )

    # -- whoever asks how it goes ------------------------------------------------------

    def busy(self) -> int:
        """How many runners are inside of a handler."""
        with self._lock:
            return sum(batch.running is not None for batch in self._batches.values())

    # -- a stop -----------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held or in flight."""
        return not self._batches and not self._in_flight

    def wait_empty(self, remaining: Callable[[], float], which: Which = EVERYTHING) -> bool:
        """Block until nothing of it is held or in flight, while ``remaining()`` seconds are left; whether it is so."""
        with self._lock:
            self._partly += which is not EVERYTHING
            try:
                while not self._is_empty(which) and (left := remaining()) > 0:
                    self._emptied.wait(None if left == math.inf else min(left, threading.TIMEOUT_MAX))
            finally:
                self._partly -= which is not EVERYTHING
            return self._is_empty(which)

    def _is_empty(self, which: Which) -> bool:
        return not any(map(which.covers, self._batches.values())) and not any(
            which.source in (None, source) for source in self._in_flight.values()
        )

    def leave(self, source: Source) -> None:
        """Let no claim begin any more on the queue: those that did are held or in flight."""
        with self._lock:
            source.is_left = True

    def wake_waiters(self) -> None:
        """Let :meth:`wait_empty` ask again how long it may wait."""
        with self._lock:
            self._emptied.notify_all()

    def interrupt(self, reason: str, which: Which = EVERYTHING) -> None:
        """Tell every running handler to end."""
        with self._lock:
            running = [
                batch.running for batch in self._batches.values() if batch.running is not None and which.covers(batch)
            ]
        for entry in running:
            entry.signal.set(reason)

    def return_unstarted(self, which: Which = EVERYTHING) -> list[Entry]:
        """Take over all unstarted jobs and waiting outcomes, oldest claim first."""
        with self._lock:
            taken = []
            for _, batch in sorted(self._batches.items()):
                if which.covers(batch):
                    self._return_unstarted(batch)
                    taken += self._take(batch)
            return taken + self._take_unsettled()

    def seize(self, which: Which = EVERYTHING) -> list[Entry]:
        """Take over everything that nobody settles, in the order of the claims; what runs is released."""
        with self._lock:
            taken = []
            for _, batch in sorted(self._batches.items()):
                if not which.covers(batch):
                    continue
                batch.is_abandoned = True
                self._return_unstarted(batch)
                running, batch.running = batch.running, None
                if running is not None:
                    running.phase = _OUTCOME
                    running.finished = Finished(release(running.claimed))
                for entry in batch.entries:
                    if entry.phase is _OUTCOME:
                        entry.phase = _SETTLING
                        taken.append(entry)
                batch.outcomes = []
            self._unsettled = [entry for entry in self._unsettled if not which.covers(entry.batch)]
            return taken

    # -- under the lock ---------------------------------------------------------------

    def _start(self, batch: Batch, now: float) -> Entry | None:
        unstarted = batch.unstarted
        while unstarted:
            entry = unstarted.popleft()
            if entry.phase is _UNSTARTED:
                entry.phase = _RUNNING
                batch.running = entry
                batch.moved_at = entry.began = now
                return entry
        return None

    def _finish(self, entry: Entry, finished: Finished, now: float) -> bool:
        if entry.phase is not _RUNNING:
            return False
        batch = entry.batch
        batch.running = None
        batch.moved_at = entry.ended = now
        if not batch.outcomes:
            batch.waiting_since = now
        entry.finished = finished
        entry.phase = _OUTCOME
        batch.outcomes.append(entry)
        return True

    def _take(self, batch: Batch) -> list[Entry]:
        taken, batch.outcomes = batch.outcomes, []
        for entry in taken:
            entry.phase = _SETTLING
        return taken

    def _take_unsettled(self) -> list[Entry]:
        taken, self._unsettled = self._unsettled, []
        for entry in taken:
            entry.phase = _SETTLING
        return taken

    def _return_unstarted(self, batch: Batch) -> None:
        while batch.unstarted:
            entry = batch.unstarted.popleft()
            if entry.phase is _UNSTARTED:
                self._return(entry)

    def _return(self, entry: Entry) -> None:
        batch = entry.batch
        entry.finished = Finished(release(entry.claimed))
        entry.phase = _OUTCOME
        if not batch.outcomes:
            batch.waiting_since = -math.inf  # nothing to wait for
        batch.outcomes.append(entry)

    def _drop(self, entry: Entry) -> None:
        entry.phase = _GONE
        batch = entry.batch
        batch.live -= 1
        if batch.live == 0:
            del self._batches[batch.serial]

    def _notify_if_empty(self) -> None:
        # Who waits for a part of it looks at each change: that is for ends of pools and queues only.
        if self._partly or (not self._batches and not self._in_flight):
            self._emptied.notify_all()


def _nothing() -> None:
    pass
