"""The thread that hands out the events of a storage of SQL."""

from __future__ import annotations

import threading
from typing import Any

from reliq.storage.sql.events import Dispatcher


def test_whoever_leaves_does_not_wait_for_who_comes_meanwhile() -> None:
    is_reading, may_go_on = threading.Event(), threading.Event()

    def read(_: int) -> list[tuple[Any, ...]]:
        is_reading.set()
        assert may_go_on.wait(20)
        return []

    dispatcher = Dispatcher(read, lambda _: 0, lambda: 0.01)
    leave = dispatcher.subscribe("q", lambda *_: None)
    assert is_reading.wait(20)
    leaving = threading.Thread(target=leave)
    leaving.start()
    while not dispatcher.is_idle:
        threading.Event().wait(0.001)
    leave_too = dispatcher.subscribe("q", lambda *_: None)  # before the thread could end: it goes on for this one
    may_go_on.set()
    leaving.join(20)
    assert not leaving.is_alive()
    leave_too()
