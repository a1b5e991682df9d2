"""What a schedule says: when it ticks, what a tick enqueues, what becomes of missed ticks. Pure.

A tick is a point in time, and its job's id is made of the schedule's name and the tick. All pools compute
the same ticks from the same spec, and a job of one id is accepted once: that is why no leader is needed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple, cast

from .errors import InvalidJobError, StorageCorruptError
from .storage.base import MAX_BATCH, NewRecord
from .validate import check_seconds, check_text, to_ms

FORMAT = 1
#: Leaves room for the tick in the ids of the jobs.
MAX_NAME_BYTES = 256
MAX_CRON_BYTES = 256
#: Pools look as soon as a tick is due, but below this they would do nothing else.
MIN_EVERY_S = 0.1
#: With ``missed="skip"`` a tick is missed when it is so late.
GRACE_MS = 60_000
#: How many ticks of one schedule are carried out at once; ``missed="all"`` takes the rest afterwards.
MAX_DUE = MAX_BATCH
#: A tick's id stays known for so long after its job's end, however short the TTLs of the job.
MIN_DEDUP_MS = 600_000
MISSED = ("one", "all", "skip")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_MS = 3_600_000


class Due(NamedTuple):
    """The ticks to carry out now, where the schedule goes from there, and the first tick that is left out, if any."""

    ticks: tuple[int, ...]
    next_ms: int
    missed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A schedule without its name. ``job`` is what each tick enqueues; its id and nonce are the tick's.

    Either ``cron`` (in the zone ``tz``) or ``every_ms``: whole multiples of it since 1970, so that every pool
    finds the same ticks, whenever it began to look. ``missed``: of several ticks that are due together ``"one"``
    carries out the last, ``"all"`` each of them, ``"skip"`` the last unless it is late by more than GRACE_MS.
    """

    job: NewRecord
    cron: str | None = None
    every_ms: int | None = None
    tz: str = "UTC"
    missed: str = "one"

    @classmethod
    def make(cls, job: NewRecord, *, cron: Any = None, every: Any = None, tz: Any = None, missed: Any = "one") -> Spec:
        """From what a user gave, checked; raises InvalidJobError."""
        if (cron is None) == (every is None):
            raise InvalidJobError(f"a schedule takes either cron or every, got {'neither' if cron is None else 'both'}")
        if not isinstance(missed, str) or missed not in MISSED:
            raise InvalidJobError(f"missed must be one of {', '.join(MISSED)}, got {missed!r:.80}")
        job = job._replace(id="", nonce=b"")
        if cron is None:
            if tz is not None:
                raise InvalidJobError(f"tz is for cron; every counts seconds, which no zone changes, got {tz!r:.80}")
            if check_seconds("every", every) < MIN_EVERY_S:
                raise InvalidJobError(f"every must be at least {MIN_EVERY_S:g} seconds, got {every!r}")
            return cls(job, every_ms=to_ms(every), missed=missed)
        check_text("cron", cron, MAX_CRON_BYTES)
        _cron().check(cron)
        return cls(job, cron=cron, tz=_check_zone(tz), missed=missed)

    # -- time -------------------------------------------------------------------------

    def ticks_after(self, after_ms: int) -> Iterator[int]:
        """Every tick beyond ``after_ms``, rising; raises InvalidJobError where cron or its zone cannot be had."""
        if self.every_ms is None:
            ticks: Iterator[int] = _cron().ticks_after(self.cron, zone_of(self.tz), after_ms)
            yield from ticks
            return
        tick_ms = after_ms // self.every_ms * self.every_ms
        while True:
            tick_ms += self.every_ms
            yield tick_ms

    def next_after(self, after_ms: int) -> int:
        """The first tick beyond ``after_ms``; raises InvalidJobError when there is none within 50 years."""
        for tick_ms in self.ticks_after(after_ms):
            return tick_ms
        raise InvalidJobError(f"cron must match some day within 50 years, got {self.cron!r}")

    def due(self, next_ms: int, now_ms: int) -> Due:
        """What is due of the ticks from ``next_ms`` until ``now_ms``, both included."""
        first = self.next_after(next_ms - 1)
        if first > now_ms:
            return Due((), first)
        if self.missed == "all":
            ticks = [first]
            for tick_ms in self.ticks_after(first):
                if tick_ms > now_ms or len(ticks) == MAX_DUE:
                    return Due(tuple(ticks), tick_ms)
                ticks.append(tick_ms)
            return Due(tuple(ticks), self.next_after(ticks[-1]))  # raises: there is none
        last = self._last_until(first, now_ms)
        following = self.next_after(now_ms)
        if self.missed == "skip" and now_ms - last > GRACE_MS:
            return Due((), following, first)
        return Due((last,), following, None if last == first else first)

    def _last_until(self, first_ms: int, now_ms: int) -> int:
        """The last tick until ``now_ms``, given that there is one at ``first_ms``."""
        if self.every_ms is not None:
            return now_ms // self.every_ms * self.every_ms
        # Backwards in doubled steps, and forwards from there: time goes the way in which the ticks are defined
        # (cronsim's own way back disagrees with it in a doubled hour), and after a long outage it is still
        # a matter of at most as many ticks as half a step holds.
        step_ms = _HOUR_MS
        while now_ms - step_ms > first_ms:
            last = None
            for tick_ms in self.ticks_after(now_ms - step_ms):
                if tick_ms > now_ms:
                    break
                last = tick_ms
            if last is not None:
                return last
            step_ms *= 2
        for tick_ms, following in pairwise(self.ticks_after(first_ms - 1)):
            if following > now_ms:
                return tick_ms
        return first_ms

    # -- jobs -------------------------------------------------------------------------

    def job_of(self, queue: str, name: str, tick_ms: int) -> NewRecord:
        """The job of a tick: the same id and nonce, whichever pool asks, whenever (SPEC I11).

        It stays known for at least MIN_DEDUP_MS after its end.
        """
        job = self.job
        return job._replace(
            id=f"{name}@{tick_text(tick_ms)}",
            # Neither a queue's nor a schedule's name can hold a NUL.
            nonce=hashlib.blake2b(f"{queue}\0{name}\0{tick_ms}".encode(), digest_size=8).digest(),
            dedup_ttl_ms=max(job.dedup_ttl_ms, MIN_DEDUP_MS),
            dead_ttl_ms=max(job.dead_ttl_ms, MIN_DEDUP_MS),
        )

    # -- bytes ------------------------------------------------------------------------

    def encode(self) -> bytes:
        """As it is stored. Equal specs give equal bytes."""
        job = self.job
        fields = {
            "v": FORMAT,
            "cron": self.cron,
            "every_ms": self.every_ms,
            "tz": self.tz,
            "missed": self.missed,
            "job": {
                "message": base64.b64encode(job.message).decode(),
                "max_attempts": job.max_attempts,
                "result_ttl_ms": job.result_ttl_ms,
                "dedup_ttl_ms": job.dedup_ttl_ms,
                "dead_ttl_ms": job.dead_ttl_ms,
                "priority": job.priority,
                "group": job.group,
            },
        }
        return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Spec:
        """From what :meth:`encode` made; raises StorageCorruptError when it is something else.

        Does not look at the cron expression and the zone: to list a schedule nobody needs them.
        """
        try:
            fields = json.loads(data)
            if fields["v"] != FORMAT:
                raise ValueError(f"it has format {fields['v']!r:.80}; this version of reliq reads {FORMAT}")
            job = fields["job"]
            record = NewRecord(
                id="",
                nonce=b"",
                message=base64.b64decode(_text(job["message"]), validate=True),
                max_attempts=_positive(job["max_attempts"]),
                result_ttl_ms=_positive(job["result_ttl_ms"]),
                dedup_ttl_ms=_positive(job["dedup_ttl_ms"]),
                dead_ttl_ms=_positive(job["dead_ttl_ms"]),
                priority=_positive(job["priority"] + 1) - 1,
                group=None if job["group"] is None else _text(job["group"]),
            )
            cron = None if fields["cron"] is None else _text(fields["cron"])
            every_ms = None if fields["every_ms"] is None else _positive(fields["every_ms"])
            if (cron is None) == (every_ms is None) or fields["missed"] not in MISSED:
                raise ValueError("its fields do not fit together")
            return cls(record, cron, every_ms, _text(fields["tz"]), fields["missed"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StorageCorruptError(f"the stored schedule cannot be read: {error}") from error


def tick_text(tick_ms: int) -> str:
    """A tick as people read it: ISO 8601 in UTC, with milliseconds only where it has some."""
    moment = _EPOCH + timedelta(milliseconds=tick_ms)
    return moment.isoformat(timespec="milliseconds" if tick_ms % 1000 else "seconds").replace("+00:00", "Z")


def zone_of(name: str) -> tzinfo:
    """The zone of an IANA name; raises InvalidJobError where this machine has none of that name."""
    if name == "UTC":
        return UTC
    try:
        return cast("tzinfo", import_module("zoneinfo").ZoneInfo(name))  # only those with zones load them
    except (OSError, ValueError, KeyError) as error:  # names may be paths, of directories and worse
        raise InvalidJobError(
            f"tz must name a zone that this machine knows (or install tzdata), got {name!a:.80}"
        ) from error


def _check_zone(value: Any) -> str:
    if value is None:
        return "UTC"
    name = getattr(value, "key", value)
    if not isinstance(name, str):
        got = "a ZoneInfo without a key" if name is None and value is not None else type(value).__name__
        raise InvalidJobError(f"tz must be the name of a zone, such as 'Europe/Berlin', or a ZoneInfo, got {got}")
    zone_of(name)
    return name


def _cron() -> Any:
    """:mod:`reliq.cron`; only those who use cron expressions need its library."""
    try:
        return import_module(".cron", __package__)
    except ImportError as error:
        raise InvalidJobError("cron needs the package cronsim: pip install reliq[cron]") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a str is expected, got {type(value).__name__}")
    return value


def _positive(value: Any) -> int:
    if type(value) is not int or value <= 0:
        raise ValueError(f"a positive int is expected, got {value!r:.80}")
    return value
