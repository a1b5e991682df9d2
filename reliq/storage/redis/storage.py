"""RedisStorage: every transition is one Lua script of the same name; this class packs and unpacks."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar

from ...errors import InvalidJobError, StorageError
from ...identity import unique_name
from ...lifecycle import FINISHED, STORED, State
from ...validate import check_int, check_seconds
from ..base import (
    MAX_BATCH,
    MAX_CLAIM_BYTES,
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
)
from .client import Client
from .connection import BLOCK_MARGIN, BLOCK_SECONDS, check_url, connect, from_client
from .doorbell import ClusterDoorbell, ListDoorbell
from .keys import check_prefix, queue_tag, registry_key
from .scripts import CAUSES, LETTERS, STATES
from .subscription import Subscription

T = TypeVar("T")
_RECORD = struct.Struct("<cBH3s6s6s6sHBH8s6s6s6s3s")
#: Behind it, once the job was claimed: the last settle, the serial or deadline, the worker.
_UNTIL_AT, _WORKER_AT = 63, 69
_PROOF = struct.Struct("<8sI")
_SETTLE = struct.Struct("<c8sIQQ")
_ERROR = struct.Struct("<QHHI")
_STATUSES = {b"q": "queued", b"d": "duplicate", b"c": "completed"}
#: The queue's own numbers start with back, front, epoch, prios, listen, switches; the counters follow.
_BACK_SIZE, _SWITCHES_AT, _COUNTS_AT = 6, 22, 27
_EMPTY = bytes(69)
_COUNTED = (
    State.QUEUED, State.WAITING, State.SCHEDULED, State.PROCESSING, State.FAILING, State.COMPLETED, State.FAILED,
)  # fmt: skip
_VERBS = {Verb.COMPLETE: b"C", Verb.RETRY: b"R", Verb.FAIL: b"F", Verb.RELEASE: b"L"}
_CANCEL, _EXHAUSTED, _WAITED, _SIDE, _PERSISTENT = 4, 8, 16, 32, 128
_PAUSED = 1
#: The deadline of a record that is pinned.
_PINNED = (1 << 48) - 1
#: On these queues the dedup window begins with the acceptance of a job, and groups deliver one by one.
_FIFO = ".fifo"
_MAX_SIZE = (1 << 24) - 1
#: The most links that one enqueue of several jobs makes: each costs about as much as a job.
_MAX_LINKED = 10 * MAX_BATCH
#: How long after its deadline a waiting call hears of its reply, says that it leaves, and looks once more.
_REPLY_MARGIN, _LEAVE, _LAST_LOOK = 0.1, 0.2, 0.5
#: How often a process that reaps writes its queues to the registry again.
_REGISTER_SECONDS = 60.0


class RedisStorage(Storage):
    """Jobs on Redis >= 6.2 or Valkey: one server, Sentinel or a cluster.

    ``url``: ``redis:// rediss:// unix:// valkey:// valkeys:// redis+sentinel:// redis+cluster://``; or ``client``, an
    existing redis-py client whose settings are used for connections of reliq's own. ``prefix`` begins
    every key. ``repeat_for`` seconds an operation is tried while the server is away (at most 30).
    ``confirm_replicas`` makes enqueue and settle wait for that many replicas, for at most
    ``confirm_timeout`` seconds, and raise NotConfirmedError. Connects at first use.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: Any = None,
        prefix: str = "reliq",
        repeat_for: float = 5.0,
        confirm_replicas: int = 0,
        confirm_timeout: float = 1.0,
    ) -> None:
        if (url is None) == (client is None):
            raise InvalidJobError("RedisStorage takes a url or a client, and exactly one of them")
        if check_seconds("repeat_for", repeat_for) > 30:
            raise InvalidJobError(f"repeat_for must be at most 30 seconds, got {repeat_for!r}")
        check_seconds("confirm_timeout", confirm_timeout)
        check_int("confirm_replicas", confirm_replicas, 0, 100)
        if url is not None and not isinstance(url, str):
            raise InvalidJobError(f"url must be a str, got {type(url).__name__}")
        self.url = _without_password(url) if url is not None else "redis (an existing client)"
        self._prefix = check_prefix(prefix)
        link = connect(url) if url is not None else from_client(client)
        self._client = Client(link, repeat_for, confirm_replicas, confirm_timeout)
        self._tags: dict[str, str] = {}
        self._registered: dict[str, float] = {}
        self._lock = threading.Lock()
        self._subscriptions: set[Subscription] = set()

    def __repr__(self) -> str:
        return f"RedisStorage({self.url!r}, prefix={self._prefix!r})"

    # -- transitions ------------------------------------------------------------------

    def enqueue(
        self, queue: str, jobs: Sequence[NewRecord], waiter: str | None = None, wait_ms: int = 0
    ) -> list[Enqueued]:
        if queue not in self._registered:
            self._register(queue)
        within = wait_ms / 1000 if waiter else None
        answers: list[Enqueued] = []
        for chunk in _linked_chunks(jobs):
            args: list[Any] = [waiter or "", wait_ms]
            for job in chunk:
                args += (job.id, _fixed(job), job.message)
            reply = self._run("enqueue", queue, *args, is_repeatable=True, within=within, confirm=True)
            if reply[0] == b"full":
                raise queue_full(queue, int(reply[1]))
            if len(reply) > len(chunk):
                reply.pop()
                self._register(queue)  # it may have been deleted since
            for job, answer in zip(chunk, reply, strict=True):
                state = STATES[answer[1:2]]
                if len(answer) == 2:
                    answers.append(Enqueued(job.id, "queued", state, job.nonce))
                else:
                    status = _STATUSES[answer[:1]]
                    answers.append(
                        Enqueued(job.id, status, state, answer[2:10], answer[10:] if status == "completed" else None)
                    )
        return answers

    def claim(self, queue: str, worker: Worker, limit: int, *, serial: int, lease_ms: int) -> Claim:
        limit = min(limit, MAX_BATCH)
        reply = self._run(
            "claim", queue, worker.key, worker.runners, worker.ttl_ms, limit, serial, lease_ms, MAX_CLAIM_BYTES
        )
        jobs = []
        for at in range(1, len(reply), 3):
            record = reply[at + 1]
            _, flags, attempts, token, _, _, created, _, priority, max_attempts, nonce, *_ = _RECORD.unpack_from(record)
            group, sequence = _place(record[_WORKER_AT + len(worker.key.encode()) :]) if flags & _SIDE else (None, None)
            jobs.append(
                Claimed(
                    reply[at].decode(), nonce, _int(token), attempts, max_attempts, _int(created), priority,
                    flags & _WAITED != 0, reply[at + 2], group, sequence, flags & _PERSISTENT != 0,
                )
            )  # fmt: skip
        return Claim(jobs, reply[0] == b"1", int(reply[0][1:]) if reply[0][:1] == b"w" else None)

    def settle(self, queue: str, worker: Worker, outcomes: Sequence[Outcome]) -> list[Settled]:
        answers: list[Settled] = []
        for chunk in _chunks(outcomes):
            args: list[Any] = []
            for item in chunk:
                facts = _SETTLE.pack(_VERBS[item.verb], item.nonce, item.token, item.delay_ms, item.ttl_ms or 0)
                args += (item.id, facts, item.result if item.verb is Verb.COMPLETE else item.error)
            reply = self._run("settle", queue, *args, is_repeatable=True, confirm=True)
            answers += (Settled(item.id, STATES.get(letter)) for item, letter in zip(chunk, reply, strict=True))
        return answers

    def extend(
        self, queue: str, worker: Worker, held: Sequence[Held], *, below: int, in_flight: Sequence[int], lease_ms: int
    ) -> Extended:
        chunks = list(_chunks(held)) or [[]]
        serials = ",".join(map(str, in_flight))
        known: dict[tuple[bytes, bytes], Held] = {}
        found: dict[bytes, list[Held]] = {b"lost": [], b"cancel": [], b"orphan": []}
        for number, chunk in enumerate(chunks, 1):
            args: list[Any] = [worker.key, worker.runners, worker.ttl_ms, lease_ms]
            # Only the last chunk asks for orphans: by then every lease that is held was renewed.
            args += (below if number == len(chunks) else 0, serials)
            for lease in chunk:
                proof = _PROOF.pack(lease.nonce, lease.token)
                known[lease.id.encode(), proof] = lease
                args += (lease.id, proof)
            for what, id, proof in _groups(self._run("extend", queue, *args), 3):
                ours = known.get((id, proof))
                if what == b"orphan" and ours is not None:
                    continue  # held, and renewed by an earlier chunk
                found[what].append(ours or Held(id.decode(), *_PROOF.unpack(proof)))
        return Extended(found[b"lost"], found[b"cancel"], found[b"orphan"])

    def leave(self, queue: str, worker_key: str) -> int:
        total = 0
        while step := int(self._run("leave", queue, worker_key, MAX_BATCH)):
            total += step
        return total

    def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, nonces: Sequence[bytes] | None = None
    ) -> list[str]:
        answers: list[str] = []
        for chunk in _chunks(list(zip(ids, nonces or [b""] * len(ids), strict=True))):
            args = [arg for pair in chunk for arg in pair]
            answers += (answer.decode() for answer in self._run("cancel", queue, int(running), *args))
        return answers

    def reap(self, queue: str, *, interval_ms: int, limit: int = MAX_BATCH) -> Reaped:
        if time.monotonic() - self._registered.get(queue, 0.0) > _REGISTER_SECONDS:
            core = self._core(queue)
            if core is not None and any(core[:_BACK_SIZE]):  # something was enqueued here
                self._register(queue)
        more, next_due, now, ticks, *rest = self._run("reap", queue, interval_ms, min(limit, MAX_BATCH))
        end = 3 * int(ticks)
        return Reaped(
            [(name.decode(), id.decode()) for name, id in _groups(rest[end:], 2)],
            more == b"1",
            int(next_due) if next_due else None,
            tuple(_schedules(rest[:end])),
            int(now),
        )

    def wait(
        self, queue: str, id: str, *, nonce: bytes = b"", waiter: str | None = None, timeout: float
    ) -> Snapshot | None:
        deadline = time.monotonic() + timeout
        is_registered = waiter is not None
        waiter = waiter or unique_name(8)
        trouble: StorageError | None = None
        snapshot: Snapshot | None
        while (left := deadline - time.monotonic()) > 0:
            try:
                if is_registered:
                    reply = self._await_reply(queue, waiter, left)
                    # Without a reply in all this time, and without a connection, the state tells.
                    snapshot = (
                        self._look(queue, id, nonce, left) if reply is None else self._heard(queue, id, nonce, reply)
                    )
                    is_registered = reply is None
                else:
                    is_registered = self._join(queue, id, nonce, waiter, left)
                    snapshot = None if is_registered else self._look(queue, id, nonce, left)
            except StorageError as error:
                trouble = error
                time.sleep(min(max(0.0, deadline - time.monotonic()), 0.05))
                continue
            # A dead letter that was retried since it replied has not ended: join it again.
            if snapshot is not None and _has_ended(snapshot):
                return snapshot
        try:
            self._run("wait", queue, "leave", id, waiter, 0, b"", is_repeatable=True, within=_LEAVE)
            last = self._look(queue, id, nonce, _LAST_LOOK)
        except StorageError as error:
            raise error from trouble
        return last if _has_ended(last) else None

    def update_ttl(self, queue: str, id: str, ttl_ms: int) -> str:
        answer: bytes = self._run("update_ttl", queue, id, ttl_ms, is_repeatable=True)
        return answer.decode()

    def revive(self, queue: str, ids: Sequence[str] | None, *, limit: int = MAX_BATCH) -> list[str]:
        if ids is None:
            return [id.decode() for id in self._run("revive", queue, min(limit, MAX_BATCH))]
        return [id.decode() for chunk in _chunks(ids) for id in self._run("revive", queue, 0, *chunk)]

    def discard(self, queue: str, ids: Sequence[str]) -> list[str]:
        return [id.decode() for chunk in _chunks(ids) for id in self._run("discard", queue, *chunk)]

    def purge(self, queue: str) -> int:
        return int(self._run("purge", queue))

    def pause(self, queue: str, paused: bool) -> None:
        self._run("pause", queue, int(paused), is_repeatable=True)

    def delete(self, queue: str) -> int:
        total, is_done, is_first = 0, False, 1
        while not is_done:
            jobs, done = self._run("delete", queue, is_first, MAX_BATCH)
            total, is_done, is_first = total + int(jobs), done == b"1", 0
        self._client.command("SREM", registry_key(self._prefix), queue)
        self._registered.pop(queue, None)
        if any((self._core(queue) or b"")[:_BACK_SIZE]) or self.schedules(queue):  # what came meanwhile
            self._register(queue)
        return total

    def progress(self, queue: str, held: Held, data: bytes) -> bool:
        answer = self._run("progress", queue, held.id, held.nonce, held.token, data, is_repeatable=True)
        return bool(answer == b"1")

    # -- settings ---------------------------------------------------------------------

    def limits(self, queue: str) -> Limits:
        packed: bytes | None = self._client.command("HGET", f"{self._tag(queue)}:meta", "limits")
        return NO_LIMITS if packed is None else _limits(packed)

    def set_limits(self, queue: str, limits: Limits, *, only_new: bool = False) -> Limits:
        width = 1 if queue.endswith(_FIFO) else limits.group_concurrency
        numbers = (limits.rate, limits.rate_ms, limits.max_concurrency, limits.max_length, width)
        packed = b"".join((number or 0).to_bytes(6, "little") for number in numbers)
        return _limits(self._run("set_limits", queue, packed, int(only_new), is_repeatable=True))

    def put_schedule(self, queue: str, schedule: Schedule, *, only_new: bool = False) -> bool:
        verb = "new" if only_new else "put"
        # So that a reaper of the whole storage finds a queue that holds nothing else. Each time: others may have
        # deleted it since it was registered here.
        self._register(queue)
        return self._schedule(queue, verb, schedule.name, schedule.next_ms, schedule.spec)

    def move_schedule(self, queue: str, name: str, was_ms: int, next_ms: int) -> bool:
        return self._schedule(queue, "move", name, next_ms, was_ms)

    def remove_schedule(self, queue: str, name: str) -> bool:
        return self._schedule(queue, "remove", name, 0, b"")

    def _schedule(self, queue: str, verb: str, name: str, next_ms: int, detail: bytes | int) -> bool:
        return bool(self._run("schedule", queue, verb, name, next_ms, detail) == b"1")

    def schedules(self, queue: str) -> list[Schedule]:
        return sorted(_schedules(self._run("schedules", queue, is_repeatable=True)), key=lambda found: found.name)

    # -- reading ----------------------------------------------------------------------

    def backlog(self, queue: str) -> int:
        return int(self._run("backlog", queue, is_repeatable=True))

    def read(self, queue: str, ids: Sequence[str], *, payload: bool = True) -> list[Snapshot]:
        found: list[Snapshot] = []
        for chunk in _chunks(ids):
            reply = self._run("read", queue, int(payload), b"", *chunk, is_repeatable=True)
            is_fifo = queue.endswith(_FIFO)
            found += (_snapshot(id, is_fifo, *fields) for id, fields in zip(chunk, _groups(reply, 9), strict=True))
        return found

    def list_ids(self, queue: str, state: State, cursor: str | None, limit: int) -> tuple[list[str], str | None]:
        try:
            index, offset = (int(part) for part in (cursor or "0:0").split(":"))
        except ValueError:
            raise InvalidJobError(f"cursor must come from the page before, got {cursor!r:.80}") from None
        ids: list[str] = []
        while True:
            reply = self._run("list", queue, LETTERS[state], index, offset, limit - len(ids), is_repeatable=True)
            ids += (id.decode() for id in reply[2:])
            if not reply[0]:
                return ids, None
            index, offset = int(reply[0]), int(reply[1])
            if len(ids) >= limit:
                return ids, f"{index}:{offset}"

    def counts(self, queue: str) -> dict[State, int]:
        core = self._core(queue) or _EMPTY
        found = {state: _int(core[at : at + 6]) for at, state in zip(range(_COUNTS_AT, 69, 6), _COUNTED, strict=True)}
        return {state: found[state] for state in STORED}

    def is_paused(self, queue: str) -> bool:
        return bool((self._core(queue) or _EMPTY)[_SWITCHES_AT] & _PAUSED)

    def queues(self) -> list[str]:
        return sorted(name.decode() for name in self._client.command("SMEMBERS", registry_key(self._prefix)))

    def workers(self, queue: str | None = None) -> list[WorkerInfo]:
        return [
            WorkerInfo(key.decode(), name, int(entry.partition(b":")[0]), int(expires), int(held))
            for name in (self.queues() if queue is None else [queue])
            for key, expires, entry, held in _groups(self._run("workers", name, is_repeatable=True), 4)
        ]

    def subscribe(self, queue: str, listener: Callable[[str, str], None]) -> Callable[[], None]:
        subscription = Subscription(self._client, self._tag(queue), lambda: self.skew_ms, listener)
        with self._lock:
            self._subscriptions.add(subscription)
        subscription.start(self._client.repeat_for)

        def stop() -> None:
            with self._lock:
                self._subscriptions.discard(subscription)
            subscription.stop()

        return stop

    def doorbell(self, queues: Sequence[str], bell: Literal["work", "due"]) -> Doorbell:
        needs_listeners = self._client.link.is_cluster and len(queues) > 1
        kind = ClusterDoorbell if needs_listeners else ListDoorbell
        return kind(self._client, self._prefix, queues, bell)

    def close(self) -> None:
        with self._lock:
            subscriptions, self._subscriptions = self._subscriptions, set()
        for subscription in subscriptions:
            subscription.stop()
        self._client.link.close()

    # -- inside -----------------------------------------------------------------------

    def _run(self, name: str, queue: str, *args: Any, **how: Any) -> Any:
        return self._client.run(name, self._tag(queue), self.skew_ms, *args, **how)

    def _core(self, queue: str) -> bytes | None:
        core: bytes | None = self._client.command("HGET", f"{self._tag(queue)}:meta", "core")
        return core

    def _tag(self, queue: str) -> str:
        tag = self._tags.get(queue)
        if tag is None:
            tag = self._tags[queue] = queue_tag(self._prefix, queue)
        return tag

    def _register(self, queue: str) -> None:
        self._client.command("SADD", registry_key(self._prefix), queue)
        self._registered[queue] = time.monotonic()

    def _await_reply(self, queue: str, waiter: str, left: float) -> bytes | None:
        if not self._client.take_place(left):
            return None
        try:
            seconds = max(0.001, min(left, BLOCK_SECONDS, self.fallback_ms / 1000))
            # A server that stands still must not keep the caller beyond its own deadline.
            timeout = min(seconds + BLOCK_MARGIN, left + _REPLY_MARGIN)
            key = f"{self._tag(queue)}:reply:{waiter}"
            reply = self._client.block("BLPOP", key, f"{seconds:.3f}", timeout=timeout)
            return None if reply is None else reply[1]
        finally:
            self._client.leave_place()

    def _join(self, queue: str, id: str, nonce: bytes, waiter: str, left: float) -> bool:
        wait_ms = round(left * 1000) + 1
        answer = self._run("wait", queue, "join", id, waiter, wait_ms, nonce, is_repeatable=True, within=left)
        return bool(answer == b"1")

    def _heard(self, queue: str, id: str, nonce: bytes, reply: bytes) -> Snapshot:
        kind, incarnation, rest = reply[:1], reply[1:9], reply[9:]
        if kind == b"R" or (nonce and nonce != incarnation):
            return self._look(queue, id, nonce or incarnation)
        if kind == b"C":
            return Snapshot(id, State.COMPLETED, nonce=incarnation, result=rest)
        return Snapshot(id, State.ABSENT, CAUSES[rest], nonce=incarnation)

    def _look(self, queue: str, id: str, nonce: bytes, within: float | None = None) -> Snapshot:
        reply = self._run("read", queue, 1, nonce, id, is_repeatable=True, within=within)
        return _snapshot(id, queue.endswith(_FIFO), *reply)


