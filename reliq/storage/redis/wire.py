"""Connections of one pool: made by the client library, which knows hosts, TLS and passwords, then spoken on directly.

The library's own way to send and read costs as much as the kernel's part of a round trip on the same machine: it
looks at each argument, asks for push messages and repairs a connection in the middle of a command, which here must
not happen. So after the handshake reliq writes to the socket and reads with hiredis by itself.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import redis
from hiredis import Reader, pack_command
from redis.connection import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...errors import StorageError

#: Seconds a connection may take to be made.
CONNECT_TIMEOUT = 5.0
#: A connection that was idle for this long is looked at before it is used again.
_IDLE_SECONDS = 0.5
_READ_SIZE = 1 << 16

T = TypeVar("T")
Reply = Any
Command: TypeAlias = tuple[Any, ...]
#: After so many seconds without an answer that function is called, which is to bring it about.
Overdue: TypeAlias = tuple[float, Callable[[], None]]


class UnreachableError(Exception):
    """No connection could be made, so nothing was sent."""


class Wire:
    """One connection. Every read and write raises an OSError or the client library's error once it is broken."""

    __slots__ = ("_connection", "_reader", "_sock", "timeout", "used_at")

    def __init__(self, connection: Any) -> None:
        #: redis-py types its methods loosely and differently between versions: here they count as Any.
        self._connection = connection
        self._sock: Any = None
        self._reader: Any = None
        self.timeout = 0.0
        #: When it was last given back, monotonic; 0 for one that is to be looked at first.
        self.used_at = 0.0

    def connect(self, timeout: float) -> None:
        """Connect (anew); raises UnreachableError. ``timeout`` as in :meth:`set_timeout`."""
        connection = self._connection
        connection.disconnect()
        # The handshake reads answers, too.
        connection.socket_timeout = timeout
        connection.socket_connect_timeout = min(timeout, CONNECT_TIMEOUT)
        try:
            connection.connect()
            self._sock = connection._sock
            self.set_timeout(timeout)
        except (redis.AuthenticationError, redis.exceptions.AuthorizationError):
            raise
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            connection.disconnect()
            raise UnreachableError(str(error)) from error
        self._reader = Reader(protocolError=InvalidResponse, replyError=connection._parser.parse_error)

    def disconnect(self) -> None:
        self._connection.disconnect()

    def set_timeout(self, timeout: float) -> None:
        """Seconds that a read or write may take from now on. The kernel watches them.

        A socket with a timeout of Python's polls before each read and write, and gives the GIL away once more for it:
        among threads a round trip takes a third longer. TLS needs Python's, because it may read several times.
        """
        sock = self._sock
        self.timeout = timeout
        if type(sock) is not socket.socket:
            sock.settimeout(timeout)
            return
        limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, limit)
        if sock.gettimeout() is not None:
            sock.settimeout(None)

    def ask(self, command: Command) -> Reply:
        """Send a command and read its reply; raises the errors that the server answers."""
        self.send(command)
        return self.read()

    def send(self, command: Command) -> None:
        self._sock.sendall(pack_command(command))

    def read(self) -> Reply:
        """The next reply."""
        reader = self._reader
        while (reply := reader.gets()) is False:  # RESP2 has no booleans
            self._feed()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def is_readable(self, seconds: float) -> bool:
        """Whether something comes within ``seconds``, an end of the connection included."""
        sock = self._sock
        if type(sock) is socket.socket:
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        # What TLS has to say to itself is readable for a poll, too: only reading tells.
        sock.settimeout(seconds)
        try:
            self._feed()
        except (TimeoutError, ssl.SSLWantReadError):
            return False
        finally:
            sock.settimeout(self.timeout)
        return True

    def _feed(self) -> None:
        data = self._sock.recv(_READ_SIZE)
        if not data:
            raise RedisConnectionError("the server closed the connection")
        self._reader.feed(data)


class Stack:
    """Idle connections, last in first out. As many as threads ever used them at once.

    Taking from a deque is atomic and costs a fraction of the client's pool, which
    locks, checks and counts around every command.
    """

    def __init__(self, pool: ConnectionPool, timeout: float) -> None:
        self._pool = pool
        self._timeout = timeout
        self._idle: deque[Wire] = deque()
        self._pid = os.getpid()
        self._is_closed = False

    def execute(self, command: Command, timeout: float) -> Reply:
        """The reply to ``command``, which may take the stack's timeout or the shorter ``timeout``."""
        return self._exchange(Wire.ask, command, timeout)

    def execute_until(self, command: Command, overdue: Overdue) -> Reply:
        """The reply to ``command``, brought about when it is overdue."""
        seconds, bring_about = overdue

        def talk(wire: Wire, command: Command) -> Reply:
            wire.send(command)
            if not wire.is_readable(seconds):
                bring_about()
            return wire.read()

        return self._exchange(talk, command, self._timeout)

    def execute_both(self, first: Command, second: Command) -> tuple[Reply, Reply]:
        """The replies to two commands on one connection."""

        def talk(wire: Wire, first: Command) -> tuple[Reply, Reply]:
            return wire.ask(first), wire.ask(second)

        return self._exchange(talk, first, self._timeout)

    def close(self) -> None:
        """Disconnect them, and what is given back later."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().disconnect()

    def _exchange(self, talk: Callable[[Wire, Command], T], command: Command, timeout: float) -> T:
        """What ``talk`` says and hears on a connection, each read and write of which may take so long."""
        wire = self._take(min(timeout, self._timeout))
        try:
            found = talk(wire, command)
        except ResponseError as error:  # an answer like any other: the connection is in order
            if isinstance(error, ReadOnlyError):
                wire.disconnect()  # it is the master's no more: who is, shows when connecting
            else:
                self._give_back(wire)
            raise
        except BaseException as error:
            # Whatever interrupted the exchange, an answer may still be on its way: never reuse.
            wire.disconnect()
            if isinstance(error, RedisConnectionError | OSError):
                self._drop_idle()
            if isinstance(error, BlockingIOError | TimeoutError):  # the kernel's timeout, and Python's
                raise RedisTimeoutError("the time for an answer is over") from error
            raise
        self._give_back(wire)
        return found

    def _take(self, timeout: float) -> Wire:
        if self._pid != os.getpid():
            # A child after a fork: the sockets are the parent's.
            # The stack before the pid, which says that it is this process's.
            self._idle = deque()
            self._pid = os.getpid()
        if self._is_closed:
            raise StorageError("the storage was closed; make a new one")
        try:
            wire = self._idle.pop()
        except IndexError:
            wire = Wire(self._pool.make_connection())
            wire.connect(timeout)
            return wire
        if time.monotonic() - wire.used_at > _IDLE_SECONDS and _is_spoilt(wire):
            wire.connect(timeout)
        elif wire.timeout != timeout:  # whoever had it before may have had less time
            wire.set_timeout(timeout)
        return wire

    def _give_back(self, wire: Wire) -> None:
        wire.used_at = time.monotonic()
        self._idle.append(wire)
        if self._is_closed:
            self.close()

    def _drop_idle(self) -> None:
        # One broken connection means that the others are likely broken too: look before use.
        for wire in tuple(self._idle):
            wire.used_at = 0.0


def _is_spoilt(wire: Wire) -> bool:
    """Whether the server closed an idle connection, or said something nobody asked for."""
    try:
        return wire.is_readable(0)
    except (RedisConnectionError, OSError):
        return True
