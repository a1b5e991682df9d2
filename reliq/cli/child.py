"""A worker process as its parent holds it, and the parent as the worker sees it.

One socket joins them. The child writes two lines to it: the key under which storages know its
worker, before it claims anything, and ``ready`` once it serves its queues. Its end of file tells
the child that its parent is gone, however that happened, so that no worker is left running that
nobody looks after.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from ..worker.pool import WorkerPool

#: The hidden option that hands the socket over.
PARENT_FD = "--parent-fd"
_READY = b"ready\n"


class Child:
    """One started worker process."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.started_at = time.monotonic()
        self._socket, theirs = socket.socketpair()
        self._heard = b""
        self.has_hung_up = False
        try:
            # Started by exec: a forked copy of this process would bring its connections and locks along.
            # A session of its own: Ctrl-C at the terminal reaches the parent, which passes it on once.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reliq", "worker", PARENT_FD, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._socket.setblocking(False)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the number of the signal that killed it."""
        return self.process.poll()

    def hear(self) -> None:
        """Take in what the child told so far."""
        try:
            while data := self._socket.recv(4096):
                self._heard += data
            self.has_hung_up = True
        except BlockingIOError:
            pass
        except ConnectionError:
            self.has_hung_up = True

    @property
    def worker_key(self) -> str | None:
        """The key of its worker; None: it cannot hold any job yet."""
        key, newline, _ = self._heard.partition(b"\n")
        return key.decode() if newline else None

    @property
    def is_ready(self) -> bool:
        """Whether it has served its queues."""
        return self._heard.endswith(_READY)

    def fileno(self) -> int:
        """For select: readable when the child tells something or ends."""
        return self._socket.fileno()

    def send_signal(self, number: int) -> None:
        """Does nothing when the process has ended."""
        self.process.send_signal(number)

    def end(self, grace: float) -> int:
        """SIGTERM, SIGKILL after ``grace`` seconds; the exit code."""
        self.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self) -> None:
        """Give the socket back; a child that still runs takes that as its parent's end."""
        self._socket.close()


def tell_parent(fd: int, pool: WorkerPool) -> None:
    """In the child: report ``pool`` and when it has started, and stop it when the parent is gone."""
    os.set_inheritable(fd, False)  # what handlers start must not hold it open
    parent = socket.socket(fileno=fd)

    def tell(data: bytes) -> None:
        with contextlib.suppress(OSError):  # the watcher below sees it too
            parent.sendall(data)

    def watch() -> None:
        with contextlib.suppress(OSError):
            while parent.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    tell(pool.worker.key.encode() + b"\n")
    pool.on("started", lambda _: tell(_READY))
    threading.Thread(target=watch, name="reliq-parent", daemon=True).start()
