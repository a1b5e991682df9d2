"""Which job the present thread runs."""

from __future__ import annotations

from contextvars import ContextVar

from .job import Job

#: Set around each handler by whoever runs it.
running: ContextVar[Job | None] = ContextVar("reliq_job", default=None)


def current_job() -> Job | None:
    """The job whose handler runs in this thread (or context); None outside of handlers."""
    return running.get()
