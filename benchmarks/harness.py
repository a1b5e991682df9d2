"""What the scripts share: a server of their own, figures with their spread, the machine's description."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import redis

import reliq
from reliq.storage.redis.storage import RedisStorage
from tests.servers import RedisServer

#: Connections on which an idle pool blocks: one waits for jobs, one for due ones.
IDLE_BLOCKS = 2
#: What every job carries.
FILLER = "x" * 64


def payload(number: int) -> dict[str, Any]:
    """The payload of every benchmark."""
    return {"n": number, "s": FILLER}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: a value per run. ``goal`` says on which side of ``target`` it should be.

    Without values the ``note`` says why there are none.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    target: float | None = None
    goal: Literal["at most", "at least"] = "at most"
    note: str = ""

    @property
    def median(self) -> float:
        """The middle of the runs; not a number without any."""
        return statistics.median(self.values) if self.values else math.nan

    @property
    def is_met(self) -> bool | None:
        """Whether the median reaches the target; None without one, or without values."""
        if self.target is None or not self.values:
            return None
        return self.median <= self.target if self.goal == "at most" else self.median >= self.target


class Bench:
    """What a script gets: the server, how often to run, and how much.

    ``quick`` makes jobs fewer, never the runs: a figure without a spread says nothing.
    """

    def __init__(self, server: RedisServer, runs: int, quick: bool, peers: Sequence[str] = ()) -> None:
        self.server = server
        self.runs = runs
        self.quick = quick
        #: The names of those that take part beside reliq.
        self.peers = peers
        #: What was measured of each, as it says itself.
        self.versions: dict[str, dict[str, str]] = {}
        # Emptying a server of a million jobs takes longer than the client would wait by default.
        self._client = redis.Redis.from_url(server.url, socket_timeout=60.0)

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def amount(self, full: int, quick: int) -> int:
        """How many jobs this time."""
        return quick if self.quick else full

    def seconds(self, full: float, quick: float) -> float:
        """How long this time."""
        return quick if self.quick else full

    def empty(self) -> None:
        """Remove everything from the server; scripts stay loaded."""
        self._client.flushall()

    def repeat(
        self, what: str, measure: Callable[[], dict[str, float]], *, on_empty: bool = True
    ) -> dict[str, tuple[float, ...]]:
        """Measure ``runs`` times, on an empty server each unless told otherwise; the values by name."""
        found: dict[str, list[float]] = {}
        for number in range(1, self.runs + 1):
            if on_empty:
                self.empty()
            began = time.monotonic()
            for name, value in measure().items():
                found.setdefault(name, []).append(value)
            self.say(f"{what}: run {number} of {self.runs}, {time.monotonic() - began:.1f} s")
        if on_empty:
            self.empty()
        return {name: tuple(values) for name, values in found.items()}

    @staticmethod
    def say(text: str) -> None:
        """Progress."""
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def storage(self) -> Iterator[RedisStorage]:
        """A storage on the server."""
        storage = RedisStorage(self.server.url)
        try:
            yield storage
        finally:
            storage.close()

    def script_usec(self) -> tuple[int, int]:
        """Microseconds that the server has spent in EVALSHA, and how many there were."""
        stats: Any = self._client.info("commandstats").get("cmdstat_evalsha", {"usec": 0, "calls": 0})
        return int(stats["usec"]), int(stats["calls"])

    def await_nobody_blocked(self) -> None:
        """Return when no client waits in a blocking command any more, or soon: a producer may wait for events."""
        deadline = time.monotonic() + 1.0
        while self._client.info("clients")["blocked_clients"] and time.monotonic() < deadline:
            time.sleep(0.005)

    def requests(self) -> int:
        """How often the server has read from a client: once a command, unless they are pipelined.

        Its count of commands would include those inside of scripts.
        """
        return int(self._client.info("stats")["total_reads_processed"])

    def await_steady(self, workers: int, seconds: float = 1.0) -> None:
        """Return when that many pools of reliq wait for jobs and nobody has connected for so long."""
        deadline = time.monotonic() + 60.0
        # Processes that have not connected yet are steady, too.
        while self._client.info("clients")["blocked_clients"] < workers * IDLE_BLOCKS:
            if time.monotonic() > deadline:
                raise AssertionError(f"{workers} workers do not wait for jobs after a minute")
            time.sleep(0.05)
        last, since = -1, time.monotonic()
        while time.monotonic() < min(deadline, since + seconds):
            now = int(self._client.info("clients")["connected_clients"])
            if now != last:
                last, since = now, time.monotonic()
            time.sleep(0.05)

    def stored(self) -> list[str]:
        """All that is stored."""
        return sorted(key.decode() for key in self._client.scan_iter(count=1000))

    def used_memory(self) -> int:
        """Bytes that the server's data and buffers take, once they stand still (a hash that grows holds two tables)."""
        deadline = time.monotonic() + 5.0
        last = -1
        while True:
            now = int(self._client.info("memory")["used_memory"])
            if now == last or time.monotonic() > deadline:
                return now
            last = now
            time.sleep(0.15)

    def load_script(self, text: str) -> str:
        """Load a script; its hash."""
        return str(self._client.script_load(text))


class Bare:
    """One connection without anything around it: the least that redis-py can do."""

    def __init__(self, url: str) -> None:
        pool: Any = redis.ConnectionPool.from_url(url, protocol=2)
        self._connection = pool.make_connection()
        self._connection.connect()

    def ask(self, command: Sequence[Any]) -> Any:
        """One round trip."""
        self._connection.send_command(*command, check_health=False)
        return self._connection.read_response()

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()


@contextmanager
def directory() -> Iterator[Path]:
    """A directory on the disk of the temporary files."""
    with tempfile.TemporaryDirectory(prefix="reliq-benchmark-") as path:
        yield Path(path)


def describe(server: RedisServer) -> dict[str, str]:
    """The machine and the versions: without them a figure means nothing."""
    info: dict[str, Any] = redis.Redis.from_url(server.url).info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    return {
        "machine": f"{os.cpu_count()} cores, {_processor()}",
        "system": platform.platform(),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()) + " (before)",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "reliq": reliq.__version__,
        "server": f"{name} {info.get('valkey_version') or info['redis_version']}, loopback, no persistence",
        "libraries": ", ".join(_version(name) for name in ("redis", "hiredis", "orjson")),
        "sqlite": sqlite3.sqlite_version,
    }


def _version(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{name} missing"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
