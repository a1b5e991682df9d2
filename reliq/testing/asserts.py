"""Assertions about what a queue holds."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidJobError
from ..job import JobStatus
from ..queue import Queue
from ..validate import check_at

#: Of a failed assertion so many jobs are shown.
MAX_SHOWN = 10
#: Of a value so many characters, from a little before the first one that differs.
MAX_TEXT = 120
_LEAD = 20
_UNSET: Any = object()
_FIELDS = (
    "state", "priority", "group", "after", "max_attempts", "persistent", "headers", "attempts", "sequence", "progress",
)  # fmt: skip


def assert_enqueued(queue: Queue, id: str | None = None, *, payload: Any = _UNSET, **fields: Any) -> JobStatus:
    """Assert that a job is in the queue, in any state, and return its status.

    Given are its ``id``, its ``payload`` or fields of its status: ``state``, ``priority``, ``group``, ``after``,
    ``max_attempts``, ``headers`` ...; ``delay`` in seconds from its creation, or ``at`` as of ``enqueue``, while it
    waits for that. On failure the jobs that are there are shown, those that differ least first, with what differs.
    Raises InvalidJobError for a field that no status has (``time_limit`` and the TTLs are not in it).
    """
    __tracebackhide__ = True  # pytest shows the test's line
    if unknown := fields.keys() - {*_FIELDS, "at", "delay"}:
        raise InvalidJobError(f"no field {sorted(unknown)[0]!r}; there are: at, delay, {', '.join(_FIELDS)}")
    wanted = dict(fields)
    if id is not None:
        wanted["id"] = id
    if payload is not _UNSET:
        wanted["payload"] = payload
    if "at" in wanted:
        wanted["at"] = round(check_at(wanted["at"]), 3)
    if "after" in wanted:
        wanted["after"] = tuple(wanted["after"])
    found: list[tuple[list[str], JobStatus]] = []
    cursor: str | None = None
    while True:
        page = queue.jobs(limit=1000, cursor=cursor)
        for job in page:
            differences = _differences(job, wanted)
            if not differences:
                return job
            found.append((differences, job))
        cursor = page.cursor
        if cursor is None:
            break
    found.sort(key=lambda each: len(each[0]))
    lines = [
        f"no job of queue {queue.name!r} has {', '.join(f'{key}={_text(value)}' for key, value in wanted.items())}"
    ]
    for differences, job in found[:MAX_SHOWN]:
        lines.append(f"  {job.id!r} ({job.state}): {'; '.join(differences)}")
    if not found:
        lines.append("  the queue is empty" if wanted else "  the queue is empty, any job was expected")
    elif len(found) > MAX_SHOWN:
        lines.append(f"  and {len(found) - MAX_SHOWN} more")
    raise AssertionError("\n".join(lines))


def _differences(job: JobStatus, wanted: dict[str, Any]) -> list[str]:
    differences: list[str] = []
    for name, value in wanted.items():
        differences += _compare(name, _field(job, name), value)
    return differences


def _field(job: JobStatus, name: str) -> Any:
    if name == "at":
        return None if job.due_at is None else round(job.due_at, 3)
    if name == "delay":
        return None if job.due_at is None else round(job.due_at - job.created_at, 3)
    if name == "headers":
        return dict(job.headers)
    return getattr(job, name)


def _compare(name: str, there: Any, wanted: Any) -> list[str]:
    """What differs, in mappings key by key."""
    if there == wanted:
        return []
    if not (isinstance(there, dict) and isinstance(wanted, dict)):
        return [f"{name} is {_text(there, wanted)}, not {_text(wanted, there)}"]
    differences: list[str] = []
    for key in {**wanted, **there}:
        inner = f"{name}[{key!r}]"
        if key not in there:
            differences.append(f"{inner} is not there, {_text(wanted[key])} was expected")
        elif key not in wanted:
            differences.append(f"{inner} is {_text(there[key])}, which was not expected")
        else:
            differences += _compare(inner, there[key], wanted[key])
    return differences


def _text(value: Any, other: Any = None) -> str:
    """A value in a failure; of a long one the part that differs from ``other``."""
    text = repr(value)
    if len(text) <= MAX_TEXT:
        return text
    pairs = enumerate(zip(text, text if other is None else repr(other), strict=False))
    start = max(0, next((n for n, (a, b) in pairs if a != b), 0) - _LEAD)
    shown = text[start : start + MAX_TEXT]
    return f"{'...' if start else ''}{shown}{'...' if start + MAX_TEXT < len(text) else ''}"
