"""One SQLite connection, used by every thread of the process in turn.

A write is ONE autocommit statement: its batch is staged in TEMP tables (no lock on the
database), the transition runs inside the statement's trigger, and its answers are read
from TEMP tables afterwards. So the database is never held while a thread waits for
the interpreter.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from ...errors import StorageCorruptError, StorageError, StorageUnavailableError

Row = tuple[Any, ...]

_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")


@dataclass(frozen=True, slots=True)
class Write:
    """One transition: its name, its parameters, rows for its staging table, the answers to read."""

    transition: str
    parameters: Sequence[Any]
    staged: Sequence[Sequence[Any]] = ()
    answers: tuple[str, ...] = ()


def write(
    transition: str, *parameters: Any, staged: Sequence[Sequence[Any]] = (), answers: tuple[str, ...] = ()
) -> Write:
    """The Write of a transition."""
    return Write(transition, parameters, staged, answers)


@cache
def _insert(table: str, columns: int, rows: int = 1) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * rows)}"  # noqa: S608 (names of our own files)


#: Rows staged by one statement: each statement hands the interpreter's lock over and back.
_STAGED = 64
#: Statements kept prepared: staging takes one for each number of rows.
PREPARED = 300


def _stage(connection: sqlite3.Connection, command: Write) -> None:
    table = f"{command.transition}_in"
    connection.execute(f"DELETE FROM {table}")  # noqa: S608
    for start in range(0, len(command.staged), _STAGED):
        rows = command.staged[start : start + _STAGED]
        connection.execute(_insert(table, len(rows[0]), len(rows)), list(chain.from_iterable(rows)))


class Database(ABC):
    """A connection that opens on first use. Methods may be called from any thread."""

    #: How long a write goes on trying while other processes hold the database.
    busy_seconds: float = 10.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._pid = os.getpid()

    @abstractmethod
    def _open(self) -> sqlite3.Connection:
        """A new connection with schema and transitions. The lock is held."""

    def write(self, command: Write) -> list[list[Row]]:
        """Run one transition and return the rows of its answers."""
        self._check_process()
        with self._lock:
            try:
                connection = self._opened()
                if command.staged:
                    _stage(connection, command)
                self._retry(connection, _insert(command.transition, len(command.parameters)), command.parameters)
                return [connection.execute(answer).fetchall() for answer in command.answers]
            except sqlite3.Error as error:
                raise self._translated(error) from error

    def run(self, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one question or one plain statement and return its rows."""
        self._check_process()
        with self._lock:
            try:
                return self._retry(self._opened(), statement, parameters)
            except sqlite3.Error as error:
                raise self._translated(error) from error

    def close(self) -> None:
        """Close the connection for good. Idempotent."""
        if os.getpid() != self._pid:
            return  # the connection is the parent's
        with self._lock:
            self._is_closed = True
            self._drop()

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._is_closed

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._is_closed:
                raise StorageError("the storage is closed; make a new one")
            self._connection = self._open()
        return self._connection

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _retry(self, connection: sqlite3.Connection, statement: str, parameters: Any) -> list[Row]:
        # SQLite's own waiting backs off and starves this process beside a busy one, so it is
        # off (busy_timeout=0) and short even steps are made here.
        deadline = 0.0
        while True:
            try:
                return connection.execute(statement, parameters).fetchall()
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith(_BUSY):
                    raise
                now = time.monotonic()
                deadline = deadline or now + self.busy_seconds
                if now >= deadline:
                    raise
            time.sleep(random.uniform(0.0002, 0.0005))

    def _check_process(self) -> None:  # noqa: B027 (most have nothing to refuse)
        """Refuse to run where the connection must not be used."""

    def _translated(self, error: sqlite3.Error) -> StorageError:
        return translated(error, "the storage", self.busy_seconds)


def translated(error: sqlite3.Error, where: str, busy_seconds: float) -> StorageError:
    """The storage error for one of SQLite's, saying what to do."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name.startswith(_BUSY):
        return StorageUnavailableError(
            f"{where} was held by other processes for {busy_seconds:g} s, nothing was written; try again later"
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StorageCorruptError(f"{where} is damaged ({error}); stop its users and restore it from a copy")
    if name.startswith("SQLITE_FULL"):
        return StorageUnavailableError(f"no space left for {where}, nothing was written; free some and try again")
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        return StorageUnavailableError(
            f"{where} cannot be read or written ({name}: {error}); check that its directory exists on a local disk, "
            "its owner and its mode"
        )
    return StorageError(f"{where} refused an operation ({name}: {error})")
