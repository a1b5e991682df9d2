"""Prometheus metrics of queues and workers (the extra ``prometheus``).

.. code-block:: python

    from reliq.contrib.prometheus import metrics

    metrics().watch(q)       # count what this process enqueues
    metrics().watch(pool)    # count what its pool runs
    metrics().show(q)        # read the queue at each scrape: once per queue is enough, in whichever process

Counters are per process and add up over processes. Gauges come from the storage: every process that shows a queue
tells the same, so take the ``max`` of them. No label holds an id: there is one series per queue, and state, outcome or
status.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from weakref import WeakKeyDictionary

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as error:
    raise ImportError('reliq.contrib.prometheus needs prometheus_client: pip install "reliq[prometheus]"') from error

from ..errors import InvalidJobError
from ..facts import QueueFacts, queue_facts
from ..hooks import Run
from ..job import Event
from ..queue import Queue
from ..storage.base import Storage
from ..worker.pool import WorkerPool

log = logging.getLogger("reliq")

#: Upper bounds of the buckets of run times, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BOUNDS = [*map(floatToGoString, BUCKETS), "+Inf"]


class _Durations:
    """A histogram as plain numbers."""

    __slots__ = "counts", "total"

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.total = 0.0


class Metrics(Collector):
    """What is counted and shown on one registry; made by :func:`metrics`. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: WeakKeyDictionary[Queue | WorkerPool, None] = WeakKeyDictionary()
        self._enqueues: Counter[tuple[str, str]] = Counter()
        self._runs: Counter[tuple[str, str]] = Counter()
        self._durations: dict[str, _Durations] = {}
        #: By the name of the pool's event.
        self._events: dict[str, Counter[str]] = {"stalled": Counter(), "failed": Counter(), "error": Counter()}
        self._queues: dict[str, Queue] = {}
        self._storages: list[Storage] = []

    def watch(self, target: Queue | WorkerPool) -> None:
        """Count what a Queue object enqueues, or what a pool runs. Once per object, however often it is said."""
        if not isinstance(target, Queue | WorkerPool):
            raise InvalidJobError(f"watch takes a Queue or a WorkerPool, got {type(target).__name__}")
        with self._lock:
            if target in self._watched:
                return
            self._watched[target] = None
        if isinstance(target, Queue):
            target.on("enqueued", self._enqueued)
            target.on("duplicate", self._enqueued)
            return
        target.observe(self._ran)
        for name in self._events:
            target.on(name, self._happened)

    def show(self, target: Queue | Storage) -> None:
        """Read a queue, or every queue of a storage, at each scrape: some round trips for each.

        Queues are told apart by their names, so two of one name on different storages cannot be shown together:
        raises InvalidJobError. On storages that are shown the first one of a name counts.
        """
        if not isinstance(target, Queue | Storage):
            raise InvalidJobError(f"show takes a Queue or a Storage, got {type(target).__name__}")
        with self._lock:
            if isinstance(target, Storage):
                if target not in self._storages:
                    self._storages.append(target)
                return
            shown = self._queues.setdefault(target.name, target)
        if shown is not target and shown.storage is not target.storage:
            raise InvalidJobError(f"a queue {target.name!r} of another storage is shown already: use two registries")

    # -- counting ---------------------------------------------------------------------

    def _enqueued(self, event: Event) -> None:
        status = "queued" if event.name == "enqueued" else "duplicate"
        with self._lock:
            self._enqueues[event.queue, status] += 1

    def _happened(self, event: Event) -> None:
        with self._lock:
            self._events[event.name][event.queue] += 1

    def _ran(self, queue: str, runs: Sequence[Run]) -> None:
        with self._lock:
            durations = self._durations.get(queue)
            if durations is None:
                durations = self._durations[queue] = _Durations()
            counts = durations.counts
            outcomes, seconds = zip(*runs, strict=True)
            for each in seconds:
                counts[bisect_left(BUCKETS, each)] += 1
            durations.total += sum(seconds)
            for outcome, number in Counter(outcomes).items():
                self._runs[queue, outcome] += number

    # -- a scrape ---------------------------------------------------------------------

    def describe(self) -> list[Metric]:
        """The metrics without their samples: registering must not ask a storage."""
        return [*_Counted().all(), *_Shown().all()]

    def collect(self) -> Iterator[Metric]:
        """What was counted, and what the queues hold now."""
        counted = _Counted()
        with self._lock:
            for labels, number in self._enqueues.items():
                counted.enqueues.add_metric(labels, number)
            for labels, number in self._runs.items():
                counted.runs.add_metric(labels, number)
            for name, durations in self._durations.items():
                buckets = list(zip(_BOUNDS, accumulate(durations.counts), strict=True))
                counted.durations.add_metric([name], buckets, durations.total)
            families = {"stalled": counted.stalled, "failed": counted.dead_letters, "error": counted.errors}
            for event, family in families.items():
                for name, number in self._events[event].items():
                    family.add_metric([name], number)
            queues, storages = dict(self._queues), list(self._storages)
        yield from counted.all()
        shown = _Shown()
        for storage in storages:
            try:
                for name in storage.queues():
                    queues.setdefault(name, Queue(name, storage))
            except Exception as error:
                log.warning("metrics: the queues of %s cannot be read: %s", storage.url, error)
        for queue in queues.values():
            try:
                shown.add(queue_facts(queue))
            except Exception as error:  # the others are worth a scrape
                log.warning("metrics: queue %r cannot be read: %s", queue.name, error)
                shown.up.add_metric([queue.name], 0)
        yield from shown.all()


