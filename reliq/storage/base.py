"""The storage contract: whole transitions, batch-first, the holder check inside.

A storage moves jobs between the states of ``lifecycle.TRANSITIONS`` and answers
questions about them. Every mutating method is one atomic step (or a bounded number of
atomic steps that each stand alone, where the docstring says so); nobody ever composes
two calls into one transition. The guarantees are numbered in the specification, and
``reliq.testing.StorageContract`` holds any implementation to them.

Conventions: every time is an integer of milliseconds (``_ms``) by the storage's own
clock, epoch based; ids are str, compared byte by byte; messages, results, errors and
nonces are bytes and come back as given. Arguments were validated by the caller.

What is made once for each job is a NamedTuple: a frozen dataclass costs four times as much to make.

Words: an *incarnation* is one accepted life of an id, named by its ``nonce`` (8 random
bytes). The *token* counts the claims of an incarnation and is never lowered. A holder
proves a job is its own with (id, nonce, token).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Unpack

from ..errors import QueueFullError
from ..lifecycle import State

if TYPE_CHECKING:
    from ..options import QueueArguments
    from ..queue import Queue

#: How long the trace of a removed record answers repeated calls (SPEC I11, I25).
TOMBSTONE_MS = 60_000
#: How many errors of failed attempts a record keeps.
HISTORY = 5
#: The most ids one atomic step touches. Longer batches are split by the storage.
MAX_BATCH = 1_000
#: The most dependents that one step lets go or fails. They are more work than other ids, and every thread that settles
#: does such a step while some are left: together they stand before whoever else wants something.
MAX_CASCADE = 256
#: The most jobs that one job may wait for.
MAX_LINKS = 1_000
#: A claim stops at this many bytes of messages (but takes at least one job).
MAX_CLAIM_BYTES = 1 << 20
#: The slowest a sleeping thread looks again by itself, whatever rang or not.
FALLBACK_MS = 5_000
#: A run of a persistent job that lasted so long begins the count of its attempts anew.
STEADY_MS = 60_000
#: A token bucket holds the tokens of this time, and always at least one.
BURST_MS = 100


class NewRecord(NamedTuple):
    """One job to enqueue. ``at_ms`` (epoch) wins over ``delay_ms``; due in the past = at once.

    ``dedup_ttl_ms`` and ``result_ttl_ms`` count from the end of the job; on a queue whose name ends in
    ``.fifo`` the dedup window counts from acceptance. ``group``: delivered in order with the others of
    that name. ``after``: ids of jobs that must have completed before (at most MAX_LINKS, each once, none
    of them this job). ``is_persistent``: never ends by itself; it has no group, after or delay.
    """

    id: str
    nonce: bytes
    message: bytes
    max_attempts: int
    result_ttl_ms: int
    dedup_ttl_ms: int
    dead_ttl_ms: int
    priority: int = 0
    delay_ms: int = 0
    at_ms: int | None = None
    group: str | None = None
    after: tuple[str, ...] = ()
    is_persistent: bool = False


class Enqueued(NamedTuple):
    """Answer for one :class:`NewRecord`.

    ``status``: ``"queued"`` accepted (also on a repeat with the same nonce, I11),
    ``"duplicate"``, or ``"completed"`` with ``result``. ``state`` and ``nonce`` are those of
    the incarnation that now stands under the id.
    """

    id: str
    status: str
    state: State
    nonce: bytes
    result: bytes | None = None


class Worker(NamedTuple):
    """A worker: a label that people read and a random instance that makes it unique.

    ``runners`` is how many jobs it runs at once; ``ttl_ms`` how long it counts as alive
    after its last claim or heartbeat.
    """

    label: str
    instance: str
    runners: int = 1
    ttl_ms: int = 15_000

    @property
    def key(self) -> str:
        """What the storage stores: ``label~instance``; the last ``~`` divides them."""
        return f"{self.label}~{self.instance}"


def worker_label(key: str) -> str:
    """The label part of a stored worker key."""
    return key.rpartition("~")[0]


class Claimed(NamedTuple):
    """One job handed to a worker, with everything its handler and its settle need."""

    id: str
    nonce: bytes
    token: int
    attempts: int
    max_attempts: int
    created_at_ms: int
    priority: int
    has_waiter: bool
    message: bytes
    group: str | None = None
    sequence: int | None = None
    is_persistent: bool = False


class Claim(NamedTuple):
    """Answer of ``claim``: the jobs, and whether claimable work remained behind them.

    ``wait_ms``: work is there but its rate limit holds it; the next token is there in so many milliseconds.
    """

    jobs: list[Claimed]
    more: bool
    wait_ms: int | None = None


class Verb(StrEnum):
    """The four ends of a run."""

    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    RELEASE = "release"


class Outcome(NamedTuple):
    """How one claimed job ended.

    COMPLETE stores ``result``; RETRY and FAIL append ``error`` to the history; RETRY waits
    ``delay_ms`` (0 = at the back of the queue at once); RELEASE gives the attempt back and
    puts the job at the front. ``ttl_ms`` overrides result_ttl (COMPLETE) or dead_ttl.
    """

    id: str
    nonce: bytes
    token: int
    verb: Verb
    result: bytes = b""
    error: bytes = b""
    delay_ms: int = 0
    ttl_ms: int | None = None


class Settled(NamedTuple):
    """Answer for one :class:`Outcome`: the state it led to (ABSENT = cancelled), None = refused."""

    id: str
    state: State | None

    @property
    def is_lost(self) -> bool:
        """Whether the job was no longer the caller's, so that nothing changed."""
        return self.state is None


