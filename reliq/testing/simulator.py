"""Is my handler idempotent? Run it with a crash and a redelivery at each of its steps, and count its effects."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from ..errors import InvalidJobError
from ..job import Signal
from ..queue import Queue
from ..storage.sql.memory import MemoryStorage
from ..worker.execution import Executor
from .clock import FakeClock
from .running import WORKER_ID, run_one

P = ParamSpec("P")
R = TypeVar("R")

LEASE_S = 5.0
#: Deliveries of one job until its simulation gives up.
MAX_RUNS = 10


class _Crash(BaseException):
    """The end of the simulated process. Not an Exception: a handler should not catch it."""


class Probe:
    """Stands where a handler reaches the outside world: its process can die before and after each wrapped call."""

    def __init__(self, crash_at: int | None = None) -> None:
        self._crash_at = crash_at
        self._points = 0
        self._is_dead = False
        #: What happened, by name and arguments.
        self.effects: Counter[str] = Counter()
        self.points: list[str] = []

    def wrap(self, function: Callable[P, R], name: str | None = None, *, repeatable: bool = False) -> Callable[P, R]:
        """``function`` as an effect. ``repeatable``: doing it twice is as good as once (a write of the same value, a
        request with an idempotency key); you say so, nothing checks it. Its effect must still happen."""
        shown = name or getattr(function, "__name__", None) or type(function).__name__

        @functools.wraps(function)
        def effect(*args: P.args, **kwargs: P.kwargs) -> R:
            values = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
            label = f"{shown}({', '.join(values)})"
            self._point(f"before {label}")
            result = function(*args, **kwargs)
            self.effects[label] = 1 if repeatable else self.effects[label] + 1
            self._point(f"after {label}")
            return result

        return effect

    def _point(self, label: str) -> None:
        if self._is_dead:
            raise _Crash(label)  # a handler that caught its crash: a dead process does nothing more
        self._points += 1
        self.points.append(label)
        if self._crash_at == self._points:
            self._is_dead = True
            raise _Crash(label)

    def _revive(self) -> None:
        self._is_dead = False


Make = Callable[[Probe], Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One crash: where, what the job's end was, and which effects happened too often or not at all."""

    crash: str
    state: str
    error: str | None
    repeated: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def is_safe(self) -> bool:
        """Whether the job ended as it does without a crash."""
        return self.state == "completed" and not self.repeated and not self.missing


@dataclass(frozen=True, slots=True)
class Report:
    """What :func:`simulate` saw; ``str()`` of it explains. ``effects`` are those of a run without a crash."""

    effects: tuple[str, ...]
    scenarios: tuple[Scenario, ...]

    @property
    def is_idempotent(self) -> bool:
        """Whether every crash ended with the same effects as none."""
        return all(each.is_safe for each in self.scenarios)

    @property
    def repeated(self) -> set[str]:
        """The effects that some crash made happen more often."""
        return {effect for each in self.scenarios for effect in each.repeated}

    @property
    def missing(self) -> set[str]:
        """The effects that some crash made never happen: marked as done before they were."""
        return {effect for each in self.scenarios for effect in each.missing}

    def __str__(self) -> str:
        lines = []
        for each in self.scenarios:
            lines.append(f"{'ok  ' if each.is_safe else 'BAD '}crash {each.crash}")
            lines += [f"       happened again: {effect}" for effect in each.repeated]
            lines += [f"       never happened: {effect}" for effect in each.missing]
            if each.state != "completed":
                lines.append(f"       the job ended {each.state}: {each.error}")
        return "\n".join(lines)


def simulate(make: Make, payload: Any = None, *, id: str = "simulated") -> Report:
    """Run a handler to its end once for each point where its process can die, and compare the effects.

    ``make(probe)`` is called for each crash and returns a handler with a world of its own: fresh fakes, whose calls
    go through ``probe.wrap``. The process dies before the handler, before and after each effect, after the handler
    but before the settle, and after the settle, whose answer is lost. Then the lease runs out and the job is
    delivered again. Raises what the handler raises without any crash.

    It sees effects that are wrapped and nothing else; one crash per job, none in the middle of an effect; no two
    runs at the same time. A crash is an exception: ``finally`` and ``with`` run, which they would not in a process
    that is killed. State outside of ``make`` is not reset.
    """
    clean = Probe()
    state, error = _deliver(make, clean, payload, id, "none")
    if state != "completed":
        raise error or InvalidJobError(f"without any crash the job ended {state!r}: there is nothing to compare with")
    if not clean.effects:
        raise InvalidJobError("the handler called no effect: pass what it calls through probe.wrap")
    scenarios = [_scenario(make, Probe(), payload, id, "before the handler", clean.effects)]
    scenarios += [
        _scenario(make, Probe(number), payload, id, label, clean.effects)
        for number, label in enumerate(clean.points, 1)
    ]
    for crash in ("after the handler, before the settle", "after the settle, its answer lost"):
        scenarios.append(_scenario(make, Probe(), payload, id, crash, clean.effects))
    return Report(tuple(clean.effects), tuple(scenarios))


def _scenario(make: Make, probe: Probe, payload: Any, id: str, crash: str, clean: Counter[str]) -> Scenario:
    state, error = _deliver(make, probe, payload, id, crash)
    shown = None if error is None else f"{type(error).__name__}: {error}"
    return Scenario(crash, state, shown, _keys(probe.effects - clean), _keys(clean - probe.effects))


def _keys(counter: Iterable[str]) -> tuple[str, ...]:
    return tuple(counter)


def _deliver(make: Make, probe: Probe, payload: Any, id: str, crash: str) -> tuple[str, BaseException | None]:
    """Run the job with a crash in its first delivery until it ends; its state, and the last error."""
    handler = make(probe)
    with closing(MemoryStorage()) as storage:
        queue = Queue("simulation", storage, visibility_timeout=LEASE_S)
        queue.handler(handler)
        queue.enqueue(id, payload)
        clock = FakeClock(queue)
        error: BaseException | None = None
        if crash != "none":
            _die(queue, handler, crash)
            probe._revive()
        for _ in range(MAX_RUNS):
            status = queue.get_status(id)
            if status is None or status.state in ("completed", "failed"):
                break
            ran = run_one(queue)
            if ran is None:
                clock.advance(LEASE_S * 2)
                continue
            error = ran.error
            if crash == "none":
                break
        status = queue.get_status(id)
        return "gone" if status is None else status.state, error


def _die(queue: Queue, handler: Callable[[Any], Any], crash: str) -> None:
    """The first delivery, by a process that dies. What it holds is never given back: its lease must run out."""
    [job] = queue.claim(worker_id=WORKER_ID)
    if crash != "before the handler":
        executor = Executor(queue, handler, WORKER_ID, lambda event: None)
        finished = executor.run(job._claimed, Signal(), lambda deadline, envelope: None)
        if crash == "after the settle, its answer lost":
            job._worker.settle(finished.outcome)
            job._worker.settle(finished.outcome)  # a worker that got no answer settles again
