"""Errors of attempts, to bytes and back. Pure."""

from __future__ import annotations

import json
import traceback as tb
from typing import Any

from .errors import JobFailedError, MaxRetriesError
from .job import AttemptError
from .storage.base import Snapshot, worker_label

#: The end of a traceback is what matters; the stored text is cut to this many characters.
MAX_TRACEBACK = 8_000
MAX_MESSAGE = 2_000


def encode_error(error: BaseException) -> bytes:
    """What a storage keeps of ``error``: class name, text, traceback."""
    trace = "".join(tb.format_exception(error)) if error.__traceback__ is not None else ""
    return encode_parts(type(error).__qualname__, _text(error), trace)


def encode_parts(error_type: str, message: str, traceback: str = "") -> bytes:
    """Like :func:`encode_error` for something that was never raised."""
    entry = {"type": error_type, "message": message[:MAX_MESSAGE], "traceback": traceback[-MAX_TRACEBACK:]}
    return json.dumps(entry).encode()


def decode_errors(snapshot: Snapshot) -> tuple[AttemptError, ...]:
    """The history of failed attempts of a record, oldest first."""
    return tuple(_decode(*entry) for entry in snapshot.errors)


def to_exception(snapshot: Snapshot) -> JobFailedError:
    """The exception that a caller gets for a failed record."""
    errors = decode_errors(snapshot)
    last = errors[-1] if errors else AttemptError(snapshot.attempts, "UnknownError", "no error was stored", "", 0.0, "")
    kind = MaxRetriesError if snapshot.is_exhausted else JobFailedError
    return kind(snapshot.id, snapshot.attempts, last.error_type, last.message, last.traceback)


def _decode(at_ms: int, worker: str, attempt: int, data: bytes) -> AttemptError:
    try:
        entry: Any = json.loads(data)
        parts = (str(entry["type"]), str(entry["message"]), str(entry["traceback"]))
    except (ValueError, TypeError, KeyError):
        parts = ("UnknownError", data.decode(errors="replace"), "")
    return AttemptError(attempt, *parts, at_ms / 1000, worker_label(worker))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # a user's __str__ must not cost the job its error
        return f"<{type(error).__qualname__}.__str__ raised {type(broken).__qualname__}>"