class Held(NamedTuple):
    """A lease as its holder knows it."""

    id: str
    nonce: bytes
    token: int


class Extended(NamedTuple):
    """Answer of a heartbeat.

    ``lost``: held leases that are no longer the worker's; ``cancelled``: held jobs whose
    cancel was requested; ``orphans``: leases of this worker that it neither holds nor is
    about to receive (it must check again, then release them).
    """

    lost: list[Held]
    cancelled: list[Held]
    orphans: list[Held]


class Schedule(NamedTuple):
    """A stored schedule: ``spec`` is opaque to a storage, ``next_ms`` is when its next tick is due."""

    name: str
    spec: bytes
    next_ms: int


#: How many due schedules one reap names.
MAX_TICKS = 100


class Limits(NamedTuple):
    """What a queue's storage holds all its users to; None = no limit.

    ``rate``: at most so many claims per ``rate_ms`` milliseconds, by a token bucket that holds the tokens
    of BURST_MS and at least one. ``max_concurrency``: at most so many leases. ``max_length``: at most so
    many jobs that are waiting, scheduled, queued or failing. ``group_concurrency``: how many jobs of one
    group may be out of the line at once, always 1 on a ``.fifo`` queue.
    """

    rate: int | None = None
    rate_ms: int = 1_000
    max_concurrency: int | None = None
    max_length: int | None = None
    group_concurrency: int = 1


NO_LIMITS = Limits()


def queue_full(queue: str, max_length: int | None) -> QueueFullError:
    """The error for an enqueue beyond ``max_length``."""
    return QueueFullError(f"queue {queue!r} holds at most {max_length} jobs that wait to run; nothing was written")


class Reaped(NamedTuple):
    """Answer of one reap step.

    ``changes``: (event name, id) for ``stalled``, ``failed``, ``cancelled`` and ``expired``;
    ``more``: the step hit its bound, call again at once; ``next_due_ms``: milliseconds until
    the next delayed job is due, or the next tick of a schedule but for ``ticks``; None when there is none.
    ``ticks``: the schedules whose next tick is due now (at most MAX_TICKS), earliest first; ``now_ms``: the storage's
    clock.
    """

    changes: list[tuple[str, str]]
    more: bool
    next_due_ms: int | None
    ticks: tuple[Schedule, ...] = ()
    now_ms: int = 0


