"""`reliq worker --processes N`: real processes, killed and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from reliq import Queue

T = TypeVar("T")
LIMIT_SECONDS = 30.0

#: A job notes its pid under its id and then waits until it is let go.
JOBS = """
import os, pathlib, sys
from reliq import Queue, WorkerPool
here = pathlib.Path(__file__).parent
q = Queue("jobs", f"file://{here / 'queue'}")
(here / f"process-{os.getpid()}").touch()

@q.handler
def run(job):
    (here / f"{job.id}.{job.attempts}").write_text(str(os.getpid()))
    while not (here / "go").exists():
        job.check()
        job.signal.wait(0.01)
    return os.getpid()

def make_pool(): return WorkerPool(q, threads=1, worker_id="all-alike")

if (here / "broken").exists() and "--parent-fd" in sys.argv:
    sys.exit(int((here / "broken").read_text()))
"""


class Run:
    """A supervisor on a queue of its own."""

    def __init__(self, directory: Path, arguments: Sequence[str]) -> None:
        self.directory = directory
        (directory / "sup_jobs.py").write_text(JOBS)
        self.queue = Queue("jobs", f"file://{directory / 'queue'}")
        self.log = directory / "log"
        self._arguments = arguments

    def start(self, target: str = "q") -> None:
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reliq", "worker", f"sup_jobs:{target}", *self._arguments],
                cwd=self.directory, stderr=log, env={**os.environ, "PYTHONPATH": os.getcwd()},
            )  # fmt: skip

    def until(self, look: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + LIMIT_SECONDS
        while (found := look()) is None:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)
        return found

    def pid_of(self, id: str, attempt: int = 1) -> int:
        """The process that runs this attempt of a job, once it does."""
        path = self.directory / f"{id}.{attempt}"
        return int(self.until(lambda: path.read_text() or None if path.exists() else None))

    def processes(self) -> set[int]:
        """Everything that ever imported the module."""
        return {int(path.name.partition("-")[2]) for path in self.directory.glob("process-*")}

    def go(self) -> None:
        """Let the jobs end."""
        (self.directory / "go").touch()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(LIMIT_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.queue.close()


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    run = Run(tmp_path, getattr(request, "param", ["--processes", "2"]))
    yield run
    run.close()
    run.until(lambda: True if not any(_runs(pid) for pid in run.processes()) else None)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("target", ["q", "make_pool"])
def test_a_killed_child_is_replaced_and_its_job_handed_back_at_once(run: Run, target: str) -> None:
    """The default worker_ttl is 15 s: sooner than that only the supervisor can have done it."""
    run.queue.enqueue("a", max_attempts=3)
    run.start(target)
    victim = run.pid_of("a")
    assert victim != run.process.pid
    started = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert run.pid_of("a", attempt=2) != victim
    assert time.monotonic() - started < 10
    run.go()
    assert run.queue.wait("a", LIMIT_SECONDS) != victim
    run.until(lambda: True if len([pid for pid in run.processes() if _runs(pid)]) == 3 else None)
    assert run.stop() == 0
    assert "handed back" in run.log.read_text()
    assert not run.queue.storage.workers("jobs")


@pytest.mark.parametrize(("target", "jobs"), [("q", 4), ("make_pool", 2)])
def test_a_live_workers_jobs_are_left_alone(run: Run, target: str, jobs: int) -> None:
    """Also when all workers have one label."""
    run.queue.enqueue_many([(f"j{number}", None) for number in range(jobs)])
    run.start(target)
    pids = [run.pid_of(f"j{number}") for number in range(jobs)]
    victim = pids[0]
    os.kill(victim, signal.SIGKILL)
    for number, pid in enumerate(pids):
        if pid == victim:
            run.pid_of(f"j{number}", attempt=2)
    run.go()
    for number, pid in enumerate(pids):
        assert (run.queue.wait(f"j{number}", LIMIT_SECONDS) == pid) == (pid != victim)
    assert run.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_running_jobs_end(run: Run, number: signal.Signals) -> None:
    run.queue.enqueue("a")
    run.start()
    pid = run.pid_of("a")
    run.process.send_signal(number)
    run.until(lambda: True if "stopping" in run.log.read_text() else None)
    run.go()
    assert run.process.wait(LIMIT_SECONDS) == 0
    assert run.queue.get_result("a") == pid
    assert not run.queue.storage.workers("jobs")


def test_two_signals_give_running_jobs_back(run: Run) -> None:
    run.queue.enqueue("a")
    run.start()
    run.pid_of("a")
    run.process.send_signal(signal.SIGTERM)
    run.until(lambda: True if "stopping" in run.log.read_text() else None)
    assert run.stop() == 0, run.log.read_text()
    status = run.queue.get_status("a")
    assert status is not None
    assert (status.state, status.attempts) == ("queued", 0)


@pytest.mark.parametrize("run", [["--processes", "2", "--until-empty"]], indirect=True)
def test_until_empty_ends_by_itself(run: Run) -> None:
    run.go()
    run.queue.enqueue_many([(f"j{number}", None) for number in range(30)])
    run.start()
    assert run.process.wait(LIMIT_SECONDS) == 0
    assert run.queue.counts()["completed"] == 30


@pytest.mark.parametrize("run", [["--until-empty"]], indirect=True)
def test_one_process_until_empty_stops_gracefully_by_signal(run: Run) -> None:
    run.queue.enqueue("a")
    run.start()
    pid = run.pid_of("a")
    run.process.send_signal(signal.SIGTERM)
    run.go()
    code = run.process.wait(LIMIT_SECONDS)
    assert code in (0, 1), run.log.read_text()  # found empty at the last moment, or not; never killed
    assert run.queue.get_result("a") == pid


@pytest.mark.parametrize(("code", "expected"), [(2, 2), (1, 1)])
def test_children_that_can_never_start_end_it_with_a_clear_word(
    run: Run, code: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.directory / "broken").write_text(str(code))
    run.start()
    assert run.process.wait(LIMIT_SECONDS) == expected
    assert "giving up" in run.log.read_text()


def test_killed_itself_it_leaves_no_child(run: Run) -> None:
    """Two signals of the supervisor reach its children; its end alone must do the same."""
    run.go()
    run.queue.enqueue("a")
    run.start()
    run.queue.wait("a", LIMIT_SECONDS)
    run.process.kill()
    run.process.wait()
    run.until(lambda: True if not any(_runs(pid) for pid in run.processes()) else None)
