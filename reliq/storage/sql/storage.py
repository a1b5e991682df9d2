"""The contract of ``storage.base`` on SQL: every method once, for memory and files alike."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, TypeVar

from ...errors import InvalidJobError
from ...lifecycle import FINISHED, STORED, State
from ...serde import load_json
from ..base import (
    FALLBACK_MS,
    MAX_BATCH,
    NO_LIMITS,
    Claim,
    Claimed,
    Doorbell,
    Enqueued,
    Extended,
    Held,
    Limits,
    NewRecord,
    Outcome,
    Reaped,
    Schedule,
    Settled,
    Snapshot,
    Storage,
    Verb,
    Worker,
    WorkerInfo,
    queue_full,
)  # fmt: skip
from .connection import Database, Row, Write
from .events import LISTEN_SECONDS, Dispatcher
from .statements import MISSING, READ
from .wakeups import Bell, LocalDoorbell, Wakeups

T = TypeVar("T")

_ENDED = FINISHED | {State.ABSENT}
# Looking them up costs a third of making them.
_STATES = {state.value: state for state in State} | {"blocked": State.QUEUED}
_VERBS = {verb: verb.value for verb in Verb}
#: The outcomes that did not simply complete their job. Every row fetched hands the interpreter's lock over and back.
_SETTLED = (
    "SELECT i.n, o.state, o.is_new, o.news FROM settle_in AS i LEFT JOIN settle_out AS o USING (n) "
    "WHERE o.state IS NOT 'completed' OR o.is_new <> 1 ORDER BY i.n"
)
# What few jobs have. Whether any of a batch does is asked without a step of Python's for each.
_GROUP, _AFTER, _IS_PERSISTENT = (itemgetter(NewRecord._fields.index(f)) for f in ("group", "after", "is_persistent"))
#: In the cursor of a listing of the queued: blocked ones are next.
_BLOCKED = -1
_PAGES = {
    State.SCHEDULED: "list_due", State.FAILING: "list_due", State.QUEUED: "list_queued",
    State.PROCESSING: "list_processing", State.COMPLETED: "list_completed", State.FAILED: "list_failed",
    State.WAITING: "list_waiting",
}  # fmt: skip


class SqlStorage(Storage):
    """A storage on one SQL database. Subclasses say where it is and who else must be woken."""

    #: The longest that a sleeping thread goes without a look of its own.
    fallback_ms: int = FALLBACK_MS

    def __init__(self, database: Database) -> None:
        self._database = database
        self._qids: dict[str, int] = {}
        database.on_replaced = self._qids.clear
        self._wakeups = Wakeups()
        self._seen_due: dict[str, int] = {}
        self._dispatcher = Dispatcher(self._events, self._listen, self._fallback_seconds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # -- transitions ------------------------------------------------------------------

    def enqueue(
        self, queue: str, jobs: Sequence[NewRecord], waiter: str | None = None, wait_ms: int = 0
    ) -> list[Enqueued]:
        if len(jobs) == 1:
            return self._enqueue_distinct(queue, jobs, wait_ms if waiter is not None else 0)
        answers: list[Enqueued] = []
        for batch in _chunks(jobs):
            answers += self._enqueue(queue, batch, wait_ms if waiter is not None else 0)
        return answers

    def _enqueue(
        self, queue: str, jobs: Sequence[NewRecord], wait_ms: int, accepted: set[str] | None = None
    ) -> list[Enqueued]:
        """One batch. Adds the ids that were accepted now to ``accepted``."""
        first: dict[str, int] = {}
        for n, job in enumerate(jobs):
            first.setdefault(job.id, n)
        if len(first) == len(jobs):
            later = _waits_for_later(jobs, first)
            if later is None:
                return self._enqueue_distinct(queue, jobs, wait_ms, accepted)
            before = self._enqueue(queue, jobs[:later], wait_ms, accepted)
            return before + self._enqueue(queue, jobs[later:], wait_ms, accepted)
        accepted = set() if accepted is None else accepted
        numbers = list(first.values())
        answers = dict(zip(numbers, self._enqueue(queue, [jobs[n] for n in numbers], wait_ms, accepted), strict=True))
        others: list[int] = []
        for n, job in enumerate(jobs):
            if n not in answers:
                if job.id not in accepted:
                    others.append(n)  # sees what is there
                    continue
                # Of an id that was accepted just now the first wins, whatever became of it.
                answer = answers[first[job.id]]
                answers[n] = answer if job.nonce == answer.nonce else answer._replace(status="duplicate")
        if others:
            rest = self._enqueue(queue, [jobs[n] for n in others], wait_ms, accepted)
            answers |= zip(others, rest, strict=True)
        return [answers[n] for n in range(len(jobs))]

    def _enqueue_distinct(
        self, queue: str, jobs: Sequence[NewRecord], wait_ms: int, accepted: set[str] | None = None
    ) -> list[Enqueued]:
        now = self._now_ms()
        waited_ms = now + wait_ms if wait_ms > 0 else 0
        rows = [
            (job.id, bytearray(job.nonce), bytearray(job.message), job.max_attempts, job.result_ttl_ms,
             job.dedup_ttl_ms, job.dead_ttl_ms, job.priority,
             now + job.delay_ms if job.at_ms is None else job.at_ms, waited_ms)
            for job in jobs
        ]  # fmt: skip
        has_ties = any(map(_GROUP, jobs)) or any(map(_AFTER, jobs)) or any(map(_IS_PERSISTENT, jobs))
        staged: list[Row] = rows
        if has_ties:
            staged = [(*row, json.dumps(_ties(job))) for row, job in zip(rows, jobs, strict=True)]
        (out,) = self._database.write(
            Write(
                "enqueue", now, self._opened(queue), int(has_ties), staged=staged, ids=[job.id for job in jobs],
                questions=("SELECT n, status, state, nonce, result, key, news FROM enqueue_out ORDER BY n",),
                is_refused=_is_full,
            )
        )  # fmt: skip
        if _is_full(out):
            raise queue_full(queue, self.limits(queue).max_length)
        answers = [Enqueued(job.id, "queued", State.QUEUED, job.nonce) for job in jobs]
        replaced: list[str] = []
        dues: list[int] = []
        n_queued = len(jobs)
        changes: list[Row] = []
        if accepted is not None:
            accepted.update(job.id for job in jobs)
        for n, status, state, nonce, result, key, news in out:
            job = jobs[n - 1]
            if news is not None:
                changes = load_json(news)
            if status != "new" or state != "queued":
                n_queued -= 1
            if status == "new":
                status = "queued"
                if state == "scheduled":
                    dues.append(rows[n - 1][8])
                if key is not None:
                    replaced.append(job.id)
            elif accepted is not None:
                accepted.discard(job.id)
            answers[n - 1] = Enqueued(job.id, status, _STATES[state], nonce, result)
        # Of those with ties the storage knows whether they may be claimed.
        self._changed(queue, has_work=n_queued > 0 and not has_ties, dues=dues, ended=replaced, changes=changes)
        return answers

    def claim(self, queue: str, worker: Worker, limit: int, *, serial: int, lease_ms: int) -> Claim:
        limit = min(limit, MAX_BATCH)
        (((more, listed, ties, wait_ms),),) = self._database.write(
            Write(
                "claim", self._now_ms(), self._opened(queue), worker.key, worker.runners, worker.ttl_ms,
                limit, serial, lease_ms, size=max(1, limit),
                questions=("SELECT more, jobs, ties, wait_ms FROM claim_more ORDER BY rowid",),
            )
        )  # fmt: skip
        jobs = load_json(listed)
        if jobs or more:
            self._changed(queue, has_work=bool(more))
        from_hex = bytes.fromhex
        claimed = [
            Claimed(
                id, from_hex(nonce), token, attempts, max_attempts, created_ms, priority, bool(has_waiter),
                from_hex(message),
            )
            for id, nonce, token, attempts, max_attempts, created_ms, priority, has_waiter, message in jobs
        ]  # fmt: skip
        if ties is not None:
            for n, group, sequence, is_persistent in load_json(ties):
                claimed[n] = claimed[n]._replace(group=group, sequence=sequence, is_persistent=bool(is_persistent))
        return Claim(claimed, bool(more), wait_ms)

    def settle(self, queue: str, worker: Worker, outcomes: Sequence[Outcome]) -> list[Settled]:
        answers: list[Settled] = []
        for batch in _chunks(outcomes, by_id=lambda outcome: outcome.id):
            answers += self._settle(queue, worker, batch)
        return answers

    def _settle(self, queue: str, worker: Worker, outcomes: Sequence[Outcome]) -> list[Settled]:
        now = self._now_ms()
        rows = [
            (o.id, bytearray(o.nonce), o.token, _VERBS[o.verb], bytearray(o.result), bytearray(o.error), o.delay_ms,
             MISSING if o.ttl_ms is None else o.ttl_ms)
            for o in outcomes
        ]  # fmt: skip
        (out,) = self._database.write(
            Write(
                "settle", now, self._opened(queue), worker.key, staged=rows, ids=[outcome.id for outcome in outcomes],
                questions=(_SETTLED,),
            )
        )  # fmt: skip
        states: list[State | None] = [State.COMPLETED] * len(outcomes)
        has_work = False
        dues: list[int] = []
        changes: list[Row] = []
        for n, name, is_new, news in out:
            outcome = outcomes[n - 1]
            if news is not None:
                changes = load_json(news)
            state = states[n - 1] = None if name is None else _STATES[name]
            if is_new and state is State.FAILING:
                dues.append(now + outcome.delay_ms)
            elif is_new and state is State.QUEUED:
                has_work = True
        # Whoever waits for one that had ended before looks once more for nothing.
        ended = [outcome.id for outcome, state in zip(outcomes, states, strict=True) if state in _ENDED]
        self._changed(queue, has_work=has_work, dues=dues, ended=ended, changes=changes)
        return [Settled(outcome.id, state) for outcome, state in zip(outcomes, states, strict=True)]

    def extend(
        self, queue: str, worker: Worker, held: Sequence[Held], *, below: int, in_flight: Sequence[int], lease_ms: int
    ) -> Extended:
        (out,) = self._database.write(
            Write(
                "extend", self._now_ms(), self._opened(queue), worker.key, worker.runners, worker.ttl_ms, lease_ms,
                json.dumps([(lease.id, lease.nonce.hex().upper(), lease.token) for lease in held]), below,
                json.dumps(list(in_flight)),
                questions=("SELECT kind, n, id, nonce, token FROM extend_out ORDER BY n",),
            )
        )  # fmt: skip
        return Extended(
            lost=[held[n] for kind, n, *_ in out if kind == "lost"],
            cancelled=[held[n] for kind, n, *_ in out if kind == "cancelled"],
            orphans=[Held(id, nonce, token) for kind, _, id, nonce, token in out if kind == "orphan"],
        )

    def leave(self, queue: str, worker_key: str) -> int:
        recovered = 0
        while True:
            changes, ((n,),) = self._database.write(
                Write(
                    "leave", self._now_ms(), self._opened(queue), worker_key, MAX_BATCH,
                    questions=("SELECT event, id FROM change ORDER BY n", "SELECT n FROM leave_out"),
                )
            )  # fmt: skip
            self._followed(queue, changes)
            recovered += int(n)
            if n < MAX_BATCH:
                return recovered

    def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, nonces: Sequence[bytes] | None = None
    ) -> list[str]:
        statuses: list[str] = []
        named = [
            (id, None if nonces is None else nonce.hex().upper())
            for id, nonce in zip(ids, (b"",) * len(ids) if nonces is None else nonces, strict=True)
        ]
        for batch in _chunks(named, by_id=lambda item: item[0]):
            out, changes = self._database.write(
                Write(
                    "cancel", self._now_ms(), self._opened(queue), json.dumps(list(batch)), int(running),
                    questions=("SELECT status FROM cancel_out ORDER BY n", "SELECT event, id FROM change ORDER BY n"),
                )
            )  # fmt: skip
            self._followed(queue, changes)
            statuses += [status for (status,) in out]
        return statuses

    def reap(self, queue: str, *, interval_ms: int, limit: int = MAX_BATCH) -> Reaped:
        now = self._now_ms()
        changes, ((more, next_due_ms),), ticks = self._database.write(
            Write(
                "reap", now, self._opened(queue), interval_ms, min(limit, MAX_BATCH),
                questions=(
                    "SELECT event, id FROM change ORDER BY n", "SELECT more, next_due_ms FROM reap_out",
                    "SELECT name, spec, next_ms FROM reap_tick ORDER BY rowid",
                ),
            )
        )  # fmt: skip
        self._followed(queue, changes)
        return Reaped(
            [(name, id) for name, id in changes if name in ("stalled", "failed", "cancelled", "expired")],
            bool(more),
            None if next_due_ms is None else max(0, next_due_ms - now),
            tuple(Schedule(*tick) for tick in ticks),
            now,
        )

    def wait(
        self, queue: str, id: str, *, nonce: bytes = b"", waiter: str | None = None, timeout: float
    ) -> Snapshot | None:
        deadline = time.monotonic() + timeout
        is_registered = waiter is not None
        with self._wakeups.waiter(queue, id, nonce) as waiting:
            while True:
                self._announce()
                waiting.event.clear()
                snapshot = self._snapshots(queue, [id], nonce, payload=True)[0]
                if snapshot.state in _ENDED:
                    return snapshot
                waiting.nonce = nonce = nonce or snapshot.nonce
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                if not is_registered:
                    is_registered = True
                    now = self._now_ms()
                    self._database.write(Write("wait", now, self._opened(queue), id, nonce, now + int(left * 1000) + 1))
                waiting.event.wait(min(left, self._fallback_seconds()))

    def update_ttl(self, queue: str, id: str, ttl_ms: int) -> str:
        (((status,),),) = self._database.write(
            Write(
                "update_ttl", self._now_ms(), self._opened(queue), id, ttl_ms,
                questions=("SELECT status FROM update_ttl_out",),
            )
        )  # fmt: skip
        return str(status)

    def revive(self, queue: str, ids: Sequence[str] | None, *, limit: int = MAX_BATCH) -> list[str]:
        revived: list[str] = []
        batches: Iterable[str | None] = [None] if ids is None else (json.dumps(list(batch)) for batch in _chunks(ids))
        for batch in batches:
            out, changes = self._database.write(
                Write(
                    "revive", self._now_ms(), self._opened(queue), batch, min(limit, MAX_BATCH),
                    questions=("SELECT id FROM revive_out ORDER BY n", "SELECT event, id FROM change ORDER BY n"),
                )
            )  # fmt: skip
            self._followed(queue, changes)
            revived += [id for (id,) in out]
        return revived

    def discard(self, queue: str, ids: Sequence[str]) -> list[str]:
        discarded: list[str] = []
        for batch in _chunks(ids):
            out, changes = self._database.write(
                Write(
                    "discard", self._now_ms(), self._opened(queue), json.dumps(list(batch)),
                    questions=("SELECT id FROM discard_out ORDER BY n", "SELECT event, id FROM change ORDER BY n"),
                )
            )  # fmt: skip
            gone = [id for (id,) in out]
            self._changed(queue, ended=gone, changes=changes)
            discarded += gone
        return discarded

    def purge(self, queue: str) -> int:
        (((n,),),) = self._database.write(
            Write("purge", self._now_ms(), self._opened(queue), questions=("SELECT n FROM purge_out",))
        )
        self._changed(queue, ended=self._wakeups.waited().get(queue, []))
        return int(n)

    def pause(self, queue: str, paused: bool) -> None:
        self._database.write(Write("pause", self._now_ms(), self._opened(queue), int(paused)))
        if not paused:
            self._changed(queue, has_work=self._has_work(queue))

    def delete(self, queue: str) -> int:
        deleted = is_gone = 0
        more = int(self._known(queue) is not None)
        while more:
            (((n, is_gone, more),), changes) = self._database.write(
                Write(
                    "delete_queue", self._now_ms(), self._opened(queue), is_gone,
                    questions=(
                        "SELECT n, is_gone, more FROM delete_out", "SELECT event, id FROM change ORDER BY n",
                    ),
                )
            )  # fmt: skip
            deleted += int(n)
            self._changed(queue, ended=self._wakeups.waited().get(queue, []), changes=changes)
        return deleted

    def progress(self, queue: str, held: Held, data: bytes) -> bool:
        (out,) = self._database.write(
            Write(
                "progress", self._now_ms(), self._opened(queue), held.id, held.nonce, held.token, data,
                questions=("SELECT 1 FROM progress_out",),
            )
        )  # fmt: skip
        self._changed(queue)
        return bool(out)

    # -- settings ---------------------------------------------------------------------

    def limits(self, queue: str) -> Limits:
        qid = self._known(queue)
        rows = [] if qid is None else self._ask("limits", qid=qid)
        return Limits(*rows[0]) if rows else NO_LIMITS

    def set_limits(self, queue: str, limits: Limits, *, only_new: bool = False) -> Limits:
        self._database.write(
            Write(
                "set_limits", self._now_ms(), self._opened(queue), limits.rate, limits.rate_ms, limits.max_concurrency,
                limits.max_length, limits.group_concurrency, int(only_new),
            )
        )  # fmt: skip
        self._changed(queue, has_work=self._has_work(queue))
        return self.limits(queue)

    def put_schedule(self, queue: str, schedule: Schedule, *, only_new: bool = False) -> bool:
        is_stored = self._schedule("put_schedule", queue, *schedule, int(only_new))
        if is_stored:
            self._changed(queue, dues=[schedule.next_ms])
        return is_stored

    def move_schedule(self, queue: str, name: str, was_ms: int, next_ms: int) -> bool:
        is_moved = self._schedule("move_schedule", queue, name, was_ms, next_ms)
        if is_moved and next_ms < was_ms:
            self._changed(queue, dues=[next_ms])
        return is_moved

    def remove_schedule(self, queue: str, name: str) -> bool:
        return self._schedule("remove_schedule", queue, name)

    def _schedule(self, transition: str, queue: str, *parameters: Any) -> bool:
        (out,) = self._database.write(
            Write(
                transition, self._now_ms(), self._opened(queue), *parameters,
                questions=("SELECT 1 FROM schedule_out",),
            )
        )  # fmt: skip
        return bool(out)

    def schedules(self, queue: str) -> list[Schedule]:
        qid = self._known(queue)
        return [] if qid is None else [Schedule(*row) for row in self._ask("schedules", qid=qid)]

    # -- reading ----------------------------------------------------------------------

    def backlog(self, queue: str) -> int:
        qid = self._known(queue)
        return 0 if qid is None else int(self._ask("backlog", qid=qid, now_ms=self._now_ms())[0][0])

    def read(self, queue: str, ids: Sequence[str], *, payload: bool = True) -> list[Snapshot]:
        return [snapshot for batch in _chunks(ids) for snapshot in self._snapshots(queue, batch, b"", payload=payload)]

    def list_ids(self, queue: str, state: State, cursor: str | None, limit: int) -> tuple[list[str], str | None]:
        qid = self._known(queue)
        if qid is None or state not in _PAGES:
            return [], None
        a, b = (None, None) if cursor is None else _parse_cursor(cursor)
        page = {"qid": qid, "now_ms": self._now_ms(), "state": state.value, "a": a, "b": b}
        rows = [] if state is State.QUEUED and a == _BLOCKED else self._ask(_PAGES[state], **page, limit_n=limit)
        if state is State.QUEUED and len(rows) < limit:
            rows += self._ask("list_blocked", **page, limit_n=limit - len(rows))
        return [row[0] for row in rows], f"{rows[-1][1]}:{rows[-1][2]}" if rows and len(rows) == limit else None

    def counts(self, queue: str) -> dict[State, int]:
        qid = self._known(queue)
        rows = [] if qid is None else self._ask("counts", qid=qid)
        return dict(zip(STORED, rows[0] if rows else (0,) * len(STORED), strict=True))

    def is_paused(self, queue: str) -> bool:
        qid = self._known(queue)
        return qid is not None and bool(self._ask("is_paused", qid=qid)[0][0])

    def queues(self) -> list[str]:
        return [name for (name,) in self._ask("queues")]

    def workers(self, queue: str | None = None) -> list[WorkerInfo]:
        qid = None if queue is None else self._known(queue)
        if queue is not None and qid is None:
            return []
        return [WorkerInfo(*row) for row in self._ask("workers", qid=qid)]

    def subscribe(self, queue: str, listener: Callable[[str, str], None]) -> Callable[[], None]:
        return self._dispatcher.subscribe(queue, listener)

    def doorbell(self, queues: Sequence[str], bell: Literal["work", "due"]) -> Doorbell:
        return LocalDoorbell(self._wakeups, queues, bell, self._look_for, self._announce, self._fallback_seconds)

    # -- life -------------------------------------------------------------------------

    def close(self) -> None:
        self._dispatcher.close()
        self._database.close()
        self._wakeups.wake_all()

    # -- for subclasses ---------------------------------------------------------------

    def _announce(self) -> bool:
        """Make other processes ring this one; whether that is news, so that a look is due."""
        return False

    def _tell_others(self, concerns_sleepers: bool) -> None:
        """Ring the processes that announced themselves; else those that listen to every change."""

    # -- inside -----------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(time.time() * 1000) + self.skew_ms

    def _fallback_seconds(self) -> float:
        return self.fallback_ms / 1000

    def _ask(self, question: str, **parameters: Any) -> list[Row]:
        return self._database.ask(READ[question], parameters)

    def _do(self, statement: str, **parameters: Any) -> None:
        self._database.run(READ[statement], parameters)

    def _known(self, queue: str) -> int | None:
        """The queue's number; None when nobody used it yet."""
        qid = self._qids.get(queue)
        if qid is None:
            rows = self._ask("find_queue", name=queue)
            if not rows:
                return None
            qid = self._qids[queue] = rows[0][0]
        return qid

    def _opened(self, queue: str) -> int:
        """The queue's number, made when it has none."""
        qid = self._known(queue)
        if qid is None:
            self._do("open_queue", name=queue)
            qid = self._qids[queue] = self._ask("find_queue", name=queue)[0][0]
        return qid

    def _changed(
        self,
        queue: str,
        *,
        has_work: bool = False,
        dues: Sequence[int] = (),
        ended: Sequence[str] = (),
        changes: Sequence[Row] = (),
    ) -> None:
        """After a commit: wake whom it concerns, here and in other processes. ``changes``: more, (event, id)."""
        is_due_sooner = bool(dues) and self._next_due(queue) in dues
        if changes:
            events = {name for name, _ in changes}
            has_work = has_work or not events.isdisjoint(("ready", "stalled"))
            is_due_sooner = is_due_sooner or "scheduled" in events
            ended = [*ended, *(id for name, id in changes if name in ("failed", "cancelled", "expired", "purged"))]
        if has_work:
            self._wakeups.ring(queue, "work")
        if is_due_sooner:
            self._wakeups.ring(queue, "due")
        if ended:
            self._wakeups.ended(queue, ended)
        self._dispatcher.poke()
        self._tell_others(has_work or is_due_sooner or bool(ended))

    def _followed(self, queue: str, changes: Sequence[Row]) -> None:
        """``_changed`` for a list of (event, id)."""
        if changes:
            self._changed(queue, changes=changes)

    def _has_work(self, queue: str) -> bool:
        qid = self._known(queue)
        return qid is not None and bool(self._ask("has_work", qid=qid, now_ms=self._now_ms())[0][0])

    def _next_due(self, queue: str) -> int | None:
        qid = self._known(queue)
        due: int | None = None if qid is None else self._ask("next_due", qid=qid)[0][0]
        return due

    def _look_for(self, doorbell: LocalDoorbell) -> str | None:
        """The first queue of a doorbell that has something for it, or None."""
        return next((queue for queue in doorbell.queues if self._has_news(queue, doorbell.bell)), None)

    def _has_news(self, queue: str, bell: Bell) -> bool:
        if bell == "work":
            return self._has_work(queue)
        # Rings that were lost or not sent: news is whatever is due or was not there before.
        due = self._next_due(queue)
        if due is None:
            return False
        before, self._seen_due[queue] = self._seen_due.get(queue), due
        return due != before or due <= self._now_ms()

    def _unfinished(self, queue: str, ids: Sequence[str]) -> dict[str, bytes]:
        """The incarnations of ``ids`` that somebody may go on waiting for."""
        qid = self._known(queue)
        if qid is None:
            return {}
        return dict(
            row
            for batch in _chunks(ids)
            for row in self._ask("unfinished", qid=qid, now_ms=self._now_ms(), ids=json.dumps(list(batch)))
        )

    def _snapshots(self, queue: str, ids: Sequence[str], nonce: bytes, *, payload: bool) -> list[Snapshot]:
        qid = self._known(queue)
        if qid is None:
            return [Snapshot(id, State.ABSENT) for id in ids]
        rows = self._ask(
            "snapshots", qid=qid, now_ms=self._now_ms(), ids=json.dumps(list(ids)), nonce=nonce, payload=int(payload)
        )
        return [_snapshot(row) for row in rows]

    def _listen(self, queue: str) -> int:
        self._do("listen", qid=self._opened(queue), seconds=LISTEN_SECONDS)
        self._do("trim_events", seconds=LISTEN_SECONDS)
        return int(self._ask("last_event")[0][0])

    def _events(self, seq: int) -> list[Row]:
        return self._ask("events", seq=seq)


