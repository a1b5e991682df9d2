"""What becomes of handlers that take time: are all threads busy, and does batching make jobs wait behind others?"""

from __future__ import annotations

from .contest import THREADS, Contestant, contest, nobody, working
from .harness import Bench, Figure

#: Of what threads over handler time allow.
SHARE = 95.0
#: Seconds until the last of 32 jobs of 50 ms starts on 32 runners.
LAST_START = 0.15
_POOLS = 4
_NAP_MS = 50


def measure(bench: Bench) -> list[Figure]:
    """Handlers that sleep 1 ms and 50 ms; then few long jobs for many runners that have learned on no-op jobs."""
    figures = []
    for ms in (_NAP_MS,) if bench.quick else (1, _NAP_MS):
        found = contest(bench, f"handlers of {ms} ms", lambda one, ms=ms: {"share": _share(bench, one, ms)})  # type: ignore[misc]
        figures += found.figures("share", f"handlers of {ms} ms, of the ideal", "%", SHARE)
    fair = contest(bench, "few long jobs", lambda one: {"start": _last_start(bench, one)}, nobody)
    label = f"last start of {_POOLS * THREADS} jobs of {_NAP_MS} ms, {_POOLS} pools"
    return [*figures, *fair.figures("start", label, "s", LAST_START, less=True)]


def _share(bench: Bench, contestant: Contestant, ms: int) -> float:
    seconds = bench.seconds(0.8, 0.4)
    # As many as fit into the time, or as many as the peer gets done in it.
    number = min(int(THREADS * 1000 * seconds) // ms, contestant.number(seconds))
    contestant.clear(number)
    contestant.fill(number, ms=ms)
    contestant.start_workers()
    try:
        began, ended = contestant.wait(0, number)
        contestant.check(number)
    finally:
        contestant.stop_workers()
    return 100 * number * ms / 1000 / THREADS / (max(ended) - min(began))


def _last_start(bench: Bench, contestant: Contestant) -> float:
    learning, number = bench.amount(40_000, 5_000), _POOLS * THREADS
    with working(contestant, learning + number, _POOLS) as first:
        bench.await_steady(_POOLS)
        contestant.fill(learning, first)
        contestant.wait(first, learning)
        answer = contestant.enqueue_many(number, first + learning, ms=_NAP_MS)
        began, _ = contestant.wait(first + learning, number)
    return max(began) - float(answer["began"])
