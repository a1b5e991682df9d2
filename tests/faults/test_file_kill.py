"""Processes on one directory that are killed at any moment.

This proves that the death of processes loses nothing, and only that: the operating system lives on
and writes what it was given. Power loss has tests of its own.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reliq import Queue
from reliq.storage.sql.check import check
from reliq.storage.sql.file import FileStorage

from .file_programs import QUEUE, FileProgram, Journal
from .support import until

#: RELIQ_FAULT_SECONDS=60 is the full length, with 20,000 jobs.
SECONDS = float(os.environ.get("RELIQ_FAULT_SECONDS", "20"))
JOBS = int(SECONDS / 60 * 20_000)
WORKER_TTL = 4.0
_UNFINISHED = ("queued", "processing", "failing", "scheduled")


@contextmanager
def queue(directory: Path) -> Iterator[Queue]:
    storage = FileStorage(directory)
    try:
        with Queue(QUEUE, storage) as q:
            yield q
    finally:
        storage.close()


@dataclass
class Massacre:
    """Six workers and two producers on one directory, one of which dies every 0.4 s or so."""

    root: Path
    seconds: float
    jobs: int
    producer: dict[str, Any] = field(default_factory=dict)
    worker: dict[str, Any] = field(default_factory=dict)
    is_deadly: bool = True
    kills: int = 0
    killed: set[str] = field(default_factory=set)  # pids
    seen: dict[str, Any] = field(default_factory=dict)  # id -> the first result that was read

    @property
    def directory(self) -> Path:
        return self.root / "queue"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    def run(self, patience: float) -> None:
        """Kill for ``seconds``, then give the survivors ``patience`` seconds to finish."""
        chance = random.Random()
        with ExitStack() as stack:
            q = stack.enter_context(queue(self.directory))
            programs = [stack.enter_context(self._start(n)) for n in range(8)]
            until(lambda: any(words[0] == "start" for words in Journal.read(self.journal)), what="the first run")
            deadline = time.monotonic() + self.seconds
            while time.monotonic() < deadline:
                self._look(q, chance)
                time.sleep(chance.uniform(0.1, 0.7))  # when the next one dies is chance
                if not self.is_deadly:
                    continue
                victim = chance.randrange(8)
                programs[victim].kill()
                self.kills += 1
                self.killed.add(str(programs[victim].pid))
                programs[victim].__exit__()
                programs[victim] = stack.enter_context(self._start(victim))
            end = time.monotonic() + patience
            while time.monotonic() < end and not self._is_done(q):
                self._look(q, chance)
                time.sleep(0.1)
            for program in programs:
                program.kill()

    def _start(self, number: int) -> FileProgram:
        common: dict[str, Any] = {"directory": str(self.directory), "journal": str(self.journal)}
        if number < 2:
            # Enough to keep them going for four fifths of the time.
            rate = self.jobs / 2 / self.seconds / 0.8
            return FileProgram("producer", **common, ids=(number, self.jobs, 2), rate=rate, **self.producer)
        return FileProgram("worker", **common, **{"worker_ttl": WORKER_TTL, **self.worker})

    def _is_done(self, q: Queue) -> bool:
        counts = q.counts()
        return counts["completed"] >= self.jobs or (
            counts["completed"] > 0
            and not any(counts[state] for state in _UNFINISHED)
            and len(self.acknowledged()) == self.jobs
        )

    def _look(self, q: Queue, chance: random.Random) -> None:
        """Read the results of a few jobs: the first that is read must be the last."""
        for status in q.get_statuses([f"job-{chance.randrange(self.jobs)}" for _ in range(20)]).values():
            if status is not None and status.state == "completed":
                self.seen.setdefault(status.id, q.get_result(status.id))

    # -- what came of it --------------------------------------------------------------

    def acknowledged(self) -> set[str]:
        return {words[1] for words in Journal.read(self.journal) if words[0] == "ack"}

    def ended(self) -> Iterator[tuple[str, str | None, Any]]:
        """Each acknowledged id with its state and result."""
        with queue(self.directory) as q:
            statuses = q.get_statuses(sorted(self.acknowledged()))
            for id, status in statuses.items():
                done = status is not None and status.state == "completed"
                yield id, None if status is None else status.state, q.get_result(id) if done else None

    def lost(self) -> list[str]:
        """Acknowledged, and unknown now."""
        return [id for id, state, _ in self.ended() if state is None]

    def stuck(self) -> list[str]:
        """Acknowledged, and not completed."""
        return [id for id, state, _ in self.ended() if state not in (None, "completed")]

    def repeated(self) -> list[str]:
        """Ids with more executions than one and those whose process was killed before the end was acknowledged."""
        runs: defaultdict[str, list[str]] = defaultdict(list)
        done: set[tuple[str, str]] = set()
        for words in Journal.read(self.journal):
            if words[0] == "start":
                runs[words[1]].append(words[2])
            elif words[0] == "done":
                done.add((words[1], words[2]))
        return [
            id for id, pids in runs.items()
            if len(pids) > 1 + sum(pid in self.killed and (id, pid) not in done for pid in pids)
        ]  # fmt: skip

    def contradicted(self) -> list[str]:
        """Ids that ended twice, whose result is of none of their runs, or changed after it was read."""
        journal = Journal.read(self.journal)
        runs: defaultdict[str, set[str]] = defaultdict(set)
        for words in journal:
            if words[0] == "start":
                runs[words[1]].add(words[3])
        ends = Counter(words[1] for words in journal if words[0] == "done")
        return [id for id, n in ends.items() if n > 1] + [
            id for id, state, result in self.ended()
            if state == "completed" and (result not in runs[id] or self.seen.get(id, result) != result)
        ]  # fmt: skip


def test_nothing_is_lost_stuck_or_run_twice_without_a_death_when_processes_are_killed(tmp_path: Path) -> None:
    """Of 8 processes one is killed every 0.4 s: each job ends once, and runs once more for each death at most.

    It proves process death only.
    """
    massacre = Massacre(tmp_path, SECONDS, JOBS)
    massacre.run(patience=90)
    runs = Counter(words[1] for words in Journal.read(massacre.journal) if words[0] == "start")
    print(
        f"{massacre.kills} kills in {SECONDS:g} s, {len(runs)} jobs, {runs.total()} runs, "
        f"{sum(n > 1 for n in runs.values())} jobs ran more than once, at most {max(runs.values())} times"
    )
    assert massacre.kills > SECONDS
    assert len(massacre.acknowledged()) == JOBS
    assert massacre.lost() == []
    assert massacre.stuck() == []
    assert massacre.repeated() == []
    assert massacre.contradicted() == []
    assert len(massacre.seen) > 100
    report = check(massacre.directory)
    assert report.is_sound, report.problems
    assert report.jobs == JOBS


def test_control_early_acknowledgements_and_no_recovery_lose_and_strand_jobs(tmp_path: Path) -> None:
    """A kill has to meet a producer between its acknowledgement and its commit, which not every round does."""
    lost: list[str] = []
    stuck: list[str] = []
    for number in range(5):
        place = tmp_path / str(number)
        place.mkdir()
        massacre = Massacre(place, 4, 20_000, producer={"early": True}, worker={"no_recovery": True, "seconds": 0.01})
        massacre.run(patience=3)
        lost += massacre.lost()
        stuck += massacre.stuck()
        if lost and stuck:
            break
    assert lost
    assert stuck


def test_control_leases_that_are_not_extended_run_jobs_twice_without_a_death(tmp_path: Path) -> None:
    """Nobody is killed: a death would excuse the second run."""
    worker = {"no_heartbeat": True, "seconds": 1.5, "worker_ttl": 0.3}
    massacre = Massacre(tmp_path, 6, 50, worker=worker, is_deadly=False)
    massacre.run(patience=0)
    assert massacre.repeated()


@pytest.mark.parametrize("what", ["end", "result"])
def test_control_the_checks_notice_a_second_end(tmp_path: Path, what: str) -> None:
    """The engine refuses a second end, so it is written into the journal, or the record, by hand."""
    massacre = Massacre(tmp_path, 0, 1)
    with queue(massacre.directory) as q:
        q.enqueue("job-0", {})
        [job] = q.claim()
        job.complete("first")
    journal = Journal(massacre.journal)
    for words in (("ack", "job-0"), ("start", "job-0", 1, "first"), ("done", "job-0", 1)):
        journal.write(*words)
    assert massacre.contradicted() == []
    if what == "end":
        journal.write("done", "job-0", 2)
    else:
        massacre.seen["job-0"] = "another"
    assert massacre.contradicted() == ["job-0"]
