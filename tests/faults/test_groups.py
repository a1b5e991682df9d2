"""Groups whose workers fail and are killed (I41, I42)."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reliq import NewJob
from reliq.storage.sql.check import check

from .crowd import Crowd, History, broken_order
from .support import until

WORKER_TTL = 2.0
CONFIG = {"threads": 4, "worker_ttl": WORKER_TTL, "seconds": [0.0, 0.004], "failing": 0.05}


def _work_off(crowd: Crowd, groups: int, length: int, seconds: float, *, grouped: bool) -> list[str]:
    """Enqueue ``groups`` x ``length`` jobs in turns, kill workers for ``seconds``, wait for the end; the ids."""
    jobs = [(f"g{group}-{n}", f"g{group}" if grouped else None) for n in range(length) for group in range(groups)]
    crowd.queue.enqueue_many(NewJob(id, None, group=group, max_attempts=1_000) for id, group in jobs)
    crowd.start()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(random.uniform(0.1, 0.6))  # when the next one dies is chance
        crowd.kill_any()
    crowd.drain(patience=60)
    return [id for id, _ in jobs]


def test_groups_keep_their_order_when_handlers_fail_and_workers_die(where: dict[str, Any], tmp_path: Path) -> None:
    """200 groups of 50 jobs on Redis, 100 of 25 in files; 4 processes of 4 threads, each 20th run raises."""
    groups, length = (200, 50) if "url" in where else (100, 25)
    with Crowd(where, tmp_path, 4, CONFIG) as crowd:
        ids = _work_off(crowd, groups, length, 3.0, grouped=True)
        history = crowd.history()
        statuses = crowd.queue.get_statuses(ids)
        runs = Counter(run.id for run in history.runs)
        died = sum(run.how == "died" for run in history.runs)
        print(
            f"{crowd.kills} kills ({died} runs died), {runs.total()} runs of {len(runs)} jobs, "
            f"at most {max(runs.values())} of one, {sum(run.how == 'raised' for run in history.runs)} raised, "
            f"{sum(run.is_lost for run in history.runs)} without lease"
        )  # fmt: skip
        assert crowd.kills >= 5
        assert broken_order(history) == []
        assert history.excessive() == []
        assert history.completions.most_common(1)[0][1] == 1
        results = {run.id: {other.result for other in history.runs if other.id == run.id} for run in history.runs[:50]}
        for id, status in statuses.items():
            assert status is not None, id
            assert status.state == "completed", status
            if id in results:
                assert status.result in results[id]
    if "directory" in where:
        report = check(Path(where["directory"]))
        assert report.is_sound, report.problems


@pytest.mark.parametrize("where", ["redis"], indirect=True)
def test_control_without_groups_the_order_breaks(where: dict[str, Any], tmp_path: Path) -> None:
    with Crowd(where, tmp_path, 2, CONFIG) as crowd:
        _work_off(crowd, 20, 20, 0.0, grouped=False)
        troubles = broken_order(crowd.history())
    assert any("beside" in trouble for trouble in troubles)
    assert any("after" in trouble for trouble in troubles)


def _history(*lines: str) -> History:
    return History([line.split(" ") for line in lines])


@pytest.mark.parametrize(
    ("lines", "troubles"),
    [
        (["start g-0 1 1 a 0", "start g-1 1 1 b 1", "end a 2 returned", "end b 3 returned"], ["g-1 beside g-0"]),
        (["start g-1 1 1 a 0", "end a 1 returned", "start g-0 1 1 b 2", "end b 3 returned"], ["g-0 after g-1"]),
        # It died and runs again, but not before the next one.
        (["start g-0 1 1 a 0", "killed 1 1", "start g-1 2 1 b 2", "end b 3 returned", "start g-0 2 2 c 4"],
         ["g-0 after g-1"]),
        (["start g-0 1 1 a 0", "start g-0 2 2 b 1"], ["g-0 beside g-0"]),
        (["start g-0 1 1 a 0", "start h-0 1 1 b 0", "killed 1 1", "start g-0 2 2 c 2"], []),
    ],
)  # fmt: skip
def test_control_the_check_sees_what_is_out_of_order(lines: list[str], troubles: list[str]) -> None:
    settled = [
        f"settled {words[1]} {words[2]} {words[3]} completed"
        for line in lines
        if (words := line.split(" "))[0] == "start"
    ]
    assert broken_order(_history(*lines, *settled)) == troubles


def _overtaken(crowd: Crowd, number: int, *, grouped: bool) -> int:
    """A crowd of ``number`` jobs is worked off when 3 more arrive: how many of it start before those are done."""
    crowd.queue.enqueue_many(NewJob(f"big-{n}", None, group="big" if grouped else None) for n in range(number))
    crowd.start()
    until(lambda: len(crowd.history().runs) > 100, what="a beginning")
    crowd.journal.write("arrival")
    crowd.queue.enqueue_many(NewJob(f"small-{n}", None, group="small" if grouped else None) for n in range(3))
    until(lambda: all(crowd.history().completions[f"small-{n}"] for n in range(3)), what="the end of the small group")
    history = crowd.history()
    [(arrival, _)] = history.notes
    end = max(run.end for run in history.runs if run.id.startswith("small"))
    return sum(run.id.startswith("big") and arrival < run.start < end for run in history.runs)


FAIR = {"threads": 4, "worker_ttl": 15.0, "seconds": [0.001, 0.002]}


def test_a_small_group_does_not_wait_for_a_big_one(where: dict[str, Any], tmp_path: Path) -> None:
    with Crowd(where, tmp_path, 2, FAIR) as crowd:
        overtaken = _overtaken(crowd, 10_000, grouped=True)
        assert len(crowd.history().runs) < 10_000, "the big group was done before it could be overtaken"
    print(f"{overtaken} jobs of the big group began while the small one was worked off")
    assert overtaken <= 100


@pytest.mark.parametrize("where", ["redis"], indirect=True)
def test_control_without_groups_who_comes_later_waits(where: dict[str, Any], tmp_path: Path) -> None:
    with Crowd(where, tmp_path, 2, FAIR) as crowd:
        assert _overtaken(crowd, 10_000, grouped=False) > 100
