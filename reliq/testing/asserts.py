"""Assertions about what a queue holds."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidJobError
from ..job import JobStatus
from ..queue import Queue

#: Of a failed assertion so many jobs are shown.
MAX_SHOWN = 10
_UNSET: Any = object()
_FIELDS = (
    "state", "priority", "group", "after", "max_attempts", "persistent", "headers", "attempts", "sequence", "progress",
)  # fmt: skip


def assert_enqueued(queue: Queue, id: str | None = None, *, payload: Any = _UNSET, **fields: Any) -> JobStatus:
    """Assert that a job is in the queue, in any state, and return its status.

    Given are its ``id``, its ``payload`` or fields of its status: ``state``, ``priority``, ``group``, ``after``,
    ``max_attempts``, ``headers`` ...; ``delay`` in seconds from its creation. On failure the jobs that are there
    are shown, those that differ least first, with what differs.
    """
    if unknown := fields.keys() - {*_FIELDS, "delay"}:
        raise InvalidJobError(f"no field {sorted(unknown)[0]!r}; there are: delay, {', '.join(_FIELDS)}")
    wanted = dict(fields)
    if id is not None:
        wanted["id"] = id
    if payload is not _UNSET:
        wanted["payload"] = payload
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
    lines = [f"no job of queue {queue.name!r} has {', '.join(f'{key}={value!r}' for key, value in wanted.items())}"]
    for differences, job in found[:MAX_SHOWN]:
        lines.append(f"  {job.id!r} ({job.state}): {'; '.join(differences)}")
    if not found:
        lines.append("  the queue is empty" if wanted else "  the queue is empty, any job was expected")
    elif len(found) > MAX_SHOWN:
        lines.append(f"  and {len(found) - MAX_SHOWN} more")
    raise AssertionError("\n".join(lines))


def _differences(job: JobStatus, wanted: dict[str, Any]) -> list[str]:
    differences = []
    for name, value in wanted.items():
        there: Any
        if name == "delay":
            there = None if job.due_at is None else round(job.due_at - job.created_at, 3)
        else:
            there = getattr(job, name)
        if name == "headers":
            there = dict(there)
        elif name == "after":
            there, value = tuple(there), tuple(value)
        if there != value:
            differences.append(f"{name} is {there!r}, not {value!r}")
    return differences
