"""``reliq worker module:attribute``: runs the jobs of queues that a module defines."""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..queue import Queue
from ..validate import check_text
from ..worker.pool import WorkerPool
from ..worker.signals import SIGNALS
from .child import PARENT_FD, tell_parent
from .common import EXIT_OK, EXIT_TROUBLE, UsageError, add_url, is_memory
from .supervisor import Supervisor

if TYPE_CHECKING:
    from argparse import _SubParsersAction

#: Leaves room for what the supervisor adds to it.
_MAX_LABEL_BYTES = 100

_LOG_FORMAT = "%(asctime)s %(levelname)s %(process)d %(message)s"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_EPILOG = """\
TARGET is module:attribute, found from the current directory. The attribute is a Queue with a handler, a list of
queues, a WorkerPool, or a function without arguments that returns one of these.

examples:
  reliq worker app.jobs:q                       one process, 8 threads
  reliq worker app.jobs:q -t 32                 handlers that mostly wait: more threads
  reliq worker app.jobs:queues --processes 4    handlers that compute: more processes
  reliq worker app.jobs:make_pool               options that this command does not have
  RELIQ_URL=redis://db/0 reliq worker app.jobs:q --until-empty

signals: SIGTERM or SIGINT once lets the running jobs end, twice gives them back to their queues at once.
exit codes: 0 stopped (with --until-empty: empty), 1 trouble (or stopped before it was empty), 2 TARGET cannot be used.
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "worker",
        help="run the jobs of one or more queues",
        description="Run the jobs of one or more queues until stopped. Logs go to stderr.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="TARGET", help="module:attribute, for example app.jobs:q")
    parser.add_argument("-t", "--threads", type=_at_least_one, metavar="N", help="threads per process (default: 8)")
    parser.add_argument(
        "--processes", type=_at_least_one, default=1, metavar="N",
        help="processes; with 2 or more, ones that die are replaced and their jobs handed back at once (default: 1)",
    )  # fmt: skip
    parser.add_argument("--worker-id", metavar="LABEL", help="what listings call this worker (default: host-pid)")
    parser.add_argument(
        "--worker-ttl", type=_seconds, metavar="SECONDS",
        help="without a heartbeat for so long it counts as dead; raise it for handlers that hold the GIL (default: 15)",
    )  # fmt: skip
    parser.add_argument("--until-empty", action="store_true", help="end when the queues are empty")
    parser.add_argument("--log-level", choices=_LEVELS, default="INFO", help="what goes to stderr (default: INFO)")
    add_url(parser, "the storage of queues that name none")
    parser.add_argument(PARENT_FD, type=int, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the worker, or supervise several."""
    logging.basicConfig(level=args.log_level, stream=sys.stderr, format=_LOG_FORMAT)
    if args.worker_id is not None:
        check_text("--worker-id", args.worker_id, 128 if args.parent_fd is not None else _MAX_LABEL_BYTES)
    if args.url:
        # Where queues without a URL look; children inherit it, and no process listing shows it.
        os.environ["RELIQ_URL"] = args.url
    target = load_target(args.target)
    if isinstance(target, WorkerPool):
        refused = ("threads", "--threads"), ("worker_id", "--worker-id"), ("worker_ttl", "--worker-ttl")
        for name, option in refused:
            if getattr(args, name) is not None:
                raise UsageError(f"{args.target} is a WorkerPool with options of its own: {option} cannot change it")
    if args.processes > 1:
        return _supervise(args, target)
    return _serve(args, target)


def _serve(args: argparse.Namespace, target: WorkerPool | list[Queue]) -> int:
    pool = target if isinstance(target, WorkerPool) else _make_pool(args, target)
    if args.parent_fd is None:
        return _work(pool, args.until_empty)
    tell_parent(args.parent_fd, pool)
    for number in SIGNALS:  # while the pool does not listen it holds no jobs
        signal.signal(number, _exit)
    try:
        return _work(pool, args.until_empty)
    finally:
        for number in SIGNALS:  # a second signal must not make a clean end look like a crash
            signal.signal(number, signal.SIG_IGN)


def _exit(*_: object) -> None:
    raise SystemExit(EXIT_OK)


def _work(pool: WorkerPool, until_empty: bool) -> int:
    if not until_empty:
        pool.run_forever()
        return EXIT_OK
    empty: list[bool] = []

    def drain() -> None:
        empty.append(pool.run_until_empty())
        pool.stop()

    # In a thread of its own: the main one hears the signals, from before the pool starts.
    thread = threading.Thread(target=drain, name="reliq-drain", daemon=True)
    pool.on("started", lambda _: thread.start())
    pool.run_forever()
    thread.join()
    return EXIT_OK if empty == [True] else EXIT_TROUBLE


def _supervise(args: argparse.Namespace, target: WorkerPool | list[Queue]) -> int:
    queues = list(target.queues) if isinstance(target, WorkerPool) else target
    for queue in queues:
        if is_memory(queue.storage.url):
            raise UsageError(f"queue {queue.name!r} is in memory: --processes needs a storage that processes can share")
    arguments = [args.target, "--log-level", args.log_level]
    for option, value in (("--threads", args.threads), ("--worker-ttl", args.worker_ttl)):
        if value is not None:
            arguments += [option, str(value)]
    if args.until_empty:
        arguments.append("--until-empty")
    return Supervisor(
        queues,
        arguments,
        args.processes,
        worker_id=args.worker_id,
        passes_label=not isinstance(target, WorkerPool),
        until_empty=args.until_empty,
    ).run()


def _make_pool(args: argparse.Namespace, queues: Sequence[Queue]) -> WorkerPool:
    options: dict[str, Any] = {"threads": args.threads or 8, "worker_id": args.worker_id}
    if args.worker_ttl is not None:
        options["worker_ttl"] = args.worker_ttl
    return WorkerPool(queues, **options)


def load_target(spec: str) -> WorkerPool | list[Queue]:
    """Import ``module:attribute``; raises UsageError that says what is wrong with it."""
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
    for queue in queues:
        if queue.function is None:
            raise UsageError(f"queue {queue.name!r} of {spec} has no handler: decorate a function with @q.handler")
    return list(queues)


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 86_400:
        raise argparse.ArgumentTypeError(f"must be seconds above 0, got {text}")
    return value


_at_least_one.__name__, _seconds.__name__ = "number", "number of seconds"  # argparse shows them
