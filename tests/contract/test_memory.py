"""The contract on MemoryStorage."""

from __future__ import annotations

from pathlib import Path

from reliq.storage.base import Storage
from reliq.storage.sql.memory import MemoryStorage
from reliq.testing import StorageContract


class TestMemory(StorageContract):
    def make_storage(self, tmp_path: Path) -> Storage:
        return MemoryStorage()
