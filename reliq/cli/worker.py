"""``reliq worker module:attribute``: runs the jobs of queues that a module defines."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..job import Event
from ..queue import Queue
from ..validate import check_text
from ..worker.pool import STOP_TIMEOUT_S, WorkerPool
from ..worker.signals import SIGNALS
from .apps import load_target
from .child import PARENT_FD, tell_parent
from .common import EXIT_OK, EXIT_TROUBLE, UsageError, add_command, at_least_one, is_memory
from .probes import Address, probes
from .reload import watch_code
from .supervisor import EXIT_REPLACE, Supervisor
from .times import positive_seconds, seconds

if TYPE_CHECKING:
    from argparse import _SubParsersAction

log = logging.getLogger("reliq.cli")

#: Who waits for new code to run does not wait long for old handlers.
RELOAD_DRAIN_S = 5.0
#: With --max-jobs: the most jobs of one claim.
MAX_PREFETCH = 100
#: Leaves room for what the supervisor adds to it.
_MAX_LABEL_BYTES = 100

_LOG_FORMAT = "%(asctime)s %(levelname)s %(process)d %(message)s"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_EPILOG = """\
TARGET is module:attribute, found from the current directory. The attribute is a Queue with a handler, a list of
queues, a WorkerPool, or a function without arguments that returns one of these. RELIQ_APP stands in for it.

examples:
  reliq worker app.jobs:q                       one process, 8 threads
  reliq worker app.jobs:q -t 32                 handlers that mostly wait: more threads
  reliq worker app.jobs:queues --processes 4    handlers that compute: more processes
  reliq worker app.jobs:make_pool               options that this command does not have
  reliq worker app.jobs:q --reload              while you write it: start anew when its code changes
  reliq worker app.jobs:q --processes 2 --max-jobs 10000      handlers that leak memory: fresh processes
  RELIQ_URL=redis://db/0 reliq worker app.jobs:q --burst

signals: SIGTERM or SIGINT once lets the running jobs end (at most --drain-timeout), twice gives them back to their
queues at once.
exit codes: 0 stopped (with --burst: empty; with --max-jobs: so many ran), 1 trouble (or stopped before it was empty),
2 TARGET cannot be used.
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "worker", run, help="run the jobs of one or more queues",
        description="Run the jobs of one or more queues until stopped. Logs go to stderr.", epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("target", nargs="?", metavar="TARGET", help="module:attribute, for example app.jobs:q")
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Everything but TARGET; for the worker commands of frameworks, too."""
    parser.add_argument("-t", "--threads", type=at_least_one, metavar="N", help="threads per process (default: 8)")
    parser.add_argument(
        "--processes", type=at_least_one, default=1, metavar="N",
        help="processes; with 2 or more, ones that die are replaced and their jobs handed back at once (default: 1)",
    )  # fmt: skip
    parser.add_argument("--worker-id", metavar="LABEL", help="what listings call this worker (default: host-pid)")
    parser.add_argument(
        "--worker-ttl", type=positive_seconds, metavar="TIME",
        help="without a heartbeat for so long it counts as dead; raise it if handlers hold the GIL (default: 15s)",
    )  # fmt: skip
    parser.add_argument(
        "--burst", "--until-empty", dest="until_empty", action="store_true", help="end when the queues are empty"
    )
    parser.add_argument(
        "--max-jobs", type=at_least_one, metavar="N",
        help="end after N jobs (and those beside the last one); with --processes each process, which is replaced",
    )  # fmt: skip
    parser.add_argument(
        "--drain-timeout", type=seconds, metavar="TIME",
        help="how long a stop lets running jobs go on before it gives them back (default: 30s, with --reload 5s)",
    )  # fmt: skip
    parser.add_argument("--reload", action="store_true", help="start anew when a .py file of the application changes")
    parser.add_argument(
        "--http", type=Address, metavar="[HOST]:PORT",
        help="answer /healthz and /metrics (the extra prometheus) here; HOST is the loopback unless given; with "
        "--processes the n-th process listens on PORT + n - 1",
    )  # fmt: skip
    parser.add_argument("--log-level", choices=_LEVELS, default="INFO", help="what goes to stderr (default: INFO)")
    parser.add_argument(
        "--url",
        metavar="URL",
        help="the storage of queues that name none (default: the variable RELIQ_URL)",
    )
    parser.add_argument(PARENT_FD, type=int, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run the worker, or supervise several."""
    logging.basicConfig(level=args.log_level, stream=sys.stderr, format=_LOG_FORMAT)
    if args.worker_id is not None:
        check_text("--worker-id", args.worker_id, 128 if args.parent_fd is not None else _MAX_LABEL_BYTES)
    if args.url:
        # Where queues without a URL look; children inherit it, and no process listing shows it.
        os.environ["RELIQ_URL"] = args.url
    args.target = args.target or os.environ.get("RELIQ_APP")
    if not args.target:
        raise UsageError("TARGET is missing: give module:attribute, as in app.jobs:q, or set RELIQ_APP")
    if args.reload and args.until_empty:
        raise UsageError("--reload is for a worker that stays, --burst for one that ends: take one of them")
    if args.drain_timeout is None:
        args.drain_timeout = RELOAD_DRAIN_S if args.reload else STOP_TIMEOUT_S
    target = load_target(args.target)
    if isinstance(target, WorkerPool):
        refused = ("threads", "--threads"), ("worker_id", "--worker-id"), ("worker_ttl", "--worker-ttl")
        for name, option in refused:
            if getattr(args, name) is not None:
                raise UsageError(f"{args.target} is a WorkerPool with options of its own: {option} cannot change it")
    if args.processes > 1 or args.reload:
        return _supervise(args, target)
    return _serve(args, target)


