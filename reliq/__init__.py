"""reliq: a reliable job queue for synchronous, threaded Python.

One handler, and jobs that are never lost::

    from reliq import Queue, WorkerPool

    q = Queue("emails", "redis://localhost:6379/0")  # or file:///var/lib/app/queue, or memory://

    @q.handler
    def send(job):                                   # at least once: make it idempotent
        return deliver(job.payload["to"])

    q.enqueue("welcome-42", {"to": "ada@example.org"})       # fire and forget, deduplicated by id
    q.call("welcome-43", {"to": "bob@example.org"})          # wait for the handler's result
    q.get_status("welcome-42")                               # state, attempts, history of errors
    q.cancel("welcome-42", running=True)                     # also asks a running handler to stop
    q.dead_letters.retry_all()                               # what failed for good, once more

    WorkerPool(q, threads=8).run_forever()                   # or: reliq worker app.jobs:q -t 8

Nothing connects at import; a storage connects when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .context import current_job
from .dead_letters import DeadLetters
from .errors import (
    CallTimeoutError,
    InvalidJobError,
    JobCancelledError,
    JobError,
    JobFailedError,
    JobNotFoundError,
    JobStoppedError,
    LeaseLostError,
    MaxRetriesError,
    NotConfirmedError,
    OutcomeUnknownError,
    QueueFullError,
    Reject,
    ReliqError,
    ResultExpiredError,
    Retry,
    SerdeError,
    StorageCorruptError,
    StorageError,
    StorageUnavailableError,
)
from .job import AttemptError, CancelResult, EnqueueResult, Event, Job, JobStatus, NewJob, Page
from .lifecycle import State
from .manual import ClaimedJob
from .queue import Queue
from .retry import Backoff
from .schedules import ScheduleInfo, Schedules
from .serde import JsonSerde, RawSerde, Serde, content_id
from .storage.base import Storage

if TYPE_CHECKING:
    from .reaper import Reaper
    from .storage.redis.storage import RedisStorage
    from .storage.sql.file import FileStorage
    from .storage.sql.memory import MemoryStorage
    from .worker.execution import Execution
    from .worker.pool import WorkerPool

    __version__: str

__all__ = [
    "AttemptError",
    "Backoff",
    "CallTimeoutError",
    "CancelResult",
    "ClaimedJob",
    "DeadLetters",
    "EnqueueResult",
    "Event",
    "Execution",
    "FileStorage",
    "InvalidJobError",
    "Job",
    "JobCancelledError",
    "JobError",
    "JobFailedError",
    "JobNotFoundError",
    "JobStatus",
    "JobStoppedError",
    "JsonSerde",
    "LeaseLostError",
    "MaxRetriesError",
    "MemoryStorage",
    "NewJob",
    "NotConfirmedError",
    "OutcomeUnknownError",
    "Page",
    "Queue",
    "QueueFullError",
    "RawSerde",
    "Reaper",
    "RedisStorage",
    "Reject",
    "ReliqError",
    "ResultExpiredError",
    "Retry",
    "ScheduleInfo",
    "Schedules",
    "Serde",
    "SerdeError",
    "State",
    "Storage",
    "StorageCorruptError",
    "StorageError",
    "StorageUnavailableError",
    "WorkerPool",
    "__version__",
    "content_id",
    "current_job",
]

#: Loaded when they are first asked for: a process pays only for the client library that it uses, and one that
#: only enqueues not for the worker.
_LAZY = {
    "Execution": ".worker.execution",
    "FileStorage": ".storage.sql.file",
    "MemoryStorage": ".storage.sql.memory",
    "Reaper": ".reaper",
    "RedisStorage": ".storage.redis.storage",
    "WorkerPool": ".worker.pool",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name], __name__), name)
    elif name == "__version__":
        metadata = import_module("importlib.metadata")
        try:
            value = metadata.version("reliq")
        except metadata.PackageNotFoundError:  # run from a source tree that was never installed
            value = "unknown"
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
