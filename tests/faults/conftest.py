"""Each test here breaks a server of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(params=["redis", "file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """A storage for a test and its processes: a server of its own, or a directory."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("server")
        return {"url": server.url, "prefix": "fault", "server": server}
    return {"directory": str(tmp_path / "queue")}


def mounted(point: Path, *arguments: object) -> None:
    """Mount something on ``point``; skips where that is not possible."""
    point.mkdir(exist_ok=True)
    mount = shutil.which("mount")
    if sys.platform != "linux" or mount is None or os.getuid() != 0:
        pytest.skip("mounting a file system needs Linux and root")
    done = subprocess.run([mount, *map(str, arguments), point], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    point = tmp_path / "small"
    mounted(point, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
    yield point
    subprocess.run(["umount", point], check=True)
