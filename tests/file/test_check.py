"""``reliq check``: sound stores pass, each broken rule is found by its name."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliq.cli.main import main
from reliq.errors import StorageError
from reliq.storage.base import NewRecord, Outcome, Verb, Worker
from reliq.storage.sql.check import NAMED, check
from reliq.storage.sql.file import FileStorage
from reliq.storage.sql.statements import CHECKS

from .child import record

ALICE = Worker("alice", "1")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Jobs in every state, and a process that goes on using them."""
    storage = FileStorage(tmp_path / "queue")
    storage.enqueue("q", [record(f"job-{n}") for n in range(8)])
    storage.enqueue("q", [NewRecord("long", os.urandom(8), b"x" * 5_000, 3, 60_000, 60_000, 60_000)])
    storage.enqueue("q", [record("later")._replace(delay_ms=60_000)])
    jobs = storage.claim("q", ALICE, 5, serial=1, lease_ms=60_000).jobs
    verbs = (Verb.COMPLETE, Verb.RETRY, Verb.FAIL, Verb.RELEASE)
    storage.settle(
        "q", ALICE,
        [
            Outcome(job.id, job.nonce, job.token, verb, b"r", b"e", 60_000)
            for job, verb in zip(jobs, verbs, strict=False)
        ],
    )  # fmt: skip
    storage.cancel("q", ["job-7"])
    storage.enqueue("tied", [record("first")._replace(group="g"), record("second")._replace(group="g")])
    storage.enqueue("tied", [record("waiting")._replace(after=("first",))])
    storage.purge("other")
    yield tmp_path / "queue"
    storage.close()


def test_a_store_in_use_is_sound(directory: Path) -> None:
    report = check(directory)
    assert (report.counts, report.problems) == ({}, [])
    assert (report.queues, report.jobs) == (3, 12)


BROKEN = {
    "counters": "UPDATE queue SET n_queued = n_queued + 1 WHERE name = 'q'",
    "states": "UPDATE job SET state = 'lost' WHERE id = 'job-6'",
    "positions": "UPDATE job SET position = 1000000 WHERE id = 'job-6'",
    "due_entries": "UPDATE job SET due_ms = NULL WHERE id = 'later'",
    "leases": "UPDATE job SET lease_ms = NULL WHERE state = 'processing'",
    "attempts": "UPDATE job SET attempts = 9 WHERE state = 'processing'",
    "ends": "UPDATE job SET expires_ms = NULL WHERE state = 'completed'",
    "messages": "DELETE FROM message",
    "orphans": "INSERT INTO message VALUES (4711, x'00')",
    "tombstones": "UPDATE tombstone SET (id, nonce) = (SELECT id, nonce FROM job WHERE id = 'job-6')",
    "epochs": "UPDATE job SET epoch = 7 WHERE id = 'job-6'",
    "lines": "UPDATE tie SET sequence = 0 WHERE key = (SELECT key FROM job WHERE id = 'second')",
    "links": "UPDATE link SET is_met = 1",
    "settings": "UPDATE queue SET is_limited = 1 WHERE name = 'q'",
}


def test_every_check_is_tried() -> None:
    assert BROKEN.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found(directory: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(directory / "queue.db")
    with connection:
        connection.execute(BROKEN[name])
    connection.close()
    report = check(directory)
    assert report.counts[name] == 1
    assert main(["check", str(directory), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == report.counts
    assert name in {problem["check"] for problem in found["problems"]}
    assert main(["check", f"file://{directory}"]) == 1
    assert f"\n{name}: " in "\n" + capsys.readouterr().out


def test_only_some_of_many_are_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(directory / "queue.db")
    with connection:
        connection.executemany("INSERT INTO message VALUES (?, x'00')", [(n,) for n in range(10_000, 10_100)])
    connection.close()
    report = check(directory)
    assert report.counts == {"orphans": 100}
    assert len(report.problems) == NAMED
    assert main(["check", str(directory)]) == 1
    assert "... and 80 more" in capsys.readouterr().out


def test_a_damaged_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = FileStorage(tmp_path / "queue")
    storage.enqueue("q", [record(f"job-{n}") for n in range(2_000)])
    storage.close()
    path = tmp_path / "queue" / "queue.db"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8_192] = os.urandom(8_192)
    path.write_bytes(data)
    assert main(["check", str(tmp_path / "queue")]) == 1
    output = capsys.readouterr()
    assert "integrity" in output.out or "damaged" in output.err


def test_of_a_badly_damaged_file_it_says_what_else_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was `reliq check` that was asked: its error must not send people to it again."""
    storage = FileStorage(tmp_path / "queue")
    storage.enqueue("q", [record(f"job-{n}") for n in range(200)])
    storage.close()
    path = tmp_path / "queue" / "queue.db"
    data = path.read_bytes()
    for kept in (0, 4_096):  # nothing is left, or no more than the page that says what the file is
        path.write_bytes(data[:kept] + os.urandom(len(data) - kept))
        assert main(["check", str(tmp_path / "queue")]) == 1
        text = capsys.readouterr().err
        assert "too damaged to be looked over" in text
        assert "restore it from a backup" in text
        assert "reliq check" not in text.replace("reliq check: ", "")


def test_a_file_that_cannot_be_opened_is_told(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorname = "SQLITE_CANTOPEN"
        raise error

    monkeypatch.setattr("reliq.storage.sql.check._check", refuse)
    assert main(["check", str(directory)]) == 1
    assert "where its file system is read-only check a copy" in capsys.readouterr().err


def test_long_work_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    clock = iter(range(10_000_000))
    monkeypatch.setattr("reliq.storage.sql.check._STEPS", 10)
    monkeypatch.setattr("reliq.storage.sql.check.time.monotonic", lambda: float(next(clock)))
    check(directory, told.append)
    assert "integrity of the file" in told
    assert "counters" in told


def test_what_is_no_store_is_not_made_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert "no queue" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match="no store"):
        check(tmp_path)