class Snapshot(NamedTuple):
    """One record as read. ``state`` ABSENT: all else is default, and ``cause`` says why it is gone.

    ``cause``: ``"unknown"`` (never seen, or longer ago than the tombstone), ``"cancelled"``,
    ``"purged"``, ``"expired"``, ``"discarded"`` or ``"replaced"``. ``errors``: (at_ms, worker key,
    attempt, bytes), oldest first. ``result`` is None when there is none or it expired.
    ``is_exhausted``: failed because its attempts were used up. ``group``, ``sequence``: of a job in a group,
    its place in the order of acceptance (rising within the queue, with gaps). ``progress``: what its handler last
    reported. ``expires_at_ms`` is None while unfinished dependents pin a completed record.
    """

    id: str
    state: State
    cause: str = "unknown"
    nonce: bytes = b""
    created_at_ms: int = 0
    updated_at_ms: int = 0
    attempts: int = 0
    max_attempts: int = 0
    token: int = 0
    priority: int = 0
    due_at_ms: int | None = None
    expires_at_ms: int | None = None
    worker: str | None = None
    cancel_requested: bool = False
    is_exhausted: bool = False
    result: bytes | None = None
    errors: tuple[tuple[int, str, int, bytes], ...] = ()
    message: bytes = b""
    group: str | None = None
    sequence: int | None = None
    is_persistent: bool = False
    progress: bytes | None = None


class WorkerInfo(NamedTuple):
    """A registered worker of a queue."""

    key: str
    queue: str
    runners: int
    expires_at_ms: int
    processing: int


class Doorbell(ABC):
    """Wakes one sleeping thread of this process when one of its queues has something for it.

    One thread waits at a time (the pool's leader). A ring is never lost between two waits:
    either the wait returns or a later look finds the work.
    """

    @abstractmethod
    def wait(self, timeout: float) -> str | None:
        """Block until a queue rings; its name, or None after ``timeout`` seconds or :meth:`wake`.

        None may come early. A ``timeout`` of less than 0.9 s is kept to a few ms, a longer one to 0.1 s.
        """

    @abstractmethod
    def wake(self) -> None:
        """End the present wait, or the next one, at once. Any thread may call it; never raises."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the bell uses. No wait may be running."""


