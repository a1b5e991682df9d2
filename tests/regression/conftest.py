"""The storages that a regression test runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliq import FileStorage, MemoryStorage, RedisStorage, Storage

Open = Callable[[], Storage]


@pytest.fixture(params=["memory", "file", "redis"])
def open_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the storage under test; again for a second object, as another process has (memory: the same one)."""
    made: list[Storage] = []
    if request.param == "redis":
        url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")

    def make() -> Storage:
        if request.param == "memory" and made:
            return made[0]
        if request.param == "memory":
            storage: Storage = MemoryStorage()
        elif request.param == "file":
            storage = FileStorage(tmp_path / "data", durability="os")
        else:
            storage = RedisStorage(url, prefix=prefix)
        made.append(storage)
        return storage

    yield make
    for storage in made:
        storage.close()


@pytest.fixture
def storage(open_storage: Open) -> Storage:
    """One object, whose last reap was just now: after a longer silence each worker gets one ttl of grace."""
    storage = open_storage()
    storage.reap("q", interval_ms=1000)
    return storage
