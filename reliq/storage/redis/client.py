"""Scripts and commands over a link: errors translated, and what is safe to repeat repeated."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from redis import exceptions as rex

from ...errors import (
    NotConfirmedError,
    OutcomeUnknownError,
    StorageError,
    StorageUnavailableError,
)
from .connection import BLOCK_MARGIN, BLOCK_SECONDS, COMMAND_TIMEOUT, MAX_WAITS, Link
from .scripts import script
from .wire import Overdue, Reply, UnreachableError

#: Errors with which a server says that it did not carry out a command, and that a later try may work.
_LATER = (
    rex.BusyLoadingError, rex.ReadOnlyError, rex.ClusterDownError, rex.MasterDownError, rex.TryAgainError,
    rex.MaxConnectionsError, UnreachableError,
)  # fmt: skip
#: What servers say when a script's user lacks a right, in their various versions.
_NO_RIGHT = ("ACL failure in script", "The user executing the script can't")
#: Everything that the client library raises; the cluster's own exception is none of the others.
_ERRORS = (rex.RedisError, rex.RedisClusterException, UnreachableError, OSError)
_PAUSE = 0.01
_MAX_PAUSE = 0.25
#: No answer is waited for less long than this, however near the deadline.
_MIN_TIMEOUT = 0.05
#: The longest any operation is repeated: traces that make repeating safe last twice as long.
_MAX_REPEAT = 30.0


class Client:
    """One link, used by everything in the process that shares the storage.

    ``repeat_for`` seconds (at most 30): how long an operation is tried again before
    StorageUnavailableError or OutcomeUnknownError.
    """

    def __init__(self, link: Link, repeat_for: float, confirm_replicas: int, confirm_timeout: float) -> None:
        self.link = link
        self.repeat_for = repeat_for
        self._replicas = confirm_replicas
        self._replica_ms = round(confirm_timeout * 1000)
        self._places = threading.BoundedSemaphore(MAX_WAITS)

    def run(
        self,
        name: str,
        tag: str,
        *args: Any,
        is_repeatable: bool = False,
        within: float | None = None,
        confirm: bool = False,
    ) -> Any:
        """Run the transition ``name`` on the queue of ``tag``.

        Nothing was sent, or the server said that it did nothing: tried again in any case. An answer that was
        lost: only with ``is_repeatable``. Raises OutcomeUnknownError when a lost answer may have been a success.
        """
        found = script(name)
        replicas = self._replicas if confirm else 0

        def send(timeout: float) -> Any:
            how: dict[str, Any] = {"replicas": replicas, "replica_ms": self._replica_ms, "timeout": timeout}
            try:
                reply, confirmed = self.link.execute("EVALSHA", found.sha, 1, tag, *args, **how)
            except rex.NoScriptError:
                reply, confirmed = self.link.execute("EVAL", found.text, 1, tag, *args, **how)
            if replicas and confirmed < replicas:
                raise NotConfirmedError(
                    f"{name}: written, but {confirmed} of {replicas} replicas confirmed it within {self._replica_ms} ms"
                )
            return reply

        return self._repeat(name, send, is_repeatable, within)

    def command(self, *command: Any, within: float | None = None) -> Reply:
        """Run a plain command that is safe to repeat."""
        return self._repeat(command[0], lambda timeout: self.link.execute(*command, timeout=timeout)[0], True, within)

    def block(
        self, *command: Any, timeout: float = BLOCK_SECONDS + BLOCK_MARGIN, overdue: Overdue | None = None
    ) -> Reply:
        """Run one blocking read; never repeated, the caller looks at the state after an error."""
        try:
            return self.link.block(*command, timeout=timeout, overdue=overdue)
        except _ERRORS as error:
            raise _translate(command[0], error) from error

    def take_place(self, timeout: float) -> bool:
        """Reserve one of the connections in which callers may block."""
        return self._places.acquire(timeout=timeout)

    def leave_place(self) -> None:
        """Give it back."""
        self._places.release()

    def _repeat(self, name: str, send: Any, is_repeatable: bool, within: float | None) -> Any:
        deadline = time.monotonic() + (self.repeat_for if within is None else min(within, _MAX_REPEAT))
        pause, was_sent = _PAUSE, False
        timeout = COMMAND_TIMEOUT
        while True:
            if within is not None:  # somebody's own deadline, which an answer that does not come must not pass
                timeout = min(COMMAND_TIMEOUT, max(_MIN_TIMEOUT, deadline - time.monotonic()))
            try:
                return send(timeout)
            except _ERRORS as error:
                later = isinstance(error, _LATER)
                if not later and isinstance(error, rex.ConnectionError | rex.TimeoutError | OSError):
                    was_sent = not isinstance(error, rex.AuthenticationError)
                    later = was_sent and is_repeatable
                if not later or time.monotonic() + pause >= deadline:
                    if was_sent:
                        raise OutcomeUnknownError(
                            f"{name}: the server stopped answering in the middle; it may or may not have been"
                            f" carried out, and is safe to repeat ({error})"
                        ) from error
                    raise _translate(name, error) from error
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, _MAX_PAUSE)


def _translate(name: str, error: Exception) -> StorageError:
    if isinstance(error, rex.AuthenticationError):
        return StorageError(f"{name}: the server refused the credentials: {error}")
    if isinstance(error, rex.NoPermissionError) or any(sign in str(error) for sign in _NO_RIGHT):
        return StorageError(f"{name}: the server's user lacks a right: {error}")
    if isinstance(error, rex.OutOfMemoryError) or "OOM" in str(error)[:60]:
        return StorageUnavailableError(f"{name}: the server is out of memory, nothing was written: {error}")
    if isinstance(error, (*_LATER, rex.ConnectionError, rex.TimeoutError, OSError)):
        return StorageUnavailableError(f"{name}: the server does not answer, nothing was written: {error}")
    return StorageError(f"{name}: {error}")
