"""Carries out the due ticks of schedules; part of every reaper.

A tick is two steps, and a crash may fall between them: its job is enqueued, then its schedule moves on.

* **No tick fires twice.** All pools give a tick's job the same id and the same nonce. Until the schedule moved, each
  pool that looks may enqueue it; the first one is accepted, the others get that one's answer (SPEC I11), whatever
  became of the job: as long as its record is there, at least MIN_DEDUP_MS after its end, and for TOMBSTONE_MS when
  it was cancelled, purged or discarded. The only pool that could come later is one that stood still after it had seen
  the tick: it throws away what it saw more than FRESH_S ago, which with the time for which a call is repeated is less
  than a tombstone's life. (Should it stand still in between, a completed or failed tick is still known for
  MIN_DEDUP_MS.) Once it has moved, a schedule never goes back: it moves to a later tick, only from the
  one that the mover saw. So a clock that is put back fires nothing again, the schedule waits until it has caught up.
* **No tick is lost.** The schedule moves after the enqueue was acknowledged, never before. What cannot be enqueued (the
  queue is full, the spec is of a later version, cronsim or the zone are missing here) is left where it
  is, for a later look or a better equipped pool. When it can, ``missed`` says what becomes of it.

All times are the storage's; the clocks of this process only ever make it look again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .errors import OutcomeUnknownError, QueueFullError, ReliqError, StorageUnavailableError
from .job import Event
from .schedule import GRACE_MS, Spec, tick_text
from .storage.base import NewRecord, Schedule, Storage

log = logging.getLogger("reliq")

#: What was seen so long ago is seen anew before it is acted on. A storage repeats a call for at most 30 s; both
#: together stay below TOMBSTONE_MS.
FRESH_S = 20.0
#: A tick that cannot be carried out stays due: so long until the next try, instead of at once.
RETRY_MS = 250
#: How many schedules in trouble are remembered, so that each is told of once.
MAX_TROUBLES = 1_000


class Seen(NamedTuple):
    """When a look at the storage began, by two clocks of this process.

    The first never jumps, but on some systems it stands still while the machine sleeps; the second then jumps.
    """

    monotonic: float
    wall: float

    @classmethod
    def now(cls) -> Seen:
        """For a look that begins."""
        return cls(time.monotonic(), time.time())

    @property
    def is_old(self) -> bool:
        """Whether so much time passed since then that what was seen may not be acted on."""
        return time.monotonic() - self.monotonic > FRESH_S or time.time() - self.wall > FRESH_S


class Carried(NamedTuple):
    """How many jobs were enqueued, and milliseconds until the next look: those that were carried out may be due again,
    or hid what is due next; those that could not be must not be tried without a pause."""

    enqueued: int
    next_due_ms: int


class Ticker:
    """Carries out ticks for one thread of a reaper. ``report`` is told of trouble, and of jobs that were enqueued."""

    def __init__(self, storage: Storage, report: Callable[[Event], None]) -> None:
        self._storage = storage
        self._report = report
        self._troubles: set[tuple[str, str]] = set()

    def carry_out(self, queue: str, ticks: Sequence[Schedule], now_ms: int, seen: Seen) -> Carried:
        """Carry out ``ticks``, which a reap that began at ``seen`` named at ``now_ms``, the storage's time.

        One schedule's trouble is told and does not keep the others waiting; raises StorageUnavailableError and
        OutcomeUnknownError, which would meet them all.
        """
        enqueued = in_trouble = 0
        for schedule in ticks:
            if seen.is_old:
                break
            try:
                enqueued += self._carry_out(queue, schedule, now_ms)
            except (StorageUnavailableError, OutcomeUnknownError):
                raise
            except Exception as error:
                in_trouble += 1
                self._in_trouble(queue, schedule, error)
            else:
                self._troubles.discard((queue, schedule.name))
        return Carried(enqueued, RETRY_MS if in_trouble == len(ticks) else 0)

    def _carry_out(self, queue: str, schedule: Schedule, now_ms: int) -> int:
        name = schedule.name
        spec = Spec.decode(schedule.spec)
        due = spec.due(schedule.next_ms, now_ms)
        jobs = [spec.job_of(queue, name, tick_ms) for tick_ms in due.ticks]
        accepted = self._enqueue(queue, jobs) if jobs else 0
        next_ms = due.next_ms if accepted == len(jobs) else due.ticks[accepted]
        if not self._storage.move_schedule(queue, name, schedule.next_ms, next_ms):
            return 0  # another pool did the same and was faster, or the schedule was replaced or removed
        if due.missed_ms is not None:
            onward_ms = due.ticks[-1] if due.ticks else due.next_ms
            _tell_missed(queue, name, due.missed_ms, onward_ms, now_ms, spec.missed)
        for job in jobs[:accepted]:
            self._report(Event("enqueued", queue, job.id))
        return accepted

    def _enqueue(self, queue: str, jobs: Sequence[NewRecord]) -> int:
        """Enqueue as many as the queue has room for, the first ones first; raises QueueFullError when there is none."""
        while True:
            try:
                self._storage.enqueue(queue, jobs)
            except QueueFullError:  # nothing was written: less may fit
                if len(jobs) == 1:
                    raise
                jobs = jobs[: len(jobs) // 2]
            else:
                return len(jobs)

    def _in_trouble(self, queue: str, schedule: Schedule, error: Exception) -> None:
        key = (queue, schedule.name)
        message = "schedule %r of queue %r: its tick of %s cannot be carried out, it is tried again: %s"
        args = (schedule.name, queue, tick_text(schedule.next_ms), error)
        if key in self._troubles:
            log.debug(message, *args)
            return
        if len(self._troubles) >= MAX_TROUBLES:
            self._troubles.clear()
        self._troubles.add(key)
        log.error(message, *args, exc_info=None if isinstance(error, ReliqError) else error)
        self._report(Event("error", queue, error=error))


def _tell_missed(queue: str, name: str, missed_ms: int, onward_ms: int, now_ms: int, policy: str) -> None:
    # A look that came a moment late is everyday for a schedule of short steps.
    level = logging.WARNING if now_ms - missed_ms > GRACE_MS else logging.DEBUG
    message = "schedule %r of queue %r missed its ticks from %s on, and goes on at %s (missed=%r)"
    log.log(level, message, name, queue, tick_text(missed_ms), tick_text(onward_ms), policy)
