"""Doorbells on Redis: one blocking read over the bell lists of several queues."""

from __future__ import annotations

import contextlib
import queue as queues
import threading
from collections.abc import Sequence
from functools import partial

from ...errors import StorageError
from ...identity import unique_name
from ...service import Service
from ..base import Doorbell
from .client import Client
from .connection import BLOCK_SECONDS
from .keys import queue_tag

_STOP_KEY_SECONDS = 30
#: How long to try to reach a thread that waits at a server which does not answer.
_WAKE_SECONDS = 0.5
#: An idle server looks ten times a second whose time is up. Waits shorter than this are ended by a push instead.
_EXACT_SECONDS = 0.95
_SERVER_TICK = 0.1


class ListDoorbell(Doorbell):
    """Blocks in BLPOP on the bells, and on a list of its own through which ``wake`` reaches it."""

    def __init__(self, client: Client, prefix: str, names: Sequence[str], bell: str) -> None:
        self._client = client
        tags = {name: queue_tag(prefix, name) for name in names}
        suffix = {"work": ":wake", "due": ":due-wake"}[bell]
        self._queues = {f"{tag}{suffix}".encode(): name for name, tag in tags.items()}
        self._keys = list(self._queues)
        self._stop_key = f"{tags[names[0]]}:stop:{unique_name(8)}".encode()
        self._is_woken = False

    def wait(self, timeout: float) -> str | None:
        if self._is_woken:
            self._is_woken = False
            return None
        seconds = max(0.001, min(timeout, BLOCK_SECONDS))
        # BLPOP serves its first key first: rotate, so that no queue starves.
        keys = self._keys = [*self._keys[1:], self._keys[0]]
        overdue = None
        if seconds < _EXACT_SECONDS:
            overdue = seconds, self._end_wait
            seconds += _SERVER_TICK
        reply = self._client.block("BLPOP", self._stop_key, *keys, f"{seconds:.3f}", overdue=overdue)
        name = None if reply is None else self._queues.get(reply[0])
        if reply is not None and name is None:
            self._is_woken = False
        return name

    def wake(self) -> None:
        # For a wait that has not begun, also when the server is away; for one that has, by its list. Without a
        # server that wait ends by an error of its own, and a stop must not fail for it.
        self._is_woken = True
        self._end_wait()

    def _end_wait(self) -> None:
        with contextlib.suppress(StorageError):
            self._client.command("RPUSH", self._stop_key, 1, within=_WAKE_SECONDS)
            self._client.command("EXPIRE", self._stop_key, _STOP_KEY_SECONDS, within=_WAKE_SECONDS)

    def close(self) -> None:
        self._client.command("DEL", self._stop_key)


class ClusterDoorbell(Doorbell):
    """A cluster refuses one BLPOP over two slots: a listener for each queue, and one local queue."""

    def __init__(self, client: Client, prefix: str, names: Sequence[str], bell: str) -> None:
        self._rung: queues.SimpleQueue[str | None] = queues.SimpleQueue()
        self._bells = {name: ListDoorbell(client, prefix, [name], bell) for name in names}
        self._listeners = [Service(f"reliq-listen-{name}", partial(self._listen, name)).start() for name in names]

    def wait(self, timeout: float) -> str | None:
        try:
            return self._rung.get(timeout=timeout)
        except queues.Empty:
            return None

    def wake(self) -> None:
        self._rung.put(None)

    def close(self) -> None:
        for listener in self._listeners:
            listener.stopping.set()
        for bell in self._bells.values():
            bell.wake()
        for listener in self._listeners:
            listener.stop(BLOCK_SECONDS)
        for bell in self._bells.values():
            bell.close()

    def _listen(self, name: str, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                if self._bells[name].wait(BLOCK_SECONDS) is not None:
                    self._rung.put(name)
            except Exception:  # the server is away: whoever claims will say so; look again soon
                stop.wait(1.0)
