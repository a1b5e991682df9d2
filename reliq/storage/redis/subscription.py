"""Events from the server to listeners of this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ...service import Service
from .client import Client
from .scripts import EVENTS

log = logging.getLogger("reliq")
Listener = Callable[[str, str], None]

#: Transitions publish while somebody asked for it within this time; asked anew every third of it.
LISTEN_MS = 30_000
_POLL_SECONDS = 0.25


class Subscription:
    """One thread that reads one queue's channel. Lost messages stay lost: for monitoring only."""

    def __init__(self, client: Client, tag: str, skew_ms: Callable[[], int], listener: Listener) -> None:
        self._client = client
        self._tag = tag
        self._skew_ms = skew_ms
        self._listener = listener
        self._is_ready = threading.Event()
        self._service = Service("reliq-events", self._run)

    def start(self, timeout: float) -> None:
        """Start and wait until the server has confirmed the subscription."""
        self._ask()
        self._service.start()
        self._is_ready.wait(timeout)

    def stop(self) -> None:
        """End the thread; the listener is not called afterwards."""
        self._service.stop()

    def _ask(self) -> None:
        self._client.run("listen", self._tag, self._skew_ms(), LISTEN_MS, is_repeatable=True)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._read(stop)
            except Exception as error:
                log.warning("events of %s: the connection broke (%s); subscribing again", self._tag, error)
                stop.wait(1.0)

    def _read(self, stop: threading.Event) -> None:
        pubsub = self._client.link.pubsub()
        try:
            pubsub.subscribe(f"{self._tag}:events")
            rounds = 0
            while not stop.is_set():
                message = pubsub.get_message(timeout=_POLL_SECONDS)
                if message is None:
                    rounds += 1
                    if rounds * _POLL_SECONDS * 3000 >= LISTEN_MS:
                        rounds = 0
                        self._ask()
                elif message["type"] == "subscribe":
                    self._is_ready.set()
                elif message["type"] == "message":
                    self._deliver(message["data"])
        finally:
            pubsub.close()
            pool = getattr(pubsub, "connection_pool", None)
            if pool is not None and not self._client.link.is_cluster:
                pool.disconnect()

    def _deliver(self, batch: bytes) -> None:
        at = 0
        while at < len(batch):
            end = at + 3 + int.from_bytes(batch[at + 1 : at + 3], "little")
            name, id = EVENTS[batch[at : at + 1]], batch[at + 3 : end].decode()
            at = end
            try:
                self._listener(name, id)
            except BaseException:  # a listener that exits must not take the thread along
                log.exception("a listener of %s raised", self._tag)
