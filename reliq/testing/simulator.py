"""Is my handler idempotent? Run it with a crash and a redelivery at each of its steps, and count its effects."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from ..errors import InvalidJobError
from ..manual import ClaimedJob
from ..queue import Handler, Queue
from ..storage.sql.memory import MemoryStorage
from .clock import FakeClock
from .running import WORKER_ID, execute

P = ParamSpec("P")
R = TypeVar("R")

LEASE_S = 5.0
#: More than the three of a queue by default: a crash takes one of them.
MAX_ATTEMPTS = 5
#: The place of an object in memory is another one in each run.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class _Crash(BaseException):
    """The end of the simulated process. Not an Exception: a handler should not catch it."""


class Probe:
    """Stands where a handler reaches the outside world: its process can die before and after each wrapped call."""

    def __init__(self, crash_at: int | None = None) -> None:
        self._crash_at = crash_at
        self._is_dead = False
        self._deliveries = 0
        #: What happened, by name and arguments.
        self.effects: Counter[str] = Counter()
        #: Where the process could have died, in order.
        self.points: list[str] = []

    def wrap(self, function: Callable[P, R], name: str | None = None, *, repeatable: bool = False) -> Callable[P, R]:
        """``function`` as an effect. ``repeatable``: doing it twice is as good as once (a write of the same value, a
        request with an idempotency key); you say so, nothing checks it. Its effect must still happen."""
        shown = name or getattr(function, "__name__", None) or type(function).__name__

        @functools.wraps(function)
        def effect(*args: P.args, **kwargs: P.kwargs) -> R:
            values = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
            label = _ADDRESS.sub("", f"{shown}({', '.join(values)})")
            self._point(f"before {label}")
            result = function(*args, **kwargs)
            self.effects[label] = 1 if repeatable else self.effects[label] + 1
            self._point(f"after {label}")
            return result

        return effect

    def _point(self, label: str) -> None:
        if self._is_dead:
            raise _Crash(label)  # a handler that caught its crash: a dead process does nothing more
        self.points.append(label if self._deliveries < 2 else f"{label} (delivery {self._deliveries})")
        if self._crash_at == len(self.points):
            self._is_dead = True
            raise _Crash(label)

    def _begin(self) -> None:
        """A living process has the job."""
        self._is_dead = False
        self._deliveries += 1
        self._point("before the handler")


Make = Callable[[Probe], Handler]


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
    but before the settle, and after the settle, whose answer is lost; in each delivery, where a handler asks for more
    by ``Retry``. Then the lease runs out and the job is delivered again. Raises what the handler raises without any
    crash, and InvalidJobError when it has no effects or others in each run: then nothing can be compared.

    It sees effects that are wrapped and nothing else; one crash per job, none in the middle of an effect; no two
    runs at the same time. Effects are told apart by name and arguments. A crash is an exception: ``finally`` and
    ``with`` run, which they would not in a process that is killed. State outside of ``make`` is not reset.
    """
    clean = _run_clean(make, payload, id)
    again = _run_clean(make, payload, id)
    if clean.points != again.points:
        raise InvalidJobError(
            "two runs without a crash did not have the same effects, so there is nothing to compare with: "
            f"{_list(clean.effects)}, then {_list(again.effects)}; "
            "arguments that are new in each run (times, random ids) and state outside of make do that"
        )
    scenarios = [_scenario(make, number, payload, id, clean) for number in range(1, len(clean.points) + 1)]
    return Report(tuple(clean.effects), tuple(scenarios))


def _run_clean(make: Make, payload: Any, id: str) -> Probe:
    probe = Probe()
    state, error = _deliver(make, probe, payload, id)
    if state != "completed":
        raise error or InvalidJobError(f"without any crash the job ended {state!r}: there is nothing to compare with")
    if not probe.effects:
        raise InvalidJobError("the handler called no effect: pass what it calls through probe.wrap")
    return probe


def _scenario(make: Make, number: int, payload: Any, id: str, clean: Probe) -> Scenario:
    probe = Probe(number)
    state, error = _deliver(make, probe, payload, id)
    crash = clean.points[number - 1]
    if probe.points[number - 1 : number] != [crash]:
        raise InvalidJobError(f"the handler does not do the same in each run: it did not come to the crash {crash}")
    shown = None if error is None else f"{type(error).__name__}: {error}"
    return Scenario(crash, state, shown, tuple(probe.effects - clean.effects), tuple(clean.effects - probe.effects))


def _list(effects: Counter[str]) -> str:
    return ", ".join(effects) or "none"


def _deliver(make: Make, probe: Probe, payload: Any, id: str) -> tuple[str, BaseException | None]:
    """Deliver the job until it ends, again after a crash; its state, and the last error."""
    handler = make(probe)
    error: BaseException | None = None
    with closing(MemoryStorage()) as storage:
        queue = Queue("simulation", storage, visibility_timeout=LEASE_S, max_attempts=MAX_ATTEMPTS)
        queue.enqueue(id, payload)
        clock = FakeClock(queue)
        # It ends: each delivery is an attempt, also one whose process died.
        while (status := queue.get_status(id)) is not None and status.state not in ("completed", "failed"):
            if jobs := queue.claim(worker_id=WORKER_ID):
                with suppress(_Crash):
                    error = _run(queue, handler, jobs[0], probe)
            else:
                delay = 0.0 if status.due_at is None else status.due_at - status.updated_at
                clock.advance(max(LEASE_S * 2, delay))
        return "gone" if status is None else status.state, error


def _run(queue: Queue, handler: Handler, job: ClaimedJob, probe: Probe) -> BaseException | None:
    """One delivery, and the error of its handler. A process that dies gives nothing back: its lease must run out."""
    probe._begin()
    finished = execute(queue, handler, job)
    probe._point("after the handler, before the settle")  # also the end of one that died inside of the handler
    job._worker.settle(finished.outcome)
    try:
        probe._point("after the settle, its answer lost")
    except _Crash:
        job._worker.settle(finished.outcome)  # a worker that got no answer settles again
        raise
    return finished.error
