"""`reliq bench`: what it measures, and that it leaves every queue but its own alone, and nothing of that one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reliq import FileStorage, Queue, RedisStorage, StorageUnavailableError
from reliq.cli.bench import PREFIX
from reliq.cli.main import main

LIMIT_SECONDS = 30.0


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIQ_URL", raising=False)
    monkeypatch.delenv("RELIQ_APP", raising=False)


@pytest.mark.parametrize("kind", ["memory", "file", "redis"])
def test_it_measures_and_cleans_up(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    url = {"memory": "memory://", "file": f"file://{tmp_path}/queue"}.get(kind) or request.getfixturevalue("redis_url")
    assert main(["bench", "--url", url, "--jobs", "40", "--threads", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["measure"] for each in found] == ["enqueue", "enqueue_many", "drain", "call"]
    assert [each["jobs"] for each in found] == [40, 40, 80, 40]
    for each in found:
        assert each["seconds"] > 0
        assert each["jobs_per_second"] == pytest.approx(each["jobs"] / each["seconds"])
        if each["measure"] in ("enqueue", "call"):
            assert 0 < each["p50_seconds"] <= each["p99_seconds"] <= each["seconds"]
        else:
            assert each["p50_seconds"] is None
    assert f"on the queue {PREFIX}" in err
    assert "no other queue is touched" in err
    if kind == "file":
        storage = FileStorage(tmp_path / "queue")
        assert storage.queues() == []
        storage.close()
    if kind == "redis":
        redis_storage = RedisStorage(url)
        assert not [name for name in redis_storage.queues() if name.startswith(PREFIX)]
        redis_storage.close()


def test_it_touches_no_other_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue("mine", f"file://{tmp_path}/queue") as queue:
        queue.enqueue("j1")
        before = queue.get_status("j1")
        assert main(["bench", "--url", f"file://{tmp_path}/queue", "--jobs", "10", "-t", "1"]) == 0
        assert queue.get_status("j1") == before
        assert queue.storage.queues() == ["mine"]
    out = capsys.readouterr().out
    assert out.split("\n")[0].split() == ["MEASURE", "JOBS", "JOBS/S", "P50", "MS", "P99", "MS"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_queue(number: signal.Signals, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/queue"
    command = [sys.executable, "-m", "reliq", "bench", "--url", url, "--jobs", "1000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as bench:
        assert bench.stderr is not None
        assert PREFIX in bench.stderr.readline().decode()
        storage = FileStorage(tmp_path / "queue")
        deadline = time.monotonic() + LIMIT_SECONDS
        while not storage.queues():  # it is in the middle of it
            assert time.monotonic() < deadline
            time.sleep(0.01)
        bench.send_signal(number)
        assert bench.wait(LIMIT_SECONDS) == 130
        assert bench.stderr.read() == b""
    assert storage.queues() == []
    storage.close()


def test_a_storage_that_fails_is_trouble_and_names_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: object, **__: object) -> None:
        raise StorageUnavailableError("down")

    monkeypatch.setattr(FileStorage, "enqueue", down)
    monkeypatch.setattr(FileStorage, "delete", down)
    assert main(["bench", "--url", f"file://{tmp_path}/queue", "--jobs", "10"]) == 1
    err = capsys.readouterr().err
    assert f"could not be deleted (reliq delete {PREFIX}" in err
    assert "reliq: down" in err


@pytest.mark.parametrize("options", [["--jobs", "0"], ["--threads", "x"]])
def test_wrong_numbers_are_refused(options: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--url", "memory://", *options])
    assert ended.value.code == 2


def test_without_a_storage_it_says_how_to_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "no storage: give --url" in capsys.readouterr().err
