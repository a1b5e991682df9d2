"""Claiming by hand: for those who run a loop of their own instead of a WorkerPool."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from . import message
from .errors import InvalidJobError, LeaseLostError, StorageCorruptError
from .failure import encode_error, encode_parts
from .identity import default_worker_label, unique_name
from .storage.base import MAX_BATCH, Claimed, Held, Outcome, Settled, Verb, Worker
from .validate import MAX_WORKER_ID_BYTES, check_int, check_seconds, check_text, to_ms

if TYPE_CHECKING:
    from .queue import Queue

log = logging.getLogger("reliq")


class ClaimedJob:
    """A job that you hold. Settle it once; any later settle of it raises LeaseLostError.

    Leaves room for nothing implicit: no heartbeat runs, so call :meth:`extend` within the lease.
    """

    def __init__(self, worker: ManualWorker, claimed: Claimed, envelope: message.Message) -> None:
        self._worker = worker
        self._claimed = claimed
        self._envelope = envelope
        self._is_settled = False
        self.id = claimed.id
        self.queue = worker.queue.name
        self.attempts = claimed.attempts
        self.max_attempts = claimed.max_attempts
        self.created_at = claimed.created_at_ms / 1000
        self.headers = envelope.headers
        self.group = claimed.group
        self.sequence = claimed.sequence
        self.after = envelope.after
        self.worker_id = worker.worker.label

    @property
    def payload(self) -> Any:
        """The payload's value; raises SerdeError when it cannot be decoded (then ``fail`` it)."""
        return self._worker.queue.load_payload(self._envelope.payload)

    def complete(self, result: Any = None) -> None:
        """End the job with ``result``."""
        self._settle(Verb.COMPLETE, result=self._worker.queue.dump_result(result))

    def retry(self, delay: float | None = None, error: BaseException | str = "retry was asked for") -> str:
        """Count a failed attempt: the state it led to, ``failing``, ``queued`` or ``failed``.

        ``delay`` in seconds, by default the job's own backoff.
        """
        if delay is None:
            delay = self._envelope.backoff.delay(self.attempts)
        delay_ms = to_ms(check_seconds("delay", delay, zero=True))
        return self._settle(Verb.RETRY, error=_encode(error), delay_ms=delay_ms)

    def fail(self, error: BaseException | str) -> None:
        """Make the job a dead letter at once."""
        self._settle(Verb.FAIL, error=_encode(error))

    def release(self) -> None:
        """Give the job back unrun: to the front of its queue, the attempt is not counted."""
        self._settle(Verb.RELEASE)

    def extend(self, lease: float | None = None) -> bool:
        """Keep the job ``lease`` seconds more; False when its cancel was requested. Raises LeaseLostError."""
        return self._worker.extend(self._held(), lease)

    def _held(self) -> Held:
        return Held(self.id, self._claimed.nonce, self._claimed.token)

    def _settle(self, verb: Verb, *, result: bytes = b"", error: bytes = b"", delay_ms: int = 0) -> str:
        claimed = self._claimed
        outcome = Outcome(claimed.id, claimed.nonce, claimed.token, verb, result, error, delay_ms)
        # The storage answers a repeated settle like the first one, which is right for a lost answer only.
        settled = None if self._is_settled else self._worker.settle(outcome)
        if settled is None or settled.state is None:
            raise LeaseLostError(f"job {self.id!r} is no longer held by {self.worker_id!r}: nothing was changed")
        self._is_settled = True
        return settled.state.value

    def __repr__(self) -> str:
        return f"ClaimedJob({self.id!r}, attempt {self.attempts} of {self.max_attempts})"


