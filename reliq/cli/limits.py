"""``reliq limits``: shows or sets what a queue holds all its users to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..queue import Queue
from ..validate import check_rate
from .common import EXIT_OK, add_command, at_least_one
from .output import add_json, write_details, write_json
from .targets import add_place, add_queue, open_place, queue_name

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq limits emails                                   what holds now
  reliq limits emails --rate 100/s --max-concurrency 8
  reliq limits emails --rate none                       no limit any more

Limits live in the storage and hold for every process from now on.
exit codes: 0 done, 1 storage trouble or no such queue, 2 wrong usage
"""
_OPTIONS = {"rate": "rate_limit"}


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "limits", run, help="show or set the limits of a queue",
        description="Show the limits of a queue, or set those that are named; `none` lifts one.", epilog=_EPILOG,
    )  # fmt: skip
    add_queue(parser)
    parser.add_argument("--rate", type=_rate, metavar="N/s", help="jobs that start, per s, m, h or d")
    parser.add_argument("--max-concurrency", type=_number, metavar="N", help="jobs that run at once")
    parser.add_argument("--max-length", type=_number, metavar="N", help="jobs that wait to run; more are refused")
    parser.add_argument("--group-concurrency", type=_number, metavar="N", help="jobs of one group that run at once")
    add_place(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Set what was named, and print what holds then."""
    given: dict[str, Any] = {}
    for option in ("rate", "max_concurrency", "max_length", "group_concurrency"):
        value = getattr(args, option)
        if value is not None:
            given[_OPTIONS.get(option, option)] = None if value == "none" else value
    with open_place(args) as place:
        found = place.find(queue_name(args))
        # Not an application's Queue: looking must not store the limits that it was made with.
        queue = Queue(found.name, found.storage)
        if given:
            queue.set_limits(**given)
        limits = queue.limits
    if args.json:
        write_json({"queue": queue.name, **limits})
    else:
        write_details((name, "none" if value is None else value) for name, value in limits.items())
    return EXIT_OK


def _number(text: str) -> int | str:
    return "none" if text == "none" else at_least_one(text)


def _rate(text: str) -> str:
    if text != "none":
        try:
            check_rate("it", text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return text


_number.__name__ = "number"  # argparse shows it
