"""A queue as the runners of a pool see it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from ..storage.base import Storage
from .batching import BatchSize
from .execution import Executor


@dataclass(slots=True, eq=False)
class Source:
    """What it takes to claim, run and settle jobs of one queue.

    ``looked_at``: the last claim, monotonic; ``claimed_at`` and ``beaten_at``: the last claim and heartbeat that the
    storage answered (at first: when this was made); ``held_until``: when a rate limit has its next token, as far
    as this pool knows, -inf while none holds it; ``is_closed``: the pool gave the queue up, what is claimed is handed
    back; ``is_left``: nor is anything claimed any more, the pool signs off (set under the ledger's lock).
    """

    name: str
    storage: Storage
    lease_ms: int
    executor: Executor
    size: BatchSize = field(default_factory=BatchSize)
    looked_at: float = -math.inf
    claimed_at: float = field(default_factory=time.monotonic)
    beaten_at: float = field(default_factory=time.monotonic)
    held_until: float = -math.inf
    is_closed: bool = False
    is_left: bool = False
