"""What an application defines: ``module:attribute`` to its queues or pool."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from ..queue import Queue
from ..worker.pool import WorkerPool
from .common import UsageError


def load_target(spec: str) -> WorkerPool | list[Queue]:
    """What a worker runs; raises UsageError that says what is wrong with it."""
    found = _load(spec)
    for queue in [] if isinstance(found, WorkerPool) else found:
        if queue.function is None:
            raise UsageError(f"queue {queue.name!r} of {spec} has no handler: decorate a function with @q.handler")
    return found


def load_queues(spec: str) -> list[Queue]:
    """The queues of an application, with or without handlers: what other commands look at and enqueue to."""
    found = _load(spec)
    return list(found.queues) if isinstance(found, WorkerPool) else found


def _load(spec: str) -> WorkerPool | list[Queue]:
    module_name, colon, path = spec.partition(":")
    if not (module_name and colon and path):
        raise UsageError(f"TARGET must be module:attribute, as in app.jobs:q, got {spec!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, something that it imports is not: the traceback says what
        raise UsageError(f"no module {error.name!r} here ({os.getcwd()}) or on the Python path") from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UsageError(f"{module_name} has no {name!r}, asked for by {spec!r}") from None
    return _check_target(spec, _call_factory(spec, found))


def _call_factory(spec: str, found: Any) -> Any:
    if isinstance(found, Queue | WorkerPool | list | tuple) or not callable(found):
        return found
    try:
        inspect.signature(found).bind()
    except TypeError:
        raise UsageError(
            f"{spec} takes arguments; name a Queue, a list of queues, a WorkerPool or a function without arguments"
        ) from None
    except ValueError:  # a builtin without a signature: the call shows
        pass
    return found()


def _check_target(spec: str, found: Any) -> WorkerPool | list[Queue]:
    if isinstance(found, WorkerPool):
        return found
    queues = [found] if isinstance(found, Queue) else found
    if not isinstance(queues, list | tuple) or not queues or not all(isinstance(queue, Queue) for queue in queues):
        raise UsageError(
            f"{spec} must be a Queue, a list of queues, a WorkerPool or a function that returns one, "
            f"got {type(found).__name__}"
        )
    return list(queues)
