"""``reliq cancel``: takes jobs back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..job import CancelResult
from .common import EXIT_OK, EXIT_TROUBLE, UsageError, add_command
from .confirm import add_yes, confirm
from .output import Column, add_json, progress, write_json, write_table
from .submit import read_payload
from .targets import add_place, add_queue, open_place, queue_name

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq cancel reminder-1 reminder-2 -q emails
  reliq cancel import-7 --running               also ask its handler to stop
  reliq cancel --matching '{"to": "a@example.org"}' --yes

A cancelled job is gone, and its id is free. exit codes: 0 all cancelled (or asked to stop), 1 some were not, or storage
trouble, 2 wrong usage
"""
_DONE = ("cancelled", "cancelling")


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "cancel", run, help="cancel jobs",
        description="Cancel jobs by id, or every unfinished job with an equal payload. A job that runs goes on,\n"
        "unless --running asks its handler to stop. --matching stops running ones, too, and asks.", epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("ids", nargs="*", metavar="ID", help="the jobs")
    add_queue(parser, is_positional=False)
    parser.add_argument("--running", action="store_true", help="also ask running handlers to stop")
    parser.add_argument("--matching", metavar="PAYLOAD", help="every unfinished job with it: JSON, @FILE or -")
    add_yes(parser)
    add_place(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Cancel, and say what became of each."""
    if bool(args.ids) == (args.matching is not None):
        raise UsageError("cancel takes either IDs or --matching PAYLOAD")
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        results: list[CancelResult] = []
        if args.matching is not None:
            payload = read_payload(queue, args.matching)
            confirm(args, f"Cancel every unfinished job of queue {queue.name!r} with this payload, running ones too?")
            with progress("looking through the queue"):
                results = queue.cancel_matching(payload)
        else:
            results = [queue.cancel(id, running=args.running) for id in args.ids]
    if args.json:
        for result in results:
            write_json(result)
    else:
        columns = [Column("id", lambda result: result.id), Column("status", lambda result: result.status)]
        write_table(results, columns, "no such job")
    is_done = bool(results) and all(result.status in _DONE for result in results)
    return EXIT_OK if is_done else EXIT_TROUBLE
