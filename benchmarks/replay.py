"""The commands of a storage, taken before they are sent, to be sent again by bare loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from reliq.storage.base import MAX_BATCH, NewRecord, Outcome, Worker
from reliq.storage.redis.connection import Link
from reliq.storage.redis.storage import RedisStorage

Command = tuple[Any, ...]

#: What stands before the items of a settle: EVALSHA, hash, number of keys, tag, skew.
_SETTLE_HEAD = 5


class _Taken(Exception):
    """Carries a command out of the storage before anything is sent."""

    def __init__(self, command: Command) -> None:
        super().__init__()
        self.command = command


class _Recorder:
    """Stands in for the server."""

    is_cluster = False

    def execute(self, *command: Any, **_how: Any) -> tuple[Any, int]:
        """Take a script's call; plain commands do nothing."""
        if command[0] == "EVALSHA":
            raise _Taken(command)
        return None, 0


class Commands:
    """Builds the very commands that a RedisStorage sends, without sending them."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._storage = RedisStorage("redis://recorded.invalid")
        self._storage._client.link = cast(Link, _Recorder())

    def enqueue(self, job: NewRecord, waiter: str | None = None, wait_ms: int = 0) -> Command:
        """An enqueue of one job."""
        return self._taken(lambda: self._storage.enqueue(self._queue, [job], waiter, wait_ms))

    def claim(self, worker: Worker, limit: int, lease_ms: int = 30_000) -> Command:
        """A claim."""
        return self._taken(lambda: self._storage.claim(self._queue, worker, limit, serial=1, lease_ms=lease_ms))

    def settle_parts(self, worker: Worker, outcomes: Sequence[Outcome]) -> tuple[Command, dict[bytes, Command]]:
        """The head of a settle, and what it says of each id: head + any parts = a settle."""
        head: Command = ()
        parts: dict[bytes, Command] = {}
        for first in range(0, len(outcomes), MAX_BATCH):
            chunk = outcomes[first : first + MAX_BATCH]
            command = self._taken(lambda chunk=chunk: self._storage.settle(self._queue, worker, chunk))  # type: ignore[misc]
            head, items = command[:_SETTLE_HEAD], command[_SETTLE_HEAD:]
            for at in range(0, len(items), 3):
                parts[str(items[at]).encode()] = items[at : at + 3]
        return head, parts

    @staticmethod
    def _taken(act: Callable[[], object]) -> Command:
        try:
            act()
        except _Taken as taken:
            return taken.command
        raise AssertionError("no script was run")


def record(id: str, nonce: bytes, message: bytes) -> NewRecord:
    """A job with the default options."""
    hour_ms = 3_600_000
    return NewRecord(id, nonce, message, 3, hour_ms, hour_ms, 30 * 24 * hour_ms)


def claimed_ids(reply: Any) -> list[bytes]:
    """The ids in the answer of a claim script."""
    return cast("list[bytes]", reply[1::3])
