"""The options of a queue and of a job: one validated, frozen object each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypedDict

from .errors import InvalidJobError
from .retry import Backoff
from .serde import JsonSerde, Serde
from .storage.base import MAX_LINKS, NO_LIMITS, Limits
from .validate import (
    MAX_ATTEMPTS,
    MAX_ID_BYTES,
    check_at,
    check_headers,
    check_ids,
    check_int,
    check_rate,
    check_seconds,
    check_text,
)

DAY = 86_400.0
#: Redis and SQLite hold larger values; a job is a message, not a file store.
MAX_PAYLOAD_BYTES = 64 << 20
MAX_LIMIT = 1_000_000_000
MAX_GROUP_CONCURRENCY = 1_000


class QueueArguments(TypedDict, total=False):
    """Keyword arguments of ``Queue``; :class:`QueueOptions` explains them."""

    payload_serde: Serde
    result_serde: Serde
    max_attempts: int
    backoff: Backoff
    result_ttl: float
    dedup_ttl: float | None
    dead_ttl: float
    visibility_timeout: float
    time_limit: float | None
    max_payload_bytes: int
    max_length: int | None
    rate_limit: str | None
    max_concurrency: int | None
    group_concurrency: int | None


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What a ``Queue`` was told. Times in seconds.

    ``max_attempts``, ``backoff``, ``result_ttl``, ``dedup_ttl`` (None: the result_ttl), ``dead_ttl``
    (of failed records) and ``time_limit`` are defaults for the jobs enqueued through this object.
    ``visibility_timeout`` is the lease of the workers started from it; it is renewed while a
    handler runs and never limits it.

    ``rate_limit`` (``"100/s"``), ``max_concurrency``, ``max_length`` and ``group_concurrency`` hold for
    all processes and live in the storage: see ``Queue.set_limits``. What is given here is stored where none is
    set yet, and a warning says so where others are.
    """

    payload_serde: Serde = JsonSerde()
    result_serde: Serde = JsonSerde()
    max_attempts: int = 3
    backoff: Backoff = Backoff()
    result_ttl: float = 3600.0
    dedup_ttl: float | None = None
    dead_ttl: float = 30 * DAY
    visibility_timeout: float = 30.0
    time_limit: float | None = None
    max_payload_bytes: int = 1 << 20
    max_length: int | None = None
    rate_limit: str | None = None
    max_concurrency: int | None = None
    group_concurrency: int | None = None

    def __new__(cls, *_: Any, **given: Any) -> Self:
        if unknown := given.keys() - _QUEUE_FIELDS:
            raise InvalidJobError(
                f"no queue option {sorted(unknown)[0]!r}; there are: {', '.join(sorted(_QUEUE_FIELDS))}"
            )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name in ("payload_serde", "result_serde"):
            serde = getattr(self, name)
            if isinstance(serde, type) or not isinstance(serde, Serde):
                raise InvalidJobError(f"{name} must be an object with dumps and loads, got {serde!r}")
        check_int("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        check_int("max_payload_bytes", self.max_payload_bytes, 1, MAX_PAYLOAD_BYTES)
        _check_backoff(self.backoff)
        for name in ("result_ttl", "dead_ttl", "visibility_timeout"):
            check_seconds(name, getattr(self, name))
        for name in ("dedup_ttl", "time_limit"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        change_limits(NO_LIMITS, self.given_limits())

    def given_limits(self) -> dict[str, Any]:
        """The limits that were named."""
        return {name: value for name in LIMIT_NAMES if (value := getattr(self, name)) is not None}


_QUEUE_FIELDS = frozenset(field.name for field in fields(QueueOptions))


LIMIT_NAMES = ("rate_limit", "max_concurrency", "max_length", "group_concurrency")


def change_limits(limits: Limits, given: Mapping[str, Any]) -> Limits:
    """``limits`` with those ``given`` in place of what they name, None lifting one; raises InvalidJobError."""
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name not in LIMIT_NAMES:
            raise InvalidJobError(f"no limit {name!r}; there are: {', '.join(LIMIT_NAMES)}")
        if name == "rate_limit":
            changes["rate"], changes["rate_ms"] = (None, 1_000) if value is None else check_rate(name, value)
        elif name == "group_concurrency":
            changes[name] = 1 if value is None else check_int(name, value, 1, MAX_GROUP_CONCURRENCY)
        else:
            changes[name] = None if value is None else check_int(name, value, 1, MAX_LIMIT)
    return limits._replace(**changes)


class JobArguments(TypedDict, total=False):
    """Keyword arguments of ``enqueue`` and ``call``; :class:`JobOptions` explains them."""

    max_attempts: int | None
    result_ttl: float | None
    dedup_ttl: float | None
    time_limit: float | None
    delay: float | None
    at: Any
    priority: int | None
    backoff: Backoff | None
    headers: Mapping[str, str] | None
    group: str | None
    after: Sequence[str] | None
    persistent: bool | None


@dataclass(frozen=True, slots=True)
class JobOptions:
    """One job's options, checked, with the queue's defaults filled in. Times in seconds.

    ``delay`` or ``at`` (epoch) say when it is due; ``priority`` 0-9, higher first. Jobs of one ``group``
    run in the order of their acceptance, one at a time. ``after``: ids of jobs of this queue that must complete
    first. ``persistent``: it never ends by itself, exactly one worker holds it, until it is cancelled.
    """

    max_attempts: int
    result_ttl: float
    dedup_ttl: float
    time_limit: float | None
    backoff: Backoff
    priority: int = 0
    delay: float = 0.0
    at: float | None = None
    headers: dict[str, str] | None = None
    group: str | None = None
    after: tuple[str, ...] = ()
    persistent: bool = False

    @classmethod
    def default(cls, queue: QueueOptions) -> JobOptions:
        """The options of a job that names none."""
        dedup_ttl = queue.result_ttl if queue.dedup_ttl is None else queue.dedup_ttl
        return cls(queue.max_attempts, queue.result_ttl, dedup_ttl, queue.time_limit, queue.backoff)

    @classmethod
    def of(cls, queue: QueueOptions, given: Mapping[str, Any]) -> JobOptions:
        """``given`` over the queue's defaults; raises InvalidJobError for what is unknown or out of range."""
        if unknown := given.keys() - _JOB_FIELDS:
            raise InvalidJobError(f"no job option {sorted(unknown)[0]!r}; there are: {', '.join(sorted(_JOB_FIELDS))}")
        values = {name: value for name, value in given.items() if value is not None}
        if "max_attempts" in values:
            check_int("max_attempts", values["max_attempts"], 1, MAX_ATTEMPTS)
        if "priority" in values:
            check_int("priority", values["priority"], 0, 9)
        for name in ("result_ttl", "dedup_ttl", "time_limit"):
            if name in values:
                check_seconds(name, values[name])
        if "delay" in values:
            check_seconds("delay", values["delay"], zero=True)
        if "at" in values:
            if "delay" in values:
                raise InvalidJobError("delay and at exclude each other, got both")
            values["at"] = check_at(values["at"])
        if "backoff" in values:
            _check_backoff(values["backoff"])
        if "headers" in values:
            values["headers"] = check_headers(values["headers"])
        if "group" in values:
            check_text("group", values["group"], MAX_ID_BYTES)
        if "after" in values:
            values["after"] = check_ids("after", values["after"], MAX_LINKS)
        if "persistent" in values and _check_persistent(values):
            # It has no end that these could speak of; the storage counts its short runs only.
            values |= {"max_attempts": MAX_ATTEMPTS, "time_limit": None}
        values.setdefault("max_attempts", queue.max_attempts)
        values.setdefault("result_ttl", queue.result_ttl)
        # A job that names its own result_ttl is deduplicated as long, unless somebody says otherwise.
        values.setdefault("dedup_ttl", values["result_ttl"] if queue.dedup_ttl is None else queue.dedup_ttl)
        values.setdefault("time_limit", queue.time_limit)
        values.setdefault("backoff", queue.backoff)
        return cls(**values)


_JOB_FIELDS = frozenset(field.name for field in fields(JobOptions))


_NOT_PERSISTENT = ("max_attempts", "time_limit", "result_ttl", "dedup_ttl", "delay", "at", "group", "after")


def _check_persistent(values: Mapping[str, Any]) -> bool:
    if not isinstance(values["persistent"], bool):
        raise InvalidJobError(f"persistent must be a bool, got {type(values['persistent']).__name__}")
    if values["persistent"] and (found := [name for name in _NOT_PERSISTENT if name in values]):
        raise InvalidJobError(f"a persistent job never ends by itself, so it takes no {found[0]}")
    return values["persistent"]


def _check_backoff(value: Any) -> None:
    if not isinstance(value, Backoff):
        raise InvalidJobError(f"backoff must be a Backoff, got {type(value).__name__}")
