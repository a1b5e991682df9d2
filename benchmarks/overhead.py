"""What do metrics and traces cost a worker that works off no-op jobs?"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reliq import Queue, WorkerPool

from .drain import drain_of, jobs_of, preload
from .harness import Bench, Figure

METRICS = 5.0
TRACING = 15.0

#: Instruments a queue and its pool, and gives the way to stop it.
Instrument = Callable[[Queue, WorkerPool], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to be watched, beside the same drain by a worker that is not."""

    name: str
    target: float | None
    needs: str
    instrument: Instrument
    headers: Callable[[int], dict[str, str]] | None = None


def measure(bench: Bench) -> list[Figure]:
    """Bare and watched drains in turn, of equal jobs; the cost of a case by the bare ones before and behind it.

    By the worker's processor time: how its threads share the cores with the server moves a drain by 30 %.
    """
    cases = [case for case in CASES if _is_installed(case.needs)]
    if len(cases) == 1:
        bench.say("overhead: left out, neither prometheus_client nor opentelemetry is installed")
        return []
    found = bench.repeat("overhead", lambda: _round(bench, cases), on_empty=False)
    return [Figure("drain, not watched, time of the processor", "us/job", found["bare"])] + [
        Figure(f"  more with {case.name}", "%", found[case.name], case.target, "at most") for case in cases
    ]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package around it
        return False


def _round(bench: Bench, cases: list[Case]) -> dict[str, float]:
    number = bench.amount(8_000, 4_000)
    times = bench.amount(3, 1)
    bare = [_seconds(bench, number, None)]
    found = {}
    for case in cases:
        more = []
        for _ in range(times):
            watched = _seconds(bench, number, case)
            bare.append(_seconds(bench, number, None))
            more.append(100 * (2 * watched / (bare[-2] + bare[-1]) - 1))
        found[case.name] = statistics.median(more)
    return {"bare": 1_000_000 * statistics.median(bare) / number, **found}


def _seconds(bench: Bench, number: int, case: Case | None) -> float:
    bench.empty()
    offs: list[Callable[[], object]] = []

    def prepare(queue: Queue, pool: WorkerPool) -> None:
        if case is not None:
            offs.append(case.instrument(queue, pool))

    jobs = jobs_of(number, None if case is None else case.headers)
    with bench.storage() as storage:
        preload(storage, jobs)
        began = time.process_time()
        try:
            drain_of(storage, jobs, prepare)
            return time.process_time() - began
        finally:
            for off in offs:
                off()


def _traced(number: int) -> dict[str, str]:
    """As a producer that is traced writes them, of jobs that were enqueued one by one."""
    return {"traceparent": f"00-4bf92f3577b34da6a3ce929d0e0e4736-{number + 1:016x}-01"}


def _metrics(queue: Queue, pool: WorkerPool) -> Callable[[], object]:
    from prometheus_client import CollectorRegistry

    from reliq.contrib.prometheus import metrics

    found = metrics(CollectorRegistry())
    found.watch(queue)
    found.watch(pool)
    return lambda: None


def _api_only(queue: Queue, _: WorkerPool) -> Callable[[], object]:
    from opentelemetry.trace import NoOpTracerProvider

    from reliq.contrib.opentelemetry import instrument

    return instrument(queue, tracer_provider=NoOpTracerProvider())


def _sdk(sampled: bool) -> Instrument:
    def instrument_it(queue: Queue, _: WorkerPool) -> Callable[[], object]:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

        from reliq.contrib.opentelemetry import instrument

        class Nowhere(SpanExporter):
            def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002 (its signature)
                return SpanExportResult.SUCCESS

        provider = TracerProvider(ALWAYS_ON if sampled else ALWAYS_OFF, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(Nowhere()))
        off = instrument(queue, tracer_provider=provider)

        def stop() -> None:
            off()
            provider.shutdown()

        return stop

    return instrument_it


def _nothing(*_: object) -> Callable[[], object]:
    return lambda: None


CASES = [
    Case("headers on each job, not watched", None, "reliq", _nothing, _traced),
    Case("metrics", METRICS, "prometheus_client", _metrics),
    Case("tracing, no SDK", TRACING, "opentelemetry", _api_only, _traced),
    Case("tracing, not sampled", TRACING, "opentelemetry.sdk", _sdk(False), _traced),
    Case("tracing, every job sampled", TRACING, "opentelemetry.sdk", _sdk(True), _traced),
]
