"""How fast is it when a producer and a worker are busy at the same time?"""

from __future__ import annotations

from .contest import Contestant, anyone, contest, working
from .harness import Bench, Figure

#: Jobs/s with producer, worker and server sharing two cores.
TARGET = 25_000.0


def measure(bench: Bench) -> list[Figure]:
    """A producer that enqueues as fast as it can (in batches of 100, or from 8 threads) beside a warm worker."""
    found = contest(bench, "both", lambda contestant: _ask(bench, contestant))
    figures = found.figures("rate", "producer and worker at once", "jobs/s", TARGET)
    return [*figures, *found.lead("rate", "the best", anyone)]


def _ask(bench: Bench, contestant: Contestant) -> dict[str, float]:
    """Jobs/s from the first enqueue to the end of the last handler."""
    number = contestant.number(bench.seconds(0.8, 0.2))
    with working(contestant, number) as first:
        answer = contestant.fill(number, first)
        _, ended = contestant.wait(first, number)
        contestant.check(first + number)
    return {"rate": number / (max(ended) - answer["began"])}
