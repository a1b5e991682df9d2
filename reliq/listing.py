"""Records as people read them: statuses and pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import message
from .errors import InvalidJobError, StorageCorruptError
from .failure import decode_errors
from .job import JobStatus, Page
from .lifecycle import STORED, State
from .serde import PROGRESS_SERDE, Serde
from .storage.base import MAX_BATCH, Snapshot, Storage, worker_label
from .validate import check_int

if TYPE_CHECKING:
    from .queue import Queue


def to_status(snapshot: Snapshot, queue: Queue) -> JobStatus | None:
    """The public view of a record; None for an absent one."""
    if snapshot.state is State.ABSENT:
        return None
    try:
        envelope = message.decode(snapshot.message)
    except StorageCorruptError:  # a status must not fail on what it reports
        envelope = message.Message(snapshot.message)
    return JobStatus(
        id=snapshot.id,
        queue=queue.name,
        state=snapshot.state.value,
        created_at=snapshot.created_at_ms / 1000,
        updated_at=snapshot.updated_at_ms / 1000,
        attempts=snapshot.attempts,
        max_attempts=snapshot.max_attempts,
        priority=snapshot.priority,
        due_at=None if snapshot.due_at_ms is None else snapshot.due_at_ms / 1000,
        expires_at=None if snapshot.expires_at_ms is None else snapshot.expires_at_ms / 1000,
        worker_id=None if snapshot.worker is None else worker_label(snapshot.worker),
        cancel_requested=snapshot.cancel_requested,
        result=None if snapshot.result is None else _value(queue.options.result_serde, snapshot.result),
        errors=decode_errors(snapshot),
        headers=dict(envelope.headers),
        payload=_value(queue.options.payload_serde, envelope.payload),
        group=snapshot.group,
        sequence=snapshot.sequence,
        after=envelope.after,
        persistent=snapshot.is_persistent,
        progress=None if snapshot.progress is None else _value(PROGRESS_SERDE, snapshot.progress),
    )


def payload_of(snapshot: Snapshot) -> bytes | None:
    """The payload's bytes; None where the message cannot be read."""
    try:
        return message.decode(snapshot.message).payload
    except StorageCorruptError:
        return None


def listed_snapshots(storage: Storage, queue: str, state: State) -> Iterator[list[Snapshot]]:
    """The records in ``state``, page by page; one that moves meanwhile may be missed or come twice."""
    cursor: str | None = None
    while True:
        ids, cursor = storage.list_ids(queue, state, cursor, MAX_BATCH)
        if ids:
            yield storage.read(queue, ids)
        if cursor is None:
            return


def _value(serde: Serde, data: bytes) -> Any:
    """The value, or the bytes themselves: a status must not fail on what it reports."""
    try:
        return serde.loads(data)
    except BaseException:  # native decoders may raise what is no Exception
        return data


def list_jobs(queue: Queue, state: State | str | None, limit: int, cursor: str | None, *, payload: bool = True) -> Page:
    """A page of ``queue``. Jobs that move between two pages may be missed or seen twice.

    Without ``payload`` payloads, results, headers and what stands with them are not read.
    """
    check_int("limit", limit, 1, MAX_BATCH)
    states: list[State] = [*STORED] if state is None else [_check_state(state)]
    at, inner = _parse_cursor(cursor, states)
    found: list[JobStatus] = []
    while True:
        ids, inner = queue.storage.list_ids(queue.name, states[at], inner, limit - len(found))
        for snapshot in queue.storage.read(queue.name, ids, payload=payload) if ids else ():
            status = to_status(snapshot, queue)
            if status is not None and status.state == states[at]:  # it may have moved since
                found.append(status)
        if inner is None:
            at += 1
        if at == len(states):
            return Page(found, None)
        if len(found) >= limit or (inner is not None and state is not None):
            return Page(found, f"{states[at].value}|{inner or ''}")


def _check_state(value: State | str) -> State:
    if value in STORED:
        return State(value)
    raise InvalidJobError(f"state must be one of {', '.join(STORED)}, got {value!r}")


def _parse_cursor(cursor: str | None, states: list[State]) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    name, divider, inner = cursor.partition("|") if isinstance(cursor, str) else ("", "", "")
    if not divider or name not in states:
        raise InvalidJobError(f"cursor must come from the page before of the same listing, got {cursor!r:.80}")
    return states.index(State(name)), inner or None
