"""Every cell of ``lifecycle.TRANSITIONS``: each stored state, reached in each way, meets each command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ...lifecycle import FINISHED, LIVE, STORED, TRANSITIONS, Command, State
from ...storage.base import Held, Outcome, Snapshot, Storage, Verb, Worker
from .base import ContractBase
from .steps import (
    DAY,
    QUEUE,
    assert_placed,
    cancel,
    held_now,
    jump,
    look,
    picture,
    put,
    settle,
    state_of,
    take,
    take_one,
    upkeep,
)

# Leases and heartbeats outlast every jump of these tests: only a command recovers.
HOLDER = Worker("holder", "0e", ttl_ms=900 * DAY)
#: Who runs the predecessor ``first`` of a job that waits.
BEFORE = Worker("before", "0f", ttl_ms=900 * DAY)
FOREVER = 900 * DAY
TTL = 10 * DAY
FAR = 400 * DAY


@dataclass(frozen=True)
class Start:
    """A way to bring the id ``a`` into ``state``."""

    state: State
    build: Callable[[Storage], object]


def _put(storage: Storage, **options: Any) -> None:
    put(storage, "a", message=b"m", **({"result_ttl_ms": TTL, "dedup_ttl_ms": TTL, "dead_ttl_ms": TTL} | options))


def _run(storage: Storage, verb: Verb | None = None, *, delay_ms: int = 0, **options: Any) -> None:
    _put(storage, **options)
    job = take_one(storage, HOLDER, lease_ms=FOREVER)
    if verb is not None:
        settle(storage, job, verb, HOLDER, result=b"r", error=b"e", delay_ms=delay_ms)


def _recovered(storage: Storage, **options: Any) -> None:
    _run(storage, **options)
    storage.leave(QUEUE, HOLDER.key)


def _promoted(storage: Storage) -> None:
    _put(storage, delay_ms=1_000)
    jump(storage, 2_000)


def _promoted_retry(storage: Storage) -> None:
    _run(storage, Verb.RETRY, delay_ms=1_000)
    jump(storage, 2_000)


def _revived(storage: Storage) -> None:
    _run(storage, Verb.FAIL)
    storage.revive(QUEUE, ["a"])


def _processing_again(storage: Storage) -> None:
    _run(storage, Verb.RETRY)
    take_one(storage, HOLDER, lease_ms=FOREVER)


def _processing_last(storage: Storage) -> None:
    _run(storage, max_attempts=1)


def _processing_in_batch(storage: Storage) -> None:
    _put(storage)
    put(storage, "neighbour")
    first, second = take(storage, HOLDER, 2, lease_ms=FOREVER)
    settle(storage, second, worker=HOLDER)
    assert first.id == "a"
    storage.purge(QUEUE)  # the neighbour leaves no trace; a running job is not touched


def _waiting(storage: Storage) -> None:
    put(storage, "first", result_ttl_ms=FOREVER, dedup_ttl_ms=FOREVER, dead_ttl_ms=FOREVER)
    take_one(storage, BEFORE, lease_ms=FOREVER)
    _put(storage, after=["first"])


def _cancelling(storage: Storage) -> None:
    _run(storage)
    cancel(storage, "a", running=True)


def _without_result(storage: Storage) -> None:
    _run(storage, Verb.COMPLETE, result_ttl_ms=DAY)
    jump(storage, 2 * DAY)


def _deduplicated(storage: Storage) -> None:
    _run(storage, Verb.COMPLETE, dedup_ttl_ms=DAY)
    jump(storage, 2 * DAY)


def _cancelled(storage: Storage) -> None:
    _put(storage)
    cancel(storage, "a")


def _purged(storage: Storage) -> None:
    _put(storage)
    storage.purge(QUEUE)


def _deleted(storage: Storage) -> None:
    _put(storage)
    storage.delete(QUEUE)


def _expired(storage: Storage) -> None:
    _run(storage, Verb.COMPLETE)
    storage.skew_ms += TTL + 1_000
    upkeep(storage)


def _discarded(storage: Storage) -> None:
    _run(storage, Verb.FAIL)
    storage.discard(QUEUE, ["a"])


_S = State
STARTS: dict[str, Start] = {
    "absent": Start(_S.ABSENT, lambda s: None),
    "absent-cancelled": Start(_S.ABSENT, _cancelled),
    "absent-purged": Start(_S.ABSENT, _purged),
    "absent-expired": Start(_S.ABSENT, _expired),
    "absent-discarded": Start(_S.ABSENT, _discarded),
    "absent-deleted": Start(_S.ABSENT, _deleted),
    "waiting": Start(_S.WAITING, _waiting),
    "scheduled": Start(_S.SCHEDULED, lambda s: _put(s, delay_ms=FAR)),
    "queued": Start(_S.QUEUED, _put),
    "queued-with-priority": Start(_S.QUEUED, lambda s: _put(s, priority=9)),
    "queued-retried": Start(_S.QUEUED, lambda s: _run(s, Verb.RETRY)),
    "queued-released": Start(_S.QUEUED, lambda s: _run(s, Verb.RELEASE)),
    "queued-recovered": Start(_S.QUEUED, _recovered),
    "queued-promoted": Start(_S.QUEUED, _promoted),
    "queued-promoted-retry": Start(_S.QUEUED, _promoted_retry),
    "queued-revived": Start(_S.QUEUED, _revived),
    "processing": Start(_S.PROCESSING, _run),
    "processing-again": Start(_S.PROCESSING, _processing_again),
    "processing-last-attempt": Start(_S.PROCESSING, _processing_last),
    "processing-in-batch": Start(_S.PROCESSING, _processing_in_batch),
    "processing-persistent": Start(_S.PROCESSING, lambda s: _run(s, is_persistent=True, max_attempts=1)),
    "processing-cancelling": Start(_S.PROCESSING, _cancelling),
    "failing": Start(_S.FAILING, lambda s: _run(s, Verb.RETRY, delay_ms=FAR)),
    "completed": Start(_S.COMPLETED, lambda s: _run(s, Verb.COMPLETE)),
    "completed-without-result": Start(_S.COMPLETED, _without_result),
    "completed-past-its-window": Start(_S.COMPLETED, _deduplicated),
    "failed": Start(_S.FAILED, lambda s: _run(s, Verb.FAIL)),
    "failed-exhausted": Start(_S.FAILED, lambda s: _run(s, Verb.RETRY, max_attempts=1)),
    "failed-recovered": Start(_S.FAILED, lambda s: _recovered(s, max_attempts=1)),
}


def _settles(verb: Verb) -> Callable[[Storage, Snapshot], bool]:
    def apply(storage: Storage, seen: Snapshot) -> bool:
        # Where nobody holds the job a token that was never given out stands for "any": a token that was
        # settled gets its first answer again (I25), which is tested elsewhere.
        token = seen.token if seen.state is State.PROCESSING else seen.token + 1
        item = Outcome("a", seen.nonce, token, verb, b"result", b"error", delay_ms=0)
        [answer] = storage.settle(QUEUE, HOLDER, [item])
        return not answer.is_lost

    return apply


def _enqueue(storage: Storage, seen: Snapshot) -> bool:
    return put(storage, "a", message=b"new")[0].status != "duplicate"


def _claim(storage: Storage, seen: Snapshot) -> bool:
    return bool(take(storage, HOLDER, 10, lease_ms=FOREVER))


def _extend(storage: Storage, seen: Snapshot) -> bool:
    lease = Held("a", seen.nonce, seen.token)
    answer = storage.extend(QUEUE, HOLDER, [lease], below=0, in_flight=[], lease_ms=FOREVER)
    assert answer.lost in ([], [lease])
    return not answer.lost


def _cancel(storage: Storage, seen: Snapshot) -> bool:
    return cancel(storage, "a", running=True) in ("cancelled", "cancelling")


def _recover(storage: Storage, seen: Snapshot) -> bool:
    return storage.leave(QUEUE, HOLDER.key) > 0


def _promote(storage: Storage, seen: Snapshot) -> bool:
    """Let what it waits for come; where it waits for nothing a reap must find nothing to promote."""
    if seen.state is State.WAITING:
        settle(storage, held_now(storage, "first"), worker=BEFORE)
        return state_of(storage, "a") is not State.WAITING
    if seen.due_at_ms is not None:
        storage.skew_ms += FAR + 1_000
    upkeep(storage)
    return state_of(storage, "a") is State.QUEUED and seen.state is not State.QUEUED


def _expire(storage: Storage, seen: Snapshot) -> bool:
    """Let every TTL of the record run out."""
    storage.skew_ms += TTL + 1_000
    return ("expired", "a") in upkeep(storage, TTL)


COMMANDS: dict[Command, Callable[[Storage, Snapshot], bool]] = {
    Command.ENQUEUE: _enqueue,
    Command.CLAIM: _claim,
    Command.COMPLETE: _settles(Verb.COMPLETE),
    Command.RETRY: _settles(Verb.RETRY),
    Command.FAIL: _settles(Verb.FAIL),
    Command.RELEASE: _settles(Verb.RELEASE),
    Command.EXTEND: _extend,
    Command.CANCEL: _cancel,
    Command.RECOVER: _recover,
    Command.PROMOTE: _promote,
    Command.EXPIRE: _expire,
    Command.REVIVE: lambda storage, seen: storage.revive(QUEUE, ["a"]) == ["a"],
    Command.DISCARD: lambda storage, seen: storage.discard(QUEUE, ["a"]) == ["a"],
    Command.PURGE: lambda storage, seen: storage.purge(QUEUE) > 0,
    Command.DELETE: lambda storage, seen: storage.delete(QUEUE) > 0,
}

#: What the record alone decides, where the table leaves several states open.
EXACTLY: dict[tuple[str, Command], State] = {
    ("absent", Command.ENQUEUE): _S.QUEUED,
    ("failed", Command.ENQUEUE): _S.QUEUED,
    ("completed", Command.ENQUEUE): _S.COMPLETED,
    ("completed-without-result", Command.ENQUEUE): _S.COMPLETED,
    ("completed-past-its-window", Command.ENQUEUE): _S.QUEUED,
    ("completed", Command.EXPIRE): _S.ABSENT,
    ("processing", Command.RETRY): _S.QUEUED,
    ("processing-again", Command.RETRY): _S.QUEUED,
    ("processing-last-attempt", Command.RETRY): _S.FAILED,
    ("processing-cancelling", Command.RETRY): _S.ABSENT,
    ("processing-persistent", Command.RETRY): _S.QUEUED,
    ("processing-persistent", Command.RECOVER): _S.QUEUED,
    ("waiting", Command.PROMOTE): _S.QUEUED,
    ("processing", Command.FAIL): _S.FAILED,
    ("processing-cancelling", Command.FAIL): _S.ABSENT,
    ("processing", Command.RELEASE): _S.QUEUED,
    ("processing-last-attempt", Command.RELEASE): _S.QUEUED,
    ("processing-cancelling", Command.RELEASE): _S.ABSENT,
    ("processing", Command.RECOVER): _S.QUEUED,
    ("processing-in-batch", Command.RECOVER): _S.QUEUED,
    ("processing-last-attempt", Command.RECOVER): _S.FAILED,
    ("processing-cancelling", Command.RECOVER): _S.ABSENT,
}


class TableContract(ContractBase):
    """The table of transitions is followed, cell by cell."""

    def test_every_state_and_every_command_is_driven(self) -> None:
        assert {start.state for start in STARTS.values()} == set(State)
        assert set(COMMANDS) == set(Command)
        assert set(STORED) == LIVE | FINISHED

    @pytest.mark.parametrize("command", COMMANDS)
    @pytest.mark.parametrize("start", STARTS)
    def test_i01_a_command_does_what_the_table_says(self, storage: Storage, start: str, command: Command) -> None:
        state = STARTS[start].state
        upkeep(storage)
        STARTS[start].build(storage)
        seen = look(storage, "a")
        assert seen.state is state
        before = picture(storage, "a")
        accepted = COMMANDS[command](storage, seen)
        allowed = TRANSITIONS.get((state, command))
        after = look(storage, "a")
        if allowed is None:
            assert not accepted
            # How long ago a record went is no change of it: a tombstone may have lapsed.
            same = after._replace(cause=seen.cause) if state is State.ABSENT else after
            assert same == seen
            assert picture(storage, "a").counts == before.counts
            assert picture(storage, "a").listings == before.listings
            return
        if (state, command) != (State.COMPLETED, Command.ENQUEUE):
            assert accepted
        assert after.state in allowed
        assert after.state is EXACTLY.get((start, command), after.state)
        assert_placed(storage, {"a": after.state, "first": state_of(storage, "first")})
