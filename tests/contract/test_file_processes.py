"""The contract on FileStorage, each call in the next of three processes on one directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliq.storage.base import Storage
from reliq.testing import StorageContract

from ..file.many import Children, many_processes


@pytest.mark.slow
class TestFileProcesses(StorageContract):
    children: Children

    @pytest.fixture(autouse=True)
    def _children(self, file_children: Children) -> None:
        self.children = file_children

    def make_storage(self, tmp_path: Path) -> Storage:
        return many_processes(self.children, tmp_path / "queue")

    def open_again(self, storage: Storage, tmp_path: Path) -> Storage:
        return many_processes(self.children, tmp_path / "queue")
