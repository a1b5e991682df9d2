"""Nothing may fall below 70 % of what it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.guard import ratios
from benchmarks.guard.ratios import ENOUGH, RATIOS, baseline, measure
from benchmarks.harness import Bench
from reliq import EnqueueResult, Queue
from tests.servers import RedisServer

#: A machine that is disturbed is looked at again, so many times in all.
LOOKS = 4


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with RedisServer() as server:
        bench = Bench(server, 3, quick=True)
        yield bench
        bench.close()


def best_look(bench: Bench, name: str, least: float) -> float:
    """The best of several looks, or the first that is enough."""
    best = 0.0
    for _ in range(LOOKS):
        best = max(best, measure(bench, name, 3))
        if best >= least:
            break
    return best


@pytest.mark.parametrize("name", RATIOS)
def test_ratio_has_not_fallen(name: str, bench: Bench) -> None:
    least = ENOUGH * baseline()[name]
    found = best_look(bench, name, least)
    assert found >= least, f"{RATIOS[name].__doc__} It is {found:.3g}, at least {least:.3g} was expected."


def test_control_an_enqueue_that_takes_three_times_as_long_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Queue):
        def enqueue(self, id: str | None, payload: Any = None, **options: Any) -> EnqueueResult:
            super().enqueue(None, payload, **options)
            super().enqueue(None, payload, **options)
            return super().enqueue(id, payload, **options)

    monkeypatch.setattr(ratios, "Queue", Slow)
    least = ENOUGH * baseline()["enqueue"]
    assert best_look(bench, "enqueue", least) < least


def test_baseline_knows_every_ratio() -> None:
    assert set(baseline()) == set(RATIOS)
