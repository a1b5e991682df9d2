"""How long to wait before the next attempt. Pure."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

from .errors import InvalidJobError

#: 100 years: beyond it a number of seconds is a mistake (milliseconds, or an epoch).
MAX_SECONDS = 100 * 365.25 * 86400


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delay between attempts: ``base * factor ** (attempt - 1)``, at most ``cap``.

    ``base`` and ``cap`` in seconds, at most 100 years. ``jitter`` is the share of each delay that is random:
    0.1 spreads a delay of 10 s evenly over 9-11 s, so that jobs which failed together do
    not come back together; 0 makes it exact.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name, low, high in (
            ("base", 0.0, MAX_SECONDS),
            ("factor", 1.0, sys.float_info.max),
            ("cap", 0.0, MAX_SECONDS),
            ("jitter", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidJobError(f"Backoff {name} must be a finite number, got {value!r:.80}")
            # Compared before anything converts or prints it: an int may be larger than floats and repr can take.
            if not low <= value <= high:
                got = f"{value:g}" if isinstance(value, float) or abs(value) < 2**64 else "a larger int"
                raise InvalidJobError(f"Backoff {name} must be a finite number from {low:g} to {high:g}, got {got}")

    def delay(self, attempt: int) -> float:
        """Seconds to wait after attempt number ``attempt`` (1 = the first) failed."""
        try:
            delay = min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:
            delay = self.cap
        return min(MAX_SECONDS, delay * random.uniform(1 - self.jitter, 1 + self.jitter))
