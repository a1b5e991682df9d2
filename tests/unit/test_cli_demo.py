"""The demo, run as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from reliq import Queue
from reliq.cli import demo
from reliq.cli.demo_jobs import QUEUE_NAME
from reliq.storage.base import Worker

LIMIT_SECONDS = 60.0


def _start(arguments: Sequence[str], scratch: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.getcwd()}
    env.pop("RELIQ_URL", None)
    return subprocess.Popen(
        [sys.executable, "-m", "reliq", "demo", *arguments],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=scratch,
    )  # fmt: skip


def _worker_pids(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"# pid (\d+)$", output, re.MULTILINE)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _assert_gone(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker of the demo still runs"
        time.sleep(0.01)


def _assert_showed_everything(out: str, err: str, code: int) -> None:
    assert code == 0, out + err
    assert not err
    assert re.search(r"All \d\d checks passed", out)
    assert "FAILED" not in out
    assert out.count("   ok  ") >= 18
    for seen in ("queued, duplicate, duplicate", "5050", "the mail server is busy", "kill -9", "dead letter invoice-1"):
        assert seen in out


def test_on_files_it_shows_everything_and_leaves_nothing(tmp_path: Path) -> None:
    started = time.monotonic()
    out, err = (process := _start([], tmp_path)).communicate(timeout=LIMIT_SECONDS)
    _assert_showed_everything(out, err, process.returncode)
    assert time.monotonic() - started < 15
    pids = _worker_pids(out)
    assert len(pids) == 2
    _assert_gone(pids)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_on_a_server(tmp_path: Path, redis_url: str) -> None:
    out, err = (process := _start(["--url", redis_url], tmp_path)).communicate(timeout=LIMIT_SECONDS)
    _assert_showed_everything(out, err, process.returncode)
    _assert_gone(_worker_pids(out))
    with Queue(QUEUE_NAME, redis_url) as queue:
        assert not any(queue.counts().values())
        assert not queue.storage.workers(QUEUE_NAME)


@pytest.mark.slow
def test_keep_leaves_what_info_shows(tmp_path: Path) -> None:
    out, err = (process := _start(["--keep"], tmp_path)).communicate(timeout=LIMIT_SECONDS)
    _assert_showed_everything(out, err, process.returncode)
    url = out.rpartition("--url ")[2].strip()
    with Queue(QUEUE_NAME, url) as queue:
        assert queue.counts()["completed"] == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    process = _start([], tmp_path)
    assert process.stdout is not None
    output = ""
    while "2. Call" not in output:
        line = process.stdout.readline()
        assert line, output
        output += line
    process.send_signal(number)
    rest, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130, rest + err
    assert "Traceback" not in err
    assert len(_worker_pids(output)) == 2
    _assert_gone(_worker_pids(output))
    assert not list(tmp_path.iterdir())


def test_killed_its_workers_end_too(tmp_path: Path) -> None:
    process = _start([], tmp_path)
    assert process.stdout is not None
    output = ""
    while "2. Call" not in output:
        line = process.stdout.readline()
        assert line, output
        output += line
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    _assert_gone(_worker_pids(output))


def test_a_failed_check_says_which_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from reliq.cli.main import main

    def step(stage: demo.Stage) -> None:
        """A step that fails"""
        stage.check("two and two are five", 2 + 2 == 5, 2 + 2)

    monkeypatch.setattr(demo, "STEPS", (step,))
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert "FAILED  two and two are five" in captured.out
    assert "two and two are five; seen: 4" in captured.err


def test_a_second_demo_on_the_same_storage_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from reliq.cli.main import main

    url = f"file://{tmp_path / 'queue'}"
    with Queue(QUEUE_NAME, url) as queue:
        queue.storage.claim(QUEUE_NAME, Worker("other", "1"), 1, serial=1, lease_ms=1000)
        assert main(["demo", "--url", url]) == 1
        assert "does another demo run" in capsys.readouterr().err
    assert (tmp_path / "queue").exists()
