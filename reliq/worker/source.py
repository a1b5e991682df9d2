"""A queue as the runners of a pool see it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..storage.base import Storage
from .batching import BatchSize
from .execution import Executor


@dataclass(slots=True, eq=False)
class Source:
    """What it takes to claim, run and settle jobs of one queue. ``looked_at``: the last claim, monotonic."""

    name: str
    storage: Storage
    lease_ms: int
    executor: Executor
    size: BatchSize = field(default_factory=BatchSize)
    looked_at: float = -math.inf
