"""A backend of ``django.tasks`` (Django 6)::

    TASKS = {"default": {"BACKEND": "reliq.contrib.django.backend.ReliqBackend", "QUEUES": ["default", "emails"]}}

``OPTIONS`` holds what a queue of ``settings.RELIQ`` may hold: ``URL``, ``ON_COMMIT`` and the options of
:class:`reliq.Queue`. Each name in ``QUEUES`` is the reliq queue ``tasks.<alias>.<name>``, run by
``manage.py reliq_worker``.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from traceback import format_exception
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.tasks import Task, TaskContext, TaskResult, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from ...errors import InvalidJobError, JobStoppedError, Reject, ReliqError
from ...identity import unique_name
from ...job import Job
from ...queue import Queue
from . import task_results
from .conf import read_queue
from .registry import queues
from .transactions import CommitGate

#: reliq has ten priorities, Django 201: 0 is the fifth, and small steps around it, the usual ones, count.
_PRIORITIES = (-49, -24, -9, 0, 1, 10, 25, 50, 90)


class ReliqBackend(BaseTaskBackend):  # type: ignore[misc]  # Django has no types
    """Tasks as reliq runs jobs: at least once, tried again as ``max_attempts`` and ``backoff`` in ``OPTIONS`` say."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        if not self.queues:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['QUEUES'] must name the queues: a worker has to know them")
        self._queues: dict[str, Queue] = {}
        for name in sorted(self.queues):
            where = f"TASKS[{alias!r}]['OPTIONS']"
            if name.endswith(".fifo"):
                raise ImproperlyConfigured(f"TASKS[{alias!r}]['QUEUES']: tasks have no groups, so none of {name!r}")
            queue = queues.make(read_queue(where, f"tasks.{alias}.{name}", self.options))
            if queue.function is None:  # Django makes a backend per thread, the queues are shared
                queue.function = partial(_run, alias)
            self._queues[name] = queue

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Queue up a task. In a transaction it is sent when that commits; until then ``get_result`` does not know it.

        Raises InvalidTask, TypeError or ValueError for what is no JSON, and reliq's StorageError.
        """
        self.validate_task(task)
        queue = self._queues[task.queue_name]
        id = unique_name(16)
        payload = {
            "task": task.module_path,
            "args": normalize_json(list(args)),
            "kwargs": normalize_json(dict(kwargs)),
            "priority": task.priority,
        }
        at = task.run_after
        if at is not None and timezone.is_naive(at):
            at = timezone.make_aware(at)
        done = queue.enqueue(id, payload, priority=bisect_right(_PRIORITIES, task.priority), at=at)
        result = task_results.new_result(task, self.alias, id, payload, time.time())
        tell = partial(task_enqueued.send, type(self), task_result=result)
        if done.status == "deferred" and isinstance(queue.gate, CommitGate):
            transaction.on_commit(tell, using=queue.gate.open_transaction())
        else:
            tell()
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """What became of a task, from any process; raises TaskResultDoesNotExist, also after its ``result_ttl``."""
        for name, queue in self._queues.items():
            try:
                status = queue.get_status(result_id)
            except InvalidJobError as error:
                raise TaskResultDoesNotExist(result_id) from error
            if status is not None and (status.state != "completed" or status.result is not None):
                task = self._task(name, status.payload)
                created = task_results.new_result(task, self.alias, status.id, status.payload, status.created_at)
                return task_results.fill(created, status)
        raise TaskResultDoesNotExist(result_id)

    def run(self, name: str, job: Job) -> dict[str, Any]:
        """The handler of the queue ``name``. What it returns, and its progress, are what :meth:`get_result` reads."""
        # Only a repeated run has a history that is worth a look.
        before = self._queues[name].get_status(job.id) if job.attempts > 1 else None
        task = self._task(name, job.payload)
        result = task_results.new_result(task, self.alias, job.id, job.payload, job.created_at)
        history = task_results.started(result, job, before)
        task_started.send(type(self), task_result=result)
        context = [TaskContext(task_result=result)] if task.takes_context else []
        try:
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
        except JobStoppedError:
            raise  # the attempt is void, or timed out: reliq says what becomes of it
        except BaseException as error:
            with contextlib.suppress(ReliqError):  # the task's own error is what has to be told
                job.progress(task_results.add_error(history, job.attempts, error))
            if job.attempts >= job.max_attempts or isinstance(error, Reject):
                trace = "".join(format_exception(error))
                failure = TaskError(exception_class_path=task_results.class_path(error), traceback=trace)
                task_results.finished(result, error=failure)
                task_finished.send(type(self), task_result=result)
            raise
        task_results.finished(result, value)
        task_finished.send(type(self), task_result=result)
        return {**history, "workers": result.worker_ids, "value": value}

    def reliq_queues(self) -> list[Queue]:
        """The queues behind the names in ``QUEUES``."""
        return list(self._queues.values())

    def _task(self, name: str, payload: Mapping[str, Any]) -> Task:
        task = import_string(payload["task"])
        if not isinstance(task, Task):  # whoever can write to the queue must not choose any function there is
            raise Reject(f"{payload['task']!r} is no task")
        return task.using(backend=self.alias, queue_name=name, priority=payload["priority"])


def task_queues() -> list[Queue]:
    """The queues of every reliq backend in ``settings.TASKS``."""
    backends = [backend for backend in task_backends.all() if isinstance(backend, ReliqBackend)]
    return [queue for backend in backends for queue in backend.reliq_queues()]


def _run(alias: str, job: Job) -> dict[str, Any]:
    done: dict[str, Any] = task_backends[alias].run(job.queue.removeprefix(f"tasks.{alias}."), job)
    return done
