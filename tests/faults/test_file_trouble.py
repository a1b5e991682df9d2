"""What happens to a directory from outside: removed, not to be written, damaged, locked by a stopped process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliq import Queue
from reliq.errors import StorageCorruptError, StorageError, StorageUnavailableError
from reliq.lifecycle import State
from reliq.storage.base import Worker
from reliq.storage.sql.check import check
from reliq.storage.sql.file import FileStorage, _FileDatabase

from .file_programs import QUEUE, FileProgram, Journal, record
from .support import until


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store with 200 jobs that nobody has open."""
    storage = FileStorage(tmp_path / "queue")
    storage.enqueue(QUEUE, [record(f"job-{n}") for n in range(200)])
    storage.close()
    return tmp_path / "queue"


@pytest.fixture
def storage(directory: Path) -> Iterator[FileStorage]:
    storage = FileStorage(directory)
    yield storage
    storage.close()


# -- removed --------------------------------------------------------------------------


def test_a_pool_whose_directory_is_deleted_goes_on_in_a_new_one(tmp_path: Path) -> None:
    """Nothing tells of the deletion: a watch of a deleted directory is silent."""
    directory, journal = tmp_path / "queue", tmp_path / "journal"

    def runs() -> set[str]:
        return {words[1] for words in Journal.read(journal) if words[0] == "start"}

    with FileProgram("worker", directory=str(directory), journal=str(journal), worker_ttl=15.0) as program:
        for number in range(3):
            storage = FileStorage(directory)
            with Queue(QUEUE, storage) as q:
                q.enqueue(f"job-{number}", None)
                until(lambda: f"job-{number}" in runs(), what=f"job {number}")  # noqa: B023 (called at once)
            storage.close()
            shutil.rmtree(directory)
        assert program.is_running
        assert "removed or replaced" in program.errors


def test_control_without_the_look_at_the_file_jobs_are_accepted_into_a_deleted_one(
    storage: FileStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_FileDatabase, "_is_gone", lambda self: False)
    storage.enqueue(QUEUE, [record("before")])
    shutil.rmtree(directory)
    assert storage.enqueue(QUEUE, [record("lost")])[0].status == "queued"
    other = FileStorage(directory)
    assert other.read(QUEUE, ["lost"])[0].state is State.ABSENT
    other.close()


# -- modes ----------------------------------------------------------------------------


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that every user may pass, which pytest's own are not."""
    if not hasattr(os, "setuid") or os.getuid() != 0:
        pytest.skip("becoming another user, to whom modes mean something, needs root")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.parametrize("mode", [0o500, 0o700], ids=["read_only", "control_writable"])
def test_a_directory_that_may_not_be_written_is_unavailable(open_to_all: Path, mode: int) -> None:
    """The control is the same directory with the right to write."""
    root = open_to_all / "queue"
    root.mkdir()
    os.chown(root, 65_534, 65_534)
    root.chmod(mode)
    with FileProgram("as_nobody", directory=str(root)) as program:
        name, text = program.output()
    if mode == 0o700:
        assert (name, text) == ("accepted", "")
    else:
        assert name == "StorageUnavailableError"
        assert re.search(rf"{root} cannot be used.*user 65534 may not; check the owners and modes", text)


@pytest.mark.parametrize("mode", [0o444, 0o666], ids=["read_only", "control_writable"])
def test_a_file_that_may_only_be_read_is_not_used(open_to_all: Path, mode: int) -> None:
    """SQLite would open it for reading, and so keep this process from writing when it may again."""
    root = open_to_all / "queue"
    storage = FileStorage(root)
    storage.enqueue(QUEUE, [record("before")])
    storage.close()
    for path in (root, root / "bell", root / "lock"):
        os.chown(path, 65_534, 65_534)
    (root / "queue.db").chmod(mode)
    with FileProgram("as_nobody", directory=str(root)) as program:
        name, text = program.output()
    if mode == 0o666:
        assert (name, text) == ("accepted", "")
    else:
        assert name == "StorageUnavailableError"
        assert re.search("can be read but not written.*let user 65534 write it", text)


# -- damaged --------------------------------------------------------------------------


def _damage(directory: Path, first: int) -> None:
    """Overwrite every page from ``first`` on; the first page says what the file is."""
    path = directory / "queue.db"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(first * 4096)
        file.write(os.urandom(max(0, size - first * 4096)))


def test_damaged_pages_are_an_error_and_no_wrong_answer(directory: Path) -> None:
    _damage(directory, 1)
    storage = FileStorage(directory)
    try:
        for act in (
            lambda: storage.enqueue(QUEUE, [record("new")]),
            lambda: storage.claim(QUEUE, Worker("alice", "0"), 10, serial=1, lease_ms=1_000),
            lambda: storage.counts(QUEUE),
            lambda: storage.read(QUEUE, ["job-7"]),
        ):
            with pytest.raises(StorageCorruptError, match=r"queue\.db is damaged.*restore it from a copy"):
                act()
    finally:
        storage.close()


def test_control_the_check_tells_a_damaged_store_from_a_whole_one(directory: Path) -> None:
    def is_sound() -> bool:
        try:
            return check(directory).is_sound
        except StorageCorruptError:
            return False

    assert is_sound()
    _damage(directory, 5)
    assert not is_sound()


# -- locks of a stopped process -------------------------------------------------------


def test_a_lock_of_a_stopped_process_is_an_error_until_the_process_goes_on_or_dies(
    storage: FileStorage, directory: Path
) -> None:
    storage.enqueue(QUEUE, [record("before")])
    storage._database.busy_seconds = 0.3
    with FileProgram("hold_lock", directory=str(directory)) as program:
        program.wait_ready()
        program.stop()
        began = time.monotonic()
        with pytest.raises(StorageUnavailableError, match=r"nothing was written.*stopped"):
            storage.enqueue(QUEUE, [record("refused")])
        assert 0.3 <= time.monotonic() - began < 3
        assert storage.read(QUEUE, ["before"])[0].state is State.QUEUED, "reading goes on"
        program.kill()
    assert storage.enqueue(QUEUE, [record("after")])[0].status == "queued"
    assert storage.read(QUEUE, ["refused"])[0].state is State.ABSENT


def test_control_a_lock_of_a_process_that_ends_in_time_delays_and_refuses_nothing(
    storage: FileStorage, directory: Path
) -> None:
    with FileProgram("hold_lock", directory=str(directory)) as program:
        program.wait_ready()
        program.kill()
        assert storage.enqueue(QUEUE, [record("after")])[0].status == "queued"


def test_a_stopped_process_that_makes_the_store_is_waited_for_and_then_named(tmp_path: Path) -> None:
    """Making the tables needs the lock file, which a stopped process keeps."""
    directory = tmp_path / "queue"
    directory.mkdir(mode=0o700)
    with FileProgram("hold_file_lock", path=str(directory / "lock")) as program:
        program.wait_ready()
        program.stop()
        storage = FileStorage(directory)
        storage._database.busy_seconds = 0.3
        with pytest.raises(StorageError, match="lock was held") as caught:
            storage.counts(QUEUE)
        assert isinstance(caught.value, StorageUnavailableError)
        program.stop(signal.SIGCONT)
        program.kill()
        assert storage.enqueue(QUEUE, [record("after")])[0].status == "queued"
        storage.close()
