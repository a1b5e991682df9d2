"""Each test here breaks a server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..servers import RedisServer, find_binary
from .support import Bench


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory is a fault test."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.fault)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that nobody else uses."""
    if find_binary() is None:
        pytest.skip("no Redis or Valkey server")
    with RedisServer() as server:
        yield server


@pytest.fixture
def bench(server: RedisServer, tmp_path: Path) -> Iterator[Bench]:
    with Bench(server, tmp_path) as bench:
        yield bench
