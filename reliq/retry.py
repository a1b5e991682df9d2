"""How long to wait before the next attempt. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from .errors import InvalidJobError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delay between attempts: ``base * factor ** (attempt - 1)``, at most ``cap``.

    ``base`` and ``cap`` in seconds. ``jitter`` is the share of each delay that is random:
    0.1 spreads a delay of 10 s evenly over 9-11 s, so that jobs which failed together do
    not come back together; 0 makes it exact.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name, low, high in (
            ("base", 0.0, math.inf),
            ("factor", 1.0, math.inf),
            ("cap", 0.0, math.inf),
            ("jitter", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidJobError(f"Backoff {name} must be a finite number, got {value!r}")
            if not low <= value <= high:
                limit = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
                raise InvalidJobError(f"Backoff {name} must be {limit}, got {value!r}")

    def delay(self, attempt: int) -> float:
        """Seconds to wait after attempt number ``attempt`` (1 = the first) failed."""
        try:
            delay = min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:
            delay = self.cap
        return delay * random.uniform(1 - self.jitter, 1 + self.jitter)
