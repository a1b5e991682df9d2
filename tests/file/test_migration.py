"""A store of an older schema goes on with the present one."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from reliq.lifecycle import State
from reliq.storage.base import NewRecord, Outcome, Verb, Worker
from reliq.storage.sql.check import check
from reliq.storage.sql.file import FileStorage
from reliq.storage.sql.migrations import MIGRATIONS, SCHEMA_VERSION, steps

from .child import record

HERE = Path(__file__).parent
ALICE = Worker("alice", "1")


@pytest.fixture(params=range(1, SCHEMA_VERSION))
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def old(tmp_path: Path, version: int) -> Path:
    """A store of an older schema with a queued job, a completed one and one that alice runs."""
    root = tmp_path / "queue"
    root.mkdir(mode=0o700)
    connection = sqlite3.connect(root / "queue.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    schema = (HERE / f"schema_{version}.sql").read_text()
    connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;")
    connection.execute(
        "INSERT INTO queue (name, is_listed, back, n_queued, n_processing, n_completed) VALUES ('q', 1, 4, 1, 1, 1)"
    )
    far = 4_000_000_000_000
    for key, state, rest in (
        (1, "queued", (0, 0, None, None, None, None, None, None, None, None)),
        (2, "completed", (1, 1, None, None, None, far, far, far, far, b"done")),
        (3, "processing", (1, 1, ALICE.key, 1, far, None, None, None, None, None)),
    ):
        connection.execute(
            "INSERT INTO job (key, qid, id, nonce, state, epoch, priority, position, size, is_delayed, max_attempts, "
            "created_ms, updated_ms, result_ttl_ms, dedup_ttl_ms, dead_ttl_ms, token, attempts, holder, serial, "
            "lease_ms, result_until_ms, dedup_until_ms, expires_ms, sweep_ms, result) "
            "VALUES (?, 1, ?, ?, ?, 1, 0, ?, 3, 0, 3, 1, 1, 60000, 60000, 60000, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (key, f"job-{key}", bytes([key]) * 8, state, key, *rest),
        )
        connection.execute("INSERT INTO message VALUES (?, ?)", (key, b"m-%d" % key))
    connection.execute("INSERT INTO worker VALUES (1, ?, 1, 15000, ?, 0)", (ALICE.key, far))
    connection.close()
    return root


def test_there_is_a_step_from_every_version() -> None:
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))
    assert steps(SCHEMA_VERSION) == []


def test_an_older_store_is_migrated_and_keeps_its_jobs(old: Path) -> None:
    storage = FileStorage(old)
    assert [snapshot.message for snapshot in storage.read("q", ["job-1", "job-2", "job-3"])] == [b"m-1", b"m-2", b"m-3"]
    assert check(old).counts == {}
    running = Outcome("job-3", b"\3" * 8, 1, Verb.COMPLETE, result=b"3")
    assert storage.settle("q", ALICE, [running])[0].state is State.COMPLETED
    storage.enqueue("q", [record("new"), NewRecord("long", os.urandom(8), b"x" * 5_000, 3, 60_000, 60_000, 60_000)])
    jobs = storage.claim("q", ALICE, 10, serial=2, lease_ms=60_000).jobs
    assert [(job.id, len(job.message)) for job in jobs] == [("job-1", 3), ("new", 7), ("long", 5_000)]
    assert check(old).counts == {}
    storage.close()


def test_a_migrated_store_has_the_tables_of_a_new_one(old: Path, tmp_path: Path) -> None:
    shapes = []
    for root in (old, tmp_path / "new"):
        storage = FileStorage(root)
        storage.counts("q")
        storage.close()
        connection = sqlite3.connect(root / "queue.db")
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        shapes.append(
            {
                (name, column[1], column[2])
                for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
                for column in connection.execute(f"PRAGMA table_info({name})")
            }
            | set(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index'").fetchall())
        )
        connection.close()
    assert shapes[0] == shapes[1]


def test_one_of_several_migrates(old: Path) -> None:
    storages = [FileStorage(old) for _ in range(4)]
    threads = [threading.Thread(target=storage.counts, args=("q",)) for storage in storages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [storage.counts("q")[State.QUEUED] for storage in storages] == [1] * 4
    for storage in storages:
        storage.close()
    assert check(old).is_sound


def test_a_migration_that_fails_changes_nothing(old: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    last = SCHEMA_VERSION - 1
    monkeypatch.setitem(MIGRATIONS, last, MIGRATIONS[last] + "SELECT nonsense;\n")
    with pytest.raises(Exception, match="nonsense"):
        FileStorage(old).counts("q")
    connection = sqlite3.connect(old / "queue.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    assert "is_coupled" not in {column[1] for column in connection.execute("PRAGMA table_info(queue)")}
    assert ("message" in {column[1] for column in connection.execute("PRAGMA table_info(job)")}) is (version > 1)
    connection.close()
