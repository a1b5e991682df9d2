"""Jobs in a directory of one machine, shared by its processes. Survives kill -9 and power loss."""

from __future__ import annotations

import os
import sqlite3
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from ...errors import InvalidJobError, StorageCorruptError, StorageError, StorageUnavailableError
from . import bell as bells
from .bell import Bell
from .connection import PREPARED, Database, translated
from .statements import SCHEMA, check_version, install
from .storage import SqlStorage

#: Of the tables. A store with a newer one is refused.
SCHEMA_VERSION = 1

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
        unsubscribe = super().subscribe(queue, listener)

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
            self._wakeups.ended(queue, self._ended_of(queue, ids))
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

    def _open(self) -> sqlite3.Connection:
        check_version()
        try:
            self._make_root()
            if not self._path.exists():
                with self._exclusive():
                    self._make_file()
            # Opening may touch the file through SQLite only: any other close of it in
            # this process would drop SQLite's locks.
            connection = sqlite3.connect(
                self._path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=PREPARED
            )
        except OSError as error:
            raise StorageUnavailableError(f"{self._root} cannot be used: {error}") from error
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        version = self._version(connection)
        if version == 0:
            with self._exclusive():
                if self._version(connection) == 0:
                    self._retry(connection, "PRAGMA journal_mode = WAL", ())
                    connection.executescript(
                        f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
                    )
        elif version > SCHEMA_VERSION:
            raise StorageError(
                f"{self._path} was written by a newer reliq: it has schema {version}, this one knows {SCHEMA_VERSION}. "
                "Upgrade reliq here"
            )
        (mode,) = self._retry(connection, "PRAGMA journal_mode", ())[0]
        if mode != "wal":
            raise StorageCorruptError(f"{self._path} is in journal mode {mode!r}, not WAL: somebody else changed it")
        for pragma in (f"synchronous = {self._synchronous}", "temp_store = MEMORY", "cache_size = -16000"):
            self._retry(connection, f"PRAGMA {pragma}", ())
        install(connection)

    def _version(self, connection: sqlite3.Connection) -> int:
        return int(self._retry(connection, "PRAGMA user_version", ())[0][0])

    def make_root(self) -> None:
        """Make the directory if need be, and refuse one that is not ours."""
        try:
            self._make_root()
        except OSError as error:
            raise StorageUnavailableError(f"{self._root} cannot be used: {error}") from error

    def _make_root(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(self._root)
        if stat.S_ISLNK(status.st_mode):
            raise StorageError(f"{self._root} is a symbolic link; name the directory itself")
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            raise StorageError(f"{self._root} belongs to user {status.st_uid}, not {os.getuid()}; use one of your own")
        (self._root / "bell").mkdir(mode=0o700, exist_ok=True)

    def _make_file(self) -> None:
        # SQLite gives its other files the mode of this one. It gets its name when it is closed
        # again, because nothing but SQLite may close a file that some connection has open.
        if not self._path.exists():
            new = self._root / "queue.db.new"
            os.close(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
            os.rename(new, self._path)

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

    def _translated(self, error: sqlite3.Error) -> StorageError:
        return translated(error, str(self._path), self.busy_seconds)

    def suspend(self) -> None:
        """Let the running statement end and close the connection, until :meth:`resume`."""
        self._lock.acquire()
        self._drop()

    def resume(self) -> None:
        """After :meth:`suspend`: the next statement opens anew."""
        self._lock.release()

    def resume_in_child(self) -> None:
        """:meth:`resume` in the new process of a fork."""
        self._renew_lock()
        self._pid = os.getpid()