class ManualWorker:
    """The worker under whose name one Queue object claims by hand. It lives as long as its longest lease."""

    def __init__(self, queue: Queue, label: str | None) -> None:
        self.queue = queue
        self._storage = queue.storage  # asked once: a closed queue must not be opened again by a waiting claim
        self._pid = os.getpid()
        self._held: dict[tuple[str, bytes, int], Claimed] = {}
        label = default_worker_label() if label is None else check_text("worker_id", label, MAX_WORKER_ID_BYTES)
        self.worker = Worker(label, unique_name(4), 1, to_ms(queue.options.visibility_timeout))
        self._serials = itertools.count(1)
        self._lock = threading.Lock()

    def claim(self, limit: int, timeout: float, lease: float | None) -> list[ClaimedJob]:
        check_int("limit", limit, 1, MAX_BATCH)
        deadline = time.monotonic() + check_seconds("timeout", timeout, zero=True)
        jobs, _ = self._claim(limit, lease)
        if jobs or timeout == 0:
            return jobs
        storage = self._storage
        bell = storage.doorbell([self.queue.name], "work")
        try:
            # Look once more after the bell exists: what rang before it is found by this look.
            while True:
                jobs, held_ms = self._claim(limit, lease)
                left = deadline - time.monotonic()
                if jobs or left <= 0:
                    return jobs
                # Nobody rings when a rate limit has its next token.
                look_ms = storage.fallback_ms if held_ms is None else min(held_ms, storage.fallback_ms)
                bell.wait(min(left, look_ms / 1000))
        finally:
            bell.close()

    def settle(self, outcome: Outcome) -> Settled:
        [settled] = self._storage.settle(self.queue.name, self.worker, [outcome])
        self._held.pop((outcome.id, outcome.nonce, outcome.token), None)
        return settled

    def extend(self, held: Held, lease: float | None) -> bool:
        # below=0: this worker asks for no orphans; a lease it forgot runs out.
        lease_ms = self._lease_ms(lease)
        answer = self._storage.extend(
            self.queue.name, self._worker(lease_ms), [held], below=0, in_flight=[], lease_ms=lease_ms
        )
        if answer.lost:
            raise LeaseLostError(f"job {held.id!r} is no longer held by {self.worker.label!r}")
        return not answer.cancelled

    @property
    def is_inherited(self) -> bool:
        """Whether this is the copy of a forked child: the jobs are the parent's."""
        return self._pid != os.getpid()

    def close(self) -> None:
        """Give back what is still held, uncounted and to the front, and leave."""
        if self.is_inherited:
            return
        releases = [Outcome(job.id, job.nonce, job.token, Verb.RELEASE) for job in self._held.values()]
        self._held.clear()
        if releases:
            self._storage.settle(self.queue.name, self.worker, releases)
        self._storage.leave(self.queue.name, self.worker.key)

    def _claim(self, limit: int, lease: float | None) -> tuple[list[ClaimedJob], int | None]:
        """The jobs, and for how many ms a rate limit holds others."""
        lease_ms = self._lease_ms(lease)
        name = self.queue.name
        with self._lock:
            serial = next(self._serials)
        answer = self._storage.claim(name, self._worker(lease_ms), limit, serial=serial, lease_ms=lease_ms)
        jobs = []
        for claimed in answer.jobs:
            self._held[claimed.id, claimed.nonce, claimed.token] = claimed
            try:
                jobs.append(ClaimedJob(self, claimed, message.decode(claimed.message)))
            except StorageCorruptError as error:  # its neighbours are in order
                log.error("job %r of queue %r cannot be read: %s", claimed.id, name, error)
                self.settle(Outcome(claimed.id, claimed.nonce, claimed.token, Verb.FAIL, error=encode_error(error)))
        return jobs, answer.wait_ms

    def _lease_ms(self, lease: float | None) -> int:
        return to_ms(self.queue.options.visibility_timeout if lease is None else check_seconds("lease", lease))

    def _worker(self, lease_ms: int) -> Worker:
        # Nothing renews the registration between two calls, so it must outlive the lease.
        worker = self.worker
        if lease_ms > worker.ttl_ms:
            worker = self.worker = Worker(worker.label, worker.instance, worker.runners, lease_ms)
        return worker


def _encode(error: BaseException | str) -> bytes:
    if isinstance(error, BaseException):
        return encode_error(error)
    if isinstance(error, str):
        return encode_parts("Error", error)
    raise InvalidJobError(f"error must be an exception or a str, got {type(error).__name__}")
