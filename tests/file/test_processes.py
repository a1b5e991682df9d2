"""Several processes on one directory: who wins, what survives, who is woken."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliq.lifecycle import State
from reliq.storage.base import Outcome, Verb, Worker
from reliq.storage.sql.file import FileStorage

from .child import record

Child = subprocess.Popen[str]
Start = Callable[..., Child]
ALICE = Worker("alice", "test")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def storage(directory: Path) -> Iterator[FileStorage]:
    storage = FileStorage(directory)
    yield storage
    storage.close()


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    children: list[Child] = []

    def start(role: str, *arguments: object) -> Child:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.file.child", role, str(directory), *map(str, arguments)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()


def line(child: Child) -> list[str]:
    assert child.stdout
    return child.stdout.readline().split()


def lines(child: Child) -> list[list[str]]:
    assert child.stdout
    return [text.split() for text in child.stdout.read().splitlines()]


def check_intact(directory: Path) -> None:
    connection = sqlite3.connect(directory / "queue.db")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        counters = connection.execute(
            "SELECT n_scheduled, n_queued, n_processing, n_failing, n_completed, n_failed FROM queue"
        ).fetchone()
        names = ("scheduled", "queued", "processing", "failing", "completed", "failed")
        counted = dict(connection.execute("SELECT state, count(*) FROM job GROUP BY state").fetchall())
        assert dict(zip(names, counters, strict=True)) == {name: counted.get(name, 0) for name in names}
    finally:
        connection.close()


def test_one_id_is_accepted_once_by_all_processes(storage: FileStorage, start: Start, directory: Path) -> None:
    answers = [answer for child in [start("produce", "job-", 50) for _ in range(4)] for answer in lines(child)]
    assert Counter(status for status, _ in answers) == {"queued": 50, "duplicate": 150}
    assert storage.counts("q")[State.QUEUED] == 50
    storage.close()
    check_intact(directory)


def test_jobs_of_a_killed_process_are_recovered(storage: FileStorage, start: Start) -> None:
    storage.reap("q", interval_ms=1_000)
    storage.enqueue("q", [record("a")])
    child = start("hold", "bob")
    assert line(child) == ["holds", "1"]
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert storage.claim("q", ALICE, 1, serial=1, lease_ms=1_000).jobs == []
    changes: list[tuple[str, str]] = []
    for _ in range(16):
        storage.skew_ms += 1_000
        changes += storage.reap("q", interval_ms=1_000).changes
    assert changes == [("stalled", "a")]
    [job] = storage.claim("q", ALICE, 1, serial=2, lease_ms=1_000).jobs
    assert (job.id, job.attempts) == ("a", 2)


@pytest.mark.fault
def test_nothing_acknowledged_is_lost_when_processes_are_killed(
    storage: FileStorage, start: Start, directory: Path
) -> None:
    """Producers and workers die by SIGKILL again and again; every accepted job completes once."""
    accepted: set[str] = set()
    done: Counter[str] = Counter()

    def end(child: Child) -> None:
        child.kill()
        for words in lines(child):
            if len(words) == 2 and words[0] == "queued":
                accepted.add(words[1])
            elif len(words) == 2 and words[0] == "done":
                done[words[1]] += 1

    for number in range(6):
        children = [start("produce", f"{number}-{n}-", 100_000) for n in range(2)]
        children += [start("work", f"w{number}-{n}") for n in range(2)]
        for child in children:
            line(child)  # it got going
        for child in children:
            time.sleep(0.05)  # how far it gets is the test's chance
            end(child)
    deadline = time.monotonic() + 30
    worker = start("work", "last")
    while storage.counts("q")[State.QUEUED] or storage.counts("q")[State.PROCESSING]:
        storage.reap("q", interval_ms=100)
        assert time.monotonic() < deadline, storage.counts("q")
        time.sleep(0.05)
    end(worker)
    assert len(accepted) > 20
    for snapshot in storage.read("q", sorted(accepted)):
        assert snapshot.state is State.COMPLETED, snapshot
        assert snapshot.result == snapshot.id.encode()
    assert max(done.values()) == 1
    storage.close()
    check_intact(directory)


@pytest.mark.parametrize(("bell", "delay_ms"), [("work", 0), ("due", 60_000)])
def test_a_bell_rings_in_another_process(
    storage: FileStorage, start: Start, directory: Path, bell: str, delay_ms: int
) -> None:
    child = start("sleep_on_bell", bell)
    assert line(child) == ["asleep"]
    until_asleep(directory)
    sent = time.time()
    storage.enqueue("q", [record("a")._replace(delay_ms=delay_ms)])
    word, queue, at = line(child)
    assert (word, queue) == ("rang", "q")
    assert float(at) - sent < 1


def test_a_waiter_in_another_process_is_woken(storage: FileStorage, start: Start, directory: Path) -> None:
    storage.enqueue("q", [record("a")])
    child = start("wait_for", "a")
    assert line(child) == ["asleep"]
    until_asleep(directory)
    [job] = storage.claim("q", ALICE, 1, serial=1, lease_ms=10_000).jobs
    sent = time.time()
    storage.settle("q", ALICE, [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE)])
    state, at = line(child)
    assert state == "completed"
    assert float(at) - sent < 1


def test_forks_lose_nothing(storage: FileStorage, start: Start, directory: Path) -> None:
    child = start("fork")
    assert child.wait(30) == 0
    ids = ["before", "parent", "grandchild", *(f"child-{n}" for n in range(100))]
    assert {snapshot.state for snapshot in storage.read("q", ids)} == {State.QUEUED}
    storage.close()
    check_intact(directory)


def test_a_closed_storage_takes_its_bell_away(storage: FileStorage, directory: Path) -> None:
    bell = storage.doorbell(["q"], "work")
    assert bell.wait(0) is None
    assert list((directory / "bell").glob("*.asleep"))
    storage.close()
    assert list((directory / "bell").iterdir()) == []


def until_asleep(directory: Path) -> None:
    """Return when some process announced itself and had the time for its last look."""
    deadline = time.monotonic() + 10
    while not list((directory / "bell").glob("*.asleep")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
