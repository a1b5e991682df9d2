"""The worker pool: composes the threads that run jobs, and stops them in order."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Self

from ..errors import InvalidJobError, ReliqError
from ..hooks import Emitter, Listener, Observer
from ..identity import default_worker_label, unique_name
from ..job import Event
from ..queue import Queue
from ..reaper import Reaper
from ..service import Service
from ..storage.base import Storage, Worker
from ..validate import MAX_WORKER_ID_BYTES, check_int, check_items, check_seconds, check_text, to_ms
from .batching import MAX_SIZE, BatchSize
from .crew import Crew, until
from .execution import AfterExecution, Executor
from .health import Health, health_of
from .ledger import ENDING, EVERYTHING
from .signals import StopSignals
from .source import Source

log = logging.getLogger("reliq")

MAX_THREADS = 1_000
#: How long the first SIGTERM or SIGINT lets running jobs go on.
STOP_TIMEOUT_S = 30.0
#: A signal that arrives just before the main thread blocks does not end that block (Python runs handlers
#: between instructions only), so the block has to end by itself.
_SIGNAL_CHECK_S = 0.2
_CHECK_S = 0.1


class WorkerPool:
    """Runs the handlers of one or several queues on ``threads`` threads per storage.

    ``worker_id`` is the label under which it shows (default: host and pid); two live pools may
    share it. ``worker_ttl``: seconds after which the jobs of a dead pool are recovered;
    a handler that keeps the GIL longer is taken for dead and its job delivered again.
    ``prefetch`` caps the jobs of one claim (1 = no batches); by itself a pool learns how many
    fit into 10 ms. ``reaper=False`` leaves recovery, delayed jobs and schedules to other processes.
    ``after_execution(job, execution)`` is called after each handler (not after a time limit) and may
    change the outcome. Listeners are called on the pool's threads: keep them short.

    A pool starts once. No thread runs before :meth:`start`, and none survives a fork.
    """

    def __init__(
        self,
        queues: Queue | Iterable[Queue],
        threads: int = 8,
        *,
        worker_id: str | None = None,
        worker_ttl: float = 15.0,
        prefetch: int | None = None,
        reaper: bool = True,
        after_execution: AfterExecution | None = None,
    ) -> None:
        self.queues = _check_queues(queues)
        self.threads = check_int("threads", threads, 1, MAX_THREADS)
        label = default_worker_label() if worker_id is None else check_text("worker_id", worker_id, MAX_WORKER_ID_BYTES)
        worker_ttl = check_seconds("worker_ttl", worker_ttl)
        if prefetch is not None:
            check_int("prefetch", prefetch, 1, MAX_SIZE)
        if after_execution is not None and not callable(after_execution):
            raise InvalidJobError(f"after_execution must be callable, got {type(after_execution).__name__}")
        self.worker = Worker(label, unique_name(4), threads, to_ms(worker_ttl))
        self._prefetch = prefetch
        self._has_reaper = reaper
        self._after_execution = after_execution
        self._emitter = Emitter(
            "started", "stopped", "processing", "completed", "failing", "failed", "requeued", "cancelled",
            "stalled", "error",
        )  # fmt: skip
        self._observers: list[Observer] = []
        self._lock = threading.Lock()
        #: Held while a queue is added or removed.
        self._changing = threading.Lock()
        self._crews: list[Crew] = []
        self._pid: int | None = None
        self._is_stopping = False
        self._deadline = math.inf
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        #: What wakes run_forever: "signal", "stopped", "exhausted".
        self._mail: SimpleQueue[str] = SimpleQueue()

    @property
    def worker_id(self) -> str:
        """The label of this pool."""
        return self.worker.label

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._pid == os.getpid() and not self._stopped.is_set()

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Call ``listener(event)``: ``started`` ``stopped`` ``processing`` ``completed`` ``failing`` ``failed``
        ``requeued`` ``cancelled`` ``stalled`` ``error`` or ``*``; returns the way to stop it."""
        return self._emitter.on(event, listener)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call ``observer(queue_name, runs)`` with the runs of jobs that were settled together, each a
        :class:`~reliq.hooks.Run`; returns the way to stop it.

        Once per batch, on the pool's threads: what counts jobs costs a busy pool less here than by :meth:`on`.
        """
        self._observers.append(observer)

        def off() -> None:
            with contextlib.suppress(ValueError):
                self._observers.remove(observer)

        return off

    def health(self) -> Health:
        """Whether its loops (claims, heartbeat, reaper) got through to the storage lately: within ``worker_ttl``, or
        10 s if that is more; for claims, besides, as long as an idle pool waits between looks. Asks no storage."""
        if self._pid != os.getpid():
            return Health("not started")
        if self._stopped.is_set():
            return Health("stopped")
        crews = [crew.health() for crew in self._crews]
        return health_of(crews, self.threads, self.worker.ttl_ms / 1000, self._is_stopping)

    # -- life -------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the threads. Once per pool; returns at once."""
        self._check_pid()
        with self._lock:
            if self._pid is not None:
                raise InvalidJobError("this pool was started already; make a new one to start again")
            for queue in self.queues:
                queue.apply_limits()
            crews = [self._make_crew(storage, queues) for storage, queues in self._group().items()]
            self._pid = os.getpid()
            self._crews = crews
            for crew in crews:
                crew.start()
        self._report(Event("started"))
        return self

    def quiet(self) -> None:
        """Claim nothing more; what was claimed runs on. There is no way back but a new pool."""
        self._check_pid()
        for crew in self._crews:
            crew.quiet()

    def stop(self, timeout: float | None = None) -> None:
        """Claim nothing more, wait up to ``timeout`` seconds (None: as long as it takes) for running jobs,
        then signal ``"stopping"`` to what is left and, after half a second, give it back to the front.

        Jobs given back do not count as attempts. May be called again, from any thread, to shorten the
        wait; called from a handler or listener of this pool it does not wait.
        """
        self._check_pid()
        deadline = math.inf if timeout is None else time.monotonic() + check_seconds("timeout", timeout, zero=True)
        with self._lock:
            if self._pid is None:
                return
            first = not self._is_stopping
            self._is_stopping = True
            self._deadline = min(self._deadline, deadline)
        self._stopping.set()
        inside = any(crew.owns(threading.current_thread()) for crew in self._crews)
        if not first:
            for crew in self._crews:
                crew.ledger.wake_waiters()
        elif inside:
            Service(f"reliq-{self.worker.label}-stop", lambda _: self._stop()).start()
        else:
            self._stop()
        if not inside:
            self._stopped.wait()

    def run_forever(self, stop_timeout: float = STOP_TIMEOUT_S) -> None:
        """Start (unless started) and block until stopped.

        In the main thread one SIGTERM or SIGINT stops it as ``stop(stop_timeout)`` does, a second one
        as ``stop(0)``. Raises SystemExit(1) when so many handlers ignored their time limit that no
        thread could replace them.
        """
        check_seconds("stop_timeout", stop_timeout, zero=True)
        exhausted = False
        with StopSignals(self._mail):
            if self._pid is None:
                self.start()
            self._check_pid()
            timeout = stop_timeout
            while not self._stopped.is_set():
                try:
                    word = self._mail.get(timeout=_SIGNAL_CHECK_S)
                except Empty:
                    continue
                if word == "stopped":
                    break
                exhausted = exhausted or word == "exhausted"
                self._stop_soon(timeout)
                timeout = 0.0
        if exhausted:
            raise SystemExit(1)

    def run_until_empty(self, timeout: float | None = None) -> bool:
        """Work until the queues hold nothing queued, waiting, processing or failing, in any process.

        True then, False after ``timeout`` seconds or when stopped. Scheduled and persistent jobs do not count, nor
        do those that a pause or a rate limit holds at that moment. Starts the pool if need be, and then stops it at
        the end.
        """
        self._check_pid()
        deadline = math.inf if timeout is None else time.monotonic() + check_seconds("timeout", timeout, zero=True)
        starts = self._pid is None
        if starts:
            self.start()
        try:
            return self._wait_until_empty(deadline)
        finally:
            if starts:
                self.stop(max(0.0, until(deadline)) if deadline < math.inf else None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        # After an error nobody waits for handlers that may depend on what just broke.
        self.stop(None if kind is None else 0.0)

    def __repr__(self) -> str:
        return f"WorkerPool({[queue.name for queue in self.queues]}, threads={self.threads})"

    # -- queues that come and go ------------------------------------------------------

    def add(self, queue: Queue) -> None:
        """Serve one more queue, from now on when the pool runs."""
        self._check_pid()
        [queue] = _check_queues(queue)
        with self._changing:
            if self._is_stopping:
                raise InvalidJobError("this pool was stopped: make a new one")
            if any(_is_same(queue, other) for other in self.queues):
                raise InvalidJobError(f"queue {queue.name!r} is in the pool already")
            if self._pid is not None:
                queue.apply_limits()
                crew = self._crew_of(queue.storage)
                if crew is not None:
                    crew.add(self._make_source(queue.storage, queue))
                else:
                    crew = self._make_crew(queue.storage, [queue])
                    crew.start()
                    self._crews = [*self._crews, crew]
            self.queues = (*self.queues, queue)

    def remove(self, queue: Queue, timeout: float | None = None) -> None:
        """Serve a queue no more: claim nothing more from it, wait up to ``timeout`` seconds (None: as long as it takes)
        for its running jobs, then give back what is left, as :meth:`stop` does. The other queues go on.

        Not from a handler or listener of this pool: that would wait for itself.
        """
        self._check_pid()
        deadline = math.inf if timeout is None else time.monotonic() + check_seconds("timeout", timeout, zero=True)
        if any(crew.owns(threading.current_thread()) for crew in self._crews):
            raise InvalidJobError("remove waits for handlers: call it from another thread than theirs")
        with self._changing:
            if not any(other is queue for other in self.queues):
                raise InvalidJobError(f"queue {getattr(queue, 'name', queue)!r} is not in the pool")
            self.queues = tuple(other for other in self.queues if other is not queue)
            if self._pid is None or self._is_stopping:
                return
            crew = self._crew_of(queue.storage)
            if crew is None:
                return
            source = next(source for source in crew.sources if source.name == queue.name)
            if len(crew.sources) > 1:
                crew.remove(source, lambda: until(min(deadline, self._deadline)))
                return
            crew.quiet()
            crew.drain(EVERYTHING, lambda: until(min(deadline, self._deadline)))
            crew.close()
            self._crews = [other for other in self._crews if other is not crew]

    def _crew_of(self, storage: Storage) -> Crew | None:
        return next((crew for crew in self._crews if crew.storage is storage), None)

    # -- inside -----------------------------------------------------------------------

    def _stop(self) -> None:
        """The order of a stop: runners, then what they hold, then the threads that keep it alive."""
        for crew in self._crews:
            crew.ledger.wake_waiters()  # a removal that waits for handlers has this stop's deadline, too
        with self._changing:  # a queue that is being added or removed is so first
            crews = self._crews
        for crew in crews:
            crew.quiet()
        # All at once: each may take as long as the deadline and the grace behind it allow.
        drains = [Service(f"reliq-{self.worker.label}-drain", partial(self._drain, crew)).start() for crew in crews]
        for drain in drains:
            drain.stop()
        for crew in crews:
            crew.close()
        self._report(Event("stopped"))
        self._stopped.set()
        self._mail.put("stopped")

    def _drain(self, crew: Crew, _: threading.Event) -> None:
        crew.drain(EVERYTHING, lambda: until(self._deadline))

    def _stop_soon(self, timeout: float) -> None:
        # Not in this thread: it has to hear the second signal.
        Service(f"reliq-{self.worker.label}-stop", lambda _: self.stop(timeout)).start()

    def _wait_until_empty(self, deadline: float) -> bool:
        while not self._stopping.is_set():
            soon = min(deadline, time.monotonic() + 1.0)
            # Persistent jobs never end; a pool may run them and be empty.
            idle = all(crew.ledger.wait_empty(partial(until, soon), ENDING) for crew in self._crews)
            if idle and self._is_empty():
                return True
            if time.monotonic() >= deadline:
                return False
            if idle:
                self._stopping.wait(max(0.0, min(_CHECK_S, until(deadline))))
        return False

    def _is_empty(self) -> bool:
        for queue in self.queues:
            try:
                if queue.storage.backlog(queue.name):
                    return False
            except Exception as error:
                log.debug("queue %r: its backlog cannot be read: %s", queue.name, error)
                return False
        return True

    def _group(self) -> dict[Storage, list[Queue]]:
        groups: dict[Storage, list[Queue]] = {}
        for queue in self.queues:
            group = groups.setdefault(queue.storage, [])
            if any(other.name == queue.name for other in group):
                raise InvalidJobError(f"queue {queue.name!r} of one storage is in the pool twice")
            group.append(queue)
        return groups

    def _make_crew(self, storage: Storage, queues: list[Queue]) -> Crew:
        reaper = None
        if self._has_reaper:
            reaper = Reaper(storage, [queue.name for queue in queues])
            for name in ("stalled", "failed", "cancelled", "error"):
                reaper.on(name, self._report)
        sources = [self._make_source(storage, queue) for queue in queues]
        return Crew(
            storage, sources, self.worker, self._emitter, self._report, self._exhausted, reaper, self._observers
        )

    def _make_source(self, storage: Storage, queue: Queue) -> Source:
        handler = queue.function
        if handler is None:
            raise InvalidJobError(f"queue {queue.name!r} has no handler: decorate one with @queue.handler first")
        executor = Executor(queue, handler, self.worker.label, self._report, self._after_execution)
        lease_ms = to_ms(queue.options.visibility_timeout)
        return Source(queue.name, storage, lease_ms, executor, BatchSize(self._prefetch))

    def _report(self, event: Event) -> None:
        try:
            self._emitter.emit(event)
        except BaseException:  # a listener that raises SystemExit must not end a runner
            log.exception("a listener of %r raised; the job is not affected", event.name)

    def _exhausted(self) -> None:
        self._mail.put("exhausted")

    def _check_pid(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            raise ReliqError(
                "this pool was started before a fork and its threads are in the parent only: "
                "make and start a pool in the child"
            )


def _is_same(one: Queue, other: Queue) -> bool:
    return one is other or (one.name == other.name and one.storage is other.storage)


def _check_queues(queues: Queue | Iterable[Queue]) -> tuple[Queue, ...]:
    found = (queues,) if isinstance(queues, Queue) else check_items("a pool takes queues", queues)
    if not found:
        raise InvalidJobError("a pool needs at least one queue")
    for queue in found:
        if not isinstance(queue, Queue):
            raise InvalidJobError(f"a pool takes queues, got {type(queue).__name__}")
        if queue.function is None:
            raise InvalidJobError(f"queue {queue.name!r} has no handler: decorate one with @queue.handler first")
    return found
