"""The schedules of a queue: jobs that come again and again."""

from __future__ import annotations

from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from . import message
from .errors import InvalidJobError, SerdeError, StorageCorruptError
from .options import JobArguments
from .schedule import MAX_NAME_BYTES, Spec
from .storage.base import Schedule
from .validate import check_text

if TYPE_CHECKING:
    from .queue import Queue

#: Asks for the storage's clock alone: the upkeep that a reap carries out once per interval is not due.
_NEVER_MS = 1 << 50
#: How often a schedule that others put or remove at the same time is looked at again.
_TRIES = 10


class ScheduleArguments(JobArguments, total=False):
    """Keyword arguments of ``Queue.schedule``; :meth:`Schedules.put` explains them."""

    cron: str | None
    every: float | None
    tz: Any
    missed: str
    payload: Any


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it is stored. Times are seconds, ``next_at`` an epoch by the storage's clock.

    ``payload`` is the value, or the stored bytes where they cannot be decoded. ``error`` says why a schedule cannot be
    read (a later version of reliq wrote it, say); then only ``name``, ``queue`` and ``next_at`` are known.
    """

    name: str
    queue: str
    next_at: float
    cron: str | None = None
    every: float | None = None
    tz: str | None = None
    missed: str = "one"
    payload: Any = None
    priority: int = 0
    group: str | None = None
    error: str | None = None


class Schedules:
    """``q.schedules``: list them, or let them go. ``q.schedule(...)`` makes them."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def put(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: float | None = None,
        tz: Any = None,
        missed: str = "one",
        payload: Any = None,
        **options: Unpack[JobArguments],
    ) -> ScheduleInfo:
        """Enqueue a job with ``payload`` at each tick of the schedule ``name``, until it is removed.

        ``cron``: five fields, in the zone ``tz`` (a name such as ``"Europe/Berlin"``, or a ZoneInfo; default UTC).
        ``every``: seconds, at least 0.1; it ticks at the whole multiples of them since 1970 (UTC). ``missed``: of the
        ticks that came due while nobody could carry them out, ``"one"`` runs the last, ``"all"`` runs each,
        and ``"skip"`` runs none that is more than a minute late. ``options``: as of ``enqueue``, fixed here;
        but ``delay``, ``at``, ``after`` and ``persistent``.

        Safe to call at every start of every process: an equal schedule that is there stays as it is, also its next
        tick; a different one is replaced and ticks anew from now on. Each tick's job has the id ``name@tick``,
        such as ``"nightly@2026-11-30T02:00:00Z"``. Raises InvalidJobError before anything is written.
        """
        queue = self._queue
        check_text("schedule name", name, MAX_NAME_BYTES)
        for field in ("id", "delay", "at", "after", "persistent"):
            if options.get(field) is not None:
                raise InvalidJobError(f"{field} is not for a schedule: its ticks say when, and which job")
        # In a context of its own: a schedule that a handler makes is not part of that handler's job.
        job = Context().run(queue._record, f"{name}@", payload, options)
        spec = Spec.make(job, cron=cron, every=every, tz=tz, missed=missed)
        data = spec.encode()
        for _ in range(_TRIES):
            found = self._find(name)
            if found is not None and found.spec == data:
                return self._info(found)
            # The clock that counts is the storage's, and this is the way to read it.
            now_ms = queue.storage.reap(queue.name, interval_ms=_NEVER_MS, limit=1).now_ms
            next_ms = spec.next_after(now_ms)
            if found is not None and found.next_ms == next_ms:
                # A pool that is just carrying out the old one's tick must not move the new one on, for it would by
                # the old one's steps. It moves what still stands where it saw it, so stand elsewhere: what counts are
                # the ticks from there on.
                next_ms -= 1
            made = Schedule(name, data, next_ms)
            if queue.storage.put_schedule(queue.name, made, only_new=found is None):
                return self._info(made)
        raise InvalidJobError(f"schedule {name!r} of queue {queue.name!r} is put and removed by others all the time")

    def list(self) -> list[ScheduleInfo]:
        """All schedules of the queue, by name."""
        return [self._info(found) for found in self._queue.storage.schedules(self._queue.name)]

    def get(self, name: str) -> ScheduleInfo | None:
        """The schedule of that name, or None."""
        found = self._find(check_text("schedule name", name, MAX_NAME_BYTES))
        return None if found is None else self._info(found)

    def remove(self, name: str) -> bool:
        """End a schedule; False when there is none. Jobs that it enqueued stay."""
        check_text("schedule name", name, MAX_NAME_BYTES)
        return self._queue.storage.remove_schedule(self._queue.name, name)

    def _find(self, name: str) -> Schedule | None:
        return next((found for found in self._queue.storage.schedules(self._queue.name) if found.name == name), None)

    def _info(self, stored: Schedule) -> ScheduleInfo:
        queue = self._queue
        next_at = stored.next_ms / 1000
        try:
            spec = Spec.decode(stored.spec)
            envelope = message.decode(spec.job.message)
        except StorageCorruptError as error:  # a list must not fail on what it reports
            return ScheduleInfo(stored.name, queue.name, next_at, error=str(error))
        try:
            payload = queue.load_payload(envelope.payload)
        except SerdeError:
            payload = envelope.payload
        return ScheduleInfo(
            stored.name,
            queue.name,
            next_at,
            spec.cron,
            None if spec.every_ms is None else spec.every_ms / 1000,
            None if spec.cron is None else spec.tz,
            spec.missed,
            payload,
            spec.job.priority,
            spec.job.group,
        )