def _has_ended(snapshot: Snapshot) -> bool:
    return snapshot.state in FINISHED or snapshot.state is State.ABSENT


def _snapshot(
    id: str,
    is_fifo: bool,
    record: bytes,
    cause: bytes,
    due_at: bytes,
    message: bytes,
    result: bytes,
    has_result: bytes,
    errors: bytes,
    place: bytes,
    progress: bytes,
) -> Snapshot:
    if not record:
        return Snapshot(id, State.ABSENT, CAUSES[cause])
    (
        letter, flags, attempts, token, _, stamp, created, _,
        priority, max_attempts, nonce, _, dedup_ttl, _, _,
    ) = _RECORD.unpack_from(record)  # fmt: skip
    state = STATES[letter]
    updated_at_ms = _int(stamp)
    expires_at_ms = None
    if state in FINISHED:
        expires_at_ms = _int(record[_UNTIL_AT : _UNTIL_AT + 6])
    if state is State.COMPLETED:
        window_end = (_int(created) if is_fifo else updated_at_ms) + _int(dedup_ttl)
        expires_at_ms = None if expires_at_ms == _PINNED else max(expires_at_ms or 0, window_end)
    group, sequence = _place(place)
    return Snapshot(
        id,
        state,
        nonce=nonce,
        created_at_ms=_int(created),
        updated_at_ms=updated_at_ms,
        attempts=attempts,
        max_attempts=max_attempts,
        token=_int(token),
        priority=priority,
        due_at_ms=int(float(due_at)) if due_at else None,
        expires_at_ms=expires_at_ms,
        worker=record[_WORKER_AT:].decode() or None,
        cancel_requested=bool(flags & _CANCEL),
        is_exhausted=bool(flags & _EXHAUSTED) and state is State.FAILED,
        result=result if has_result == b"1" else None,
        errors=tuple(_errors(errors)),
        message=message,
        group=group,
        sequence=sequence,
        is_persistent=flags & _PERSISTENT != 0,
        progress=progress[1:] if progress else None,
    )


