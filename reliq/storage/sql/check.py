"""Looks over a store for damage and for broken rules, beside the processes that use it."""

from __future__ import annotations

import json
import sqlite3
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import StorageCorruptError, StorageError, StorageUnavailableError
from ...lifecycle import STORED
from .connection import translated
from .migrations import SCHEMA_VERSION
from .statements import CHECKS

#: How many problems of one kind are named; all are counted.
NAMED = 20
#: Virtual machine steps of SQLite between two looks at the clock.
_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that should not be. ``count`` of one kind were found; each of the first is named."""

    check: str
    queue: str
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at and found. ``counts``: how many problems by check, named or not."""

    directory: str
    schema: int
    queues: int
    jobs: int
    counts: dict[str, int]
    problems: list[Problem]

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found."""
        return not self.counts


def check(directory: Path, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Look over the store in ``directory``; ``tell(what)`` hears about once a second what is being done.

    Everything is read from one snapshot, so work that goes on meanwhile cannot look like a
    problem. Nothing is changed; the log of the store cannot shrink until the check ends.
    """
    path = directory / "queue.db"
    try:
        if stat.S_ISLNK(directory.lstat().st_mode) or not stat.S_ISREG(path.lstat().st_mode):
            raise StorageError(f"{directory} holds no store of reliq: it or its queue.db is a link or no file")
    except OSError as error:
        raise StorageError(f"{directory} holds no store of reliq: {error}") from error
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        return _check(connection, directory, tell)
    except sqlite3.Error as error:
        raise _told(error, path) from error
    finally:
        connection.close()


def _told(error: sqlite3.Error, path: Path) -> StorageError:
    known = translated(error, str(path), 10)
    if isinstance(known, StorageCorruptError):
        return StorageCorruptError(
            f"{path} is too damaged to be looked over ({error}); stop its users, keep a copy of its directory, restore "
            f"it from a backup, or save what is left of it: sqlite3 {path} .recover"
        )
    if (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_CANTOPEN"):
        # A log needs its index, which SQLite makes anew where nobody has the file open.
        return StorageUnavailableError(
            f"{path} cannot be opened by this user; become its owner, or where its file system is read-only check a "
            "copy of the whole directory"
        )
    return known


def _check(connection: sqlite3.Connection, directory: Path, tell: Callable[[str], None]) -> Report:
    doing = "opening"
    told = time.monotonic()

    def look() -> int:
        nonlocal told
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            tell(doing)
        return 0

    connection.set_progress_handler(look, _STEPS)
    connection.execute("BEGIN")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        raise StorageError(
            f"{directory} has schema {version}, this version of reliq checks {SCHEMA_VERSION}: "
            + ("upgrade reliq here" if version > SCHEMA_VERSION else "use the store once, which brings it up to date")
        )
    counts: dict[str, int] = {}
    problems: list[Problem] = []
    doing = "integrity of the file"
    found = [text for (text,) in connection.execute(f"PRAGMA integrity_check({NAMED})") if text != "ok"]
    if found:
        # What rests on damaged pages says nothing more.
        counts["integrity"] = len(found)
        return Report(str(directory), version, 0, 0, counts, [Problem("integrity", "", "", text) for text in found])
    states = json.dumps([*(state.value for state in STORED), "blocked"])
    for name, question in CHECKS.items():
        doing = name.replace("_", " ")
        cursor = connection.execute(question, {"states": states} if ":states" in question else {})
        for queue, id, text in cursor:
            counts[name] = counts.get(name, 0) + 1
            if counts[name] <= NAMED:
                problems.append(Problem(name, queue or "", str(id), str(text)))
    (queues, jobs) = connection.execute("SELECT (SELECT count(*) FROM queue), (SELECT count(*) FROM job)").fetchone()
    return Report(str(directory), version, queues, jobs, counts, problems)
