"""What databases and jobs have to do with each other: enqueue after commit, and fresh connections around each job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from django.db import close_old_connections, connections, reset_queries, transaction

from ...job import Job

#: The database that the present block asked for instead of the queue's own; () means that none did.
_asked: ContextVar[str | None | tuple[()]] = ContextVar("reliq_django_commit", default=())


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Inside, whatever is enqueued is sent at once, commit or not; ``call`` and ``wait`` are allowed, too."""
    token = _asked.set(None)
    try:
        yield
    finally:
        _asked.reset(token)


@contextlib.contextmanager
def after_commit(using: str = "default") -> Iterator[None]:
    """Inside, what is enqueued in a transaction of the database ``using`` is sent when that one commits.

    For queues whose settings name another database, or none.
    """
    _ = connections[using]  # an unknown one raises ConnectionDoesNotExist here, and not at some enqueue
    token = _asked.set(using)
    try:
        yield
    finally:
        _asked.reset(token)


class CommitGate:
    """A queue's gate: keeps what is enqueued in a transaction of the database ``using`` until it commits."""

    def __init__(self, using: str | None) -> None:
        self._using = using

    def defer(self, send: Callable[[], object]) -> bool:
        """Send it with the commit, or never when the transaction, or the savepoint around, is rolled back."""
        using = self.open_transaction()
        if using is None:
            return False
        # Not robust: a storage that is down must be seen by whoever left the block, not only by a log.
        transaction.on_commit(send, using=using)
        return True

    def check_wait(self, verb: str) -> None:
        """What is enqueued here comes with the commit, and the commit comes after the waiting."""
        if (using := self.open_transaction()) is not None:
            raise transaction.TransactionManagementError(
                f"{verb}() cannot be used inside of an atomic block of the database {using!r}: jobs are enqueued when "
                "it commits, and it would wait for one that is not there. Use it after the block, or say "
                f"`with reliq.contrib.django.at_once():` around it."
            )

    def open_transaction(self) -> str | None:
        """The alias of the database whose transaction is open here and counts; None for none."""
        asked = _asked.get()
        using = self._using if isinstance(asked, tuple) else asked
        return using if using is not None and connections[using].in_atomic_block else None


@contextlib.contextmanager
def fresh_connections(_: Job) -> Iterator[None]:
    """As around a request: no job gets a connection that is broken or too old, and none keeps one past its time."""
    reset_queries()
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()
