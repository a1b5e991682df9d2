"""Limits that several processes share, also while they are killed (I45, I46)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reliq.lifecycle import State

from .crowd import REAP_S, SLACK_S, Crowd, Run, most_at_once, sampled
from .file_programs import QUEUE
from .support import until

# -- rate -----------------------------------------------------------------------------

RATE = 200
#: What the bucket holds: the tokens of 100 ms.
BURST = 20


def excess(claims_ms: Sequence[int]) -> float:
    """By how many claims the worst of all windows was over ``RATE`` x its length + ``BURST``; not above 0 is right.

    A window begins and ends with a claim. One claim is let pass: a claim is stamped in whole ms when its script
    begins, and the bucket is looked at a moment later.
    """
    worst, lowest = -math.inf, math.inf
    for number, at_ms in enumerate(sorted(claims_ms)):
        lowest = min(lowest, number - at_ms * RATE / 1000)
        worst = max(worst, number + 1 - at_ms * RATE / 1000 - lowest)
    return worst - BURST - 1


def share(claims_ms: Sequence[int], seconds: float) -> float:
    """How many claims there were in ``seconds`` from the first one, over what the limit allows."""
    return sum(at_ms < claims_ms[0] + seconds * 1000 for at_ms in claims_ms) / (RATE * seconds + BURST)


def _claims(where: dict[str, Any], root: Path, seconds: float, number: int, **options: Any) -> list[int]:
    """3 processes work off ``number`` jobs for ``seconds`` and a bit: when each was claimed, by the storage's clock."""
    config = {"threads": 4, "worker_ttl": 15.0, "claims": True}
    root.mkdir()
    with Crowd(where, root, 3, config, **options) as crowd:
        crowd.queue.pause()
        crowd.queue.enqueue_many((f"job-{n}", None) for n in range(number))
        crowd.start()
        crowd.queue.resume()
        until(lambda: crowd.queue.counts()["completed"], what="the first end")
        began = time.monotonic()
        until(lambda: crowd.queue.counts()["completed"] == number or time.monotonic() > began + seconds + 0.1)
        crowd.queue.pause()
        crowd.stop()
        history = crowd.history()
        assert len(history.runs) == len({run.id for run in history.runs})
        return sorted(int(words[2]) for _, words in history.notes if words[0] == "claimed")


def test_a_rate_limit_holds_over_processes_in_every_window(where: dict[str, Any], tmp_path: Path) -> None:
    """10 s on Redis, 4 s in files.

    Claims are told by the storage's own clock, so that nothing between a claim and its handler blurs them. A machine
    on which nobody gets to claim for longer than the bucket lasts (100 ms) loses tokens: what is reached is therefore
    the best of three, what must not be exceeded is looked at each time.
    """
    seconds = 10.0 if "url" in where else 4.0
    reached: list[float] = []
    for attempt in range(3):
        place = {
            **where,
            **({"prefix": f"fault{attempt}"} if "url" in where else {"directory": f"{where['directory']}{attempt}"}),
        }
        claims = _claims(place, tmp_path / str(attempt), seconds, int(RATE * seconds * 1.2), rate_limit=f"{RATE}/s")
        print(f"{len(claims)} claims, at most {excess(claims):+.1f} over, {share(claims, seconds):.2%} of the limit")
        assert excess(claims) <= 0
        reached.append(share(claims, seconds))
        if reached[-1] >= 0.98:
            break
    assert max(reached) >= 0.98, reached


@pytest.mark.parametrize("where", ["redis"], indirect=True)
def test_control_without_a_rate_limit_windows_are_exceeded(where: dict[str, Any], tmp_path: Path) -> None:
    assert excess(_claims(where, tmp_path / "0", 10.0, 300)) > 100


