"""Hands the stored events of a storage to its listeners, on one thread.

For monitoring only. Events are written while a queue's listen time lies ahead, which
the thread keeps moving; a listener that dies with its process stops that by itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import ReliqError

log = logging.getLogger("reliq.storage")

Listener = Callable[[str, str], None]
#: How long a queue's events are written after its listeners were last heard of.
LISTEN_SECONDS = 60
_RENEW_SECONDS = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class _Subscription:
    queue: str
    listener: Listener
    after: int


class Dispatcher:
    """One lazily started thread per storage.

    ``read(seq)`` gives the rows (seq, queue, name, id) behind ``seq``; ``renew(queue)`` lets
    events be written for a while and returns the last seq; ``interval()`` how long the thread
    sleeps at most when nobody pokes it.
    """

    def __init__(
        self, read: Callable[[int], list[tuple[Any, ...]]], renew: Callable[[str], int], interval: Callable[[], float]
    ) -> None:
        self._read = read
        self._renew = renew
        self._interval = interval
        self._condition = threading.Condition()
        self._subscriptions: list[_Subscription] = []
        self._thread: threading.Thread | None = None
        self._is_poked = False
        self._seq = 0

    @property
    def is_idle(self) -> bool:
        """Whether nobody listens."""
        return not self._subscriptions

    def subscribe(self, queue: str, listener: Listener) -> Callable[[], None]:
        """Start calling ``listener``; the returned function ends it."""
        subscription = _Subscription(queue, listener, self._renew(queue))
        with self._condition:
            self._seq = max(self._seq, subscription.after) if not self._subscriptions else self._seq
            self._subscriptions.append(subscription)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reliq-events", daemon=True)
                self._thread.start()

        def unsubscribe() -> None:
            with self._condition:
                if subscription in self._subscriptions:
                    self._subscriptions.remove(subscription)
            if self.is_idle:
                self._join()

        return unsubscribe

    def poke(self) -> None:
        """Let the thread look now."""
        if self._subscriptions:
            with self._condition:
                self._is_poked = True
                self._condition.notify()

    def close(self) -> None:
        """End the thread, after it handed out what was written before. Idempotent."""
        with self._condition:
            self._subscriptions.clear()
        self._join()

    def forget(self) -> None:
        """In a forked child: the parent's listeners are the parent's."""
        self._condition = threading.Condition()
        self._subscriptions = []
        self._thread = None

    def _join(self) -> None:
        with self._condition:
            thread = self._thread
            self._is_poked = True
            self._condition.notify()
        if thread is None or thread is threading.current_thread():
            return
        while self.is_idle and thread.is_alive():  # whoever subscribes meanwhile keeps the thread
            thread.join(0.1)

    def _run(self) -> None:
        unrenewed = 0.0
        while True:
            with self._condition:
                if not self._subscriptions:
                    self._thread = None
                    return
                interval = min(self._interval(), _RENEW_SECONDS)
                if not self._is_poked and not self._condition.wait(interval):
                    unrenewed += interval
                self._is_poked = False
                subscriptions = list(self._subscriptions)
            try:
                if unrenewed >= _RENEW_SECONDS:
                    unrenewed = 0.0
                    for queue in {subscription.queue for subscription in subscriptions}:
                        self._renew(queue)
                self._dispatch(subscriptions)
            except ReliqError as error:
                log.warning("events could not be read: %s", error)

    def _dispatch(self, subscriptions: list[_Subscription]) -> None:
        while rows := self._read(self._seq):
            for seq, queue, name, id in rows:
                self._seq = seq
                for subscription in subscriptions:
                    if subscription.queue == queue and seq > subscription.after:
                        try:
                            subscription.listener(name, id)
                        except BaseException:  # a SystemExit must not end the thread of all listeners
                            log.exception("a listener of queue %r failed on %r of job %r", queue, name, id)
