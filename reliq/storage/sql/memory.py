"""Jobs in this process's memory: for tests, and for work that may die with the process."""

from __future__ import annotations

import os
import sqlite3
import weakref

from ...errors import StorageError
from .connection import PREPARED, Database
from .statements import SCHEMA, check_version, install
from .storage import SqlStorage


class MemoryStorage(SqlStorage):
    """A store of its own in memory, gone with :meth:`close`.

    ``name`` only names it: sharing by ``memory://name`` is the registry's part. Using it in a
    forked child raises StorageError, because the child would see a copy.
    """

    def __init__(self, name: str = "") -> None:
        self.url = f"memory://{name}"
        super().__init__(_MemoryDatabase())


class _MemoryDatabase(Database):
    def _open(self) -> sqlite3.Connection:
        check_version()
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, cached_statements=PREPARED
        )
        connection.executescript("PRAGMA temp_store = MEMORY;" + SCHEMA)
        install(connection)
        # A store that nobody closed is nobody's any more: no warning, there is nothing to lose beside it.
        weakref.finalize(self, connection.close).atexit = False
        return connection

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StorageError(
                "this MemoryStorage belongs to the parent process; its jobs cannot be reached from a fork. "
                "Use file:// or redis:// to share jobs between processes"
            )
