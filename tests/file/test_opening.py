"""Where a FileStorage may live, and what it says when it cannot."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from reliq.errors import InvalidJobError, StorageCorruptError, StorageError, StorageUnavailableError
from reliq.storage.sql.file import FileStorage
from reliq.storage.sql.migrations import SCHEMA_VERSION

from .child import record


def used(directory: Path) -> Path:
    storage = FileStorage(directory)
    storage.enqueue("q", [record("a")])
    storage.close()
    return directory


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path / "deep" / "queue")
    storage.enqueue("q", [record("a")])
    root = tmp_path / "deep" / "queue"
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in root.iterdir()}
    assert modes == {"queue.db": 0o600, "queue.db-wal": 0o600, "queue.db-shm": 0o600, "lock": 0o600, "bell": 0o700}
    storage.close()


@pytest.mark.parametrize(("durability", "level"), [("fsync", 2), ("os", 1)])
def test_durability_is_the_level_of_synchronous(tmp_path: Path, durability: str, level: int) -> None:
    storage = FileStorage(tmp_path / "queue", durability)  # type: ignore[arg-type]
    assert storage._database.run("PRAGMA synchronous", {}) == [(level,)]
    assert storage._database.run("PRAGMA fullfsync", {}) == [(int(level == 2),)]
    assert storage._database.run("PRAGMA journal_mode", {}) == [("wal",)]
    storage.close()


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobError, match="durability"):
        FileStorage(tmp_path, "maybe")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(StorageError, match="symbolic link"):
        FileStorage(tmp_path / "link").counts("q")
    assert list((tmp_path / "real").iterdir()) == []


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(StorageError, match="belongs to user"):
        FileStorage(tmp_path / "queue").counts("q")


def test_a_file_in_the_way_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("")
    with pytest.raises(StorageUnavailableError):
        FileStorage(tmp_path / "queue").counts("q")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    root = used(tmp_path / "queue")
    connection = sqlite3.connect(root / "queue.db")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StorageError, match="newer reliq"):
        FileStorage(root).counts("q")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    root = used(tmp_path / "queue")
    (root / "queue.db").write_bytes(b"this is no database, but it is long enough to look like one" * 100)
    with pytest.raises(StorageCorruptError, match=r"queue\.db is damaged"):
        FileStorage(root).counts("q")


def test_a_held_database_is_unavailable_after_a_while(tmp_path: Path) -> None:
    root = used(tmp_path / "queue")
    other = sqlite3.connect(root / "queue.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    storage = FileStorage(root)
    storage._database.busy_seconds = 0.05
    assert storage.read("q", ["a"])[0].message == b"payload"
    with pytest.raises(StorageUnavailableError, match="nothing was written"):
        storage.enqueue("q", [record("b")])
    other.execute("COMMIT")
    assert storage.enqueue("q", [record("b")])[0].status == "queued"
    storage.close()
    other.close()
