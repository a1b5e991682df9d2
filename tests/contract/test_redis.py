"""The contract on RedisStorage, with two objects of one prefix where a test wants a peer."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliq.storage.base import Storage
from reliq.storage.redis.storage import RedisStorage
from reliq.testing import StorageContract


class TestRedis(StorageContract):
    url = ""
    prefix = ""

    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str, redis_prefix: str) -> None:
        self.url, self.prefix = redis_url, redis_prefix

    def make_storage(self, tmp_path: Path) -> Storage:
        return RedisStorage(self.url, prefix=self.prefix)

    def open_again(self, storage: Storage, tmp_path: Path) -> Storage:
        return RedisStorage(self.url, prefix=self.prefix)
