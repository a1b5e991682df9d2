"""A storage and its model, driven side by side by Hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reliq.lifecycle import STORED, State
from reliq.storage.base import Claimed, Held, Limits, NewRecord, Outcome, Storage, Verb, Worker

from .model import DEPENDENCY, STALLED, Model

QUEUE = "model"
WORKERS = (Worker("one", "01"), Worker("two", "02"), Worker("three", "03", runners=2, ttl_ms=45_000))
IDS = ("a", "b", "a:b", "*", "{model}", "e", "\u00e9", "e\u0301")
#: Time moves in whole steps; every duration ends half a step off, so that the real time which a run takes never
#: decides anything.
STEP = 10_000

ids = st.sampled_from(IDS)
workers = st.sampled_from(WORKERS)
durations = st.sampled_from([STEP // 2, STEP * 3 // 2, STEP * 5 // 2])
limits = st.sampled_from([1, 1, 2, 3, 10])
verbs = st.sampled_from([Verb.COMPLETE, Verb.RETRY, Verb.RETRY, Verb.FAIL, Verb.RELEASE])
SELDOM = ("purge", "delete", "limit", "limit", "pause", "revive", "revive", "discard", "claim", "claim", "update_ttl")
priorities = st.sampled_from([0, 0, 0, 3, 9])
delays = st.one_of(st.just(0), st.just(0), durations)


groups = st.sampled_from([None, None, None, None, "g", "g", "a:b", "*"])
links: st.SearchStrategy[list[str]] = st.one_of(
    st.just([]), st.just([]), st.lists(ids, min_size=1, max_size=3, unique=True)
)


class New(NamedTuple):
    """What is drawn of a job to enqueue."""

    id: str
    priority: int
    delay: int
    attempts: int
    result_ttl: int
    dedup_ttl: int
    dead_ttl: int
    group: str | None = None
    after: Sequence[str] = ()
    is_bold: bool = False
    is_persistent: bool = False

    def record(self, number: int, promising: Container[str], lost: Container[str] = ()) -> NewRecord:
        """The job; a persistent one has no group, predecessors or delay.

        Only a bold one waits for others than ``promising`` ones, and none for one in ``lost``.
        """
        after = tuple(id for id in self.after if id != self.id and id not in lost and (self.is_bold or id in promising))
        return NewRecord(
            self.id,
            number.to_bytes(8, "big"),
            b"\x00message %d" % number,
            self.attempts,
            self.result_ttl,
            self.dedup_ttl,
            self.dead_ttl,
            self.priority,
            0 if self.is_persistent else self.delay,
            group=None if self.is_persistent else self.group,
            after=() if self.is_persistent else after,
            is_persistent=self.is_persistent,
        )


news = st.builds(
    New, ids, priorities, delays, st.integers(1, 3), durations, durations, durations, groups, links,
    st.sampled_from([False] * 4 + [True]), st.sampled_from([False] * 9 + [True]),
)  # fmt: skip


def plain(worker: str, attempt: int, error: bytes) -> tuple[str, int, bytes]:
    """The error as the model knows it."""
    if b'"DependencyError"' in error:
        return DEPENDENCY
    return worker, attempt, STALLED if b'"StalledError"' in error else error


class StorageMachine(RuleBasedStateMachine):
    """Each rule does one thing to both and compares the answers; the invariants compare what is left."""

    #: Set by a subclass: a new, empty storage for each run.
    make: Callable[[], Storage]

    def __init__(self) -> None:
        super().__init__()
        self.storage = type(self).make()
        self.model = Model()
        self.numbers = itertools.count(1)
        self.serials = itertools.count(1)
        self.records: list[NewRecord] = []
        self.runs: list[tuple[Worker, Claimed]] = []
        self.outcomes: list[tuple[Worker, list[Outcome]]] = []
        self.group_concurrency = 1
        #: Whether the queue was deleted: for how long ends before that are known is open.
        self.was_deleted = False

    def teardown(self) -> None:
        self.storage.close()

    @initialize(group_concurrency=st.sampled_from([1, 1, 2]))
    def begin(self, group_concurrency: int) -> None:
        """The queue exists and its reaper works before anything that could be pardoned for its absence."""
        self.group_concurrency = group_concurrency
        self._limit(None)
        self.enqueue([New("a", 0, 0, 1, STEP // 2, STEP // 2, STEP // 2)])
        self.cancel(["a"], False)
        self.reap()

    def _limit(self, max_concurrency: int | None) -> None:
        limits = Limits(max_concurrency=max_concurrency, group_concurrency=self.group_concurrency)
        assert self.storage.set_limits(QUEUE, limits) == limits
        self.model.max_concurrency, self.model.group_concurrency = max_concurrency, self.group_concurrency

    # -- rules ------------------------------------------------------------------------

    @rule(new=st.lists(news, min_size=1, max_size=5))
    def enqueue(self, new: Sequence[New]) -> None:
        promising = {id for id, job in self.model.jobs.items() if job.state is not State.FAILED}
        # For how long a record stays whose result was gone before it was pinned is open.
        lost = {id for id in self.model.in_state(State.COMPLETED) if self.model.jobs[id].result is None}
        records: list[NewRecord] = []
        for n, job in enumerate(new):
            # Nor is it said what one waits for whose id a later job of the call takes: a queue sends that one first.
            open_ids = lost | {later.id for later in new[n + 1 :]}
            records.append(job.record(next(self.numbers), promising, open_ids))
            promising.add(job.id)
        self._enqueue(records)

    @precondition(lambda self: len(self.model.jobs) < len(IDS) - 2)
    @rule(group=groups, is_chain=st.booleans(), ttl=durations, start=st.integers(0, len(IDS)))
    def line_up(self, group: str | None, is_chain: bool, ttl: int, start: int) -> None:
        """Three new jobs of a group, of a chain or of both."""
        free = [id for id in (*IDS[start:], *IDS[:start]) if id not in self.model.jobs][:3]
        befores: list[list[str]] = [[], free[:1], free[:2]] if is_chain else [[], [], []]
        jobs = [
            New(id, 0, 0, 2, ttl, ttl, ttl, group, before).record(next(self.numbers), free)
            for id, before in zip(free, befores, strict=True)
        ]
        self._enqueue(jobs)

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def enqueue_again(self, data: st.DataObject) -> None:
        """Repetitions of earlier calls, whatever became of their jobs.

        Not of calls that are forgotten: such a nonce would stand for a second life with the tokens of the first.
        """
        chosen = data.draw(st.lists(st.sampled_from(self.records[-12:]), min_size=1, max_size=3))
        self._enqueue([new for new in chosen if self.model.knows(new)])

    def _enqueue(self, records: list[NewRecord]) -> None:
        answers = self.storage.enqueue(QUEUE, records)
        expected = self.model.enqueue(records)
        assert [(answer.status, answer.result) for answer in answers] == expected
        self.records.extend(records)

    @precondition(lambda self: self.model.in_state(State.QUEUED))
    @rule(worker=workers, limit=limits, lease=durations)
    def claim(self, worker: Worker, limit: int, lease: int) -> None:
        self._claim(worker, limit, lease)

    @precondition(lambda self: self.model.in_state(State.QUEUED))
    @rule(worker=workers, lease=durations)
    def claim_all(self, worker: Worker, lease: int) -> None:
        """As often as it takes: their order is checked."""
        while self._claim(worker, 10, lease):
            pass

    @precondition(lambda self: self.model.in_state(State.QUEUED))
    @rule(worker=workers, data=st.data(), steps=st.integers(1, 6))
    def work(self, worker: Worker, data: st.DataObject, steps: int) -> None:
        """Claim and complete a few, so that what waits for them gets its turn."""
        for _ in range(steps):
            if not self._claim(worker, 1, STEP * 5 // 2):
                break
            self._settle_runs(data, self.runs[-1:], Verb.COMPLETE)

    def _claim(self, worker: Worker, limit: int, lease: int) -> int:
        serial = next(self.serials)
        given = self.storage.claim(QUEUE, worker, limit, serial=serial, lease_ms=lease)
        self.model.claim(worker, limit, serial, lease, given)
        self.runs.extend((worker, job) for job in given.jobs)
        return len(given.jobs)

    @precondition(lambda self: self.model.in_state(State.PROCESSING))
    @rule(data=st.data(), verb=verbs, is_same=st.booleans())
    def settle(self, data: st.DataObject, verb: Verb, is_same: bool) -> None:
        """Jobs that are held, in any order, with one verb or with several."""
        held = [run for run in self.runs if self._is_held(run)]
        chosen = data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=4, unique_by=lambda run: run[1].id))
        self._settle_runs(data, chosen, verb if is_same else None)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), size=st.integers(1, 4))
    def settle_late(self, data: st.DataObject, size: int) -> None:
        """Jobs that are or were held, also twice in one batch."""
        chosen = data.draw(st.lists(st.sampled_from(self.runs[-10:]), min_size=1, max_size=size))
        self._settle_runs(data, chosen, None)

    @precondition(lambda self: self.outcomes)
    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        self._settle(*data.draw(st.sampled_from(self.outcomes[-8:])))

    def _settle_runs(self, data: st.DataObject, chosen: list[tuple[Worker, Claimed]], verb: Verb | None) -> None:
        worker = chosen[0][0]  # who settles only what was its own
        self._settle(worker, [self._outcome(data, job, verb) for owner, job in chosen if owner == worker])

    def _is_held(self, run: tuple[Worker, Claimed]) -> bool:
        job = self.model.jobs.get(run[1].id)
        held = job is not None and job.lease is not None
        return held and job is not None and (job.new.nonce, job.token) == (run[1].nonce, run[1].token)

    def _outcome(self, data: st.DataObject, job: Claimed, verb: Verb | None) -> Outcome:
        number = next(self.numbers)
        return Outcome(
            job.id,
            job.nonce,
            job.token,
            data.draw(verbs) if verb is None else verb,
            b"result %d" % number,
            b"error %d" % number,
            data.draw(delays),
            data.draw(st.one_of(st.none(), durations)),
        )

    def _settle(self, worker: Worker, outcomes: list[Outcome]) -> None:
        answers = self.storage.settle(QUEUE, worker, outcomes)
        assert [(answer.id, answer.state) for answer in answers] == list(
            zip([item.id for item in outcomes], self.model.settle(worker, outcomes), strict=True)
        )
        self.outcomes.append((worker, outcomes))

    @precondition(lambda self: self.runs)
    @rule(worker=workers, data=st.data(), lease=durations, back=st.integers(0, 5))
    def extend(self, worker: Worker, data: st.DataObject, lease: int, back: int) -> None:
        known = [job for _, job in self.runs[-8:]]
        jobs = data.draw(st.lists(st.sampled_from(known), max_size=6, unique_by=lambda job: job.id))
        last = next(self.serials)
        below, in_flight = last - back, [last - back - 1, last - back - 3]
        held = [Held(job.id, job.nonce, job.token) for job in jobs]
        answer = self.storage.extend(QUEUE, worker, held, below=below, in_flight=in_flight, lease_ms=lease)
        expected = self.model.extend(worker, [(h.id, h.nonce, h.token) for h in held], below, in_flight, lease)
        found = (answer.lost, answer.cancelled, answer.orphans)
        assert tuple({lease.id for lease in part} for part in found) == expected
        assert set(answer.lost) | set(answer.cancelled) <= set(held)
        for orphan in answer.orphans:
            job = self.model.jobs[orphan.id]
            assert (orphan.nonce, orphan.token) == (job.new.nonce, job.token)

    @precondition(lambda self: self.model.jobs)
    @rule(chosen=st.lists(ids, min_size=1, max_size=3), running=st.booleans())
    def cancel(self, chosen: list[str], running: bool) -> None:
        batches = [chosen]
        if any(id in chosen for id in self.model.in_state(State.WAITING)):
            batches = [[id] for id in chosen]  # whether one that fails for another is cancelled before is open
        for batch in batches:
            assert self.storage.cancel(QUEUE, batch, running=running) == self.model.cancel(batch, running=running)

    @precondition(lambda self: self.model.in_state(State.PROCESSING))
    @rule(worker=workers)
    def leave(self, worker: Worker) -> None:
        assert self.storage.leave(QUEUE, worker.key) == self.model.leave(worker.key)

    @precondition(lambda self: self.model.jobs or self.model.workers)
    @rule(steps=st.sampled_from([1, 1, 1, 2, 7]))
    def pass_time(self, steps: int) -> None:
        self._pass_time(steps)

    def _pass_time(self, steps: int) -> None:
        for _ in range(steps):
            self.storage.skew_ms += STEP
            self.model.now += STEP
            self.reap()

    def reap(self) -> None:
        for _ in range(100):
            if not self.storage.reap(QUEUE, interval_ms=STEP).more:
                break
        else:
            raise AssertionError("a reap without end")
        self.model.reap()

    @precondition(lambda self: self.model.in_state(State.COMPLETED) or self.model.in_state(State.FAILED))
    @rule(data=st.data(), ttl=durations)
    def update_ttl(self, data: st.DataObject, ttl: int) -> None:
        finished = [*self.model.in_state(State.COMPLETED), *self.model.in_state(State.FAILED)]
        id = data.draw(st.sampled_from(finished))
        self._update_ttl(id, ttl)

    def _update_ttl(self, id: str, ttl: int) -> None:
        job = self.model.jobs.get(id)
        if job is None or not job.pins or job.state is not State.COMPLETED:  # what it means for a pinned one is open
            assert self.storage.update_ttl(QUEUE, id, ttl) == self.model.update_ttl(id, ttl)

    @precondition(lambda self: self.model.in_state(State.FAILED))
    @rule(data=st.data(), verb=st.sampled_from(["revive", "revive", "revive all", "discard"]))
    def dead_letters(self, data: st.DataObject, verb: str) -> None:
        dead = self.model.in_state(State.FAILED)
        chosen = data.draw(st.lists(st.sampled_from(dead), min_size=1, max_size=3, unique=True))
        if verb == "discard":
            assert self.storage.discard(QUEUE, chosen) == self.model.discard(chosen)
        elif verb == "revive":
            assert self.storage.revive(QUEUE, chosen) == self.model.revive(chosen)
        else:  # their order is that of their ends, which may be equal: it is taken from the answer
            revived = self.storage.revive(QUEUE, None)
            assert sorted(revived) == sorted(dead)
            self.model.revive(revived)

    @rule(chosen=st.lists(ids, min_size=1, max_size=4, unique=True), verb=st.sampled_from(SELDOM), ttl=durations)
    def seldom(self, chosen: list[str], verb: str, ttl: int) -> None:
        """What ends a run's variety, or mostly meets jobs that it does not concern."""
        if verb == "purge":
            assert self.storage.purge(QUEUE) == self.model.purge()
            # Enqueues and cancels carry a purge out as well as reaps do, so from when its traces count would be
            # open; the contract looks at the time in between.
            self._pass_time(1)
        elif verb == "delete":
            self.was_deleted = True
            assert self.storage.delete(QUEUE) == self.model.delete()
            self.records.clear()  # and what is still known of its jobs
            self.runs.clear()
            self.outcomes.clear()
            self._limit(None)
            self.reap()
        elif verb == "limit":
            self._limit(len(chosen) if self.model.max_concurrency is None else None)
        elif verb == "pause":
            self.model.is_paused = not self.model.is_paused
            self.storage.pause(QUEUE, self.model.is_paused)
        elif verb == "revive":
            assert self.storage.revive(QUEUE, chosen) == self.model.revive(chosen)
        elif verb == "discard":
            assert self.storage.discard(QUEUE, chosen) == self.model.discard(chosen)
        elif verb == "claim":
            self._claim(WORKERS[0], 2, ttl)
        else:
            self._update_ttl(chosen[0], ttl)

    @precondition(lambda self: self.model.is_paused)
    @rule()
    def resume(self) -> None:
        self.storage.pause(QUEUE, False)
        self.model.is_paused = False

    # -- invariants -------------------------------------------------------------------

    @invariant()
    def records_agree(self) -> None:
        for snapshot in self.storage.read(QUEUE, IDS):
            job = self.model.jobs.get(snapshot.id)
            if job is None:
                assert snapshot.state is State.ABSENT, f"{snapshot.id} should be gone"
                cause = self.model.cause(snapshot.id)
                assert snapshot.cause == cause or (cause == "unknown" and self.was_deleted), snapshot.id
                continue
            seen: tuple[Any, ...] = (
                snapshot.state, snapshot.nonce, snapshot.attempts, snapshot.token, snapshot.cancel_requested,
                snapshot.is_exhausted, snapshot.result, snapshot.message, snapshot.worker,
                tuple(plain(worker, attempt, error) for _, worker, attempt, error in snapshot.errors),
                snapshot.group, snapshot.is_persistent,
            )  # fmt: skip
            expected = (
                job.state, job.new.nonce, job.attempts, job.token, job.cancel_requested,
                job.is_exhausted, job.result, job.new.message, job.lease.worker if job.lease else None,
                tuple(job.errors), job.group, job.new.is_persistent,
            )  # fmt: skip
            assert seen == expected, snapshot.id
            assert job.state is State.WAITING or (snapshot.due_at_ms is not None) is (job.due is not None)
            assert (snapshot.sequence is not None) is (job.group is not None)
            if job.state is State.COMPLETED:
                assert (snapshot.expires_at_ms is None) is bool(job.pins), f"{snapshot.id} is pinned, or not"

    @invariant()
    def counts_agree(self) -> None:
        counts = self.storage.counts(QUEUE)
        assert {state: number for state, number in counts.items() if number} == self.model.counts()
        assert self.storage.backlog(QUEUE) == self.model.backlog()

    @invariant()
    def listings_agree(self) -> None:
        for state in STORED:
            found: list[str] = []
            cursor: str | None = None
            while True:
                page, cursor = self.storage.list_ids(QUEUE, state, cursor, 3)
                found.extend(page)
                if cursor is None:
                    break
            assert sorted(found) == sorted(self.model.in_state(state)), state

    @invariant()
    def workers_agree(self) -> None:
        found = {info.key: (info.runners, info.processing) for info in self.storage.workers(QUEUE)}
        held = [job.lease.worker for job in self.model.jobs.values() if job.lease is not None]
        expected = {key: (member.runners, held.count(key)) for key, member in self.model.workers.items()}
        assert found == expected

    @invariant()
    def pause_agrees(self) -> None:
        assert self.storage.is_paused(QUEUE) is self.model.is_paused
