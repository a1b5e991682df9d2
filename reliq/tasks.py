"""Tasks: functions with arguments on top of one queue. A job names its task; it never names code to import."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast

from .errors import InvalidJobError, Reject, SerdeError
from .job import EnqueueResult, Job
from .options import JobArguments, JobOptions
from .schedules import ScheduleArguments, ScheduleInfo
from .serde import JsonSerde, content_id
from .validate import check_function, check_seconds, check_text

if TYPE_CHECKING:
    from .queue import Queue

P = ParamSpec("P")
R = TypeVar("R")

MAX_TASK_NAME_BYTES = 255
#: Options that say when a schedule ticks; everything else but those of a task itself is a job's.
_SCHEDULE = ("cron", "every", "tz", "missed")
_OWN = ("id", "unique", "timeout", *_SCHEDULE)
_PLAIN = (str, int, float, bool, type(None))
_MAX_DEPTH = 250


class TaskArguments(JobArguments, total=False):
    """Keyword arguments of ``Queue.task`` and ``Task.options``; :meth:`Task.options` explains them."""

    id: str | None
    unique: bool
    timeout: float
    cron: str | None
    every: float | None
    tz: Any
    missed: str


class Task(Generic[P, R]):
    """A function whose calls can be jobs; made by ``@q.task``. Calling it runs the function here and now."""

    def __init__(self, queue: Queue, function: Callable[P, R], name: str, options: Mapping[str, Any]) -> None:
        self.queue = queue
        self.name = name
        self.function = function
        try:
            self._signature = inspect.signature(function)
        except ValueError as error:
            raise InvalidJobError(f"task {name!r}: its function tells no arguments: {error}") from None
        self._options = _checked(queue, options)
        functools.update_wrapper(self, function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this thread; no job is made."""
        return self.function(*args, **kwargs)

    def options(self, **options: Unpack[TaskArguments]) -> Task[P, R]:
        """The same task with other options; this one is unchanged.

        ``id``: the job's id (of ``schedule``: the schedule's name). ``unique=True``: an id made of the task's name
        and its arguments, so that an equal call is a duplicate. Neither: an id of its own for each job.
        ``timeout``: how many seconds ``call`` waits (30). ``cron``, ``every``, ``tz``, ``missed``: as of
        ``Queue.schedule``, for ``schedule`` only. Everything else as of ``Queue.enqueue``. Raises InvalidJobError.
        """
        return Task(self.queue, self.function, self.name, {**self._options, **options})

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """Make the call a job. Answers and errors as ``Queue.enqueue``; arguments that do not fit the function
        (InvalidJobError) or JSON (SerdeError) are refused before anything is written."""
        payload = self.payload(*args, **kwargs)
        return self.queue.enqueue(self._id(payload), payload, **self._job_options("enqueue"))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make the call a job and wait for its result, as it comes back from JSON. Errors as ``Queue.call``."""
        payload = self.payload(*args, **kwargs)
        options = self._job_options("call")
        timeout = self._options.get("timeout", 30.0)
        return cast("R", self.queue.call(self._id(payload), payload, timeout=timeout, **options))

    def schedule(self, /, *args: P.args, **kwargs: P.kwargs) -> ScheduleInfo:
        """Make the call a job at each tick of ``options(cron=...)`` or ``options(every=...)``.

        The schedule is named by the option ``id``, or else like the task: give each schedule of one task an id.
        Safe to repeat at every start, as ``Queue.schedule``.
        """
        if self._options.get("unique"):
            raise InvalidJobError(
                f"task {self.name!r}: unique is for enqueue() and call(): each tick has an id of its own"
            )
        payload = self.payload(*args, **kwargs)
        own = ("id", "unique", "timeout")
        options = {key: value for key, value in self._options.items() if key not in own}
        arguments = cast("ScheduleArguments", {**options, "payload": payload})
        return self.queue.schedule(self._options.get("id") or self.name, **arguments)

    def payload(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """What a job of this call carries: ``{"task": name, "args": [...], "kwargs": {...}}``. Checks the arguments.

        An argument given by position or by keyword makes the same payload.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidJobError(f"task {self.name!r}{self._signature}: {error}") from None
        for name, value in bound.arguments.items():
            _check_json(self.name, name, value)
        return {"task": self.name, "args": list(bound.args), "kwargs": bound.kwargs}

    def run(self, args: list[Any], kwargs: dict[str, Any]) -> R:
        """Run the arguments of a job; raises Reject when they do not fit the function (any more)."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Reject(f"task {self.name!r}{self._signature}: {error}") from None
        return self.function(*args, **kwargs)

    def _id(self, payload: dict[str, Any]) -> str | None:
        given: str | None = self._options.get("id")
        return content_id(payload) if given is None and self._options.get("unique") else given

    def _job_options(self, verb: str) -> JobArguments:
        for name in _SCHEDULE:
            if self._options.get(name) is not None:
                raise InvalidJobError(f"task {self.name!r}: {name} is for schedule(), not for {verb}()")
        return cast("JobArguments", {key: value for key, value in self._options.items() if key not in _OWN})

    def __repr__(self) -> str:
        return f"Task({self.name!r} on {self.queue.name!r})"


class Tasks:
    """The handler of a queue with tasks: runs the one that a job names, of those registered here and no others."""

    def __init__(self, queue: Queue) -> None:
        self._queue_name = queue.name
        self._tasks: dict[str, Task[..., Any]] = {}

    def add(self, task: Task[..., Any]) -> None:
        """Register a task; raises InvalidJobError when its name is taken."""
        if task.name in self._tasks:
            raise InvalidJobError(f"queue {self._queue_name!r} has a task {task.name!r} already: give one a name=")
        self._tasks[task.name] = task

    def __call__(self, job: Job) -> Any:
        payload = job.payload
        if not isinstance(payload, dict) or payload.keys() != {"task", "args", "kwargs"}:
            raise Reject(
                f"job {job.id!r} of queue {self._queue_name!r} is no task's: task, args and kwargs are expected"
            )
        name, args, kwargs = payload["task"], payload["args"], payload["kwargs"]
        if not (isinstance(name, str) and isinstance(args, list) and isinstance(kwargs, dict)):
            raise Reject(f"job {job.id!r}: task must be a str, args a list and kwargs an object")
        task = self._tasks.get(name)
        if task is None:
            there = ", ".join(map(repr, sorted(self._tasks)))
            raise Reject(f"queue {self._queue_name!r} has no task {name!r} in this worker; there are: {there}")
        return task.run(args, kwargs)


def make_task(queue: Queue, function: Callable[P, R], name: str | None, options: Mapping[str, Any]) -> Task[P, R]:
    """As ``Queue.task``."""
    check_function("a task", function)
    if not isinstance(queue.options.payload_serde, JsonSerde):
        serde = type(queue.options.payload_serde).__name__
        raise InvalidJobError(f"queue {queue.name!r}: tasks need payload_serde=JsonSerde(), got {serde}")
    if name is None:
        name = getattr(function, "__name__", None)
    task = Task(queue, function, check_text("task name", name, MAX_TASK_NAME_BYTES), options)
    if isinstance(queue.function, Tasks):
        queue.function.add(task)
    else:
        tasks = Tasks(queue)
        tasks.add(task)
        queue.handler(tasks)
    return task


def _checked(queue: Queue, options: Mapping[str, Any]) -> Mapping[str, Any]:
    job = {key: value for key, value in options.items() if key not in _OWN}
    if job:
        JobOptions.of(queue.options, job)
    if "timeout" in options:
        check_seconds("timeout", options["timeout"])
    if not isinstance(options.get("unique", False), bool):
        raise InvalidJobError(f"unique must be True or False, got {options['unique']!r}")
    return options


def _check_json(task: str, path: str, value: Any, depth: int = 0) -> None:
    """Refuse what would come back as something else; the encoder would turn a datetime into a str, say."""
    kind = type(value)
    if kind in _PLAIN:
        return
    if depth >= _MAX_DEPTH:
        raise SerdeError(f"task {task!r}: argument {path.partition('[')[0]} is nested deeper than {_MAX_DEPTH} levels")
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise SerdeError(f"task {task!r}: argument {path} has the key {key!r}; JSON has str keys only")
            _check_json(task, f"{path}[{key!r}]", item, depth + 1)
    elif kind is list or kind is tuple:
        for index, item in enumerate(value):
            _check_json(task, f"{path}[{index}]", item, depth + 1)
    else:
        raise SerdeError(
            f"task {task!r}: argument {path} is a {kind.__name__}, which JSON cannot hold; "
            "allowed are str, int, float, bool, None, and lists and dicts of them"
        )
