"""The specification as plain dictionaries: what each call must answer and leave behind.

No threads, no bytes on disk, no clock of its own: ``now`` is moved by whoever drives it. Where the specification
leaves an order open (among jobs that one call releases or recovers) positions are equal and any order is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reliq.lifecycle import LIVE, STORED, State
from reliq.storage.base import HISTORY, STEADY_MS, TOMBSTONE_MS, Claim, NewRecord, Outcome, Verb, Worker

#: What a recovery that counts puts into the history; how a storage words it is its own affair.
STALLED = b"stalled"
#: What the failure of a predecessor puts there, instead of worker and attempt too.
DEPENDENCY = ("", 0, b"dependency")
#: The end of what is pinned.
NEVER = 1 << 62


@dataclass
class Lease:
    """Who holds a job, since which claim, until when."""

    worker: str
    serial: int
    deadline: int
    is_batch: bool
    since: int


@dataclass(eq=False)
class Job:
    """One incarnation."""

    new: NewRecord
    state: State
    attempts: int = 0
    token: int = 0
    position: int | None = None
    due: int | None = None
    lease: Lease | None = None
    is_solo: bool = False
    is_exhausted: bool = False
    cancel_requested: bool = False
    result: bytes | None = None
    result_end: int = 0
    dedup_end: int = 0
    record_end: int = 0
    ended: int = 0
    errors: list[tuple[str, int, bytes]] = field(default_factory=list)
    settled: tuple[int, State] | None = None
    result_ttl: int = 0
    #: The incarnations that it waits or waited for, those of them that have not completed, and the unfinished
    #: jobs that wait or waited for it.
    bound: list[Job] = field(default_factory=list)
    pending: list[Job] = field(default_factory=list)
    pins: list[Job] = field(default_factory=list)

    @property
    def group(self) -> str | None:
        """The group of its line."""
        return self.new.group


@dataclass
class Tombstone:
    """What stays of a record for a minute."""

    cause: str
    lapses: int
    settled: tuple[int, State] | None


@dataclass
class Member:
    """A registered worker."""

    runners: int
    deadline: int


class Model:
    """One queue."""

    def __init__(self, now: int = 0) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.tombstones: dict[tuple[str, bytes], Tombstone] = {}
        self.last_tombstone: dict[str, bytes] = {}
        #: Purged records that no reap has swept: their tombstones begin to count when one does.
        self.unswept: dict[str, Tombstone] = {}
        self.workers: dict[str, Member] = {}
        self.is_paused = False
        self.group_concurrency = 1
        self.max_concurrency: int | None = None
        #: All unfinished jobs of each group, in the order of acceptance.
        self.lines: dict[str, list[Job]] = {}
        self._front = 0
        self._back = 0
        #: What the present call puts at the back, in ranks; a job that the end of another one lets go may stand
        #: anywhere among them.
        self._placing: list[tuple[int, Job]] = []
        self._has_let_go = False

    # -- helpers ----------------------------------------------------------------------

    def _to_back(self, job: Job, rank: int | None = None) -> None:
        job.state, job.position, job.due = State.QUEUED, None, None
        self._placing.append((len(self._placing) if rank is None else rank, job))

    def _place(self) -> None:
        """At the end of each call: everybody who is not blocked gets a position."""
        ranks = sorted({rank for rank, _ in self._placing})
        for rank, job in self._placing:
            if job.state is State.QUEUED and job.position is None and self.is_head(job):
                job.position = self._back + 1 + (0 if self._has_let_go else ranks.index(rank))
        self._back += 1 + len(ranks)
        self._placing.clear()
        self._has_let_go = False

    def _to_front(self, jobs: Sequence[Job]) -> None:
        self._front -= 1
        for job in jobs:
            job.state, job.position, job.due = State.QUEUED, self._front, None

    def is_head(self, job: Job) -> bool:
        """Whether nobody of its group keeps the job from being claimed."""
        return job.group is None or job in self.lines[job.group][: self.group_concurrency]

    def _end(self, job: Job) -> None:
        """What the end of a job, which was unfinished until now, means for others."""
        if job.group is not None:
            line = self.lines[job.group]
            line.remove(job)
            for other in line[: self.group_concurrency]:
                if other.state is State.QUEUED and other.position is None:
                    self._let_go(other)
        job.position, job.due = None, None
        for before in job.bound:
            if job in before.pins:
                before.pins.remove(job)
                if before.state is State.COMPLETED and not before.pins:
                    self._begin_ttl(before)
        waiting = [other for other in self.jobs.values() if job in other.pending]
        for other in waiting:
            if job not in other.pending:
                continue  # one of those before has failed it already
            other.pending.remove(job)
            if job.state is not State.COMPLETED:
                self._fail_dependent(other)
            elif not other.pending:
                if other.due is not None and other.due > self.now:
                    other.state = State.SCHEDULED
                else:
                    other.state, other.due = State.QUEUED, None
                    self._let_go(other)

    def _let_go(self, job: Job) -> None:
        self._has_let_go = True
        self._placing.append((0, job))

    def _fail_dependent(self, job: Job) -> None:
        job.pending.clear()
        job.errors = [DEPENDENCY]
        self._fail(job, is_exhausted=False)

    def _begin_ttl(self, job: Job) -> None:
        job.result_end = self.now + job.result_ttl
        job.record_end = max(job.result_end, job.dedup_end)

    def _remove(self, id: str, cause: str) -> None:
        job = self.jobs.pop(id)
        self.tombstones[id, job.new.nonce] = Tombstone(cause, self.now + TOMBSTONE_MS, job.settled)
        self.last_tombstone[id] = job.new.nonce
        was_live, job.state = job.state in LIVE, State.ABSENT
        if was_live:
            self._end(job)

    def tombstone(self, id: str, nonce: bytes) -> Tombstone | None:
        """The trace of a removed incarnation, while it lasts."""
        stone = self.tombstones.get((id, nonce))
        return stone if stone is not None and self.now < stone.lapses else None

    def knows(self, new: NewRecord) -> bool:
        """Whether a repetition of this enqueue is recognised."""
        job = self.jobs.get(new.id)
        return (job is not None and job.new.nonce == new.nonce) or self.tombstone(new.id, new.nonce) is not None

    def cause(self, id: str) -> str:
        """Why ``id`` is absent."""
        stone = self.tombstone(id, self.last_tombstone.get(id, b""))
        return stone.cause if stone else "unknown"

    def _fail(self, job: Job, *, is_exhausted: bool, ttl_ms: int | None = None) -> None:
        job.state, job.lease, job.is_exhausted, job.ended = State.FAILED, None, is_exhausted, self.now
        job.record_end = self.now + (job.new.dead_ttl_ms if ttl_ms is None else ttl_ms)
        self._end(job)

    def in_state(self, state: State) -> list[str]:
        """Ids in ``state``."""
        return [id for id, job in self.jobs.items() if job.state is state]

    def counts(self) -> dict[State, int]:
        """States that any job is in, with how many."""
        return {state: len(ids) for state in STORED if (ids := self.in_state(state))}

    def backlog(self) -> int:
        """How many jobs are left to work off."""
        held = {State.PROCESSING} if self.is_paused else LIVE - {State.SCHEDULED}
        return sum(job.state in held and not job.new.is_persistent for job in self.jobs.values())

    def leases(self) -> int:
        """How many jobs hold one."""
        return sum(job.lease is not None for job in self.jobs.values())

    # -- transitions ------------------------------------------------------------------

    def enqueue(self, records: Iterable[NewRecord]) -> list[tuple[str, bytes | None]]:
        """(status, result) of each."""
        answers: list[tuple[str, bytes | None]] = []
        accepted: dict[str, NewRecord] = {}
        for new in records:
            if new.id in accepted and accepted[new.id].nonce != new.nonce:
                answers.append(("duplicate", None))  # also when the first has failed at once
                continue
            before = self.jobs.get(new.id)
            answers.append(self._enqueue(new, accepted))
            if self.jobs.get(new.id) is not before:
                accepted[new.id] = new
        self._place()
        return answers

    def _enqueue(self, new: NewRecord, mates: Mapping[str, NewRecord]) -> tuple[str, bytes | None]:
        old = self.jobs.get(new.id)
        if self.knows(new):
            return "queued", None
        if old is not None:
            if old.state in LIVE:
                return "duplicate", None
            if old.state is State.COMPLETED and (old.pins or self.now < old.dedup_end):
                return ("completed", old.result) if old.result is not None else ("duplicate", None)
            self._remove(new.id, "replaced")
        self.unswept.pop(new.id, None)  # what it replaces it sweeps
        job = Job(new, State.QUEUED, is_solo=new.is_persistent)
        found = [self.jobs.get(id) for id in new.after]  # its own id is none of them
        self.jobs[new.id] = job
        if new.group is not None:
            self.lines.setdefault(new.group, []).append(job)
        if new.delay_ms:
            job.due = self.now + new.delay_ms
        job.bound = [before for before in found if before is not None]
        failed = [before for before in job.bound if before.state is State.FAILED]
        if len(job.bound) < len(found) or failed:
            if len(job.bound) == len(found) and all(mates.get(before.new.id) is before.new for before in failed):
                # It learns of a mate's failure after it was bound: what it waits for was pinned for a moment.
                for before in job.bound:
                    if before.state is State.COMPLETED and not before.pins:
                        self._begin_ttl(before)
            job.bound = []
            self._has_let_go = True  # when others of the batch are placed is open
            self._fail_dependent(job)
            return "queued", None
        for before in job.bound:
            before.pins.append(job)
            if before.state is State.COMPLETED:
                before.result_end = before.record_end = NEVER
        job.pending = [before for before in job.bound if before.state is not State.COMPLETED]
        if job.pending:
            job.state = State.WAITING
        elif job.due is not None:
            job.state = State.SCHEDULED
        else:
            self._to_back(job)
        return "queued", None

    def claim(self, worker: Worker, limit: int, serial: int, lease_ms: int, given: Claim) -> None:
        """Check what the storage handed out, and take it over."""
        self.workers[worker.key] = Member(worker.runners, self.now + worker.ttl_ms)
        runners = sum(member.runners for member in self.workers.values())
        queued = [job for job in self.jobs.values() if job.state is State.QUEUED and self.is_head(job)]
        assert all(job.position is not None for job in queued), "the model itself is wrong"
        share = min(limit, max(1, len(queued) // runners))
        if self.is_paused:
            assert (given.jobs, given.more) == ([], False)
            return
        if self.max_concurrency is not None:
            share = 1
            if self.leases() >= self.max_concurrency:
                assert (given.jobs, given.more) == ([], False)
                return
        waiting = {job.new.id: job for job in queued}
        groups: set[str | None] = set()
        for got in given.jobs:
            assert got.id in waiting, f"{got.id} is not claimable"
            job = waiting.pop(got.id)
            # A batch may hold one job of each group.
            rivals = [other for other in waiting.values() if other.group is None or other.group not in groups]
            first = min(_turn(other) for other in [job, *rivals])
            assert _turn(job) == first, f"{got.id} was handed out before its turn"
            assert not (job.is_solo and len(given.jobs) > 1), f"{got.id} is solo"
            groups.add(job.group)
            job.state, job.attempts, job.token = State.PROCESSING, job.attempts + 1, job.token + 1
            job.lease = Lease(worker.key, serial, self.now + lease_ms, len(given.jobs) > 1, self.now)
            job.position = None
            assert (got.nonce, got.token, got.attempts) == (job.new.nonce, job.token, job.attempts)
            assert (got.max_attempts, got.priority, got.message, got.group, got.is_persistent) == (
                job.new.max_attempts,
                job.new.priority,
                job.new.message,
                job.group,
                job.new.is_persistent,
            )
        assert len(given.jobs) <= share
        is_full = self.max_concurrency is not None and self.leases() >= self.max_concurrency
        assert is_full or given.more is bool(waiting)
        left = [job for job in waiting.values() if job.group is None or job.group not in groups]
        if len(given.jobs) < min(share, len(given.jobs) + len(left)):  # only a solo job ends a claim early
            alone = bool(given.jobs) and self.jobs[given.jobs[0].id].is_solo
            assert alone or (given.jobs and any(job.is_solo for job in left)), "a claim took too little"
        for group in groups - {None}:
            running = [job for job in self.jobs.values() if job.group == group and job.lease is not None]
            assert len(running) <= self.group_concurrency

    def settle(self, worker: Worker, outcomes: Sequence[Outcome]) -> list[State | None]:
        """The states that the outcomes lead to."""
        answers: list[State | None] = []
        released: list[Job] = []
        for item in outcomes:
            job = self.jobs.get(item.id)
            if job is None or job.new.nonce != item.nonce:
                stone = self.tombstone(item.id, item.nonce)
                first = stone.settled if stone else None
            else:
                first = job.settled
            if first is not None and first[0] == item.token:
                answers.append(first[1])
            elif job is None or job.lease is None or (job.new.nonce, job.token) != (item.nonce, item.token):
                answers.append(None)
            else:
                state = self._settle(worker, job, item, released)
                job.settled = (item.token, state)
                answers.append(state)
                if state is State.ABSENT:
                    self._remove(item.id, "cancelled")
        self._to_front(released)
        self._place()
        return answers

    def _settle(self, worker: Worker, job: Job, item: Outcome, released: list[Job]) -> State:
        lease, job.lease = job.lease, None
        assert lease is not None
        if item.verb is Verb.COMPLETE:
            job.state, job.result, job.cancel_requested, job.ended = State.COMPLETED, item.result, False, self.now
            job.result_ttl = job.new.result_ttl_ms if item.ttl_ms is None else item.ttl_ms
            job.dedup_end = self.now + job.new.dedup_ttl_ms
            self._begin_ttl(job)
            if job.pins:
                job.result_end = job.record_end = NEVER
            self._end(job)
            return State.COMPLETED
        if job.cancel_requested:
            return State.ABSENT
        if item.verb is Verb.RELEASE:
            job.attempts -= 1
            job.state = State.QUEUED
            released.append(job)
            return State.QUEUED
        job.errors = [*job.errors, (worker.key, job.attempts, item.error)][-HISTORY:]
        if job.new.is_persistent and item.verb is Verb.RETRY:
            self._go_on(job, lease)
        if item.verb is Verb.FAIL or job.attempts >= job.new.max_attempts:
            self._fail(job, is_exhausted=item.verb is Verb.RETRY, ttl_ms=item.ttl_ms)
        elif item.delay_ms:
            job.state, job.due = State.FAILING, self.now + item.delay_ms
        else:
            self._to_back(job)
        return job.state

    def _go_on(self, job: Job, lease: Lease) -> None:
        is_steady = self.now - lease.since >= STEADY_MS
        job.attempts = 0 if is_steady else min(job.attempts, job.new.max_attempts - 1)

    def extend(
        self,
        worker: Worker,
        held: Sequence[tuple[str, bytes, int]],
        below: int,
        in_flight: Sequence[int],
        lease_ms: int,
    ) -> tuple[set[str], set[str], set[str]]:
        """(lost, cancelled, orphans)."""
        self.workers[worker.key] = Member(worker.runners, self.now + worker.ttl_ms)
        lost, cancelled, kept = set(), set(), set()
        for id, nonce, token in held:
            job = self.jobs.get(id)
            lease = job.lease if job is not None and (job.new.nonce, job.token) == (nonce, token) else None
            if job is None or lease is None or lease.worker != worker.key:
                lost.add(id)
                continue
            kept.add(id)
            lease.deadline = max(lease.deadline, self.now + lease_ms)
            if job.cancel_requested:
                cancelled.add(id)
        orphans = {
            id
            for id, job in self.jobs.items()
            if job.lease is not None
            and job.lease.worker == worker.key
            and id not in kept
            and job.lease.serial < below
            and job.lease.serial not in in_flight
        }
        return lost, cancelled, orphans

    def cancel(self, ids: Sequence[str], *, running: bool) -> list[str]:
        """The statuses."""
        answers = [self._cancel(id, running=running) for id in ids]
        self._place()
        return answers

    def _cancel(self, id: str, *, running: bool) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "not_found"
        if job.state in (State.COMPLETED, State.FAILED):
            return job.state.value
        if job.state is State.PROCESSING:
            job.cancel_requested |= running
            return "cancelling" if running else "processing"
        self._remove(id, "cancelled")
        return "cancelled"

    def _recover(self, jobs: Sequence[Job]) -> None:
        queued = []
        for job in jobs:
            lease = job.lease
            assert lease is not None
            job.lease = None
            if job.cancel_requested:
                self._remove(job.new.id, "cancelled")
            elif lease.is_batch:
                job.attempts -= 1
                job.is_solo = True
                queued.append(job)
            else:
                job.errors = [*job.errors, (lease.worker, job.attempts, STALLED)][-HISTORY:]
                if job.new.is_persistent:
                    self._go_on(job, lease)
                if job.attempts >= job.new.max_attempts:
                    self._fail(job, is_exhausted=True)
                else:
                    queued.append(job)
        self._to_front(queued)

    def leave(self, worker_key: str) -> int:
        """How many jobs the worker held."""
        jobs = [job for job in self.jobs.values() if job.lease is not None and job.lease.worker == worker_key]
        self.workers.pop(worker_key, None)
        self._recover(jobs)
        self._place()
        return len(jobs)

    def reap(self) -> None:
        """Full upkeep at ``now``."""
        # Due at one time of the model means: some milliseconds of the storage apart, in either order.
        for job in self.jobs.values():
            if job.due is not None and job.due <= self.now and job.state is not State.WAITING:
                self._to_back(job, rank=job.due)
        dead = {key for key, member in self.workers.items() if member.deadline <= self.now}
        stalled = [
            job
            for job in self.jobs.values()
            if job.lease is not None and (job.lease.deadline <= self.now or job.lease.worker in dead)
        ]
        for key in dead:
            del self.workers[key]
        self._recover(stalled)
        self._place()
        for stone in self.unswept.values():
            stone.lapses = self.now + TOMBSTONE_MS
        self.unswept.clear()
        for id, job in list(self.jobs.items()):
            if job.result is not None and job.result_end <= self.now:
                job.result = None
            if job.state in (State.COMPLETED, State.FAILED) and job.record_end <= self.now:
                self._remove(id, "expired")

    def update_ttl(self, id: str, ttl_ms: int) -> str:
        """The status."""
        job = self.jobs.get(id)
        if job is None:
            return "not_found"
        if job.state in LIVE:
            return "not_terminal"
        if job.state is State.FAILED:
            job.record_end = self.now + ttl_ms
            return "updated"
        if job.result is None:
            return "not_found"
        job.result_ttl = ttl_ms
        job.result_end = self.now + ttl_ms
        job.record_end = max(job.result_end, job.dedup_end)
        return "updated"

    def revive(self, ids: Sequence[str]) -> list[str]:
        """The ids that were dead letters."""
        revived = [id for id in dict.fromkeys(ids) if id in self.jobs and self.jobs[id].state is State.FAILED]
        for id in revived:
            job = self.jobs[id]
            job.attempts, job.is_exhausted = 0, False
            if job.group is not None:
                self.lines.setdefault(job.group, []).append(job)
            self._to_back(job)
        self._place()
        return revived

    def discard(self, ids: Sequence[str]) -> list[str]:
        """The ids that were dead letters."""
        gone = [id for id in dict.fromkeys(ids) if id in self.jobs and self.jobs[id].state is State.FAILED]
        for id in gone:
            self._remove(id, "discarded")
        return gone

    def purge(self) -> int:
        """How many went."""
        gone = [id for id, job in self.jobs.items() if job.state is not State.PROCESSING]
        for id in gone:  # all at once: none of them fails for another one
            for before in self.jobs[id].bound:
                before.pins = [job for job in before.pins if job is not self.jobs[id]]
            self.jobs[id].bound, self.jobs[id].pending, self.jobs[id].pins = [], [], []
        for id in gone:
            nonce = self.jobs[id].new.nonce
            self._remove(id, "purged")
            self.unswept[id] = self.tombstones[id, nonce]
        self._place()
        return len(gone)

    def delete(self) -> int:
        """How many went, running ones included."""
        number = len(self.jobs)
        self.__init__(self.now)  # type: ignore[misc]
        return number


def _turn(job: Job) -> tuple[int, int]:
    assert job.position is not None
    return -job.new.priority, job.position
