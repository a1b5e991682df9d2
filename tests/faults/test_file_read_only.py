"""A file system that cannot be written: nothing half done, an error that says what to do, and on it goes afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliq.errors import OutcomeUnknownError, StorageUnavailableError
from reliq.lifecycle import State
from reliq.storage.base import Storage, Worker
from reliq.storage.sql.check import check
from reliq.storage.sql.file import FileStorage, _FileDatabase

from ..file.many import Children, many_processes
from .conftest import mounted
from .file_programs import QUEUE, record

#: Everything that somebody may begin with.
OPERATIONS: list[Callable[[FileStorage], object]] = [
    lambda storage: storage.enqueue(QUEUE, [record("refused")]),
    lambda storage: storage.claim(QUEUE, Worker("alice", "0"), 1, serial=1, lease_ms=1_000),
    lambda storage: storage.reap(QUEUE, interval_ms=1_000),
    lambda storage: storage.read(QUEUE, ["before"]),
    lambda storage: storage.counts(QUEUE),
    lambda storage: storage.wait(QUEUE, "before", timeout=0.1),
    lambda storage: storage.doorbell([QUEUE], "work").wait(0.1),
    lambda storage: storage.subscribe(QUEUE, print),
]


def remount(point: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", point], check=True)


def files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


def refuse_everything(storage: FileStorage) -> None:
    for operation in OPERATIONS:
        with pytest.raises(
            StorageUnavailableError, match=r"nothing was written: its file system is read-only; make it"
        ):
            operation(storage)


def states(storage: Storage, *ids: str) -> list[State]:
    return [snapshot.state for snapshot in storage.read(QUEUE, ids)]


def test_a_new_store_on_a_read_only_file_system_is_made_when_it_is_writable(tmpfs: Path) -> None:
    storage = FileStorage(tmpfs / "queue")
    remount(tmpfs, "ro")
    try:
        refuse_everything(storage)
        assert files(tmpfs) == []
        remount(tmpfs, "rw")
        assert storage.enqueue(QUEUE, [record("after")])[0].status == "queued"
        assert states(storage, "refused", "after") == [State.ABSENT, State.QUEUED]
    finally:
        storage.close()


def test_an_existing_store_on_a_read_only_file_system_is_as_it_was_when_it_is_writable(tmpfs: Path) -> None:
    storage = FileStorage(tmpfs / "queue")
    storage.enqueue(QUEUE, [record("before")])
    storage.close()
    before = files(tmpfs)
    remount(tmpfs, "ro")
    storage = FileStorage(tmpfs / "queue")
    try:
        refuse_everything(storage)
        assert files(tmpfs) == before
        remount(tmpfs, "rw")
        assert storage.enqueue(QUEUE, [record("after")])[0].status == "queued"
        assert states(storage, "before", "refused", "after") == [State.QUEUED, State.ABSENT, State.QUEUED]
        storage._bell._tidy()
        assert not list(tmpfs.glob("queue/bell/*.listening")), "nobody listens: the subscription was refused"
    finally:
        storage.close()


# -- read-only for some ---------------------------------------------------------------


@pytest.fixture
def elsewhere(file_children: Children, tmp_path: Path) -> Iterator[Storage]:
    """A store that other processes have open."""
    storage = many_processes(file_children, tmp_path / "queue")
    storage.enqueue(QUEUE, [record("before")])
    storage.counts(QUEUE)
    storage.counts(QUEUE)
    yield storage
    storage.close()


@pytest.fixture
def view(elsewhere: Storage, tmp_path: Path) -> Iterator[Path]:
    """Another path to the same directory, by which it can only be read."""
    point = tmp_path / "view"
    mounted(point, "--bind", tmp_path / "queue")
    try:
        remount(point, "ro,bind")
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


def test_where_it_can_only_be_read_a_store_is_not_used(elsewhere: Storage, view: Path) -> None:
    storage = FileStorage(view)
    try:
        refuse_everything(storage)
        assert elsewhere.enqueue(QUEUE, [record("there")])[0].status == "queued"
        remount(view, "rw,bind")
        assert states(storage, "before", "refused", "there") == [State.QUEUED, State.ABSENT, State.QUEUED]
        assert storage.enqueue(QUEUE, [record("after")])[0].status == "queued"
        assert states(elsewhere, "after") == [State.QUEUED]
    finally:
        storage.close()


def test_control_one_that_only_reads_keeps_its_process_from_writing_ever_after(
    view: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_FileDatabase, "_try_to_write", lambda self: None)
    monkeypatch.setattr(_FileDatabase, "_refuse_read_only", lambda self, connection: None)
    reader, writer = FileStorage(view), FileStorage(view)
    try:
        assert states(reader, "before") == [State.QUEUED]
        remount(view, "rw,bind")
        for _ in range(3):
            with pytest.raises(StorageUnavailableError, match="SQLITE_READONLY"):
                writer.enqueue(QUEUE, [record("after")])
    finally:
        reader.close()
        writer.close()


# -- read-only while it is open -------------------------------------------------------


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A file system that becomes read-only at its first error, and its image."""
    point, image = tmp_path / "disk", tmp_path / "image"
    make = shutil.which("mkfs.ext4")
    if make is None or shutil.which("e2fsck") is None:
        pytest.skip("the tools of ext4 are not installed")
    image.write_bytes(b"")
    os.truncate(image, 16 << 20)
    subprocess.run([make, "-q", "-F", image], check=True)
    mounted(point, "-o", "loop,errors=remount-ro", image)
    yield point, image
    subprocess.run(["umount", point], check=True)


def _break(point: Path) -> None:
    """Have the kernel meet an error on the file system, and on no other."""
    found = subprocess.run(["findmnt", "-n", "-o", "SOURCE", point], capture_output=True, text=True, check=True)
    device = found.stdout.strip()
    assert device.startswith("/dev/loop")
    trigger = Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip("this kernel has no way to ask for an error")
    trigger.write_text("a test")


def test_a_file_system_that_becomes_read_only_while_it_is_open_is_let_go(ext4: tuple[Path, Path]) -> None:
    point, image = ext4
    storage, reader = FileStorage(point / "queue"), FileStorage(point / "queue")
    try:
        storage.enqueue(QUEUE, [record("before")])
        assert states(reader, "before") == [State.QUEUED]
        _break(point)
        assert states(reader, "before") == [State.QUEUED], "what was read before the error can be read"
        # Of a write that was under way nobody knows whether it reached the disk.
        with pytest.raises(OutcomeUnknownError, match="repeat the operation, which is safe"):
            storage.enqueue(QUEUE, [record("unknown")])
        refuse_everything(storage)
        with pytest.raises(OutcomeUnknownError):
            reader.reap(QUEUE, interval_ms=1_000)
        refuse_everything(reader)
        # Nothing of it is open any more, so that it can be repaired beside its users.
        subprocess.run(["umount", point], check=True)
        assert subprocess.run(["e2fsck", "-fy", image], capture_output=True).returncode <= 1
        subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, point], check=True)
        assert storage.enqueue(QUEUE, [record("after")])[0].status == "queued"
        assert states(reader, "before", "refused", "after") == [State.QUEUED, State.ABSENT, State.QUEUED]
        report = check(point / "queue")
        assert report.is_sound, report.problems
    finally:
        storage.close()
        reader.close()