def _serve(args: argparse.Namespace, target: WorkerPool | list[Queue]) -> int:
    pool = target if isinstance(target, WorkerPool) else _make_pool(args, target)
    with probes(args.http, pool):
        return _run_pool(args, pool)


def _run_pool(args: argparse.Namespace, pool: WorkerPool) -> int:
    if args.parent_fd is None:
        return _work(args, pool, EXIT_OK)
    tell_parent(args.parent_fd, pool)
    for number in SIGNALS:  # while the pool does not listen it holds no jobs
        signal.signal(number, _exit)
    try:
        return _work(args, pool, EXIT_REPLACE)
    finally:
        for number in SIGNALS:  # a second signal must not make a clean end look like a crash
            signal.signal(number, signal.SIG_IGN)


def _exit(*_: object) -> None:
    raise SystemExit(EXIT_OK)


def _work(args: argparse.Namespace, pool: WorkerPool, code_at_max: int) -> int:
    """Run the pool to its end; ``code_at_max`` is the exit code when --max-jobs ended it."""
    quota = None if args.max_jobs is None else _Quota(pool, args.max_jobs, args.drain_timeout)
    empty: list[bool] = []

    def drain() -> None:
        empty.append(pool.run_until_empty())
        pool.stop()

    # In a thread of its own: the main one hears the signals, from before the pool starts.
    thread = threading.Thread(target=drain, name="reliq-drain", daemon=True)
    if args.until_empty:
        pool.on("started", lambda _: thread.start())
    pool.run_forever(args.drain_timeout)
    if args.until_empty:
        thread.join()
        if empty == [True]:
            return EXIT_OK
    if quota is not None and quota.is_used_up:
        return code_at_max
    return EXIT_TROUBLE if args.until_empty else EXIT_OK


class _Quota:
    """Stops a pool when so many runs of handlers have ended, however they did."""

    def __init__(self, pool: WorkerPool, jobs: int, drain_timeout: float) -> None:
        self._left = jobs
        self._lock = threading.Lock()
        self._pool = pool
        self._drain_timeout = drain_timeout
        for event in ("completed", "failing", "failed", "requeued", "cancelled"):
            pool.on(event, self._count)

    @property
    def is_used_up(self) -> bool:
        """Whether so many have ended."""
        return self._left <= 0

    def _count(self, _: Event) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            log.info("so many jobs ran as --max-jobs allows: stopping")
            self._pool.quiet()  # at once: the stop is another thread's, and until it begins runners would claim
            self._pool.stop(self._drain_timeout)  # does not wait: this is a thread of the pool


def _supervise(args: argparse.Namespace, target: WorkerPool | list[Queue]) -> int:
    queues = list(target.queues) if isinstance(target, WorkerPool) else target
    for queue in queues:
        if is_memory(queue.storage.url):
            raise UsageError(f"queue {queue.name!r} is in memory: --processes needs a storage that processes can share")
    if args.http is not None:
        try:
            args.http.of(args.processes)
        except argparse.ArgumentTypeError:
            raise UsageError(f"--http {args.http}: the ports of {args.processes} processes go beyond 65535") from None
    arguments = [args.target, "--log-level", args.log_level]
    passed_on = ("--threads", args.threads), ("--worker-ttl", args.worker_ttl), ("--max-jobs", args.max_jobs)
    for option, value in (*passed_on, ("--drain-timeout", args.drain_timeout)):
        if value is not None:
            arguments += [option, f"{value:f}" if isinstance(value, float) else str(value)]
    if args.until_empty:
        arguments.append("--until-empty")
    supervisor = Supervisor(
        queues,
        arguments,
        args.processes,
        worker_id=args.worker_id,
        passes_label=not isinstance(target, WorkerPool),
        until_empty=args.until_empty,
        reloads=args.reload,
        http=args.http,
    )
    if not args.reload:
        return supervisor.run()
    with watch_code(supervisor.reload):
        return supervisor.run()


def _make_pool(args: argparse.Namespace, queues: Sequence[Queue]) -> WorkerPool:
    options: dict[str, Any] = {"threads": args.threads or 8, "worker_id": args.worker_id}
    if args.max_jobs is not None:
        # No more threads than jobs, and no large batches: what was claimed with the last job runs, too.
        options["threads"] = min(options["threads"], args.max_jobs)
        options["prefetch"] = min(MAX_PREFETCH, max(1, args.max_jobs // 100))
    if args.worker_ttl is not None:
        options["worker_ttl"] = args.worker_ttl
    return WorkerPool(queues, **options)