def _place(data: bytes) -> tuple[str, int] | tuple[None, None]:
    """Group and sequence, as the scripts pack them."""
    return (data[6:].decode(), _int(data[:6])) if data else (None, None)


def _limits(packed: bytes) -> Limits:
    rate, rate_ms, concurrency, length, width = (_int(packed[at : at + 6]) for at in range(0, 30, 6))
    return Limits(rate or None, rate_ms, concurrency or None, length or None, width)


def _schedules(items: Sequence[bytes]) -> Iterator[Schedule]:
    return (Schedule(name.decode(), spec, int(float(next_ms))) for name, spec, next_ms in _groups(items, 3))


def _errors(data: bytes) -> Iterator[tuple[int, str, int, bytes]]:
    at = 0
    while at < len(data):
        at_ms, worker_size, attempt, size = _ERROR.unpack_from(data, at)
        at += _ERROR.size
        worker = data[at : at + worker_size].decode()
        at += worker_size
        yield at_ms, worker, attempt, data[at : at + size]
        at += size


def _fixed(job: NewRecord) -> bytes:
    """The part of a record that enqueue fixes, as the scripts lay it out."""
    head, ttls = _packed_options(job.priority, job.max_attempts, job.result_ttl_ms, job.dedup_ttl_ms, job.dead_ttl_ms)
    fixed = head + job.nonce + ttls + min(len(job.message), _MAX_SIZE).to_bytes(3, "little")
    if job.at_ms is None and not job.delay_ms and job.group is None and not job.after and not job.is_persistent:
        return fixed
    fixed += job.delay_ms.to_bytes(6, "little") + (job.at_ms or 0).to_bytes(6, "little")
    if job.group is None and not job.after and not job.is_persistent:
        return fixed
    return fixed + bytes([job.is_persistent]) + b"".join(_sized(text) for text in (job.group or "", *job.after))


