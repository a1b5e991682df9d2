"""Bursts wake every process that should work, and nobody burns a core while there is nothing to do."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reliq import Queue
from reliq.storage.sql.file import FileStorage

from .file_programs import QUEUE, FileProgram
from .support import until

JOBS = 100_000
#: Of these are enqueued one by one, the others 500 at a time.
SINGLE = 4_000
#: What a wait may exceed the fallback by: a job is taken some time after its process was woken.
SLACK = 0.5


@dataclass(frozen=True, slots=True)
class Burst:
    """What came of it: jobs done, the longest wait in seconds while nobody took anything, processes that worked."""

    done: int
    longest_wait: float
    workers: int
    seconds: float


def _burst(root: Path, jobs: int, single: int, deaf: bool = False, fallback_ms: int = 1_000) -> Burst:
    directory = root / "queue"
    FileStorage(directory).close()
    files = [root / f"times-{n}" for n in range(2)]
    with ExitStack() as stack:
        programs = [
            stack.enter_context(
                FileProgram("watcher", directory=str(directory), times=str(file), deaf=deaf, fallback_ms=fallback_ms)
            ).wait_ready()
            for file in files
        ]
        storage = FileStorage(directory, "os")  # the consumers' commits are durable, and so are these with them
        stack.callback(storage.close)
        q = stack.enter_context(Queue(QUEUE, storage))
        until(lambda: len(list((directory / "bell").glob("*.asleep"))) == 2, what="two sleeping processes")
        began = time.monotonic()
        _enqueue(q, jobs, single)
        until(lambda: q.counts()["completed"] == jobs, 90, "the end of the burst")
        seconds = time.monotonic() - began
        for program in programs:
            assert program.terminate() == 0
    times = [json.loads(file.read_text()) for file in files]
    started = sorted((start, accepted) for part in times for accepted, start in part)
    # A job waits for nothing but to be noticed since its acceptance, or since the last time anybody took one.
    waits = [
        start - max(accepted, before) for (before, _), (start, accepted) in itertools.pairwise([(0.0, 0.0), *started])
    ]
    return Burst(len(started), max(waits), sum(bool(part) for part in times), seconds)


def _enqueue(q: Queue, jobs: int, single: int) -> None:
    """Four threads at once, all of them out of breath, then a last job for a queue that went quiet."""

    def run(part: int) -> None:
        for n in range(part, single, 4):
            q.enqueue(f"single-{n}", None)
        for first in range(part * 500, jobs - single - 1, 2_000):
            q.enqueue_many((f"many-{n}", None) for n in range(first, min(first + 500, jobs - single - 1)))

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: q.counts()["completed"] == jobs - 1, 90, "the end of the burst")
    time.sleep(0.3)  # the consumers fall asleep, which shows nowhere
    q.enqueue("last", None)


def test_a_burst_is_done_and_nobody_waits_longer_than_the_fallback(tmp_path: Path) -> None:
    found = _burst(tmp_path, JOBS, SINGLE)
    print(found)
    assert found.done == JOBS
    assert found.workers == 2
    assert found.longest_wait <= 1.0 + SLACK


def test_a_burst_is_done_within_the_fallback_when_every_event_of_the_watch_is_lost(tmp_path: Path) -> None:
    found = _burst(tmp_path, 5_000, 500, deaf=True)
    assert found.done == 5_000
    assert found.longest_wait <= 1.0 + SLACK


def test_rings_alone_are_enough(tmp_path: Path) -> None:
    """With a fallback of a minute a ring that is missing would show."""
    found = _burst(tmp_path, 5_000, 500, fallback_ms=60_000)
    assert found.done == 5_000
    assert found.longest_wait <= 1.0 + SLACK


def test_control_without_rings_and_with_a_slow_fallback_jobs_wait(tmp_path: Path) -> None:
    found = _burst(tmp_path, 500, 50, deaf=True, fallback_ms=4_000)
    assert found.done == 500
    assert found.longest_wait > 1.0 + SLACK


# -- idling ---------------------------------------------------------------------------


def _cpu_seconds(pid: int) -> float:
    """What all threads of a process have used, by the scheduler's clock."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


def _idle_share(root: Path, seconds: float, **config: Any) -> float:
    """The share of a core that an idle pool costs."""
    directory = root / "queue"
    with FileProgram("watcher", directory=str(directory), times=str(root / "times"), threads=8, **config) as program:
        program.wait_ready()
        until(lambda: list((directory / "bell").glob("*.asleep")), what="sleep")
        time.sleep(1.0)  # the start is no idling
        before, began = _cpu_seconds(program.pid), time.monotonic()
        time.sleep(seconds)
        share = (_cpu_seconds(program.pid) - before) / (time.monotonic() - began)
        assert program.terminate() == 0
        return share


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the scheduler's clock from /proc")
def test_an_idle_pool_costs_less_than_half_a_percent_of_a_core(tmp_path: Path) -> None:
    share = _idle_share(tmp_path, 10.0)
    print(f"an idle pool of 8 threads: {100 * share:.3f} % of a core")
    assert share < 0.005


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the scheduler's clock from /proc")
def test_control_a_pool_that_polls_costs_more(tmp_path: Path) -> None:
    assert _idle_share(tmp_path, 3.0, fallback_ms=2) > 0.005
