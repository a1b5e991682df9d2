"""What the tests that break things share: child processes, their execution logs, a proxy, mutated scripts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from reliq import Queue
from reliq.storage.redis import scripts
from reliq.storage.redis.storage import RedisStorage

from ..servers import RedisServer

T = TypeVar("T")

#: How long anything may take that is expected to happen.
PATIENCE = 30.0
#: The tree in which ``python -m tests.faults.programs`` finds itself.
_ROOT = Path(__file__).parents[2]

#: (script, old text, new text): what a mutation replaces.
Mutation = tuple[str, str, str]


def until(condition: Callable[[], T], timeout: float = PATIENCE, what: str = "it") -> T:
    """Wait for ``condition()`` to be true and return its value; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout:g} s (last seen: {value!r})")
        time.sleep(0.01)
    return value


def never(condition: Callable[[], Any], seconds: float) -> bool:
    """Whether ``condition()`` stays false for ``seconds``; for negative controls."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return False
        time.sleep(0.01)
    return True


# -- processes ------------------------------------------------------------------------


class Program:
    """One of the programs in ``programs.py``, running in a process of its own. ``with`` kills it at the end."""

    def __init__(self, name: str, **config: Any) -> None:
        self._command = [sys.executable, "-m", "tests.faults.programs", name, json.dumps(config)]
        self._process = subprocess.Popen(
            self._command,
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._errors: list[str] = []
        # A full pipe would stop the child.
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def errors(self) -> str:
        """What it wrote to stderr so far."""
        return "".join(self._errors)

    def wait_ready(self) -> Self:
        """Wait for the line that each program prints when it works."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.strip() == "ready", f"the program ended early: {line!r}\n{self.errors}"
        return self

    def output(self, timeout: float = PATIENCE) -> Any:
        """Wait for its end and return the JSON in its last line."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(timeout, self._process.kill)
        watchdog.start()
        try:
            lines = self._process.stdout.read().splitlines()
            self._process.wait()
        finally:
            watchdog.cancel()
            watchdog.join()
        assert lines, f"the program said nothing (exit status {self._process.returncode})\n{self.errors}"
        return json.loads(lines[-1])

    def terminate(self, timeout: float = PATIENCE) -> int:
        """SIGTERM, and its exit status."""
        self._process.terminate()
        return self._process.wait(timeout)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._drain.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


class Bench:
    """A queue on a server, as a test and its children use it, and the log of what was executed."""

    def __init__(
        self, server: RedisServer, directory: Path, queue: str = "q", prefix: str = "fault", **options: Any
    ) -> None:
        self.server = server
        self.url = server.url
        self.prefix = prefix
        self.log = directory / f"{queue}.log"
        self.storage = RedisStorage(server.url, prefix=prefix)
        self.queue = Queue(queue, self.storage, **options)

    def worker(self, **config: Any) -> Program:
        """A worker process on the queue; see ``programs.worker`` for ``config``."""
        config = {"url": self.url, "prefix": self.prefix, "queue": self.queue.name, "log": str(self.log), **config}
        return Program("worker", **config).wait_ready()

    def executions(self, event: str = "start") -> list[dict[str, Any]]:
        """What handlers wrote, in order: dicts of event, id, pid, attempt, at."""
        if not self.log.exists():
            return []
        found = []
        for line in self.log.read_text().split("\n")[:-1]:  # the last one may be half written
            entry = json.loads(line)
            if entry["event"] == event:
                found.append(entry)
        return found

    def runs(self, event: str = "start") -> Counter[str]:
        """How often each id was started (or ended)."""
        return Counter(entry["id"] for entry in self.executions(event))

    def tag(self) -> str:
        return f"{{{self.prefix}:{self.queue.name}}}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.queue.close()
        self.storage.close()


# -- mutations ------------------------------------------------------------------------


def mutate(mutations: Sequence[Mutation]) -> Callable[[], None]:
    """Replace text in this process's scripts, to take a protection away; returns the way back."""
    original = scripts._text

    def text(name: str) -> str:
        found = original(name)
        for script, old, new in mutations:
            if script == name:
                assert old in found, f"{name}.lua does not contain {old!r}: the control is out of date"
                found = found.replace(old, new)
        return found

    scripts._text = text
    scripts.script.cache_clear()

    def restore() -> None:
        scripts._text = original
        scripts.script.cache_clear()

    return restore


