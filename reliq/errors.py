"""Every exception that reliq raises. This module imports nothing of reliq.

Each class pickles (its arguments are its ``args``) and subclasses the builtin that
it resembles, so ``except TimeoutError`` or ``except ValueError`` work as expected.
"""

from __future__ import annotations


class ReliqError(Exception):
    """Base of everything that reliq raises on purpose."""


class InvalidJobError(ReliqError, ValueError):
    """An id, option, payload or name was refused before anything was written."""


class SerdeError(InvalidJobError):
    """A payload or result could not be turned into bytes, or bytes not into a value."""


class QueueFullError(ReliqError):
    """The queue holds ``max_length`` jobs already; nothing was written."""


class LeaseLostError(ReliqError):
    """The job is no longer this worker's: it was recovered, cancelled or settled elsewhere."""


class JobStoppedError(ReliqError):
    """Raised by ``job.check()`` inside a handler that should end.

    ``reason`` is one of ``"cancelled"``, ``"timeout"``, ``"stopping"``, ``"lost"``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the job should end: {self.reason}"


class Retry(ReliqError):
    """Raise from a handler: try this job again later.

    ``delay`` in seconds replaces the job's own backoff for this attempt. The attempt
    counts; when it was the last one the job becomes a dead letter.
    """

    def __init__(self, delay: float | None = None, reason: str = "the handler asked for a retry") -> None:
        super().__init__(delay, reason)
        self.delay = delay
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Reject(ReliqError):
    """Raise from a handler: this job can never succeed, make it a dead letter at once."""


class JobError(ReliqError):
    """Something about one job. ``job_id`` names it."""

    def __init__(self, job_id: str, message: str = "") -> None:
        super().__init__(job_id, message)
        self.job_id = job_id
        self.message = message

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job_id

    def __str__(self) -> str:
        return f"job {self.job_id!r}: {self.message}" if self.message else f"job {self.job_id!r}"


class JobFailedError(JobError):
    """The job ended in the dead letters.

    ``attempts`` is how often it ran, ``error_type`` the class name of the last error,
    ``message`` its text and ``traceback`` where it was raised, as text.
    """

    def __init__(
        self, job_id: str, attempts: int = 0, error_type: str = "", message: str = "", traceback: str = ""
    ) -> None:
        super().__init__(job_id, message)
        self.args = (job_id, attempts, error_type, message, traceback)
        self.attempts = attempts
        self.error_type = error_type
        self.traceback = traceback

    def __str__(self) -> str:
        return f"job {self.job_id!r} failed after {self.attempts} attempt(s): {self.error_type}: {self.message}"


class MaxRetriesError(JobFailedError):
    """The job failed because all its attempts were used up."""


class JobCancelledError(JobError):
    """The job was cancelled or purged before it ended."""


class JobNotFoundError(JobError):
    """No job of this id is known."""


class ResultExpiredError(JobError):
    """The job completed, but its result is past its TTL."""


class CallTimeoutError(JobError, TimeoutError):
    """The caller's timeout passed. The job itself is untouched and may still complete."""


class StorageError(ReliqError):
    """The storage refused or could not carry out an operation."""


class StorageUnavailableError(StorageError, ConnectionError):
    """The storage does not answer; nothing was written. Try again later."""


class StorageCorruptError(StorageError):
    """Stored data cannot be read."""


class OutcomeUnknownError(StorageError):
    """The storage stopped answering in the middle: it may or may not have been written.

    Repeating the operation is safe.
    """


class NotConfirmedError(StorageError):
    """Written, but fewer replicas than asked for confirmed it in time."""
