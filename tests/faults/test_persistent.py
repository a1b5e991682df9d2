"""Persistent jobs whose workers are killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from .crowd import REAP_S, SLACK_S, Crowd, most_at_once
from .support import until

WORKER_TTL = 1.5
BOUND_S = WORKER_TTL + REAP_S + SLACK_S
CONFIG = {"threads": 3, "worker_ttl": WORKER_TTL}
IDS = [f"ever-{n}" for n in range(5)]


def _all_run(crowd: Crowd) -> bool:
    return sorted(run.id for run in crowd.going_on()) == IDS


def _kill_holders(crowd: Crowd, kills: int, patience: float = BOUND_S) -> list[float]:
    """Kill a process that holds one of the jobs, ``kills`` times: how long each took to find another home."""
    for id in IDS:
        crowd.queue.enqueue(id, "persistent", persistent=True)
    crowd.start()
    took = []
    for _ in range(kills):
        until(lambda: _all_run(crowd), what="a run of each")
        killed_at = crowd.kill(crowd.number_of(crowd.going_on()[-1].pid))
        until(lambda: _all_run(crowd), patience, "a new home")
        took.append(time.monotonic() - killed_at)
    return took


def test_persistent_jobs_of_a_killed_process_find_another_home(where: dict[str, Any], tmp_path: Path) -> None:
    """5 jobs, 3 processes of 3 threads: held once each, and again within worker_ttl and a reap interval of a death."""
    with Crowd(where, tmp_path, 3, CONFIG) as crowd:
        took = _kill_holders(crowd, 2)
        for id in IDS:
            assert crowd.queue.cancel(id, running=True).status == "cancelling"
        until(lambda: not any(crowd.queue.counts().values()), what="the end by cancelling")
        crowd.stop()
        history = crowd.history()
    print(f"{len(history.runs)} runs; at home again after {', '.join(f'{each:.1f}' for each in took)} s")
    for id in IDS:
        assert most_at_once(run for run in history.held() if run.id == id) == 1
    assert sum(run.how == "died" for run in history.runs) >= len(took)


@pytest.mark.parametrize("where", ["redis"], indirect=True)
def test_control_without_recovery_they_are_homeless(where: dict[str, Any], tmp_path: Path) -> None:
    with (
        Crowd(where, tmp_path, 3, {**CONFIG, "no_recovery": True}) as crowd,
        pytest.raises(AssertionError, match="a new home did not happen"),
    ):
        _kill_holders(crowd, 1, WORKER_TTL + REAP_S)
