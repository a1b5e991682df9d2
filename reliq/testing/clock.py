"""Time that passes when a test says so."""

from __future__ import annotations

from ..queue import Queue
from ..reaper import Reaper
from ..validate import check_seconds, to_ms

#: Time passes in steps with a reap after each, as it does in production; the steps of a long time are longer.
MIN_STEP_S = 1.0
MAX_STEP_S = 60.0
STEPS = 600
#: Workers and leases are looked at so often. A reaper that comes later than twice its interval gives workers time to
#: report; an interval of a second would make that depend on how fast the test runs.
UPKEEP_S = 5.0


class FakeClock:
    """Moves the clock of a queue's storage: delays, leases, backoff, TTLs and schedules follow. It never waits.

    It starts at the real time. It moves the storage object of this process only, and looks after all queues on it;
    what waits by the clock of the process (``call`` and its timeout, ``time_limit``, ``job.deadline``, ``time.time()``
    in a handler) does not see it. No pool or reaper may run on them.
    """

    def __init__(self, queue: Queue) -> None:
        self._storage = queue.storage  # asked once: a queue may be elsewhere later, as after ``isolated``
        self._reap(UPKEEP_S)  # the first look ever is a late one too

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass: due jobs get queued, leases run out, schedules tick, expired records go.

        Up to ten minutes in steps of a second, longer times in steps of up to a minute. A lease that ran out is
        noticed within 5 seconds, or one step.
        """
        left = check_seconds("seconds", seconds)
        step = min(MAX_STEP_S, max(MIN_STEP_S, left / STEPS))
        while left > 0:
            passed = min(step, left)
            self._storage.skew_ms += to_ms(passed)
            left -= passed
            self._reap(max(UPKEEP_S, step))

    def _reap(self, interval: float) -> None:
        Reaper(self._storage, interval=interval).run_once()

    def __repr__(self) -> str:
        return f"FakeClock({self._storage!r}, {self._storage.skew_ms / 1000:+g} s)"
