"""One SQLite connection for writing, used by every thread of the process in turn, and one for questions.

A write is ONE autocommit statement: its batch is staged in TEMP tables (no lock on the
database), the transition runs inside the statement's trigger, and its answers are read
from TEMP tables afterwards. So the database is never held while a thread waits for
the interpreter. Writes that wait at the same time share one statement and one commit.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from ...errors import OutcomeUnknownError, StorageCorruptError, StorageError, StorageUnavailableError
from ..base import MAX_BATCH
from .statements import BATCH_PARAMETERS, COMBINED, PARAMETERS, STAGED, places
from .turns import Request, Turns

Row = tuple[Any, ...]

_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
#: After one of these the connection may rest on pages that never reached the disk: it is opened anew.
_BROKEN = ("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_READONLY")
#: The most rows that one statement stages; smaller numbers are made of halves, so that few statements are prepared.
_STAGED = 256
#: Statements kept prepared.
PREPARED = 128


class Write(Request):
    """One transition: its name, its parameters, rows for its staging table, the questions for its answers.

    ``staged`` holds int, float, str and bytearray, and MISSING for a number that is not there:
    Python's sqlite3 looks for an adapter for anything else, bytes and None too, and to find none
    costs 0.8 us a value, as much as the rest of a row.
    Of two with the same ``parameters`` behind the first (the time) and no id in common the rows
    may be staged together: then the only answer's rows begin with n, the number of a staged row.
    One with a ``size``, the most jobs that it moves, may run several times in a statement: each
    time adds a row to the only answer. ``is_refused(rows)`` tells of an answer that nothing was
    written; one that was refused together with others runs again, alone.
    """

    __slots__ = ("ids", "is_refused", "is_repeatable", "parameters", "questions", "size", "staged", "transition")

    def __init__(
        self,
        transition: str,
        *parameters: Any,
        staged: Sequence[Row] = (),
        ids: Iterable[str] = (),
        questions: tuple[str, ...] = (),
        size: int = 0,
        is_refused: Callable[[list[Row]], bool] | None = None,
    ) -> None:
        super().__init__()
        self.transition = transition
        self.parameters: Row = parameters
        self.staged = staged
        self.ids = ids
        self.is_refused = is_refused
        self.questions = questions
        self.is_repeatable = size > 0
        self.size = size or len(staged)


class Statement(Request):
    """A plain statement that is served alone."""

    __slots__ = ("parameters", "text")

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        super().__init__()
        self.text = text
        self.parameters = parameters


class _Group:
    """Writes of one transition that run one after the other or as one, in the same statement."""

    __slots__ = ("_ids", "count", "writes")

    def __init__(self, write: Write) -> None:
        self.writes = [write]
        self.count = write.size
        self._ids: set[str] | None = None

    def accepts(self, write: Write) -> bool:
        """Add ``write`` if it can run together with the others."""
        first = self.writes[0]
        if self.count + write.size > MAX_BATCH:
            return False
        if first.staged and write.staged:
            if write.parameters[1:] != first.parameters[1:]:
                return False
            if self._ids is None:
                self._ids = set(first.ids)
            if not self._ids.isdisjoint(write.ids):
                return False
            self._ids.update(write.ids)
        elif not first.is_repeatable:
            return False
        self.writes.append(write)
        self.count += write.size
        return True

    def stage(self, connection: sqlite3.Connection) -> list[Row]:
        """Fill the staging table; the parameters of each time that the transition runs."""
        first = self.writes[0]
        if first.is_repeatable:
            connection.execute(f"DELETE FROM {first.transition}_more")  # noqa: S608 (names of our own files)
        if not first.staged:
            return [write.parameters for write in self.writes]
        connection.execute(f"DELETE FROM {first.transition}_in")  # noqa: S608
        rows = first.staged if len(self.writes) == 1 else [row for write in self.writes for row in write.staged]
        start, left = 0, len(rows)
        while left:
            size = min(_STAGED, 1 << (left.bit_length() - 1))
            part = rows[start : start + size]
            connection.execute(_staging(first.transition, len(part[0]), size), list(chain.from_iterable(part)))
            start += size
            left -= size
        return [(max(write.parameters[0] for write in self.writes), *first.parameters[1:])]

    def answer(self, connection: sqlite3.Connection) -> None:
        """Give every write its answers."""
        first = self.writes[0]
        answers = [connection.execute(question).fetchall() for question in first.questions]
        if len(self.writes) == 1:
            first.answers = answers
            return
        if first.is_repeatable:
            for write, row in zip(self.writes, answers[0], strict=True):
                write.answers = [[row]]
            return
        rows = iter(answers[0])
        row = next(rows, None)
        before = 0
        for write in self.writes:
            own: list[Row] = []
            while row is not None and row[0] <= before + len(write.staged):
                own.append((row[0] - before, *row[1:]))
                row = next(rows, None)
            write.answers = [own]
            before += len(write.staged)


@cache
def _staging(transition: str, columns: int, rows: int) -> str:
    names = ", ".join(STAGED[transition][:columns])
    return (
        f"INSERT INTO {transition}_in ({names}) "  # noqa: S608
        f"VALUES {', '.join([f'({places(transition, columns)})'] * rows)}"
    )


@cache
def _alone(transition: str, columns: int) -> str:
    names = (*PARAMETERS[transition], *STAGED[transition][:columns])
    return f"INSERT INTO {transition}_alone ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608


@cache
def _insert(view: str, columns: int, rows: int = 1) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {view} VALUES {', '.join([row] * rows)}"  # noqa: S608


class Database(ABC):
    """A database that opens on first use. Methods may be called from any thread."""

    #: How long a write goes on trying while other processes hold the database.
    busy_seconds: float = 10.0

    def __init__(self) -> None:
        self._turns = Turns(self._serve)
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._pid = os.getpid()
        #: Called when what numbers stood for is no longer there.
        self.on_replaced: Callable[[], None] = lambda: None

    @abstractmethod
    def _open(self) -> sqlite3.Connection:
        """A new connection with schema and transitions. Nothing else is served meanwhile."""

    def write(self, command: Write) -> list[list[Row]]:
        """Run one transition and return the rows of its answers."""
        self._check_process()
        self._turns.submit(command)
        return command.answers

    def run(self, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one plain statement in turn with the writes and return its rows."""
        self._check_process()
        command = Statement(statement, parameters)
        self._turns.submit(command)
        return command.answers

    def ask(self, question: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one question and return its rows. It sees every write that was answered before."""
        return self.run(question, parameters)

    def close(self) -> None:
        """Close the connections for good. Idempotent."""
        if os.getpid() != self._pid:
            return  # they are the parent's
        self.suspend()
        self._is_closed = True
        self.resume()

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._is_closed

    def suspend(self) -> None:
        """Let running statements end and close the connections; nothing begins until :meth:`resume`."""
        self._turns.hold()
        self._drop()

    def resume(self) -> None:
        """After :meth:`suspend`: the next statement opens anew."""
        self._turns.go_on()

    def resume_in_child(self) -> None:
        """:meth:`resume` in the new process of a fork."""
        self._turns.reset()
        self._pid = os.getpid()

    # -- one thread at a time ---------------------------------------------------------

    def _serve(self, waiting: deque[Any]) -> None:
        first = waiting.popleft()
        if isinstance(first, Statement):
            self._run_statement(first)
            return
        groups = [_Group(first)]
        try:
            if waiting and first.transition in COMBINED:
                self._collect(groups, waiting)
            self._run_groups(groups)
        except BaseException as error:
            writes = [write for group in groups for write in group.writes]
            if len(writes) > 1 and isinstance(error, Exception) and not isinstance(error, StorageError):
                # Something is wrong with one of them and nothing was written: each runs alone.
                for write in writes:
                    self._serve_alone(write)
                return
            for write in writes:
                write.error = _copied(error)
                write.finish()
            if not isinstance(error, Exception):
                raise

    def _serve_alone(self, write: Write) -> None:
        try:
            self._run_groups([_Group(write)])
        except Exception as error:
            write.error = error
            write.finish()

    def _collect(self, groups: list[_Group], waiting: deque[Any]) -> None:
        """Take what may share the commit: one group of each transition, in the order in which they came."""
        by_transition = {groups[0].writes[0].transition: groups[0]}
        for _ in range(len(waiting)):
            request = waiting.popleft()
            if not isinstance(request, Write) or request.transition not in COMBINED:
                waiting.append(request)
                continue
            group = by_transition.get(request.transition)
            if group is None:
                group = by_transition[request.transition] = _Group(request)
                groups.append(group)
            elif not group.accepts(request):
                waiting.append(request)

    def _run_groups(self, groups: list[_Group]) -> None:
        try:
            connection = self._opened()
            first = groups[0].writes[0]
            if len(groups) == 1 and groups[0].count == 1 and first.staged:
                values = [*first.parameters, *first.staged[0]]
                self._retry(connection, _alone(first.transition, len(first.staged[0])), values)
            elif len(groups) == 1:
                runs = groups[0].stage(connection)
                insert = _insert(first.transition, len(runs[0]), len(runs))
                self._retry(connection, insert, list(chain.from_iterable(runs)))
            else:
                values = []
                n = 0
                for group in groups:
                    for parameters in group.stage(connection):
                        values += (group.writes[0].transition, *parameters)
                        values += (0,) * (BATCH_PARAMETERS - len(parameters))
                        n += 1
                self._retry(connection, _insert("batch", BATCH_PARAMETERS + 1, n), values)
        except sqlite3.Error as error:
            name = _name(error)
            if name.startswith(_BROKEN):
                self._drop()
            if name.startswith(("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_WRITE")):
                raise OutcomeUnknownError(
                    f"{self._where()}: a write to the disk failed ({name}), so it may or may not be there after a "
                    "crash; check the disk, then repeat the operation, which is safe"
                ) from error
            if name in ("SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_TOOBIG", "InterfaceError", "ProgrammingError") or (
                name.startswith("SQLITE_CONSTRAINT")
            ):
                raise  # by what was asked for: see `_serve`
            raise self._translated(error) from error
        try:
            for group in groups:
                group.answer(connection)
        except sqlite3.Error as error:
            raise OutcomeUnknownError(f"{self._where()}: written, but the answer was lost ({error})") from error
        for group in groups:
            is_refused = group.writes[0].is_refused
            for write in group.writes:
                if len(group.writes) > 1 and is_refused is not None and is_refused(write.answers[0]):
                    self._serve_alone(write)
                else:
                    write.finish()

    def _run_statement(self, statement: Statement) -> None:
        try:
            statement.answers = self._retry(self._opened(), statement.text, statement.parameters)
        except sqlite3.Error as error:
            if _name(error).startswith(_BROKEN):
                self._drop()
            statement.error = self._translated(error)
        except BaseException as error:
            statement.error = error
        statement.finish()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._is_gone():
            self._drop()
            self.on_replaced()
            raise StorageUnavailableError(
                f"{self._where()} was removed or replaced while it was open, and the jobs in it went with it; "
                "the next operation uses what is there by then"
            )
        if self._connection is None:
            if self._is_closed:
                raise StorageError("the storage is closed; make a new one")
            self._connection = self._open()
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _retry(self, connection: sqlite3.Connection, statement: str, parameters: Any) -> list[Row]:
        # SQLite's own waiting backs off and starves this process beside a busy one, so it is
        # off (busy_timeout=0) and short even steps are made here.
        deadline = 0.0
        while True:
            try:
                return connection.execute(statement, parameters).fetchall()
            except sqlite3.OperationalError as error:
                if not _name(error).startswith(_BUSY):
                    raise
                now = time.monotonic()
                deadline = deadline or now + self.busy_seconds
                if now >= deadline:
                    raise
            time.sleep(random.uniform(0.0002, 0.0005))

    def _check_process(self) -> None:  # noqa: B027 (most have nothing to refuse)
        """Refuse to run where the connection must not be used."""

    def _is_gone(self) -> bool:
        """Whether the database is no longer where it was opened."""
        return False

    def _where(self) -> str:
        return "the storage"

    def _translated(self, error: sqlite3.Error) -> StorageError:
        return translated(error, self._where(), self.busy_seconds)


def _copied(error: BaseException) -> BaseException:
    """An error for one of several threads: a traceback grows where it is raised."""
    if not isinstance(error, Exception):
        return OutcomeUnknownError("the thread that wrote for several was interrupted; repeating is safe")
    copied = type(error)(*error.args)
    copied.__cause__ = error.__cause__
    return copied


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or type(error).__name__


def translated(error: sqlite3.Error, where: str, busy_seconds: float) -> StorageError:
    """The storage error for one of SQLite's, saying what to do."""
    name = _name(error)
    if name.startswith(_BUSY):
        return StorageUnavailableError(
            f"{where} was held by another process for {busy_seconds:g} s, nothing was written; try again later "
            "(a stopped or stuck process that uses it must go on or end first)"
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StorageCorruptError(
            f"{where} is damaged ({error}); stop its users, look at it with `reliq check` and restore it from a copy"
        )
    if name.startswith("SQLITE_FULL"):
        return StorageUnavailableError(f"no space left for {where}, nothing was written; free some and try again")
    if name.startswith("SQLITE_READONLY"):
        return StorageUnavailableError(
            f"{where} cannot be written ({name}): its file system is read-only or its files belong to somebody else; "
            "nothing was written"
        )
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_NOLFS")):
        return StorageUnavailableError(
            f"{where} cannot be read or written ({name}: {error}); check that its directory exists on a local disk, "
            "its owner and its mode"
        )
    return StorageError(f"{where} refused an operation ({name}: {error})")
