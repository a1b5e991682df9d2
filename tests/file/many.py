"""One storage that is many processes: each call goes to the next of several children.

Every child has a FileStorage of its own on the same directory. So whatever holds for this
storage holds between processes: ``python -m tests.file.many`` is one of them.
"""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reliq.storage.base import Storage
from reliq.storage.sql.file import FileStorage

from .link import Link, Remote, forwarding

ROOT = Path(__file__).parents[2]
#: How long threads and descriptors of a child may take to end, and a child itself.
LINGER_SECONDS = 5.0


class _Opener:
    """What a child does besides the calls of its storages."""

    def __init__(self) -> None:
        self._descriptors = _descriptors()

    def open(self, directory: str, durability: Any) -> FileStorage:
        """A new storage."""
        return FileStorage(directory, durability)

    def leftovers(self, linger_seconds: float) -> list[str]:
        """What closed storages left behind. None may be open."""
        deadline = time.monotonic() + linger_seconds
        while True:
            threads = {thread.name for thread in threading.enumerate()} - {"MainThread", "call"}
            found = sorted(threads | (_descriptors() - self._descriptors))
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.005)


def _descriptors() -> set[str]:
    """What this process has open. Linux only."""
    found: set[str] = set()
    if sys.platform == "linux":
        for number in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:  # the descriptor of this very listing
                continue
    return found


class Children:
    """Child processes, in turn. They open a storage for each :class:`ManyProcesses` that uses them."""

    def __init__(self, number: int = 3) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.file.many"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is for the tests; children end with their pipes
            )
            for _ in range(number)
        ]  # fmt: skip
        self._links = [_link_to(process) for process in self._processes]
        self._threads = [threading.Thread(target=link.run, name="link", daemon=True) for link in self._links]
        for thread in self._threads:
            thread.start()
        self._turns = itertools.count()
        self._open = 0

    @property
    def pids(self) -> list[int]:
        """Of the children."""
        return [process.pid for process in self._processes]

    def open(self, directories: Sequence[Path], durability: str) -> list[Remote]:
        """A storage in each child."""
        assert len(directories) == len(self._links)
        self._open += 1
        return [
            link.root.call("open", str(directory), durability)
            for link, directory in zip(self._links, directories, strict=True)
        ]

    def next(self) -> int:
        """Whose turn it is. All storages take turns together, so that none stays in step with another."""
        return next(self._turns) % len(self._links)

    def closed(self, linger_seconds: float = LINGER_SECONDS) -> None:
        """One storage was closed in all children; the last one must have left nothing."""
        self._open -= 1
        if not self._open:
            for process, link in zip(self._processes, self._links, strict=True):
                left = link.root.call("leftovers", linger_seconds)
                assert not left, f"child {process.pid} still has {left}"

    def close(self) -> None:
        """End the children."""
        for process in self._processes:
            assert process.stdin
            process.stdin.close()
        for process, thread in zip(self._processes, self._threads, strict=True):
            try:
                process.wait(LINGER_SECONDS)
            finally:
                process.kill()
                process.wait()
                thread.join()
                assert process.stdout
                process.stdout.close()


def _link_to(process: subprocess.Popen[bytes]) -> Link:
    assert process.stdin
    assert process.stdout
    return Link(process.stdout, process.stdin)  # type: ignore[arg-type]


class _Settings(Storage):
    """The attributes of a storage that is several; the methods are forwarded."""

    def __init__(self, children: Children, directories: Sequence[Path], durability: str) -> None:
        self.url = f"file://{directories[0]}"
        self._children = children
        self._storages = children.open(directories, durability)
        self._skew_ms = 0
        self._fallback_ms = FileStorage.fallback_ms
        self._is_closed = False

    def target(self, name: str) -> Remote:
        """The one whose turn it is."""
        return self._storages[self._children.next()]

    @property
    def skew_ms(self) -> int:
        return self._skew_ms

    @skew_ms.setter
    def skew_ms(self, value: int) -> None:
        self._skew_ms = value
        self._set("skew_ms", value)

    @property
    def fallback_ms(self) -> int:
        return self._fallback_ms

    @fallback_ms.setter
    def fallback_ms(self, value: int) -> None:
        self._fallback_ms = value
        self._set("fallback_ms", value)

    def _set(self, name: str, value: int) -> None:
        for storage in self._storages:
            storage.call("__setattr__", name, value)

    def close(self) -> None:
        for storage in self._storages:
            storage.call("close")
        if not self._is_closed:
            self._is_closed = True
            self._children.closed()


_ManyProcesses = forwarding(_Settings, Storage)


def many_processes(children: Children, *directories: Path, durability: str = "fsync") -> Storage:
    """A storage whose calls the children serve in turn, all on one directory or each on its own."""
    if len(directories) == 1:
        directories *= len(children.pids)
    storage: Storage = _ManyProcesses(children, directories, durability)
    return storage


@contextmanager
def started(number: int = 3) -> Iterator[Children]:
    """Children for as long as the block runs."""
    children = Children(number)
    try:
        yield children
    finally:
        children.close()


def main() -> None:
    """Serve until the parent ends or closes the pipe."""
    reader, writer = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what is printed must not get among the answers
    link = Link(reader, writer, _Opener())
    logging.getLogger("reliq").addHandler(link.log_handler())
    link.run()
    # Calls that still wait are nobody's any more.
    os._exit(0)


if __name__ == "__main__":
    main()
