"""``reliq ls`` and ``reliq show``: jobs, many at a glance and one in full."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..facts import job_facts
from ..job import JobStatus
from ..lifecycle import STORED
from ..queue import Queue
from ..shown import age, safe, span, stamp
from ..storage.base import MAX_BATCH
from .common import EXIT_OK, EXIT_TROUBLE, add_command, at_least_one
from .output import Column, add_json, note, short, to_json, write, write_details, write_json, write_table
from .targets import add_place, add_queue, open_place, queue_name

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_LS_EPILOG = """\
examples:
  reliq ls emails                                  the jobs of a queue, whatever their state
  reliq ls emails --state processing               what runs now, and on which worker
  reliq ls emails --state failed --limit 500 --json | jq -r .id

The word after `more:` continues the listing: reliq ls emails --cursor WORD. Jobs that move between two pages may be
missed or seen twice. exit codes: 0 done, 1 storage trouble or no such queue, 2 wrong usage
"""
_SHOW_EPILOG = """\
examples:
  reliq show welcome-1                             where a job is, and why its attempts failed
  reliq show welcome-1 -q emails --payload         with its payload and result
  reliq show order-1 --json | jq '.errors[-1].traceback'

Without -q every queue is looked at. exit codes: 0 done, 1 no such job or storage trouble, 2 wrong usage
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the commands."""
    parser = add_command(
        commands, "ls", run_ls, help="list the jobs of a queue",
        description="List the jobs of a queue, of one state or of all. Changes nothing.", epilog=_LS_EPILOG,
    )  # fmt: skip
    add_queue(parser)
    parser.add_argument("--state", choices=[state.value for state in STORED], help="only jobs in this state")
    add_paging(parser)
    add_place(parser)
    add_json(parser)

    parser = add_command(
        commands, "show", run_show, help="show one job in full",
        description="Show everything known of a job: its state, attempts with errors and tracebacks, group, what it\n"
        "waits for, progress. Its payload and result only when asked for. Changes nothing.", epilog=_SHOW_EPILOG,
    )  # fmt: skip
    parser.add_argument("id", metavar="ID", help="the job")
    add_queue(parser, is_positional=False)
    parser.add_argument("--payload", action="store_true", help="also its payload and result")
    add_place(parser)
    add_json(parser)


def add_paging(parser: argparse.ArgumentParser) -> None:
    """The options of a listing."""
    parser.add_argument("--limit", type=at_least_one, default=50, metavar="N", help="at most so many (default: 50)")
    parser.add_argument("--cursor", metavar="WORD", help="go on where the page before ended")


def run_ls(args: argparse.Namespace) -> int:
    """Print a page of jobs."""
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        jobs, cursor = read_page(queue, args.state, args.limit, args.cursor)
        write_jobs(args, jobs, f"no jobs{f' in state {args.state}' if args.state else ''}")
    tell_cursor(cursor)
    return EXIT_OK


def read_page(queue: Queue, state: str | None, limit: int, cursor: str | None) -> tuple[list[JobStatus], str | None]:
    """Up to ``limit`` jobs, however many pages of the library that are."""
    jobs: list[JobStatus] = []
    while True:
        page = queue.jobs(state, limit=min(limit - len(jobs), MAX_BATCH), cursor=cursor)
        jobs += page
        cursor = page.cursor
        if cursor is None or len(jobs) >= limit:
            return jobs, cursor


def tell_cursor(cursor: str | None) -> None:
    """How to go on, beside the data."""
    if cursor is not None:
        note(f"more: --cursor '{cursor}'")


def write_jobs(args: argparse.Namespace, jobs: Sequence[JobStatus], empty: str) -> None:
    """Jobs as a table or as JSON lines."""
    if args.json:
        for job in jobs:
            write_json(job_facts(job))
        return
    columns = [
        Column("id", lambda job: job.id),
        Column("state", lambda job: f"{job.state}{' (cancelling)' if job.cancel_requested else ''}"),
        Column("attempts", lambda job: f"{job.attempts}/{job.max_attempts}", is_right=True),
        Column("age", lambda job: age(job.created_at), is_right=True),
        Column("for", lambda job: age(job.updated_at), is_right=True),
    ]
    # Columns that few queues need.
    for column, is_used in (
        (Column("prio", lambda job: job.priority, is_right=True), any(job.priority for job in jobs)),
        (Column("group", lambda job: job.group), any(job.group for job in jobs)),
        (Column("due in", _due, is_right=True), any(job.due_at for job in jobs)),
        (Column("worker", lambda job: job.worker_id), any(job.worker_id for job in jobs)),
        (Column("last error", lambda job: job.error and short(job.error)), any(job.errors for job in jobs)),
    ):
        if is_used:
            columns.append(column)
    write_table(jobs, columns, empty)


def run_show(args: argparse.Namespace) -> int:
    """Print one job."""
    with open_place(args) as place:
        queues = place.all(queue_name(args))
        found = [job for queue in queues if (job := queue.get_status(args.id)) is not None]
        for number, job in enumerate(found):
            if args.json:
                write_json(job_facts(job, with_payload=args.payload))
                continue
            if number:
                write("")
            write_job(job, with_payload=args.payload)
    if not found:
        note(f"no job {args.id!r} in {', '.join(queue.name for queue in queues) or 'no queue'}")
        return EXIT_TROUBLE
    return EXIT_OK


def write_job(job: JobStatus, *, with_payload: bool) -> None:
    """One job for people."""
    write_details(_details(job, with_payload))
    for error in job.errors:
        head = f"attempt {error.attempt}, {stamp(error.at)}, on {error.worker_id or 'no worker'}: "
        write(f"\n{head}{safe(error.error_type)}: {safe(error.message)}")
        if error.traceback:
            write("\n".join(f"  {line}" for line in safe(error.traceback, lines=True).rstrip().splitlines()))


def _details(job: JobStatus, with_payload: bool) -> Iterable[tuple[str, object]]:
    yield "id", job.id
    yield "queue", job.queue
    yield "state", f"{job.state}{' (its cancel was requested)' if job.cancel_requested else ''}"
    yield "attempts", "without end (persistent)" if job.persistent else f"{job.attempts} of {job.max_attempts}"
    yield "created", f"{stamp(job.created_at)} ({age(job.created_at)} ago)"
    yield "changed", f"{stamp(job.updated_at)} ({age(job.updated_at)} ago)"
    yield "due", None if job.due_at is None else f"{stamp(job.due_at)} (in {_due(job)})"
    yield "expires", None if job.expires_at is None else f"{stamp(job.expires_at)} (in {span(_left(job.expires_at))})"
    yield "priority", job.priority or None
    yield "worker", job.worker_id
    yield "group", None if job.group is None else f"{job.group}, sequence {job.sequence}"
    yield "after", ", ".join(job.after) or None
    yield "headers", ", ".join(f"{name}={value}" for name, value in job.headers.items()) or None
    yield "progress", None if job.progress is None else to_json(job.progress)
    if with_payload:
        yield "payload", to_json(job.payload)
        yield "result", to_json(job.result) if job.state == "completed" else None


def _due(job: JobStatus) -> str | None:
    return None if job.due_at is None else span(_left(job.due_at))


def _left(at: float) -> float:
    return max(0.0, at - time.time())
