"""Where a store may not be, and what happens when it is taken away."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from reliq.errors import OutcomeUnknownError, StorageError, StorageUnavailableError
from reliq.lifecycle import State
from reliq.storage.sql import places
from reliq.storage.sql.connection import Database
from reliq.storage.sql.file import FileStorage

from .child import record

MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 22 0:27 / /mnt/my\040share rw shared:1 - nfs4 server:/x rw
32 22 0:28 / /mnt/local rw - nfs server:/y rw
33 22 0:29 / /mnt/local rw - xfs /dev/vdb rw
34 22 0:30 / /mnt/s rw - fuse.sshfs host:/ rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"), ("/var/lib", "ext4"), ("/mnt/my share", "nfs4"), ("/mnt/my share/queue", "nfs4"),
        ("/mnt/my share2", "ext4"), ("/mnt/local/a", "xfs"), ("/mnt/s/a/b", "fuse.sshfs"),
    ],
)  # fmt: skip
def test_the_mount_that_holds_a_path_is_found(path: str, kind: str) -> None:
    assert places.kind_of(path, MOUNTS) == kind


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS + f"40 22 0:40 / {tmp_path} rw - cifs //server/x rw\n")
    monkeypatch.setattr(places, "_MOUNTS", mounts)
    with pytest.raises(StorageError, match="network file system"):
        FileStorage(tmp_path / "queue").counts("q")
    assert not (tmp_path / "queue" / "queue.db").exists()


def test_without_a_list_of_mounts_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_MOUNTS", tmp_path / "none")
    places.refuse_network(tmp_path)


def test_a_deleted_directory_is_told_and_then_made_anew(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path / "queue")
    for name in ("first", "q"):  # the new store numbers its queues otherwise
        storage.enqueue(name, [record("a")])
    assert storage.counts("q")[State.QUEUED] == 1
    shutil.rmtree(tmp_path / "queue")
    with pytest.raises(StorageUnavailableError, match="removed or replaced"):
        storage.enqueue("q", [record("b")])
    assert storage.enqueue("q", [record("b")])[0].status == "queued"
    assert [snapshot.state for snapshot in storage.read("q", ["a", "b"])] == [State.ABSENT, State.QUEUED]
    storage.close()


def test_a_replaced_directory_is_never_read_as_the_old_one(tmp_path: Path) -> None:
    storage, other = FileStorage(tmp_path / "queue"), FileStorage(tmp_path / "other")
    storage.enqueue("q", [record("a")])
    assert storage.counts("q")[State.QUEUED] == 1
    other.enqueue("x", [record("x")])
    other.enqueue("q", [record("b"), record("c")])
    other.close()
    os.rename(tmp_path / "queue", tmp_path / "gone")
    os.rename(tmp_path / "other", tmp_path / "queue")
    with pytest.raises(StorageUnavailableError, match="removed or replaced"):
        storage.counts("q")
    assert storage.counts("q")[State.QUEUED] == 2
    storage.close()


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("SQLITE_IOERR_FSYNC", OutcomeUnknownError), ("SQLITE_IOERR_READ", StorageUnavailableError),
        ("SQLITE_FULL", StorageUnavailableError), ("SQLITE_READONLY", StorageUnavailableError),
    ],
)  # fmt: skip
def test_after_an_error_of_the_disk_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, raised: type[StorageError]
) -> None:
    storage = FileStorage(tmp_path / "queue")
    storage.enqueue("q", [record("a")])
    before = storage._database._connection

    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("disk")
        error.sqlite_errorname = name
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_retry", fail)
        with pytest.raises(raised, match=r"queue\.db"):
            storage.enqueue("q", [record("b")])
    assert storage.enqueue("q", [record("b")])[0].status == "queued"
    # A connection whose pages may never have reached the disk is not used again.
    assert (storage._database._connection is before) is (name == "SQLITE_FULL")
    storage.close()
