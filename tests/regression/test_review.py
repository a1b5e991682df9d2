"""What a review of the first version found, each by a way in which it went wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from reliq import InvalidJobError, Queue, RedisStorage, StorageError
from reliq.lifecycle import State
from reliq.storage.base import NewRecord, Outcome, Storage, Verb, Worker
from reliq.storage.sql.storage import SqlStorage

ALICE = Worker("alice", "01", 1, 15_000)


@pytest.fixture
def redis_storage(redis_url: str, redis_prefix: str) -> Iterator[RedisStorage]:
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    yield storage
    storage.close()


def new(id: str, nonce: bytes | None = None, max_attempts: int = 3) -> NewRecord:
    return NewRecord(id, nonce or os.urandom(8), b"\x01\x00\x00null", max_attempts, 60_000, 60_000, 60_000)


def test_a_batch_claim_passes_over_the_marks_of_an_unfinished_sweep(redis_storage: RedisStorage) -> None:
    ids = [f"j{n}" for n in range(3_000)]
    redis_storage.enqueue("q", [new(id) for id in ids])
    cancelled = [id for n, id in enumerate(ids) if n % 3 != 2]
    # Long lists are swept 500 entries a step: after these cancels the cursor stands in the middle.
    for at in range(0, len(cancelled), 2):
        redis_storage.cancel("q", cancelled[at : at + 2])
    delivered: list[str] = []
    for serial in range(1, 200):
        claim = redis_storage.claim("q", ALICE, 64, serial=serial, lease_ms=60_000)
        delivered += [job.id for job in claim.jobs]
        if not claim.more:
            break
    assert delivered == [id for n, id in enumerate(ids) if n % 3 == 2]
    assert redis_storage.counts("q")[State.QUEUED] == 0


def test_a_repeated_enqueue_does_not_wait_for_its_successor(redis_storage: RedisStorage) -> None:
    redis_storage.enqueue("q", [new("a", b"first...")], "w1", 10_000)
    redis_storage.cancel("q", ["a"])
    redis_storage.enqueue("q", [new("a", b"second..")])
    [answer] = redis_storage.enqueue("q", [new("a", b"first...")], "w1", 10_000)
    assert (answer.status, answer.state) == ("queued", State.ABSENT)
    [job] = redis_storage.claim("q", ALICE, 1, serial=1, lease_ms=60_000).jobs
    redis_storage.settle("q", ALICE, [Outcome("a", job.nonce, job.token, Verb.COMPLETE, b"2")])
    ended = redis_storage.wait("q", "a", nonce=b"first...", waiter="w1", timeout=5)
    assert ended is not None
    assert (ended.state, ended.cause) == (State.ABSENT, "cancelled")


def test_a_dead_letter_retried_before_its_waiter_looked_is_waited_for(redis_storage: RedisStorage) -> None:
    redis_storage.enqueue("q", [new("a", b"nonce...")], "w1", 10_000)
    [job] = redis_storage.claim("q", ALICE, 1, serial=1, lease_ms=60_000).jobs
    redis_storage.settle("q", ALICE, [Outcome("a", job.nonce, job.token, Verb.FAIL, error=b"{}")])
    assert redis_storage.revive("q", ["a"]) == ["a"]
    assert redis_storage.wait("q", "a", nonce=b"nonce...", waiter="w1", timeout=0.3) is None
    assert redis_storage.read("q", ["a"])[0].state is State.QUEUED


def test_a_purge_is_carried_out_without_any_reaper(storage: Storage) -> None:
    for turn in range(20):
        storage.enqueue("q", [new(f"{turn}-{n}") for n in range(200)])
        storage.purge("q")
    if isinstance(storage, RedisStorage):
        records, _ = storage._client.link.execute("HLEN", f"{storage._tag('q')}:jobs")
    else:
        assert isinstance(storage, SqlStorage)
        [(records,)] = storage._database.ask("SELECT count(*) FROM job", {})
    assert records < 1_000


def test_a_dead_workers_jobs_keep_their_order_over_several_steps(storage: Storage) -> None:
    ids = [f"j{n:04}" for n in range(1_500)]
    storage.enqueue("q", [new(id) for id in ids])
    for serial in (1, 2):
        storage.claim("q", ALICE, 1_000, serial=serial, lease_ms=600_000)
    assert storage.leave("q", ALICE.key) == 1_500
    again: list[str] = []
    for serial in range(3, 3 + 1_500):
        again += [job.id for job in storage.claim("q", ALICE, 1_000, serial=serial, lease_ms=60_000).jobs]
    assert again == ids


def test_a_closed_storage_says_so(redis_url: str, redis_prefix: str) -> None:
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    storage.enqueue("q", [new("a")])
    storage.close()
    with pytest.raises(StorageError, match="closed"):
        storage.enqueue("q", [new("b")])


def test_closing_gives_jobs_held_by_hand_back_uncounted(storage: Storage) -> None:
    queue = Queue("q", storage, max_attempts=1)
    queue.enqueue("a")
    [job] = queue.claim()
    assert job.attempts == 1
    queue.close()
    status = queue.get_status("a")
    assert status is not None
    assert (status.state, status.attempts, status.errors) == ("queued", 0, ())


def test_an_unreadable_message_does_not_take_its_neighbours_along(storage: Storage) -> None:
    queue = Queue("q", storage)
    storage.enqueue("q", [new("bad")._replace(message=b"\tgarbage")])
    queue.enqueue("good", 1)
    jobs = queue.claim() + queue.claim()
    assert [job.id for job in jobs] == ["good"]
    assert [job.id for job in queue.dead_letters.list()] == ["bad"]
    queue.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:se/cret@host:6379/0", "redis://user:se?cret@host", "redis://user:se#cret@host",
        "redis:/user:secret@host", "user:secret@host:6379", "redis://host:99999", "redis://host/0?socket_timeout=1",
        "redis://host/0?decode_responses=true", "redis", "memory", "redis+sentinel://host:1", "redis+cluster://host:x",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidJobError) as refused:
        Queue("q", url).storage  # noqa: B018
    assert not {"se/", "se?", "se#", "secret", "cret"} & set(re.findall(r"se[/?#]|\w*cret", str(refused.value)))
