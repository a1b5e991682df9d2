"""What is counted and shown, by its names, labels and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing

import pytest

from reliq import InvalidJobError, Job, MemoryStorage, Queue, Reaper, Reject, WorkerPool
from reliq.storage.base import Worker

prometheus_client = pytest.importorskip("prometheus_client", reason='pip install "reliq[prometheus]"')

from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from reliq.contrib.prometheus import BUCKETS, Metrics, metrics  # noqa: E402

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def found(registry: CollectorRegistry) -> Metrics:
    return metrics(registry)


@pytest.fixture
def q() -> Iterator[Queue]:
    storage = MemoryStorage()
    queue = Queue("emails", storage, max_attempts=1)

    @queue.handler
    def run(job: Job) -> None:
        if job.payload == "fail":
            raise ValueError("no")
        if job.payload == "reject":
            raise Reject("never")

    yield queue
    queue.close()
    storage.close()


def scrape(registry: CollectorRegistry) -> Samples:
    """Every sample, as a Prometheus server reads it."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_runs_are_counted_by_how_they_ended(q: Queue, found: Metrics, registry: CollectorRegistry) -> None:
    pool = WorkerPool(q, threads=2)
    found.watch(q)
    found.watch(pool)
    q.enqueue_many([(f"j{n}", None) for n in range(20)])
    q.enqueue("j0")
    q.enqueue("bad", "fail")
    q.enqueue("worse", "reject")
    assert pool.run_until_empty(10.0)
    samples = scrape(registry)
    assert value(samples, "reliq_enqueues_total", queue="emails", status="queued") == 22
    assert value(samples, "reliq_enqueues_total", queue="emails", status="duplicate") == 1
    assert value(samples, "reliq_runs_total", queue="emails", outcome="completed") == 20
    assert value(samples, "reliq_runs_total", queue="emails", outcome="failed") == 2
    assert value(samples, "reliq_dead_letters_total", queue="emails") == 2
    assert value(samples, "reliq_run_duration_seconds_count", queue="emails") == 22
    assert value(samples, "reliq_run_duration_seconds_bucket", queue="emails", le="+Inf") == 22
    assert 0 < value(samples, "reliq_run_duration_seconds_sum", queue="emails") < 10


def test_a_run_is_as_long_as_its_handler(found: Metrics, registry: CollectorRegistry) -> None:
    with closing(MemoryStorage()) as storage, Queue("slow", storage, max_attempts=1) as queue:

        @queue.handler
        def run(job: Job) -> None:
            job.signal.wait(job.payload)  # a time limit ends the second one from outside

        pool = WorkerPool(queue, threads=2)
        found.watch(pool)
        queue.enqueue("short", 0.03)
        queue.enqueue("long", 5, time_limit=0.15)
        assert pool.run_until_empty(10.0)
    samples = scrape(registry)
    buckets = [value(samples, "reliq_run_duration_seconds_bucket", queue="slow", le=str(le)) for le in (0.025, 2.5)]
    assert buckets == [0, 2]
    assert 0.18 <= value(samples, "reliq_run_duration_seconds_sum", queue="slow") < 3


def test_buckets_include_their_bound(found: Metrics, registry: CollectorRegistry) -> None:
    from reliq.hooks import Run

    found._ran("q", [Run("completed", 0.001), Run("completed", 0.0011), Run("completed", 1e6)])
    samples = scrape(registry)
    counts = [
        value(samples, "reliq_run_duration_seconds_bucket", queue="q", le=str(le)) for le in (*BUCKETS[:2], 300.0)
    ]
    assert counts == [1, 2, 2]
    assert value(samples, "reliq_run_duration_seconds_count", queue="q") == 3


def test_what_a_reaper_recovers_is_counted(found: Metrics, registry: CollectorRegistry) -> None:
    with closing(MemoryStorage()) as storage, Queue("q", storage) as queue:
        queue.handler(lambda job: None)
        queue.enqueue("j1")
        gone = Worker("gone", "1", 1, 1)
        storage.claim("q", gone, 1, serial=1, lease_ms=1)
        pool = WorkerPool(queue, threads=1)
        found.watch(pool)
        assert pool.run_until_empty(10.0)
    assert value(scrape(registry), "reliq_stalled_jobs_total", queue="q") == 1


