"""Whether the loops of a pool get on: what ``/healthz`` tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: However short a worker's TTL is, a loop may take so long: a busy machine is no sick one.
LEAST_LIMIT_S = 10.0


class CrewHealth(NamedTuple):
    """The loops around one storage, in seconds since they last got through to it.

    ``ages``: of claims and heartbeat, by queue. ``looks_every``: how often an idle pool looks without being told to.
    """

    ages: dict[str, tuple[float, float]]
    reaped: float | None
    busy: int
    looks_every: float


@dataclass(frozen=True, slots=True)
class LoopHealth:
    """One loop: ``claims``, ``heartbeat`` or ``reaper`` (which has no queue). It lags when older than its limit."""

    loop: str
    queue: str | None
    age_seconds: float
    limit_seconds: float

    @property
    def lags(self) -> bool:
        """Whether it has not got through for too long."""
        return self.age_seconds > self.limit_seconds


@dataclass(frozen=True, slots=True)
class Health:
    """How a pool does: ``status`` is ``ok``, ``lagging``, ``stopping``, ``stopped`` or ``not started``."""

    status: str
    busy_threads: int = 0
    threads: int = 0
    loops: list[LoopHealth] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        """Whether to let it go on: it does its work, or is ending in good order."""
        return self.status in ("ok", "stopping")


def health_of(crews: Sequence[CrewHealth], threads: int, worker_ttl: float, is_stopping: bool) -> Health:
    """The verdict on a pool that runs. One that stops claims nothing any more, but keeps alive what it holds."""
    limit = max(worker_ttl, LEAST_LIMIT_S)
    loops: list[LoopHealth] = []
    for crew in crews:
        for queue, (claimed, beaten) in crew.ages.items():
            if not is_stopping:
                loops.append(LoopHealth("claims", queue, claimed, limit + crew.looks_every))
            loops.append(LoopHealth("heartbeat", queue, beaten, limit))
        if crew.reaped is not None:
            loops.append(LoopHealth("reaper", None, crew.reaped, limit))
    good = "stopping" if is_stopping else "ok"
    status = "lagging" if any(loop.lags for loop in loops) else good
    return Health(status, sum(crew.busy for crew in crews), threads * len(crews), loops)
