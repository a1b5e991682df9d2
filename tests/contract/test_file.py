"""The contract on FileStorage, with two objects on one directory where a test wants a peer."""

from __future__ import annotations

from pathlib import Path

from reliq.storage.base import Storage
from reliq.storage.sql.file import FileStorage
from reliq.testing import StorageContract


class TestFile(StorageContract):
    def make_storage(self, tmp_path: Path) -> Storage:
        return FileStorage(tmp_path / "queue")

    def open_again(self, storage: Storage, tmp_path: Path) -> Storage:
        return FileStorage(tmp_path / "queue")
