"""Nothing may fall below 70 % of what it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.guard.ratios import ENOUGH, RATIOS, baseline, measure
from benchmarks.harness import Bench
from tests.servers import RedisServer


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with RedisServer() as server:
        bench = Bench(server, 3, quick=True)
        yield bench
        bench.close()


@pytest.mark.parametrize("name", RATIOS)
def test_ratio_has_not_fallen(name: str, bench: Bench) -> None:
    least = ENOUGH * baseline()[name]
    found = measure(bench, name, 3)
    if found < least:  # somebody else may have been busy: look again, longer
        found = measure(bench, name, 5)
    assert found >= least, f"{RATIOS[name].__doc__} It is {found:.3g}, at least {least:.3g} was expected."


def test_baseline_knows_every_ratio() -> None:
    assert set(baseline()) == set(RATIOS)
