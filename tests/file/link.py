"""Calls between two processes over a pair of pipes, in both directions and any number at once.

Storages, doorbells and functions stay where they are: the other side gets something to call.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import queue
import threading
import traceback
from collections.abc import Callable
from logging.handlers import QueueHandler
from typing import Any, BinaryIO, NamedTuple

from reliq.storage.base import Doorbell, Storage


class LinkError(Exception):
    """The process on the other side is gone, or one of its answers cannot be sent."""


class Ref(NamedTuple):
    """An object of the process that sends it."""

    key: int
    kind: str


class Remote:
    """An object of the other process."""

    def __init__(self, link: Link, key: int) -> None:
        self._link = link
        self._key = key

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method there and return its answer, or raise its error."""
        return self._link.call(self._key, name, args, kwargs)


def forwarded(name: str) -> Callable[..., Any]:
    """A method that calls the one of that name on ``self.target(name)``."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.target(name).call(name, *args, **kwargs)

    method.__name__ = name
    return method


def forwarding(made: type, base: type) -> Any:
    """``made`` with every public method of ``base`` that it does not have itself, forwarded."""
    names = {name for name, value in vars(base).items() if callable(value) and not name.startswith("_")}
    names -= vars(made).keys()
    return type(base)(made.__name__, (made,), {name: forwarded(name) for name in names})


class _RemoteDoorbell(Doorbell):
    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def target(self, name: str) -> Remote:
        return self._remote


_Bell = forwarding(_RemoteDoorbell, Doorbell)


class Link:
    """One side. ``run`` reads until the other side ends; it serves each call in a thread of its own."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO, root: object = None) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = threading.Lock()
        self._objects: dict[int, object] = {0: root}
        self._keys = itertools.count(1)
        self._numbers = itertools.count()
        self._pending: dict[int, queue.SimpleQueue[tuple[bool, Any]]] = {}
        self._is_over = False
        self.root = Remote(self, 0)

    def call(self, key: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have the other process call ``name`` of its object ``key``."""
        number = next(self._numbers)
        answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._pending[number] = answers
        try:
            if self._is_over:  # set before the pending ones are told, so one of both is seen
                raise LinkError("the other process is gone")
            given = tuple(self._out(value) for value in args)
            self._send(("call", number, (key, name, given, {word: self._out(value) for word, value in kwargs.items()})))
            is_error, value = answers.get()
        finally:
            del self._pending[number]
        if is_error:
            raise value
        return self._in(value)

    def run(self) -> None:
        """Read until the end of the pipe."""
        try:
            while True:
                what, number, content = pickle.load(self._reader)
                if what == "call":
                    threading.Thread(target=self._serve, args=(number, *content), name="call", daemon=True).start()
                elif what == "log":
                    logging.getLogger(content.name).handle(content)
                elif (answers := self._pending.get(number)) is not None:  # else its caller was interrupted
                    answers.put((what == "error", content))
        except (EOFError, OSError):
            self._is_over = True
            for answers in list(self._pending.values()):
                answers.put((True, LinkError("the other process ended during a call")))

    def log_handler(self) -> logging.Handler:
        """A handler by which log records appear in the other process."""
        link = self

        class Handler(QueueHandler):
            def enqueue(self, record: logging.LogRecord) -> None:
                link._send(("log", 0, record))

        return Handler(queue.SimpleQueue())

    def _serve(self, number: int, key: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            method = getattr(self._objects[key], name)
            given = {word: self._in(value) for word, value in kwargs.items()}
            answer = ("answer", number, self._out(method(*(self._in(value) for value in args), **given)))
        except BaseException as error:
            error.add_note("In the other process:\n" + traceback.format_exc())
            answer = ("error", number, error)
        try:
            self._send(answer)
        except LinkError:
            return  # nobody is left to hear it
        except Exception as error:
            self._send(("error", number, LinkError(f"{answer[2]!r} cannot be sent: {error!r}")))

    def _send(self, message: tuple[str, int, Any]) -> None:
        data = pickle.dumps(message)
        try:
            with self._lock:
                self._writer.write(data)
                self._writer.flush()
        except (OSError, ValueError) as error:  # broken, or closed
            raise LinkError("the other process is gone") from error

    def _out(self, value: Any) -> Any:
        """What is sent for ``value``: itself, or a reference to it."""
        kind = "doorbell" if isinstance(value, Doorbell) else "object" if isinstance(value, Storage) else "function"
        if kind == "function" and (isinstance(value, type) or not callable(value)):
            return value
        key = next(self._keys)
        self._objects[key] = value
        return Ref(key, kind)

    def _in(self, value: Any) -> Any:
        """The value for what was sent."""
        if not isinstance(value, Ref):
            return value
        remote = Remote(self, value.key)
        if value.kind == "doorbell":
            return _Bell(remote)
        return remote if value.kind == "object" else lambda *args: remote.call("__call__", *args)