@contextlib.contextmanager
def mutated(*mutations: Mutation) -> Iterator[None]:
    """:func:`mutate` for a while."""
    restore = mutate(mutations)
    try:
        yield
    finally:
        restore()


# -- the network ----------------------------------------------------------------------


class Proxy:
    """A TCP proxy before a server. It can hold back, or swallow, one reply.

    ``catch(asked, replied, lose)`` arms it: the first reply that contains ``replied`` on a connection
    whose last request contains ``asked`` sets ``caught`` and waits for ``release()``; with ``lose`` the
    connection is closed in its place.
    """

    def __init__(self, port: int) -> None:
        self.caught = threading.Event()
        self._released = threading.Event()
        self._trap: tuple[bytes, bytes, bool] | None = None
        self._lock = threading.Lock()
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._spawn(self._accept)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def catch(self, asked: bytes, replied: bytes, *, lose: bool = False) -> None:
        self.caught.clear()
        self._released.clear()
        self._trap = (asked, replied, lose)

    def release(self) -> None:
        self._released.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._is_closed = True
        self._released.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._sockets:
                _close(each)
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            last = [b""]
            self._spawn(self._forward_requests, client, server, last)
            self._spawn(self._forward_replies, server, client, last)

    def _forward_requests(self, client: socket.socket, server: socket.socket, last: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                last[0] = data
                server.sendall(data)
        _close(client)
        _close(server)

    def _forward_replies(self, server: socket.socket, client: socket.socket, last: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                with self._lock:
                    trap = self._trap
                    hit = trap is not None and trap[0] in last[0] and trap[1] in data
                    if hit:
                        self._trap = None
                if hit and trap is not None:
                    self.caught.set()
                    if trap[2]:
                        break
                    self._released.wait(60)
                client.sendall(data)
        _close(client)
        _close(server)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


# -- what the server was asked --------------------------------------------------------


class Monitor:
    """What clients sent to a server (MONITOR), scripts by name. ``with`` a server that answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._stream = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._stream.readline() == b"+OK\r\n"
        self._names = {
            scripts.script(path.stem).sha: path.stem
            for path in Path(scripts.__file__).parent.glob("*.lua")
            if b"KEYS[1]" in path.read_bytes() and path.stem != "prelude"
        }
        self._port = port

    def read(self) -> list[tuple[str, str, str]]:
        """Everything since the start or the last read: (client address, command or script, the whole line)."""
        mark = f"mark-{os.urandom(8).hex()}"
        with socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE) as marker:
            marker.sendall(f"ECHO {mark}\r\n".encode())
            marker.recv(100)
        found: list[tuple[str, str, str]] = []
        while True:
            line = self._stream.readline().decode("utf-8", "replace")
            assert line, "the server closed the connection"
            if mark in line:
                return found
            source, _, words = line.partition("] ")
            address = source.rpartition(" ")[2]
            if address == "lua":
                continue
            command = words.split(" ")
            name = command[0].strip().strip('"').upper()
            if name in ("EVALSHA", "EVAL"):
                name = self._names.get(command[1].strip('"'), name)
            found.append((address, name, words.strip()))

    def names(self) -> Counter[str]:
        """How often each command or script was sent."""
        return Counter(name for _, name, _ in self.read())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()
        self._socket.close()


def info(server: RedisServer, section: str) -> dict[str, str]:
    """INFO as a dict."""
    text = str(server.command("INFO", section))
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def blocked(server: RedisServer) -> int:
    """How many clients sit in a blocking command."""
    return int(info(server, "clients")["blocked_clients"])
