"""``reliq schedules``: what comes again and again."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from ..schedules import ScheduleInfo
from ..shown import span, stamp
from .common import EXIT_OK, EXIT_TROUBLE, add_command
from .confirm import add_yes, confirm
from .output import Column, add_json, note, short, write, write_json, write_table
from .targets import add_place, add_queue, open_place, queue_name

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq schedules ls                     every schedule, and when it ticks next
  reliq schedules rm nightly -q reports --yes

Schedules are made by applications, with Queue.schedule.
exit codes: 0 done, 1 no such schedule or storage trouble, 2 wrong usage
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command and its own commands."""
    parser = add_command(
        commands, "schedules", None, help="list or remove schedules",
        description="A schedule enqueues a job again and again, by cron or every so many seconds.", epilog=_EPILOG,
    )  # fmt: skip
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    each = add_command(
        verbs, "ls", run_ls, help="list schedules", description="List the schedules of one queue or of all.",
        epilog="example:\n  reliq schedules ls reports --json | jq .next_at\n",
    )  # fmt: skip
    add_queue(each)
    add_place(each)
    add_json(each)
    each = add_command(
        verbs, "rm", run_rm, help="remove schedules",
        description="End schedules; jobs that they enqueued stay. Asks first. An application that makes them at its\n"
        "start makes them again.", epilog="example:\n  reliq schedules rm nightly -q reports --yes\n",
    )  # fmt: skip
    each.add_argument("names", nargs="+", metavar="NAME", help="the schedules")
    add_queue(each, is_positional=False)
    add_yes(each)
    add_place(each)
    add_json(each)


def run_ls(args: argparse.Namespace) -> int:
    """Print the schedules."""
    with open_place(args) as place:
        found = [info for queue in place.all(queue_name(args)) for info in queue.schedules.list()]
    if args.json:
        for info in found:
            write_json({name: getattr(info, name) for name in ScheduleInfo.__dataclass_fields__ if name != "payload"})
        return EXIT_OK
    columns = [
        Column("schedule", lambda info: info.name),
        Column("queue", lambda info: info.queue),
        Column("when", _when),
        Column("missed", lambda info: info.missed),
        Column("next", lambda info: f"{stamp(info.next_at)} (in {span(max(0.0, info.next_at - time.time()))})"),
    ]
    write_table(found, columns, "no schedules")
    return EXIT_OK


def _when(info: ScheduleInfo) -> str:
    if info.error is not None:
        return short(f"cannot be read: {info.error}")
    if info.cron is not None:
        return f"{info.cron} ({info.tz})"
    return f"every {span(info.every or 0.0)}"


def run_rm(args: argparse.Namespace) -> int:
    """Remove schedules, once that is agreed."""
    code = EXIT_OK
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        confirm(args, f"Remove {len(args.names)} schedule(s) of queue {queue.name!r}: {', '.join(args.names)}?")
        for name in args.names:
            is_removed = queue.schedules.remove(name)
            if args.json:
                write_json({"queue": queue.name, "schedule": name, "removed": is_removed})
            elif is_removed:
                write(f"removed {short(name)}")
            if not is_removed:
                note(f"queue {queue.name!r} has no schedule {name!r}")
                code = EXIT_TROUBLE
    return code