class Storage(ABC):
    """Abstract base of every storage. Methods may be called from any thread."""

    #: For logs and repr; never holds a password.
    url: str = ""
    #: Test-only: added to the storage's clock.
    skew_ms: int = 0
    #: How long a sleeping wait or doorbell goes before it looks by itself. Correct wake-ups do
    #: not rest on it: the contract suite raises it to a minute.
    fallback_ms: int = FALLBACK_MS

    def queue(self, name: str = "default", **options: Unpack[QueueArguments]) -> Queue:
        """The queue of that name on this storage; the options are those of :class:`~reliq.queue.Queue`."""
        # The one look upwards: a storage is what people have in hand.
        from ..queue import Queue

        return Queue(name, self, **options)

    # -- transitions ------------------------------------------------------------------

    @abstractmethod
    def enqueue(
        self, queue: str, jobs: Sequence[NewRecord], waiter: str | None = None, wait_ms: int = 0
    ) -> list[Enqueued]:
        """Accept each job whose id is free; answer in order. Atomic per MAX_BATCH jobs.

        An id is free when ABSENT, ``failed`` (the dead letter is replaced), or ``completed`` with
        its dedup window (end + dedup_ttl) over. A duplicate changes nothing. The same id
        twice in one batch: the first wins. Same nonce again = the first answer again, also
        from the tombstone (I11). A completed record within its window answers ``completed`` while the
        result lives, else ``duplicate``. Replacing removes the old record, its result and
        errors in the same step, leaves a tombstone and wakes its waiters.

        Groups (I41-I43): all unfinished jobs of a group stand in its line in the order of acceptance,
        whatever their state. The first ``group_concurrency`` of a line are its head. A queued job of the head has
        its position in the queue (placed there when it is accepted, promoted, or comes to the head: at the
        back); a queued job behind the head is blocked: counted and listed as queued, never claimed. Retry and
        recovery keep the place in the line; a job leaves the line when it ends (completed, failed, removed), and who
        comes to the head then is placed and rings. A revived dead letter joins the line's end. So groups take turns.

        Dependencies (I47): a job with ``after`` is accepted as ``waiting`` unless each of them is a completed
        record (then as if it had none, but that they are pinned). It binds to the incarnations that stand
        under those ids now, earlier jobs of the same batch included. When the last of them has completed it is
        promoted: to ``scheduled`` when its
        due time has not come, else to ``queued``. When one of them fails or is removed (or is absent or
        failed already at the enqueue) it becomes ``failed`` with an error of type ``DependencyError`` that names the id
        and the cause. Promotion and failing are carried out in bounded steps: up to MAX_CASCADE by the transition
        that caused them, the rest by later settles and reaps (``more``); meanwhile the jobs stay ``waiting``.
        A completed record that an unfinished dependent waits for, or waited for, is pinned: its result_ttl
        begins when the last of its dependents has ended, and until then the id is not free and the result stays.

        A job beyond ``max_length`` raises QueueFullError; then nothing of its MAX_BATCH was written. Duplicates
        do not count. Persistent jobs are accepted as solo.

        ``waiter`` (with one job): registers that reply token for the incarnation which now
        stands there, unless it has finished, in the same step; it lapses after ``wait_ms``.
        Rings ``work`` for queued jobs and ``due`` for one that became the earliest due.
        """

    @abstractmethod
    def claim(self, queue: str, worker: Worker, limit: int, *, serial: int, lease_ms: int) -> Claim:
        """Move up to ``limit`` queued jobs to ``worker``: token+1, attempts+1, lease; one step.

        Registers the worker. Takes at most max(1, queued // runners registered), stops at
        MAX_CLAIM_BYTES; highest priority first, then front to back. A lease taken together
        with others is marked as a batch; a *solo* job is claimed alone. A paused queue gives
        nothing. While claimable work remains ``more`` is true and the doorbell rings again.
        ``serial`` rises with each claim of the worker and is stored with the lease.

        With a rate or concurrency limit it takes one job at most. Each claimed job takes a token of the rate
        limit's bucket (by the storage's clock); without one it takes nothing and says in ``wait_ms`` when to
        look again, rings nobody, and ``more`` is false. While ``max_concurrency`` jobs hold leases, expired
        ones included, it takes nothing, rings nobody, and ``more`` is false: whatever ends a lease rings then.
        Blocked jobs of groups count neither as claimable nor for the fair share.
        """

    @abstractmethod
    def settle(self, queue: str, worker: Worker, outcomes: Sequence[Outcome]) -> list[Settled]:
        """End runs, item by item: refused unless processing with this (nonce, token).

        RETRY with attempts used up becomes ``failed`` (exhausted). With a cancel request every
        verb but COMPLETE removes the record (ABSENT, cause cancelled). Repeating a settle with the
        same token gives the first answer until the next settle of that incarnation, and for
        TOMBSTONE_MS after its record went. An expired lease that was not recovered still
        counts. Result or error and final state appear together; every end wakes all waiters.

        RETRY of a persistent job never exhausts it: after a run of STEADY_MS or more its attempts are 0, else
        they stay (at most max_attempts - 1).
        """

    @abstractmethod
    def extend(
        self, queue: str, worker: Worker, held: Sequence[Held], *, below: int, in_flight: Sequence[int], lease_ms: int
    ) -> Extended:
        """Heartbeat: renew the worker's registration and the leases in ``held`` that are its own.

        Never shortens a lease. Orphans are leases of this worker with a serial below ``below``, not
        in ``held`` and with a serial not in ``in_flight``; they are listed, not changed.
        """

    @abstractmethod
    def leave(self, queue: str, worker_key: str) -> int:
        """Remove a worker and recover what it still holds (as ``reap`` would); how many jobs.

        For a clean stop (nothing held) and for a supervisor that saw the process die.
        """

    @abstractmethod
    def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, nonces: Sequence[bytes] | None = None
    ) -> list[str]:
        """Cancel each id; the statuses of ``CancelResult``, in order.

        ``nonces`` (one for each id): only these incarnations; another one is ``"not_found"``.

        waiting, scheduled, queued, failing: the record goes, its waiters wake, a tombstone stays. processing:
        with ``running`` the request is recorded for the holder (``"cancelling"``), else ``"processing"``.
        """

    @abstractmethod
    def reap(self, queue: str, *, interval_ms: int, limit: int = MAX_BATCH) -> Reaped:
        """One bounded step of upkeep; any number of callers, in any order, any crash between.

        Promotes due jobs. At most once per ``interval_ms`` / 2 also: recovers leases past their
        deadline and all leases of workers past theirs (to the front; batch leases are not counted and made solo,
        others count and become ``failed`` when used up; cancel-requested ones are removed), removes
        expired results, records, tombstones and what a purge left, cleans stale entries. When
        the previous reap is older than two intervals, each worker and lease whose deadline had not passed then
        gets one ttl of grace, at most once between two heartbeats of that worker.

        A recovered persistent job is never exhausted (its attempts as in ``settle``). Names the schedules whose
        tick is due; whoever carries a tick out moves it on with ``move_schedule``.
        """

    @abstractmethod
    def wait(
        self, queue: str, id: str, *, nonce: bytes = b"", waiter: str | None = None, timeout: float
    ) -> Snapshot | None:
        """Block until the job ends (completed, failed, or removed: ABSENT with its cause).

        With ``waiter`` that token was registered by ``enqueue`` for incarnation ``nonce``; without, it is
        registered here if the job is unfinished (an absent id answers at once). After
        ``timeout`` seconds the state is read once more, the waiter removed, None returned.
        """

    @abstractmethod
    def update_ttl(self, queue: str, id: str, ttl_ms: int) -> str:
        """Let a finished job's result (or dead letter) live ``ttl_ms`` from now.

        ``"updated"``, ``"not_found"`` (unknown, or the result is gone) or ``"not_terminal"``.
        """

    @abstractmethod
    def revive(self, queue: str, ids: Sequence[str] | None, *, limit: int = MAX_BATCH) -> list[str]:
        """Dead letters back to the queue's end: attempts 0, token kept, same incarnation.

        ``ids`` None: the oldest ``limit``. Returns the ids that were revived.
        """

    @abstractmethod
    def discard(self, queue: str, ids: Sequence[str]) -> list[str]:
        """Remove dead letters for good (cause discarded). Returns the ids that were removed."""

    @abstractmethod
    def purge(self, queue: str) -> int:
        """Make every job that is not processing absent at once, however many; how many they were.

        One step, constant time: reaps carry out the removal and wake the waiters.
        """

    @abstractmethod
    def pause(self, queue: str, paused: bool) -> None:
        """Stop or resume the handing out of jobs, for every process."""

    @abstractmethod
    def delete(self, queue: str) -> int:
        """Remove the queue with everything in it, running jobs included; how many jobs those were.

        Holders find their leases lost; waiters wake (cause ``purged``). A number of bounded steps, safe to
        repeat after a crash. Limits, pause, schedules, workers and the name in ``queues`` go too. A job that is
        enqueued meanwhile makes the queue anew.
        """

    @abstractmethod
    def progress(self, queue: str, held: Held, data: bytes) -> bool:
        """Keep ``data`` as the progress of a running job until its record goes; False when the lease is lost.

        Publishes ``progress``.
        """

    # -- settings ---------------------------------------------------------------------

    @abstractmethod
    def limits(self, queue: str) -> Limits:
        """The limits of the queue; NO_LIMITS where nobody set any."""

    @abstractmethod
    def set_limits(self, queue: str, limits: Limits, *, only_new: bool = False) -> Limits:
        """Set the limits for every process, unless ``only_new`` and some are set; those that hold now.

        A limit that was raised or lifted rings. Members of a group that a raised ``group_concurrency`` lets go
        come to the head with the line's next end.
        """

    @abstractmethod
    def put_schedule(self, queue: str, schedule: Schedule, *, only_new: bool = False) -> bool:
        """Store a schedule under its name, in place of one that is there unless ``only_new``; whether it was stored.

        Rings ``due`` when it is the earliest. ``queues`` names the queue from then on.
        """

    @abstractmethod
    def move_schedule(self, queue: str, name: str, was_ms: int, next_ms: int) -> bool:
        """Set the next tick of a schedule whose next tick is ``was_ms``; False when it is not (any more)."""

    @abstractmethod
    def remove_schedule(self, queue: str, name: str) -> bool:
        """Remove a schedule; False when there is none."""

    @abstractmethod
    def schedules(self, queue: str) -> list[Schedule]:
        """All schedules of the queue, by name."""

    # -- reading ----------------------------------------------------------------------

    @abstractmethod
    def backlog(self, queue: str) -> int:
        """How many jobs are left to work off: queued, waiting, processing or failing ones, but persistent ones.

        On a paused queue, and while its rate limit has no token, only the processing ones. Constant time.
        """

    @abstractmethod
    def read(self, queue: str, ids: Sequence[str], *, payload: bool = True) -> list[Snapshot]:
        """The records of ``ids``, in order; without ``payload`` messages and results are left out."""

    @abstractmethod
    def list_ids(self, queue: str, state: State, cursor: str | None, limit: int) -> tuple[list[str], str | None]:
        """A page of ids in ``state``, roughly in the order they will be served or ended, and the next cursor."""

    @abstractmethod
    def counts(self, queue: str) -> dict[State, int]:
        """How many jobs are in each stored state. Constant time."""

    @abstractmethod
    def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused."""

    @abstractmethod
    def queues(self) -> list[str]:
        """Names of all queues that were ever enqueued to and not deleted, sorted."""

    @abstractmethod
    def workers(self, queue: str | None = None) -> list[WorkerInfo]:
        """Registered workers of one queue or of all."""

    @abstractmethod
    def subscribe(self, queue: str, listener: Callable[[str, str], None]) -> Callable[[], None]:
        """Call ``listener(event name, id)`` for each change of the queue, from every process, until
        the returned function is called. For monitoring only: messages may be lost.

        Names: enqueue ``queued``, ``scheduled`` or ``waiting``; claim ``processing``; settle ``completed``,
        ``failing``, ``failed``, ``requeued`` (release) or ``cancelled``; cancel ``cancelled`` or
        ``cancelling``; reap ``queued`` (promoted), ``stalled`` (recovered), ``failed``, ``cancelled``,
        ``expired``; revive ``queued``; discard ``discarded``; progress ``progress``; purge and delete ``purged``
        with an empty id. A job that ``after=`` lets go: ``queued`` or ``scheduled``; one that it fails: ``failed``.
        An exception in a listener is logged and goes no further.
        """

    @abstractmethod
    def doorbell(self, queues: Sequence[str], bell: Literal["work", "due"]) -> Doorbell:
        """A bell for ``queues``: ``work`` rings when a job becomes claimable, ``due`` when the
        earliest due time moved forward."""

    # -- life -------------------------------------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """End the storage's connections and threads. Idempotent; using it later reopens nothing."""