class _Counted:
    """The metrics that this process counts."""

    def __init__(self) -> None:
        self.enqueues = CounterMetricFamily(
            "reliq_enqueues", "Jobs that were enqueued, or found to be duplicates.", labels=("queue", "status")
        )
        self.runs = CounterMetricFamily("reliq_runs", "Runs of handlers that have ended.", labels=("queue", "outcome"))
        self.durations = HistogramMetricFamily(
            "reliq_run_duration_seconds", "How long handlers ran.", labels=("queue",), unit="seconds"
        )
        self.stalled = CounterMetricFamily(
            "reliq_stalled_jobs", "Jobs recovered from workers that were gone or stuck.", labels=("queue",)
        )
        self.dead_letters = CounterMetricFamily(
            "reliq_dead_letters", "Jobs that became dead letters.", labels=("queue",)
        )
        self.errors = CounterMetricFamily(
            "reliq_worker_errors", "Trouble of workers with a storage or with what they read there.", labels=("queue",)
        )

    def all(self) -> list[Metric]:
        return [self.enqueues, self.runs, self.durations, self.stalled, self.dead_letters, self.errors]


class _Shown:
    """The metrics that the storage knows."""

    def __init__(self) -> None:
        self.jobs = GaugeMetricFamily("reliq_jobs", "Jobs by state.", labels=("queue", "state"))
        self.oldest = GaugeMetricFamily(
            "reliq_oldest_wait_seconds", "How long the job that comes next has been ready; 0 without one.",
            labels=("queue",), unit="seconds",
        )  # fmt: skip
        self.workers = GaugeMetricFamily("reliq_workers", "Live workers.", labels=("queue",))
        self.threads = GaugeMetricFamily("reliq_worker_threads", "Threads of live workers.", labels=("queue",))
        self.paused = GaugeMetricFamily("reliq_queue_paused", "1 while the queue is paused.", labels=("queue",))
        self.up = GaugeMetricFamily("reliq_queue_up", "0 when the queue could not be read.", labels=("queue",))

    def add(self, facts: QueueFacts) -> None:
        name = facts.queue
        for state, number in facts.counts.items():
            self.jobs.add_metric((name, state), number)
        self.oldest.add_metric([name], facts.oldest_wait or 0.0)
        self.workers.add_metric([name], len(facts.workers))
        self.threads.add_metric([name], sum(worker.threads for worker in facts.workers))
        self.paused.add_metric([name], facts.is_paused)
        self.up.add_metric([name], 1)

    def all(self) -> list[Metric]:
        return [self.jobs, self.oldest, self.workers, self.threads, self.paused, self.up]


_lock = threading.Lock()
_made: WeakKeyDictionary[CollectorRegistry, Metrics] = WeakKeyDictionary()


def metrics(registry: CollectorRegistry = REGISTRY) -> Metrics:
    """The :class:`Metrics` of a registry, registered when it is first asked for."""
    with _lock:
        found = _made.get(registry)
        if found is None:
            found = Metrics()
            registry.register(found)
            _made[registry] = found
        return found