def test_control_the_check_sees_a_claim_too_many_in_any_window_and_too_few() -> None:
    steady = [1_000 * n // RATE for n in range(2_000)]
    burst = [0] * (BURST - 1) + steady
    assert excess(burst) <= 0
    assert share(burst, 9.9) > 0.999
    for at_ms in (0, 5_000, 9_990):
        over = [at_ms] * 3 + burst if at_ms == 0 else steady + [at_ms] * (BURST + 2)
        assert excess(over) > 0
    assert share([n * 1_030 // RATE for n in range(2_000)], 9.9) < 0.98


# -- concurrency ----------------------------------------------------------------------

SLOTS = 3
WORKER_TTL = 1.5
BOUND_S = WORKER_TTL + REAP_S + SLACK_S
SLOTTED = {"threads": 2, "worker_ttl": WORKER_TTL, "seconds": [0.04, 0.08]}


def _kill_holders(crowd: Crowd, kills: int, patience: float) -> list[float]:
    """Kill a process that runs something, wait until the slots are full again, ``kills`` times: how long each took."""
    took = []
    for _ in range(kills):
        until(lambda: len(crowd.going_on()) == SLOTS, patience, "full use of the slots")
        killed_at = crowd.kill(crowd.number_of(until(crowd.going_on)[0].pid))
        until(lambda: len(crowd.going_on()) == SLOTS, patience, "the return of the slot")
        took.append(time.monotonic() - killed_at)
    return took


def longest_below(runs: Sequence[Run], slots: int) -> float:
    """The longest time with fewer than ``slots`` runs at once, between the first and the last start of one, seconds."""
    changes = sorted([(run.began, 1) for run in runs] + [(run.ended, -1) for run in runs])
    last_start = max(run.began for run in runs)
    now, below_since, longest = 0, changes[0][0], 0.0
    for at, change in changes:
        if now < slots:
            longest = max(longest, min(at, last_start) - below_since)
        elif now + change < slots:
            below_since = at
        now += change
    return longest


def test_slots_hold_over_processes_and_come_back_from_the_dead(where: dict[str, Any], tmp_path: Path) -> None:
    """3 slots, 4 processes of 2 threads: never 4 at once, never fewer than 3 for longer than one recovery."""
    kills = 2
    with Crowd(where, tmp_path, 4, SLOTTED, max_concurrency=SLOTS) as crowd:
        crowd.queue.enqueue_many((f"job-{n}", None) for n in range(2_000))
        crowd.start()
        with sampled(lambda: crowd.storage.counts(QUEUE)[State.PROCESSING]) as leases:
            took = _kill_holders(crowd, kills, BOUND_S)
        crowd.queue.pause()
        crowd.stop()
        history = crowd.history()
    runs = history.held()
    most, longest = most_at_once(runs), longest_below(runs, SLOTS)
    print(
        f"{len(runs)} runs, {len(history.runs) - len(runs)} without lease, at most {most} at once; "
        f"{max(leases)} leases in {len(leases)} looks; slots back after {', '.join(f'{each:.1f}' for each in took)} s, "
        f"fewer for at most {longest:.1f} s"
    )
    assert most == SLOTS
    assert max(leases) == SLOTS
    assert longest <= BOUND_S
    assert history.excessive() == []


@pytest.mark.parametrize("where", ["redis"], indirect=True)
def test_control_without_a_limit_more_run_at_once(where: dict[str, Any], tmp_path: Path) -> None:
    with Crowd(where, tmp_path, 2, SLOTTED) as crowd:
        crowd.queue.enqueue_many((f"job-{n}", None) for n in range(30))
        crowd.start()
        crowd.drain(30)
        assert most_at_once(crowd.history().held()) > SLOTS


@pytest.mark.parametrize("where", ["redis"], indirect=True)
def test_control_without_recovery_the_slots_of_the_dead_are_lost(where: dict[str, Any], tmp_path: Path) -> None:
    config = {**SLOTTED, "no_recovery": True}
    with Crowd(where, tmp_path, 4, config, max_concurrency=SLOTS) as crowd:
        crowd.queue.enqueue_many((f"job-{n}", None) for n in range(2_000))
        crowd.start()
        with pytest.raises(AssertionError, match="the return of the slot did not happen"):
            _kill_holders(crowd, 1, WORKER_TTL + REAP_S)


def test_control_the_checks_count_what_overlaps() -> None:
    runs = [Run(f"{n}", "1", "1", "r", start=n, began=n, end=n + SLOTS + 0.5, ended=n + SLOTS + 0.5) for n in range(9)]
    assert most_at_once(runs) == SLOTS + 1
    assert longest_below(runs[:1] + runs[5:], SLOTS) == 7.0