def _sized(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "little") + data


@lru_cache(maxsize=1024)
def _packed_options(priority: int, max_attempts: int, *ttls: int) -> tuple[bytes, bytes]:
    # Nearly all jobs of a process share a few sets of options.
    return struct.pack("<BH", priority, max_attempts), b"".join(ttl.to_bytes(6, "little") for ttl in ttls)


def _int(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    if len(items) <= MAX_BATCH:
        if items:
            yield items
        return
    for at in range(0, len(items), MAX_BATCH):
        yield items[at : at + MAX_BATCH]


def _linked_chunks(jobs: Sequence[NewRecord]) -> Iterator[Sequence[NewRecord]]:
    """Chunks of at most MAX_BATCH jobs, and smaller ones where they have very many links."""
    for chunk in _chunks(jobs):
        if sum(len(job.after) for job in chunk) <= _MAX_LINKED:
            yield chunk
        else:
            middle = len(chunk) // 2
            yield from _linked_chunks(chunk[:middle])
            yield from _linked_chunks(chunk[middle:])


def _groups(items: Sequence[Any], size: int) -> Iterator[tuple[Any, ...]]:
    return zip(*(iter(items),) * size, strict=True)


def _without_password(url: str) -> str:
    parts = check_url(url)
    _, at, hosts = parts.netloc.rpartition("@")
    query = "" if "password" in parts.query else parts.query
    return f"{parts.scheme}://{'***@' if at else ''}{hosts}{parts.path}{'?' if query else ''}{query}"
