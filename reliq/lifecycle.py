"""The one table of job states. Pure: no clock, no I/O.

Every storage follows it. The Lua prelude receives it as generated code
(``storage/redis/scripts.py``), the SQL files as generated conditions
(``storage/sql/statements.py``), and the contract suite drives every cell of it on
every storage.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a job is. ``ABSENT`` is the state of an id that nobody holds a record of."""

    ABSENT = "absent"
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    PROCESSING = "processing"
    FAILING = "failing"
    COMPLETED = "completed"
    FAILED = "failed"


class Command(StrEnum):
    """A verb that moves a job. Anything not in ``TRANSITIONS`` is refused and changes nothing."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    RELEASE = "release"
    EXTEND = "extend"
    CANCEL = "cancel"
    RECOVER = "recover"
    PROMOTE = "promote"
    EXPIRE = "expire"
    REVIVE = "revive"
    DISCARD = "discard"
    PURGE = "purge"
    DELETE = "delete"


_S = State
_C = Command

#: (state, command) -> the states it may lead to. Which of several is decided by the
#: record alone (attempts left, due time, a cancel request), never by the caller.
TRANSITIONS: dict[tuple[State, Command], frozenset[State]] = {
    (_S.ABSENT, _C.ENQUEUE): frozenset({_S.QUEUED, _S.SCHEDULED, _S.WAITING}),
    # A dead letter may be replaced at once, a completed record once its dedup window is over.
    (_S.FAILED, _C.ENQUEUE): frozenset({_S.QUEUED, _S.SCHEDULED, _S.WAITING}),
    (_S.COMPLETED, _C.ENQUEUE): frozenset({_S.COMPLETED, _S.QUEUED, _S.SCHEDULED, _S.WAITING}),
    (_S.QUEUED, _C.CLAIM): frozenset({_S.PROCESSING}),
    (_S.PROCESSING, _C.COMPLETE): frozenset({_S.COMPLETED}),
    # A cancel request turns every end but `complete` into a cancellation.
    (_S.PROCESSING, _C.RETRY): frozenset({_S.QUEUED, _S.FAILING, _S.FAILED, _S.ABSENT}),
    (_S.PROCESSING, _C.FAIL): frozenset({_S.FAILED, _S.ABSENT}),
    (_S.PROCESSING, _C.RELEASE): frozenset({_S.QUEUED, _S.ABSENT}),
    (_S.PROCESSING, _C.EXTEND): frozenset({_S.PROCESSING}),
    (_S.PROCESSING, _C.RECOVER): frozenset({_S.QUEUED, _S.FAILED, _S.ABSENT}),
    (_S.WAITING, _C.CANCEL): frozenset({_S.ABSENT}),
    (_S.SCHEDULED, _C.CANCEL): frozenset({_S.ABSENT}),
    (_S.QUEUED, _C.CANCEL): frozenset({_S.ABSENT}),
    (_S.FAILING, _C.CANCEL): frozenset({_S.ABSENT}),
    # running=True only; the record carries the request to its holder.
    (_S.PROCESSING, _C.CANCEL): frozenset({_S.PROCESSING}),
    (_S.WAITING, _C.PROMOTE): frozenset({_S.QUEUED, _S.SCHEDULED, _S.FAILED}),
    (_S.SCHEDULED, _C.PROMOTE): frozenset({_S.QUEUED}),
    (_S.FAILING, _C.PROMOTE): frozenset({_S.QUEUED}),
    (_S.COMPLETED, _C.EXPIRE): frozenset({_S.COMPLETED, _S.ABSENT}),
    (_S.FAILED, _C.EXPIRE): frozenset({_S.ABSENT}),
    (_S.FAILED, _C.REVIVE): frozenset({_S.QUEUED}),
    (_S.FAILED, _C.DISCARD): frozenset({_S.ABSENT}),
    (_S.WAITING, _C.PURGE): frozenset({_S.ABSENT}),
    (_S.SCHEDULED, _C.PURGE): frozenset({_S.ABSENT}),
    (_S.QUEUED, _C.PURGE): frozenset({_S.ABSENT}),
    (_S.FAILING, _C.PURGE): frozenset({_S.ABSENT}),
    (_S.COMPLETED, _C.PURGE): frozenset({_S.ABSENT}),
    (_S.FAILED, _C.PURGE): frozenset({_S.ABSENT}),
    # A queue goes with everything in it.
    **{(state, _C.DELETE): frozenset({_S.ABSENT}) for state in _S if state is not _S.ABSENT},
}

#: States of a stored record, in the order in which they are counted and listed.
STORED = tuple(state for state in State if state is not State.ABSENT)
#: A job in one of these has ended; its record lives until its TTL.
FINISHED = frozenset({_S.COMPLETED, _S.FAILED})
#: A live id is always a duplicate.
LIVE = frozenset(STORED) - FINISHED


def sources(command: Command) -> tuple[State, ...]:
    """The states in which ``command`` is allowed, in the order of ``State``."""
    return tuple(state for state in State if (state, command) in TRANSITIONS)


def allows(state: State, command: Command) -> bool:
    """Whether ``command`` may be applied to a job in ``state``."""
    return (state, command) in TRANSITIONS
