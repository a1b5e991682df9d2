"""Compares the live data of a queue with what every storage guarantees, by public reads alone.

Work goes on meanwhile, so a job that moved is no problem: what looks wrong is looked at again, and counts are compared
only where they stood still. Nothing is changed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

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


def audit(queue: Queue, tell: Callable[[str], None], limit: int) -> Iterator[Finding]:
    """What is found among the jobs of ``queue``; of each state at most about ``limit`` are read."""
    check = f"jobs of {queue.name}"
    count = sum(queue.storage.counts(queue.name).values())
    wrong: dict[str, list[str]] = {}
    read, is_whole, mismatch = 0, True, ""
    for _ in range(_TRIES):
        wrong, mismatch, is_whole, moved = {}, "", True, False
        read = 0
        for state in STORED:
            before = queue.storage.counts(queue.name)[state]
            seen: Counter[str] = Counter()
            is_cut = False
            for page in _pages(queue, state):
                seen.update(snapshot.id for snapshot in page)
                for id, text in _judge(queue, state, page):
                    wrong.setdefault(text, []).append(id)
                read += len(page)
                tell(f"{read} of {count}")
                if len(seen) >= limit:
                    is_cut = True
                    break
            is_whole = is_whole and not is_cut
            after = queue.storage.counts(queue.name)[state]
            if is_cut or len(seen) == before == after:
                continue
            if before == after:
                mismatch = f"{before} {state.value} job(s) are counted and {len(seen)} listed"
            else:
                moved = True
        # What stays wrong over several looks was not merely on its way.
        if not wrong and not mismatch and not moved:
            break
    for text, ids in wrong.items():
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        yield problem(check, f"{text}: {', '.join(map(repr, ids[:_NAMED]))}{more}", _ADVICE)
    if mismatch:
        yield problem(check, mismatch, _ADVICE)
    if not wrong and not mismatch:
        note = "" if is_whole else f"; of states with more than {limit} only the first were read"
        yield ok(check, f"{read} job(s) read, each in one place and readable{note}")


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


def _judge(queue: Queue, state: State, page: list[Snapshot]) -> Iterator[tuple[str, str]]:
    for snapshot in page:
        if snapshot.state is not state:
            # It may have moved between the listing and the read: then it is no longer listed here.
            if _still_listed(queue, state, snapshot.id):
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


def _still_listed(queue: Queue, state: State, id: str) -> bool:
    cursor: str | None = None
    for _ in range(50):
        ids, cursor = queue.storage.list_ids(queue.name, state, cursor, 1_000)
        if id in ids:
            [again] = queue.storage.read(queue.name, [id], payload=False)
            return again.state is not state
        if cursor is None:
            return False
    return False


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
