"""I14-I20 and I44: who gets which job, and in which order."""

from __future__ import annotations

from collections import Counter
from functools import partial

from ...lifecycle import State
from ...storage.base import MAX_CLAIM_BYTES, Claimed, Storage, Verb, Worker
from .base import ContractBase
from .steps import (
    ALICE,
    BOB,
    INTERVAL,
    LEASE,
    QUEUE,
    WORKER_TTL,
    assert_placed,
    cancel,
    counted,
    drain,
    extend,
    held,
    jump,
    listed,
    look,
    outcome,
    pass_time,
    picture,
    put,
    put_and_take,
    record,
    settle,
    settle_all,
    state_of,
    take,
    take_one,
    together,
    upkeep,
)

CAROL = Worker("carol", "0c", runners=4)


class ClaimContract(ContractBase):
    """One job, one holder."""

    def test_i14_a_claim_takes_the_job_counts_the_attempt_and_leases_in_one_step(self, storage: Storage) -> None:
        original = record("a", message=b"payload", priority=1)
        storage.enqueue(QUEUE, [original])
        created = look(storage, "a").created_at_ms
        claim = storage.claim(QUEUE, ALICE, 1, serial=1, lease_ms=LEASE)
        assert claim.jobs == [Claimed("a", original.nonce, 1, 1, 3, created, 1, False, b"payload")]
        assert not claim.more
        snapshot = look(storage, "a")
        assert (snapshot.state, snapshot.attempts, snapshot.token, snapshot.worker) == (
            State.PROCESSING,
            1,
            1,
            ALICE.key,
        )
        assert_placed(storage, {"a": State.PROCESSING})
        [worker] = storage.workers(QUEUE)
        assert (worker.key, worker.processing) == (ALICE.key, 1)

    def test_i14_of_concurrent_claims_one_gets_each_job(self, storage: Storage, peer: Storage) -> None:
        ids = [f"job-{n}" for n in range(120)]
        put(storage, *ids)

        def work(own: Storage, worker: Worker) -> list[tuple[str, int]]:
            taken: list[tuple[str, int]] = []
            while jobs := take(own, worker, 7):
                taken.extend((job.id, job.token) for job in jobs)
            return taken

        workers = [Worker(f"w{n}", "00") for n in range(6)]
        answers = together([partial(work, (storage, peer)[n % 2], worker) for n, worker in enumerate(workers)])
        taken = Counter(pair for answer in answers for pair in answer)
        assert taken == Counter((id, 1) for id in ids)
        assert counted(storage) == {State.PROCESSING: 120}

    def test_i15_a_leased_job_is_not_delivered_again_while_its_lease_is_extended(self, storage: Storage) -> None:
        upkeep(storage)
        job = put_and_take(storage, "a")
        assert pass_time(storage, 3 * LEASE, alive=[(ALICE, [job])]) == []
        assert take(storage, BOB) == []
        assert settle(storage, job) is State.COMPLETED

    def test_i16_tokens_rise_with_every_claim_and_are_never_used_again(self, storage: Storage) -> None:
        put(storage, "a", max_attempts=9)
        upkeep(storage)
        tokens = []
        for verb in (Verb.RELEASE, Verb.RETRY, Verb.RELEASE, Verb.FAIL):
            job = take_one(storage)
            tokens.append(job.token)
            settle(storage, job, verb, error=b"x")
        storage.revive(QUEUE, ["a"])
        assert look(storage, "a").token == 4
        tokens.append(take_one(storage).token)
        storage.leave(QUEUE, ALICE.key)
        tokens.append(take_one(storage).token)
        assert tokens == [1, 2, 3, 4, 5, 6]

    def test_i17_attempts_count_executions_and_end_at_their_maximum(self, storage: Storage) -> None:
        put(storage, "a", max_attempts=3)
        attempts = []
        for _ in range(3):
            job = take_one(storage)
            attempts.append(job.attempts)
            settle(storage, job, Verb.RELEASE)
            job = take_one(storage)
            attempts.append(job.attempts)
            settle(storage, job, Verb.RETRY, error=b"x")
        assert attempts == [1, 1, 2, 2, 3, 3]
        assert (state_of(storage, "a"), look(storage, "a").attempts) == (State.FAILED, 3)

    def test_i17_recovering_a_batch_does_not_count_and_makes_its_jobs_solo(self, storage: Storage) -> None:
        put(storage, "a", "b", "c", max_attempts=1)
        assert len(take(storage, limit=3)) == 3
        assert storage.leave(QUEUE, ALICE.key) == 3
        assert [look(storage, id).attempts for id in "abc"] == [0, 0, 0]
        assert_placed(storage, dict.fromkeys("abc", State.QUEUED))
        for id in "abc":
            claim = storage.claim(QUEUE, BOB, 10, serial=ord(id), lease_ms=LEASE)
            assert [(job.id, job.attempts, job.token) for job in claim.jobs] == [(id, 1, 2)]
            assert claim.more is (id != "c")

    def test_i17_recovering_a_solo_lease_counts(self, storage: Storage) -> None:
        put(storage, "poison", "bystander", max_attempts=2)
        take(storage, limit=2)
        storage.leave(QUEUE, ALICE.key)
        for attempt in (1, 2):
            assert take_one(storage).attempts == attempt
            storage.leave(QUEUE, ALICE.key)
        snapshot = look(storage, "poison")
        assert (snapshot.state, snapshot.attempts, snapshot.is_exhausted) == (State.FAILED, 2, True)
        snapshot = look(storage, "bystander")
        assert (snapshot.state, snapshot.attempts) == (State.QUEUED, 0)

    def test_i17_recovering_a_job_that_was_claimed_alone_counts(self, storage: Storage) -> None:
        put_and_take(storage, "a", max_attempts=2)
        storage.leave(QUEUE, ALICE.key)
        assert (state_of(storage, "a"), look(storage, "a").attempts) == (State.QUEUED, 1)
        take_one(storage)
        storage.leave(QUEUE, ALICE.key)
        assert (state_of(storage, "a"), look(storage, "a").is_exhausted) == (State.FAILED, True)

    def test_i17_a_solo_job_is_claimed_alone_wherever_it_stands(self, storage: Storage) -> None:
        put(storage, "solo", "other")
        jobs = take(storage, limit=2)
        settle(storage, jobs[1])
        storage.leave(QUEUE, ALICE.key)  # "solo" was part of a batch
        settle(storage, take_one(storage), Verb.RETRY, error=b"x")
        put(storage, "x", "y")
        settle(storage, take_one(storage), Verb.RETRY, error=b"x")  # now x, y, solo
        put(storage, "z")
        order: list[list[str]] = []
        while jobs := take(storage, limit=10):
            order.append([job.id for job in jobs])
        assert [id for ids in order for id in ids] == ["x", "y", "solo", "z"]
        assert ["solo"] in order

    def test_i18_a_claim_whose_answer_was_lost_is_found_by_the_heartbeat(self, storage: Storage) -> None:
        put(storage, "a", "b", "c")
        storage.claim(QUEUE, ALICE, 1, serial=1_000_001, lease_ms=LEASE)  # nobody read the answer
        [kept] = storage.claim(QUEUE, ALICE, 1, serial=1_000_002, lease_ms=LEASE).jobs
        [late] = storage.claim(QUEUE, ALICE, 1, serial=1_000_003, lease_ms=LEASE).jobs
        before = picture(storage, "a", "b", "c")
        answer = extend(storage, ALICE, [kept], below=1_000_003)
        assert (answer.lost, answer.cancelled) == ([], [])
        assert [(lease.id, lease.token) for lease in answer.orphans] == [("a", 1)]
        assert picture(storage, "a", "b", "c").counts == before.counts
        orphan = answer.orphans[0]
        assert extend(storage, ALICE, [kept], below=1_000_004, in_flight=[1_000_001, 1_000_003]).orphans == []
        assert extend(storage, ALICE, [kept, late], below=1_000_004, in_flight=[1_000_001]).orphans == []
        assert extend(storage, ALICE, [kept], below=1_000_004, in_flight=[1_000_003]).orphans == [orphan]
        assert {lease.id for lease in extend(storage, ALICE, [], below=1_000_004).orphans} == {"a", "b", "c"}
        assert extend(storage, BOB, [], below=9_000_000).orphans == []
        lost = Claimed(orphan.id, orphan.nonce, orphan.token, 1, 3, 0, 0, False, b"")
        assert settle(storage, lost, Verb.RELEASE) is State.QUEUED
        assert (look(storage, "a").attempts, take_one(storage, BOB).id) == (0, "a")

    def test_i19_a_cancelled_incarnation_is_never_delivered(self, storage: Storage) -> None:
        for number in range(5):
            put(storage, "a", message=b"%d" % number)
            assert cancel(storage, "a") == "cancelled"
        put(storage, "b")
        put(storage, "a", message=b"last")
        jobs = take(storage, limit=10)
        assert [(job.id, job.message) for job in jobs] == [("b", b"payload"), ("a", b"last")]
        assert take(storage) == []

    def test_i19_a_purged_incarnation_is_never_delivered(self, storage: Storage) -> None:
        put(storage, "a", "b", message=b"old")
        put(storage, "later", delay_ms=1_000)
        storage.purge(QUEUE)
        put(storage, "b", message=b"new")
        jump(storage, 5_000)
        assert [(job.id, job.message) for job in take(storage, limit=10)] == [("b", b"new")]
        assert take(storage) == []

    def test_i02_a_job_enqueued_again_has_one_position(self, storage: Storage) -> None:
        for _ in range(3):
            put(storage, "a")
            put(storage, "d", delay_ms=1_000)
            cancel(storage, "a")
            cancel(storage, "d")
        put(storage, "a", "d")
        jump(storage, 5_000)
        assert drain(storage) == ["a", "d"]

    def test_i20_first_in_first_out(self, storage: Storage) -> None:
        ids = [f"{n * 7919 % 1000:03}" for n in range(60)]
        put(storage, *ids[:30])
        for id in ids[30:]:
            put(storage, id)
        order: list[str] = []
        while jobs := take(storage, limit=9):
            order.extend(job.id for job in jobs)
        assert order == ids

    def test_i20_released_jobs_go_to_the_front_in_their_order(self, storage: Storage) -> None:
        put(storage, "d", "b", "c", "a", "e")
        jobs = take(storage, limit=3)
        settle_all(storage, [outcome(job, Verb.RELEASE) for job in jobs])
        assert drain(storage) == ["d", "b", "c", "a", "e"]

    def test_i20_recovered_jobs_go_to_the_front_in_their_order(self, storage: Storage) -> None:
        upkeep(storage)
        put(storage, "d", "b", "c", "a", "e")
        take(storage, limit=3)
        changes = pass_time(storage, WORKER_TTL + 2 * INTERVAL)
        assert sorted(changes) == [("stalled", "b"), ("stalled", "c"), ("stalled", "d")]
        assert drain(storage, BOB) == ["d", "b", "c", "a", "e"]

    def test_i20_retried_jobs_go_to_the_back(self, storage: Storage) -> None:
        put(storage, "a", "b", "c")
        settle(storage, take_one(storage), Verb.RETRY, error=b"x")
        assert drain(storage) == ["b", "c", "a"]

    def test_i20_promoted_and_revived_jobs_go_to_the_back(self, storage: Storage) -> None:
        settle(storage, put_and_take(storage, "dead"), Verb.FAIL, error=b"x")
        put(storage, "later", delay_ms=4_000)
        put(storage, "soon", delay_ms=2_000)
        put(storage, "a")
        jump(storage, 5_000)
        put(storage, "b")
        storage.revive(QUEUE, ["dead"])
        assert drain(storage) == ["a", "soon", "later", "b", "dead"]

    def test_i44_a_higher_priority_is_claimed_first(self, storage: Storage) -> None:
        for number, priority in enumerate([0, 5, 9, 1, 5, 0, 9]):
            put(storage, f"{priority}-{number}", priority=priority)
        jobs = take(storage, limit=3)
        assert [job.id for job in jobs] == ["9-2", "9-6", "5-1"]
        assert [job.priority for job in jobs] == [9, 9, 5]
        assert drain(storage) == ["5-4", "1-3", "0-0", "0-5"]

    def test_i44_front_and_back_are_those_of_the_priority(self, storage: Storage) -> None:
        for id in ("low-1", "low-2"):
            put(storage, id)
        for id in ("high-1", "high-2", "high-3"):
            put(storage, id, priority=4)
        first, second = take_one(storage), take_one(storage)
        settle(storage, first, Verb.RETRY, error=b"x")
        settle(storage, second, Verb.RELEASE)
        assert drain(storage) == ["high-2", "high-3", "high-1", "low-1", "low-2"]

    def test_a_claim_takes_a_fair_share(self, storage: Storage) -> None:
        take(storage, ALICE)
        take(storage, CAROL)  # five runners in all
        put(storage, *(f"job-{n:02}" for n in range(12)))
        assert len(take(storage, ALICE, 100)) == 2
        assert len(take(storage, CAROL, 100)) == 2
        assert len(take(storage, CAROL, 100)) == 1
        assert len(take(storage, CAROL, 100)) == 1

    def test_a_worker_that_left_has_no_share(self, storage: Storage) -> None:
        take(storage, CAROL)
        storage.leave(QUEUE, CAROL.key)
        put(storage, *(f"job-{n}" for n in range(10)))
        assert len(take(storage, ALICE, 100)) == 10

    def test_a_claim_never_takes_more_than_its_limit(self, storage: Storage) -> None:
        put(storage, *(f"job-{n}" for n in range(10)))
        claim = storage.claim(QUEUE, ALICE, 4, serial=1, lease_ms=LEASE)
        assert [job.id for job in claim.jobs] == ["job-0", "job-1", "job-2", "job-3"]
        assert claim.more
        claim = storage.claim(QUEUE, ALICE, 6, serial=2, lease_ms=LEASE)
        assert (len(claim.jobs), claim.more) == (6, False)

    def test_a_claim_stops_at_its_bytes(self, storage: Storage) -> None:
        put(storage, *(f"job-{n}" for n in range(5)), message=b"x" * (MAX_CLAIM_BYTES * 2 // 5))
        claim = storage.claim(QUEUE, ALICE, 5, serial=1, lease_ms=LEASE)
        assert len(claim.jobs) in (2, 3)
        assert claim.more
        assert len(drain(storage)) == 5 - len(claim.jobs)

    def test_a_claim_takes_a_job_beyond_its_bytes_alone(self, storage: Storage) -> None:
        large = bytes(range(256)) * (MAX_CLAIM_BYTES // 256) + b"and more"
        put(storage, "large", "next", message=large)
        [job] = take(storage, limit=2)
        assert (job.id, job.message == large) == ("large", True)
        assert take_one(storage).id == "next"

    def test_a_claim_of_an_empty_queue_registers_the_worker(self, storage: Storage) -> None:
        claim = storage.claim(QUEUE, CAROL, 3, serial=1, lease_ms=LEASE)
        assert (claim.jobs, claim.more) == ([], False)
        [worker] = storage.workers(QUEUE)
        assert (worker.key, worker.queue, worker.runners, worker.processing) == (CAROL.key, QUEUE, 4, 0)

    def test_a_claim_tells_whether_somebody_waits(self, storage: Storage) -> None:
        storage.enqueue(QUEUE, [record("a")], waiter="w1", wait_ms=60_000)
        put(storage, "b")
        assert [(job.id, job.has_waiter) for job in take(storage, limit=2)] == [("a", True), ("b", False)]

    def test_a_paused_queue_hands_out_nothing(self, storage: Storage, peer: Storage) -> None:
        put(storage, "a")
        assert not storage.is_paused(QUEUE)
        storage.pause(QUEUE, True)
        storage.pause(QUEUE, True)
        assert peer.is_paused(QUEUE)
        claim = peer.claim(QUEUE, ALICE, 1, serial=1, lease_ms=LEASE)
        assert (claim.jobs, claim.more) == ([], False)
        put(peer, "b")
        assert cancel(storage, "a") == "cancelled"
        peer.pause(QUEUE, False)
        assert not storage.is_paused(QUEUE)
        assert drain(storage) == ["b"]

    def test_i04_a_processing_job_has_exactly_one_lease(self, storage: Storage) -> None:
        put(storage, "a", "b", "c")
        take(storage, ALICE, 2)
        job = take_one(storage, BOB)
        assert {w.key: w.processing for w in storage.workers(QUEUE)} == {ALICE.key: 2, BOB.key: 1}
        assert extend(storage, BOB, [job]).lost == []
        assert extend(storage, ALICE, [job]).lost == [held(job)]
        assert sorted(listed(storage, State.PROCESSING)) == ["a", "b", "c"]
