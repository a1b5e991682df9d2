"""Jobs in a directory of one machine, shared by its processes. Survives kill -9 and power loss."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from ...errors import InvalidJobError, StorageCorruptError, StorageError, StorageUnavailableError
from . import bell as bells
from . import places
from .bell import Bell
from .connection import PREPARED, Database, Row
from .migrations import SCHEMA_VERSION, statements, steps
from .statements import SCHEMA, check_version, install
from .storage import SqlStorage

# A lock file that only exists says nothing after a crash. Older ones have no such fallback to refuse.
_LOCK_OPTIONS: dict[str, Any] = (
    {"fallback_to_soft": False} if "fallback_to_soft" in signature(FileLock.__init__).parameters else {}
)


Durability = Literal["fsync", "os"]
_SYNCHRONOUS = {"fsync": "FULL", "os": "NORMAL"}


class FileStorage(SqlStorage):
    """A store in ``directory``, made on first use (mode 0700). Local disks only.

    ``durability="fsync"``: what was acknowledged survives power loss; ``"os"``: it survives the
    death of any process, but not of the machine. The directory must not be a symbolic link
    and must belong to the user.
    """

    fallback_ms = 1_000

    def __init__(self, directory: str | os.PathLike[str], durability: Durability = "fsync") -> None:
        if durability not in _SYNCHRONOUS:
            raise InvalidJobError(f"durability must be 'fsync' or 'os', got {durability!r}")
        root = Path(os.path.abspath(directory))
        self.url = f"file://{root}"
        self._file = _FileDatabase(root, durability)
        super().__init__(self._file)
        self._bell_directory = root / "bell"
        self._bell = self._new_bell()
        _storages.add(self)

    def subscribe(self, queue: str, listener: Callable[[str, str], None]) -> Callable[[], None]:
        self._file.make_root()
        self._bell.listen(True)
        try:
            unsubscribe = super().subscribe(queue, listener)
        except BaseException:
            self._bell.listen(not self._dispatcher.is_idle)
            raise

        def end() -> None:
            unsubscribe()
            self._bell.listen(not self._dispatcher.is_idle)

        return end

    def close(self) -> None:
        super().close()
        self._bell.close()

    def _new_bell(self) -> Bell:
        return Bell(self._bell_directory, self._answer_bell, self._has_sleepers)

    def _announce(self) -> bool:
        if self._bell.is_announced:
            return False
        self._file.make_root()
        return self._bell.announce()

    def _tell_others(self, concerns_sleepers: bool) -> None:
        self._bell.ring_others(concerns_sleepers)

    def _has_sleepers(self) -> bool:
        return self._wakeups.has_sleepers

    def _answer_bell(self) -> None:
        """One look for everything that this process sleeps on."""
        if self._database.is_closed:
            return
        for queue, ids in self._wakeups.waited().items():
            # By the time that a ring is answered an id may have a new life, whose end is not the one waited for.
            self._wakeups.unfinished(queue, self._unfinished(queue, ids))
        for queue, bell in self._wakeups.bells():
            if self._has_news(queue, bell):
                self._wakeups.ring(queue, bell)
        self._dispatcher.poke()

    def _before_fork(self) -> None:
        self._file.suspend()

    def _after_fork_in_parent(self) -> None:
        self._file.resume()

    def _after_fork_in_child(self) -> None:
        self._file.resume_in_child()
        self._wakeups.forget()
        self._dispatcher.forget()
        self._bell = self._new_bell()


_storages: weakref.WeakSet[FileStorage] = weakref.WeakSet()
_suspended: list[FileStorage] = []


def _before_fork() -> None:
    # No SQLite connection may be open across a fork: the child would inherit the table of
    # locks without the locks, and the next close would take the others' commits away.
    for storage in list(_storages):
        storage._before_fork()
        _suspended.append(storage)


def _after_fork_in_parent() -> None:
    while _suspended:
        _suspended.pop()._after_fork_in_parent()


def _after_fork_in_child() -> None:
    bells.reset_after_fork()
    while _suspended:
        _suspended.pop()._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class _FileDatabase(Database):
    def __init__(self, root: Path, durability: Durability) -> None:
        super().__init__()
        self._root = root
        self._path = root / "queue.db"
        self._synchronous = _SYNCHRONOUS[durability]
        self._read_lock = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._identity = (0, 0)

    def ask(self, question: str, parameters: Mapping[str, Any]) -> list[Row]:
        # On a connection of its own a question need not wait for a commit.
        self._check_process()
        with self._read_lock:
            if self._reader is None and self._connection is not None:
                self._reader = self._connected()
            if self._reader is not None and not self._is_gone():
                try:
                    return self._retry(self._reader, question, parameters)
                except sqlite3.Error as error:
                    self._drop_reader()
                    raise self._translated(error) from error
        return self.run(question, parameters)

    def _open(self) -> sqlite3.Connection:
        check_version()
        try:
            self._make_root()
            self._try_to_write()
            if not self._path.exists():
                with self._exclusive():
                    self._make_file()
            self._identity = self._present()
            connection = self._connected()
        except OSError as error:
            raise _unusable(self._root, error) from error
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connected(self) -> sqlite3.Connection:
        # Opening may touch the file through SQLite only: any other close of it in
        # this process would drop SQLite's locks.
        return sqlite3.connect(
            self._path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=PREPARED
        )

    def _present(self) -> tuple[int, int]:
        status = os.stat(self._path)
        return status.st_dev, status.st_ino

    def _is_gone(self) -> bool:
        # SQLite would go on writing to a file that has no name any more.
        try:
            return self._present() != self._identity
        except OSError:
            return True

    def _drop(self) -> None:
        with self._read_lock:
            self._drop_reader()
        super()._drop()

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _set_up(self, connection: sqlite3.Connection) -> None:
        version = self._version(connection)
        if version < SCHEMA_VERSION:
            with self._exclusive():
                self._bring_up_to_date(connection)
        elif version > SCHEMA_VERSION:
            raise StorageError(
                f"{self._path} was written by a newer reliq: it has schema {version}, this one knows {SCHEMA_VERSION}. "
                "Upgrade reliq here"
            )
        (mode,) = self._retry(connection, "PRAGMA journal_mode", ())[0]
        if mode != "wal":
            raise StorageCorruptError(f"{self._path} is in journal mode {mode!r}, not WAL: somebody else changed it")
        # On macOS only a full fsync empties the cache of the disk itself; elsewhere it says nothing.
        full = int(self._synchronous == "FULL")
        pragmas = (f"synchronous = {self._synchronous}", f"fullfsync = {full}", "temp_store = MEMORY")
        for pragma in (*pragmas, "cache_size = -16000"):
            self._retry(connection, f"PRAGMA {pragma}", ())
        install(connection)
        self._refuse_read_only(connection)

    def _refuse_read_only(self, connection: sqlite3.Connection) -> None:
        # One that can only read would be kept for questions, and keep every later one of this process
        # from writing: they share its view of the log. Being busy means that it may write.
        try:
            connection.execute("DELETE FROM queue WHERE 0")
        except sqlite3.OperationalError as error:
            if (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_READONLY"):
                raise StorageUnavailableError(
                    f"{self._path} can be read but not written, so it is not used; let user {_user()} write it and "
                    "the files beside it, and try again"
                ) from error

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        version = self._version(connection)  # somebody else may have been first
        if version == 0:
            self._retry(connection, "PRAGMA journal_mode = WAL", ())
        todo = statements(SCHEMA) if version == 0 else steps(version)
        self._retry(connection, "BEGIN IMMEDIATE", ())
        try:
            for statement in (*todo, f"PRAGMA user_version = {SCHEMA_VERSION}", "COMMIT"):
                connection.execute(statement)
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _version(self, connection: sqlite3.Connection) -> int:
        return int(self._retry(connection, "PRAGMA user_version", ())[0][0])

    def make_root(self) -> None:
        """Make the directory if need be, and refuse one that is not ours."""
        try:
            self._make_root()
        except OSError as error:
            raise _unusable(self._root, error) from error

    def _make_root(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(self._root)
        if stat.S_ISLNK(status.st_mode):
            raise StorageError(f"{self._root} is a symbolic link; name the directory itself")
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            raise StorageError(f"{self._root} belongs to user {status.st_uid}, not {os.getuid()}; use one of your own")
        places.refuse_network(self._root)
        (self._root / "bell").mkdir(mode=0o700, exist_ok=True)

    def _try_to_write(self) -> None:
        # Where it may not write SQLite opens for reading, or says no more than that it cannot. The lock
        # file, unlike SQLite's, may be closed at any time.
        os.close(os.open(self._root / "lock", os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))

    def _make_file(self) -> None:
        # SQLite gives its other files the mode of this one. It gets its name when it is closed
        # again, because nothing but SQLite may close a file that some connection has open.
        if not self._path.exists():
            new = self._root / "queue.db.new"
            os.close(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
            # A name is durable when the directory that holds it is: the store's, and those that were made for it.
            for directory in (self._root, *self._root.parents):
                _sync_directory(directory)
            os.rename(new, self._path)
            _sync_directory(self._root)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        lock = FileLock(self._root / "lock", self.busy_seconds, 0o600, poll_interval=0.005, **_LOCK_OPTIONS)
        try:
            lock.acquire()
        except Timeout as error:
            raise StorageUnavailableError(
                f"{lock.lock_file} was held for {self.busy_seconds:g} s; try again later"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StorageError(
                f"this process was forked without Python's fork hooks, so it cannot use its parent's {self._path}; "
                "make a new FileStorage in it"
            )

    def _where(self) -> str:
        return str(self._path)

    def suspend(self) -> None:
        super().suspend()
        self._read_lock.acquire()
        self._drop_reader()

    def resume(self) -> None:
        self._read_lock.release()
        super().resume()

    def resume_in_child(self) -> None:
        self._read_lock = threading.Lock()
        super().resume_in_child()


#: What to do about an error of the operating system.
_REMEDIES = {
    errno.EROFS: "its file system is read-only; make it writable (mount -o remount,rw) or use another directory",
    errno.ENOSPC: "no space is left there; free some",
    errno.EDQUOT: "the quota is used up; free some space there",
    errno.ENOTDIR: "something on the path is no directory; use another directory",
    errno.EEXIST: "something that is no directory has its name; use another directory",
    errno.ELOOP: "a symbolic link is in the way; name the directory itself and keep links out of it",
    errno.EMFILE: "this process has too many files open; raise its limit (ulimit -n)",
    errno.ENFILE: "the machine has too many files open; raise fs.file-max",
    errno.EIO: "its disk does not work; check it",
}


def _unusable(root: Path, error: OSError) -> StorageUnavailableError:
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = f"user {_user()} may not; check the owners and modes of it and of the directories above"
    else:
        remedy = _REMEDIES.get(error.errno or 0, "check that it is a directory on a local disk")
    return StorageUnavailableError(f"{root} cannot be used, nothing was written: {remedy} ({error})")


def _user() -> int | str:
    return os.getuid() if hasattr(os, "getuid") else "of this process"


def _sync_directory(path: Path) -> None:
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # one above that may be passed but not read: nothing was made in it
        return
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS):  # some kinds of directory cannot be synced
            raise
    finally:
        os.close(directory)
