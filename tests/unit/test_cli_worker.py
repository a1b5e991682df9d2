"""What `reliq worker` does beyond running jobs: burst, quotas, drain timeouts, reload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest

from reliq import Queue
from reliq.cli.main import main
from reliq.cli.reload import code_directories, watch_code

T = TypeVar("T")
LIMIT_SECONDS = 30.0

JOBS = """
import os, pathlib
from reliq import Queue, WorkerPool
import helper_of_{name}
here = pathlib.Path(__file__).parent
q = Queue("jobs", f"file://{{here / 'queue'}}")

@q.handler
def run(job):
    if job.payload == "long":
        (here / "started").touch()
        job.signal.wait(30)
        job.check()
    return [helper_of_{name}.VALUE, os.getpid()]

def make_pool(): return WorkerPool(q, threads=1, prefetch=1)
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """An application in the current directory and the queue that its jobs are on."""
    name = "cli_worker_jobs"
    (tmp_path / f"{name}.py").write_text(JOBS.format(name=name))
    (tmp_path / f"helper_of_{name}.py").write_text("VALUE = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("RELIQ_URL", raising=False)
    monkeypatch.setenv("RELIQ_APP", f"{name}:q")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # a change within the same second must not be missed
    with Queue("jobs", f"file://{tmp_path / 'queue'}") as queue:
        yield queue
    for module in (name, f"helper_of_{name}"):
        found = sys.modules.pop(module, None)
        if found is not None and hasattr(found, "q"):
            found.q.close()


def _until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + LIMIT_SECONDS
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_burst_takes_its_target_from_the_environment(jobs: Queue) -> None:
    jobs.enqueue_many([(f"j{n}", None) for n in range(20)])
    assert main(["worker", "-t", "2", "--burst"]) == 0
    assert jobs.counts()["completed"] == 20


@pytest.mark.parametrize("options", [["-t", "1"], ["-t", "4"], []])
@pytest.mark.parametrize("burst", [[], ["--burst"]])
def test_a_worker_ends_after_so_many_jobs(jobs: Queue, options: list[str], burst: list[str]) -> None:
    jobs.enqueue_many([(f"j{n}", None) for n in range(200)])
    assert main(["worker", *options, *burst, "--max-jobs", "3"]) == 0
    done = jobs.counts()["completed"]
    assert 3 <= done <= 3 + 2  # with those that ran beside the last one
    assert jobs.counts()["queued"] == 200 - done


def test_a_pool_of_ones_own_ends_after_so_many_jobs(jobs: Queue) -> None:
    jobs.enqueue_many([(f"j{n}", None) for n in range(50)])
    assert main(["worker", "cli_worker_jobs:make_pool", "--max-jobs", "7"]) == 0
    assert jobs.counts()["completed"] == 7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--reload", "--burst"], "take one of them"),
        (["--max-jobs", "0"], "1 or more"),
        (["--drain-timeout", "soon"], "30s"),
    ],
)
def test_wrong_options_exit_with_2(
    jobs: Queue, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["worker", *arguments])
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    assert says in capsys.readouterr().err


class Process:
    """A worker command in a process of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.log = directory / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reliq", "worker", *arguments],
                cwd=directory, stderr=log, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )  # fmt: skip

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(Process(tmp_path, *arguments))
        return started[-1]

    yield start
    for process in started:
        process.close()


def test_the_drain_timeout_bounds_a_stop(jobs: Queue, tmp_path: Path, start: Callable[..., Process]) -> None:
    jobs.enqueue("a", "long")
    worker = start("-t", "1", "--drain-timeout", "0")
    _until(lambda: True if (tmp_path / "started").exists() else None)
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 10  # the default would be 30
    status = jobs.get_status("a")
    assert status is not None
    assert (status.state, status.attempts) == ("queued", 0)


def test_a_child_that_ran_its_quota_is_replaced(jobs: Queue, start: Callable[..., Process]) -> None:
    jobs.enqueue_many([(f"j{n}", None) for n in range(3)])
    worker = start("-t", "1", "--processes", "2", "--max-jobs", "1")
    pids = {jobs.wait(f"j{n}", LIMIT_SECONDS)[1] for n in range(3)}
    assert len(pids) == 3
    assert worker.stop() == 0
    log = worker.log.read_text()
    assert "ran as many jobs as it should" in log
    assert "WARNING" not in log


def test_reload_runs_the_new_code_and_survives_broken_code(
    jobs: Queue, tmp_path: Path, start: Callable[..., Process]
) -> None:
    helper = tmp_path / "helper_of_cli_worker_jobs.py"
    worker = start("-t", "1", "--reload")
    first, pid = jobs.call("a", timeout=LIMIT_SECONDS)
    assert first == 1
    helper.write_text("this is no Python\n")
    _until(lambda: True if "waiting for the code to change" in worker.log.read_text() else None)
    helper.write_text("VALUE = 2\n")
    second, other = jobs.call("b", timeout=LIMIT_SECONDS)
    assert second == 2
    assert other != pid
    assert worker.stop() == 0
    assert not jobs.storage.workers("jobs")


def test_only_the_applications_own_code_is_watched(jobs: Queue, tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    import_module("cli_worker_jobs")
    found = code_directories()
    assert tmp_path.resolve() in found
    installed = Path(pytest.__file__).resolve().parent, Path(os.__file__).resolve().parent
    assert not set(installed) & set(found)
    seen: list[int] = []
    with watch_code(lambda: seen.append(1)):
        (tmp_path / "notes.txt").write_text("no code")
        (tmp_path / "new_module.py").write_text("x = 1\n")
        _until(lambda: True if seen else None)