#: The two numbers of a row's place in a listing; 18 digits fit into SQLite's integers.
_CURSOR = re.compile(r"(-?[0-9]{1,18}):(-?[0-9]{1,18})")


def _parse_cursor(cursor: str) -> tuple[int, int]:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidJobError(f"cursor must come from the page before of the same listing, got {cursor!r:.80}")
    return int(match[1]), int(match[2])


def _snapshot(row: Row) -> Snapshot:
    (_, id, is_live, cause, state, nonce, created_ms, updated_ms, attempts, max_attempts, token, priority, due_ms,
     expires_ms, holder, is_cancelling, is_exhausted, result, errors, message, group, sequence, is_persistent,
     progress) = row  # fmt: skip
    if not is_live:
        return Snapshot(id, State.ABSENT, cause)
    return Snapshot(
        id, _STATES[state], "", nonce, created_ms, updated_ms, attempts, max_attempts, token, priority, due_ms,
        expires_ms, holder, bool(is_cancelling), bool(is_exhausted), result,
        tuple((at, worker, attempt, bytes.fromhex(data)) for at, worker, attempt, data in json.loads(errors)),
        message or b"", group, sequence, bool(is_persistent), progress,
    )  # fmt: skip


def _is_full(rows: Sequence[Row]) -> bool:
    """Whether an enqueue was refused by the queue's length."""
    return bool(rows) and rows[0][1] == "full"


def _ties(job: NewRecord) -> dict[str, Any]:
    """What ties the job to others, without what does not."""
    ties = {"group": job.group, "after": job.after or None, "is_persistent": job.is_persistent or None}
    return {name: value for name, value in ties.items() if value is not None}


def _waits_for_later(jobs: Sequence[NewRecord], numbers: Mapping[str, int]) -> int | None:
    """The number of the job behind the first one that names a later one in its ``after``."""
    if not any(map(_AFTER, jobs)):
        return None
    for n, job in enumerate(jobs):
        if job.after and any(numbers.get(id, -1) > n for id in job.after):
            return n + 1
    return None


def _chunks(items: Sequence[T], by_id: Callable[[T], str] | None = None) -> Iterator[Sequence[T]]:
    """Parts of at most MAX_BATCH items, none with one id twice when ``by_id`` names it."""
    if by_id is None or len({by_id(item) for item in items}) == len(items):
        for start in range(0, len(items), MAX_BATCH):
            yield items[start : start + MAX_BATCH]
        return
    part: list[T] = []
    seen: set[str] = set()
    for item in items:
        if by_id(item) in seen or len(part) == MAX_BATCH:
            yield part
            part, seen = [], set()
        part.append(item)
        seen.add(by_id(item))
    yield part