def test_queues_are_read_at_the_scrape(q: Queue, found: Metrics, registry: CollectorRegistry) -> None:
    found.show(q)
    assert value(scrape(registry), "reliq_jobs", queue="emails", state="queued") == 0
    q.enqueue_many([("a", None), ("b", None)])
    q.enqueue("later", delay=60)
    q.pause()
    samples = scrape(registry)
    assert value(samples, "reliq_jobs", queue="emails", state="queued") == 2
    assert value(samples, "reliq_jobs", queue="emails", state="scheduled") == 1
    assert value(samples, "reliq_queue_paused", queue="emails") == 1
    assert value(samples, "reliq_queue_up", queue="emails") == 1
    assert value(samples, "reliq_oldest_wait_seconds", queue="emails") >= 0
    assert value(samples, "reliq_workers", queue="emails") == 0
    q.resume()
    with WorkerPool(q, threads=3) as pool:
        assert pool.run_until_empty(10.0)
        samples = scrape(registry)
        assert value(samples, "reliq_workers", queue="emails") == 1
        assert value(samples, "reliq_worker_threads", queue="emails") == 3
        assert value(samples, "reliq_jobs", queue="emails", state="completed") == 2


def test_a_storage_shows_all_its_queues(q: Queue, found: Metrics, registry: CollectorRegistry) -> None:
    found.show(q.storage)
    found.show(q.storage)
    assert ("reliq_jobs", (("queue", "emails"), ("state", "queued"))) not in scrape(registry)
    q.enqueue("a")
    Queue("other", q.storage).enqueue_many([("a", None), ("b", None)])
    samples = scrape(registry)
    assert value(samples, "reliq_jobs", queue="emails", state="queued") == 1
    assert value(samples, "reliq_jobs", queue="other", state="queued") == 2


def test_a_queue_that_cannot_be_read_is_told_apart(
    q: Queue, found: Metrics, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(MemoryStorage()) as broken:
        found.show(q)
        found.show(Queue("away", broken))
        monkeypatch.setattr(broken, "counts", lambda queue: 1 / 0)
        samples = scrape(registry)
    assert value(samples, "reliq_queue_up", queue="away") == 0
    assert value(samples, "reliq_queue_up", queue="emails") == 1
    assert ("reliq_workers", (("queue", "away"),)) not in samples


def test_two_queues_of_one_name_are_refused(q: Queue, found: Metrics) -> None:
    with closing(MemoryStorage()) as other:
        found.show(q)
        found.show(Queue("emails", q.storage))
        with pytest.raises(InvalidJobError, match="'emails' of another storage"):
            found.show(Queue("emails", other))


def test_wrong_targets_are_refused(q: Queue, found: Metrics) -> None:
    with pytest.raises(InvalidJobError, match="Queue or a WorkerPool, got str"):
        found.watch("emails")  # type: ignore[arg-type]
    with pytest.raises(InvalidJobError, match="Queue or a Storage, got Reaper"):
        found.show(Reaper(q))  # type: ignore[arg-type]


def test_a_registry_has_one_and_a_target_counts_once(q: Queue, registry: CollectorRegistry) -> None:
    for _ in range(3):
        metrics(registry).watch(q)
    q.enqueue("a")
    assert value(scrape(registry), "reliq_enqueues_total", queue="emails", status="queued") == 1
    assert metrics(CollectorRegistry()) is not metrics(registry)


def test_registering_and_names_ask_no_storage(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(MemoryStorage()) as storage:
        monkeypatch.setattr(storage, "queues", lambda: 1 / 0)
        found = Metrics()
        found.show(storage)
        registry.register(found)
        names = {metric.name for metric in found.describe()}
    assert "reliq_runs" in names
    assert "reliq_jobs" in names


def test_no_label_grows_with_the_jobs(q: Queue, found: Metrics, registry: CollectorRegistry) -> None:
    pool = WorkerPool(q, threads=1)
    for target in (q, pool):
        found.watch(target)
    found.show(q)
    q.enqueue("first")
    pool.start()
    assert pool.run_until_empty(10.0)
    before = {key for key in scrape(registry) if not key[0].endswith("_created")}
    q.enqueue_many([(f"id-{n}", {"n": n}) for n in range(50)])
    assert pool.run_until_empty(10.0)
    pool.stop()
    after = scrape(registry)
    assert {key for key in after if not key[0].endswith("_created")} == before
    assert {label for _, labels in after for label, _ in labels} == {"queue", "state", "outcome", "status", "le"}
    assert not any(math.isnan(number) for number in after.values())
