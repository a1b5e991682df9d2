"""A job as ``django.tasks`` shows it: its status, times, workers and errors."""

from __future__ import annotations

import builtins
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.utils import timezone

from ... import errors as reliq_errors
from ...job import AttemptError, Job, JobStatus

_STATUSES = {
    "processing": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
}
#: So many failed attempts keep the whole name of their error's class.
_MAX_CLASSES = 20


def new_result(task: Task, backend: str, id: str, payload: Mapping[str, Any], created_at: float) -> TaskResult:
    """Of a task that has just been enqueued."""
    return TaskResult(
        task=task, id=id, status=TaskResultStatus.READY, enqueued_at=_time(created_at), started_at=None,
        finished_at=None, last_attempted_at=None, args=payload["args"], kwargs=payload["kwargs"],
        backend=backend, errors=[], worker_ids=[],
    )  # fmt: skip


def started(result: TaskResult, job: Job, before: JobStatus | None) -> dict[str, Any]:
    """``job`` begins to run now; ``before``: what is known of earlier attempts. The history to keep of it."""
    known = _known(before)
    errors = () if before is None else before.errors
    now = time.time()
    history = {"started_at": known.get("started_at") or now, "last_attempted_at": now, "classes": known["classes"]}
    _change(
        result, status=TaskResultStatus.RUNNING, started_at=_time(history["started_at"]), last_attempted_at=_time(now),
        worker_ids=[*_workers(errors, job.attempts - 1), job.worker_id], errors=_errors(errors, known["classes"]),
    )  # fmt: skip
    return history


def add_error(history: Mapping[str, Any], attempt: int, error: BaseException) -> dict[str, Any]:
    """The history with the error's class, by its whole name: a job's own errors know the short one only."""
    classes = [*history["classes"].items(), (str(attempt), class_path(error))]
    return {**history, "classes": dict(classes[-_MAX_CLASSES:])}


def finished(result: TaskResult, value: Any = None, error: TaskError | None = None) -> None:
    """The run has ended now, for good."""
    if error is not None:
        result.errors.append(error)
    status = TaskResultStatus.SUCCESSFUL if error is None else TaskResultStatus.FAILED
    _change(result, status=status, finished_at=_time(time.time()), _return_value=value)


def fill(result: TaskResult, status: JobStatus) -> TaskResult:
    """``result`` with all that is known of its job; returns it."""
    known = _known(status)
    workers = _workers(status.errors, len(status.errors))
    if status.state == "processing":
        known["last_attempted_at"] = status.updated_at
        known.setdefault("started_at", status.updated_at)
        workers = [*_workers(status.errors, status.attempts - 1), status.worker_id or ""]
    elif status.state == "completed":
        known |= status.result
        workers = known["workers"]
    _change(
        result,
        status=_STATUSES.get(status.state, TaskResultStatus.READY),
        started_at=_time(known.get("started_at")),
        last_attempted_at=_time(known.get("last_attempted_at")),
        finished_at=_time(status.updated_at) if status.state in ("completed", "failed") else None,
        errors=_errors(status.errors, known["classes"]),
        worker_ids=workers,
        _return_value=known.get("value"),
    )
    return result


def class_path(error: BaseException) -> str:
    """What ``TaskError.exception_class`` imports."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _change(result: TaskResult, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)  # frozen for users; Django's own backends fill it in like this


def _known(status: JobStatus | None) -> dict[str, Any]:
    """The history that a failed attempt kept as the job's progress."""
    return {"classes": {}, **(status.progress if status is not None and isinstance(status.progress, dict) else {})}


def _workers(errors: Sequence[AttemptError], attempts: int) -> list[str]:
    """One for each attempt: their number is the number of attempts, also where a long history was cut."""
    workers = {error.attempt: error.worker_id for error in errors}
    return [workers.get(attempt, "") for attempt in range(1, max(attempts, *workers, 0) + 1)]


def _errors(errors: Sequence[AttemptError], classes: Mapping[str, str]) -> list[TaskError]:
    return [
        TaskError(
            exception_class_path=classes.get(str(error.attempt)) or _guess(error.error_type),
            traceback=error.traceback or f"{error.error_type}: {error.message}",
        )
        for error in errors
    ]


def _guess(name: str) -> str:
    """For what no handler raised, such as the end of a worker: always a class that can be imported."""
    for module in (builtins, reliq_errors):
        if isinstance(getattr(module, name, None), type):
            return f"{module.__name__}.{name}"
    return "reliq.errors.ReliqError"


def _time(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if settings.USE_TZ else timezone.make_naive(moment)
