"""Compares the live data of a queue with what every storage guarantees, by public reads alone.

Work goes on meanwhile, so a job that moved is no problem: what looks wrong is looked at again, and counts are compared
only where they stood still. Nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .. import message
from ..errors import StorageCorruptError, StorageError
from ..lifecycle import FINISHED, STORED, State
from ..queue import Queue
from ..storage.base import Snapshot, WorkerInfo
from .findings import Finding, ok, problem, warning

#: Messages come along: a page holds at most so many.
_PAGE = 200
#: How often a queue in motion is looked through before its counts are left uncompared.
_TRIES = 3
#: So many ids of one kind are named.
_NAMED = 3
_ADVICE = (
    "these jobs may be stuck: keep a copy of the data, then see `reliq show ID` and report it; "
    "`reliq cancel ID` or `reliq dead discard ID` lets them go"
)


@dataclass(slots=True)
class _Look:
    """One look over a queue. ``wrong`` holds (what, id), ``mismatches`` counts that stood still and fit no listing."""

    read: int = 0
    is_whole: bool = True
    has_moved: bool = False
    wrong: set[tuple[str, str]] = field(default_factory=set)
    mismatches: set[str] = field(default_factory=set)


def audit(queue: Queue, tell: Callable[[str], None], limit: int) -> Iterator[Finding]:
    """What is found among the jobs of ``queue``; of each state at most about ``limit`` are read."""
    check = f"jobs of {queue.name}"
    look = _look_at(queue, tell, limit)
    for _ in range(_TRIES - 1):
        if not (look.wrong or look.mismatches or look.has_moved):
            break
        again = _look_at(queue, tell, limit)
        # What stays wrong over several looks was not merely on its way.
        again.wrong &= look.wrong
        again.mismatches &= look.mismatches
        look = again
    by_text: dict[str, list[str]] = {}
    for text, id in sorted(look.wrong):
        by_text.setdefault(text, []).append(id)
    for text, ids in by_text.items():
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        yield problem(check, f"{text}: {', '.join(map(repr, ids[:_NAMED]))}{more}", _ADVICE)
    for mismatch in sorted(look.mismatches):
        yield problem(check, mismatch, _ADVICE)
    if not look.wrong and not look.mismatches:
        note = "" if look.is_whole else f"; of states with more than {limit} only the first were read"
        yield ok(check, f"{look.read} job(s) read, each in one place and readable{note}")


def _look_at(queue: Queue, tell: Callable[[str], None], limit: int) -> _Look:
    look = _Look()
    count = sum(queue.storage.counts(queue.name).values())
    for state in STORED:
        before = queue.storage.counts(queue.name)[state]
        seen: set[str] = set()
        is_cut = False
        for page in _pages(queue, state):
            seen.update(snapshot.id for snapshot in page)
            look.wrong.update((text, id) for id, text in _judge(state, page))
            look.read += len(page)
            tell(f"{look.read} of {count}")
            if len(seen) >= limit:
                is_cut = True
                break
        after = queue.storage.counts(queue.name)[state]
        if is_cut:
            look.is_whole = False
        elif before != after:
            look.has_moved = True
        elif len(seen) != after:
            look.mismatches.add(f"{after} {state.value} job(s) are counted and {len(seen)} listed")
    return look


def look_after(queue: Queue) -> Iterator[Finding]:
    """Whether somebody works for ``queue``, and its schedules."""
    yield from _workers(queue)
    yield from _schedules(queue)


def _pages(queue: Queue, state: State) -> Iterator[list[Snapshot]]:
    cursor: str | None = None
    while True:
        ids, cursor = queue.storage.list_ids(queue.name, state, cursor, _PAGE)
        if ids:
            yield queue.storage.read(queue.name, ids)
        if cursor is None:
            return


def _judge(state: State, page: list[Snapshot]) -> Iterator[tuple[str, str]]:
    for snapshot in page:
        if snapshot.state is not state:  # it may have moved between the listing and the read
            yield snapshot.id, f"listed as {state.value}, but {snapshot.state.value}"
            continue
        try:
            message.decode(snapshot.message)
        except StorageCorruptError as error:
            yield snapshot.id, f"the message cannot be read ({error})"
        if snapshot.attempts > snapshot.max_attempts and not snapshot.is_persistent:
            yield snapshot.id, "more attempts than allowed"
        if state is State.PROCESSING and snapshot.worker is None:
            yield snapshot.id, "processing without a worker"
        if state in (State.SCHEDULED, State.FAILING) and snapshot.due_at_ms is None:
            yield snapshot.id, f"{state.value} without a due time"
        if state not in FINISHED and snapshot.expires_at_ms is not None:
            yield snapshot.id, "unfinished, but it expires"


def _workers(queue: Queue) -> Iterator[Finding]:
    check = f"workers of {queue.name}"
    workers = queue.storage.workers(queue.name)
    dead = [worker for worker in workers if is_dead(worker)]
    counts = queue.storage.counts(queue.name)
    if dead:
        held = sum(worker.processing for worker in dead)
        yield warning(
            check,
            f"{len(dead)} of {len(workers)} did not report for longer than they may, with {held} job(s)",
            "any running worker (or `reliq reap`) hands their jobs to others within seconds; start one",
        )
    elif not workers and counts[State.QUEUED] and not queue.storage.is_paused(queue.name):
        yield warning(check, f"none, and {counts[State.QUEUED]} job(s) are queued", "start `reliq worker`")
    else:
        yield ok(check, f"{len(workers)} alive" if workers else "none, and nothing is queued")


def is_dead(worker: WorkerInfo) -> bool:
    """Whether a worker's heartbeat is past its time, by this machine's clock and with a second of doubt."""
    return worker.expires_at_ms / 1000 < time.time() - 1.0


def _schedules(queue: Queue) -> Iterator[Finding]:
    check = f"schedules of {queue.name}"
    try:
        schedules = queue.schedules.list()
    except StorageError as error:
        yield problem(check, f"cannot be read: {error}", "see the server's log")
        return
    for info in schedules:
        if info.error is not None:
            yield problem(check, f"{info.name!r}: {info.error}", "upgrade reliq here, or remove and make it anew")
    late = [info.name for info in schedules if info.error is None and info.next_at < time.time() - 60]
    if late:
        yield warning(
            check, f"{len(late)} late by more than a minute, {late[0]!r} for one", "a worker or `reliq reap` must run"
        )
    elif schedules:
        yield ok(check, f"{len(schedules)}, none late")
