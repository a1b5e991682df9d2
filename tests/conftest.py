"""What every test gets: a server when one can be had, and a look at what it left behind."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("reliq.testing", "tests.model")

# Only what is imported later has its assertions rewritten.
from .file.many import Children, started  # noqa: E402
from .servers import RedisServer, ServerError  # noqa: E402

#: How long threads, children and sockets of a test may take to end after it.
LINGER_SECONDS = 5.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault: breaks servers, processes or the network on purpose")
    config.addinivalue_line("markers", "slow: takes long; left out of the quick run")
    config.addinivalue_line("filterwarnings", "error")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cron") and importlib.util.find_spec("cronsim") is None:
        pytest.skip('pip install "reliq[cron]"')


# -- servers --------------------------------------------------------------------------

_session_children: set[int] = set()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A server for the whole run: RELIQ_TEST_REDIS_URL, else one that is started here.

    Without any the test is skipped, with RELIQ_REQUIRE_REDIS=1 it fails.
    """
    url = os.environ.get("RELIQ_TEST_REDIS_URL")
    if url:
        yield url
        return
    try:
        server = RedisServer().start()
    except ServerError as error:
        if os.environ.get("RELIQ_REQUIRE_REDIS") == "1":
            pytest.fail(f"RELIQ_REQUIRE_REDIS=1, but there is no server: {error}")
        pytest.skip(f"no Redis or Valkey server: {error}")
    if server.pid is not None:
        _session_children.add(server.pid)
    yield server.url
    server.close()


@pytest.fixture
def redis_prefix(redis_url: str) -> Iterator[str]:
    """A prefix of the test's own. Afterwards its keys are checked for their names and removed."""
    import redis

    prefix = f"t{secrets.token_hex(6)}"
    yield prefix
    client = redis.Redis.from_url(redis_url)
    try:
        keys = list(client.scan_iter(match=f"*{prefix}*", count=1000))
        if keys:
            client.delete(*keys)
    finally:
        client.close()
    inside = (prefix.encode(), f"{{{prefix}".encode())
    strays = [key for key in keys if not key.startswith(inside)][:10]
    assert not strays, f"keys outside of the prefix: {strays}"


# -- processes ------------------------------------------------------------------------


@pytest.fixture(scope="session")
def file_children() -> Iterator[Children]:
    """Processes that use directories together, for the whole run."""
    with started() as children:
        _session_children.update(children.pids)
        yield children


# -- leaks ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves threads, child processes or sockets behind."""
    threads, children, sockets = set(threading.enumerate()), _children(), _sockets()
    yield
    _gone("threads", lambda: {thread for thread in threading.enumerate() if thread.is_alive()} - threads)
    _gone("child processes", lambda: _children() - children - _session_children)
    _gone("sockets or watches", lambda: _sockets() - sockets)


def _gone(what: str, left: Callable[[], set[threading.Thread] | set[int] | set[str]]) -> None:
    deadline = time.monotonic() + LINGER_SECONDS
    while found := left():
        if time.monotonic() > deadline:
            pytest.fail(f"the test left {what} behind: {found}")
        time.sleep(0.005)


def _children() -> set[int]:
    """Processes that were started by any thread of this one and not yet waited for. Linux only."""
    if sys.platform != "linux":
        return set()
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            pids.update(int(pid) for pid in (task / "children").read_text().split())
        except OSError:  # the thread ended, or the kernel does not tell
            continue
    return pids


def _sockets() -> set[str]:
    """Sockets and inotify instances of this process, each with the number that makes it unique. Linux only."""
    if sys.platform != "linux":
        return set()
    found: set[str] = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor of this very listing
            continue
        if target.startswith("socket:"):
            found.add(target)
        elif target.endswith("inotify"):
            found.add(f"{target} fd {number}")
    return found
